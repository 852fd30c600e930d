// A pane: what it shows is chosen in its header; text, graph or a comparison fill it.

import { comparison } from "./comparison.js";
import { counted, h, icon, iconButton, replaceKeepingFocus } from "./dom.js";
import { TextView } from "./text_view.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").Artifact} Artifact */
/** @typedef {import("./store.js").StageInfo} StageInfo */
/** @typedef {import("./store.js").BreakInfo} BreakInfo */
/** @typedef {"text" | "graph" | "diff"} Mode */
/** @typedef {TextView} View */
/**
 * What a pane asks of the explorer around it.
 * @typedef {{select: (ids: string[], add: boolean, pane: string) => void, hover: (ids: string[]) => void,
 *   showBreaks: (items: BreakInfo[]) => void, changed: () => void, activate: (pane: Pane) => void,
 *   split: (pane: Pane) => void, close: (pane: Pane) => void}} PaneHost
 */

const GRAPH_COLOURS = 6;

let panes = 0;

export class Pane {
  /** @param {Store} store @param {PaneHost} host @param {boolean} home the pane of the user's source */
  constructor(store, host, home) {
    this.name = `pane-${++panes}`;
    this.store = store;
    this.host = host;
    this.home = home;
    this.artifact = "";
    this.other = "";
    this.stage = "";
    /** Whether anything but the first was asked for: until then, the pane of the source shows what comes first. */
    this.chosen = false;
    /** @type {Mode} */
    this.mode = "text";
    /** @type {View | null} */
    this.view = null;
    this.key = "";
    this.header = h("div", { class: "tc-pane-header" });
    this.searchBar = this.makeSearchBar();
    this.legend = h("div", { class: "tc-legend" });
    this.body = h("div", { class: "tc-pane-body" });
    this.root = h("section", {
      class: home ? "tc-pane tc-home" : "tc-pane", "aria-label": home ? "Source" : "Stage", tabIndex: -1,
      onfocusin: () => host.activate(this), onpointerdown: () => host.activate(this),
    }, this.header, this.searchBar, this.legend, this.body);
  }

  // What to show

  /** @param {string} artifact @param {Mode} [mode] */
  show(artifact, mode = this.mode === "diff" ? "text" : this.mode) {
    const info = this.store.artifacts.get(artifact)?.info;
    if (!info) return;
    this.artifact = artifact;
    this.stage = info.stage;
    this.mode = mode === "graph" && !info.drawable ? "text" : mode;
    this.chosen = true;
    this.refresh();
  }

  /** Open a stage: the artifact most of the selection is in, else the first; or why there is none. @param {string} name */
  showStage(name) {
    const stage = this.store.stage(name);
    if (!stage) return;
    const best = this.bestLinked(stage) ?? stage.artifacts[0];
    if (best) return this.show(best.id);
    this.artifact = "";
    this.stage = name;
    this.refresh();
  }

  /** @param {StageInfo} stage */
  bestLinked(stage) {
    const amount = (/** @type {{id: string}} */ artifact) => this.store.linkedIn.get(artifact.id) ?? 0;
    const best = stage.artifacts.reduce((most, artifact) => (amount(artifact) > amount(most) ? artifact : most), stage.artifacts[0]);
    return best && amount(best) ? best : undefined;
  }

  /** Compare with another artifact. @param {string} [other] */
  compare(other) {
    this.other = other ?? this.counterpart();
    if (!this.other) return;
    this.mode = "diff";
    this.refresh();
  }

  /** What the shown artifact is most naturally compared with: the one before it of the same graph and direction. */
  counterpart() {
    const all = [...this.store.artifacts.values()].map((artifact) => artifact.info);
    const at = all.findIndex((info) => info.id === this.artifact);
    const before = all.slice(0, at).reverse();
    const alike = before.find((info) => bracketed(info.id) === bracketed(this.artifact));
    const related = before.find((info) => info.graph === all[at]?.graph && info.language === all[at].language);
    return (alike ?? related ?? before[0] ?? all[at + 1])?.id ?? "";
  }

  /** Show what is there now; makes the view anew only if its content is new. */
  refresh() {
    if (this.home && !(this.chosen && this.store.artifacts.has(this.artifact))) this.artifact = this.store.manifest.home[0] ?? "";
    this.stage = this.store.artifacts.get(this.artifact)?.info.stage ?? this.stage;
    this.renderHeader();
    const key = this.contentKey();
    if (key !== this.key) {
      this.key = key;
      this.renderBody();
    }
    this.host.changed();
  }

