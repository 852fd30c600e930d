// What the views of findings share: elements that stand for entities, chosen, lit up, searched and gone through.

import { h } from "./dom.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").Artifact} Artifact */
/** @typedef {import("./text_view.js").Callbacks} Callbacks */
/** What makes the element of an entity, and the fold that it is in, if it is in one. @typedef {{fold: HTMLDetailsElement | null, make: () => void}} Unmade */

export class FindingView {
  /** @param {HTMLElement} root @param {Callbacks} callbacks @param {Artifact} artifact @param {Store} store */
  constructor(root, callbacks, artifact, store) {
    this.callbacks = callbacks;
    this.actions = callbacks.actions;
    this.artifact = artifact;
    /** What the same view of the other side shows, in a record of two. @type {any} */
    this.beside = store.artifacts.get(artifact.info.pair)?.view;
    this.store = store;
    /** @type {Map<string, HTMLElement>} */
    this.items = new Map();
    /** @type {Map<string, Unmade>} the entities that have no element yet */
    this.within = new Map();
    /** @type {Set<string>} */
    this.primary = new Set();
    /** @type {Set<string>} */
    this.lit = new Set();
    this.scroller = h("div", { class: "tc-scroll tc-finding", tabIndex: -1 });
    this.scroller.addEventListener("pointerleave", () => callbacks.onHover([]));
    this.scroller.addEventListener("keydown", (event) => this.moveByArrow(event));
    root.replaceChildren(this.scroller);
    /** @type {string[]} */
    this.linked = [];
    this.at = -1;
    /** @type {string[]} */
    this.hits = [];
    this.hit = -1;
  }

