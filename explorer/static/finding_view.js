// What the views of findings share: elements that stand for entities, chosen, lit up, searched and gone through.

import { h } from "./dom.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").Artifact} Artifact */
/** @typedef {import("./text_view.js").Callbacks} Callbacks */

export class FindingView {
  /** @param {HTMLElement} root @param {Callbacks} callbacks @param {Artifact} artifact @param {Store} store */
  constructor(root, callbacks, artifact, store) {
    this.callbacks = callbacks;
    this.artifact = artifact;
    this.store = store;
    /** @type {Map<string, HTMLElement>} */
    this.items = new Map();
    this.scroller = h("div", { class: "tc-scroll tc-finding", tabIndex: -1 });
    this.scroller.addEventListener("pointerleave", () => callbacks.onHover([]));
    root.replaceChildren(this.scroller);
    /** @type {string[]} */
    this.linked = [];
    this.at = -1;
    /** @type {HTMLElement[]} */
    this.hits = [];
    this.hit = -1;
    this.draw();
  }

  /** Fill the scroller; `this.artifact.view` is what the finding gave. */
  draw() {}

  /**
   * Make an element stand for an entity: a click or Enter on it, not on a control in it, selects that.
   * @param {string} id @param {HTMLElement} element
   */
  item(id, element) {
    this.items.set(id, element);
    element.tabIndex = 0;
    /** @param {Event} event */
    const onControl = (event) => event.target !== element && event.target instanceof Element && event.target.closest("button, a, summary");
    element.addEventListener("click", (event) => {
      if (!onControl(event) && !getSelection()?.toString()) this.callbacks.onSelect([id], event.ctrlKey || event.metaKey);
    });
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.target !== element) return;
      this.callbacks.onSelect([id], event.ctrlKey || event.metaKey);
      event.preventDefault();
    });
    element.addEventListener("pointerenter", () => this.callbacks.onHover([id]));
    element.addEventListener("focus", () => this.callbacks.onHover([id]));
    return element;
  }

  /** @param {Set<string>} primary @param {Set<string>} linked @param {boolean} reveal */
  select(primary, linked, reveal) {
    this.linked = [...this.items.keys()].filter((id) => linked.has(id));
    this.at = -1;
    for (const [id, element] of this.items) {
      element.classList.toggle("tc-primary", primary.has(id));
      element.classList.toggle("tc-linked", !primary.has(id) && linked.has(id));
      if (primary.has(id)) element.setAttribute("aria-current", "true");
      else element.removeAttribute("aria-current");
    }
    const first = this.linked.find((id) => primary.has(id)) ?? this.linked[0];
    if (reveal && first) this.reveal(this.items.get(first));
  }

  /** @param {Set<string>} linked */
  preview(linked) {
    for (const [id, element] of this.items) element.classList.toggle("tc-previewed", linked.has(id));
  }

  /** Bring an element into sight, opening what it is folded in. @param {HTMLElement | undefined} element */
  reveal(element) {
    for (let fold = element?.closest("details"); fold; fold = fold.parentElement?.closest("details")) fold.open = true;
    if (!element) return;
    const [box, frame] = [element.getBoundingClientRect(), this.scroller.getBoundingClientRect()];
    if (box.top >= frame.top && box.bottom <= frame.bottom) return;
    this.scroller.scrollTop += box.top - frame.top - Math.max((frame.height - box.height) / 3, 8);
  }

  /** @param {number} direction @returns {[number, number]} */
  stepLinked(direction) {
    if (!this.linked.length) return [0, 0];
    this.at = (this.at + direction + this.linked.length) % this.linked.length;
    this.reveal(this.items.get(this.linked[this.at]));
    return [this.at + 1, this.linked.length];
  }

  /** @param {string} query @returns {[number, number, boolean]} */
  find(query) {
    const wanted = query.toLowerCase();
    for (const element of this.hits) element.classList.remove("tc-hit");
    const has = (/** @type {HTMLElement} */ element) => element.textContent?.toLowerCase().includes(wanted);
    this.hits = wanted ? [...this.items.values()].filter(has) : [];
    for (const element of this.hits) element.classList.add("tc-hit");
    this.hit = this.hits.length ? 0 : -1;
    return this.stepHit(0);
  }

  /** @param {number} direction @returns {[number, number, boolean]} */
  stepHit(direction) {
    if (this.hits.length) this.hit = (this.hit + direction + this.hits.length) % this.hits.length;
    if (this.hit >= 0) this.reveal(this.hits[this.hit]);
    return [this.hit + 1, this.hits.length, false];
  }

  focus() {
    const target = this.items.get(this.linked[0] ?? "") ?? this.items.values().next().value ?? this.scroller;
    target.focus({ preventScroll: true });
  }

  themeChanged() {}

  destroy() {}
}
