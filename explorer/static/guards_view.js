// The guards of each compilation, as a tree by what they are about, or those that cost most or failed in one list.

import { lineLink, prose, pythonLine } from "./card_parts.js";
import { counted, h, secondsInWords } from "./dom.js";
import { FindingView } from "./finding_view.js";

/** @typedef {import("./card_parts.js").LineSpot} LineSpot */
/**
 * @typedef {{id: string, words: string, kind: string, code: string[], at: LineSpot | null, seconds: number | null,
 *   failed: number}} Guard
 * @typedef {{name: string, count: number, failed: number, seconds: number, guards: Guard[], branches: Branch[]}} Branch
 * @typedef {{range: string, source: string, hint: number | null,
 *   whys: {words: string, at: LineSpot | null, code: string}[]}} Symbol
 * @typedef {{frame: string, function: string, at: LineSpot, seconds: number | null, failed: number, symbols: Symbol[],
 *   own: Branch, inside: Branch}} Compilation
 */

/** So many guards are shown without being asked for, and so many of a sorted list at once. */
const FEW = 24;
const FEW_IN_BRANCH = 4;
const MANY = 100;

const ORDERS = { argument: "By argument", cost: "By cost", failed: "Failed" };

export class GuardsView extends FindingView {
  draw() {
    this.order ??= "argument";
    this.items.clear();
    this.within.clear();
    /** @type {Compilation[]} */
    const frames = this.artifact.view.frames;
    /** @type {Map<string, Guard>} */
    this.guards = new Map(frames.flatMap(({ own, inside }) => [...guardsOf(own), ...guardsOf(inside)]).map((guard) => [guard.id, guard]));
    const content = this.order === "argument" ? frames.map((frame, index) => this.compilation(frame, index === 0)) : [this.sorted()];
    this.scroller.replaceChildren(this.orders(), h("div", { class: "tc-guards" }, ...content));
    this.mark();
  }

  orders() {
    const all = [...(this.guards ?? new Map()).values()];
    const has = { argument: true, cost: all.some(({ seconds }) => seconds), failed: all.some(({ failed }) => failed) };
    const offered = /** @type {(keyof typeof ORDERS)[]} */ (Object.keys(ORDERS)).filter((order) => has[order]);
    const buttons = offered.map((order) => {
      const onclick = () => {
        this.order = order;
        this.draw();
        /** @type {HTMLElement} */ (this.scroller.querySelector(".tc-modes [aria-pressed=true]")).focus();
      };
      return h("button", { type: "button", "aria-pressed": String(this.order === order), onclick }, ORDERS[order]);
    });
    const choice = h("div", { class: "tc-modes", role: "group", "aria-label": "Order of the guards" }, ...buttons);
    return h("div", { class: "tc-finding-tools" }, offered.length > 1 ? choice : null);
  }

  // By argument

  /** @param {Compilation} frame @param {boolean} open */
  compilation({ frame, function: name, at, seconds, failed, symbols, own, inside }, open) {
    const summary = [
      h("b", {}, name),
      " ",
      h("span", { class: "tc-place" }, frame),
      h("span", { class: "tc-where" }, ` ${counted(own.count, "guard")} + ${inside.count.toLocaleString("en")} inside`),
      ...this.facts(seconds, failed, "one check of all of them, with cold caches"),
    ];
    const content = () => [
      h("p", { class: "tc-why" }, "Compiled from ", lineLink(at, this.actions), ". Used again only if all of this holds:"),
      ...timesInWords(seconds, [...guardsOf(own), ...guardsOf(inside)]),
      ...(symbols.length ? [this.symbols(symbols)] : []),
      ...this.content(own, own.count <= FEW),
      this.fold([`${counted(inside.count, "guard")} on the insides of modules and of torch`], idsOf(inside), () => this.content(inside, false)),
    ];
    const section = this.fold(summary, [...idsOf(own), ...idsOf(inside)], content, open);
    section.classList.add("tc-compilation");
    return section;
  }

  /** @param {Symbol[]} symbols */
  symbols(symbols) {
    const rows = symbols.map(({ range, source, hint, whys }) =>
      h(
        "li",
        {},
        h("code", { class: "tc-range" }, range),
        h("span", {}, " ", h("code", {}, source), hint === null ? "" : `, ${hint} when it was compiled`),
        ...whys.map(({ words, at, code }) =>
          h("div", { class: "tc-why" }, `${words} `, at ? lineLink(at, this.actions) : null, " ", pythonLine(code)),
        ),
      ),
    );
    return h("section", { class: "tc-symbols" }, h("h4", {}, "Left open"), h("ul", {}, ...rows));
  }

