// Bytecode as it was written beside what Dynamo made of it, with source lines, jumps, and what was inserted for what.

import { sideBySide } from "./bytecode_rows.js";
import { counted, h, icon } from "./dom.js";
import { gutterWidth, inLanes, jumpPiece } from "./jumps.js";
import { tokeniseRow } from "./language.js";
import { TextView } from "./text_view.js";
import { appendToken } from "./tokens.js";
import { VirtualRows } from "./virtual_rows.js";

/** @typedef {import("./bytecode_rows.js").Cell} Cell */
/** @typedef {import("./bytecode_rows.js").Row} Row */
/** @typedef {[number, number]} At row and side */

const HEIGHT = 19;
const SIDES = ["As written", "As Dynamo rewrote it"];
/** What is said over a stretch of instructions is not said again beside its last one. */
const HEADED = "call the ";
/** Narrower than this, in points, there is room for one side only: what became of the code. */
const NARROW = 420;

let views = 0;

/** Implements `View` of `views.js`. */
export class BytecodeView {
  /**
   * @param {HTMLElement} root @param {import("./text_view.js").Callbacks} callbacks
   * @param {import("./store.js").Artifact} artifact @param {import("./store.js").Store} store
   */
  constructor(root, callbacks, artifact, store) {
    this.callbacks = callbacks;
    this.data = artifact.view;
    this.store = store;
    this.name = `tc-bytecode-${++views}`;
    /** @type {Set<string>} */
    this.primary = new Set();
    /** @type {Set<string>} */
    this.linked = new Set();
    /** @type {Set<string>} */
    this.previewed = new Set();
    /** @type {Row[]} */
    this.rows = [];
    /** The rows that have something in a column that is shown. @type {number[]} */
    this.shown = [];
    /** @type {Map<string, At>} */
    this.places = new Map();
    /** @type {import("./jumps.js").Jump[][]} */
    this.jumps = [[], []];
    this.widths = [0, 0];
    /** The jump that is lit up: its side and number. */
    this.hot = "";
    /** @type {At} */
    this.cursor = [0, this.data.sides.indexOf(artifact.info.id)];
    /** @type {string[]} */
    this.stops = [];
    this.stop = -1;
    /** @type {At[]} */
    this.found = [];
    this.hit = -1;
    /** @type {TextView | null} */
    this.text = null;
    this.listing = h("div", { class: "tc-bytecode", tabIndex: 0, role: "grid", "aria-label": "Bytecode" });
    this.python = h("div", { class: "tc-pane-body tc-bytecode-python", hidden: true });
    this.count = h("span", { class: "tc-bytecode-count" });
    const { sides, python } = this.data;
    this.toggles = [...SIDES, ...(python ? ["As Python"] : [])].map((title, side) => this.toggleButton(title, side));
    const panes = h("div", { class: "tc-bytecode-panes" }, this.listing, this.python);
    root.replaceChildren(h("div", { class: "tc-bytecode-view" }, this.bar(), panes));
    this.virtual = new VirtualRows(this.listing, (position) => this.row(this.shown[position]));
    this.listen();
    if (root.clientWidth && root.clientWidth < NARROW) this.toggle(0, false);
    this.unlisten = store.listen((what, id) => {
      if ((what === "entities" || what === "text") && [...sides, python].includes(id)) this.arrived();
    });
    for (const id of sides) store.need(id, "entities");
    this.arrived();
  }

  /** Which frame, and which of its forms. */
  bar() {
    const { frames, sides } = this.data;
    const frame = h("select", { class: "tc-choose", "aria-label": "Frame" });
    frame.append(...frames.map((/** @type {string[]} */ [id, title]) => h("option", { value: id }, title)));
    frame.value = sides[0];
    frame.addEventListener("change", () => this.callbacks.onShow?.(frame.value));
    const group = h("div", { class: "tc-modes", role: "group", "aria-label": "Columns" }, ...this.toggles);
    return h("div", { class: "tc-view-bar" }, frames.length > 1 && frame, group, this.count);
  }

  /** @param {string} title @param {number} side */
  toggleButton(title, side) {
    const onclick = () => this.toggle(side, this.toggles[side].getAttribute("aria-pressed") !== "true");
    return h("button", { type: "button", "aria-pressed": String(side < 2), onclick }, title);
  }

  /** Show or hide a column; one of the listings always stays. @param {number} side @param {boolean} shown */
  toggle(side, shown) {
    this.toggles[side].setAttribute("aria-pressed", String(shown));
    if (side === 2) this.showPython(shown);
    else this.listing.classList.toggle(`tc-no-${side}`, !shown);
    if (side < 2 && !shown && this.hides(1 - side)) this.toggle(1 - side, true);
    else if (side < 2) this.showRows();
  }

