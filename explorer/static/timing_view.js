// Times of a call, eager and compiled: a row a candidate, with a bar, its quartiles and rounds, and the numbers beside it.

import { DocumentView } from "./document_view.js";
import { h, icon } from "./dom.js";
import { axisEnd, percent, roundTicks, stacked, tickText } from "./timing_scale.js";

/** @typedef {import("./document.js").Place} Place */
/**
 * @typedef {{id: string, name: string, tone: string, seconds: number | null, low: number | null, high: number | null,
 *   rounds: number[], time: string, spread: string, ratio: string, range: string, compiling: string, pays: string,
 *   peak: number | null, memory: string, counts: string[], problem: string}} Row
 * @typedef {{name: string, seconds: number}} Unit
 * @typedef {{name: string, seconds: number | null, host: (number | null)[], words: string[]}} HostRow
 */

/** @type {Record<string, string>} */
const TONES = { eager: "eager", faster: "faster than eager", slower: "slower than eager", equal: "as fast as eager" };
const TICKS = 6;
const FACTS = ["compiling", "pays off", "memory"];

export class TimingView extends DocumentView {
  /** @param {HTMLElement} body */
  begin(body) {
    body.className = "tc-timing";
    body.addEventListener("keydown", (event) => moveByArrow(event, body));
    return { times: timesChart, host: hostChart };
  }
}

/** @param {{unit: Unit | null, rows: Row[]}} data @param {Place} place */
function timesChart({ unit, rows }, place) {
  const most = axisEnd(rows);
  const eager = rows.find(({ tone }) => tone === "eager")?.seconds ?? null;
  const peak = Math.max(0, ...rows.map((row) => row.peak ?? 0));
  const drawn = rows.map((row) => place.item([row.id], row.problem ? failedRow(row) : timeRow(row, most, eager, peak)));
  return h("div", { class: "tc-times", role: "table", "aria-label": "Time of a call by candidate" }, headRow(most, unit), ...drawn);
}

