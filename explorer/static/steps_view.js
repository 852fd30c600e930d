// How TorchDynamo read the code, one instruction at a time: where it is, and what it held when it came there.

import { counted, h, icon, menu } from "./dom.js";
import { Reading } from "./steps_state.js";
import { StepperView } from "./stepper.js";
import { VirtualRows } from "./virtual_rows.js";

/** @typedef {import("./steps_state.js").State} State */
/** @typedef {import("./steps_state.js").Step} Step */

/** Of a list, so many entries are shown. */
const SHOWN = 200;

/** How a step ends where what follows can't be in this graph. */
const RESTARTS = "SpeculationRestartAnalysis";

/** @type {[string, string, string][]} key, sign and what it does */
const MOVES = [
  ["Home", "⇤", "First step (Home)"],
  ["Shift-ArrowLeft", "↶", "Back over calls (Shift ←)"],
  ["ArrowLeft", "←", "Back (←)"],
  ["ArrowRight", "→", "Forward (→)"],
  ["Shift-ArrowRight", "↷", "Forward over calls (Shift →)"],
  ["End", "⇥", "Last step (End)"],
];

export class StepsView extends StepperView {
  /**
   * @param {HTMLElement} root @param {import("./text_view.js").Callbacks} callbacks
   * @param {import("./store.js").Artifact} artifact @param {import("./store.js").Store} store
   */
  constructor(root, callbacks, artifact, store) {
    super(callbacks, MOVES);
    this.store = store;
    /** @type {import("./steps_state.js").StepsData} */
    this.data = artifact.view;
    this.number = 0;
    this.reading = new Reading(this.data, 0);
    const { readings } = this.data;
    const names = readings.map(({ frame, attempt, title }) => {
      const again = readings.some((other) => other.frame === frame && other.attempt > 1);
      return again ? `${title}, attempt ${attempt}` : title;
    });
    this.chooser = menu("Frame and attempt", names, 0, (index) => this.show(index, 0));
    this.notes = h("div", { class: "tc-steps-notes" });
    this.path = h("nav", { class: "tc-steps-path", "aria-label": "Calls that are being read" });
    this.list = h("div", {
      class: "tc-steps-list",
      tabIndex: 0,
      role: "listbox",
      "aria-label": "Instructions",
    });
    this.panels = h("div", { class: "tc-steps-panels" });
    const main = h("div", { class: "tc-steps-main" }, this.list, this.panels);
    this.root = h("div", { class: "tc-steps-view" }, this.bar(), this.slider, this.notes, this.path, main);
    root.replaceChildren(this.root);
    this.rows = new VirtualRows(this.list, (at) => this.row(at));
    this.root.addEventListener("keydown", (event) => this.pressed(event));
    this.list.addEventListener("click", (event) => {
      const row = event.target instanceof Element && event.target.closest(".tc-step");
      if (row instanceof HTMLElement && getSelection()?.isCollapsed) this.go(Number(row.dataset.at));
    });
    this.show(0, 0, false);
  }

  bar() {
    const title = "To the instruction before the next graph break (b)";
    const toBreak = h(
      "button",
      { class: "tc-button tc-text", type: "button", title, onclick: () => this.toBreak() },
      icon("warning"),
      " break",
    );
    const moves = h(
      "div",
      { class: "tc-steps-moves", role: "group", "aria-label": "Move" },
      ...this.buttons,
      this.data.breaks.length > 0 && toBreak,
    );
    return h("div", { class: "tc-view-bar" }, this.chooser, moves, this.count);
  }

  // Moving

  /** Show an attempt at a frame. @param {number} number @param {number} at @param {boolean} [tell] */
  show(number, at, tell = true) {
    if (number !== this.number) this.reading = new Reading(this.data, number);
    this.number = number;
    this.chooser.value = String(number);
    this.slider.max = String(this.reading.length - 1);
    this.rows.reset(this.reading.length, "0px");
    this.go(at, tell);
  }

  get length() {
    return this.reading.length;
  }

