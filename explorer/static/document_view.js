// A finding as a document: its parts one below the other, those that stand for entities chosen and lit up.

import { elements, textsOf } from "./document.js";
import { h } from "./dom.js";
import { FindingView } from "./finding_view.js";

export class DocumentView extends FindingView {
  /**
   * @param {HTMLElement} root @param {import("./text_view.js").Callbacks} callbacks
   * @param {import("./store.js").Artifact} artifact @param {import("./store.js").Store} store
   */
  constructor(root, callbacks, artifact, store) {
    super(root, callbacks, artifact, store);
    /** Which option of each choice is shown. @type {Map<string, number>} */
    this.choices = new Map();
    /** What is said of each entity. @type {Map<string, string> | null} */
    this.texts = null;
    this.draw();
  }

  draw() {
    this.items.clear();
    this.within.clear();
    const body = h("div", { class: "tc-card-list" });
    const actions = { ...this.actions, goTo: (/** @type {string} */ id) => this.choose(id) };
    /** @type {import("./document.js").Place} */
    const place = {
      actions,
      charts: this.begin(body),
      item: (ids, element) => this.firstItem(ids, element),
      most: largest(this.artifact.view.most, this.beside?.most),
      view: {
        fold: (...parts) => this.fold(...parts),
        chosen: (label) => this.choices.get(label) ?? 0,
        choose: (label, index) => this.turn(label, index),
        later: (ids, make) => this.later(ids, make),
        code: (source, label) => this.code(source, label),
      },
    };
    body.append(...elements(this.artifact.view.parts, place));
    this.scroller.replaceChildren(body);
    /** Links that show which entity is chosen. @type {HTMLElement[]} */
    this.marks = [...this.scroller.querySelectorAll("button")].filter((button) => button.dataset.entity);
    this.mark();
  }

  /** Show another option of a choice; the focus stays on it. @param {string} label @param {number} index */
  turn(label, index) {
    this.choices.set(label, index);
    this.draw();
    const control = this.scroller.querySelector(`[aria-label="${label}"]`);
    const focused = control?.querySelector("[aria-pressed=true]") ?? control;
    if (focused instanceof HTMLElement) focused.focus({ preventScroll: true });
  }

  /** Entities whose elements are made when they are wanted. @param {string[]} ids @param {() => void} make */
  later(ids, make) {
    for (const id of ids) if (!this.items.has(id) && !this.within.has(id)) this.within.set(id, { make, fold: null });
  }

  /** Lines of an artifact, as soon as its text is there. @param {[string, number, number]} source @param {string} label */
  code([artifact, first, last], label) {
    const code = h("pre", { class: "tc-snippet", tabIndex: 0, "aria-label": label }, "Loading…");
    const show = () => {
      const found = this.store.artifacts.get(artifact);
      if (found && !found.lines) return;
      code.textContent = found?.lines?.slice(first - 1, last).join("\n") ?? "This record does not hold the source.";
      stop();
    };
    const stop = this.store.listen((what, id) => what === "text" && id === artifact && show());
    this.store.need(artifact, "text");
    show();
    return code;
  }

  /** @param {string} wanted */
  matching(wanted) {
    this.texts ??= textsOf(this.artifact.view.parts);
    return [...this.texts].filter(([, text]) => text.includes(wanted)).map(([id]) => id);
  }

  /**
   * What draws the charts of a document, by their kind; `body` is around all of it.
   * @param {HTMLElement} body @returns {import("./document.js").Charts}
   */
  begin(body) {
    body.classList.add("tc-document");
    return {};
  }

  /** The first element of an entity stands for it. @param {string[]} ids @param {HTMLElement} element */
  firstItem(ids, element) {
    const own = ids.filter((id) => !this.items.has(id));
    return own.length ? this.item(own, element) : element;
  }

  /** An entity of this document is chosen and shown here, others where they are. @param {string} id */
  choose(id) {
    if (!this.items.has(id)) return this.actions.goTo(id);
    this.callbacks.onSelect([id], false);
    this.reveal(this.items.get(id));
  }

  mark() {
    super.mark();
    for (const mark of this.marks ?? []) {
      const chosen = this.primary.has(mark.dataset.entity ?? "");
      mark.setAttribute("aria-pressed", String(chosen));
      if (chosen) bringIntoSight(mark);
    }
  }
}

/** The larger of each amount by name. @param {Record<string, number>} own @param {Record<string, number>} [other] */
function largest(own = {}, other = {}) {
  return Object.fromEntries(Object.entries(own).map(([name, amount]) => [name, Math.max(amount, other[name] ?? 0)]));
}

/** Scroll the table around a link sideways, and nothing else. @param {HTMLElement} mark */
function bringIntoSight(mark) {
  const frame = mark.closest(".tc-timeline-scroll");
  if (!frame) return;
  const [box, around] = [mark.getBoundingClientRect(), frame.getBoundingClientRect()];
  const names = frame.querySelector("th")?.offsetWidth ?? 0;
  if (box.left < around.left + names) frame.scrollLeft -= around.left + names - box.left + 8;
  else if (box.right > around.right) frame.scrollLeft += box.right - around.right + 8;
}
