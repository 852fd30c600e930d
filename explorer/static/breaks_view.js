// Graph breaks as cards, and below them what was left to Python without a break.

import { breakCard } from "./break_card.js";
import { lineLink, prose } from "./card_parts.js";
import { h } from "./dom.js";
import { FindingView } from "./finding_view.js";

/** @typedef {{function: string, words: string, at: import("./card_parts.js").LineSpot | null}} Note */

export class BreaksView extends FindingView {
  draw() {
    /** @type {{cards: import("./break_card.js").Break[], notes: Note[], title: string}} */
    const { cards, notes, title } = this.artifact.view;
    const shown = cards.map((card) => this.item(card.ids, breakCard(card, this.actions)));
    this.scroller.replaceChildren(h("div", { class: "tc-card-list" }, ...shown, this.notes(notes, title)));
  }

  /** @param {Note[]} notes @param {string} title */
  notes(notes, title) {
    if (!notes.length) return h("div");
    const items = notes.map(({ function: name, words, at }) =>
      h("li", {}, h("b", {}, name), " ", at ? lineLink(at, this.actions) : "", " ", ...prose(words)),
    );
    return h("section", { class: "tc-notes" }, h("p", { class: "tc-why" }, title), h("ul", {}, ...items));
  }
}
