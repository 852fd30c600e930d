// The ranks of a job in mesh order: a cell each, coloured by the group of equal ranks. A click tells of a rank and opens
// its record, a click on another one shows how the two differ.

import { elements } from "./document.js";
import { h } from "./dom.js";

/** @typedef {import("./document.js").Part} Part */
/**
 * @typedef {{letter: string, ranks: string, first: number, facts: string[]}} Group
 * @typedef {{mesh: [string, number][], origin: string, lack: string, likeness: string, group: number[], state: number[], like: Record<string, number>,
 *   failed: Record<string, string>, groups: Group[], differences: Record<string, Part[]>}} Ranks
 */

const COLUMNS = 64;
const STATES = ["simulated", "like", "unknown", "failed"];

/** @param {Ranks} data @param {import("./document.js").Place} place @param {Part} table */
export function rankGrid(data, place, table) {
  return new RankGrid(data, place, table, false).root;
}

/** The grid above the record that a click opens. @param {Ranks} data @param {import("./document.js").Place} place @param {Part} table */
export function rankGridAbove(data, place, table) {
  return new RankGrid(data, place, table, true).root;
}

class RankGrid {
  /** @param {Ranks} data @param {import("./document.js").Place} place @param {Part} table @param {boolean} opensBelow Whether a click opens the record, below the grid. */
  constructor(data, place, table, opensBelow) {
    this.data = data;
    this.place = place;
    this.opensBelow = opensBelow;
    this.at = data.groups[0]?.first ?? 0;
    /** The ranks that were clicked last, the latest first. @type {number[]} */
    this.chosen = [];
    /** @type {HTMLElement[]} */
    this.cells = [];
    /** @type {number[][]} */
    this.rows = [];
    const id = `tc-ranks-${Math.random().toString(36).slice(2)}`;
    this.id = id;
    this.grid = h("div", { class: `tc-rank-grid${data.group.length <= COLUMNS ? " tc-rank-few" : ""}`, role: "grid", tabIndex: 0, "aria-label": `${data.group.length.toLocaleString("en")} ranks in mesh order`, "aria-describedby": `${id}-keys` });
    this.said = h("p", { class: "tc-rank-said", role: "status" });
    this.panel = h("div", { class: "tc-rank-panel tc-document" });
    const keys = h("p", { class: "tc-rank-keys", id: `${id}-keys` }, "Click a rank for its record, then another one to see how they differ. Keys: arrows and Enter; Escape forgets the first.");
    const behind = h("details", { class: "tc-rank-table" }, h("summary", {}, "The groups as a table"), ...elements([table], place));
    this.draw();
    this.root = h("div", { class: "tc-ranks" }, this.legend(), this.grid, this.said, this.panel, keys, behind);
    this.listen();
    this.move(this.at);
  }

  // The grid

  draw() {
    const { mesh, group } = this.data;
    const inner = mesh.length > 1 ? mesh[mesh.length - 1][1] : Math.min(group.length, 8);
    const outer = mesh.length > 2 ? mesh[0][1] : 1;
    const columns = inner * Math.max(Math.floor(Math.min(COLUMNS, group.length) / inner), 1);
    const size = group.length / outer;
    for (let part = 0; part < outer; part++) {
      if (outer > 1) this.grid.append(h("div", { class: "tc-rank-part", role: "presentation" }, `${mesh[0][0]} ${part}`));
      for (let start = part * size; start < (part + 1) * size; start += columns) this.row(start, Math.min(start + columns, (part + 1) * size), inner);
    }
  }

  /** @param {number} start @param {number} end @param {number} inner */
  row(start, end, inner) {
    const ranks = Array.from({ length: end - start }, (_, place) => start + place);
    const cells = ranks.map((rank) => this.cell(rank, rank > start && (rank - start) % inner === 0));
    this.rows.push(ranks);
    this.grid.append(h("div", { class: "tc-rank-row", role: "row" }, h("span", { class: "tc-rank-number", "aria-hidden": "true" }, String(start)), ...cells));
  }

  /** @param {number} rank @param {boolean} isApart */
  cell(rank, isApart) {
    const { group, state } = this.data;
    const few = group.length <= COLUMNS ? String(rank) : "";
    const names = `tc-rank tc-rank-${STATES[state[rank]]}${isApart ? " tc-rank-apart" : ""}`;
    const cell = h("span", { class: names, role: "gridcell", id: `${this.id}-${rank}`, "data-rank": String(rank), "data-group": String(colour(group[rank])), "aria-label": this.words(rank), title: this.words(rank) }, few);
    this.cells[rank] = cell;
    return cell;
  }

  legend() {
    const { groups, state } = this.data;
    const keys = groups.map(({ letter, ranks }, index) => key(`tc-rank-simulated`, index, `${letter}: ${ranks}`));
    if (state.includes(1)) keys.push(key("tc-rank-like", 0, `not simulated; ${this.data.likeness} one that was`));
    if (state.includes(2)) keys.push(key("tc-rank-unknown", -1, this.data.lack));
    if (state.includes(3)) keys.push(key("tc-rank-failed", -1, "failed"));
    return h("div", { class: "tc-rank-legend" }, ...keys);
  }

