// How TorchDynamo read the code, one instruction at a time: where it is, and what it held when it came there.

import { counted, h, icon } from "./dom.js";
import { Reading } from "./steps_state.js";
import { Following, moveButtons, nextStop } from "./stepper.js";
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

/** Implements `View` of `views.js`. */
export class StepsView {
  /**
   * @param {HTMLElement} root @param {import("./text_view.js").Callbacks} callbacks
   * @param {import("./store.js").Artifact} artifact @param {import("./store.js").Store} store
   */
  constructor(root, callbacks, artifact, store) {
    this.store = store;
    /** @type {import("./steps_state.js").StepsData} */
    this.data = artifact.view;
    this.number = 0;
    this.reading = new Reading(this.data, 0);
    this.at = 0;
    this.following = new Following(callbacks);
    /** @type {number[]} */
    this.found = [];
    this.hit = -1;
    this.chooser = h("select", { class: "tc-choose", "aria-label": "Frame and attempt" });
    this.chooser.append(
      ...this.data.readings.map(({ frame, attempt, title }, index) => {
        const again = this.data.readings.some((other) => other.frame === frame && other.attempt > 1);
        return h("option", { value: String(index) }, again ? `${title}, attempt ${attempt}` : title);
      }),
    );
    this.chooser.addEventListener("change", () => this.show(Number(this.chooser.value), 0));
    this.slider = h("input", {
      type: "range",
      min: "0",
      "aria-label": "Step",
      oninput: () => this.go(Number(this.slider.value)),
    });
    this.count = h("span", { class: "tc-bytecode-count", role: "status" });
    this.notes = h("div", { class: "tc-steps-notes" });
    this.path = h("nav", { class: "tc-steps-path", "aria-label": "Calls that are being read" });
    this.list = h("div", {
      class: "tc-bytecode tc-steps-list",
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
    const buttons = moveButtons(MOVES, (key) => this.move(key));
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
      ...buttons,
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

  /** @param {number} at @param {boolean} [tell] whether the source is to follow */
  go(at, tell = true) {
    this.at = Math.min(Math.max(at, 0), this.reading.length - 1);
    const step = this.reading.step(this.at);
    const state = this.reading.state(this.at);
    this.slider.value = String(this.at);
    this.slider.setAttribute("aria-valuetext", `${step.opcode} ${step.argument}, line ${step.line}`);
    const [place, all] = [this.at + 1, this.reading.length].map((number) => number.toLocaleString("en"));
    this.count.textContent = `step ${place} of ${all}`;
    this.notes.replaceChildren(...this.notesOn(step));
    this.path.replaceChildren(...this.pathOf(state, step));
    this.panels.replaceChildren(...panelsOf(state));
    this.rows.reveal(this.at);
    this.list.setAttribute("aria-activedescendant", `tc-step-${this.at}`);
    for (const row of this.rows.live.values()) this.mark(row);
    if (tell) this.following.tell(step.source);
  }

  /** @param {string} key */
  move(key) {
    /** @type {Record<string, () => number>} */
    const places = {
      Home: () => 0,
      End: () => this.reading.length - 1,
      ArrowLeft: () => this.at - 1,
      ArrowRight: () => this.at + 1,
      "Shift-ArrowLeft": () => this.reading.over(this.at, -1),
      "Shift-ArrowRight": () => this.reading.over(this.at, 1),
    };
    if (!(key in places)) return false;
    this.go(places[key]());
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
      h("span", { class: "tc-bc-op", style: { paddingLeft: `${Math.min(step.depth, 12)}ch` } }, step.opcode),
      h("span", { class: "tc-bc-argument" }, step.argument),
      step.first && h("span", { class: "tc-bc-note" }, `in ${step.function}`),
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

  preview() {}

  /** To the next time that a line of the selection is read. @param {number} direction @returns {[number, number]} */
  stepLinked(direction) {
    const all = this.reading.steps.keys();
    const stops = [...all].filter(
      (at) =>
        this.linked?.has(this.reading.step(at).source) &&
        (at === 0 || !this.linked.has(this.reading.step(at - 1).source)),
    );
    if (!stops.length) return [0, 0];
    const index = nextStop(stops, this.at, direction);
    this.go(stops[index], false);
    return [index + 1, stops.length];
  }

  /** @param {string} query @returns {[number, number, boolean]} */
  find(query) {
    const wanted = query.toLowerCase();
    this.found = wanted ? this.reading.search(wanted) : [];
    this.hit = this.found.findIndex((at) => at >= this.at);
    if (this.hit < 0 && this.found.length) this.hit = 0;
    return this.stepHit(0);
  }

  /** @param {number} direction @returns {[number, number, boolean]} */
  stepHit(direction) {
    if (this.found.length) this.hit = (this.hit + direction + this.found.length) % this.found.length;
    this.go(this.found[this.hit] ?? this.at);
    return [this.hit + 1, this.found.length, false];
  }

  focus() {
    this.list.focus({ preventScroll: true });
  }

  themeChanged() {}

  destroy() {
    this.following.stop();
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
