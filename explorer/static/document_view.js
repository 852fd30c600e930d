// A finding as a document: its parts one below the other, those that stand for entities chosen and lit up.

import { elements } from "./document.js";
import { h } from "./dom.js";
import { FindingView } from "./finding_view.js";

export class DocumentView extends FindingView {
  draw() {
    const body = h("div", { class: "tc-card-list" });
    const actions = { ...this.actions, goTo: (/** @type {string} */ id) => this.choose(id) };
    const place = { actions, charts: this.begin(body), item: (/** @type {string[]} */ ids, /** @type {HTMLElement} */ element) => this.firstItem(ids, element) };
    body.append(...elements(this.artifact.view.parts, place));
    this.scroller.replaceChildren(body);
    /** Links that show which entity is chosen. @type {HTMLElement[]} */
    this.marks = [...this.scroller.querySelectorAll("button")].filter((button) => button.dataset.entity);
    this.mark();
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

/** Scroll the table around a link sideways, and nothing else. @param {HTMLElement} mark */
function bringIntoSight(mark) {
  const frame = mark.closest(".tc-timeline-scroll");
  if (!frame) return;
  const [box, around] = [mark.getBoundingClientRect(), frame.getBoundingClientRect()];
  const names = frame.querySelector("th")?.offsetWidth ?? 0;
  if (box.left < around.left + names) frame.scrollLeft -= around.left + names - box.left + 8;
  else if (box.right > around.right) frame.scrollLeft += box.right - around.right + 8;
}
