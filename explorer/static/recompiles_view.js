// Every compilation of every function by call, and the recompilations as cards.

import { lineLink } from "./card_parts.js";
import { h } from "./dom.js";
import { FindingView } from "./finding_view.js";
import { recompileCard } from "./recompile_card.js";

/** @typedef {import("./card_parts.js").LineSpot} LineSpot */
/**
 * @typedef {{state: string, frame: string, words: string, blamed: string, id: string, graph: string}} Mark
 * @typedef {{name: string, at: LineSpot, cells: Mark[][]}} Row
 */

/** What a mark says. @type {Record<string, string>} */
const SIGNS = { none: "", compiled: "new", recompiled: "again", reused: "=", limit: "gave up", plain: "plain", closed: "no more", skipped: "skipped", failed: "failed" };

/** @type {Record<string, string>} */
const MEANINGS = {
  compiled: "compiled",
  recompiled: "compiled again",
  reused: "nothing compiled",
  limit: "the limit is reached",
  plain: "plain Python",
  closed: "nothing is compiled any more",
  skipped: "left to Python",
  failed: "could not be compiled",
};

export class RecompilesView extends FindingView {
  draw() {
    /** @type {{calls: {name: string, at: LineSpot | null}[], rows: Row[], cards: import("./recompile_card.js").Recompile[]}} */
    const { calls, rows, cards } = this.artifact.view;
    const shown = cards.map((card) => this.item(card.ids, recompileCard(card, this.actions)));
    const none = cards.length ? null : h("p", { class: "tc-none" }, "Nothing was compiled again.");
    this.head = h("div", {}, this.timeline(calls, rows), legend(rows));
    this.scroller.before(this.head);
    /** @type {HTMLElement[]} */
    this.marks = [...this.head.querySelectorAll("button")].filter((button) => button.dataset.card);
    this.scroller.replaceChildren(h("div", { class: "tc-card-list" }, none, ...shown));
  }

  /** @param {{name: string, at: LineSpot | null}[]} calls @param {Row[]} rows */
  timeline(calls, rows) {
    const heads = calls.map(({ name, at }, index) => {
      const told = calls.slice(0, index).findLast((call) => call.at)?.at?.name;
      return h("th", { scope: "col" }, name, at && at.name !== told ? h("div", {}, lineLink(at, this.actions)) : null);
    });
    const body = rows.map(({ name, at, cells }) =>
      h("tr", {}, h("th", { scope: "row" }, h("b", {}, name), " ", lineLink(at, this.actions)), ...cells.map((marks) => this.cell(marks))),
    );
    const head = h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "call"), ...heads));
    const table = h("table", { class: "tc-timeline", "aria-label": "Compilations by call" }, head, h("tbody", {}, ...body));
    return h("div", { class: "tc-timeline-scroll" }, table);
  }

  /** @param {Mark[]} marks */
  cell(marks) {
    return h("td", {}, ...marks.map((mark) => this.button(mark)));
  }

  /** What a mark leads to: the card of the recompilation, else the graph. @param {Mark} mark */
  button({ state, frame, words, blamed, id, graph }) {
    const sign = [h("span", {}, SIGNS[state]), ...(blamed ? [" ", h("code", {}, blamed)] : [])];
    const style = `tc-mark tc-${state}`;
    if (!id && !graph) return h("span", { class: style, title: words }, ...sign);
    const onclick = () => (id ? this.choose(id) : this.actions.open(graph));
    const label = frame ? `${frame}: ${words}` : words;
    return h("button", { class: style, type: "button", title: label, "aria-label": `${[SIGNS[state], blamed].filter(Boolean).join(" ")}, ${label}`, "data-card": id, onclick }, ...sign);
  }

  /** @param {string} id */
  choose(id) {
    this.callbacks.onSelect([id], false);
    this.reveal(this.items.get(id));
  }

  /** Scroll the timeline, and nothing else, to a mark. @param {HTMLElement} mark */
  bringIntoSight(mark) {
    const frame = this.head?.firstElementChild;
    if (!frame) return;
    const [box, around] = [mark.getBoundingClientRect(), frame.getBoundingClientRect()];
    const names = frame.querySelector("th")?.offsetWidth ?? 0;
    if (box.left < around.left + names) frame.scrollLeft -= around.left + names - box.left + 8;
    else if (box.right > around.right) frame.scrollLeft += box.right - around.right + 8;
  }

  mark() {
    super.mark();
    for (const mark of this.marks ?? []) {
      const chosen = this.primary.has(mark.dataset.card ?? "");
      mark.setAttribute("aria-pressed", String(chosen));
      if (chosen) this.bringIntoSight(mark);
    }
  }
}

/** What the marks that are there mean. @param {Row[]} rows */
function legend(rows) {
  const states = new Set(rows.flatMap(({ cells }) => cells.flat().map(({ state }) => state)));
  const items = Object.entries(MEANINGS)
    .filter(([state]) => states.has(state))
    .map(([state, words]) => h("span", { class: "tc-legend-item" }, h("span", { class: `tc-mark tc-${state}` }, SIGNS[state]), words));
  return h("div", { class: "tc-legend" }, ...items);
}
