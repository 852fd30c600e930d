// Two artifacts side by side: what is the same on both sides stands beside each other, long equal runs are folded.

import { compareLines, differingPart } from "./compare.js";
import { copyText, counted, h } from "./dom.js";
import { tokenise } from "./language.js";
import { appendText } from "./text_view.js";
import { VirtualRows } from "./virtual_rows.js";

/** @typedef {import("./store.js").Artifact} Artifact */
/** @typedef {import("./compare.js").DiffRow} DiffRow */
/** @typedef {{hidden: DiffRow[]}} Skipped */

/** Equal lines kept around each difference. */
const CONTEXT = 3;

export class DiffView {
  /** @param {HTMLElement} root @param {import("./text_view.js").Callbacks} callbacks @param {Artifact} left @param {Artifact} right */
  constructor(root, callbacks, left, right) {
    this.root = root;
    this.callbacks = callbacks;
    this.sides = [left, right];
    this.texts = [left.lines ?? [], right.lines ?? []];
    /** @type {(DiffRow | Skipped)[]} */
    this.shown = foldEqual(compareLines(this.texts[0], this.texts[1]));
    this.changes = this.shown.filter((row) => !("hidden" in row) && !row.same).length;
    /** @type {Set<string>} */
    this.linked = new Set();
    /** @type {Set<string>} */
    this.primary = new Set();
    this.query = "";
    /** @type {number[]} */
    this.hits = [];
    this.hit = -1;
    /** Which difference was gone to last. */
    this.change = -1;
    this.scroller = h("div", {
      class: "tc-scroll tc-code tc-diff", tabIndex: 0, role: "group", "aria-label": "Differences",
      onclick: (/** @type {MouseEvent} */ event) => this.clicked(event),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.pressed(event),
    });
    this.root.replaceChildren(this.heading(), this.scroller);
    this.rows = new VirtualRows(this.scroller, (index) => this.row(index));
    this.reset();
  }

  heading() {
    const words = this.changes ? `${counted(this.changes, "line")} differ` : "no difference";
    const names = this.sides.map((side) => h("span", { class: "tc-diff-name" }, side.info.title, h("small", {}, side.info.id)));
    return h("div", { class: "tc-diff-heading" }, names[0], h("span", { class: "tc-diff-count" }, words), names[1]);
  }

  reset() {
    const widest = Math.max(...this.texts.map((lines) => lines.reduce((most, line) => Math.max(most, line.length), 0)));
    this.rows.reset(this.shown.length, `${2 * Math.min(widest, 5000) + 16}ch`);
  }

  /** @param {number} index */
  row(index) {
    const row = this.shown[index];
    const element = h("div", { class: "tc-row tc-diff-row" });
    if ("hidden" in row) {
      const text = `⋯ ${counted(row.hidden.length, "equal line")}`;
      element.append(h("button", { class: "tc-folded", type: "button", onclick: () => this.open(index) }, text));
      return element;
    }
    element.append(this.side(row, 0), this.side(row, 1));
    element.classList.toggle("tc-current-row", this.hits[this.hit] === index);
    return element;
  }

  /** @param {DiffRow} row @param {0 | 1} which */
  side(row, which) {
    const line = which ? row.right : row.left;
    const cell = h("div", { class: "tc-diff-side" });
    if (line < 0) cell.classList.add("tc-none");
    else this.fillSide(cell, row, which, line);
    return cell;
  }

  /** @param {HTMLElement} cell @param {DiffRow} row @param {0 | 1} which @param {number} line */
  fillSide(cell, row, which, line) {
    const { numbers, rows, info } = this.sides[which];
    const ids = rows.get(line) ?? [];
    cell.dataset.side = String(which);
    cell.dataset.row = String(line);
    if (!row.same) cell.classList.add(which ? "tc-added" : "tc-removed");
    if (ids.some((id) => this.primary.has(id))) cell.classList.add("tc-primary");
    else if (ids.some((id) => this.linked.has(id))) cell.classList.add("tc-linked");
    const sign = row.same ? " " : which ? "+" : "−";
    const code = h("span", { class: "tc-line" });
    const text = this.texts[which][line];
    const changed = !row.same && row.left >= 0 && row.right >= 0;
    if (changed) this.fillChanged(code, row, which, text);
    else for (const [kind, part] of tokenise(text, info.language)) appendText(code, kind && `tc-t-${kind}`, part);
    cell.append(h("span", { class: "tc-number" }, String(numbers ? numbers[line] || "" : line + 1)), h("span", { class: "tc-sign" }, sign), code);
  }

  /** @param {HTMLElement} code @param {DiffRow} row @param {0 | 1} which @param {string} text */
  fillChanged(code, row, which, text) {
    const part = differingPart(this.texts[0][row.left], this.texts[1][row.right]);
    const to = which ? part.rightTo : part.leftTo;
    appendText(code, "", text.slice(0, part.from));
    appendText(code, "tc-differs", text.slice(part.from, to));
    appendText(code, "", text.slice(to));
  }

