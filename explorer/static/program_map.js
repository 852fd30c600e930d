// The map of a program: each function of the call tree as a strip of its lines. Graphs are coloured runs, breaks are gaps,
// plain Python is hatched. As it is, and with as many fixes as the slider says.

import { sentence } from "./document.js";
import { DocumentView } from "./document_view.js";
import { counted, h, icon, modes, secondsInWords } from "./dom.js";
import { MapZoom } from "./map_zoom.js";
import { nameElement } from "./names.js";
import { elementPicture } from "./paint_element.js";
import { saveButtons } from "./picture.js";

/** @typedef {import("./document.js").Part} Part */
/** @typedef {import("./document.js").Place} Place */
/**
 * `code` is the text of a line.
 * @typedef {{line: number, code?: string, ids: string[], seconds: number, gap?: string, graphs?: string[], ops?: number, parts?: string[]}} Cell
 * @typedef {{name: string, place: Part, depth: number, from: number, to: number, ids: string[], open: boolean, why: string}} Fn
 * A program with the first `count` of its fixes.
 * @typedef {{cells: number[], count: number, title: string, words: string[]}} State
 * @typedef {{cells: Cell[], functions: Fn[], states: State[], timed: boolean}} MapData
 * Cells of one function that look alike: a part of a graph, plain Python, or one break.
 * @typedef {{look: number, from: number, to: number}} Run
 */

/** What a cell is; as in explorer/findings/map_states.py. */
const [ABSENT, PLAIN, BREAK, HIDDEN, GRAPHS] = [-1, 0, 1, 2, 3];
const COLOURS = 6;
/** The room of a break whose cost is not measured, as a part of that of a line. */
const GAP = 0.7;
/** A line of so many pixels is shown by itself, with its code. */
const ROOM_FOR_CODE = 90;
/** @type {Record<number, string>} */
const LOOKS = { [PLAIN]: "tc-map-plain", [BREAK]: "tc-map-break", [HIDDEN]: "tc-map-hidden" };

export class ProgramMapView extends DocumentView {
  /** @param {HTMLElement} body @returns {import("./document.js").Charts} */
  begin(body) {
    body.classList.add("tc-map-body");
    return { program_map: (data, place) => (this.map = new ProgramMap(data, place, this)).root };
  }

  mark() {
    super.mark();
    this.map?.mark(this.primary, this.lit);
  }

  /** @param {Set<string>} linked */
  preview(linked) {
    super.preview(linked);
    for (const { element, ids } of this.map?.pieces ?? []) element.classList.toggle("tc-previewed", ids.some((id) => linked.has(id)));
  }

  /** @param {Set<string>} primary @param {Set<string>} linked @param {boolean} reveal */
  select(primary, linked, reveal) {
    super.select(primary, linked, reveal);
    if (reveal) this.reveal(this.map?.pieces.find(({ ids }) => ids.some((id) => primary.has(id)))?.element);
  }

  /** @param {string} wanted */
  matching(wanted) {
    return [...this.items].filter(([, row]) => row.textContent?.toLowerCase().includes(wanted)).map(([id]) => id);
  }

  /** The number of fixes, how widths are measured, and the zoom, for an address; "" for as it opens. */
  get state() {
    return this.map?.state ?? "";
  }

  set state(state) {
    this.map?.open(state);
  }

  destroy() {
    this.map?.destroy();
    super.destroy();
  }

  focus() {
    this.map?.pieces.find(({ element }) => element.tabIndex === 0)?.element.focus({ preventScroll: true });
  }
}

class ProgramMap {
  /** @param {MapData} data @param {Place} place @param {ProgramMapView} view */
  constructor(data, place, view) {
    this.data = data;
    this.place = place;
    this.view = view;
    this.at = data.states.length - 1;
    this.columns = [0];
    this.byTime = data.timed;
    /** Where each cell begins, by state, and the widest of the states. @type {number[][]} */
    this.starts = [];
    this.most = 1;
    this.closed = new Set(data.functions.filter(({ open }) => !open));
    /** What can be chosen, and the entities that light it up. @type {{element: HTMLElement, ids: string[], parts: string[], column: number, row: number, from: number}[]} */
    this.pieces = [];
    this.isDrawing = false;
    this.tools = h("div", { class: "tc-map-tools" });
    this.words = h("div", { class: "tc-map-words", role: "status" });
    this.table = h("table", { class: "tc-map-table", "aria-label": "Map of the program: the functions and their lines" });
    this.table.addEventListener("keydown", (event) => this.pressed(event));
    this.zoom = new MapZoom(this.table, () => this.changed());
    this.root = h("div", { class: data.states.length > 1 ? "tc-map" : "tc-map tc-map-single" }, this.tools, this.words, this.zoom.bar, this.table);
    /** What it opens as. @type {string} */
    this.began = "";
    this.drawTools();
    this.draw();
    this.began = this.state;
    this.width = 0;
    this.observer = new ResizeObserver(() => this.width !== this.zoom.window && this.draw());
    this.observer.observe(this.table);
  }