  /** Which attempt at which frame, and which of its steps. */
  get state() {
    return this.number || this.at ? `${this.number}.${this.at}` : "";
  }

  set state(state) {
    const [number, at] = state.split(".").map(Number);
    if (number in this.data.readings) this.show(number, at || 0);
  }

  draw() {
    const step = this.reading.step(this.at);
    const state = this.reading.state(this.at);
    this.notes.replaceChildren(...this.notesOn(step));
    this.path.replaceChildren(...this.pathOf(state, step));
    this.panels.replaceChildren(...panelsOf(state));
    this.rows.reveal(this.at);
    this.list.setAttribute("aria-activedescendant", `tc-step-${this.at}`);
    for (const row of this.rows.live.values()) this.mark(row);
    return { source: step.source, words: `${step.opcode} ${step.argument}, line ${step.line}` };
  }

  /** @param {string} key */
  move(key) {
    const direction = { "Shift-ArrowLeft": -1, "Shift-ArrowRight": 1 }[key];
    if (!direction) return super.move(key);
    this.go(this.reading.over(this.at, direction));
    return true;
  }

  /** To the instruction at which the next graph break happened; after the last, the first. */
  toBreak() {
    const here = this.reading.steps[this.at];
    const steps = this.data.breaks.map(([step]) => step).sort((a, b) => a - b);
    const next = steps.find((step) => step > here) ?? steps[0];
    const number = this.data.readings.findIndex(({ spans }) =>
      spans.some(([first, end]) => next >= first && next < end),
    );
    if (number < 0) return;
    this.show(number, new Reading(this.data, number).place(next));
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target instanceof HTMLSelectElement) return;
    const key = event.shiftKey ? `Shift-${event.key}` : event.key;
    if (event.key === "b" && this.data.breaks.length) this.toBreak();
    else if (key === "ArrowUp" || key === "ArrowDown") this.go(this.at + (key === "ArrowUp" ? -1 : 1));
    else if (!this.move(key)) return;
    event.preventDefault();
  }

  // What is shown

  /** What there is to know about this step besides its state. @param {Step} step */
  notesOn(step) {
    const { why, attempt } = this.reading.info;
    const broke = this.data.breaks
      .filter(([number]) => number === this.reading.steps[this.at])
      .map(([, words]) => `Graph break: ${words}`);
    const again = attempt > 1 ? [`Read anew${why ? `: ${why}` : "."}`] : [];
    const ended = step.ended.startsWith(RESTARTS)
      ? "TorchDynamo stopped here, and read the function anew."
      : step.ended && `It ended in ${step.ended}`;
    const warnings = [...broke, broke.length ? "" : ended, this.data.cut].filter(Boolean);
    return [
      ...again.map((words) => h("p", {}, words)),
      ...warnings.map((words) => h("p", { class: "tc-steps-warning" }, icon("warning"), words)),
    ];
  }

  /** @param {State} state @param {Step} step */
  pathOf(state, step) {
    const calls = state.calls.flatMap(({ last }, depth) => {
      const call = this.reading.step(last);
      const button = h(
        "button",
        { type: "button", class: "tc-steps-call", title: placeOf(call), onclick: () => this.go(last) },
        call.function,
      );
      return depth ? [h("span", { "aria-hidden": "true" }, "›"), button] : [button];
    });
    const code = this.store.links.entity(step.source)?.label ?? "";
    const line = h("div", { class: "tc-steps-line" }, h("span", {}, placeOf(step)), h("code", {}, code));
    return [h("div", { class: "tc-steps-calls" }, ...calls), line];
  }

  /** @param {number} at */
  row(at) {
    const step = this.reading.step(at);
    const before = at > 0 ? this.reading.step(at - 1) : null;
    const same = before && !step.first && before.line === step.line && before.depth === step.depth;
    const added = this.reading.nodes.count(at);
    const row = h(
      "div",
      {
        class: "tc-step",
        role: "option",
        id: `tc-step-${at}`,
        title: `${step.opcode} ${step.argument}\n${placeOf(step)} in ${step.function}`,
      },
      h("span", { class: "tc-number" }, same || step.line < 0 ? "" : String(step.line)),
      h("span", { class: "tc-step-op", style: { paddingLeft: `${Math.min(step.depth, 12)}ch` } }, step.opcode),
      h("span", { class: "tc-step-argument" }, step.argument),
      step.first && h("span", { class: "tc-step-note" }, `in ${step.function}`),
      added > 0 &&
        h("span", { class: "tc-step-added", title: `adds ${counted(added, "node")} to the graph` }, `+${added}`),
    );
    row.dataset.at = String(at);
    row.classList.toggle("tc-step-ended", Boolean(step.ended));
    row.classList.toggle("tc-step-new", !same);
    this.mark(row);
    return row;
  }

  /** @param {HTMLElement} row */
  mark(row) {
    const at = Number(row.dataset.at);
    row.classList.toggle("tc-primary", at === this.at);
    row.classList.toggle("tc-hit", this.found.includes(at));
    row.setAttribute("aria-selected", String(at === this.at));
  }

  // What panes ask of it

  /** @param {Set<string>} primary @param {Set<string>} linked @param {boolean} reveal */
  select(primary, linked, reveal) {
    const [first] = primary;
    this.linked = linked;
    this.following.selected = primary.size === 1 ? first : "";
    if (!reveal || linked.has(this.reading.step(this.at).source)) return;
    const source = this.data.strings.includes(first) ? first : this.store.stack(first ?? "").at(-1);
    if (!source) return;
    const numbers = [this.number, ...this.data.readings.keys()];
    for (const number of numbers) {
      const reading = number === this.number ? this.reading : new Reading(this.data, number);
      const at = reading.find(source, number === this.number ? this.at : 0);
      if (at >= 0) return this.show(number, at, false);
    }
  }

  /** The times that a line of the selection is read. */
  stops() {
    const isOn = (/** @type {number} */ at) => this.linked.has(this.reading.step(at).source);
    return [...this.reading.steps.keys()].filter((at) => isOn(at) && (at === 0 || !isOn(at - 1)));
  }

  /** @param {string} wanted */
  search(wanted) {
    return this.reading.search(wanted);
  }

  focus() {
    this.list.focus({ preventScroll: true });
  }

  destroy() {
    super.destroy();
    this.rows.destroy();
  }
}

