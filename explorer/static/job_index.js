// The index of a job: its compilations as a table and as trees, with a filter. A click opens a compilation.

import { elements, textsOf } from "./document.js";
import { counted, h } from "./dom.js";
import { flameChart } from "./flame.js";
import { rankGrid, rankGridAbove } from "./rank_grid.js";

/** @typedef {import("./document.js").Part} Part */
/** @typedef {{parts: Part[], most: Record<string, number>}} DocumentData */

export class JobIndex {
  /** @param {DocumentData} data @param {(name: string) => void} open @param {boolean} [opensBelow] Whether a record is opened below the index. */
  constructor(data, open, opensBelow = false) {
    this.opensBelow = opensBelow;
    this.isOfRanks = data.parts.some(({ kind }) => kind === "rank_grid");
    this.data = data;
    this.open = open;
    /** @type {Map<string, number>} */
    this.choices = new Map();
    this.filter = h("input", { class: "tc-job-filter", type: "search", placeholder: "Filter: a function, a file, an outcome, a reason", "aria-label": "Filter the compilations", "aria-keyshortcuts": "/" });
    this.status = h("p", { class: "tc-job-status", role: "status" });
    this.body = h("div", { class: "tc-document tc-card-list tc-job-body" });
    this.root = h("section", { class: "tcompile tc-job tc-finding", "aria-label": this.isOfRanks ? "Ranks of the job" : "Compilations of the job" }, this.isOfRanks ? null : h("div", { class: "tc-job-tools" }, this.filter, this.status), this.body);
    this.filter.addEventListener("input", () => this.later());
    this.root.addEventListener("keydown", (event) => this.onKey(event));
    this.timer = 0;
    this.draw();
  }

  /** A long list is drawn when the typing pauses. */
  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.draw(), 120);
  }

  draw() {
    const wanted = this.filter.value.trim().toLowerCase();
    const parts = wanted ? matching(this.data.parts, wanted) : this.data.parts;
    const choose = (/** @type {string} */ label, /** @type {number} */ index) => {
      this.choices.set(label, index);
      this.draw();
      const pressed = this.body.querySelector(`[aria-label="${label}"] [aria-pressed=true]`);
      if (pressed instanceof HTMLElement) pressed.focus({ preventScroll: true });
    };
    /** @type {any} */
    const actions = { open: this.open, goTo: () => {}, goToRow: () => {} };
    this.body.replaceChildren(...elements(parts, {
      actions,
      most: this.data.most,
      item: (_, element) => element,
      charts: { flame: flameChart, rank_grid: this.opensBelow ? rankGridAbove : rankGrid },
      view: { fold: foldOf, chosen: (label) => this.choices.get(label) ?? 0, choose, later: () => {}, code: () => h("pre") },
    }));
    const count = rowsIn(parts);
    this.status.textContent = wanted ? (count ? `${counted(count, "compilation")} of ${rowsIn(this.data.parts).toLocaleString("en")}` : "No compilation has these words") : "";
  }

  /** `/` goes to the filter, Escape empties it; a key here is not Jupyter's. @param {KeyboardEvent} event */
  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    event.stopPropagation();
    if (event.key === "/" && event.target !== this.filter) this.filter.focus();
    else if (event.key === "Escape" && this.filter.value) (this.filter.value = ""), this.draw();
    else return;
    event.preventDefault();
  }
}

/** A fold whose content is made when it is opened. @param {(Node | string)[]} summary @param {string[]} _ids @param {() => Node[]} content */
function foldOf(summary, _ids, content, open = false) {
  const fold = h("details", { open }, h("summary", {}, ...summary));
  const fill = () => fold.open && fold.childElementCount === 1 && fold.append(...content());
  fold.addEventListener("toggle", fill);
  fill();
  return fold;
}

/** The parts without rows, items and branches that lack the words; branches that are left are open. @param {Part[]} parts @param {string} wanted @returns {Part[]} */
function matching(parts, wanted) {
  const has = (/** @type {any} */ value) => said(value).includes(wanted);
  return parts.flatMap((part) => {
    if (part.part === "table") return [{ ...part, rows: part.rows.filter(has) }];
    if (part.part === "items") return [{ ...part, items: part.items.filter(has) }].filter(({ items }) => items.length);
    if (part.part === "choice") return [{ ...part, options: part.options.map((/** @type {[string, Part[]]} */ [name, inside]) => [name, matching(inside, wanted)]) }];
    if (part.part !== "fold") return [part];
    if (has(part.title)) return [{ ...part, is_open: true }];
    const inside = matching(part.parts, wanted);
    return inside.length ? [{ ...part, parts: inside, is_open: true }] : [];
  });
}

/** @param {any} value */
function said(value) {
  return textsOf({ ids: [""], words: value }).get("") ?? "";
}

/** The rows of the first table. @param {Part[]} parts @returns {number} */
function rowsIn(parts) {
  const choice = parts.find(({ part }) => part === "choice");
  return choice?.options[0][1].find((/** @type {Part} */ { part }) => part === "table")?.rows.length ?? 0;
}
