// A pane: an artifact as text or as a graph, or two of them compared.

import { focusedNear, h, icon } from "./dom.js";
import { DrawingView } from "./drawing_view.js";
import { ListView } from "./list_view.js";
import { compileHint, pendingCard, showProgress, startCompiling } from "./machine_code.js";
import { bracketed, PaneHeader } from "./pane_header.js";
import { heatLegend } from "./source_heat.js";
import { legendOf } from "./source_marks.js";
import { SourceView } from "./source_view.js";
import { TextView } from "./text_view.js";
import { TOOLS, VIEWS } from "./views.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").Artifact} Artifact */
/** @typedef {import("./store.js").StageInfo} StageInfo */
/** @typedef {import("./store.js").Problem} Problem */
/** @typedef {"text" | "graph" | "list" | "diff" | "view"} Mode */
/** @typedef {TextView | DrawingView | ListView | import("./views.js").View} View */
/**
 * What a pane asks of the explorer around it.
 * @typedef {{select: (ids: string[], add: boolean, pane: string) => void, hover: (ids: string[]) => void,
 *   showBreaks: (items: import("./store.js").BreakInfo[]) => void, changed: () => void, rendered: (pane: Pane) => void,
 *   actions: import("./inspector.js").Actions,
 *   search: (pane: Pane) => void, activate: (pane: Pane) => void, split: (pane: Pane) => void, close: (pane: Pane) => void}} PaneHost
 */