  destroy() {
    this.observer.disconnect();
  }

  // Where the reader is

  /** @returns {string} */
  get state() {
    const { scale, left } = this.zoom;
    const zoomed = scale > 1 ? `-${scale.toFixed(2)}-${left.toFixed(4)}` : "";
    const state = `${this.data.states[this.at].count}${this.byTime ? "t" : "l"}${zoomed}`;
    return state === this.began ? "" : state;
  }

  /** Show a state that an address names; what it names wrongly stays as it is. @param {string} state */
  open(state) {
    const [, count, unit, scale, left] = /^(\d+)([tl])(?:-([\d.]+)-([\d.]+))?$/.exec(state) ?? [];
    const at = this.data.states.findIndex((each) => each.count === Number(count));
    if (at < 0) return;
    this.at = at;
    this.byTime = unit === "t" && this.data.timed;
    this.zoom.set(Number(scale) || 1, Number(left) || 0);
    this.drawTools();
    this.draw();
  }

  /** The reader has changed what is shown. */
  changed() {
    this.draw();
    this.view.callbacks.onState?.();
  }

  // Tools

  drawTools() {
    const { states, timed } = this.data;
    const last = states.length - 1;
    const input = h("input", { type: "range", min: "0", max: String(last), value: String(this.at), "aria-label": "Fixes", "aria-valuetext": states[this.at].title });
    input.addEventListener("input", () => {
      this.at = Number(input.value);
      input.setAttribute("aria-valuetext", states[this.at].title);
      this.changed();
    });
    const slider = h("div", { class: "tc-map-slider" }, h("span", {}, "as it is"), input, h("span", {}, states[last].title));
    const units = modes("Widths", ["by time", "by lines"], this.byTime ? 0 : 1, (at) => {
      this.byTime = at === 0;
      this.drawTools();
      this.changed();
      /** @type {HTMLElement[]} */ ([...this.tools.querySelectorAll('[aria-label="Widths"] button')])[at]?.focus();
    });
    const keys = [["tc-g0", "graph"], ["tc-map-plain", "plain Python"], ["tc-map-break", "break"]];
    if (states.some(({ cells }) => cells.includes(HIDDEN))) keys.push(["tc-map-hidden", "break behind another"]);
    const legend = keys.map(([name, words]) => h("span", { class: "tc-map-key" }, h("i", { class: `tc-map-run ${name}` }), words));
    const unit = this.byTime ? (last ? "width: time without fixes" : "") : "width: lines of code";
    this.tools.replaceChildren(...(last > 0 ? [slider] : []), h("div", { class: "tc-map-legend" }, ...legend, timed ? units : "", h("span", {}, unit), h("span", { class: "tc-picture-tools", role: "group", "aria-label": "Zoom" }, ...this.zoom.buttons), saveButtons(elementPicture(this.root, this.view.artifact.info.id), this.view.callbacks.withTools)));
  }

  // The table

