// Advice as cards: what was found, what shows it, what can be expected of a change, and what trying it showed.

import { changeOf } from "./break_card.js";
import { prose, statements } from "./card_parts.js";
import { h } from "./dom.js";
import { FindingView } from "./finding_view.js";

/** @typedef {import("./card_parts.js").Actions} Actions */
/** @typedef {{text: string, basis: string, links: {id: string, label: string}[]}} Evidence */
/**
 * @typedef {{ids: string[], number: number, title: string, gain: string, known: boolean, found: string,
 *   evidence: Evidence[], source: string, change: import("./break_card.js").Change | null, numbers: string,
 *   trial: {words: string, holds: boolean | null, failed: boolean} | null, call: string}} AdviceCard
 */

export class AdviceView extends FindingView {
  draw() {
    /** @type {{cards: AdviceCard[]}} */
    const { cards } = this.artifact.view;
    const shown = cards.map((card) => this.item(card.ids, adviceCard(card, this.actions)));
    this.scroller.replaceChildren(h("div", { class: "tc-card-list" }, ...shown));
  }
}

/** @param {AdviceCard} card @param {Actions} actions */
export function adviceCard(card, actions) {
  const gain = card.gain && h("span", { class: card.known ? "tc-gain" : "tc-gain tc-unknown" }, card.gain);
  return h(
    "article",
    { class: "tc-card tc-advice-card", "aria-label": card.title },
    h("div", { class: "tc-card-head" }, h("h3", {}, card.title), gain || null),
    h("p", { class: "tc-lead" }, ...prose(card.found)),
    card.evidence.length || card.source ? evidenceOf(card, actions) : null,
    card.change ? changeOf(card.change, "Change", actions) : null,
    card.numbers ? h("p", { class: "tc-why" }, h("b", {}, "Numbers "), ...prose(card.numbers)) : null,
    card.trial ? trialOf(card.trial) : null,
    card.call && !card.trial ? proofOf(card.call) : null,
  );
}

/** @param {AdviceCard} card @param {Actions} actions */
function evidenceOf({ evidence, source }, actions) {
  const items = evidence.map(({ text, basis, links }) =>
    h("li", {}, ...prose(text), " ", h("span", { class: `tc-basis tc-basis-${basis}` }, basis), linksOf(links, actions)),
  );
  if (source) items.push(h("li", {}, ...prose(source)));
  return h("ul", { class: "tc-evidence", "aria-label": "Evidence" }, ...items);
}

/** @param {Evidence["links"]} links @param {Actions} actions */
function linksOf(links, actions) {
  const buttons = links.map(({ id, label }) =>
    h("button", { class: "tc-link", type: "button", title: `Show ${id}`, onclick: () => actions.goTo(id) }, label),
  );
  return h("span", { class: "tc-evidence-links" }, ...buttons);
}

/** @param {NonNullable<AdviceCard["trial"]>} trial */
function trialOf({ words, holds, failed }) {
  const mark = failed ? "Not tried" : holds === false ? "Tried: less than claimed" : "Tried";
  return h("p", { class: holds === false || failed ? "tc-trial tc-short" : "tc-trial" }, h("b", {}, mark), " ", ...prose(words));
}

/** @param {string} call */
function proofOf(call) {
  return h("div", { class: "tc-proof" }, h("span", {}, "Measure it on this call:"), statements([call]));
}
