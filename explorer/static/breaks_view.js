// Graph breaks as cards, and below them what was left to Python without a break.

import { breakCard } from "./break_card.js";
import { lineLink, prose } from "./card_parts.js";
import { h } from "./dom.js";
import { FindingView } from "./finding_view.js";

/** @typedef {{function: string, words: string, at: import("./card_parts.js").LineSpot | null}} Note */

export class BreaksView extends FindingView {
  draw() {
    /** @type {{cards: import("./break_card.js").Break[], notes: Note[]}} */
    const { cards, notes } = this.artifact.view;
    const shown = cards.map((card) => this.item(card.ids, breakCard(card, this.actions)));
    const none = cards.length ? null : h("p", { class: "tc-none" }, "No graph broke.");
    this.scroller.replaceChildren(h("div", { class: "tc-card-list" }, none, ...shown, this.notes(notes, cards.length > 0)));
  }

  /** @param {Note[]} notes @param {boolean} below whether there are breaks */
  notes(notes, below) {
    if (!notes.length) return h("div");
    const items = notes.map(({ function: name, words, at }) =>
      h("li", {}, h("b", {}, name), " ", at ? lineLink(at, this.actions) : "", " ", ...prose(words)),
    );
    const title = below ? "Not compiled, without a break" : "Not compiled";
    return h("section", { class: "tc-notes" }, h("h4", {}, title), h("ul", {}, ...items));
  }
}