  draw() {
    const { functions, states } = this.data;
    const focused = this.pieces.findIndex(({ element }) => element === document.activeElement);
    const { column, row, from } = this.pieces[focused] ?? {};
    this.width = this.zoom.window;
    this.columns = states.length > 1 ? [0, this.at] : [0];
    this.pieces = [];
    this.view.items.clear();
    this.starts = states.map((state) => this.edges(state));
    this.most = Math.max(...this.starts.map((edges) => edges[edges.length - 1]), 1e-12);
    const heads = this.columns.map((at, column) => h("th", { scope: "col" }, column ? states[at].title : "as it is"));
    const rows = functions.flatMap((fn, row) => (this.isShown(fn) ? [this.row(fn, row)] : []));
    const body = h("tbody", {}, ...rows);
    const head = h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "function"), ...heads));
    this.table.replaceChildren(...(this.columns.length > 1 ? [head] : []), body);
    const said = this.columns.map((at) => h("p", {}, h("b", {}, states[at].title), ": ", ...states[at].words.flatMap((each) => [...sentence(each, this.place), " "])));
    this.words.replaceChildren(...said);
    if (this.pieces.length) this.pieces[0].element.tabIndex = 0;
    this.view.mark();
    if (from === undefined) return;
    this.isDrawing = true; // the place that the reader has gone to stays in sight
    this.pieces.findLast((piece) => piece.column === column && piece.row === row && piece.from <= from)?.element.focus({ preventScroll: true });
    this.isDrawing = false;
  }

  /** Whether all functions around one are open. @param {Fn} fn */
  isShown(fn) {
    return ![...this.closed].some((outer) => outer !== fn && outer.from <= fn.from && fn.to <= outer.to && outer.depth < fn.depth);
  }

  /** @param {Fn} fn @param {number} row */
  row(fn, row) {
    const { functions } = this.data;
    const isOpen = !this.closed.has(fn);
    const toggle = () => {
      if (isOpen) this.closed.add(fn);
      else this.closed.delete(fn);
      this.draw();
      /** @type {HTMLElement | null} */ (this.table.querySelector(`[data-row="${row}"]`))?.focus();
    };
    const calls = (functions[row + 1]?.depth ?? 0) > fn.depth;
    const title = isOpen ? `Hide what ${fn.name} calls` : `Show what ${fn.name} calls`;
    const fold = h("button", { class: "tc-map-fold", type: "button", title, "aria-label": title, "aria-expanded": String(isOpen), "data-row": row, onclick: toggle }, icon(isOpen ? "down" : "right"));
    const select = () => this.view.callbacks.onSelect(fn.ids.length ? fn.ids : this.idsOf(fn.from, fn.to), false);
    const name = h("button", { class: "tc-map-name", type: "button", title: fn.why || fn.name, onclick: select }, nameElement(fn.name));
    const around = h("div", { class: "tc-map-fn", style: { paddingLeft: `${14 * fn.depth}px` } }, calls ? fold : h("span", { class: "tc-map-fold" }), name, ...sentence(fn.place, this.place));
    const cells = this.columns.map((at, column) => h("td", { "data-title": fn.depth ? "" : this.data.states[at].title }, h("div", { class: "tc-map-window" }, h("div", { class: "tc-map-strip", role: "group", "aria-label": `${fn.name}, ${this.data.states[at].title}` }, ...this.strip(fn, at, row, column)))));
    const element = h("tr", {}, h("th", { scope: "row" }, around), ...cells);
    this.view.items.set(fn.ids[0] ?? `map ${row}`, element);
    return element;
  }

  // A strip

  /** Where each cell begins, and where the last ends: by time, a break that is gone takes no room. @param {State} state */
  edges(state) {
    let end = 0;
    const widths = this.data.cells.map(({ seconds, gap }, at) => (this.byTime ? (state.cells[at] === ABSENT ? 0 : seconds) : gap === undefined ? 1 : GAP));
    return [0, ...widths.map((width) => (end += width))];
  }

  /**
   * What looks alike in a row, a break that is gone like what is before it; a line with room for its code by itself.
   * @param {State} state @param {number[]} edges @param {number} from @param {number} to @returns {Run[]}
   */
  runs(state, edges, from, to) {
    const wide = (/** @type {number} */ at) => ((edges[at + 1] - edges[at]) / this.most) * this.width * this.zoom.scale >= ROOM_FOR_CODE;
    /** @type {Run[]} */
    const runs = [];
    for (let at = from; at < to; at++) {
      const look = state.cells[at];
      const last = runs.at(-1);
      const joins = last && last.look !== BREAK && last.look !== HIDDEN;
      if (joins && (look === ABSENT || (look === last.look && !wide(at)))) last.to = at + 1;
      else if (look !== ABSENT) runs.push({ look, from: at, to: at + 1 });
    }
    return runs;
  }

  /** @param {Fn} fn @param {number} number of the state @param {number} row @param {number} column */
  strip(fn, number, row, column) {
    const edges = this.starts[number];
    const percent = (/** @type {number} */ amount) => `${(100 * amount) / this.most}%`;
    return this.runs(this.data.states[number], edges, fn.from, fn.to).map((run) => {
      const { look, from, to } = run;
      const words = this.runWords(run, number);
      const ids = this.idsOf(from, to);
      const parts = number ? [] : [...new Set(this.data.cells.slice(from, to).flatMap((cell) => cell.parts ?? []))];
      const chosen = parts.length ? parts : ids;
      const style = { left: percent(edges[from]), width: percent(edges[to] - edges[from]) };
      const cost = look === BREAK && this.byTime ? this.data.cells[from].seconds : 0;
      const shown = cost ? secondsInWords(cost) : this.label(run, number);
      const name = words.includes(shown) ? words : `${words}: ${shown}`;
      const element = h("button", { class: `tc-map-run ${LOOKS[look] ?? `tc-g${(look - GRAPHS) % COLOURS}`}`, type: "button", tabIndex: -1, title: words, "aria-label": name, style }, h("span", {}, shown));
      element.addEventListener("click", (event) => this.view.callbacks.onSelect(chosen, event.ctrlKey || event.metaKey));
      element.addEventListener("pointerenter", () => this.view.callbacks.onHover(chosen));
      element.addEventListener("focus", () => {
        this.focused(element, chosen);
        if (!this.isDrawing) this.zoom.reveal(edges[from] / this.most, edges[to] / this.most);
      });
      this.pieces.push({ element, ids, parts, column, row, from });
      return element;
    });
  }

  /** What is written on a run, as far as there is room: its code, or which graph it is. @param {Run} run @param {number} number of the state */
  label({ look, from, to }, number) {
    const cells = this.data.cells.slice(from, to);
    const lines = cells.filter(({ gap }) => gap === undefined);
    if (look === BREAK || look === HIDDEN) return /^`([^`]*)`/.exec(cells[0].gap ?? "")?.[1] ?? "";
    if (lines.length === 1) return lines[0].code ?? "";
    const graphs = [...new Set(lines.flatMap((cell) => cell.graphs ?? []))];
    return look >= GRAPHS && !number ? graphs.join(", ") : "";
  }

  /** The entities of some cells. @param {number} from @param {number} to */
  idsOf(from, to) {
    return [...new Set(this.data.cells.slice(from, to).flatMap(({ ids }) => ids))].filter(Boolean);
  }

  /** @param {Run} run @param {number} number of the state */
  runWords({ look, from, to }, number) {
    const { line, gap } = this.data.cells[from];
    if (gap !== undefined) return `Line ${line}: break ${look === HIDDEN ? "that shows only when others are gone, " : ""}at ${gap}`;
    const cells = this.data.cells.slice(from, to).filter((cell) => cell.gap === undefined);
    const sum = (/** @type {(cell: Cell) => number} */ of) => cells.reduce((total, cell) => total + of(cell), 0);
    const lines = cells.length > 1 ? `${counted(cells.length, "line")}, ${line} to ${cells[cells.length - 1].line}` : `line ${line}`;
    const ops = number ? "" : `, ${counted(sum((cell) => cell.ops ?? 0), "op")}`;
    const time = sum(({ seconds }) => seconds);
    const graphs = [...new Set(cells.flatMap((cell) => cell.graphs ?? []))].join(", ");
    const name = look === PLAIN ? "Plain Python" : number ? "In one graph" : `Graph ${graphs}`;
    return `${name}: ${lines}${look === PLAIN ? "" : ops}${time ? `, ${secondsInWords(time)}` : ""}`;
  }

  /** @param {Set<string>} primary @param {Set<string>} lit */
  mark(primary, lit) {
    for (const { element, ids, parts } of this.pieces) {
      const chosen = [...ids, ...parts].some((id) => primary.has(id));
      element.classList.toggle("tc-primary", chosen);
      element.classList.toggle("tc-linked", !chosen && ids.some((id) => lit.has(id)));
      element.setAttribute("aria-pressed", String(chosen));
    }
  }

  // Keys

  /** One piece can be reached with Tab: the last that had the focus. @param {HTMLElement} element @param {string[]} ids */
  focused(element, ids) {
    for (const piece of this.pieces) piece.element.tabIndex = piece.element === element ? 0 : -1;
    this.view.callbacks.onHover(ids);
  }

  /** Arrows go along a strip and to the strips around it. @param {KeyboardEvent} event */
  pressed(event) {
    const here = this.pieces.find(({ element }) => element === event.target);
    if (!here || event.altKey || event.ctrlKey || event.metaKey) return;
    const edges = this.starts[this.columns[here.column]];
    if (this.zoom.pressed(event, edges[here.from] / this.most)) return event.preventDefault();
    const strip = this.pieces.filter(({ row, column }) => row === here.row && column === here.column);
    const all = this.pieces;
    /** @type {Record<string, () => ProgramMap["pieces"][0] | undefined>} */
    const places = {
      ArrowLeft: () => all[all.indexOf(here) - 1],
      ArrowRight: () => all[all.indexOf(here) + 1],
      ArrowUp: () => this.beyond(here, -1),
      ArrowDown: () => this.beyond(here, 1),
      Home: () => strip[0],
      End: () => strip.at(-1),
    };
    if (!(event.key in places)) return;
    places[event.key]()?.element.focus({ preventScroll: this.zoom.scale > 1 });
    event.preventDefault();
  }

  /** The nearest piece in the strip below or above. @param {ProgramMap["pieces"][0]} here @param {number} step */
  beyond(here, step) {
    const column = this.pieces.filter((piece) => piece.column === here.column);
    const rows = [...new Set(column.map(({ row }) => row))];
    const wanted = rows[rows.indexOf(here.row) + step];
    const middle = (/** @type {HTMLElement} */ element) => element.offsetLeft + element.offsetWidth / 2;
    const far = (/** @type {ProgramMap["pieces"][0]} */ { element }) => Math.abs(middle(element) - middle(here.element));
    return column.filter(({ row }) => row === wanted).sort((one, two) => far(one) - far(two))[0];
  }
}
