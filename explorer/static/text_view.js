// One artifact as text: line numbers, colour, folds, search, and the lines of the selection marked.

import { copyText, counted, focusedNear, h, icon } from "./dom.js";
import { Explainer } from "./explain.js";
import { findAll, firstIn, MOST_HITS } from "./hits.js";
import { outermost, placeRows, spanOf, structureOf, tokeniseRow } from "./language.js";
import { LINKED, markRows, mostSpecific, PRIMARY, rowsMarked, WEAK } from "./marks.js";
import { Stripe } from "./rainbow.js";
import { Ruler } from "./ruler.js";
import { appendToken } from "./tokens.js";
import { VirtualRows } from "./virtual_rows.js";

/** @typedef {import("./store.js").Artifact} Artifact */
/** A mark in the gutter; `path` where the break is inside of what the row calls. */
/** @typedef {{title: string, path?: boolean, open: () => void}} Break */
/**
 * What is special about some rows: colours of the graphs they landed in and what these say, breaks, CSS classes, parts
 * that are emphasised (from and to column), or that have classes of their own (`ranges`), numbers to show; blocks folded
 * from the start; and where "next" stops, if not at links. Of what is opened in a row: what is called there, how deep
 * rows are, and the structure of it all.
 * @typedef {{tints?: Map<number, string[]>, titles?: Map<number, string>, breaks?: Map<number, Break>, classes?: string[],
 *   labels?: string[], emphasis?: Map<number, [number, number]>, ranges?: Map<number, import("./tokens.js").Range[]>,
 *   folded?: Map<number, number>, stops?: number[], calls?: Map<number, {names: string, open: boolean}>,
 *   depths?: number[], structure?: import("./language.js").Structure,
 *   bars?: ((row: number) => HTMLElement) | null}} Looks
 */
/**
 * What the pane around a view listens to, and gives. `ids` is empty where a line holds nothing. `onChoose` is for what
 * is chosen in a list: the text beside it goes there. `withTools` calls back once the late views are there.
 * @typedef {{onSelect: (ids: string[], add: boolean) => void, onHover: (ids: string[]) => void,
 *   onChoose?: (ids: string[], add: boolean) => void, withTools: (then: () => void) => void, onState?: () => void, words?: () => import("./store.js").Words,
 *   actions: import("./inspector.js").Actions}} Callbacks
 */

/** How far a pane scrolls sideways at most, in characters. */
const WIDEST = 20000;
/** A signature of so many parameters is folded until it is opened. */
const LONG_SIGNATURE = 6;

let views = 0;

export class TextView {
  /**
   * @param {HTMLElement} root @param {Callbacks} callbacks
   * @param {Artifact} artifact its text has arrived
   * @param {Looks} [looks] by row
   */
  constructor(root, callbacks, artifact, looks = {}) {
    this.name = `tc-view-${++views}`;
    this.root = root;
    this.callbacks = callbacks;
    this.artifact = artifact;
    this.looks = looks;
    /** @type {string[]} */
    this.lines = [];
    /** @type {import("./language.js").Structure["spans"]} */
    this.spans = [];
    this.widest = 0;
    this.digits = 1;
    /** @type {Map<number, number>} */
    this.folds = new Map();
    /** @type {Set<number>} */
    this.folded = new Set();
    /** Rows that only say where in the source one is; they are left out to begin with, but not from a comparison. */
    this.places = new Set();
    this.showsPlaces = false;
    /** @type {Int32Array} */
    this.shown = new Int32Array(0);
    this.marks = new Uint8Array(0);
    /** @type {Set<number>} */
    this.previewed = new Set();
    /** @type {[number, number][]} */
    this.hits = [];
    this.take(artifact, looks);
    this.query = "";
    this.hit = -1;
    this.cursor = 0;
    /** @type {number[]} */
    this.linkedRows = [];
    /** @type {import("./rainbow.js").Rainbow | null} */
    this.rainbow = null;
    this.scroller = this.makeScroller();
    this.stripe = new Stripe((id, row) => {
      callbacks.onSelect([id], false);
      this.goTo(row);
    });
    this.ruler = new Ruler((share) => this.rows.reveal(this.position(Math.floor(share * this.lines.length))));
    const frame = h("div", { class: "tc-text-view" }, this.scroller, this.stripe.root, this.ruler.root);
    root.replaceChildren(frame);
    this.explainer = new Explainer(frame, callbacks.words ?? (() => ({})));
    this.explainer.words();
    this.rows = new VirtualRows(this.scroller, (index) => this.row(this.shown[index]));
    this.observer = new ResizeObserver(() => this.drawRuler());
    this.observer.observe(root);
    this.refold();
  }