/** @param {number} most @param {Unit | null} unit */
function headRow(most, unit) {
  const head = (/** @type {string} */ name, /** @type {string} */ title) => h("div", { class: "tc-time-number", role: "columnheader", title }, name);
  return h(
    "div",
    { class: "tc-time-head", role: "row" },
    h("div", { role: "columnheader" }, "candidate"),
    h("div", { class: "tc-time-axis", role: "columnheader", "aria-label": "bar" }, ...(unit ? axis(most, unit) : [])),
    head("a call", "The median of the rounds, and below it the quartiles: half of the rounds lie between them"),
    head("speed-up", "Eager's median over this one's; round by round, with the quartiles below it"),
    h(
      "div",
      { class: "tc-time-facts", role: "presentation" },
      head(FACTS[0], "The first call, with empty caches"),
      head(FACTS[1], "So many calls take as long in all as they do in eager, compiling included"),
      head(FACTS[2], "The most that a call uses beyond what was in use before"),
    ),
  );
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

/** @param {Row} row @param {number} most @param {number | null} eager @param {number} peak */
function timeRow(row, most, eager, peak) {
  return h(
    "div",
    { class: `tc-time-row tc-${row.tone}`, role: "row" },
    nameOf(row),
    h("div", { class: "tc-time-bar", role: "cell", "aria-label": TONES[row.tone], title: TONES[row.tone] }, ...bar(row, most, eager)),
    number("tc-time-median", row.time, row.spread),
    number("tc-time-ratio", row.ratio, row.range),
    h("div", { class: "tc-time-facts", role: "presentation" }, ...[row.compiling, row.pays, row.memory].map((value, index) => fact(FACTS[index], value, index === 2 ? row.peak : null, peak))),
  );
}

/** A name, and what was compiled for it. @param {{name: string, counts: string[]}} row */
function nameOf({ name, counts }) {
  return h("div", { class: "tc-time-name", role: "rowheader" }, name, counts.length ? h("small", {}, counts.join(" · ")) : null);
}

/** A number that has its name before it where there is no room for a column. @param {string} name @param {string} value @param {number | null} bytes @param {number} most */
function fact(name, value, bytes, most) {
  const label = value ? h("span", { class: "tc-time-label" }, name) : null;
  return h("div", { class: "tc-time-number", role: "cell" }, label, value, bytes ? memoryBar(bytes, most) : null);
}

/** @param {string} name @param {string} value @param {string} [below] */
function number(name, value, below = "") {
  return h("div", { class: `tc-time-number ${name}`, role: "cell" }, value, below ? h("small", {}, below) : null);
}

/** The bar, its rounds, its quartiles, and eager as a line. @param {Row} row @param {number} most @param {number | null} eager */
function bar({ seconds, low, high, rounds }, most, eager) {
  const at = (/** @type {number} */ value) => `${percent(value, most)}%`;
  const dots = rounds.map((value) => h("i", { class: value > most ? "tc-dot tc-beyond" : "tc-dot", style: { left: at(value) } }));
  const from = percent(low ?? 0, most);
  const whisker = { left: `${from}%`, width: `${percent(high ?? 0, most) - from}%` };
  return [
    h("i", { class: "tc-bar", style: { width: at(seconds ?? 0) } }),
    ...dots,
    low !== null && high !== null ? h("i", { class: "tc-whisker", style: whisker }) : null,
    eager !== null ? h("i", { class: "tc-reference", style: { left: at(eager) } }) : null,
  ].filter((part) => part !== null);
}

/** @param {number} bytes @param {number} most */
function memoryBar(bytes, most) {
  return h("i", { class: "tc-memory", "aria-hidden": "true" }, h("i", { style: { width: `${percent(bytes, most)}%` } }));
}

/** @param {Row} row */
function failedRow({ name, problem, counts }) {
  return h(
    "div",
    { class: "tc-time-row tc-failed-row", role: "row" },
    nameOf({ name, counts }),
    h("div", { class: "tc-time-problem", role: "cell" }, icon("warning"), h("span", {}, problem)),
  );
}

/** The time of a call in its parts: those of the host end to end, the GPU's beside them. @param {{parts: string[], rows: HostRow[]}} data */
function hostChart({ parts, rows }) {
  const most = 1.04 * Math.max(...rows.map(({ host, seconds }) => Math.max(seconds ?? 0, sum(host.slice(0, -1)), host.at(-1) ?? 0)));
  const legend = parts.flatMap((name, part) => (rows.some(({ host }) => host[part]) ? [h("span", {}, h("i", { class: `tc-part tc-part-${part}` }), name)] : []));
  return h(
    "div",
    { class: "tc-host" },
    h("p", { class: "tc-host-legend" }, ...legend),
    h("div", { class: "tc-times", role: "table", "aria-label": "Where the time of a call goes" }, ...rows.map((row) => hostRow(row, most))),
  );
}

/** @param {HostRow} row @param {number} most */
function hostRow({ name, host, words }, most) {
  const gpu = host.at(-1) ?? 0;
  const pieces = stacked(host.slice(0, -1), most).map(({ left, width }, part) => pieceOf(part, left, width));
  if (gpu) pieces.push(pieceOf(host.length - 1, 0, percent(gpu, most)));
  return h(
    "div",
    { class: gpu ? "tc-time-row tc-two-lanes" : "tc-time-row", role: "row" },
    nameOf({ name, counts: [] }),
    h("div", { class: "tc-time-bar", role: "cell", "aria-hidden": "true" }, ...pieces),
    h("div", { class: "tc-host-words", role: "cell" }, words.join(" · ")),
  );
}

/** @param {number} part @param {number} left @param {number} width both in percent */
function pieceOf(part, left, width) {
  const place = { left: `${left}%`, width: `${width}%`, display: width ? "" : "none" };
  return h("i", { class: `tc-part tc-part-${part}`, style: place });
}

/** @param {(number | null)[]} parts */
function sum(parts) {
  return parts.reduce((/** @type {number} */ total, part) => total + (part ?? 0), 0);
}

/** Up and down go from candidate to candidate. @param {KeyboardEvent} event @param {HTMLElement} body */
function moveByArrow(event, body) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const rows = /** @type {HTMLElement[]} */ ([...body.querySelectorAll(".tc-time-row[tabindex]")]);
  const at = rows.indexOf(/** @type {HTMLElement} */ (event.target));
  if (!step || at < 0) return;
  rows[at + step]?.focus();
  event.preventDefault();
}