  /** What is known of a rank, in words. @param {number} rank */
  words(rank) {
    const { group, groups, state, like, likeness, failed, origin } = this.data;
    const where = this.coordinates(rank);
    const name = `rank ${rank}${where ? ` (${where})` : ""}`;
    if (state[rank] === 3) return `${name}: failed, ${failed[rank] ?? ""}`;
    if (state[rank] === 2) return `${name}: ${this.data.lack}`;
    const letter = `group ${groups[group[rank]].letter}`;
    return state[rank] === 1 ? `${name}: not simulated; ${likeness} rank ${like[rank]}, ${letter}` : `${name}: ${origin}, ${letter}`;
  }

  /** @param {number} rank */
  coordinates(rank) {
    let rest = rank;
    const found = [...this.data.mesh].reverse().map(([name, size]) => {
      const place = rest % size;
      rest = Math.floor(rest / size);
      return `${name} ${place}`;
    });
    return found.reverse().join(", ");
  }

  // What is chosen

  listen() {
    this.grid.addEventListener("click", (event) => {
      const cell = event.target instanceof HTMLElement ? event.target.closest(".tc-rank") : null;
      if (cell instanceof HTMLElement) this.choose(Number(cell.dataset.rank));
    });
    this.grid.addEventListener("keydown", (event) => this.pressed(event));
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const row = this.rows.findIndex((ranks) => ranks.includes(this.at));
    const column = this.rows[row].indexOf(this.at);
    const above = this.rows[Math.max(row - 1, 0)];
    const below = this.rows[Math.min(row + 1, this.rows.length - 1)];
    /** @type {Record<string, number>} */
    const places = {
      ArrowLeft: this.at - 1,
      ArrowRight: this.at + 1,
      ArrowUp: above[Math.min(column, above.length - 1)],
      ArrowDown: below[Math.min(column, below.length - 1)],
      Home: 0,
      End: this.cells.length - 1,
    };
    if (event.key in places) this.move(places[event.key]);
    else if (event.key === "Enter" || event.key === " ") this.choose(this.at);
    else if (event.key === "Escape" && this.chosen.length) this.forget();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {number} rank */
  move(rank) {
    this.cells[this.at]?.classList.remove("tc-rank-at");
    this.at = Math.min(Math.max(rank, 0), this.cells.length - 1);
    this.cells[this.at].classList.add("tc-rank-at");
    this.grid.setAttribute("aria-activedescendant", this.cells[this.at].id);
    this.said.textContent = `${this.words(this.at).replace(/^r/, "R")}.`;
  }

  forget() {
    this.chosen = [];
    this.mark();
    this.panel.replaceChildren();
  }

  /** @param {number} rank */
  choose(rank) {
    this.move(rank);
    const last = this.chosen[0];
    this.chosen = last === undefined || last === rank ? [rank] : [rank, last];
    this.mark();
    this.panel.replaceChildren(...this.told(rank), ...(this.chosen.length > 1 ? this.difference(last, rank) : []));
    if (this.opensBelow && this.data.state[rank] < 2) this.place.actions.open(this.recordOf(rank));
  }

  /** The name of the record that stands for a rank: a page has that of the first of its group. @param {number} rank */
  recordOf(rank) {
    const { state, like, groups, group } = this.data;
    if (!this.opensBelow) return `rank ${groups[group[rank]].first}`;
    return `rank ${state[rank] === 1 ? like[rank] : rank}`;
  }

  mark() {
    for (const cell of this.cells) cell.removeAttribute("aria-selected");
    for (const rank of this.chosen) this.cells[rank].setAttribute("aria-selected", "true");
  }

  /** @param {number} rank */
  told(rank) {
    const group = this.data.groups[this.data.group[rank]];
    if (this.data.state[rank] === 3) return [h("p", {}, h("b", {}, `Rank ${rank}`), ` failed: ${this.data.failed[rank] ?? ""}`)];
    if (!group) return [h("p", {}, "Nothing is known of this rank. Simulate it with ", h("code", {}, `--rank ${rank}`), ".")];
    const [weights, peak, sent] = group.facts;
    const facts = [weights && `${weights} of weights`, peak && `${peak} of memory at the peak`, sent === "none" ? "no collectives" : sent].filter(Boolean).join("; ");
    const name = this.recordOf(rank);
    const why = this.data.state[rank] === 1 ? ", which stands for it" : ", which is equal";
    const open = h("button", { class: "tc-button tc-text", type: "button", onclick: () => this.place.actions.open(name) }, `Open the record of ${name}${name === `rank ${rank}` ? "" : why}`);
    return [h("p", {}, h("b", {}, `Rank ${rank}`), ` of group ${group.letter} (${group.ranks}): ${facts}. `, this.opensBelow ? "" : open)];
  }

  /** @param {number} one @param {number} other */
  difference(one, other) {
    const { group, differences } = this.data;
    const pair = [group[one], group[other]].sort((a, b) => a - b);
    const heading = h("h3", {}, `Rank ${other} against rank ${one}`);
    if (pair[0] < 0) return [heading, h("p", {}, "Nothing is known of one of them, and of how they differ.")];
    if (pair[0] === pair[1]) return [heading, h("p", {}, "They are equal: graphs, code and collectives.")];
    const parts = differences[pair.join(",")];
    return [heading, ...(parts?.length ? elements(parts, this.place) : [h("p", {}, "They differ in what no stage shows.")])];
  }
}

/** @param {number} group */
function colour(group) {
  return group < 0 ? -1 : group % 8;
}

/** @param {string} name @param {number} index @param {string} words */
function key(name, index, words) {
  return h("span", { class: "tc-rank-key" }, h("span", { class: `tc-rank ${name}`, "data-group": String(colour(index)), "aria-hidden": "true" }), words);
}
