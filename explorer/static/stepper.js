// What views that go step by step share: buttons to move, and other panes that follow once one rests on a step.

import { h } from "./dom.js";

/** So long, in milliseconds, one rests on a step before it is selected and in the address: each selection goes to Python. */
const REST = 150;

/** Implements most of `View` of `views.js` for what is shown a step at a time. */
export class StepperView {
  /** @param {import("./text_view.js").Callbacks} callbacks @param {[string, string, string][]} moves key, sign and what it does */
  constructor(callbacks, moves) {
    this.at = 0;
    this.following = new Following(callbacks);
    /** @type {Set<string>} */
    this.linked = new Set();
    /** @type {number[]} */
    this.found = [];
    this.hit = -1;
    this.count = h("span", { class: "tc-step-count", role: "status" });
    this.slider = h("input", { type: "range", min: "0", "aria-label": "Step", oninput: () => this.go(Number(this.slider.value)) });
    this.buttons = moves.map(([key, sign, title]) =>
      h("button", { class: "tc-button", type: "button", title, "aria-label": title, onclick: () => this.move(key) }, sign),
    );
  }

  /** How many steps there are. */
  get length() {
    return 0;
  }

  /** Which step it is, as an address names it: "" for the first. */
  get state() {
    return this.at ? String(this.at) : "";
  }

  set state(state) {
    this.go(Number(state) || 0);
  }

  /** Show the step that `this.at` is now. @returns {{source: string, words: string, kind?: string}} what is selected with it, and what it is */
  draw() {
    return { source: "", words: "" };
  }

  /** The steps that have a text in them, in small letters. @param {string} _wanted @returns {number[]} */
  search(_wanted) {
    return [];
  }

  /** The steps that the selection is linked to. @returns {number[]} */
  stops() {
    return [];
  }

  /** @param {number} at @param {boolean} [tell] whether graph and source are to follow */
  go(at, tell = true) {
    this.at = Math.min(Math.max(at, 0), this.length - 1);
    const { source, words, kind } = this.draw();
    const [place, all] = [this.at + 1, this.length].map((number) => number.toLocaleString("en"));
    this.slider.value = String(this.at);
    this.slider.setAttribute("aria-valuetext", words);
    this.count.textContent = `step ${place} of ${all}${kind ? `, ${kind}` : ""}`;
    if (tell) this.following.tell(source);
  }

  /** @param {string} key */
  move(key) {
    /** @type {Record<string, number>} */
    const places = { Home: 0, End: this.length - 1, ArrowLeft: this.at - 1, ArrowRight: this.at + 1 };
    if (!(key in places)) return false;
    this.go(places[key]);
    return true;
  }

  /** To the next step that is linked, round the end. @param {number} direction @returns {[number, number]} */
  stepLinked(direction) {
    const stops = this.stops();
    if (!stops.length) return [0, 0];
    const next = direction > 0 ? stops.findIndex((stop) => stop > this.at) : stops.findLastIndex((stop) => stop < this.at);
    const index = next >= 0 ? next : direction > 0 ? 0 : stops.length - 1;
    this.go(stops[index], false);
    return [index + 1, stops.length];
  }

  /** @param {string} query @returns {[number, number, boolean]} */
  find(query) {
    this.found = query ? this.search(query.toLowerCase()) : [];
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

  preview() {}

  themeChanged() {}

  destroy() {
    this.following.stop();
  }
}

/** Lets graph and source follow: what one is at lights up now, and is selected once one rests on it. */
export class Following {
  /** @param {import("./text_view.js").Callbacks} callbacks */
  constructor(callbacks) {
    this.callbacks = callbacks;
    /** What was selected last, from here or elsewhere. */
    this.selected = "";
    this.timer = 0;
  }

  /** @param {string} id "" for what is nowhere else */
  tell(id) {
    this.stop();
    const isNew = id !== "" && id !== this.selected;
    this.callbacks.onHover(isNew ? [id] : []);
    this.timer = setTimeout(() => {
      this.callbacks.onState?.();
      if (!isNew) return;
      this.selected = id;
      this.callbacks.onSelect([id], false);
    }, REST);
  }

  stop() {
    clearTimeout(this.timer);
  }
}
