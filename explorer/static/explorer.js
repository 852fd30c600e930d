// The whole of it: the ribbon on top, source and stages in panes, the inspector, and what joins them.

import { copyText, h, iconButton } from "./dom.js";
import { exploredCall } from "./explored_call.js";
import { History } from "./history.js";
import { SearchBar } from "./search_bar.js";
import { Inspector } from "./inspector.js";
import { startCompiling } from "./machine_code.js";
import { insertCell } from "./new_cell.js";
import { Pane } from "./pane.js";
import { Ribbon } from "./ribbon.js";
import { splitter } from "./splitter.js";
import { TextView } from "./text_view.js";
import { TOOLS } from "./views.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").StageInfo} StageInfo */
/** @typedef {import("./history.js").Place} Place */
/** @typedef {"stages" | "panes" | "ribbon" | "inspector"} Part of the view; stages are the ribbon's chips, made anew */
/** A page has a theme of its own. `keep` is told each place where the reader is. @typedef {{page?: boolean, keep?: (place: Place) => void}} Options */

/** Below this width, in points, panes are stacked; below the second the inspector goes under the panes. */
const NARROW = 760;
const MEDIUM = 1120;
/** A graph of so many operations opens as a drawing. */
const LARGE_GRAPH = 30;

export class Explorer {
  /** @param {HTMLElement} root @param {Store} store @param {Options} [options] */
  constructor(root, store, options = {}) {
    this.root = root;
    this.store = store;
    this.page = options.page ?? false;
    this.keep = options.keep ?? (() => {});
    this.history = new History();
    /** What goes on with each change, such as a presenter's. */
    this.follow = () => {};
    /** Whether the user has done something since the last step of the history. */
    this.acted = false;
    /** @type {import("./inspector.js").Actions} */
    this.actions = {
      goTo: (id) => this.goTo(id),
      goToRow: (artifact, row) => this.goToRow(artifact, row),
      open: (artifact) => this.freePane().show(artifact),
      openStage: (stage) => this.openStage(stage, false),
      compare: (first, second) => this.freePane().compareAs(first, second),
      preview: (ids) => this.hover(ids),
      clear: () => this.clear(),
      openLab: store.kernel ? (kernel) => this.askForCell(() => store.kernel?.lab(kernel)) : null,
      make: store.kernel ? (stage) => this.make(stage) : null,
      newCell: store.kernel ? (fixes) => this.askForCell(() => store.kernel?.newCell(fixes)) : null,
    };
    this.host = {
      actions: this.actions,
      select: this.select.bind(this),
      hover: this.hover.bind(this),
      showBreaks: this.showBreaks.bind(this),
      changed: () => this.soon("ribbon"),
      rendered: (/** @type {Pane} */ pane) => pane === this.searched && this.search.query && this.search.refind(),
      search: (/** @type {Pane} */ pane) => this.searchIn(pane),
      activate: (/** @type {Pane} */ pane) => {
        this.active = pane;
      },
      split: (/** @type {Pane} */ pane) => this.split(pane),
      close: (/** @type {Pane} */ pane) => this.close(pane),
    };
    this.ribbon = new Ribbon(store, (stage, beside) => this.openStage(stage, beside));
    this.inspector = new Inspector(store, this.actions);
    this.search = new SearchBar(store, () => this.searched.content ?? null, (line) => this.showLine(line), () => this.soon("ribbon"));
    this.source = new Pane(store, this.host, true);
    /** @type {Pane[]} */
    this.stagePanes = [];
    this.active = this.source;
    /** The pane in which what is found lights up. */
    this.searched = this.source;
    this.frame = 0;
    /** Whether the user has done anything in this view. */
    this.touched = false;
    /** What the record asked to be opened first, so far. */
    this.first = "";
    /** What is to be brought up to date before the next frame. @type {Set<Part>} */
    this.due = new Set();
    this.stopping = new AbortController();
    this.build();
    this.stopListening = store.listen((what, from) => this.changed(what, from));
    this.changed("manifest", "");
  }

