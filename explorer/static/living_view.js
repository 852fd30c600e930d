// The chain rule on a living graph: played forward with the values, then backward with the gradients; inputs, weights and
// the first gradient can be dragged, and everything follows.

import { valueBox } from "./chain_value.js";
import { elements, PIECES } from "./document.js";
import { h, icon } from "./dom.js";
import { readTheme } from "./graph_colours.js";
import { LATE_VIEWS } from "./late_views.js";
import { digitsOf, GraphCanvas, paintState, placeState } from "./living_canvas.js";
import { hasFew, LivingModel } from "./living_model.js";
import { countOf } from "./tensors.js";
import { saveButtons, zoomButtons } from "./picture.js";
import { StepperView } from "./stepper.js";

/**
 * @typedef {{id: string, select: string, direction: "forward" | "backward" | "leaf", node: string, said: string,
 *   formulas?: string[], norm: number | "inf" | null, card: import("./document.js").Part}} Step
 * @typedef {import("./living_model.js").Moment} Moment
 * A source, or with `seed` the gradient of an output. @typedef {{at: number, seed: boolean, name: string, shape: number[]}} Changeable
 */

PIECES.values = ({ data, name, flat }) => valueBox(data, name, flat);

/** In milliseconds: between two steps that are played, and what moves meanwhile. */
const PACE = 1400;
const MOVE = 650;
/** So long it waits for a kernel that is busy, before it evaluates by itself. */
const PATIENCE = 500;
/** Narrower than this, in points, the step is below the graph. */
const NARROW = 560;
/** A number that is dragged changes by this part of its size, or of 1, for each point. */
const DRAGGED = 0.01;

/** @type {[string, string, string][]} key, sign and what it does */
const MOVES = [
  ["Home", "⇤", "First step (Home)"],
  ["ArrowLeft", "←", "Back (←)"],
  [" ", "▶", "Play (space)"],
  ["ArrowRight", "→", "Forward (→)"],
  ["End", "⇥", "Last step (End)"],
];

export class ChainView extends StepperView {
  /**
   * @param {HTMLElement} root @param {import("./text_view.js").Callbacks} callbacks
   * @param {import("./store.js").Artifact} artifact @param {import("./store.js").Store} store
   */
  constructor(root, callbacks, artifact, store) {
    super(callbacks, MOVES);
    /** @type {{cards: Step[], note: string, health: string[], sick: number[], program?: import("./living_model.js").Recorded}} */
    this.data = artifact.view;
    this.steps = this.data.cards;
    this.store = store;
    this.callbacks = callbacks;
    const actions = { ...callbacks.actions, goTo: (/** @type {string} */ node) => this.goToNode(node) };
    /** @type {import("./document.js").Place} */
    this.place = { actions, item: (_, element) => element };
    this.theme = readTheme(root);
    this.playing = 0;
    this.frame = 0;
    this.late = 0;
    /** The element of a large tensor that is changed. */
    this.cell = 0;
    this.isChanging = false;
    /** @type {Changeable | undefined} */
    this.changing = undefined;
    /** @type {Moment} */
    this.moment = { at: 0, progress: 1, edges: "values" };
    this.slider.max = String(Math.max(this.steps.length - 1, 0));
    this.card = h("div", { class: "tc-scroll tc-chain-scroll", tabIndex: 0, "aria-label": "Step" });
    const stale = h("p", { class: "tc-living-stale" }, "The numbers below are those of the run; the graph has the changed ones.");
    this.card.setAttribute("role", "region");
    this.readout = h("p", { class: "tc-living-readout", role: "status" });
    const program = this.data.program?.nodes?.length ? this.data.program : null;
    this.model = program && new LivingModel(program, this.steps);
    this.canvas = this.model && this.makeCanvas(artifact.info.id);
    this.controls = h("div", { class: "tc-living-controls" });
    const graph = this.canvas ? [h("div", { class: "tc-living-graph" }, this.canvas.element, this.readout)] : [];
    this.body = h("div", { class: "tc-living-body" }, ...graph, h("div", { class: "tc-living-side" }, this.controls, stale, this.card));
    this.root = h("div", { class: "tc-chain-view" }, this.bar(), h("div", { class: "tc-chain-strips" }, this.slider), ...this.notes(), this.body);
    root.replaceChildren(this.root);
    this.root.addEventListener("keydown", (event) => this.pressed(event));
    this.observer = new ResizeObserver(() => this.root.classList.toggle("tc-narrow", this.root.clientWidth < NARROW));
    this.observer.observe(this.root);
    this.stopHearing = store.listen((what) => what === "evaluated" && this.heard());
    this.themeChanged();
    this.go(0, false);
    if (this.model) this.showControls(this.firstChangeable());
    else if (this.data.program?.problem) this.controls.append(h("p", { class: "tc-living-hint" }, `There is no graph: ${this.data.program.problem}.`));
  }

