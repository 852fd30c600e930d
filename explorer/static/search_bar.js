// Search: in the pane that was used last, with all that is found there lit up; and in all stages at once, as a list of
// lines to open.

import { counted, h, icon, iconButton, replaceKeepingFocus } from "./dom.js";
import { excerpt, findInStages } from "./hits.js";
import { nameElement } from "./names.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./hits.js").Line} Line */
/**
 * Which hit is shown, of how many, and whether there are more that were not counted.
 * @typedef {[number, number, boolean]} Found
 * @typedef {{find: (query: string) => Found, stepHit: (direction: number) => Found, focus: () => void}} Searchable
 */

/** In milliseconds: all stages are searched once nothing more was typed, or has arrived, for so long. */
const PAUSE = 120;
let bars = 0;

export class SearchBar {
  /**
   * @param {Store} store @param {() => Searchable | null} view what is searched: the explorer changes it
   * @param {(line: Line, query: string) => void} open shows a line of a text
   * @param {() => void} changed is called when something else is looked for
   */
  constructor(store, view, open, changed) {
    this.store = store;
    this.view = view;
    this.open = open;
    this.changed = changed;
    this.name = `tc-results-${++bars}`;
    /** What can be opened, as listed, and which of it is chosen: -1 for none. @type {Line[]} */
    this.lines = [];
    this.at = -1;
    this.timer = 0;
    this.input = h("input", {
      type: "search",
      placeholder: "Search all stages",
      role: "combobox",
      "aria-label": "Search",
      "aria-controls": this.name,
      "aria-expanded": "false",
      spellcheck: false,
      oninput: () => this.typed(),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.pressed(event),
    });
    this.count = h("span", { class: "tc-search-count", "aria-live": "polite" });
    this.everywhere = h("span", { class: "tc-search-count tc-search-all", "aria-live": "polite" });
    const buttons = [
      iconButton("up", "Previous in this pane (Shift-Enter)", () => this.step(-1)),
      iconButton("down", "Next in this pane (Enter)", () => this.step(1)),
      iconButton("close", "Close (Escape)", () => this.close()),
    ];
    const bar = h("div", { class: "tc-search" }, icon("search"), this.input, this.count, ...buttons, this.everywhere);
    this.list = h("div", { class: "tc-results", id: this.name, role: "listbox", "aria-label": "Found in all stages" });
    this.root = h("search", { hidden: true }, bar, this.list);
    this.stop = store.listen((what) => what === "text" && !this.root.hidden && this.searchSoon());
  }

  get query() {
    return this.root.hidden ? "" : this.input.value;
  }

  /** @param {string} [query] else what was typed before is selected */
  start(query) {
    this.root.hidden = false;
    for (const id of this.store.artifacts.keys()) this.store.need(id, "text");
    this.input.focus();
    this.input.select();
    if (query !== undefined) this.input.value = query;
    if (query !== undefined) this.typed();
  }

  close() {
    this.root.hidden = true;
    this.input.value = "";
    this.typed();
    this.view()?.focus();
  }

  /** Light up in the pane what is found there, e.g. after it shows something else. */
  refind() {
    this.show(this.view()?.find(this.query));
  }

  typed() {
    this.refind();
    this.searchSoon();
    this.changed();
  }

  // All stages

  searchSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.searchAll(), PAUSE);
  }

  searchAll() {
    const { artifacts, manifest } = this.store;
    const { query } = this;
    const chosen = this.lines[this.at];
    const found = query ? findInStages(manifest.stages, artifacts, query) : [];
    this.lines = found.flatMap(({ lines }) => lines);
    this.at = chosen ? this.lines.findIndex(({ artifact, row }) => artifact === chosen.artifact && row === chosen.row) : -1;
    let index = 0;
    const groups = found.map(({ stage, count, lines }) => {
      const rest = count - lines.length;
      const rows = lines.map((line) => this.row(line, index++, query));
      const name = `${this.name}-${stage.name}`;
      const head = h("div", { class: "tc-results-head", id: name, role: "presentation" }, h("b", {}, stage.title), ` ${counted(count, "line")}`, rest ? `, the first ${lines.length}` : "");
      return h("div", { role: "group", "aria-labelledby": name }, head, ...rows);
    });
    replaceKeepingFocus(this.list, groups);
    this.input.setAttribute("aria-expanded", String(groups.length > 0));
    this.everywhere.textContent = this.summary(found);
    this.mark();
  }

  /** @param {import("./hits.js").StageLines[]} found */
  summary(found) {
    const missing = [...this.store.artifacts.values()].filter(({ info, lines }) => info.parts.text && !lines).length;
    const count = found.reduce((sum, stage) => sum + stage.count, 0);
    const words = count ? `${counted(count, "line")} in ${counted(found.length, "stage")}` : "in no stage";
    const waits = missing ? `${counted(missing, "text")} not read yet` : "";
    return this.query ? [words, waits].filter(Boolean).join(", ") : "";
  }

  /** @param {Line} line @param {number} index @param {string} query */
  row(line, index, query) {
    const [before, hit, after] = excerpt(line, query.length);
    const code = h("span", { class: "tc-line" }, before, h("span", { class: "tc-hit" }, hit), after);
    const place = h("span", { class: "tc-place" }, nameElement(`${line.title}:${line.number}`));
    const onclick = () => {
      this.at = index;
      this.choose();
    };
    return h("div", { class: "tc-result", id: `${this.name}-${index}`, role: "option", onclick }, code, place);
  }

  mark() {
    [...this.list.querySelectorAll(".tc-result")].forEach((row, index) => {
      row.setAttribute("aria-selected", String(index === this.at));
      if (index === this.at) row.scrollIntoView({ block: "nearest" });
    });
    if (this.at >= 0) this.input.setAttribute("aria-activedescendant", `${this.name}-${this.at}`);
    else this.input.removeAttribute("aria-activedescendant");
  }

  choose() {
    this.mark();
    this.open(this.lines[this.at], this.query);
  }

  // This pane

  /** @param {number} direction */
  step(direction) {
    this.show(this.view()?.stepHit(direction));
  }

  /** @param {Found | undefined} found */
  show(found) {
    const [at, all, more] = found ?? [0, 0, false];
    const count = `${at.toLocaleString("en")} of ${all.toLocaleString("en")}${more ? "+" : ""}`;
    this.count.textContent = !this.input.value ? "" : all ? count : "none";
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    const moves = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in moves) {
      this.at = Math.max(-1, Math.min(this.at + moves[/** @type {"ArrowUp"} */ (event.key)], this.lines.length - 1));
      this.mark();
    } else if (event.key === "Enter" && this.at >= 0 && !event.shiftKey) this.choose();
    else if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") this.close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  destroy() {
    clearTimeout(this.timer);
    this.stop();
  }
}
