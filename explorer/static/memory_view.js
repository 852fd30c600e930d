// The bytes in use over a call: a stepped chart of the generated code, eager as a line behind it, and what is in memory
// at the step that the cursor is on.

import { lineLink, pythonLine } from "./card_parts.js";
import { bytesInWords, counted, h, svgElement } from "./dom.js";
import { FindingView } from "./finding_view.js";

/**
 * @typedef {{id: string, name: string, bytes: number, maker: string, half: string,
 *   at: import("./card_parts.js").LineSpot | null, code: string}} Tensor
 * @typedef {{side: string, name: string, turn: number, peak: number, above: number[], words: string[],
 *   spans: [number, number, number, string][]}} Side
 * @typedef {{title: string, base: [string, number][], sides: Side[]}} Timeline
 */

const WIDTH = 1000;
const HEIGHT = 220;
/** So many rows are shown before they are asked for. */
const FEW = 25;
const MEASURED = "What came and went while the call ran. It has no names: what operators use inside, and what code around the graphs holds, is among it.";

export class MemoryView extends FindingView {
  /**
   * @param {HTMLElement} root @param {import("./text_view.js").Callbacks} callbacks
   * @param {import("./store.js").Artifact} artifact @param {import("./store.js").Store} store
   */
  constructor(root, callbacks, artifact, store) {
    super(root, callbacks, artifact, store);
    /** @type {Tensor[]} */
    this.tensors = artifact.view.tensors;
    /** @type {Timeline[]} */
    this.timelines = artifact.view.timelines;
    this.timeline = this.timelines[0];
    this.side = this.timeline.sides[0];
    this.step = this.side.peak;
    this.few = true;
    this.top = 1;
    /** @type {SVGElement | null} */
    this.band = null;
    /** @type {SVGElement | null} */
    this.cursor = null;
    this.dot = h("span", { class: "tc-memory-dot" });
    this.chooser = h("select", { class: "tc-choose", "aria-label": "Part of the call" });
    this.chooser.append(...this.timelines.map(({ title }, index) => h("option", { value: String(index) }, title)));
    this.chooser.addEventListener("change", () => this.show(Number(this.chooser.value)));
    this.tools = h("div", { class: "tc-memory-tools" });
    this.figures = h("dl", { class: "tc-memory-figures" });
    this.chart = h("div", { class: "tc-memory-chart", tabIndex: 0, role: "slider", "aria-label": "Step of the call" });
    this.said = h("p", { class: "tc-memory-step", role: "status" });
    this.list = h("ol", { class: "tc-memory-list", "aria-label": "In memory at this step" });
    this.listen(this.chart);
    this.scroller.replaceChildren(h("div", { class: "tc-memory-view" }, this.tools, this.figures, this.chart, this.said, this.list));
    this.show(0);
  }

  /** Show one timeline, at the peak of its generated code. @param {number} index */
  show(index) {
    this.timeline = this.timelines[index];
    this.choose(this.timeline.sides[0], this.timeline.sides[0].peak);
  }

  /** Let the cursor go along a side. @param {Side} side @param {number} step */
  choose(side, step) {
    this.side = side;
    this.figures.replaceChildren(...figuresOf(this.timeline));
    this.drawTools();
    this.drawChart();
    this.go(step);
  }

  drawTools() {
    const buttons = this.timeline.sides.map((side) => {
      const onclick = () => {
        this.choose(side, side.peak);
        const chosen = this.tools.querySelector("[aria-pressed=true]");
        if (chosen instanceof HTMLElement) chosen.focus();
      };
      const sign = h("span", { class: `tc-memory-sign tc-memory-${side.side}`, "aria-hidden": "true" });
      return h("button", { type: "button", "aria-pressed": String(side === this.side), onclick }, sign, side.name);
    });
    const modes = h("div", { class: "tc-modes", role: "group", "aria-label": "What the cursor goes along" }, ...buttons);
    const peak = h("button", { class: "tc-button tc-text", type: "button", title: "To the peak (p)", onclick: () => this.go(this.side.peak) }, "peak");
    this.tools.replaceChildren(this.timelines.length > 1 ? (this.chooser) : "", buttons.length > 1 ? modes : "", peak);
  }

  // The chart

  drawChart() {
    const others = /** @type {Timeline[]} */ (this.beside?.timelines ?? []).filter(({ title }) => title === this.timeline.title);
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
    const points = side.above.map((bytes, step) => `H${this.x(side, step)}V${y(bytes, top)}`).join("");
    const line = `M0 ${HEIGHT}${points}H${WIDTH}`;
    const stroke = svgElement("path", { d: line, class: `tc-memory-line tc-memory-${side.side}` });
    if (side.side !== "compiled") return [stroke];
    return [svgElement("path", { d: `${line}V${HEIGHT}Z`, class: "tc-memory-area" }), stroke];
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
    this.few = true;
    this.drawList();
  }

  // What is in memory

  alive() {
    const { spans } = this.side;
    const there = spans.filter(([, first, end]) => first <= this.step && (end < 0 || this.step < end));
    return there.sort((a, b) => this.tensors[b[0]].bytes - this.tensors[a[0]].bytes);
  }

  drawList() {
    const there = this.alive();
    const most = Math.max(1, ...there.map(([number]) => this.tensors[number].bytes));
    const shown = this.few ? there.slice(0, FEW) : there;
    this.items.clear();
    const rows = shown.map(([number, , , role]) => this.row(this.tensors[number], role, most));
    const rest = there.slice(shown.length);
    if (rest.length) rows.push(this.more(rest));
    if (!rows.length) rows.push(h("li", { class: "tc-why" }, this.side.side === "measured" ? MEASURED : "Nothing but what was there before."));
    this.list.replaceChildren(...rows);
    this.mark();
  }

