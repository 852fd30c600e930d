// The bar on top of a pane: what it shows, how, how much of the selection is in it, and its tools.

import { h, iconButton, modes, replaceKeepingFocus } from "./dom.js";
import { sharedStarts, shortName } from "./names.js";
import { TextView } from "./text_view.js";

/** @typedef {import("./pane.js").Pane} Pane */
/** @typedef {import("./pane.js").Mode} Mode */
/** @typedef {import("./store.js").StageInfo} StageInfo */
/** @typedef {import("./store.js").ArtifactInfo} ArtifactInfo */

/** So many characters of a name are offered to choose from; of two that are compared, so many. */
const LONGEST = 44;
const LONGEST_OF_TWO = 26;

export class PaneHeader {
  /** @param {Pane} pane */
  constructor(pane) {
    this.pane = pane;
    this.root = h("div", { class: "tc-pane-header" });
    this.links = h("div", { class: "tc-link-count" });
    this.key = "";
  }

  /** Draw what has changed; a list that someone has just opened must not be replaced for nothing. */
  render() {
    this.renderLinks();
    const { artifact, stage, compared, mode, isBeside, content: view, store, home } = this.pane;
    const folds = view instanceof TextView && view.folds.size > 0;
    const places = view instanceof TextView && view.places.size > 0;
    const known = [...store.artifacts].map(([id, { entities }]) => [id, mode === "diff" && Boolean(entities)]);
    const key = JSON.stringify([artifact, artifact || stage, mode === "diff" && [compared, isBeside], mode, home, Boolean(view), folds, places, known]);
    if (key === this.key) return;
    this.key = key;
    const info = store.artifacts.get(artifact)?.info;
    const children = [...this.choosers(), this.links, this.tools(Boolean(info), folds, places)];
    const ways = info ? this.pane.modesOf(artifact) : [];
    if (mode === "diff") children.splice(-2, 0, this.arrangements(isBeside));
    if (ways.length > 1) children.splice(-2, 0, this.modes(ways));
    if (info?.level && mode !== "diff") children.splice(1, 0, this.levels(info));
    replaceKeepingFocus(this.root, children, this.pane.root);
  }

  /** @returns {HTMLElement[]} */
  choosers() {
    const { pane } = this;
    if (pane.mode !== "diff") return [this.chooser(pane.artifact, (id) => pane.show(id))];
    return [
      this.chooser(pane.compared[0], (id) => pane.compareAs(id, pane.compared[1])),
      h("span", { class: "tc-versus" }, "→"),
      this.chooser(pane.compared[1], (id) => pane.compareAs(pane.compared[0], id)),
    ];
  }

  /** @param {string} current @param {(id: string) => void} choose */
  chooser(current, choose) {
    const { home, store } = this.pane;
    const { stages } = store.manifest;
    const isHome = (/** @type {ArtifactInfo} */ artifact) => store.manifest.home.includes(artifact.id);
    const offered = stages.filter((stage) => stage.artifacts.length > 0 && (!home || stage.artifacts.some(isHome)));
    const select = h("select", { class: "tc-choose", "aria-label": "What this pane shows" });
    if (!current) select.append(h("option", { value: "" }, store.stage(this.pane.stage)?.title ?? ""));
    const comparing = this.pane.mode === "diff";
    const kernels = (/** @type {string} */ id) => (comparing ? kernelsOf(store.artifacts.get(id)) : []);
    select.append(...offered.map((stage) => optionsOf(stage, home, kernels, comparing ? LONGEST_OF_TWO : LONGEST)));
    select.addEventListener("change", () => choose(select.value));
    select.value = current;
    return select;
  }

  /** The same graph at another level of decomposition. @param {ArtifactInfo} info */
  levels(info) {
    const infos = [...this.pane.store.artifacts.values()].map((artifact) => artifact.info);
    const same = infos.filter(({ level, graph }) => level && graph === info.graph);
    const wanted = info.half || same.find(({ half }) => half)?.half;
    const offered = same.filter(({ half }) => !half || half === wanted);
    const buttons = offered.map(({ id, level, title }) => {
      const onclick = () => this.pane.show(id, this.pane.mode);
      return h("button", { type: "button", title, "aria-pressed": String(id === info.id), onclick }, level);
    });
    return h("div", { class: "tc-modes", role: "group", "aria-label": "Level of decomposition" }, ...buttons);
  }

  /** @param {Mode[]} ways of showing the artifact */
  modes(ways) {
    const names = ways.map((mode) => ({ view: "View", text: "Text", list: "List", graph: "Graph", diff: "" })[mode]);
    return modes("View", names, ways.indexOf(this.pane.mode), (at) => this.pane.show(this.pane.artifact, ways[at]));
  }