  build() {
    this.title = h("div", { class: "tc-title" });
    this.tools = h("div", { class: "tc-tools" });
    this.moves = [iconButton("back", "Back (Alt+←)", () => this.go(-1)), iconButton("forward", "Forward (Alt+→)", () => this.go(1))];
    this.tools.append(...this.moves);
    if (this.page) this.tools.append(iconButton("theme", "Light or dark", () => this.toggleTheme()));
    this.colours = iconButton("rainbow", "Colour by source line (r)", () => this.toggleColours());
    if (document.fullscreenEnabled) this.tools.append(iconButton("full", "Full screen (F)", () => this.toggleFullScreen()));
    this.tools.append(
      this.colours,
      iconButton("panel", "Show or hide the inspector (i)", () => this.toggleInspector()),
      iconButton("help", "Keys (?)", () => this.showKeys()),
    );
    this.panes = h("div", { class: "tc-panes" }, this.source.root);
    this.main = h("div", { class: "tc-main" }, this.panes, splitter(), this.inspector.root);
    this.root.classList.add("tcompile");
    this.explored = h("div", { class: "tc-explored" });
    const top = h("div", { class: "tc-top" }, this.title, this.ribbon.root, this.tools);
    this.root.append(top, this.explored, this.search.root, this.main);
    const { signal } = this.stopping;
    for (const name of ["pointerdown", "keydown", "wheel"]) {
      const act = () => (this.touched = this.acted = true);
      this.root.addEventListener(name, act, { signal, capture: true, passive: true });
    }
    this.root.addEventListener("keydown", (event) => this.pressed(event), { signal });
    window.addEventListener("keydown", (event) => this.keepFromJupyter(event), { signal, capture: true });
    this.observer = new ResizeObserver(() => this.fitWidth());
    this.observer.observe(this.root);
    this.watchTheme();
  }

  // What changed

  /** @param {string} what @param {string} from */
  changed(what, from) {
    if (what === "manifest") this.manifestChanged();
    else if (what === "running") this.runningChanged();
    else if (what === "compiling") this.allPanes().forEach((pane) => pane.showCompiling());
    else if (what === "words") return;
    else if (what === "rainbow") this.showColours();
    else if (what === "cell") this.openCell();
    else if (what === "patch") return;
    else if (what === "selection") this.selectionChanged(from);
    else this.soon("panes", "inspector", "ribbon");
  }

  manifestChanged() {
    this.title?.replaceChildren(h(this.page ? "h1" : "b", {}, this.store.manifest.title || "tcompile"));
    this.explored?.replaceChildren(...exploredCall(this.store));
    const first = this.store.manifest.first.join();
    if (this.stagePanes.length && first !== this.first) this.openStage(first, this.stagePane().stage === "xray");
    this.first = first;
    if (!this.touched) this.openFirst();
    this.soon("stages", "panes", "inspector");
  }

  /**
   * Open what answers the user's question: the graph breaks, else the captured graph, as a drawing where it is large.
   * Until the user touches the view, it follows a record that grows.
   */
  openFirst() {
    if (!this.stagePanes.length && !this.closedAll) this.openSides();
    if (this.stagePanes.length > 1 || this.store.manifest.first.length || this.store.manifest.compare) return;
    const stage = this.answer();
    if (!stage || this.stagePanes[0]?.stage === stage.name) return;
    const pane = this.stagePanes[0] ?? this.addPane();
    const large = stage.artifacts.some(({ drawable, operations }) => drawable && operations >= LARGE_GRAPH);
    if (large) pane.mode = "graph";
    pane.showStage(stage.name);
    this.source.startReading();
  }

  /** The stage to open first, if it is there yet. @returns {StageInfo | undefined} */
  answer() {
    const { stages, breaks } = this.store.manifest;
    const shown = stages.filter(({ artifacts }) => artifacts.some(({ id, opens }) => !this.isHome(id) && !opens));
    const found = (/** @type {string} */ name) => stages.find((stage) => stage.name === name && stage.artifacts.length);
    if (breaks.length && found("breaks")) return found("breaks");
    const graph = found("captured") ?? shown.find(({ artifacts }) => artifacts[0].drawable);
    return graph ?? (this.store.running.stage ? undefined : shown[0]);
  }

  /** Of two sides to be compared, open both. */
  openSides() {
    const { compare, first: begins } = this.store.manifest;
    for (const name of begins) {
      if (this.store.stage(name)) this.addPane("graph").showStage(name);
      else this.addPane().show(name);
    }
    this.root.classList.toggle("tc-no-inspector", (begins.length > 1 || begins[0] === "chain_rule") && !this.store.manifest.versus);
    if (!begins.length && compare) this.addPane().compareAs(compare[0], compare[1]);
  }

  runningChanged() {
    if (!this.touched) this.openFirst();
    this.soon("stages");
  }

  /** @param {string} from */
  selectionChanged(from) {
    this.touched ||= this.store.primary.size > 0;
    this.hover([]);
    for (const pane of this.allPanes()) pane.selectionChanged(from);
    this.soon("ribbon");
    this.inspector.render();
  }

  /**
   * Bring parts of the view up to date before the next frame: once, however much arrives until then.
   * @param {Part[]} parts
   */
  soon(...parts) {
    for (const part of parts) this.due.add(part);
    this.frame ||= requestAnimationFrame(() => this.catchUp());
  }

