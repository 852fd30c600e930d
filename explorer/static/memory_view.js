// The bytes in use over a call: a stepped chart of the generated code, eager as a line behind it, and what is in memory
// at the step that the cursor is on.

import { elements } from "./document.js";
import { DocumentView } from "./document_view.js";
import { bytesInWords, h, menu, modes, svgElement } from "./dom.js";

/** @typedef {import("./document.js").Part} Part */
/**
 * @typedef {{side: string, name: string, turn: number, peak: number, above: number[], words: string[],
 *   spans: [number, number, number, string][], layers?: [string, number[]][]}} Side
 * @typedef {{title: string, figures: Part[], sides: Side[]}} Timeline
 * @typedef {{bytes: number[], rows: Part[], most: Record<string, number>, timelines: Timeline[]}} Memory
 */

const WIDTH = 1000;
const HEIGHT = 220;
const MEASURED = "What came and went while the call ran. It has no names: what operators use inside, and what code around the graphs holds, is among it.";

export class MemoryView extends DocumentView {
  /** @param {HTMLElement} body @returns {import("./document.js").Charts} */
  begin(body) {
    body.classList.add("tc-document");
    return { memory: (data, place) => (this.memory = new MemoryChart(data, place, this)).root };
  }

  /** @param {Set<string>} primary @param {Set<string>} linked @param {boolean} reveal */
  select(primary, linked, reveal) {
    const ids = this.memory?.follow(linked, reveal) ?? [];
    super.select(primary, linked, reveal);
    this.linked = ids;
  }

  /** All tensors of this side, in memory at this step or not. @param {string} wanted */
  matching(wanted) {
    const own = new Set(this.memory?.side.spans.map(([number]) => this.memory?.ids[number]));
    return super.matching(wanted).filter((id) => own.has(id));
  }

  /** Goes to a step at which the tensor is there. @param {string} id */
  elementOf(id) {
    const span = this.memory?.side.spans.find(([number]) => this.memory?.ids[number] === id);
    if (span && !this.items.has(id) && !this.within.has(id)) this.memory?.go(span[1]);
    return super.elementOf(id);
  }

  focus() {
    this.memory?.chart.focus({ preventScroll: true });
  }
}

class MemoryChart {
  /** @param {Memory} data @param {import("./document.js").Place} place @param {MemoryView} view */
  constructor(data, place, view) {
    this.data = data;
    this.place = { ...place, most: data.most };
    this.view = view;
    this.ids = data.rows.map(({ ids }) => ids[0]);
    this.timeline = data.timelines[0];
    this.side = this.timeline.sides[0];
    this.step = this.side.peak;
    this.top = 1;
    /** @type {SVGElement | null} */
    this.band = null;
    /** @type {SVGElement | null} */
    this.cursor = null;
    this.dot = h("span", { class: "tc-memory-dot" });
    this.tools = h("div", { class: "tc-memory-tools" });
    this.figures = h("div");
    this.chart = h("div", { class: "tc-memory-chart", tabIndex: 0, role: "slider", "aria-label": "Step of the call" });
    this.said = h("p", { class: "tc-memory-step", role: "status" });
    this.list = h("div");
    this.root = h("div", { class: "tc-memory-view" }, this.tools, this.figures, this.chart, this.said, this.list);
    this.listen(this.chart);
    this.show(0);
  }

  /** Show one timeline, at the peak of its generated code. @param {number} index */
  show(index) {
    this.timeline = this.data.timelines[index];
    this.figures.replaceChildren(...elements(this.timeline.figures, this.place));
    this.goAlong(this.timeline.sides[0]);
  }

  /** Let the cursor go along a side, from its peak. @param {Side} side */
  goAlong(side) {
    this.side = side;
    this.drawTools();
    this.drawChart();
    this.go(side.peak);
  }

  drawTools() {
    const { sides } = this.timeline;
    const names = sides.map(({ side, name }) => h("span", {}, h("span", { class: `tc-memory-sign tc-memory-${side}`, "aria-hidden": "true" }), name));
    const choose = (/** @type {number} */ index) => {
      this.goAlong(sides[index]);
      const chosen = this.tools.querySelector("[aria-pressed=true]");
      if (chosen instanceof HTMLElement) chosen.focus();
    };
    const { timelines } = this.data;
    const chooser = menu("Part of the call", timelines.map(({ title }) => title), timelines.indexOf(this.timeline), (index) => this.show(index));
    const peak = h("button", { class: "tc-button tc-text", type: "button", title: "To the peak (p)", onclick: () => this.go(this.side.peak) }, "peak");
    const legend = (this.side.layers ?? []).map(([kind]) => h("span", { class: "tc-memory-kind" }, h("span", { class: "tc-memory-layer", "data-kind": kind, "aria-hidden": "true" }), kind));
    this.tools.replaceChildren(timelines.length > 1 ? chooser : "", sides.length > 1 ? modes("What the cursor goes along", names, sides.indexOf(this.side), choose) : "", peak, ...legend);
  }