  /** @param {string} title */
  makeCanvas(title) {
    const canvas = new GraphCanvas(
      {
        choose: (id) => id && this.chosen(id),
        canGrab: (id, which) => Boolean(this.grabbable(id, which)),
        grab: (id, which, cell) => this.grab(id, which, cell),
        drag: (points) => this.dragged(points),
      },
      () => this.theme,
    );
    canvas.element.tabIndex = 0;
    this.picture = {
      title,
      size: () => /** @type {[number, number]} */ (canvas.size().map((side) => side + 32)),
      paint: (/** @type {CanvasRenderingContext2D} */ context) => {
        context.fillStyle = this.theme.bg;
        const [width, height] = canvas.size();
        context.fillRect(0, 0, width + 32, height + 32);
        context.translate(16, 16);
        paintState(context, canvas.state, this.theme);
      },
    };
    return canvas;
  }

  bar() {
    this.playButton = this.buttons[MOVES.findIndex(([key]) => key === " ")];
    const turn = this.steps.findIndex(({ direction }) => direction === "backward");
    const jump = (/** @type {string} */ words, /** @type {number} */ at) =>
      h("button", { class: "tc-button tc-text", type: "button", onclick: () => this.go(at) }, words);
    const jumps = turn > 0 ? [jump("forward", 0), jump("backward", turn)] : [];
    const { canvas, picture } = this;
    const tools = canvas && picture ? [zoomButtons({ zoom: (by) => canvas.zoom(by), fit: () => canvas.fit(), actualSize: () => canvas.zoom(1 / canvas.camera.scale) }), saveButtons(picture, this.callbacks.withTools)] : [];
    return h("div", { class: "tc-view-bar tc-chain-bar" }, h("div", { class: "tc-steps-moves" }, ...this.buttons), ...jumps, this.count, ...tools);
  }

  /** What is known of the whole pass: how healthy it is, where that ends, and what can't be changed. */
  notes() {
    const { note, health, sick } = this.data;
    const sickness = (/** @type {number} */ at) => {
      const { direction, node } = this.steps[at];
      const words = `step ${at + 1}, ${direction} of ${node}`;
      return h("button", { type: "button", class: "tc-chain-link", onclick: () => this.go(at) }, words);
    };
    const warning = sick.length
      ? [h("p", { class: "tc-steps-warning" }, icon("warning"), h("span", {}, "NaN or infinite first at ", ...between(sick.map(sickness))))]
      : [];
    const told = health.length ? [h("details", {}, h("summary", {}, health[0]), ...health.slice(1).map((words) => h("p", {}, words)))] : [];
    const early = note ? [h("p", {}, note)] : [];
    return [h("div", { class: "tc-steps-notes tc-chain-notes" }, ...warning, ...told, ...early)];
  }

  // Moving

  get length() {
    return this.steps.length;
  }

  draw() {
    const step = this.steps[this.at];
    if (!step) return { source: "", words: "" };
    const { card, direction, node, select } = step;
    this.card.replaceChildren(...elements([card], this.place));
    this.card.scrollTop = 0;
    this.card.dataset.direction = direction;
    this.moment = { at: this.at, progress: 1, edges: direction === "forward" ? "values" : "gradients" };
    this.drawGraph();
    this.reveal(node);
    return { source: select, words: `${direction}, ${node}`, kind: direction };
  }

