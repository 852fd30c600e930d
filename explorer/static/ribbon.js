// The pipeline across the top: a chip a stage, in order, in at most two rows. Groups of stages fold to one chip with a
// list below it where they would take more.

import { counted, h, icon, replaceKeepingFocus, secondsInWords } from "./dom.js";
import { StageGroup } from "./stage_group.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").StageInfo} StageInfo */

/** Stages of what had better not be there. */
const WARNING = new Set(["breaks", "recompiles"]);
const MOST_ROWS = 2;

export class Ribbon {
  /**
   * @param {Store} store
   * @param {(stage: string, beside: boolean) => void} open
   */
  constructor(store, open) {
    this.store = store;
    this.open = open;
    this.root = h("nav", { class: "tc-ribbon", "aria-label": "Stages of the pipeline" });
    /** @type {Map<string, HTMLButtonElement>} */
    this.chips = new Map();
    /** @type {StageGroup[]} */
    this.groups = [];
    this.timer = 0;
  }

  /** @param {Set<string>} open the stages that are */
  render(open) {
    const { stages } = this.store.manifest;
    const running = this.store.running;
    const chips = stages.map((stage) => this.chip(stage));
    this.chips = new Map(stages.map((stage, index) => [stage.name, chips[index]]));
    const missing = running.stage && !this.chips.has(running.stage);
    if (missing) chips.push(this.runningChip(running.title ?? running.stage ?? ""));
    const unfurled = this.groups.find((group) => group.isOpen)?.name;
    this.groups.forEach((group) => group.destroy());
    this.groups = inGroups(stages, chips);
    replaceKeepingFocus(this.root, this.groups.map((group) => group.root));
    this.clock();
    this.mark(open);
    this.groups.find((group) => group.name === unfurled)?.open();
  }

  /** Fold groups until the rest has room: first what is not made yet, then the widest; and unfold what has room again. */
  fit() {
    const room = this.root.clientWidth;
    if (!room) return;
    const [folded, whole] = [true, false].map((fold) => this.widths(fold));
    const widths = [...whole];
    const fits = () => rowsOf(widths, room) <= MOST_ROWS;
    const gain = (/** @type {number} */ at) => (this.groups[at].isPending ? room : 0) + whole[at] - folded[at];
    const order = widths.map((_, at) => at).filter((at) => this.groups[at].chips.length > 1 && whole[at] > folded[at]);
    order.sort((one, two) => gain(two) - gain(one));
    for (const at of order) if (!fits()) widths[at] = folded[at];
    for (const at of order.reverse()) {
      const width = widths[at];
      widths[at] = whole[at];
      if (!fits()) widths[at] = width;
    }
    this.groups.forEach((group, at) => group.fold(widths[at] < whole[at]));
  }

  /** The widths of all groups in points, folded or not: all at once, as reading lays out the page. @param {boolean} fold */
  widths(fold) {
    const was = this.groups.map((group) => group.isFolded);
    this.groups.forEach((group) => group.look(fold));
    const widths = this.groups.map((group) => Math.ceil(group.root.getBoundingClientRect().width));
    this.groups.forEach((group, at) => group.look(was[at]));
    return widths;
  }

  /** @param {StageInfo} stage @returns {HTMLButtonElement} */
  chip(stage) {
    const parts = [h("span", { class: "tc-chip-name" }, stage.title)];
    if (stage.problems.length) parts.push(h("span", { class: "tc-chip-problem" }, icon("warning")));
    const time = h("span", { class: "tc-chip-time" }, stage.seconds === null ? "" : secondsInWords(stage.seconds));
    const facts = h("span", { class: "tc-chip-facts" }, h("span", {}, factOf(stage)), " ", time);
    const chip = h(
      "button",
      {
        class: "tc-chip",
        type: "button",
        title: this.tooltip(stage),
        onclick: (/** @type {MouseEvent} */ event) =>
          this.open(stage.name, event.ctrlKey || event.metaKey || event.shiftKey),
      },
      h("span", { class: "tc-chip-top" }, ...parts),
      " ",
      facts,
      " ",
      h("span", { class: "tc-chip-links" }),
    );
    chip.dataset.stage = stage.name;
    chip.classList.toggle("tc-problem", stage.problems.length > 0);
    chip.classList.toggle("tc-warns", WARNING.has(stage.name) && stage.count > 0);
    chip.classList.toggle("tc-absent", stage.artifacts.length === 0 && !stage.pending);
    chip.classList.toggle("tc-pending-chip", stage.artifacts.length === 0 && stage.pending > 0);
    return chip;
  }