  /** Have this as its text; `refold` shows it. @param {Artifact} artifact @param {Looks} looks */
  take(artifact, looks) {
    this.artifact = artifact;
    this.lines = artifact.lines ?? [];
    this.looks = looks;
    const structure = looks.structure ?? structureOf(this.lines, artifact.info.language);
    this.spans = structure.spans;
    this.widest = structure.widest;
    const equal = artifact.folds ?? [];
    this.folds = looks.folded ?? new Map([...structure.folds, ...equal.map(([row, last]) => /** @type {const} */ ([row, last]))]);
    this.folded = new Set(looks.folded?.keys() ?? [...signatures(this.lines, structure.folds), ...equal.map(([row]) => row)]);
    this.places = looks.folded ? new Set() : placeRows(this.lines, artifact.info.language);
    this.marks = new Uint8Array(this.lines.length);
    this.previewed = new Set();
    this.hits = [];
    const last = artifact.numbers?.reduce((most, number) => Math.max(most, number), 0) ?? this.lines.length;
    const widest = looks.labels?.reduce((most, label) => Math.max(most, label.trimEnd().length), 1);
    this.digits = widest ?? String(last || this.lines.length).length;
  }

  makeScroller() {
    return h("div", {
      class: "tc-scroll tc-code",
      tabIndex: 0,
      role: "grid",
      "aria-label": this.artifact.info.title,
      "aria-multiselectable": "true",
      onclick: (/** @type {MouseEvent} */ event) => this.clicked(event),
      onpointerover: (/** @type {PointerEvent} */ event) => this.hovered(event),
      onpointermove: (/** @type {PointerEvent} */ event) => this.pointed(event),
      onpointerleave: () => {
        this.callbacks.onHover([]);
        this.explainer.leave();
      },
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.pressed(event),
      onfocus: () => this.paint(),
      onblur: () => this.paint(),
    });
  }

  /** The number to show beside a row; 0 for none. @param {number} row */
  number(row) {
    const numbers = this.artifact.numbers;
    return numbers ? (numbers[row] ?? 0) : row + 1;
  }

  // Folds

  refold() {
    const shown = [];
    for (let row = 0; row < this.lines.length; row++) {
      if (this.showsPlaces || !this.places.has(row)) shown.push(row);
      if (this.folded.has(row)) row = this.folds.get(row) ?? row;
    }
    this.shown = Int32Array.from(shown);
    this.scroller.setAttribute("aria-rowcount", String(this.lines.length));
    this.rows.reset(shown.length, `${Math.min(this.widest, WIDEST) + this.digits + 8}ch`);
    this.drawRuler();
  }

  /** @param {number} row */
  toggleFold(row) {
    if (!this.folded.delete(row)) this.folded.add(row);
    this.refold();
  }

  /** Fold every long block, or open all when some are folded. */
  toggleAllFolds() {
    if (this.folded.size) this.folded.clear();
    else for (const row of outermost(this.folds, this.lines.length)) this.folded.add(row);
    this.refold();
  }

  togglePlaces() {
    this.showsPlaces = !this.showsPlaces;
    this.refold();
  }

  /** Open the folds around a row. @param {number} row */
  unfoldAround(row) {
    if (!this.showsPlaces && this.places.has(row)) this.togglePlaces();
    const around = [...this.folded].filter((first) => first < row && row <= (this.folds.get(first) ?? first));
    around.forEach((first) => this.folded.delete(first));
    if (around.length) this.refold();
  }

  /** @param {number} row @returns {number} where it is among the rows shown, or where its fold is */
  position(row) {
    let low = 0;
    let high = this.shown.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.shown[middle] <= row) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  // Rows

  /** @param {number} row */
  row(row) {
    const code = h("span", { class: "tc-line", role: "gridcell" });
    this.fill(code, row);
    const place = { role: "row", id: `${this.name}-${row}`, "aria-rowindex": row + 1 };
    const element = h("div", { class: "tc-row", ...place }, this.gutter(row), code);
    element.dataset.row = String(row);
    const number = this.number(row);
    if (row > 0 && number && number !== this.number(row - 1) + 1) element.classList.add("tc-gap");
    if (this.looks.classes?.[row]) element.classList.add(this.looks.classes[row]);
    this.mark(element, row);
    this.tint(element, row);
    return element;
  }

