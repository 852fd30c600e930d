// The chain rule on a graph, one step at a time: forward with the values, then backward from node to node.

import { stepCard } from "./chain_step.js";
import { digits } from "./chain_value.js";
import { h, icon } from "./dom.js";
import { Following, moveButtons, nextStop } from "./stepper.js";

/** @typedef {import("./chain_step.js").Step} Step */

/** Between two steps that are played. */
const PACE = 1400;
const HEIGHT = 34;

/** @type {[string, string, string][]} key, sign and what it does */
const MOVES = [
  ["Home", "⇤", "First step (Home)"],
  ["ArrowLeft", "←", "Back (←)"],
  [" ", "▶", "Play (space)"],
  ["ArrowRight", "→", "Forward (→)"],
  ["End", "⇥", "Last step (End)"],
];

/** Implements `View` of `views.js`. */
export class ChainView {
  /**
   * @param {HTMLElement} root @param {import("./text_view.js").Callbacks} callbacks
   * @param {import("./store.js").Artifact} artifact @param {import("./store.js").Store} store
   */
  constructor(root, callbacks, artifact, store) {
    this.store = store;
    /** @type {{steps: Step[], note: string, health: string[], sick: number[]}} */
    this.data = artifact.view;
    this.steps = this.data.steps;
    this.at = 0;
    this.following = new Following(callbacks);
    this.playing = 0;
    /** @type {number[]} */
    this.found = [];
    this.hit = -1;
    /** @type {Set<string>} */
    this.linked = new Set();
    this.count = h("span", { class: "tc-bytecode-count", role: "status" });
    this.slider = h("input", { type: "range", min: "0", max: String(this.steps.length - 1), "aria-label": "Step" });
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    this.strip = h("canvas", { class: "tc-chain-strip", height: HEIGHT, title: "Norm of each value and gradient, by step" });
    this.strip.setAttribute("aria-hidden", "true");
    this.strip.addEventListener("pointerdown", (event) => this.seek(event));
    this.strip.addEventListener("pointermove", (event) => event.buttons && this.seek(event));
    this.card = h("div", { class: "tc-scroll tc-chain-scroll", tabIndex: 0, "aria-label": "Step" });
    this.card.setAttribute("role", "region");
    const strip = h("div", { class: "tc-chain-strips" }, this.strip, this.slider);
    this.root = h("div", { class: "tc-chain-view" }, this.bar(), strip, ...this.notes(), this.card);
    root.replaceChildren(this.root);
    this.root.addEventListener("keydown", (event) => this.pressed(event));
    this.observer = new ResizeObserver(() => this.drawStrip());
    this.observer.observe(this.strip);
    this.go(0, false);
  }

  bar() {
    const buttons = moveButtons(MOVES, (key) => this.move(key));
    this.playButton = buttons[MOVES.findIndex(([key]) => key === " ")];
    const turn = this.steps.findIndex(({ direction }) => direction === "backward");
    const jump = (/** @type {string} */ words, /** @type {number} */ at) =>
      h("button", { class: "tc-button tc-text", type: "button", onclick: () => this.go(at) }, words);
    const jumps = turn > 0 ? [jump("forward", 0), jump("backward", turn)] : [];
    return h("div", { class: "tc-view-bar tc-chain-bar" }, h("div", { class: "tc-steps-moves" }, ...buttons), ...jumps, this.count);
  }

  /** What is known of the whole pass: how healthy it is, and where that ends. */
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

  /** @param {number} at @param {boolean} [tell] whether graph and source are to follow */
  go(at, tell = true) {
    this.at = Math.min(Math.max(at, 0), this.steps.length - 1);
    const step = this.steps[this.at];
    const name = { forward: "forward", backward: "backward", leaf: "leaf" }[step.direction];
    this.slider.value = String(this.at);
    this.slider.setAttribute("aria-valuetext", `${name}, ${step.node}`);
    this.count.textContent = `step ${(this.at + 1).toLocaleString("en")} of ${this.steps.length.toLocaleString("en")}, ${name}`;
    this.card.replaceChildren(stepCard(step, (node) => this.goToNode(node)));
    this.card.scrollTop = 0;
    this.card.dataset.direction = step.direction;
    this.drawStrip();
    if (tell) this.following.tell(step.select);
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
    /** @type {Record<string, () => number>} */
    const places = { Home: () => 0, End: () => this.steps.length - 1, ArrowLeft: () => this.at - 1, ArrowRight: () => this.at + 1 };
    if (key === " ") return this.play();
    if (!(key in places)) return false;
    this.stop();
    this.go(places[key]());
    return true;
  }

  /** Go on by itself, from the beginning where it is at the end; or stop. */
  play() {
    if (this.playing) return this.stop();
    if (this.at === this.steps.length - 1) this.go(0);
    this.playing = setInterval(() => {
      if (this.at < this.steps.length - 1) this.go(this.at + 1);
      else this.stop();
    }, PACE);
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
    const onButton = event.target instanceof Element && event.target.closest("button, summary");
    if (event.key === " " && onButton) return;
    if (this.move(event.key)) event.preventDefault();
  }