  /** @param {boolean} isBeside whether the two texts that are compared stand side by side */
  arrangements(isBeside) {
    return modes("Arrangement", ["Side by side", "Unified"], isBeside ? 0 : 1, (at) => this.pane.arrange(at === 0));
  }

  /** How much of the selection is in this pane, or that there are differences, and going through them. */
  renderLinks() {
    const { mode, artifact, store, content: view } = this.pane;
    const differences = view instanceof TextView && Boolean(view.looks.stops?.length);
    const count = mode === "diff" ? 0 : (store.linkedIn.get(artifact) ?? 0);
    this.linkLabel = h("span", {}, differences ? "differences" : `${count.toLocaleString("en")} linked`);
    const up = iconButton("up", differences ? "Previous (p)" : "Previous linked (p)", () => this.step(-1));
    const down = iconButton("down", differences ? "Next (n)" : "Next linked (n)", () => this.step(1));
    replaceKeepingFocus(this.links, [up, this.linkLabel, down]);
    this.links.hidden = !count && !differences;
  }

  /** Go to the next or previous linked line. @param {number} direction */
  step(direction) {
    const [at, all] = this.pane.content?.stepLinked(direction) ?? [0, 0];
    if (this.linkLabel && all) this.linkLabel.textContent = `${at.toLocaleString("en")} / ${all.toLocaleString("en")}`;
  }

  /**
   * @param {boolean} shows whether there is an artifact @param {boolean} folds whether there is something to fold
   * @param {boolean} places whether there are places in the source to show
   */
  tools(shows, folds, places) {
    const { pane } = this;
    const tools = h("div", { class: "tc-pane-tools" });
    if (shows) tools.append(iconButton("search", "Search (/)", () => pane.host.search(pane)));
    if (folds) tools.append(iconButton("fold", "Fold or unfold long blocks", () => pane.toggleFolds()));
    if (places) tools.append(this.placesButton());
    if (shows && !pane.home) tools.append(this.compareButton());
    if (shows && pane.content instanceof TextView) tools.append(this.copyButton());
    if (pane.home) return tools;
    tools.append(
      iconButton("split", "Open to the side (\\)", () => pane.host.split(pane)),
      iconButton("close", "Close this pane", () => pane.host.close(pane)),
    );
    return tools;
  }

  placesButton() {
    const button = iconButton("places", "Show or hide lines that only name places in the source", () => {
      const view = this.pane.content;
      if (!(view instanceof TextView)) return;
      view.togglePlaces();
      button.setAttribute("aria-pressed", String(view.showsPlaces));
    });
    return button;
  }

  compareButton() {
    const { pane } = this;
    const comparing = pane.mode === "diff";
    const title = comparing ? "Stop comparing" : "Compare with another artifact";
    const toggle = () => (comparing ? pane.show(pane.artifact, "text") : pane.compare());
    const button = iconButton("compare", title, toggle);
    button.setAttribute("aria-pressed", String(comparing));
    return button;
  }

  copyButton() {
    const button = iconButton("copy", "Copy the text", async () => {
      if (!(this.pane.content instanceof TextView)) return;
      await this.pane.content.copy();
      button.classList.add("tc-done");
      setTimeout(() => button.classList.remove("tc-done"), 1200);
    });
    return button;
  }
}

/**
 * The artifacts of a stage, and kernels in them, to choose from.
 * @param {StageInfo} stage @param {boolean} home @param {(id: string) => import("./store.js").Entity[]} kernels
 * @param {number} longest name
 */
function optionsOf(stage, home, kernels, longest) {
  const group = h("optgroup", { label: stage.title });
  for (const { id, title, side } of stage.artifacts) {
    const told = title.toLowerCase() === stage.title.toLowerCase();
    const several = stage.artifacts.filter((artifact) => artifact.side === side).length > 1;
    const which = bracketed(id) || (several && !told ? title : "");
    const name = (side && `${side}: `) + (home ? title : `${stage.title} ${which}`.trim());
    group.append(h("option", { value: id, title: name }, shortName(name, longest)));
    const own = kernels(id);
    const shared = sharedStarts(own.map(({ label }) => label));
    for (const { id: kernel, label } of own) {
      group.append(h("option", { value: kernel, title: label }, `\u2003${shortName(label, longest, shared.get(label))}`));
    }
  }
  return group;
}

/** The kernels in a text that holds several. @param {import("./store.js").Artifact | undefined} artifact */
function kernelsOf(artifact) {
  const kernels = (artifact?.entities ?? []).filter(({ id, kind }) => kind === "kernel" && artifact?.rowsOf.has(id));
  return kernels.length > 1 ? kernels : [];
}

/** What tells an artifact from the others of its stage: `0/0 forward` of `ir[0/0 forward]`. @param {string} id */
export function bracketed(id) {
  return /\[(.*)\]/.exec(id)?.[1] ?? "";
}
