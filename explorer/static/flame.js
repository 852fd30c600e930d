// A flame chart: when torch.compile did what. Arrows step through the spans; the line below says what the chosen one is.

import { tablePart } from "./document.js";
import { h } from "./dom.js";

/** @typedef {[row: number, start: number, seconds: number, phase: number, name: string]} Span */
/** @typedef {{end: number, rows: number, phases: [name: string, colour: string, ink: string][], spans: Span[]}} Flame */

const ROW = 20;

/** @param {Flame} data @param {import("./document.js").Place} place @param {any} table @returns {HTMLElement} */
export function flameChart(data, place, table) {
  const line = h("p", { class: "tc-flame-line", role: "status" }, "Choose a span: a click, or the arrow keys");
  const boxes = data.spans.map((span, at) => boxOf(span, data, () => choose(at)));
  const chart = h(
    "div",
    { class: "tc-flame", tabIndex: 0, role: "group", "aria-label": `${table.label}: spans by time; arrow keys step through them`, style: { height: `${data.rows * ROW}px` } },
    ...boxes,
  );
  let chosen = -1;
  /** @param {number} at */
  function choose(at) {
    boxes[chosen]?.classList.remove("tc-chosen");
    chosen = at;
    boxes[at].classList.add("tc-chosen");
    line.textContent = saidOf(data.spans[at], data);
  }
  chart.addEventListener("keydown", (event) => {
    const next = chosen < 0 ? 0 : stepped(data.spans, chosen, event.key);
    if (next === null || !event.key.startsWith("Arrow")) return;
    choose(next);
    event.preventDefault();
    event.stopPropagation();
  });
  const legend = data.phases.map(([name, colour]) => h("span", {}, h("i", { style: { background: colour } }), name));
  return h("div", { class: "tc-flame-box" }, h("p", { class: "tc-flame-legend" }, ...legend), chart, h("p", { class: "tc-flame-ends" }, h("span", {}, "0 s"), h("span", {}, secondsText(data.end))), line, ...tablePart(table, place));
}

/** @param {Span} span @param {Flame} data @param {() => void} choose */
function boxOf([row, start, seconds, phase, name], data, choose) {
  const [, background, color] = data.phases[phase];
  const percent = (/** @type {number} */ value) => `${((100 * value) / data.end).toFixed(3)}%`;
  const style = { top: `${row * ROW}px`, left: percent(start), width: percent(seconds), background, color };
  const box = h("div", { class: "tc-flame-span", style, title: saidOf([row, start, seconds, phase, name], data), "aria-hidden": "true" }, name);
  box.addEventListener("click", choose);
  return box;
}

/** The span that an arrow leads to: along its row, or to the one around or inside it. @param {Span[]} spans @param {number} from @param {string} key */
function stepped(spans, from, key) {
  const [row, start, seconds] = spans[from];
  const overlaps = (/** @type {Span} */ [, at, long]) => at < start + seconds && start < at + long;
  const found = spans.findIndex((span) => (key === "ArrowUp" && span[0] === row - 1 && overlaps(span)) || (key === "ArrowDown" && span[0] === row + 1 && overlaps(span)));
  if (found >= 0) return found;
  const along = spans.map((_, at) => at).filter((at) => spans[at][0] === row);
  const place = along.indexOf(from) + (key === "ArrowRight" ? 1 : key === "ArrowLeft" ? -1 : 0);
  return along[place] ?? null;
}

/** @param {Span} span @param {Flame} data */
function saidOf([, start, seconds, phase, name], data) {
  return `${name}, ${data.phases[phase][0]}: ${secondsText(seconds)}, ${secondsText(start)} after the first event`;
}

/** @param {number} seconds */
function secondsText(seconds) {
  return seconds >= 1 ? `${seconds.toFixed(1)} s` : seconds ? `${Math.round(seconds * 1000)} ms` : "0 s";
}