  /** Show a run of equal lines. @param {number} index */
  open(index) {
    const row = this.shown[index];
    if (!("hidden" in row)) return;
    this.shown.splice(index, 1, ...row.hidden);
    this.reset();
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const cell = event.target instanceof Element ? event.target.closest(".tc-diff-side") : null;
    if (!(cell instanceof HTMLElement) || !cell.dataset.row || !window.getSelection()?.isCollapsed) return;
    const ids = this.sides[Number(cell.dataset.side)].rows.get(Number(cell.dataset.row)) ?? [];
    this.callbacks.onSelect(ids, event.ctrlKey || event.metaKey);
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    this.scroller.scrollTop += (event.key === "ArrowDown" ? 1 : -1) * this.rows.height;
    event.preventDefault();
  }

  /** @param {Set<string>} primary @param {Set<string>} linked @param {boolean} reveal */
  select(primary, linked, reveal) {
    this.primary = primary;
    this.linked = linked;
    const first = reveal && linked.size ? this.shown.findIndex((row) => this.isLinked(row)) : -1;
    if (first >= 0) this.rows.reveal(first);
    this.redraw();
  }

  /** @param {DiffRow | Skipped} row */
  isLinked(row) {
    if ("hidden" in row) return false;
    const ids = [...(this.sides[0].rows.get(row.left) ?? []), ...(this.sides[1].rows.get(row.right) ?? [])];
    return ids.some((id) => this.linked.has(id));
  }

  redraw() {
    for (const row of this.rows.live.values()) row.remove();
    this.rows.live.clear();
    this.rows.draw();
  }

  preview() {}

  /** Go to the next or previous difference. @param {number} direction @returns {[number, number]} */
  stepLinked(direction) {
    const starts = this.shown.flatMap((row, index) => (this.startsChange(index) ? [index] : []));
    if (!starts.length) return [0, 0];
    this.change = (Math.max(this.change + direction, -1) + starts.length) % starts.length;
    this.rows.reveal(starts[this.change]);
    return [this.change + 1, starts.length];
  }

  /** @param {number} index */
  startsChange(index) {
    const [row, before] = [this.shown[index], this.shown[index - 1]];
    const changed = !("hidden" in row) && !row.same;
    return changed && (!before || "hidden" in before || before.same);
  }

  /** @param {string} query @returns {[number, number, boolean]} */
  find(query) {
    const wanted = query.toLowerCase();
    /** @param {0 | 1} which @param {number} line */
    const holds = (which, line) => line >= 0 && this.texts[which][line].toLowerCase().includes(wanted);
    this.hits = this.shown.flatMap((row, index) => {
      if (!query || "hidden" in row) return [];
      return holds(0, row.left) || holds(1, row.right) ? [index] : [];
    });
    this.hit = this.hits.length ? 0 : -1;
    return this.stepHit(0);
  }

  /** @param {number} direction @returns {[number, number, boolean]} */
  stepHit(direction) {
    if (this.hits.length) this.hit = (this.hit + direction + this.hits.length) % this.hits.length;
    if (this.hit >= 0) this.rows.reveal(this.hits[this.hit]);
    this.redraw();
    return [this.hit + 1, this.hits.length, false];
  }

  copy() {
    const signed = this.shown.flatMap((row) => ("hidden" in row ? row.hidden : [row])).flatMap((row) => {
      if (row.same) return [` ${this.texts[0][row.left]}`];
      const removed = row.left >= 0 ? [`-${this.texts[0][row.left]}`] : [];
      return row.right >= 0 ? [...removed, `+${this.texts[1][row.right]}`] : removed;
    });
    return copyText(`--- ${this.sides[0].info.id}\n+++ ${this.sides[1].info.id}\n${signed.join("\n")}\n`);
  }

  themeChanged() {}

  focus() {
    this.scroller.focus({ preventScroll: true });
  }

  destroy() {
    this.rows.destroy();
  }
}

/** @param {DiffRow[]} rows @returns {(DiffRow | Skipped)[]} with long runs of equal lines put away */
function foldEqual(rows) {
  /** @type {(DiffRow | Skipped)[]} */
  const shown = [];
  for (let from = 0; from < rows.length; ) {
    let to = from;
    while (to < rows.length && rows[to].same) to += 1;
    if (to === from) shown.push(rows[from++]);
    else {
      shown.push(...shortened(rows.slice(from, to), from === 0, to === rows.length));
      from = to;
    }
  }
  return shown;
}

/** @param {DiffRow[]} run @param {boolean} atStart @param {boolean} atEnd */
function shortened(run, atStart, atEnd) {
  const before = atStart ? 0 : CONTEXT;
  const after = atEnd ? 0 : CONTEXT;
  const hidden = run.slice(before, run.length - after);
  if (hidden.length < 4) return run;
  return [...run.slice(0, before), { hidden }, ...run.slice(run.length - after)];
}