  catchUp() {
    this.frame = 0;
    if (this.due.delete("panes")) for (const pane of this.allPanes()) pane.refresh();
    const marks = this.due.delete("ribbon");
    const open = new Set(this.allPanes().map((pane) => pane.stage));
    if (this.due.delete("stages")) this.ribbon.render(open);
    else if (marks) this.ribbon.mark(open);
    if (this.due.delete("inspector")) this.inspector.render();
    this.notePlace();
    this.follow();
  }

  // Where the reader is

  /** Note where the reader is: a step of the history if they did something, else part of the last one. */
  notePlace() {
    const panes = this.allPanes().map((pane) => pane.where()).filter(({ name }) => name);
    const place = { panes, select: [...this.store.primary], find: this.search.query, colours: this.store.colours };
    this.history.note(place, this.acted);
    this.acted = false;
    this.moves?.forEach((button, at) => (button.disabled = !this.history.leads(2 * at - 1)));
    if (this.touched) this.keep(place);
  }

  /** @param {number} steps back or forward in the history */
  go(steps) {
    const place = this.history.move(steps);
    this.acted = false;
    if (place) this.showPlace(place);
  }

  /** Show a place that was kept, or written by hand: what the record does not have is left out, and told. @param {Place} place */
  openPlace(place) {
    this.showPlace(place);
    if (Boolean(place.colours) !== this.store.colours) this.toggleColours();
    if (place.find) this.searchIn(this.active, place.find);
    this.store.whenLinked(() => {
      const names = [...place.panes.flatMap(({ name, other }) => [name, other || name]), ...place.select];
      const wrong = names.find((name) => !this.store.has(name));
      if (wrong) this.notify(`This record has no ${wrong}: that part of the address is ignored.`);
    });
  }

  /** @param {Place} place */
  showPlace({ panes, select }) {
    const isSource = (/** @type {string} */ name) => this.isHome(name) || this.isHome(this.store.stage(name)?.artifacts[0]?.id ?? "");
    const stages = panes.filter(({ name }) => !isSource(name));
    const show = () => {
      panes.filter(({ name }) => isSource(name)).forEach((shown) => this.source.showPlace(shown));
      for (const [at, shown] of stages.entries()) {
        const pane = this.stagePanes[at] ?? this.addPane();
        if (this.store.has(shown.name) && (!shown.other || this.store.has(shown.other))) pane.showPlace(shown);
      }
    };
    for (const pane of panes.length ? this.stagePanes.slice(stages.length) : []) this.close(pane);
    show();
    this.touched = true;
    this.store.whenLinked(() => {
      this.store.select(select.filter((id) => this.store.links.entity(id)));
      show();
    });
  }

  /** Show a line that was found, where its text is open, else in the pane used last. @param {import("./hits.js").Line} line */
  showLine({ artifact, row }) {
    const open = this.allPanes().find((pane) => pane.artifact === artifact && pane.mode !== "diff");
    const pane = open ?? (this.isHome(artifact) ? this.source : this.stagePane());
    this.active = this.searched = this.cleared(pane);
    pane.showRow(artifact, row);
    this.search.refind();
    this.soon("ribbon");
  }

  /** Search all stages, and a pane. @param {Pane} pane @param {string} [query] */
  searchIn(pane, query) {
    this.searched = this.cleared(pane);
    this.search.start(query);
  }

  /** A pane, once no other one shows what was found in it. @param {Pane} pane */
  cleared(pane) {
    if (pane !== this.searched) this.searched.content?.find("");
    return pane;
  }

  // Panes

  /** @returns {Pane[]} */
  allPanes() {
    return [this.source, ...this.stagePanes];
  }

  /** @param {string} artifact */
  isHome(artifact) {
    return this.store.manifest.home.includes(artifact);
  }

  /** @param {import("./pane.js").Mode} [mode] */
  addPane(mode = "text") {
    const pane = new Pane(this.store, this.host, false);
    pane.mode = mode;
    this.stagePanes.push(pane);
    this.panes?.append(splitter(), pane.root);
    this.active = pane;
    return pane;
  }

  /** The stage pane that was used last. @returns {Pane} */
  stagePane() {
    if (this.stagePanes.includes(this.active)) return this.active;
    return this.stagePanes.at(-1) ?? this.addPane();
  }

  /** @param {string} name @param {boolean} beside */
  openStage(name, beside) {
    const stage = this.store.stage(name);
    if (!stage) return;
    const home = stage.artifacts.find((artifact) => this.isHome(artifact.id));
    if (home) return this.source.view?.focus();
    if (!beside && this.openOnSides(stage)) return;
    const pane = beside ? this.besidePane() : this.stagePane();
    pane.showStage(name);
    this.active = pane;
  }