  /** @param {string} node */
  reveal(node) {
    const at = this.model?.indexOf?.get(node);
    if (at === undefined || !this.model) return;
    if (!this.isChanging) this.canvas?.reveal(this.model.nodes[at].id);
    this.say(at);
  }

  /** Read a node out. @param {number} at */
  say(at) {
    if (!this.model) return;
    this.readout.textContent = this.model.reading(at, this.moment);
    this.canvas?.element.setAttribute("aria-label", `Graph of ${this.model.nodes.length} nodes. ${this.readout.textContent}`);
  }

  drawGraph() {
    if (!this.model || !this.canvas) return;
    const state = this.model.state(this.moment);
    const { placed } = this;
    if (placed) {
      state.nodes.forEach((node, at) => Object.assign(node, { x: placed.nodes[at].x, y: placed.nodes[at].y, w: placed.nodes[at].w, h: placed.nodes[at].h }));
      state.edges.forEach((edge, at) => (edge.points = placed.edges[at].points));
      [state.width, state.height] = [placed.width, placed.height];
    } else {
      /** @type {import("./living_canvas.js").State | undefined} */
      this.placed = placeState(state);
    }
    this.canvas.draw(state);
  }

  /** Go to a step, and let what it computes come along the edges. @param {number} at */
  goMoving(at) {
    this.go(at);
    if (!this.canvas || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    const start = performance.now();
    const move = (/** @type {number} */ now) => {
      this.moment = { ...this.moment, progress: Math.min(1, (now - start) / MOVE) };
      this.drawGraph();
      this.frame = this.moment.progress < 1 ? requestAnimationFrame(move) : 0;
    };
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(move);
  }

  /** To a node's step on this way, forward or backward. @param {string} node */
  goToNode(node) {
    const forward = this.steps[this.at].direction === "forward";
    const fits = (/** @type {Step} */ step) => step.node === node && (step.direction === "forward") === forward;
    const at = this.steps.findIndex(fits);
    const any = at >= 0 ? at : this.steps.findIndex((step) => step.node === node);
    if (any >= 0) this.go(any);
  }

  /** @param {string} key */
  move(key) {
    if (key === " ") return this.play();
    cancelAnimationFrame(this.frame);
    if (key === "ArrowRight" && this.at < this.length - 1) {
      this.goMoving(this.at + 1);
      return this.stop();
    }
    const moved = super.move(key);
    return moved && this.stop();
  }

  /** Go on by itself, from the beginning where it is at the end; or stop. */
  play() {
    if (this.playing) return this.stop();
    if (this.at === this.steps.length - 1) this.go(0);
    const next = () => {
      if (this.at < this.steps.length - 1) this.goMoving(this.at + 1);
      else this.stop();
    };
    this.playing = setInterval(next, PACE);
    this.showPlaying();
    return true;
  }

  stop() {
    clearInterval(this.playing);
    this.playing = 0;
    this.showPlaying();
    return true;
  }

  showPlaying() {
    if (!this.playButton) return;
    this.playButton.textContent = this.playing ? "⏸" : "▶";
    this.playButton.title = this.playing ? "Pause (space)" : "Play (space)";
    this.playButton.setAttribute("aria-label", this.playButton.title);
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const { target } = event;
    if (target instanceof Element && target.closest("select, input:not([aria-label='Step'])")) return;
    if (event.key === " " && target instanceof Element && target.closest("button, summary")) return;
    if (this.move(event.key)) event.preventDefault();
  }

  // Changing

  /** The sources and outputs that can be changed, with their names. @returns {Changeable[]} */
  changeable() {
    const { model } = this;
    if (!model?.isLive) return [];
    const sources = model.nodes.flatMap(({ role }, at) => {
      const value = model.recorded.values.get(`${at} 0`);
      return role === "source" && value && /^[fb]/.test(value.type) ? [{ at, seed: false, name: model.labelOf(at), shape: value.shape }] : [];
    });
    const seeds = model.program.outputs.map(([node], at) => ({ at, seed: true, name: `gradient of ${model.labelOf(node)}`, shape: model.recorded.values.get(`${node} 0`)?.shape ?? [] }));
    return [...sources, ...seeds];
  }

  firstChangeable() {
    const all = this.changeable();
    return all.find(({ at, seed }) => !seed && this.model?.nodes[at].grad) ?? all[0];
  }

  /** @param {Changeable | undefined} chosen */
  showControls(chosen) {
    const { model } = this;
    if (!model) return;
    if (!chosen) {
      this.controls.replaceChildren(h("p", { class: "tc-living-hint" }, `Values can't be changed: ${model.program.problem ?? "no input is known"}.`));
      return;
    }
    if (chosen !== this.changing) this.cell = this.grabbed ? this.cell : 0;
    this.changing = chosen;
    const all = this.changeable();
    const options = all.map(({ name }, index) => h("option", { value: String(index), selected: all[index].at === chosen.at && all[index].seed === chosen.seed }, name));
    const choice = h("select", { "aria-label": "What to change" }, ...options);
    choice.addEventListener("change", () => {
      const next = all[Number(choice.value)];
      this.say(next.seed ? model.program.outputs[next.at][0] : next.at);
      this.showControls(next);
    });
    const reset = h("button", { class: "tc-button tc-text", type: "button", onclick: () => this.reset() }, "reset");
    this.told = h("p", { class: "tc-living-hint" }, ...this.hint());
    this.controls.replaceChildren(h("label", {}, "change ", choice), reset, ...this.inputs(chosen), this.told);
  }

  /** Where it is evaluated, and what is not. @returns {string[]} */
  hint() {
    const { model, store } = this;
    if (!model) return [];
    if (this.changing && !model.isKnown(this.changing.at, this.changing.seed)) return ["Too large to change number by number: all of it is multiplied."];
    if (store.kernel && !this.isAlone) return ["Drag a number on the graph, or type one here: the kernel computes all values and gradients again."];
    const unknown = model.unknownHere;
    if (unknown === null) return ["This graph has too many numbers to be evaluated on a page; in a notebook it is."];
    return [unknown.length ? `Evaluated on this page in float64; it doesn't know ${unknown.join(", ")}: what follows stays empty.` : "Drag a number on the graph, or type one here: this page evaluates it, in float64."];
  }

  /** @param {Changeable} chosen @returns {HTMLElement[]} */
  inputs(chosen) {
    const { at, seed, name, shape } = chosen;
    if (hasFew(shape)) {
      const cells = Array.from({ length: countOf(shape) }, (_, cell) => this.field(chosen, () => cell, placeName(chosen, cell)));
      const columns = shape.length ? shape[shape.length - 1] : 1;
      return [h("div", { class: "tc-living-numbers", role: "group", "aria-label": name, style: { gridTemplateColumns: `repeat(${columns}, max-content)` } }, ...cells)];
    }
    const { model } = this;
    const scale = (seed ? model?.seedChanges : model?.changes)?.get(at)?.scale ?? 1;
    const words = h("output", {}, `× ${digitsOf(scale)}`);
    const factor = h("input", { type: "range", min: "-2", max: "3", step: "0.05", value: String(scale), "aria-label": `${name}, all numbers, times` });
    factor.addEventListener("input", () => {
      words.textContent = `× ${digitsOf(Number(factor.value))}`;
      this.change(at, { scale: Number(factor.value) }, seed);
    });
    const all = h("label", { class: "tc-living-factor" }, "all ", factor, words);
    return model?.isKnown(at, seed) ? [all, this.element(chosen)] : [all];
  }

  /** One element of a large tensor: its place, to be chosen here or on the heat map, and its number. @param {Changeable} chosen */
  element(chosen) {
    const place = h("input", { type: "text", style: { width: `${Math.max(9.5, 3.5 * chosen.shape.length)}ch` }, value: placeOf(chosen.shape, this.cell).join(", "), "aria-label": `${chosen.name}, which element` });
    place.addEventListener("change", () => {
      const index = place.value.split(",").map(Number);
      const fits = index.length === chosen.shape.length && index.every((each, dim) => Number.isInteger(each) && each >= 0 && each < chosen.shape[dim]);
      if (fits) this.cell = index.reduce((all, each, dim) => all * chosen.shape[dim] + each, 0);
      this.showControls(chosen);
    });
    return h("label", { class: "tc-living-element" }, "element ", place, " = ", this.field(chosen, () => this.cell, `${chosen.name}, this element`));
  }

  /** A number of a tensor, to type or to step. @param {Changeable} chosen @param {() => number} cellOf @param {string} name */
  field({ at, seed }, cellOf, name) {
    const number = this.model?.numberAt(at, cellOf(), seed) ?? NaN;
    const input = h("input", { type: "number", step: "any", value: String(Number(number.toPrecision(4))), title: String(number), "aria-label": name });
    const change = () => Number.isFinite(input.valueAsNumber) && this.change(at, { cells: { [cellOf()]: input.valueAsNumber } }, seed);
    input.addEventListener("input", change);
    input.addEventListener("keydown", (event) => {
      const way = event.key === "ArrowUp" ? 1 : event.key === "ArrowDown" ? -1 : 0;
      if (!way) return;
      event.preventDefault();
      input.value = String(Number((input.valueAsNumber + (way * Math.max(1, Math.abs(input.valueAsNumber))) / 20).toPrecision(4)));
      change();
    });
    return input;
  }

  reset() {
    this.model?.reset();
    this.root.classList.remove("tc-changed");
    this.showControls(this.changing);
    this.drawGraph();
  }

  /** @param {number} at @param {import("./living_model.js").Change} change @param {boolean} seed */
  change(at, change, seed) {
    const { model, store } = this;
    if (!model) return;
    if (this.moment.at !== this.length - 1) {
      this.isChanging = true;
      this.go(this.length - 1, false);
      this.isChanging = false;
    }
    this.root.classList.add("tc-changed");
    model.change(at, change, seed);
    if (store.kernel && !this.isAlone) this.ask();
    else this.evaluateHere();
  }

  evaluateHere() {
    if (!this.model?.unknownHere) return;
    this.model.evaluateHere();
    this.followed();
  }

  /** Ask the kernel, for one evaluation at a time: while it answers, the last change waits. */
  ask() {
    if (this.asked) {
      this.waits = true;
      return;
    }
    this.asked = true;
    this.late = setTimeout(() => this.evaluateHere(), PATIENCE);
    this.store.kernel?.evaluate(this.model?.request);
  }

  heard() {
    this.asked = false;
    clearTimeout(this.late);
    if (!this.model) return;
    const { data, buffers } = this.store.evaluated;
    if (!data) {
      this.isAlone = true;
      this.told?.replaceChildren(...this.hint());
      return this.evaluateHere();
    }
    if (data.error) this.told?.replaceChildren(`With these numbers torch says: ${data.error}`);
    else if (this.model.changes.size || this.model.seedChanges.size) this.model.take(data, buffers[0]);
    if (this.waits) {
      this.waits = false;
      this.ask();
    }
    if (!data.error) this.followed();
  }

  followed() {
    this.drawGraph();
    const [output] = this.model?.program.outputs ?? [];
    if (output) this.say(output[0]);
  }

  /** @param {string} id */
  chosen(id) {
    const { model } = this;
    const at = model ? model.nodes.findIndex((node) => node.id === id) : -1;
    if (!model || at < 0) return;
    this.say(at);
    const own = this.changeable().find((each) => (each.seed ? model.program.outputs[each.at][0] === at : each.at === at));
    if (own && !this.grabbed && (own.at !== this.changing?.at || own.seed !== this.changing?.seed)) this.showControls(own);
    if (model.nodes[at].node && !this.grabbed) this.goToNode(model.nodes[at].node);
  }

  /** The tensor above or below a node whose numbers can be dragged. @param {string} id @param {"above" | "below"} which */
  grabbable(id, which) {
    const { model } = this;
    const at = model ? model.nodes.findIndex((node) => node.id === id) : -1;
    const found = this.changeable().find((each) => (which === "above" ? !each.seed && each.at === at : each.seed && model?.program.outputs[each.at][0] === at));
    return found && model?.isKnown(found.at, found.seed) ? found : undefined;
  }

  /** @param {string} id @param {"above" | "below"} which @param {number} cell */
  grab(id, which, cell) {
    const wanted = this.grabbable(id, which);
    this.grabbed = undefined;
    if (!this.model || !wanted) return false;
    /** @type {{at: number, seed: boolean, cell: number, from: number} | undefined} */
    this.grabbed = { ...wanted, cell, from: this.model.numberAt(wanted.at, cell, wanted.seed) };
    this.cell = cell;
    this.showControls(wanted);
    return true;
  }

  /** @param {number} points */
  dragged(points) {
    if (!this.grabbed) return;
    const { at, seed, cell, from } = this.grabbed;
    const number = Number((from + points * DRAGGED * Math.max(1, Math.abs(from))).toPrecision(4));
    this.change(at, { cells: { [cell]: number } }, seed);
    const inputs = this.controls.querySelectorAll("input[type=number]");
    const input = inputs[Math.min(cell, inputs.length - 1)];
    if (input instanceof HTMLInputElement) input.value = String(number);
  }

  // What panes ask of it

  /** @param {Set<string>} primary @param {Set<string>} linked @param {boolean} reveal */
  select(primary, linked, reveal) {
    const [first] = primary;
    this.linked = linked;
    this.following.selected = primary.size === 1 ? first : "";
    const here = this.steps[this.at];
    this.mark();
    if (!reveal || !first || !here || linked.has(here.id)) return;
    const known = this.steps.map((step, at) => ({ step, at })).filter(({ step }) => linked.has(step.id));
    const same = known.find(({ step }) => (step.direction === "forward") === (here.direction === "forward"));
    const next = same ?? known[0];
    if (next) this.go(next.at, false);
  }

  /** Outline the nodes that the selection is linked to. */
  mark() {
    if (!this.canvas || !this.model) return;
    const names = new Set(this.steps.filter(({ id }) => this.linked.has(id)).map(({ node }) => node));
    this.canvas.marks.linked = new Set(this.model.nodes.filter(({ node }) => names.has(node)).map(({ id }) => id));
    this.canvas.repaint();
  }

  stops() {
    return this.steps.flatMap(({ id }, at) => (this.linked.has(id) ? [at] : []));
  }

  /** @param {string} wanted */
  search(wanted) {
    return this.steps.flatMap(({ said }, at) => (said.toLowerCase().includes(wanted) ? [at] : []));
  }

  focus() {
    (this.canvas?.element ?? this.card).focus({ preventScroll: true });
  }

  themeChanged() {
    this.theme = readTheme(this.root);
    this.canvas?.repaint();
  }

  destroy() {
    super.destroy();
    clearInterval(this.playing);
    clearTimeout(this.late);
    cancelAnimationFrame(this.frame);
    this.stopHearing();
    this.observer.disconnect();
    this.canvas?.destroy();
  }
}

/** An element's indices. @param {number[]} shape @param {number} cell */
function placeOf(shape, cell) {
  /** @type {number[]} */
  const index = [];
  for (let dim = shape.length - 1, left = cell; dim >= 0; dim--) {
    index.unshift(left % shape[dim]);
    left = Math.floor(left / shape[dim]);
  }
  return index;
}

/** @param {Changeable} tensor @param {number} cell */
const placeName = ({ name, shape }, cell) => (shape.length ? `${name}[${placeOf(shape, cell).join(", ")}]` : name);

/** @param {HTMLElement[]} elements @returns {(HTMLElement | string)[]} */
function between(elements) {
  return elements.flatMap((element, at) => (at ? [", then ", element] : [element]));
}

Object.assign(LATE_VIEWS, { chain_rule: ChainView });
