// The collectives of a rank: when it computes and when it communicates, as two lanes for each half, above the tables.

import { DocumentView } from "./document_view.js";
import { h } from "./dom.js";

/** @typedef {[lane: number, start: number, seconds: number, tone: number, name: string, id: string, more: string]} Span */
/** @typedef {{end: number, title: string, lanes: string[], tones: [name: string, colour: string][], spans: Span[]}} Lanes */

export class LanesView extends DocumentView {
  /** @param {HTMLElement} body */
  begin(body) {
    super.begin(body);
    body.classList.add("tc-collectives");
    return { lanes: (/** @type {Lanes} */ data) => this.lanes(data) };
  }

  /** Both lanes; a click, or an arrow, selects a span. @param {Lanes} data */
  lanes(data) {
    const line = h("p", { class: "tc-lane-line", role: "status" }, "Choose a span: a click, or the arrow keys");
    const boxes = data.spans.map((span, at) => this.box(span, data, () => choose(at)));
    const rows = data.lanes.map((name, lane) => [
      h("span", { class: "tc-lane-name" }, name),
      h("span", { class: "tc-lane" }, ...boxes.filter((_, at) => data.spans[at][0] === lane)),
    ]);
    const chart = h("div", { class: "tc-lanes", tabIndex: 0, role: "group", "aria-label": `${data.title}: compute and communication by time; arrow keys step through the spans` }, ...rows.flat());
    let chosen = -1;
    /** @param {number} at */
    const choose = (at) => {
      boxes[chosen]?.classList.remove("tc-chosen");
      chosen = at;
      boxes[at].classList.add("tc-chosen");
      line.textContent = said(data.spans[at], data);
      if (data.spans[at][5]) this.callbacks.onSelect([data.spans[at][5]], false);
    };
    chart.addEventListener("keydown", (event) => {
      const next = stepped(data.spans, chosen, event.key);
      if (next === null) return;
      choose(next);
      event.preventDefault();
      event.stopPropagation();
    });
    const legend = data.tones.map(([name], tone) => h("span", {}, h("i", { class: `tc-tone-${tone}` }), name));
    const ends = h("p", { class: "tc-lane-ends" }, h("span", {}, "0"), h("span", {}, `${timeText(data.end)} (estimate)`));
    return h("div", { class: "tc-lanes-box" }, h("p", { class: "tc-lane-legend" }, ...legend), chart, ends, line);
  }

  /** @param {Span} span @param {Lanes} data @param {() => void} choose */
  box(span, data, choose) {
    const [, start, seconds, tone, name, id] = span;
    const percent = (/** @type {number} */ value) => `${((100 * value) / (data.end || 1)).toFixed(3)}%`;
    const box = h("i", { class: `tc-lane-span tc-tone-${tone}`, style: { left: percent(start), width: percent(seconds) }, title: said(span, data), "aria-hidden": "true" }, name);
    box.addEventListener("click", choose);
    if (id) box.addEventListener("pointerenter", () => this.callbacks.onHover([id]));
    return box;
  }
}

/** The span that an arrow leads to: along its lane, or to the other lane. @param {Span[]} spans @param {number} from @param {string} key */
function stepped(spans, from, key) {
  if (!key.startsWith("Arrow") || !spans.length) return null;
  if (from < 0) return 0;
  const [lane, start, seconds] = spans[from];
  if (key === "ArrowUp" || key === "ArrowDown") {
    const other = spans.findIndex((span) => span[0] !== lane && span[1] + span[2] > start && span[1] < start + seconds);
    return other < 0 ? null : other;
  }
  const along = spans.map((_, at) => at).filter((at) => spans[at][0] === lane);
  return along[along.indexOf(from) + (key === "ArrowRight" ? 1 : -1)] ?? null;
}

/** @param {Span} span @param {Lanes} data */
function said([lane, start, seconds, , name, , more], data) {
  return `${name}, ${data.lanes[lane]}: ${timeText(seconds)} from ${timeText(start)}${more ? `, ${more}` : ""} (estimate)`;
}

/** @param {number} seconds */
function timeText(seconds) {
  if (seconds >= 1) return `${seconds.toFixed(1)} s`;
  return seconds >= 1e-3 ? `${(seconds * 1e3).toFixed(1)} ms` : seconds ? `${(seconds * 1e6).toFixed(1)} µs` : "0";
}