  /** @param {number} side */
  hides(side) {
    return this.listing.classList.contains(`tc-no-${side}`);
  }

  /** Leave out the rows that are empty but for a column that is not shown. */
  showRows() {
    const sides = [0, 1].filter((side) => !this.hides(side));
    this.shown = [...this.rows.keys()].filter((at) => sides.some((side) => this.rows[at][side]));
    this.virtual.reset(this.shown.length, "0px");
    if (this.hides(this.cursor[1])) this.cursor = [this.cursor[0], sides[0]];
  }

  /** @param {number} at */
  reveal(at) {
    const position = this.shown.findIndex((row) => row >= at);
    this.virtual.reveal(position < 0 ? this.shown.length - 1 : position);
  }

  /** @param {boolean} shown */
  showPython(shown) {
    const { python } = this.data;
    const artifact = this.store.artifacts.get(python);
    if (!artifact) return;
    this.python.hidden = !shown;
    this.store.need(python, "entities");
    this.store.need(python, "text");
    if (!shown || this.text || !artifact.lines) return;
    const body = h("div", { class: "tc-pane-body" });
    const { stopped } = this.data;
    const note =
      stopped &&
      h(
        "p",
        { class: "tc-steps-warning" },
        icon("warning"),
        `This is not all of it. Not written as Python: ${stopped}`,
      );
    this.python.append(h("div", { class: "tc-steps-notes" }, note), body);
    const { onChoose, onSelect } = this.callbacks;
    const callbacks = { ...this.callbacks, onSelect: onChoose ?? onSelect, words: () => this.store.wordsOf(python) };
    this.text = new TextView(body, callbacks, artifact);
    this.text.select(this.primary, this.linked, true);
  }

  // What is shown

  /** Make the rows, once the instructions of both sides are there. */
  arrived() {
    if (!this.python.hidden) this.showPython(true);
    const { sides, groups } = this.data;
    const [written, rewritten] = sides.map((/** @type {string} */ id) => this.store.artifacts.get(id)?.entities);
    if (this.rows.length || !written || !rewritten) return;
    this.rows = sideBySide(
      written,
      rewritten,
      new Map(groups.map((/** @type {string[]} */ [first, , words]) => [first, words])),
    );
    this.rows.forEach((row, at) =>
      row.forEach((cell, side) => cell?.kind === "code" && this.places.set(cell.entity.id, [at, side])),
    );
    this.jumps = [written, rewritten].map((entities) => this.jumpsOf(entities));
    this.widths = this.jumps.map(gutterWidth);
    const inserted = this.rows.filter(([, right]) => right?.kind === "code" && right.inserted).length;
    const total = `${written.length.toLocaleString("en")} → ${counted(rewritten.length, "instruction")}`;
    this.count.replaceChildren(`${total}, ${inserted.toLocaleString("en")} of them inserted`);
    this.showRows();
    this.select(this.primary, this.linked, true);
  }

  /** @param {import("./store.js").Entity[]} entities of one side */
  jumpsOf(entities) {
    const rows = new Map(entities.map(({ id, attrs }) => [attrs.offset, this.places.get(id)?.[0] ?? 0]));
    /** @type {[number, number][]} */
    const pairs = [];
    for (const { attrs } of entities) {
      const to = rows.get(attrs.jump);
      if (to !== undefined) pairs.push([rows.get(attrs.offset) ?? 0, to]);
    }
    return inLanes(pairs);
  }

  /** @param {number} at */
  row(at) {
    const cells = this.rows[at].map((cell, side) => this.cell(cell, at, side));
    return h("div", { class: "tc-bc-row", role: "row" }, ...cells);
  }

  /** @param {Cell | null} cell @param {number} at @param {number} side */
  cell(cell, at, side) {
    const element = h("div", {
      class: `tc-bc-cell tc-side-${side}`,
      role: "gridcell",
      id: `${this.name}-${at}-${side}`,
    });
    element.dataset.at = `${at} ${side}`;
    if (this.jumps[side].length) element.append(jumpPiece(this.jumps[side], at, this.widths[side], HEIGHT));
    if (cell) {
      element.classList.add(`tc-bc-${cell.kind}`);
      element.classList.toggle("tc-inserted", cell.kind === "words" || (cell.kind === "code" && cell.inserted));
      element.title = this.textOf([at, side]);
      element.append(...this.content(cell));
    }
    this.mark(element);
    return element;
  }