  /** @param {StageInfo} stage */
  tooltip(stage) {
    const problems = stage.problems.map((problem) => `\n⚠ ${problem.reason}`).join("");
    const pending = stage.pending ? `\nNot ${making(stage)} yet${stage.makes ? "" : `: ${counted(stage.pending, "kernel")}`}.` : "";
    return `${stage.about}${problems}${pending}\nrun["${stage.name}"]. Click to open, Shift-click to open to the side.`;
  }

  /** @param {string} title @returns {HTMLButtonElement} */
  runningChip(title) {
    const facts = h("span", { class: "tc-chip-facts" }, h("span", { class: "tc-chip-time" }));
    const chip = h(
      "button",
      { class: "tc-chip tc-running", type: "button", disabled: true },
      h("span", { class: "tc-chip-top" }, h("span", { class: "tc-chip-name" }, title)),
      facts,
    );
    return chip;
  }

  /** Show for how long the running stage has been running, while one is. */
  clock() {
    clearInterval(this.timer);
    const { stage } = this.store.running;
    if (!stage) return;
    const chip = this.chips.get(stage) ?? this.root.querySelector(".tc-running");
    chip?.classList.add("tc-running");
    this.groups.forEach((group) => group.mark());
    const time = chip?.querySelector(".tc-chip-time");
    const show = () => {
      if (time) time.textContent = `${((performance.now() - this.store.runningSince) / 1000).toFixed(1)} s`;
    };
    show();
    this.timer = setInterval(show, 100);
  }

  /** Mark the stages that are open, and say how much of the selection is in each. @param {Set<string>} open */
  mark(open) {
    for (const stage of this.store.manifest.stages) {
      const chip = this.chips.get(stage.name);
      if (!chip) continue;
      const linked = stage.artifacts.reduce((sum, artifact) => sum + (this.store.linkedIn.get(artifact.id) ?? 0), 0);
      const links = chip.querySelector(".tc-chip-links");
      if (links) links.textContent = linked > 99 ? "99+" : String(linked || "");
      chip.classList.toggle("tc-has-links", linked > 0);
      chip.setAttribute("aria-pressed", String(open.has(stage.name)));
    }
    this.groups.forEach((group) => group.mark());
    this.fit();
  }

  destroy() {
    clearInterval(this.timer);
    this.groups.forEach((group) => group.destroy());
  }
}

/** The chips, those of one group together. @param {StageInfo[]} stages @param {HTMLButtonElement[]} chips */
function inGroups(stages, chips) {
  /** @type {{name: string, chips: HTMLButtonElement[]}[]} */
  const groups = [];
  chips.forEach((chip, index) => {
    const name = stages[index]?.group;
    const last = groups.at(-1);
    if (last && (!name || last.name === name)) last.chips.push(chip);
    else groups.push({ name: name ?? "", chips: [chip] });
  });
  return groups.map((group) => new StageGroup(group.name, group.chips));
}

/** How many rows boxes of these widths take. @param {number[]} widths @param {number} room */
function rowsOf(widths, room) {
  let [rows, left] = [1, room];
  for (const width of widths) {
    if (width > left && left < room) [rows, left] = [rows + 1, room];
    left -= width;
  }
  return rows;
}

/** How much is in a stage, or why nothing is. @param {StageInfo} stage */
function factOf(stage) {
  const { artifacts, count, sides, unit, pending } = stage;
  if (artifacts.length && pending && !stage.makes) return `${artifacts.length} of ${counted(artifacts.length + pending, "kernel")}`;
  const counts = sides?.length ? sides : [count];
  if (artifacts.length) return `${counts.map((each) => each.toLocaleString("en")).join(" and ")} ${unit}`.trim();
  return pending ? `not ${making(stage)}` : "not available";
}

/** What is to be done to get a stage. @param {StageInfo} stage */
function making({ makes }) {
  return makes ? "generated" : "compiled";
}