  /** @param {number} row */
  gutter(row) {
    const { tints, breaks, labels } = this.looks;
    const width = this.digits + (breaks?.size ? 7 : 4);
    const gutter = h("span", { class: "tc-gutter", role: "gridcell", style: { minWidth: `${width}ch` } });
    const stop = breaks?.get(row);
    if (stop) gutter.append(breakButton(stop));
    gutter.append(h("span", { class: "tc-number" }, labels?.[row] ?? String(this.number(row) || "")));
    gutter.append(this.folds.has(row) ? this.foldButton(row) : h("span", { class: "tc-fold" }));
    const colours = (tints?.get(row) ?? []).map((tint) => h("i", { class: tint }));
    const title = this.looks.titles?.get(row) ?? "";
    if (tints?.size) gutter.append(h("span", { class: "tc-tints", title }, ...colours));
    return gutter;
  }

  /** @param {number} row */
  foldButton(row) {
    const folded = this.folded.has(row);
    const title = folded ? "Unfold" : "Fold";
    const onclick = () => this.toggleFold(row);
    return h(
      "button",
      { class: "tc-fold", type: "button", title, "aria-label": title, tabIndex: -1, onclick },
      icon(folded ? "right" : "down"),
    );
  }

  /** @param {HTMLElement} code @param {number} row */
  fill(code, row) {
    const tokens = tokeniseRow(this.lines[row], row, this.artifact.info.language, spanOf(this.spans, row));
    const ranges = this.hits.length ? this.hitsOf(row) : this.emphasisOf(row);
    let column = 0;
    for (const [kind, text] of tokens) {
      appendToken(code, kind && `tc-t-${kind}`, text, column, ranges);
      column += text.length;
    }
    if (!this.folded.has(row)) return;
    const hidden = (this.folds.get(row) ?? row) - row;
    const equal = this.artifact.folds?.find(([first]) => first === row)?.[2];
    code.append(
      h(
        "button",
        { class: `tc-folded ${equal ? "tc-alike" : ""}`, type: "button", tabIndex: -1, onclick: () => this.toggleFold(row) },
        `⋯ ${equal ?? counted(hidden, "line")}`,
      ),
    );
  }

  /** @param {HTMLElement} element @param {number} row */
  mark(element, row) {
    const last = this.folded.has(row) ? (this.folds.get(row) ?? row) : row;
    let mark = 0;
    for (let inside = row; inside <= last; inside++) mark = Math.max(mark, this.marks[inside]);
    element.classList.toggle("tc-primary", mark === PRIMARY);
    element.classList.toggle("tc-linked", mark === LINKED);
    element.classList.toggle("tc-weak", mark === WEAK);
    element.classList.toggle("tc-previewed", this.previewed.has(row));
    element.classList.toggle("tc-cursor", row === this.cursor && focusedNear(this.scroller) === this.scroller);
    element.setAttribute("aria-selected", String(mark === PRIMARY));
  }

  /** @param {HTMLElement} element @param {number} row */
  tint(element, row) {
    const bands = this.rainbow?.ofRow(this.artifact.rows.get(row) ?? []).bands ?? "";
    element.classList.toggle("tc-rainbow", bands !== "");
    element.style.setProperty("--bands", bands);
  }

  paint() {
    for (const [index, element] of this.rows.live) this.mark(element, this.shown[index]);
  }

  /** Colour each row by the source lines that it came from, or no longer. @param {import("./rainbow.js").Rainbow | null} rainbow */
  colour(rainbow) {
    this.rainbow = rainbow;
    for (const [index, element] of this.rows.live) this.tint(element, this.shown[index]);
    this.stripe.show(rainbow, this.artifact);
  }

  // The selection

  /** @param {Set<string>} primary @param {Set<string>} linked @param {boolean} reveal scroll to it */
  select(primary, linked, reveal) {
    markRows(this.artifact, primary, linked, this.marks);
    this.linkedRows = rowsMarked(this.marks);
    this.scroller.classList.toggle("tc-selecting", primary.size > 0);
    if (reveal) this.revealSelection();
    this.paint();
    this.drawRuler();
  }

  /** Scroll so that a selected line, else a linked one, is in sight; not at all if one is. */
  revealSelection() {
    const rows = this.linkedRows;
    if (!rows.length) return;
    const chosen = rows.filter((row) => this.marks[row] === PRIMARY);
    const wanted = chosen.length ? chosen : rows;
    const [first, last] = this.rows.inSight();
    if (wanted.some((row) => this.isShown(row, first + 1, last - 3))) return;
    this.goTo(wanted[0]);
  }

