// Times of a call, eager and compiled: the table of the candidates with a bar in each row, its quartiles and rounds.

import { tablePart } from "./document.js";
import { DocumentView } from "./document_view.js";
import { h } from "./dom.js";
import { axisEnd, percent, roundTicks, stacked, tickText } from "./timing_scale.js";

/** @typedef {import("./document.js").Place} Place */
/** @typedef {import("./document.js").Part} Part */
/** @typedef {{tone: string, seconds: number, low: number | null, high: number | null, rounds: number[]}} Row */
/** @typedef {{name: string, seconds: number}} Unit */
/** @typedef {{seconds: number | null, host: (number | null)[]}} HostRow */

/** @type {Record<string, string>} */
const TONES = { eager: "eager", faster: "faster than eager", slower: "slower than eager", equal: "as fast as eager" };
const TICKS = 6;

export class TimingView extends DocumentView {
  /** @param {HTMLElement} body */
  begin(body) {
    body.className = "tc-timing";
    return { times: timesChart, host: hostChart };
  }
}

/** @param {{unit: Unit | null, rows: Row[]}} data @param {Place} place @param {Part} table */
function timesChart({ unit, rows }, place, table) {
  const most = axisEnd(rows);
  const eager = rows.find(({ tone }) => tone === "eager")?.seconds ?? null;
  const bars = rows.map((row) => h("td", { class: `tc-time-bar tc-${row.tone}`, "aria-label": TONES[row.tone], title: TONES[row.tone] }, ...bar(row, most, eager)));
  return withBars(table, place, h("th", { class: "tc-time-axis", scope: "col", "aria-label": "bar" }, ...(unit ? axis(most, unit) : [])), bars);
}

/** A table with a column of bars after its first. @param {Part} table @param {Place} place @param {HTMLElement | null} head @param {HTMLElement[]} bars */
function withBars(table, place, head, bars) {
  const drawn = /** @type {HTMLElement} */ (tablePart({ ...table, most: bars.length }, place).find((part) => part instanceof HTMLTableElement));
  if (head) drawn.querySelector("thead th")?.after(head);
  drawn.querySelectorAll("tbody tr").forEach((row, at) => row.firstElementChild?.after(bars[at]));
  return drawn;
}

/** @param {number} most @param {Unit} unit */
function axis(most, unit) {
  const ticks = roundTicks(most / unit.seconds, TICKS);
  const step = ticks[1] ?? 1;
  return ticks.map((tick, index) => {
    const name = index === ticks.length - 1 ? `${tickText(tick, step)} ${unit.name}` : tickText(tick, step);
    return h("span", { class: "tc-tick", style: { left: `${percent(tick * unit.seconds, most)}%` } }, name);
  });
}

/** The bar, its rounds, its quartiles, and eager as a line. @param {Row} row @param {number} most @param {number | null} eager */
function bar({ seconds, low, high, rounds }, most, eager) {
  const at = (/** @type {number} */ value) => `${percent(value, most)}%`;
  const dots = rounds.map((value) => h("i", { class: value > most ? "tc-dot tc-beyond" : "tc-dot", style: { left: at(value) } }));
  const from = percent(low ?? 0, most);
  const whisker = { left: `${from}%`, width: `${percent(high ?? 0, most) - from}%` };
  return [
    h("i", { class: "tc-bar", style: { width: at(seconds) } }),
    ...dots,
    low !== null && high !== null ? h("i", { class: "tc-whisker", style: whisker }) : null,
    eager !== null ? h("i", { class: "tc-reference", style: { left: at(eager) } }) : null,
  ].filter((part) => part !== null);
}

/** The time of a call in its parts: those of the host end to end, the GPU's below them. @param {{parts: string[], rows: HostRow[]}} data @param {Place} place @param {Part} table */
function hostChart({ parts, rows }, place, table) {
  const sum = (/** @type {(number | null)[]} */ some) => some.reduce((/** @type {number} */ total, part) => total + (part ?? 0), 0);
  const most = 1.04 * Math.max(...rows.map(({ host, seconds }) => Math.max(seconds ?? 0, sum(host.slice(0, -1)), host.at(-1) ?? 0)));
  const legend = parts.flatMap((name, part) => (rows.some(({ host }) => host[part]) ? [h("span", {}, h("i", { class: `tc-part tc-part-${part}` }), name)] : []));
  const bars = rows.map(({ host }) => {
    const gpu = host.at(-1) ?? 0;
    const pieces = stacked(host.slice(0, -1), most).map(({ left, width }, part) => pieceOf(part, left, width));
    if (gpu) pieces.push(pieceOf(host.length - 1, 0, percent(gpu, most)));
    return h("td", { class: gpu ? "tc-time-bar tc-two-lanes" : "tc-time-bar", "aria-hidden": "true" }, ...pieces);
  });
  return h("div", {}, h("p", { class: "tc-host-legend" }, ...legend), withBars(table, place, null, bars));
}

/** @param {number} part @param {number} left @param {number} width both in percent */
function pieceOf(part, left, width) {
  return h("i", { class: `tc-part tc-part-${part}`, style: { left: `${left}%`, width: `${width}%`, display: width ? "" : "none" } });
}