  /**
   * Where two panes stand for two sides, a stage opens in that of its side, or in both. One that is of neither, and so
   * is for all, opens as anywhere: the answer is false.
   * @param {StageInfo} stage
   */
  openOnSides({ name, artifacts }) {
    const [first, second, ...others] = this.stagePanes;
    if (!first?.side || !second?.side || first.side === second.side || others.length) return false;
    const open = [first, second].filter(({ side }) => !artifacts.length || artifacts.some((artifact) => artifact.side === side));
    for (const pane of open) pane.showStage(name, pane.side);
    if (open.length && !open.includes(this.active)) this.active = open[0];
    return open.length > 0;
  }

  /** A stage pane that is not the one used last: at most two are open. */
  besidePane() {
    const current = this.stagePane();
    return this.stagePanes.find((pane) => pane !== current) ?? this.addPane();
  }

  /** The pane to open something in: not the one with the view that asks for it. */
  freePane() {
    return this.stagePane().mode === "view" ? this.besidePane() : this.stagePane();
  }

  /** @param {Pane} pane */
  split(pane) {
    const { artifact, stage } = pane;
    this.active = pane;
    const beside = this.besidePane();
    if (artifact) beside.show(artifact, pane.mode === "text" ? "graph" : "text");
    else beside.showStage(stage);
  }

  /** @param {Pane} pane */
  close(pane) {
    pane.root.previousElementSibling?.remove();
    this.stagePanes = this.stagePanes.filter((other) => other !== pane);
    pane.destroy();
    this.closedAll = !this.stagePanes.length;
    this.active = this.stagePanes[0] ?? this.source;
    if (this.searched === pane) this.searched = this.active;
    this.soon("ribbon");
  }

  // The selection

  /** @param {string[]} ids @param {boolean} add @param {string} from */
  select(ids, add, from) {
    const chosen = new Set(add ? this.store.primary : []);
    for (const id of ids) {
      if (add && chosen.has(id)) chosen.delete(id);
      else chosen.add(id);
    }
    this.store.select(chosen, from);
  }

  clear() {
    this.store.select([]);
  }

  /** @param {string[]} ids */
  hover(ids) {
    const linked = ids.length ? this.store.links.closure(ids) : new Set();
    for (const pane of this.allPanes()) pane.view?.preview(/** @type {Set<string>} */ (linked));
  }

  /** Select an entity and open its artifact. @param {string} id */
  goTo(id) {
    const artifact = this.store.links.owner(id);
    const open = this.allPanes().find((pane) => pane.artifact === artifact);
    if (!open && artifact) (this.isHome(artifact) ? this.source : this.freePane()).show(artifact);
    this.store.select([id]);
  }

  /** @param {string} artifact @param {number} row */
  goToRow(artifact, row) {
    const ids = this.store.artifacts.get(artifact)?.rows.get(row) ?? [];
    if (ids.length) return this.goTo(ids[0]);
    this.source.show(artifact);
    if (this.source.view instanceof TextView) this.source.view.showRow(row);
  }

  /** Ask Python for the text of a new cell. @param {() => void} ask */
  askForCell(ask) {
    this.wantsCell = true;
    ask();
  }

  /** Put the text into a new cell; where the front end has no way for that, it goes to the clipboard. */
  async openCell() {
    const { text, words, problem } = this.store.cell;
    if (!this.wantsCell) return;
    this.wantsCell = false;
    if (problem) return this.notify(problem);
    if (await insertCell(this.root, text)) return this.notify(`In a new cell below: ${words}.`);
    await copyText(text);
    this.notify(`Copied: paste it into a new cell, ${words}.`);
  }

  /** Have Python make a stage, and open it. @param {string} name */
  make(name) {
    const stage = this.store.stage(name);
    if (!stage) return this.notify("This needs the call: wait until the cell has run. A run from a file has none.");
    if (stage.pending) startCompiling(this.store, stage);
    this.openStage(name, false);
  }

  /** Say something for a few seconds. @param {string} words */
  notify(words) {
    const notice = h("div", { class: "tc-notice", role: "status" }, words);
    this.root.append(notice);
    setTimeout(() => notice.remove(), 6000);
  }

  /** @param {import("./store.js").BreakInfo[]} items */
  showBreaks(items) {
    this.store.select(items.map(({ id }) => `breaks.${id}`));
    this.root.classList.remove("tc-no-inspector");
  }