  /**
   * Make an element stand for an entity, or for several: a click or Enter on it, not on a control in it, selects that.
   * @param {string | string[]} id @param {HTMLElement} element
   */
  item(id, element) {
    const ids = typeof id === "string" ? [id] : id;
    for (const one of ids) this.items.set(one, element);
    element.tabIndex = 0;
    /** @param {Event} event */
    const onControl = (event) => {
      if (event.target === element || !(event.target instanceof Element)) return false;
      const control = event.target.closest("button, a, summary, input, select");
      return control !== null && element.contains(control);
    };
    element.addEventListener("click", (event) => {
      if (!onControl(event) && !getSelection()?.toString()) this.callbacks.onSelect(ids, event.ctrlKey || event.metaKey);
    });
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.target !== element) return;
      this.callbacks.onSelect(ids, event.ctrlKey || event.metaKey);
      event.preventDefault();
    });
    element.addEventListener("pointerenter", () => this.callbacks.onHover(ids));
    element.addEventListener("focus", () => this.callbacks.onHover(ids));
    return element;
  }

  /** Up and down go from element to element. @param {KeyboardEvent} event */
  moveByArrow(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !(event.target instanceof HTMLElement)) return;
    const known = new Set(this.items.values());
    const all = [...this.scroller.querySelectorAll("[tabindex]")].flatMap((element) => (element instanceof HTMLElement && known.has(element) && element.offsetParent ? [element] : []));
    const at = all.indexOf(event.target);
    if (at < 0) return;
    all[at + step]?.focus();
    event.preventDefault();
  }

  /**
   * A fold whose content is made when it is first opened, or when one of the entities in it is wanted.
   * @param {(Node | string)[]} summary @param {string[]} ids of the entities in it @param {() => Node[]} content
   * @param {boolean} [open]
   */
  fold(summary, ids, content, open = false) {
    const fold = h("details", {}, h("summary", {}, ...summary));
    const make = () => {
      if (fold.childElementCount > 1) return;
      for (const id of ids) if (this.within.get(id)?.fold === fold) this.within.delete(id);
      fold.append(...content());
      this.mark();
    };
    for (const id of ids) this.within.set(id, { fold, make });
    fold.addEventListener("toggle", () => fold.open && make());
    fold.open = open;
    if (open) make();
    return fold;
  }

  /** The element of an entity, made if it is in a fold. @param {string} id */
  elementOf(id) {
    for (let place = this.within.get(id); place; place = this.within.get(id)) place.make();
    return this.items.get(id);
  }

  /** @param {Set<string>} primary @param {Set<string>} linked @param {boolean} reveal */
  select(primary, linked, reveal) {
    const known = (/** @type {string} */ id) => this.items.has(id) || this.within.has(id);
    this.primary = primary;
    this.lit = linked;
    this.linked = [...new Set((this.artifact.entities ?? []).map(({ id }) => id))].filter((id) => linked.has(id) && known(id));
    this.at = -1;
    this.mark();
    const isNear = (/** @type {string} */ id) => this.items.has(id) || !this.within.get(id)?.fold;
    const first = this.linked.find((id) => primary.has(id)) ?? this.linked.find((id) => this.items.has(id)) ?? this.linked.find(isNear);
    if (reveal && first) this.reveal(this.elementOf(first));
  }

  /** Mark what is selected, what is linked to it, and the folds that hold such. */
  mark() {
    const chosen = new Set([...this.primary].map((id) => this.items.get(id)));
    const lit = new Set([...this.lit].map((id) => this.items.get(id)));
    for (const element of new Set(this.items.values())) {
      element.classList.toggle("tc-primary", chosen.has(element));
      element.classList.toggle("tc-linked", !chosen.has(element) && lit.has(element));
      if (chosen.has(element)) element.setAttribute("aria-current", "true");
      else element.removeAttribute("aria-current");
    }
    const leading = new Set([...this.lit].map((id) => this.within.get(id)?.fold));
    for (const fold of this.scroller.querySelectorAll("details")) {
      fold.classList.toggle("tc-leads", leading.has(fold) || fold.querySelector(".tc-primary, .tc-linked, .tc-leads") !== null);
    }
  }

  /** @param {Set<string>} linked */
  preview(linked) {
    const lit = new Set([...linked].map((id) => this.items.get(id)));
    for (const element of this.items.values()) element.classList.toggle("tc-previewed", lit.has(element));
  }

  /** Bring an element into sight, opening what it is folded in. @param {HTMLElement | undefined} element */
  reveal(element) {
    for (let fold = element?.closest("details"); fold; fold = fold.parentElement?.closest("details")) fold.open = true;
    if (!element) return;
    const [box, frame] = [element.getBoundingClientRect(), this.scroller.getBoundingClientRect()];
    if (box.top >= frame.top && box.bottom <= frame.bottom) return;
    this.scroller.scrollTop += box.top - frame.top - Math.max((frame.height - box.height) / 3, 8);
  }

  /** @param {number} row of its text */
  showRow(row) {
    this.reveal(this.elementOf(this.artifact.rows.get(row)?.at(-1) ?? ""));
  }

  /** @param {number} direction @returns {[number, number]} */
  stepLinked(direction) {
    if (!this.linked.length) return [0, 0];
    this.at = (this.at + direction + this.linked.length) % this.linked.length;
    this.reveal(this.elementOf(this.linked[this.at]));
    return [this.at + 1, this.linked.length];
  }

  /** The entities whose element holds a text, in lower case. @param {string} wanted @returns {string[]} */
  matching(wanted) {
    const found = [...this.items].filter(([, element]) => element.textContent?.toLowerCase().includes(wanted));
    return [...new Map(found.map(([id, element]) => [element, id])).values()];
  }

  /** @param {string} query @returns {[number, number, boolean]} */
  find(query) {
    for (const id of this.hits) this.items.get(id)?.classList.remove("tc-hit");
    this.hits = query ? this.matching(query.toLowerCase()) : [];
    for (const id of this.hits) this.items.get(id)?.classList.add("tc-hit");
    this.hit = this.hits.length ? 0 : -1;
    return this.stepHit(0);
  }

  /** @param {number} direction @returns {[number, number, boolean]} */
  stepHit(direction) {
    if (this.hits.length) this.hit = (this.hit + direction + this.hits.length) % this.hits.length;
    const element = this.hit >= 0 ? this.elementOf(this.hits[this.hit]) : undefined;
    element?.classList.add("tc-hit");
    this.reveal(element);
    return [this.hit + 1, this.hits.length, false];
  }

  focus() {
    const target = this.items.get(this.linked[0] ?? "") ?? this.items.values().next().value ?? this.scroller;
    target.focus({ preventScroll: true });
  }

  themeChanged() {}

  destroy() {}
}