  /** @param {Cell} cell @returns {Node[]} */
  content(cell) {
    if (cell.kind === "words") return [h("span", { class: "tc-bc-about" }, cell.words)];
    if (cell.kind === "line") {
      const code = h("span", { class: "tc-bc-source" });
      for (const [kind, text] of tokeniseRow(this.codeOf(cell.origin), 0, "python", undefined)) {
        appendToken(code, kind && `tc-t-${kind}`, text, 0, []);
      }
      return [h("span", { class: "tc-number" }, String(cell.line)), code];
    }
    const { label, attrs } = cell.entity;
    const argument = h("span", { class: "jump" in attrs ? "tc-bc-jump" : "tc-bc-argument" }, attrs.argument);
    const parts = [
      h("span", { class: "tc-bc-offset" }, String(attrs.offset)),
      h("span", { class: "tc-bc-op" }, label),
      argument,
    ];
    if (attrs.says && !attrs.says.startsWith(HEADED)) parts.push(h("span", { class: "tc-bc-note" }, attrs.says));
    return parts;
  }

  /** The text of a source line. @param {string} id */
  codeOf(id) {
    return this.store.links.entity(id)?.label ?? "";
  }

  /** @param {At} at */
  textOf([at, side]) {
    const cell = this.rows[at]?.[side];
    if (cell?.kind === "code")
      return [cell.entity.label, cell.entity.attrs.argument, cell.entity.attrs.says && `# ${cell.entity.attrs.says}`]
        .filter(Boolean)
        .join(" ");
    return cell?.kind === "line" ? `${cell.line} ${this.codeOf(cell.origin)}` : (cell?.words ?? "");
  }

  /** What a cell stands for. @param {At} at @returns {string[]} */
  idsOf([at, side]) {
    const cell = this.rows[at]?.[side];
    if (!cell) return [];
    return cell.kind === "line" ? [cell.origin].filter(Boolean) : [cell.entity.id];
  }

  /** @param {HTMLElement} element */
  mark(element) {
    const [at, side] = atOf(element);
    const ids = this.idsOf([at, side]);
    const has = (/** @type {Set<string>} */ set) => ids.some((id) => set.has(id));
    element.classList.toggle("tc-primary", has(this.primary));
    element.classList.toggle("tc-linked", !has(this.primary) && has(this.linked));
    element.classList.toggle("tc-previewed", has(this.previewed));
    element.classList.toggle(
      "tc-hit",
      this.found.some(([row, column]) => row === at && column === side),
    );
    element.classList.toggle(
      "tc-cursor",
      this.cursor[0] === at && this.cursor[1] === side && document.activeElement === this.listing,
    );
    element.setAttribute("aria-selected", String(has(this.primary)));
    const [hotSide, hot] = this.hot.split(" ").map(Number);
    const jump = this.hot && hotSide === side ? this.jumps[side][hot] : undefined;
    element.classList.toggle("tc-jump-end", jump?.to === at || jump?.from === at);
    for (const path of element.querySelectorAll("path"))
      path.classList.toggle("tc-on", jump !== undefined && path.dataset.jump === String(hot));
  }

  paint() {
    for (const row of this.virtual.live.values())
      for (const cell of row.children) this.mark(/** @type {HTMLElement} */ (cell));
  }

  // The selection

  /** @param {Set<string>} primary @param {Set<string>} linked @param {boolean} reveal */
  select(primary, linked, reveal) {
    this.primary = primary;
    this.linked = linked;
    this.stops = [...this.places.keys()].filter((id) => linked.has(id));
    this.stop = -1;
    const first = this.stops.find((id) => primary.has(id)) ?? this.stops[0];
    if (reveal && first) this.reveal(this.places.get(first)?.[0] ?? 0);
    this.paint();
    this.text?.select(primary, linked, true);
  }

  /** @param {Set<string>} linked */
  preview(linked) {
    this.previewed = linked;
    this.paint();
    this.text?.preview(linked);
  }

  /** @param {At} at */
  goTo(at) {
    this.cursor = at;
    this.reveal(at[0]);
    this.listing.setAttribute("aria-activedescendant", `${this.name}-${at[0]}-${at[1]}`);
    this.hot = this.jumpAt(at);
    this.paint();
  }

  /** @param {number} direction @returns {[number, number]} */
  stepLinked(direction) {
    if (!this.stops.length) return [0, 0];
    this.stop = (this.stop + direction + this.stops.length) % this.stops.length;
    this.goTo(/** @type {At} */ (this.places.get(this.stops[this.stop])));
    return [this.stop + 1, this.stops.length];
  }

  // Search