  /** @param {PointerEvent} event */
  seek(event) {
    this.stop();
    const { left, width } = this.strip.getBoundingClientRect();
    this.go(Math.floor(((event.clientX - left) / width) * this.steps.length));
  }

  // The strip of norms

  drawStrip() {
    const { clientWidth: width, strip } = { clientWidth: this.strip.clientWidth, strip: this.strip };
    const context = strip.getContext("2d");
    if (!context || !width) return;
    const scale = devicePixelRatio;
    strip.width = width * scale;
    strip.height = HEIGHT * scale;
    context.scale(scale, scale);
    const style = getComputedStyle(this.root);
    const colour = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
    const colours = { forward: colour("--tc-accent"), backward: colour("--tc-link"), leaf: colour("--tc-g0") };
    const norms = this.steps.map(normOf);
    const logs = norms.filter((norm) => norm !== null && norm > 0 && norm < Infinity).map((norm) => Math.log(Number(norm)));
    const [low, high] = [Math.min(...logs, 0), Math.max(...logs, 0)];
    const each = width / this.steps.length;
    this.steps.forEach(({ direction }, at) => {
      const norm = norms[at];
      if (at === this.at) context.fillStyle = colour("--tc-accent-soft");
      if (at === this.at) context.fillRect(at * each, 0, Math.max(each, 2), HEIGHT);
      if (norm === null) return;
      const broken = !Number.isFinite(norm);
      const share = broken ? 1 : norm === 0 ? 0 : high > low ? 0.12 + (0.88 * (Math.log(norm) - low)) / (high - low) : 0.5;
      const tall = Math.max(share * (HEIGHT - 4), 2);
      context.fillStyle = broken ? colour("--tc-warning") : colours[direction];
      context.globalAlpha = at === this.at ? 1 : 0.6;
      context.fillRect(at * each + (each > 4 ? 1 : 0), HEIGHT - tall, Math.max(each - (each > 4 ? 2 : 0), 1), tall);
      context.globalAlpha = 1;
    });
    const norm = norms[this.at];
    this.strip.title = norm === null ? "" : `norm ${digits(norm)}; the height is its logarithm`;
  }

  // What panes ask of it

  /** @param {Set<string>} primary @param {Set<string>} linked @param {boolean} reveal */
  select(primary, linked, reveal) {
    const [first] = primary;
    this.linked = linked;
    this.following.selected = primary.size === 1 ? first : "";
    const here = this.steps[this.at];
    if (!reveal || !first || linked.has(here.id)) return;
    const known = this.steps.map((step, at) => ({ step, at })).filter(({ step }) => linked.has(step.id));
    const same = known.find(({ step }) => (step.direction === "forward") === (here.direction === "forward"));
    const next = same ?? known[0];
    if (next) this.go(next.at, false);
  }

  preview() {}

  /** @param {number} direction @returns {[number, number]} */
  stepLinked(direction) {
    const stops = this.steps.flatMap(({ id }, at) => (this.linked.has(id) ? [at] : []));
    if (!stops.length) return [0, 0];
    const index = nextStop(stops, this.at, direction);
    this.go(stops[index], false);
    return [index + 1, stops.length];
  }

  /** @param {string} query @returns {[number, number, boolean]} */
  find(query) {
    const wanted = query.toLowerCase();
    const has = (/** @type {Step} */ { node, op, rule, code, module }) => [node, op, rule, code, module].join("\n").toLowerCase().includes(wanted);
    this.found = wanted ? this.steps.flatMap((step, at) => (has(step) ? [at] : [])) : [];
    this.hit = this.found.findIndex((at) => at >= this.at);
    if (this.hit < 0 && this.found.length) this.hit = 0;
    return this.stepHit(0);
  }

  /** @param {number} direction @returns {[number, number, boolean]} */
  stepHit(direction) {
    if (this.found.length) this.hit = (this.hit + direction + this.found.length) % this.found.length;
    if (this.found.length) this.go(this.found[this.hit]);
    return [this.hit + 1, this.found.length, false];
  }

  focus() {
    this.card.focus({ preventScroll: true });
  }

  themeChanged() {
    this.drawStrip();
  }

  destroy() {
    this.following.stop();
    clearInterval(this.playing);
    this.observer.disconnect();
  }
}

/** Of the value forward, of the gradient backward. @param {Step} step @returns {number | null} */
function normOf({ direction, value, gradient }) {
  const shown = direction === "forward" ? value : gradient;
  if (!shown || shown.norm === null) return null;
  return shown.nans || shown.infinite ? Infinity : Number(shown.norm);
}

/** @param {HTMLElement[]} elements @returns {(HTMLElement | string)[]} */
function between(elements) {
  return elements.flatMap((element, at) => (at ? [", then ", element] : [element]));
}
