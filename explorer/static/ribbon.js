// The pipeline across the top: a chip a stage, in order.

import { h, icon, replaceKeepingFocus, secondsInWords } from "./dom.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").StageInfo} StageInfo */

export class Ribbon {
  /**
   * @param {Store} store
   * @param {(stage: string, beside: boolean) => void} open
   */
  constructor(store, open) {
    this.store = store;
    this.open = open;
    this.root = h("nav", { class: "tc-ribbon", "aria-label": "Stages of the pipeline", onscroll: () => this.fade() });
    this.observer = new ResizeObserver(() => this.fade());
    this.observer.observe(this.root);
    /** @type {Map<string, HTMLButtonElement>} */
    this.chips = new Map();
    /** @type {Set<string>} */
    this.openStages = new Set();
    this.timer = 0;
  }

  render() {
    const { stages } = this.store.manifest;
    const running = this.store.running;
    const chips = stages.map((stage) => this.chip(stage));
    this.chips = new Map(stages.map((stage, index) => [stage.name, chips[index]]));
    const missing = running.stage && !this.chips.has(running.stage);
    if (missing) chips.push(this.runningChip(running.title ?? running.stage ?? ""));
    replaceKeepingFocus(this.root, chips);
    this.clock();
    this.mark(this.openStages);
    this.fade();
  }

  /** Fade the ends that go on out of sight. */
  fade() {
    const { scrollLeft, scrollWidth, clientWidth } = this.root;
    this.root.classList.toggle("tc-more-before", scrollLeft > 1);
    this.root.classList.toggle("tc-more-after", scrollLeft + clientWidth < scrollWidth - 1);
  }

  /** @param {StageInfo} stage @returns {HTMLButtonElement} */
  chip(stage) {
    const parts = [h("span", { class: "tc-chip-name" }, stage.title)];
    if (stage.problems.length) parts.push(h("span", { class: "tc-chip-problem" }, icon("warning")));
    const facts = h("span", { class: "tc-chip-facts" });
    if (stage.artifacts.length) facts.append(h("span", {}, `${stage.count.toLocaleString("en")} ${stage.unit}`.trim()));
    else facts.append(h("span", {}, "not available"));
    facts.append(h("span", { class: "tc-chip-time" }, stage.seconds === null ? "" : secondsInWords(stage.seconds)));
    const chip = h(
      "button",
      {
        class: "tc-chip",
        type: "button",
        title: this.tooltip(stage),
        "aria-label": stage.title,
        onclick: (/** @type {MouseEvent} */ event) =>
          this.open(stage.name, event.ctrlKey || event.metaKey || event.shiftKey),
      },
      h("span", { class: "tc-chip-top" }, ...parts),
      facts,
      h("span", { class: "tc-chip-links" }),
    );
    chip.dataset.stage = stage.name;
    chip.classList.toggle("tc-problem", stage.problems.length > 0);
    chip.classList.toggle("tc-absent", stage.artifacts.length === 0);
    return chip;
  }

  /** @param {StageInfo} stage */
  tooltip(stage) {
    const problems = stage.problems.map((problem) => `\n⚠ ${problem.reason}`).join("");
    return `${stage.about}${problems}\nClick to open, Shift-click to open beside.`;
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
    const time = chip?.querySelector(".tc-chip-time");
    const show = () => {
      if (time) time.textContent = `${((performance.now() - this.store.runningSince) / 1000).toFixed(1)} s`;
    };
    show();
    this.timer = setInterval(show, 100);
  }

  /** Mark the stages that are open, and say how much of the selection is in each. @param {Set<string>} open */
  mark(open) {
    this.openStages = open;
    for (const stage of this.store.manifest.stages) {
      const chip = this.chips.get(stage.name);
      if (!chip) continue;
      const linked = stage.artifacts.reduce((sum, artifact) => sum + (this.store.linkedIn.get(artifact.id) ?? 0), 0);
      const links = chip.querySelector(".tc-chip-links");
      if (links) links.textContent = linked > 99 ? "99+" : String(linked || "");
      chip.classList.toggle("tc-has-links", linked > 0);
      if (open.has(stage.name) && chip.getAttribute("aria-pressed") !== "true") this.show(chip);
      chip.setAttribute("aria-pressed", String(open.has(stage.name)));
    }
  }

  /** Scroll the ribbon, and nothing else, to a chip. @param {HTMLElement} chip */
  show(chip) {
    const left = chip.offsetLeft - this.root.offsetLeft;
    const { scrollLeft, clientWidth } = this.root;
    if (left < scrollLeft) this.root.scrollLeft = left;
    else if (left + chip.offsetWidth > scrollLeft + clientWidth)
      this.root.scrollLeft = left + chip.offsetWidth - clientWidth;
  }

  destroy() {
    clearInterval(this.timer);
    this.observer.disconnect();
  }
}
