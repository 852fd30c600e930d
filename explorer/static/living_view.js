// The chain rule on a graph, one step at a time: forward with the values, then backward from node to node.

import { digits, valueBox } from "./chain_value.js";
import { elements, PIECES } from "./document.js";
import { h, icon } from "./dom.js";
import { LATE_VIEWS } from "./late_views.js";
import { StepperView } from "./stepper.js";

/**
 * @typedef {{id: string, select: string, direction: "forward" | "backward" | "leaf", node: string, said: string,
 *   norm: number | "inf" | null, card: import("./document.js").Part}} Step
 */

PIECES.values = ({ data, name, flat }) => valueBox(data, name, flat);

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

export class ChainView extends StepperView {
  /**
   * @param {HTMLElement} root @param {import("./text_view.js").Callbacks} callbacks
   * @param {import("./store.js").Artifact} artifact
   */
  constructor(root, callbacks, artifact) {
    super(callbacks, MOVES);
    /** @type {{cards: Step[], note: string, health: string[], sick: number[]}} */
    this.data = artifact.view;
    this.steps = this.data.cards;
    const actions = { ...callbacks.actions, goTo: (/** @type {string} */ node) => this.goToNode(node) };
    /** @type {import("./document.js").Place} */
    this.place = { actions, item: (_, element) => element };
    this.playing = 0;
    this.slider.max = String(this.steps.length - 1);
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
    this.playButton = this.buttons[MOVES.findIndex(([key]) => key === " ")];
    const turn = this.steps.findIndex(({ direction }) => direction === "backward");
    const jump = (/** @type {string} */ words, /** @type {number} */ at) =>
      h("button", { class: "tc-button tc-text", type: "button", onclick: () => this.go(at) }, words);
    const jumps = turn > 0 ? [jump("forward", 0), jump("backward", turn)] : [];
    return h("div", { class: "tc-view-bar tc-chain-bar" }, h("div", { class: "tc-steps-moves" }, ...this.buttons), ...jumps, this.count);
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

  get length() {
    return this.steps.length;
  }

  draw() {
    const { card, direction, node, select } = this.steps[this.at];
    this.card.replaceChildren(...elements([card], this.place));
    this.card.scrollTop = 0;
    this.card.dataset.direction = direction;
    this.drawStrip();
    return { source: select, words: `${direction}, ${node}`, kind: direction };
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
    const moved = super.move(key);
    return moved && this.stop();
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
    const norms = this.steps.map(({ norm }) => (norm === "inf" ? Infinity : norm));
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

  stops() {
    return this.steps.flatMap(({ id }, at) => (this.linked.has(id) ? [at] : []));
  }

  /** @param {string} wanted */
  search(wanted) {
    return this.steps.flatMap(({ said }, at) => (said.toLowerCase().includes(wanted) ? [at] : []));
  }

  focus() {
    this.card.focus({ preventScroll: true });
  }

  themeChanged() {
    this.drawStrip();
  }

  destroy() {
    super.destroy();
    clearInterval(this.playing);
    this.observer.disconnect();
  }
}

/** @param {HTMLElement[]} elements @returns {(HTMLElement | string)[]} */
function between(elements) {
  return elements.flatMap((element, at) => (at ? [", then ", element] : [element]));
}

Object.assign(LATE_VIEWS, { chain_rule: ChainView });
