// A profile: a row for each step, with compilations, compiled code and graph breaks where they were, above the table.

import { tablePart } from "./document.js";
import { DocumentView } from "./document_view.js";
import { h } from "./dom.js";

/** @typedef {import("./document.js").Place} Place */
/** @typedef {import("./document.js").Part} Part */
/** @typedef {{name: string, time: string, spans: [string, number, number][]}} Row Each span: kind, start and width in percent. */

export class ProfileView extends DocumentView {
  /** @param {HTMLElement} body */
  begin(body) {
    body.classList.add("tc-profile");
    return { timeline };
  }
}

/** @param {{kinds: string[], rows: Row[]}} data @param {Place} place @param {Part} table */
function timeline({ kinds, rows }, place, table) {
  const colour = (/** @type {string} */ kind) => `tc-span-${kinds.indexOf(kind)}`;
  const legend = kinds.map((kind) => h("span", {}, h("i", { class: `tc-span-key ${colour(kind)}` }), kind));
  const drawn = rows.map(({ name, time, spans }) => [
    h("span", { class: "tc-step-name" }, name),
    h("span", { class: "tc-step-bar" }, ...spans.map(([kind, left, width]) => h("i", { class: colour(kind), title: kind, style: { left: `${left}%`, width: `${width}%` } }))),
    h("span", { class: "tc-step-time" }, time),
  ]);
  // The table below has the same numbers for readers of the screen.
  const picture = h("div", { class: "tc-step-rows", "aria-hidden": "true" }, ...drawn.flat());
  return h("div", { class: "tc-step-chart" }, h("p", { class: "tc-span-legend" }, ...legend, "each step has its own scale"), picture, ...tablePart(table, place));
}