  /** The artifacts that the view is made of. */
  parts() {
    return this.mode === "diff" ? [this.other, this.artifact] : [this.artifact];
  }

  contentKey() {
    const have = this.parts().map((id) => JSON.stringify(this.store.artifacts.get(id)?.have ?? null));
    return [this.mode, this.stage, ...this.parts(), ...have, this.home ? JSON.stringify(this.marks()) : ""].join("|");
  }

  marks() {
    return [this.store.manifest.landed[this.artifact] ?? {}, this.store.manifest.breaks.map((item) => item.place)];
  }

  renderBody() {
    const scroll = this.body.querySelector(".tc-scroll")?.scrollTop ?? 0;
    const before = this.shownId;
    const focused = this.body.contains(document.activeElement) || document.activeElement === this.root;
    this.view?.destroy();
    this.view = null;
    this.body.replaceChildren();
    this.renderLegend();
    if (focused) this.root.focus({ preventScroll: true });
    if (!this.artifact) return this.body.append(this.absent());
    if (!this.arrived()) return this.body.append(waiting());
    this.view = this.makeView();
    if (focused) this.view.focus();
    this.shownId = this.artifact + this.mode;
    const scroller = this.body.querySelector(".tc-scroll");
    if (scroller && before === this.shownId) scroller.scrollTop = scroll;
    this.view.select(this.store.primary, this.store.linked, before !== this.shownId);
    this.renderHeader();
  }

  /** Whether all parts are there; asks for those that are not. */
  arrived() {
    let all = true;
    for (const id of this.parts()) {
      const artifact = this.store.artifacts.get(id);
      this.store.need(id, "entities");
      if (this.mode !== "graph") this.store.need(id, "text");
      all &&= this.mode === "graph" ? Boolean(artifact?.entities) : Boolean(artifact?.lines);
    }
    return all;
  }

  /** @returns {View} */
  makeView() {
    const callbacks = {
      onSelect: (/** @type {string[]} */ ids, /** @type {boolean} */ add) => this.host.select(ids, add, this.name),
      onHover: (/** @type {string[]} */ ids) => this.host.hover(ids),
    };
    const [first, second] = this.parts().map((id) => /** @type {Artifact} */ (this.store.artifacts.get(id)));
    if (this.mode === "diff") return this.makeComparison(callbacks, first, second);
    return new TextView(this.body, callbacks, first, { tints: this.tints(), breaks: this.breaks() });
  }

  /** @param {import("./text_view.js").Callbacks} callbacks @param {Artifact} left @param {Artifact} right */
  makeComparison(callbacks, left, right) {
    const { artifact, looks } = comparison(left, right);
    const changed = looks.classes?.filter(Boolean).length ?? 0;
    this.legend.replaceChildren(
      h("span", { class: "tc-legend-item tc-removed" }, "−", h("b", {}, left.info.id), h("small", {}, left.info.title)),
      h("span", { class: "tc-legend-item tc-added" }, "+", h("b", {}, right.info.id), h("small", {}, right.info.title)),
      h("span", { class: "tc-legend-item" }, changed ? `${counted(changed, "line")} differ` : "no difference"),
    );
    return new TextView(this.body, callbacks, artifact, looks);
  }

  /** @returns {Map<number, string[]>} */
  tints() {
    const tints = new Map();
    Object.entries(this.store.manifest.landed[this.artifact] ?? {}).forEach(([graph, rows]) => {
      for (const row of rows) tints.set(row - 1, [...(tints.get(row - 1) ?? []), this.colour(graph)]);
    });
    return tints;
  }

  /** @param {string} graph @returns {string} CSS class of its colour: the same in every source file */
  colour(graph) {
    const graphs = Object.values(this.store.manifest.landed).flatMap((byGraph) => Object.keys(byGraph));
    return `tc-g${[...new Set(graphs)].sort().indexOf(graph) % GRAPH_COLOURS}`;
  }

  breaks() {
    /** @type {Map<number, BreakInfo[]>} */
    const byRow = new Map();
    for (const item of this.store.manifest.breaks) {
      if (item.place?.[0] !== this.artifact) continue;
      byRow.set(item.place[1] - 1, [...(byRow.get(item.place[1] - 1) ?? []), item]);
    }
    const marks = [...byRow].map(([row, items]) => /** @type {const} */ ([row, { title: items.map(breakInWords).join("\n\n"), open: () => this.host.showBreaks(items) }]));
    return new Map(marks);
  }