  /** @param {number} row @param {number} first @param {number} last positions in sight */
  isShown(row, first, last) {
    const position = this.position(row);
    return this.shown[position] === row && position >= first && position < last;
  }

  /** @param {Set<string>} linked */
  preview(linked) {
    this.previewed = new Set();
    for (const id of linked) for (const row of this.artifact.rowsOf.get(id) ?? []) this.previewed.add(row);
    this.paint();
  }

  /** Put the cursor on a row and bring it into sight. @param {number} row */
  goTo(row) {
    this.unfoldAround(row);
    this.cursor = row;
    this.rows.reveal(this.position(row));
    this.scroller.setAttribute("aria-activedescendant", `${this.name}-${row}`);
    this.paint();
  }

  /** @param {number} row of the artifact */
  showRow(row) {
    this.goTo(row);
  }

  /** Begin to read here: the row stands at the top. @param {number} row */
  startAt(row) {
    this.cursor = row;
    this.rows.toTop(this.position(row));
  }

  /** Go to the next or previous row of the selection. @param {number} direction @returns {[number, number]} */
  stepLinked(direction) {
    const rows = this.looks.stops ?? this.linkedRows;
    if (!rows.length) return [0, 0];
    const after = rows.findIndex((row) => row > this.cursor);
    const before = rows.findLastIndex((row) => row < this.cursor);
    const next = direction > 0 ? (after < 0 ? 0 : after) : before < 0 ? rows.length - 1 : before;
    this.goTo(rows[next]);
    return [next + 1, rows.length];
  }

  // Mouse and keys

  /** @param {Event} event @returns {HTMLElement | null} */
  rowAt(event) {
    return event.target instanceof Element ? event.target.closest(".tc-row") : null;
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const element = this.rowAt(event);
    if (!element || (event.target instanceof Element && event.target.closest("button"))) return;
    if (!window.getSelection()?.isCollapsed) return;
    this.cursor = Number(element.dataset.row);
    const ids = this.artifact.rows.get(this.cursor) ?? [];
    const word = ids.length > 1 ? wordAt(event) : "";
    const named = ids.filter((id) => word && id.endsWith(`.${word}`));
    this.callbacks.onSelect(named.length ? named : mostSpecific(ids), event.ctrlKey || event.metaKey);
    this.paint();
  }

  /** @param {PointerEvent} event */
  hovered(event) {
    const element = this.rowAt(event);
    this.callbacks.onHover(element ? this.idsOf(Number(element.dataset.row)) : []);
  }

  /** What a row is about. @param {number} row */
  idsOf(row) {
    return mostSpecific(this.artifact.rows.get(row) ?? []);
  }

  /** @param {PointerEvent} event */
  pointed(event) {
    const row = this.rowAt(event);
    const line = row?.querySelector(".tc-line");
    if (row && line && line.contains(/** @type {Node} */ (event.target)) && !event.buttons) {
      this.explainer.point(line, this.lines[Number(row.dataset.row)], event);
    } else this.explainer.leave();
  }

