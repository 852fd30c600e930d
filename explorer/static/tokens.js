// Coloured text as elements, split where something in it stands out.

import { h } from "./dom.js";

/**
 * A stretch of a line, from and to a column, and its CSS classes.
 * @typedef {[number, number, string]} Range
 */

/**
 * Append one token, split where ranges begin and end.
 * @param {HTMLElement} code @param {string} name of its CSS class @param {string} text
 * @param {number} column where the token begins @param {Range[]} ranges
 */
export function appendToken(code, name, text, column, ranges) {
  let done = 0;
  for (const [start, end, more] of ranges) {
    const from = Math.max(start - column, done);
    const to = Math.min(end - column, text.length);
    if (from >= to) continue;
    appendText(code, name, text.slice(done, from));
    appendText(code, `${name} ${more}`, text.slice(from, to));
    done = to;
  }
  appendText(code, name, text.slice(done));
}

/** @param {HTMLElement} code @param {string} name of the CSS class @param {string} text */
function appendText(code, name, text) {
  if (text) code.append(name ? h("span", { class: name }, text) : text);
}