/** @param {Step} step */
function placeOf({ file, line }) {
  return line > 0 ? `${file}:${line}` : file;
}

/** @param {State} state */
function panelsOf({ stack, kept, locals, changed, nodes, newNodes, guards, newGuards }) {
  const values = stack.map((text, index) => ({ text, fresh: index >= kept })).reverse();
  const names = [...locals].map(([name, text]) => ({ name, text, fresh: changed.has(name) }));
  return [
    panel("Stack, top first", values, stack.length),
    panel(
      "Locals",
      names.sort((a, b) => Number(b.fresh) - Number(a.fresh)),
      locals.size,
    ),
    panel("Graph, newest first", newestFirst(nodes, newNodes), nodes.length),
    panel("Guards, newest first", newestFirst(guards, newGuards), guards.length),
  ];
}

/** @param {string[]} texts @param {number} fresh how many of the last are new */
function newestFirst(texts, fresh) {
  const last = texts.slice(-SHOWN).reverse();
  return last.map((text, index) => ({ text, fresh: index < fresh }));
}

/** @param {string} title @param {{name?: string, text: string, fresh: boolean}[]} entries @param {number} total */
function panel(title, entries, total) {
  const items = entries
    .slice(0, SHOWN)
    .map(({ name, text, fresh }) =>
      h("li", { class: fresh ? "tc-fresh" : "", title: text }, name ? h("b", {}, name) : null, h("span", {}, text)),
    );
  if (total > items.length)
    items.push(h("li", { class: "tc-why" }, `… and ${(total - items.length).toLocaleString("en")} before`));
  const heading = h("h4", {}, title, h("small", {}, String(total)));
  return h("section", {}, heading, h("ul", { "aria-label": title }, ...items));
}
