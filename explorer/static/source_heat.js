// Where the time of a call goes, beside source lines: measured, eager and compiled, forward and backward.

import { h } from "./dom.js";

/** @typedef {import("./store.js").Store} Store */
/**
 * Of each side: microseconds in each half, with all that the line calls and of its own.
 * @typedef {[number[], number[]][]} Row
 * @typedef {{device: string, halves: string[], rows: Record<string, Record<string, Row>>}} Heat
 */

const SIDES = ["eager", "compiled"];
/** What is shown of a record, -1 for all halves, -2 for nothing. @type {WeakMap<Store, number>} */
const shown = new WeakMap();

/** @param {Store} store @returns {Heat | null} */
function heatOf({ manifest }) {
  return manifest.heat?.rows ? manifest.heat : null;
}

/** @param {number[]} halves @param {number} half */
const amount = (halves, half) => (half < 0 ? halves.reduce((sum, value) => sum + value, 0) : halves[half]);

/** @param {number} micro microseconds, as in "1.25 ms" */
function inWords(micro) {
  return micro < 1000 ? `${Number(micro.toPrecision(2))} µs` : `${Number((micro / 1000).toPrecision(3))} ms`;
}

/** What to put beside a row, if times of its record are shown at all. @param {Store} store @returns {((artifact: string, row: number) => HTMLElement) | null} */
export function heatBars(store) {
  const heat = heatOf(store);
  const half = shown.get(store) ?? -1;
  if (!heat || half < -1) return null;
  const rows = Object.values(heat.rows).flatMap((found) => Object.values(found));
  const most = Math.max(...rows.flatMap((sides) => sides.map(([total]) => amount(total, half))));
  return (artifact, row) => {
    const sides = heat.rows[artifact]?.[row + 1];
    if (!sides) return h("span", { class: "tc-heat" });
    const bars = sides.map(([total], side) =>
      h("i", { class: `tc-heat-${SIDES[side]}`, style: { width: `${Math.ceil((100 * amount(total, half)) / most)}%` } }),
    );
    const title = sides.map((times, side) => `${SIDES[side]}: ${lineInWords(heat, times, half)}`).join("\n");
    return h("span", { class: "tc-heat", title: `${title}\nmeasured on the ${heat.device}`, role: "img", "aria-label": title }, ...bars);
  };
}

/** @param {Heat} heat @param {Row[0]} times @param {number} half */
function lineInWords({ halves }, [total, own], half) {
  const all = amount(total, half);
  const parts = half < 0 && halves.length > 1 ? ` (${halves.flatMap((name, at) => (total[at] ? [`${name} ${inWords(total[at])}`] : [])).join(", ")})` : "";
  const itself = amount(own, half);
  return inWords(all) + parts + (itself && itself < 0.995 * all ? `, ${inWords(itself)} of them on the line itself` : "");
}

/** What the bars mean, and a choice of what they show. @param {Store} store @param {string} artifact @returns {HTMLElement[]} */
export function heatLegend(store, artifact) {
  const heat = heatOf(store);
  if (!heat?.rows[artifact]) return [];
  const one = heat.halves.length < 2;
  /** @type {[number, string][]} */
  const choices = [[-1, one ? heat.halves[0] : heat.halves[2] ? "all" : "both"], ...(one ? [] : heat.halves.map((name, at) => /** @type {[number, string]} */ ([at, name]))), [-2, "hidden"]];
  const select = h("select", { class: "tc-heat-choice", "aria-label": "Which times are beside the lines" }, ...choices.map(([value, text]) => h("option", { value: String(value) }, text)));
  select.value = String(shown.get(store) ?? -1);
  select.addEventListener("change", () => {
    shown.set(store, Number(select.value));
    store.tell("heat");
  });
  const title = `Measured on the ${heat.device}, with all that a line calls; the longest bar is the whole call. The time of a fused kernel is shared equally by its lines.`;
  const sides = SIDES.map((side) => h("span", { class: "tc-legend-item", title }, h("i", { class: `tc-heat-${side}` }), side));
  return [h("label", { class: "tc-legend-item", title }, "time", select), ...sides];
}