/** Two texts have room side by side in a pane of this width, in points. */
const WIDE = 560;

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
    /** The two texts that are compared: artifacts, or kernels in them. @type {[string, string]} */
    this.compared = ["", ""];
    /** Whether they stand side by side; `null` for where there is room. @type {boolean | null} */
    this.isArranged = null;
    this.stage = "";
    /** Which side it is for, in a record of two: that of what it showed last, "" if it has shown none of either. */
    this.side = "";
    /** Whether anything was asked for: until then, the pane of the source shows what comes first. */
    this.chosen = false;
    /** Whether the first artifact of a stage is shown because it is not known yet which one the selection is in. */
    this.undecided = false;
    /** @type {Mode} */
    this.mode = "text";
    /** @type {View | null} */
    this.view = null;
    /** How its list is sorted: not at all to begin with. */
    this.order = { column: -1, down: false };
    this.key = "";
    /** By source file, the rows whose calls are opened. @type {Map<string, Set<string>>} */
    this.opened = new Map();
    /** The row of a text to bring into sight once it is there; -1 for none. */
    this.row = -1;
    this.wantedState = "";
    this.legend = h("div", { class: "tc-legend" });
    this.body = h("div", { class: "tc-pane-body" });
    this.root = h("section", { class: home ? "tc-pane tc-home" : "tc-pane", tabIndex: -1 });
    this.root.addEventListener("focusin", () => host.activate(this));
    this.root.addEventListener("pointerdown", () => host.activate(this));
    this.header = new PaneHeader(this);
    this.root.append(this.header.root, this.legend, this.body);
  }

  // What to show

  /** @param {string} artifact @param {Mode} [mode] */
  show(artifact, mode = this.usualMode(artifact)) {
    const info = this.infoOf(artifact);
    if (!info) return;
    this.artifact = artifact;
    this.side = info.side || this.side;
    this.mode = this.modesOf(artifact).includes(mode) ? mode : "text";
    this.chosen = true;
    this.undecided = false;
    this.refresh();
  }

  /** As the last one of its kind; one of another stage as that stage is to be opened. @param {string} artifact */
  usualMode(artifact) {
    const info = this.infoOf(artifact);
    if (info?.opens && (info.stage !== this.stage || this.mode === "diff")) return /** @type {Mode} */ (info.opens);
    return this.mode === "diff" ? "text" : this.mode;
  }

  infoOf(artifact = this.artifact) {
    return this.store.artifacts.get(artifact)?.info;
  }

  /** How an artifact can be shown. @param {string} artifact @returns {Mode[]} */
  modesOf(artifact) {
    const info = this.infoOf(artifact);
    const list = info && this.store.stage(info.stage)?.list;
    /** @type {[Mode, unknown][]} */
    const modes = [["view", info?.view], ["text", true], ["list", list], ["graph", info?.drawable]];
    return modes.filter(([, has]) => has).map(([mode]) => mode);
  }

  /** What is searched and gone through: the text under a list, the second of two texts, else the view itself. */
  get content() {
    return this.view && "text" in this.view ? this.view.text : this.view;
  }

  /** What it shows, as an address names it. @returns {import("./history.js").Shown} */
  where() {
    const info = this.infoOf();
    const alone = this.home ? this.artifact === this.store.manifest.home[0] : this.store.stage(this.stage)?.artifacts.length === 1;
    const [other, name] = this.mode === "diff" ? this.compared : ["", info && !alone ? this.artifact : this.stage];
    const mode = !info || other || this.mode === (info.opens || "text") ? "" : this.mode;
    return { name, mode, other, state: this.state };
  }

  /** @returns {string} */
  get state() {
    return (this.view && "state" in this.view && this.view.state) || this.wantedState;
  }

  /** Show what an address names. @param {import("./history.js").Shown} shown */
  showPlace({ name, mode, other, state = "" }) {
    this.wantedState = state;
    const stage = this.store.stage(name);
    const artifact = stage ? (this.home ? this.store.manifest.home[0] : stage.artifacts[0]?.id) : name;
    if (other) this.compareAs(other, name);
    else if (artifact) this.show(artifact, /** @type {Mode} */ (mode || this.infoOf(artifact)?.opens || "text"));
    else this.showStage(name);
    this.giveState();
  }

  /** Give a view the state that an address names, once the view is there. */
  giveState() {
    if (this.wantedState && this.view && "state" in this.view) this.view.state = this.wantedState;
    if (this.view) this.wantedState = "";
  }

  /** Bring a line of a text into sight, as text unless it is shown otherwise already. @param {string} artifact @param {number} row */
  showRow(artifact, row) {
    this.row = row;
    if (artifact === this.artifact && this.mode !== "diff") this.goToRow();
    else this.show(artifact, this.modesOf(artifact).includes("list") ? "list" : "text");
  }

  goToRow() {
    if (this.row >= 0 && this.content) this.content.showRow?.(this.row);
    if (this.content) this.row = -1;
  }

  /**
   * Open a stage: the artifact most of the selection is in, else the first; or why there is none.
   * @param {string} name @param {string} [side] the side to show, where the stage has artifacts of it
   */
  showStage(name, side = "") {
    const stage = this.store.stage(name);
    if (!stage) return;
    const linked = this.bestLinked(stage, side);
    const best = linked ?? stage.artifacts.find((artifact) => artifact.side === side) ?? stage.artifacts[0];
    if (best?.pair && this.mode === "diff") return this.compareAs(...this.inOrder(best.pair, best.id));
    if (best) {
      this.show(best.id);
      this.undecided = !linked && this.store.primary.size > 0;
      return;
    }
    this.artifact = "";
    this.stage = name;
    if (stage.pending) startCompiling(this.store, stage);
    this.refresh();
  }

  /** Show the source that would be executed. */
  readKernels() {
    this.showStage("kernels");
    if (this.mode === "list") this.show(this.artifact, "text");
  }

  /** Kernels are being compiled, or are no more. */
  showCompiling() {
    const card = this.root.querySelector(".tc-compiling");
    if (card && this.store.compiling.total) showProgress(card, this.store);
    else this.refresh();
  }

  /** What most of the selection is in. @param {StageInfo} stage @param {string} [wanted] of this side alone */
  bestLinked(stage, wanted = "") {
    const found = stage.artifacts.filter(({ side }) => !wanted || !side || side === wanted);
    const linked = found.map(({ id }) => this.store.linkedIn.get(id) ?? 0);
    const most = Math.max(...linked, 0);
    return most ? found[linked.indexOf(most)] : undefined;
  }

  /** Compare with another artifact. @param {string} [other] */
  compare(other = this.counterpart()) {
    if (!other) return;
    const isPair = this.infoOf()?.pair === other;
    this.compareAs(...(isPair ? this.inOrder(other, this.artifact) : /** @type {[string, string]} */ ([other, this.artifact])));
  }

  /** Two artifacts in the order of the record: the first side before the second. @param {string} a @param {string} b */
  inOrder(a, b) {
    const all = [...this.store.artifacts.keys()];
    return /** @type {[string, string]} */ (all.indexOf(a) < all.indexOf(b) ? [a, b] : [b, a]);
  }

  /** Compare two texts: artifacts, or kernels in them. @param {string} first @param {string} second */
  compareAs(first, second) {
    const owner = (/** @type {string} */ id) => (this.store.artifacts.has(id) ? id : this.store.links.owner(id));
    this.compared = [first, second];
    [this.other, this.artifact] = this.compared.map(owner);
    this.mode = "diff";
    this.refresh();
  }

  /** @param {boolean} beside whether the two texts stand side by side */
  arrange(beside) {
    this.isArranged = beside;
    this.refresh();
  }

  /** What the shown artifact is most naturally compared with: the one before it of the same graph and direction. */
  counterpart() {
    const pair = this.infoOf()?.pair;
    if (pair) return pair;
    const all = [...this.store.artifacts.keys()];
    const at = all.indexOf(this.artifact);
    const before = all.slice(0, at).reverse();
    const graph = (/** @type {string} */ id) => this.infoOf(id)?.graph;
    const alike = before.find((id) => bracketed(id) === bracketed(this.artifact));
    const related = before.find((id) => graph(id) === graph(this.artifact));
    return alike ?? related ?? before[0] ?? all[at + 1] ?? "";
  }

  toggleFolds() {
    const view = this.content;
    if (view instanceof TextView) view.toggleAllFolds();
  }

  // Showing it

  /** Show what is there now; makes the view anew only if its content is new. */
  refresh() {
    const missing = !this.store.artifacts.has(this.artifact);
    if (this.home && (missing || !this.chosen)) this.artifact = this.store.manifest.home[0] ?? "";
    this.stage = this.infoOf()?.stage ?? this.stage;
    const stage = this.store.stage(this.stage);
    if (!this.home && missing && stage?.artifacts.length) return this.showStage(this.stage, this.side);
    this.root.setAttribute("aria-label", this.home ? "Source" : `Stage: ${stage?.title ?? "none"}`);
    const linked = this.undecided && stage ? this.bestLinked(stage) : undefined;
    if (linked) return this.show(linked.id);
    const key = this.contentKey();
    if (key !== this.key) {
      this.key = key;
      this.renderBody();
    }
    this.showColours();
    this.header.render();
    this.host.changed();
  }

  /** Colour what is shown by source line, or no longer; a comparison has colours of its own. */
  showColours() {
    const view = this.content;
    const rainbow = this.mode === "diff" ? null : this.store.rainbow;
    if (!(view instanceof TextView || view instanceof DrawingView) || view.rainbow === rainbow) return;
    view.colour(rainbow);
    this.legend.querySelector(".tc-rainbow-note")?.remove();
    if (rainbow && this.home) this.legend.prepend(rainbow.note());
  }

  /** The artifacts that the view is made of. */
  shown() {
    return this.mode === "diff" ? [this.other, this.artifact] : [this.artifact];
  }

  /** Of a finding in a record of two sides, that of the other side: views of both are drawn to one scale. */
  beside() {
    return this.mode === "view" ? (this.infoOf()?.pair ?? "") : "";
  }

  contentKey() {
    const { landed, plain, spans, calls } = this.store.manifest;
    const marks = [landed, plain, spans, calls].map((known) => known[this.artifact]);
    const have = [...this.shown(), this.beside()].map((id) => {
      const { entities, text, view } = this.store.artifacts.get(id)?.have ?? {};
      return [id, entities, text, view];
    });
    const stage = this.store.stage(this.stage);
    const { total, confirm } = this.store.compiling;
    const absent = [stage?.pending, Boolean(stage?.pending && total), stage?.pending && confirm];
    const list = this.mode === "list" ? [stage?.list, Boolean(total), confirm] : 0;
    const compared = this.mode === "diff" && [this.compared, this.isBeside];
    return JSON.stringify([this.mode, this.stage, have, marks, stage?.problems.length, absent, list, this.viewName in VIEWS, compared]);
  }

  renderBody() {
    const what = (this.mode === "diff" ? this.compared : this.shown()).join() + this.mode;
    const again = what === this.what;
    const scroll = this.body.querySelector(".tc-scroll")?.scrollTop ?? 0;
    const holder = focusedNear(this.root);
    const focused = this.body.contains(holder) || holder === this.root;
    if (again) this.wantedState = this.state;
    this.view?.destroy();
    this.view = null;
    this.legend.replaceChildren();
    this.body.replaceChildren(this.instead());
    if (focused) this.root.focus({ preventScroll: true });
    if (!this.artifact || !this.arrived()) return;
    this.view = this.makeView();
    /** @type {string | undefined} what is shown, and how */
    this.what = what;
    if (focused) this.view.focus();
    if (again) this.body.querySelector(".tc-scroll")?.scrollTo(0, scroll);
    this.view.select(this.store.primary, this.store.linked, !again);
    if (!again && !this.store.primary.size) this.startReading();
    this.goToRow();
    this.giveState();
    this.host.rendered(this);
  }

  /** Nothing is selected: the text starts where there is something to read. */
  startReading() {
    const start = this.infoOf()?.start ?? 1;
    const view = this.content;
    if (view instanceof TextView && this.mode !== "diff" && start > 1) view.startAt(start - 1);
  }

  /** What stands where there is no view: why there is none. */
  instead() {
    if (this.artifact) return waiting();
    const stage = this.store.stage(this.stage);
    /** @type {HTMLElement[]} */
    const cards = (stage?.problems ?? []).map(problemCard);
    if (stage?.pending) cards.push(pendingCard(this.store, stage, () => this.readKernels()));
    return h("div", { class: "tc-message" }, ...cards);
  }

  /** Whether all parts are there; asks for those that are not. */
  arrived() {
    const artifacts = this.shown().map((id) => this.store.artifacts.get(id));
    for (const artifact of artifacts) {
      if (!artifact) continue;
      this.store.need(artifact.info.id, "entities");
      if (this.mode === "view") this.store.need(artifact.info.id, "view");
      else if (this.mode !== "graph") this.store.need(artifact.info.id, "text");
    }
    if (!this.knowsView()) return false;
    const other = this.store.artifacts.get(this.beside());
    if (other?.info.view) this.store.need(other.info.id, "view");
    if (other?.info.view && !other.view) return false;
    const needed = this.mode === "graph" ? "entities" : this.mode === "view" ? "view" : "lines";
    return artifacts.every((artifact) => artifact?.entities && artifact[needed]);
  }

  /** Which of the views by name it is, "" for a text or a drawing. */
  get viewName() {
    if (this.mode === "diff") return "comparison";
    return this.mode === "view" ? (this.infoOf()?.view ?? "") : "";
  }

  /** Whether the script of the view is there; asks for it where it is not. */
  knowsView() {
    const known = !this.viewName || this.viewName in VIEWS;
    if (!known) this.store.kernel?.views();
    return known;
  }

  /** @param {() => void} then is called once the late views are there */
  withTools(then) {
    if (TOOLS.savePicture) return then();
    const stop = this.store.listen((what) => {
      if (what !== "views") return;
      stop();
      then();
    });
    this.store.kernel?.views();
  }

  /** @returns {View} */
  makeView() {
    const callbacks = {
      onSelect: (/** @type {string[]} */ ids, /** @type {boolean} */ add) => this.host.select(ids, add, this.name),
      onHover: (/** @type {string[]} */ ids) => this.host.hover(ids),
      onChoose: (/** @type {string[]} */ ids, /** @type {boolean} */ add) => this.host.select(ids, add, ""),
      withTools: (/** @type {() => void} */ then) => this.withTools(then),
      onState: () => this.host.changed(),
      words: () => this.store.wordsOf(this.artifact),
      actions: this.host.actions,
    };
    const first = /** @type {Artifact} */ (this.store.artifacts.get(this.artifact));
    if (this.mode === "diff") {
      const view = new VIEWS.comparison(this.body, callbacks, first, this.store, this.compared, this.isBeside);
      this.legend.replaceChildren(...(view.legend ?? []));
      return view;
    }
    if (this.mode === "graph") return new DrawingView(this.body, callbacks, first, this.store);
    if (this.mode === "view") return new VIEWS[first.info.view](this.body, callbacks, first, this.store);
    const { manifest } = this.store;
    const problems = (this.store.stage(this.stage)?.problems ?? []).slice(0, MOST_PROBLEMS).map(problemLine);
    const isList = this.mode === "list";
    const hint = isList || this.store.stage(this.stage)?.pending ? compileHint(this.store, isList, () => this.readKernels()) : [];
    const legend = legendOf(manifest, this.artifact, (graphs) => this.selectGraphs(graphs));
    this.legend.replaceChildren(...legend, ...heatLegend(this.store, this.artifact), ...problems, ...hint);
    // What scrolls has to be reachable with the keyboard.
    if (this.legend.scrollHeight > this.legend.clientHeight) this.legend.tabIndex = 0;
    else this.legend.removeAttribute("tabindex");
    const makeText = (/** @type {HTMLElement} */ root) =>
      first.info.stage === "source" ? this.makeSource(root, callbacks, first) : new TextView(root, callbacks, first);
    const list = this.mode === "list" && this.store.stage(this.stage)?.list;
    return list ? new ListView(this.body, callbacks, list, makeText, this.order) : makeText(this.body);
  }

  /** @param {HTMLElement} root @param {import("./text_view.js").Callbacks} callbacks @param {Artifact} file */
  makeSource(root, callbacks, file) {
    const opened = this.opened.get(file.info.id) ?? new Set();
    this.opened.set(file.info.id, opened);
    return new SourceView(root, callbacks, file, this.store, this.host.showBreaks, opened);
  }

  /** Select all that was captured in some graphs. @param {string[]} graphs */
  selectGraphs(graphs) {
    const captured = graphs.flatMap((graph) => this.store.artifacts.get(`captured[${graph}]`)?.entities ?? []);
    this.host.select(captured.filter(({ kind }) => kind === "call").map(({ id }) => id), false, "");
  }

  /** Whether two texts that are compared stand side by side. */
  get isBeside() {
    return this.isArranged ?? this.body.clientWidth >= WIDE;
  }

  // The selection

  /** @param {string} from the pane it was made in */
  selectionChanged(from) {
    const elsewhere = from !== this.name;
    if (elsewhere && this.mode !== "diff") this.followSelection();
    this.view?.select(this.store.primary, this.store.linked, elsewhere);
    this.header.renderLinks();
  }

  /** Show another artifact of the same stage, and side, when the selection is in that one and not in this. */
  followSelection() {
    if (this.home) return this.followStack();
    const stage = this.store.stage(this.stage);
    if (!stage || this.store.linkedIn.get(this.artifact)) return;
    const best = this.bestLinked(stage, this.infoOf()?.side);
    if (best) this.show(best.id);
  }

  /** Show the file of the innermost line, unless the one that is shown holds one below the outermost already. */
  followStack() {
    const [first] = this.store.primary;
    const own = first && this.store.manifest.home.includes(this.store.links.owner(first)) ? [first] : [];
    const owners = (first ? [...this.store.stack(first), ...own] : []).map((id) => this.store.links.owner(id));
    const innermost = owners.at(-1);
    if (innermost && !owners.slice(1).includes(this.artifact)) this.show(innermost);
  }

  destroy() {
    this.view?.destroy();
    this.root.remove();
  }
}

/** @param {Problem} problem */
function problemCard({ reason, hint }) {
  const words = h("div", {}, h("p", {}, reason), hint ? h("p", { class: "tc-why" }, hint) : null);
  return h("div", { class: "tc-problem-card" }, icon("warning"), words);
}

/** So many problems are told over a text. */
const MOST_PROBLEMS = 3;

/** @param {Problem} problem */
function problemLine({ reason, hint }) {
  return h("span", { class: "tc-legend-item", title: hint }, icon("warning"), reason);
}

/** How long, in milliseconds, a part may take before that calls for an explanation. */
const PATIENCE = 4000;

function waiting() {
  const message = h("div", { class: "tc-message", role: "status" }, "Loading…");
  setTimeout(
    () => message.replaceChildren("Waiting for the kernel: it is busy, or it no longer holds this record."),
    PATIENCE,
  );
  return message;
}