  // Keys

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey) return;
    if (event.target instanceof Element && event.target.closest("input, select, textarea, dialog")) return;
    const steps = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.altKey && steps) {
      event.preventDefault();
      this.go(steps);
    }
    if (event.altKey) return;
    /** @type {Record<string, () => void>} */
    const actions = {
      "[": () => this.stepStage(-1),
      "]": () => this.stepStage(1),
      "/": () => this.searchIn(this.active),
      "?": () => this.showKeys(),
      P: () => this.present(),
      i: () => this.toggleInspector(),
      n: () => this.active.header.step(1),
      p: () => this.active.header.step(-1),
      g: () => this.toggleGraph(),
      r: () => this.toggleColours(),
      o: () => this.cyclePanes(),
      F: () => this.toggleFullScreen(),
      "\\": () => this.split(this.stagePane()),
      Escape: () => this.clear(),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  /**
   * Mark where a plain key is pressed, before Jupyter sees the event: to Jupyter, D twice deletes the cell. Keys with
   * Ctrl and the like stay Jupyter's.
   * @param {KeyboardEvent} event
   */
  keepFromJupyter(event) {
    if (!(event.target instanceof HTMLElement) || !this.root.contains(event.target)) return;
    const ours = !event.ctrlKey && !event.metaKey && !event.altKey;
    event.target.toggleAttribute("data-lm-suppress-shortcuts", ours);
  }

  /** @param {number} direction */
  stepStage(direction) {
    const pane = this.stagePane();
    const stages = this.store.manifest.stages.filter(
      (stage) => !stage.artifacts.some((artifact) => this.isHome(artifact.id)),
    );
    const at = stages.findIndex((stage) => stage.name === pane.stage) + direction;
    if (stages[at]) pane.showStage(stages[at].name, pane.side);
    pane.view?.focus();
  }

  /** The next way of showing what the pane shows: text, list, graph. */
  toggleGraph() {
    const pane = this.stagePane();
    const modes = pane.modesOf(pane.artifact);
    pane.show(pane.artifact, modes[(modes.indexOf(pane.mode) + 1) % modes.length]);
    pane.view?.focus();
  }

  cyclePanes() {
    const panes = this.allPanes();
    panes[(panes.indexOf(this.active) + 1) % panes.length].view?.focus();
  }

  // Looks

  toggleInspector() {
    this.root.classList.toggle("tc-no-inspector");
  }

  toggleColours() {
    this.store.colours = !this.store.colours;
    this.store.tell("rainbow");
  }

  showColours() {
    this.colours?.setAttribute("aria-pressed", String(this.store.colours));
    for (const pane of this.allPanes()) pane.showColours();
    this.soon("ribbon");
  }

  showKeys() {
    this.source.withTools(() => TOOLS.showKeys?.(this.root));
  }

  /** Large type, one pane at a time, for a lecture hall; or back from that. */
  present() {
    this.source.withTools(() => TOOLS.present?.(this));
  }

  toggleFullScreen() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.root.requestFullscreen().catch(() => this.notify("This browser keeps the view from filling the screen."));
  }

  fitWidth() {
    const width = this.root.clientWidth;
    this.root.classList.toggle("tc-narrow", width < NARROW);
    this.root.classList.toggle("tc-medium", width >= NARROW && width < MEDIUM);
    this.ribbon.fit();
  }

  toggleTheme() {
    const dark = getComputedStyle(this.root).colorScheme === "dark";
    document.documentElement.dataset.tcTheme = dark ? "light" : "dark";
    this.soon("ribbon");
  }

  /** Drawings on canvas don't follow CSS: tell them when the theme changes. */
  watchTheme() {
    const changed = () => requestAnimationFrame(() => this.allPanes().forEach((pane) => pane.view?.themeChanged()));
    this.themeObserver = new MutationObserver(changed);
    for (const element of [document.documentElement, document.body]) {
      this.themeObserver.observe(element, {
        attributeFilter: ["class", "theme", "data-jp-theme-light", "data-vscode-theme-kind", "data-tc-theme"],
      });
    }
    const { signal } = this.stopping;
    for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
      window.matchMedia(query).addEventListener("change", changed, { signal });
    }
    const printed = () => this.allPanes().forEach((pane) => pane.view?.themeChanged());
    window.matchMedia("print").addEventListener("change", printed, { signal });
  }

  destroy() {
    this.stopListening();
    this.stopping.abort();
    this.observer?.disconnect();
    this.themeObserver?.disconnect();
    cancelAnimationFrame(this.frame);
    this.ribbon.destroy();
    this.search.destroy();
    for (const pane of this.allPanes()) pane.destroy();
    this.root.replaceChildren();
  }
}