  // The chart

  drawChart() {
    const beside = this.view.beside?.parts.find((/** @type {Part} */ { part }) => part === "chart")?.data;
    const others = /** @type {Timeline[]} */ (beside?.timelines ?? []).filter(({ title }) => title === this.timeline.title);
    const most = [this.timeline, ...others].flatMap(({ sides }) => sides).reduce((top, { above }) => above.reduce((a, b) => Math.max(a, b), top), 1);
    const top = niceEnd(most);
    this.top = top;
    const svg = svgElement("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    for (const tick of [0.25, 0.5, 0.75, 1]) svg.append(svgElement("line", { class: "tc-memory-grid", x1: "0", x2: String(WIDTH), y1: y(top * tick, top), y2: y(top * tick, top) }));
    this.band = svgElement("rect", { class: "tc-memory-band", y: "0", height: String(HEIGHT), width: "0" });
    svg.append(this.band);
    for (const side of this.timeline.sides) svg.append(...this.shapes(side, top));
    const turn = this.x(this.timeline.sides[0], this.timeline.sides[0].turn);
    const trains = this.timeline.sides[0].turn < this.timeline.sides[0].above.length;
    if (trains) svg.append(svgElement("line", { class: "tc-memory-turn", x1: String(turn), x2: String(turn), y1: "0", y2: String(HEIGHT) }));
    this.cursor = svgElement("line", { class: "tc-memory-cursor", y1: "0", y2: String(HEIGHT) });
    svg.append(this.cursor);
    const peak = this.side.above[this.side.peak];
    const mark = h("span", { class: "tc-memory-peak", style: { left: this.left(this.side.peak), top: `${100 - (100 * peak) / top}%` }, title: "The most in use" });
    const ticks = [0, 0.5, 1].map((part) => h("span", { class: "tc-memory-tick", style: { top: `${100 - part * 100}%` } }, bytesInWords(Math.round(top * part))));
    const halves = h(
      "div",
      { class: "tc-memory-halves", "aria-hidden": "true" },
      h("span", { style: { width: `${(100 * turn) / WIDTH}%` } }, "forward"),
      trains ? h("span", {}, "backward") : null,
    );
    this.chart.replaceChildren(h("div", { class: "tc-memory-plot" }, svg, mark, this.dot, ...ticks), halves);
  }

  /** @param {Side} side @param {number} top */
  shapes(side, top) {
    if (side.layers) return this.layers(side, side.layers, top);
    const points = side.above.map((bytes, step) => `H${this.x(side, step)}V${y(bytes, top)}`).join("");
    const line = `M0 ${HEIGHT}${points}H${WIDTH}`;
    const stroke = svgElement("path", { d: line, class: `tc-memory-line tc-memory-${side.side}` });
    if (side.side !== "compiled") return [stroke];
    return [svgElement("path", { d: `${line}V${HEIGHT}Z`, class: "tc-memory-area" }), stroke];
  }

  /** What a rank keeps, a layer for each kind, the first at the bottom. @param {Side} side @param {[string, number[]][]} layers @param {number} top */
  layers(side, layers, top) {
    let below = side.above.map(() => 0);
    return layers.map(([kind, sizes]) => {
      const above = sizes.map((bytes, step) => bytes + below[step]);
      const over = above.map((bytes, step) => `H${this.x(side, step)}V${y(bytes, top)}`).join("");
      const back = below.map((_, step) => below.length - 1 - step).map((step) => `V${y(below[step], top)}H${this.x(side, step)}`).join("");
      below = above;
      return svgElement("path", { d: `M0 ${HEIGHT}${over}H${WIDTH}${back}Z`, class: "tc-memory-layer", "data-kind": kind });
    });
  }

  /** Where a step stands: forward and backward are as wide for eager as for the generated code. @param {Side} side @param {number} step */
  x(side, step) {
    if (side.side === "measured") return (WIDTH * step) / side.above.length;
    const { turn, above } = this.timeline.sides[0];
    const middle = (WIDTH * turn) / Math.max(above.length, 1);
    if (step < side.turn) return (middle * step) / Math.max(side.turn, 1);
    return middle + ((WIDTH - middle) * (step - side.turn)) / Math.max(side.above.length - side.turn, 1);
  }

  /** The middle of a step, as CSS. @param {number} step */
  left(step) {
    return `${(50 * (this.x(this.side, step) + this.x(this.side, step + 1))) / WIDTH}%`;
  }

  /** @param {HTMLElement} chart */
  listen(chart) {
    let pressed = false;
    const move = (/** @type {PointerEvent} */ event) => {
      const plot = /** @type {HTMLElement} */ (chart.firstElementChild);
      const box = plot.getBoundingClientRect();
      this.go(this.stepAt((WIDTH * (event.clientX - box.left)) / box.width));
    };
    chart.addEventListener("pointerdown", (event) => {
      pressed = true;
      chart.setPointerCapture(event.pointerId);
      move(event);
    });
    chart.addEventListener("pointermove", (event) => {
      if (pressed || event.pointerType === "mouse") move(event);
    });
    chart.addEventListener("pointerup", () => (pressed = false));
    chart.addEventListener("keydown", (event) => this.pressed(event));
  }

  /** @param {number} wanted */
  stepAt(wanted) {
    let [low, high] = [0, this.side.above.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.x(this.side, middle) <= wanted) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const page = Math.max(Math.round(this.side.above.length / 20), 1);
    /** @type {Record<string, number>} */
    const places = {
      ArrowLeft: this.step - 1,
      ArrowRight: this.step + 1,
      ArrowDown: this.step - 1,
      ArrowUp: this.step + 1,
      PageDown: this.step - page,
      PageUp: this.step + page,
      Home: 0,
      End: this.side.above.length - 1,
      p: this.side.peak,
    };
    if (!(event.key in places)) return;
    this.go(places[event.key]);
    event.preventDefault();
  }

  /** @param {number} step */
  go(step) {
    const { side } = this;
    this.step = Math.min(Math.max(step, 0), side.above.length - 1);
    const bytes = side.above[this.step] ?? 0;
    const middle = String((this.x(side, this.step) + this.x(side, this.step + 1)) / 2);
    this.cursor?.setAttribute("x1", middle);
    this.cursor?.setAttribute("x2", middle);
    Object.assign(this.dot.style, { left: this.left(this.step), top: `${100 - (100 * bytes) / this.top}%` });
    const measured = side.side === "measured";
    const half = measured ? "as it was measured" : this.step < side.turn ? "forward" : "backward";
    const number = `step ${(this.step + 1).toLocaleString("en")} of ${side.above.length.toLocaleString("en")}`;
    const words = side.words[this.step] ?? "";
    this.said.replaceChildren(h("b", {}, bytesInWords(bytes)), ` after ${number}, ${half}${words ? ": " : ""}${words}`, this.step === side.peak ? h("span", { class: "tc-memory-badge" }, "peak") : "");
    for (const [name, value] of [["min", 1], ["max", side.above.length], ["now", this.step + 1]]) this.chart.setAttribute(`aria-value${name}`, String(value));
    this.chart.setAttribute("aria-valuetext", `${bytesInWords(bytes)}, ${number}, ${half}, ${words}`);
    this.drawList();
  }

  // What is in memory

  /** The tensors that are in memory at this step, the largest first. */
  drawList() {
    const { bytes, rows } = this.data;
    const there = this.side.spans.filter((span) => this.isThere(span)).sort((a, b) => bytes[b[0]] - bytes[a[0]]);
    const shown = there.map(([number, , , role]) => {
      const [size, name, , ...rest] = rows[number].cells;
      return { ...rows[number], cells: [size, name, role ? { part: "tag", words: role, style: "badge" } : "", ...rest] };
    });
    this.view.items.clear();
    this.view.within.clear();
    const empty = this.side.side === "measured" ? MEASURED : "Nothing but what was there before.";
    const table = { part: "table", head: [], rows: shown, right: [0], style: "tensors", label: "In memory at this step" };
    this.list.replaceChildren(...(shown.length ? elements([table], this.place) : [h("p", { class: "tc-why" }, empty)]));
    this.view.mark();
  }

  /** @param {[number, number, number, string]} span */
  isThere([, first, end]) {
    return first <= this.step && (end < 0 || this.step < end);
  }

  /** Show when tensors are there, and go to where the first is. @param {Set<string>} linked @param {boolean} reveal */
  follow(linked, reveal) {
    const spans = this.side.spans.filter(([number]) => linked.has(this.ids[number]));
    this.drawBand(spans);
    if (reveal && spans.length && !spans.some((span) => this.isThere(span))) this.go(spans[0][1]);
    return spans.map(([number]) => this.ids[number]);
  }

  /** From when to when the selected tensors are there. @param {[number, number, number, string][]} spans */
  drawBand(spans) {
    const from = Math.min(...spans.map(([, first]) => this.x(this.side, first)));
    const to = Math.max(...spans.map(([, , end]) => (end < 0 ? WIDTH : this.x(this.side, end))));
    this.band?.setAttribute("x", spans.length ? String(from) : "0");
    this.band?.setAttribute("width", spans.length ? String(Math.max(to - from, 1)) : "0");
  }
}

/** @param {number} bytes @param {number} top */
function y(bytes, top) {
  return String(HEIGHT - (HEIGHT * bytes) / top);
}

/** A round number of bytes that nothing goes over. @param {number} most */
function niceEnd(most) {
  const unit = 1024 ** Math.floor(Math.log2(Math.max(most, 1)) / 10);
  const power = 10 ** Math.floor(Math.log10(most / unit));
  const steps = [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power * unit);
  return steps.find((step) => step >= most) ?? most;
}