  /** Its own guards, then its branches. @param {Branch} branch @param {boolean} open @returns {Node[]} */
  content({ guards, branches }, open) {
    const rows = guards.map((guard) => this.guard(guard));
    const below = branches.map((branch) => {
      if (branch.count === 1) return h("ul", { class: "tc-guard-list" }, this.guard(branch.guards[0]));
      const summary = [h("code", {}, branch.name), h("span", { class: "tc-count" }, ` ${branch.count}`), ...this.facts(branch.seconds, branch.failed, "all of them, one by one")];
      const fold = this.fold(summary, idsOf(branch), () => this.content(branch, open), open || branch.failed > 0 || branch.count <= FEW_IN_BRANCH);
      fold.classList.add("tc-branch");
      return fold;
    });
    return rows.length ? [h("ul", { class: "tc-guard-list" }, ...rows), ...below] : below;
  }

  /** @param {Guard} guard */
  guard({ id, words, kind, code, at, seconds, failed }) {
    const asked = at ? lineLink(at, this.actions) : null;
    const check = h("pre", { class: "tc-snippet", hidden: true }, code.join("\n"));
    const toggle = () => {
      check.hidden = !check.hidden;
      button.setAttribute("aria-expanded", String(!check.hidden));
    };
    const title = `The check as code: ${kind}`;
    const button = h("button", { class: "tc-check", type: "button", title, "aria-expanded": "false", onclick: toggle }, "code");
    const facts = h("span", { class: "tc-guard-facts" }, button, ...this.facts(seconds, failed, "this check"), asked);
    return this.item(id, h("li", { class: "tc-guard" }, h("div", { class: "tc-guard-line" }, h("span", {}, ...prose(words)), facts), check));
  }

  /** @param {number | null} seconds @param {number} failed @param {string} what @returns {Node[]} */
  facts(seconds, failed, what) {
    const cost = seconds ? [h("span", { class: "tc-cost", title: `What ${what} costs` }, secondsInWords(seconds))] : [];
    const count = failed ? [h("span", { class: "tc-failed" }, `failed ${counted(failed, "time")}`)] : [];
    return [...count, ...cost];
  }

  // In one list

  sorted() {
    const all = [...(this.guards ?? new Map()).values()];
    const by = this.order === "cost" ? "seconds" : "failed";
    const found = all.filter((guard) => guard[by]).sort((a, b) => Number(b[by]) - Number(a[by]));
    const list = h("ul", { class: "tc-guard-list" });
    const ids = new Map(all.map(({ id }) => [id, id.replace(/^.*\[(.*)\].*$/, "$1")]));
    const show = (/** @type {number} */ from) => {
      for (const guard of found.slice(from, from + MANY)) {
        const row = this.guard(guard);
        row.prepend(h("span", { class: "tc-place" }, ids.get(guard.id) ?? ""));
        list.append(row);
      }
      const left = found.length - from - MANY;
      more.hidden = left <= 0;
      more.textContent = `${left} more`;
      more.onclick = () => show(from + MANY);
      this.mark();
    };
    const more = h("button", { class: "tc-more", type: "button" });
    show(0);
    return h("div", {}, list, more);
  }

  /** @param {string} wanted */
  matching(wanted) {
    const known = [...(this.guards ?? new Map()).values()].filter(({ id }) => this.items.has(id) || this.within.has(id));
    return known.filter(({ words, code }) => `${words}\n${code.join("\n")}`.toLowerCase().includes(wanted)).map(({ id }) => id);
  }
}

/** @param {Branch} branch @returns {Guard[]} */
function guardsOf({ guards, branches }) {
  return [...guards, ...branches.flatMap(guardsOf)];
}

/**
 * Why the time of all is not the sum of the times of each: both are measured, in different ways.
 * @param {number | null} whole seconds of one check of all @param {Guard[]} guards @returns {HTMLElement[]}
 */
function timesInWords(whole, guards) {
  const timed = guards.flatMap(({ seconds }) => (seconds === null ? [] : [seconds]));
  if (!whole || !timed.length) return [];
  const sum = secondsInWords(timed.reduce((total, each) => total + each, 0));
  const words = `One check of all takes ${secondsInWords(whole)} with the CPU's caches emptied before. Each alone, caches warm: ${sum} in sum, of the ${counted(timed.length, "guard")} that could be timed.`;
  return [h("p", { class: "tc-why" }, words)];
}

/** @param {Branch} branch */
function idsOf(branch) {
  return guardsOf(branch).map(({ id }) => id);
}
