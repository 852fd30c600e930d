// Names that are too long for their place. Kernels' names begin alike and differ at their end: they are cut in the middle.

import { h } from "./dom.js";

/** So much of the end of a name is always shown. */
const LONGEST_END = 14;

/**
 * A name of at most so many characters, cut between two of its words where that is possible:
 * `triton_poi_fused_…_relu_3`.
 * @param {string} name @param {number} most
 */
export function shortName(name, most) {
  if (name.length <= most) return name;
  const end = lastWords(name, Math.floor(most * 0.45));
  const start = name.slice(0, Math.max(most - 1 - end.length, 0));
  const words = /^.*[_./: ]/.exec(start)?.[0] ?? "";
  return `${words.length * 2 > start.length ? words : start}…${end}`;
}

/** The last words of a name, in at most so many characters; without words, its last characters. @param {string} name @param {number} most */
function lastWords(name, most) {
  const end = most > 0 ? name.slice(-most) : "";
  const at = end.search(/[_./: ][^_./: ]/);
  return at < 0 ? end : end.slice(at);
}

/** A name that is cut before its last words where there is no room for all of it. @param {string} name */
export function nameElement(name) {
  const end = lastWords(name, Math.min(LONGEST_END, Math.ceil(name.length * 0.6)));
  const start = h("span", { class: "tc-name-start" }, name.slice(0, name.length - end.length));
  const element = h("span", { class: "tc-name", title: name }, start, end);
  element.style.setProperty("--end", `${end.length}ch`);
  return element;
}