  renderLegend() {
    const graphs = Object.keys(this.store.manifest.landed[this.artifact] ?? {});
    const frames = this.store.manifest.frames;
    const entries = graphs.map((graph) => {
      const name = frames.find((frame) => frame.id === graph)?.function ?? "";
      return h("span", { class: "tc-legend-item", title: `Lines whose code is in captured graph ${graph}` }, h("i", { class: this.colour(graph) }), `graph ${graph}`, name ? h("small", {}, name) : null);
    });
    this.legend.replaceChildren(...(entries.length > 0 && this.mode === "text" ? entries : []));
  }

  /** Why there is nothing to show. */
  absent() {
    const problems = this.store.stage(this.stage)?.problems ?? [];
    const items = problems.map((problem) => h("div", { class: "tc-problem-card" }, icon("warning"), h("div", {}, h("p", {}, problem.reason), problem.hint ? h("p", { class: "tc-why" }, problem.hint) : null)));
    return h("div", { class: "tc-message" }, ...(items.length ? items : ["Nothing here yet."]));
  }

  // The header

  renderHeader() {
    const info = this.store.artifacts.get(this.artifact)?.info;
    const chooser = this.chooser(this.artifact, (id) => (this.mode === "diff" ? this.compareAs(this.other, id) : this.show(id)));
    const tools = h("div", { class: "tc-pane-tools" });
    if (info) tools.append(...this.tools());
    if (!this.home) tools.append(iconButton("split", "Open another pane beside this one", () => this.host.split(this)), iconButton("close", "Close this pane", () => this.host.close(this)));
    const left = this.mode === "diff" ? [this.chooser(this.other, (id) => this.compareAs(id, this.artifact)), h("span", { class: "tc-versus" }, "→"), chooser] : [chooser];
    replaceKeepingFocus(this.header, [...left, this.linkCount(), tools], this.root);
  }

  /** @param {string} other @param {string} artifact */
  compareAs(other, artifact) {
    this.artifact = artifact;
    this.compare(other);
  }

  /** @param {string} current @param {(id: string) => void} choose */
  chooser(current, choose) {
    const stages = this.store.manifest.stages.filter((stage) => !this.home || stage.artifacts.some((artifact) => this.store.manifest.home.includes(artifact.id)));
    const groups = stages.filter((stage) => stage.artifacts.length).map((stage) => {
      const group = h("optgroup", { label: stage.title });
      group.append(...stage.artifacts.map((artifact) => h("option", { value: artifact.id, title: artifact.title }, this.home ? artifact.title : nameOf(stage, artifact))));
      return group;
    });
    const select = h("select", { class: "tc-choose", "aria-label": "What this pane shows", onchange: () => choose(select.value) }, ...groups);
    select.value = current;
    return select;
  }

  modes() {
    /** @param {Mode} mode @param {string} text */
    const button = (mode, text) => h("button", { type: "button", "aria-pressed": String(this.mode === mode), onclick: () => this.show(this.artifact, mode) }, text);
    return h("div", { class: "tc-modes", role: "group", "aria-label": "View" }, button("text", "Text"), button("graph", "Graph"));
  }

  linkCount() {
    const count = this.mode === "diff" ? 0 : (this.store.linkedIn.get(this.artifact) ?? 0);
    const difference = this.view instanceof TextView && Boolean(this.view.looks.stops?.length);
    const label = h("span", { class: "tc-link-label" }, difference ? "differences" : `${count.toLocaleString("en")} linked`);
    const step = (/** @type {number} */ direction) => {
      const [at, all] = this.view?.stepLinked(direction) ?? [0, 0];
      label.textContent = `${at} / ${all}`;
    };
    const box = h("div", { class: "tc-link-count" }, iconButton("up", "Previous linked (p)", () => step(-1)), label, iconButton("down", "Next linked (n)", () => step(1)));
    box.hidden = !count && !difference;
    this.step = step;
    return box;
  }

  tools() {
    const tools = [iconButton("search", "Search (/)", () => this.openSearch())];
    const view = this.view;
    if (view instanceof TextView && view.folds.size) tools.push(iconButton("fold", "Fold or unfold long blocks", () => view.toggleAllFolds()));
    if (!this.home) {
      const title = this.mode === "diff" ? "Stop comparing" : "Compare with another artifact";
      const compare = iconButton("compare", title, () => (this.mode === "diff" ? this.show(this.artifact, "text") : this.compare()));
      compare.setAttribute("aria-pressed", String(this.mode === "diff"));
      tools.push(compare);
    }
    if (view && "copy" in view) tools.push(this.copyButton(view));
    return tools;
  }