  /** @param {[number, number, number, string][]} rest */
  more(rest) {
    const bytes = rest.reduce((sum, [number]) => sum + this.tensors[number].bytes, 0);
    const onclick = () => {
      this.few = false;
      this.drawList();
    };
    return h("li", {}, h("button", { class: "tc-more", type: "button", onclick }, `${counted(rest.length, "more tensor")}, ${bytesInWords(bytes)}`));
  }

  /** @param {Tensor} tensor @param {string} role @param {number} most */
  row({ id, name, half, bytes, maker, at, code }, role, most) {
    const bar = h("span", { class: "tc-memory-bar", style: { width: `${(100 * bytes) / most}%` } });
    const kept = role.startsWith("kept") ? "tc-memory-role tc-kept" : "tc-memory-role";
    const cells = [
      h("span", { class: "tc-memory-bytes" }, bytesInWords(bytes), bar),
      h("span", { class: "tc-memory-name", title: `${name}, made in the ${half}` }, h("code", {}, name), h("small", {}, half === "forward" ? "fwd" : "bwd")),
      h("span", {}, role ? h("span", { class: kept }, role) : null),
      h("span", { class: "tc-memory-line", title: code }, at ? lineLink(at, this.actions) : null, " ", at ? pythonLine(code) : h("code", {}, code)),
      h("span", { class: "tc-memory-maker", title: maker }, maker),
    ];
    return this.item(id, h("li", { class: "tc-memory-row" }, ...cells));
  }

  // What panes ask of it

  /** @param {Set<string>} primary @param {Set<string>} linked @param {boolean} reveal */
  select(primary, linked, reveal) {
    this.primary = primary;
    this.lit = linked;
    const spans = this.side.spans.filter(([number]) => linked.has(this.tensors[number].id));
    this.linked = spans.map(([number]) => this.tensors[number].id);
    this.at = -1;
    this.drawBand(spans);
    const seen = spans.some(([, first, end]) => first <= this.step && (end < 0 || this.step < end));
    if (reveal && spans.length && !seen) this.go(spans[0][1]);
    this.few = this.few && !spans.length;
    this.drawList();
    const first = this.linked.find((id) => this.items.has(id));
    if (reveal && first) this.reveal(this.items.get(first));
  }

  /** From when to when the selected tensors are there. @param {[number, number, number, string][]} spans */
  drawBand(spans) {
    const from = Math.min(...spans.map(([, first]) => this.x(this.side, first)));
    const to = Math.max(...spans.map(([, , end]) => (end < 0 ? WIDTH : this.x(this.side, end))));
    this.band?.setAttribute("x", spans.length ? String(from) : "0");
    this.band?.setAttribute("width", spans.length ? String(Math.max(to - from, 1)) : "0");
  }

  /** @param {number} direction @returns {[number, number]} */
  stepLinked(direction) {
    if (!this.linked.length) return [0, 0];
    this.at = (this.at + direction + this.linked.length) % this.linked.length;
    const id = this.linked[this.at];
    this.few = false;
    this.go(this.side.spans.find(([number]) => this.tensors[number].id === id)?.[1] ?? this.step);
    this.reveal(this.items.get(id));
    return [this.at + 1, this.linked.length];
  }

  /** All tensors of this side, in memory at this step or not. @param {string} wanted */
  matching(wanted) {
    const found = this.side.spans.map(([number]) => this.tensors[number]);
    return found.filter(({ name, maker, code }) => `${name}\n${maker}\n${code}`.toLowerCase().includes(wanted)).map(({ id }) => id);
  }

  /** @param {string} id */
  elementOf(id) {
    const span = this.side.spans.find(([number]) => this.tensors[number].id === id);
    if (span && !this.items.has(id)) {
      this.go(span[1]);
      this.few = false;
      this.drawList();
    }
    return this.items.get(id);
  }

  focus() {
    this.chart.focus({ preventScroll: true });
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

/** Peak, what is kept, what is there all the time: eager beside the generated code. @param {Timeline} timeline */
function figuresOf({ base, sides }) {
  const [first] = sides;
  const eager = sides.find(({ side }) => side === "eager");
  const trains = first.turn < first.above.length;
  const peak = (/** @type {Side} */ side) => side.above[side.peak] ?? 0;
  const measured = sides.find(({ side }) => side === "measured");
  const kept = (/** @type {Side} */ side) => side.above[side.turn - 1] ?? 0;
  const parts = [figure("Peak", peak(first), eager && peak(eager), "The most in use, on top of what is there all the time")];
  if (measured) parts.push(figure("Measured peak", peak(measured), undefined, "While the call ran, beyond what was there before"));
  if (trains) parts.push(figure("Kept for the backward", kept(first), eager && kept(eager), "In use between forward and backward: saved tensors and results"));
  for (const [kind, bytes] of base) parts.push(figure(kind === "parameters" ? "Parameters and buffers" : "Inputs", bytes, undefined, "There all the time, and not in the chart"));
  return parts;
}

/** @param {string} name @param {number} bytes @param {number | undefined} eager @param {string} title */
function figure(name, bytes, eager, title) {
  const beside = eager === undefined ? null : h("small", {}, `eager ${bytesInWords(eager)}`);
  return h("div", { title }, h("dt", {}, name), h("dd", {}, bytesInWords(bytes), beside));
}