  /** Explain the next word of the line that the cursor is on. */
  explain() {
    const line = this.rows.live.get(this.position(this.cursor))?.querySelector(".tc-line");
    if (line) this.explainer.next(line, this.lines[this.cursor], this.cursor);
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.altKey) return;
    const page = Math.max(this.rows.inSight()[1] - this.rows.inSight()[0] - 2, 1);
    /** @type {Record<string, number>} */
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps) this.moveCursor(steps[event.key]);
    else if (event.key === "e" && !event.ctrlKey && !event.metaKey) this.explain();
    else if (event.key === "ArrowLeft" && this.folds.has(this.cursor)) this.setFold(true);
    else if (event.key === "ArrowRight" && this.folded.has(this.cursor)) this.setFold(false);
    else if (event.key === "Enter" || event.key === " ") {
      this.callbacks.onSelect(this.idsOf(this.cursor), event.ctrlKey || event.metaKey);
    } else return;
    event.preventDefault();
  }

  /** @param {boolean} folded */
  setFold(folded) {
    if (this.folded.has(this.cursor) !== folded) this.toggleFold(this.cursor);
  }

  /** @param {number} steps */
  moveCursor(steps) {
    const position = Math.min(Math.max(this.position(this.cursor) + steps, 0), this.shown.length - 1);
    this.goTo(this.shown[position]);
    this.explainer.hide();
    this.callbacks.onHover(this.idsOf(this.cursor));
  }

  // Search

  /**
   * Find text, small letters matching both unless there is a capital.
   * @param {string} query @returns {import("./search_bar.js").Found}
   */
  find(query) {
    this.query = query;
    this.hits = query ? findAll(this.lines, query) : [];
    this.hit = this.hits.findIndex(([row]) => row >= this.cursor);
    if (this.hit < 0 && this.hits.length) this.hit = 0;
    return this.showHit();
  }

  /** @param {number} direction @returns {import("./search_bar.js").Found} */
  stepHit(direction) {
    if (this.hits.length) this.hit = (this.hit + direction + this.hits.length) % this.hits.length;
    return this.showHit();
  }

  /** @returns {import("./search_bar.js").Found} */
  showHit() {
    if (this.hits.length) this.goTo(this.hits[this.hit][0]);
    this.refill();
    this.revealColumn();
    this.drawRuler();
    return [this.hit + 1, this.hits.length, this.hits.length >= MOST_HITS];
  }

  /** Scroll sideways to the current hit, if it is out of sight. */
  revealColumn() {
    const hit = this.scroller.querySelector(".tc-current");
    if (!hit) return;
    const [seen, wanted] = [this.scroller.getBoundingClientRect(), hit.getBoundingClientRect()];
    const gutter = this.scroller.querySelector(".tc-gutter")?.clientWidth ?? 0;
    if (wanted.left < seen.left + gutter || wanted.right > seen.right) {
      this.scroller.scrollLeft += wanted.left - seen.left - seen.width / 2;
    }
  }

  /** @param {number} row @returns {import("./tokens.js").Range[]} */
  hitsOf(row) {
    /** @type {import("./tokens.js").Range[]} */
    const found = [];
    for (let index = firstIn(this.hits, row); this.hits[index]?.[0] === row; index++) {
      const column = this.hits[index][1];
      found.push([column, column + this.query.length, index === this.hit ? "tc-hit tc-current" : "tc-hit"]);
    }
    return found;
  }

  /** @param {number} row @returns {import("./tokens.js").Range[]} */
  emphasisOf(row) {
    if (this.looks.ranges) return this.looks.ranges.get(row) ?? [];
    const part = this.looks.emphasis?.get(row);
    return part ? [[...part, "tc-differs"]] : [];
  }

  refill() {
    for (const [index, element] of this.rows.live) {
      const code = /** @type {HTMLElement} */ (element.lastChild);
      code.replaceChildren();
      this.fill(code, this.shown[index]);
    }
  }

  copy() {
    return copyText(this.lines.join("\n") + "\n");
  }

  drawRuler() {
    const { breaks, stops } = this.looks;
    this.ruler.draw(this.lines.length, this.scroller, [
      { colour: "--tc-find", rows: this.hits.map(([row]) => row), from: 0.5, to: 1 },
      { colour: "--tc-link", rows: this.linkedRows, from: 0, to: 0.5 },
      { colour: "--tc-accent", rows: this.linkedRows.filter((row) => this.marks[row] === PRIMARY), from: 0, to: 1 },
      { colour: "--tc-warning", rows: breaks?.keys() ?? stops ?? [], from: 0, to: 1 },
    ]);
  }

  themeChanged() {
    this.rows.measure();
    this.drawRuler();
  }

  focus() {
    this.scroller.focus({ preventScroll: true });
  }

  destroy() {
    this.explainer.hide();
    this.rows.destroy();
    this.observer.disconnect();
  }
}

/** The word that is pointed at. @param {MouseEvent} event @returns {string} */
function wordAt(event) {
  const range = document.caretRangeFromPoint?.(event.clientX, event.clientY);
  const text = range?.startContainer.nodeType === Node.TEXT_NODE ? (range.startContainer.textContent ?? "") : "";
  const at = range?.startOffset ?? 0;
  const before = /\w*$/.exec(text.slice(0, at))?.[0] ?? "";
  return before + (/^\w*/.exec(text.slice(at))?.[0] ?? "");
}

/** @param {Break} stop */
function breakButton({ title, path, open }) {
  const properties = { class: path ? "tc-break tc-path" : "tc-break", type: "button", title, "aria-label": title, tabIndex: -1, onclick: open };
  return h("button", properties, icon("warning"));
}

/**
 * The blocks that are the parameters of a function, each on a line of its own: first rows.
 * @param {string[]} lines @param {Map<number, number>} folds @returns {number[]}
 */
function signatures(lines, folds) {
  const blocks = [...folds].filter(([first, last]) => last - first >= LONG_SIGNATURE && lines[last + 1]?.trim().startsWith(")"));
  return blocks.map(([first]) => first).filter((first) => /^\s*def \w+\(/.test(lines[first]));
}