  /** @param {{copy: () => Promise<void>}} view */
  copyButton(view) {
    const button = iconButton("copy", "Copy the text", async () => {
      await view.copy();
      button.classList.add("tc-done");
      setTimeout(() => button.classList.remove("tc-done"), 1200);
    });
    return button;
  }

  // Search

  makeSearchBar() {
    this.searchInput = h("input", {
      type: "search", placeholder: "Search", "aria-label": "Search", spellcheck: false,
      oninput: () => this.search(), onkeydown: (/** @type {KeyboardEvent} */ event) => this.searchKey(event),
    });
    this.searchCount = h("span", { class: "tc-search-count", "aria-live": "polite" });
    return h("div", { class: "tc-search", hidden: true }, icon("search"), this.searchInput, this.searchCount,
      iconButton("up", "Previous (Shift-Enter)", () => this.stepSearch(-1)),
      iconButton("down", "Next (Enter)", () => this.stepSearch(1)),
      iconButton("close", "Close (Escape)", () => this.closeSearch()),
    );
  }

  openSearch() {
    this.searchBar.hidden = false;
    this.searchInput?.focus();
    this.searchInput?.select();
  }

  search() {
    const found = this.view?.find(this.searchInput?.value ?? "");
    if (found) this.showFound(found);
  }

  /** @param {number} direction */
  stepSearch(direction) {
    const found = this.view?.stepHit(direction);
    if (found) this.showFound(found);
  }

  /** @param {[number, number, boolean]} found */
  showFound([at, all, more]) {
    const asked = this.searchInput?.value;
    const count = `${at.toLocaleString("en")} of ${all.toLocaleString("en")}${more ? "+" : ""}`;
    if (this.searchCount) this.searchCount.textContent = !asked ? "" : all ? count : "none";
  }

  closeSearch() {
    this.searchBar.hidden = true;
    if (this.searchInput) this.searchInput.value = "";
    this.search();
    this.view?.focus();
  }

  /** @param {KeyboardEvent} event */
  searchKey(event) {
    if (event.key === "Enter") this.stepSearch(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") this.closeSearch();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // The selection

  /** @param {string} from the pane it was made in */
  selectionChanged(from) {
    if (from !== this.name && this.mode !== "diff") this.followSelection();
    this.view?.select(this.store.primary, this.store.linked, from !== this.name);
    this.header.querySelector(".tc-link-count")?.replaceWith(this.linkCount());
  }

  /** Show the file of the innermost line, unless the one that is shown holds one below the outermost already. */
  followStack() {
    const [first] = this.store.primary;
    const owners = (first ? this.store.stack(first) : []).map((id) => this.store.links.owner(id));
    const innermost = owners.at(-1);
    if (innermost && !owners.slice(1).includes(this.artifact)) this.show(innermost);
  }

  /** Show another artifact of the same stage when the selection is in that one and not in this. */
  followSelection() {
    if (this.home) return this.followStack();
    const stage = this.store.stage(this.stage);
    if (!stage || this.store.linkedIn.get(this.artifact)) return;
    const best = this.bestLinked(stage);
    if (best) this.show(best.id);
  }

  destroy() {
    this.view?.destroy();
    this.root.remove();
  }
}

/** @param {BreakInfo} item */
function breakInWords(item) {
  const hints = item.hints.map((hint) => `\n• ${hint}`).join("");
  return `Graph break: ${item.kind || item.reason}\n${item.explanation}${hints}`;
}

/**
 * The name of an artifact in a list: its stage, and what tells it from the others of that stage.
 * @param {StageInfo} stage @param {import("./store.js").ArtifactInfo} artifact
 */
export function nameOf(stage, artifact) {
  return `${stage.title} ${bracketed(artifact.id) || artifact.title}`;
}

/** What tells an artifact from the others of its stage. @param {string} id */
function bracketed(id) {
  return /\[(.*)\]/.exec(id)?.[1] ?? "";
}

function waiting() {
  const message = h("div", { class: "tc-message tc-waiting", role: "status" }, "Loading…");
  setTimeout(() => {
    if (message.isConnected) message.textContent = "Waiting for the kernel: it is busy, or it no longer holds this record.";
  }, 4000);
  return message;
}
