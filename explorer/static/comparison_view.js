// Two texts compared: as one text, or beside each other with their lines aligned.

import { comparison, sideBySide, textNamed } from "./comparison.js";
import { counted, h } from "./dom.js";
import { splitter } from "./splitter.js";
import { TextView } from "./text_view.js";

/** @typedef {import("./store.js").Artifact} Artifact */

/** One of two texts that scroll, fold and are gone through as one. */
class Column extends TextView {
  /** @type {Column | null} */
  other = null;

  refold() {
    super.refold();
    const { other } = this;
    if (!other || [...other.folded].sort().join() === [...this.folded].sort().join()) return;
    other.folded = new Set(this.folded);
    other.refold();
  }

  /** In both texts: in the other one, if it is not in this. @param {string} query @returns {import("./search_bar.js").Found} */
  find(query) {
    const there = this.other?.findHere(query);
    const here = this.findHere(query);
    return there && !here[1] ? there : here;
  }

  /** @param {string} query */
  findHere(query) {
    return super.find(query);
  }

  /** @param {number} direction @returns {import("./search_bar.js").Found} */
  stepHit(direction) {
    return this.hits.length || !this.other?.hits.length ? super.stepHit(direction) : this.other.stepHit(direction);
  }

  /** @param {number} row */
  goTo(row) {
    super.goTo(row);
    if (this.other && this.other.cursor !== row) this.other.goTo(row);
  }
}

export class ComparisonView {
  /**
   * @param {HTMLElement} root @param {import("./text_view.js").Callbacks} callbacks @param {Artifact} _artifact
   * @param {import("./store.js").Store} store @param {[string, string]} compared artifacts, or kernels in them
   * @param {boolean} isBeside whether they stand beside each other
   */
  constructor(root, callbacks, _artifact, store, compared, isBeside) {
    const [left, right] = /** @type {Artifact[]} */ (compared.map((id) => textNamed(store, id)));
    const { artifact, looks } = comparison(left, right);
    const changed = looks.classes?.filter(Boolean).length ?? 0;
    /** @param {Artifact} side @param {string} sign @param {string} style */
    const name = ({ info: { id, title, side } }, sign, style) =>
      h("span", { class: `tc-legend-item ${style}` }, sign, h("b", {}, side || id), h("small", {}, title));
    const count = h("span", { class: "tc-legend-item" }, changed ? `${counted(changed, "line")} differ` : "no difference");
    /** What stands over it. */
    this.legend = [name(left, "−", "tc-removed"), name(right, "+", "tc-added"), count];
    this.columns = isBeside ? columns(root, callbacks, left, right) : [new TextView(root, callbacks, artifact, looks)];
    /** What is gone through, searched and copied: the second text, or both as one. */
    this.text = this.columns[this.columns.length - 1];
  }

  /** @param {Set<string>} primary @param {Set<string>} linked @param {boolean} reveal */
  select(primary, linked, reveal) {
    for (const column of this.columns) column.select(primary, linked, reveal && column === this.text);
  }

  /** @param {Set<string>} linked */
  preview(linked) {
    for (const column of this.columns) column.preview(linked);
  }

  /** @param {number} direction */
  stepLinked(direction) {
    return this.text.stepLinked(direction);
  }

  /** @param {string} query */
  find(query) {
    return this.text.find(query);
  }

  /** @param {number} direction */
  stepHit(direction) {
    return this.text.stepHit(direction);
  }

  focus() {
    this.text.focus();
  }

  themeChanged() {
    for (const column of this.columns) column.themeChanged();
  }

  destroy() {
    for (const column of this.columns) column.destroy();
  }
}

/** @param {HTMLElement} root @param {import("./text_view.js").Callbacks} callbacks @param {Artifact} left @param {Artifact} right */
function columns(root, callbacks, left, right) {
  const places = [h("div", { class: "tc-pane-body" }), h("div", { class: "tc-pane-body" })];
  root.replaceChildren(h("div", { class: "tc-side-by-side" }, places[0], splitter(), places[1]));
  const made = sideBySide(left, right).map(({ artifact, looks }, at) => new Column(places[at], callbacks, artifact, looks));
  made.forEach((column, at) => {
    const other = made[1 - at];
    column.other = other;
    column.scroller.addEventListener("scroll", () => (other.scroller.scrollTop = column.scroller.scrollTop), { passive: true });
  });
  return made;
}