  /** @param {string} query @returns {[number, number, boolean]} */
  find(query) {
    const wanted = query.toLowerCase();
    const all = this.rows.flatMap((row, at) => row.map((_, side) => /** @type {At} */ ([at, side])));
    this.found = wanted ? all.filter((at) => this.textOf(at).toLowerCase().includes(wanted)) : [];
    this.hit = this.found.length ? 0 : -1;
    return this.stepHit(0);
  }

  /** @param {number} direction @returns {[number, number, boolean]} */
  stepHit(direction) {
    if (this.found.length) this.hit = (this.hit + direction + this.found.length) % this.found.length;
    if (this.hit >= 0) this.goTo(this.found[this.hit]);
    else this.paint();
    return [this.hit + 1, this.found.length, false];
  }

  // Mouse and keys

  listen() {
    const { listing } = this;
    listing.addEventListener("pointerover", (event) => this.pointed(event));
    listing.addEventListener("pointerleave", () => this.point("", []));
    listing.addEventListener("click", (event) => this.clicked(event));
    listing.addEventListener("keydown", (event) => this.pressed(event));
    for (const what of ["focus", "blur"]) listing.addEventListener(what, () => this.paint());
  }

  /** Light up a jump, and preview what is pointed at. @param {string} hot @param {string[]} ids */
  point(hot, ids) {
    this.hot = hot;
    this.callbacks.onHover(ids);
    this.paint();
  }

  /** @param {PointerEvent} event */
  pointed(event) {
    const cell = cellAt(event);
    if (!cell) return;
    const at = atOf(cell);
    const path = event.target instanceof SVGElement ? event.target.dataset.jump : undefined;
    this.point(path ? `${at[1]} ${path}` : this.jumpAt(at), path ? [] : this.idsOf(at));
  }

  /** The jump that begins or ends at a cell: its side and number. @param {At} at */
  jumpAt([at, side]) {
    if (this.rows[at]?.[side]?.kind !== "code") return "";
    const from = this.jumps[side].findIndex((jump) => jump.from === at);
    const number = from < 0 ? this.jumps[side].findIndex((jump) => jump.to === at) : from;
    return number < 0 ? "" : `${side} ${number}`;
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const cell = cellAt(event);
    if (!cell || !getSelection()?.isCollapsed) return;
    const at = atOf(cell);
    const path = event.target instanceof SVGElement ? event.target.dataset.jump : undefined;
    if (path || (event.target instanceof Element && event.target.closest(".tc-bc-jump")))
      return this.jump(at, Number(path ?? -1));
    this.goTo(at);
    this.callbacks.onSelect(this.idsOf(at), event.ctrlKey || event.metaKey);
  }

  /** Go where a jump leads. @param {At} at @param {number} [number] of the jump */
  jump([at, side], number = -1) {
    const jump = number < 0 ? this.jumps[side].find(({ from }) => from === at) : this.jumps[side][number];
    if (jump) this.goTo([jump.to, side]);
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const [at, side] = this.cursor;
    const page = Math.floor((this.listing.clientHeight ?? 0) / HEIGHT) - 2;
    /** @type {Record<string, [number, number]>} */
    const moves = {
      ArrowDown: [1, side],
      ArrowUp: [-1, side],
      PageDown: [page, side],
      PageUp: [-page, side],
      Home: [-at, side],
      End: [this.rows.length, side],
      ArrowLeft: [0, 0],
      ArrowRight: [0, 1],
    };
    if (event.key in moves) this.move(...moves[event.key]);
    else if (event.key === "j") this.jump(this.cursor);
    else if (event.key === "Enter") this.callbacks.onSelect(this.idsOf(this.cursor), false);
    else return;
    event.preventDefault();
  }

  /** To a cell that is not empty. @param {number} rows @param {number} side */
  move(rows, side) {
    const last = this.rows.length - 1;
    let at = Math.min(Math.max(this.cursor[0] + rows, 0), last);
    const step = at === last ? -1 : at === 0 ? 1 : Math.sign(rows) || -1;
    while (this.rows[at] && !this.rows[at][side]) at += step;
    if (!this.rows[at]?.[side] || this.hides(side)) return;
    this.goTo([at, side]);
    this.callbacks.onHover(this.idsOf([at, side]));
  }

  focus() {
    this.listing.focus({ preventScroll: true });
  }

  themeChanged() {
    this.text?.themeChanged();
  }

  destroy() {
    this.unlisten();
    this.virtual.destroy();
    this.text?.destroy();
  }
}

/** @param {Event} event @returns {HTMLElement | null} */
function cellAt(event) {
  return event.target instanceof Element ? event.target.closest(".tc-bc-cell") : null;
}

/** @param {HTMLElement} cell @returns {At} */
function atOf(cell) {
  const [at, side] = (cell.dataset.at ?? "0 0").split(" ").map(Number);
  return [at, side];
}
