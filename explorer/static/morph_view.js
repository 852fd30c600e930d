// From the eager graph to the compiled one: a canvas that morphs with a slider, and what each state counts beside it.

import { h, icon } from "./dom.js";
import { MorphPainter } from "./morph_paint.js";

/** @typedef {import("./morph_paint.js").Film} Film */

/** Milliseconds from one state to the next, and at rest on one while it plays. */
const [STEP, REST] = [1400, 1100];
const MARGIN = 26;
const [FARTHEST, CLOSEST] = [0.5, 8];
const KEYS = "Left and right go from state to state, up and down from node to node; plus, minus and 0 zoom; space plays.";
const HINT = "Point at a node to see what it came from and what it becomes; click on it to follow it.";

export class MorphView {
  /** @param {HTMLElement} root @param {Film} film */
  constructor(root, film) {
    this.film = film;
    this.painter = new MorphPainter(film);
    this.at = 0;
    this.zoom = { scale: 1, x: 0, y: 0 };
    /** The node that is pointed at or gone to, and whether it is followed. @type {{state: number, node: number, kept: boolean} | null} */
    this.cursor = null;
    this.frame = 0;
    this.moving = 0;
    this.timer = 0;
    this.playing = false;
    this.still = window.matchMedia("(prefers-reduced-motion: reduce)");
    this.canvas = h("canvas", { tabIndex: 0, role: "application", "aria-label": `Graph of ${film.title}. ${KEYS}` });
    this.context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    this.words = h("p", { class: "tm-words" });
    this.told = h("p", { class: "tm-told", role: "status" }, HINT);
    this.rows = film.states.map((state, number) => this.row(state, number));
    const last = film.states.length - 1;
    this.slider = h("input", { type: "range", min: "0", max: String(last), step: "0.01", value: "0", "aria-label": "From the eager graph to the compiled one" });
    this.slider.addEventListener("input", () => this.show(Number(this.slider.value)));
    this.slider.addEventListener("keydown", (event) => this.sliderKey(event));
    this.stops = film.states.map((state, number) => {
      const stop = h("button", { type: "button", class: "tm-stop", onclick: () => this.go(number) }, state.title);
      stop.style.setProperty("--at", `${(100 * number) / Math.max(last, 1)}%`);
      return stop;
    });
    this.play = this.button("Play (space)", "▶", () => this.toggle());
    const buttons = [this.button("Back (←)", "←", () => this.step(-1)), this.play, this.button("Forward (→)", "→", () => this.step(1))];
    const stage = h("div", { class: "tm-stage" }, this.canvas);
    const tools = h("div", { class: "tm-tools" }, this.legend(), this.zoomButtons(), this.button("Light or dark", "", () => this.turn(), icon("theme")));
    root.replaceChildren(
      h("header", { class: "tm-head" }, h("h1", {}, film.title), h("p", {}, this.subtitle()), tools),
      h("div", { class: "tm-main" }, stage, h("table", { class: "tm-counts" }, h("caption", {}, "What each state counts"), h("tbody", {}, ...this.rows))),
      h("footer", { class: "tm-foot" }, this.words, this.told, h("div", { class: "tm-controls" }, h("div", { class: "tm-buttons" }, ...buttons), h("div", { class: "tm-track" }, this.slider, h("div", { class: "tm-stops" }, ...this.stops)))),
    );
    this.listen();
    new ResizeObserver(() => this.resize()).observe(stage);
    this.show(0);
  }

  subtitle() {
    const { graph, others } = this.film;
    const which = others.length ? ` Graph ${graph}; the run also has ${others.join(", ")}.` : "";
    return `From eager mode to kernels.${which}`;
  }

  /** @param {string} title @param {string} sign @param {() => void} onclick @param {Node[]} more */
  button(title, sign, onclick, ...more) {
    return h("button", { type: "button", class: "tm-button", title, "aria-label": title, onclick }, sign, ...more);
  }

  zoomButtons() {
    const zoom = (/** @type {number} */ factor) => () => this.zoomBy(factor);
    return h("div", { class: "tm-zoom" }, this.button("Closer (+)", "", zoom(1.4), icon("plus")), this.button("Farther (−)", "", zoom(1 / 1.4), icon("minus")), this.button("All of it (0)", "", () => this.fit(), icon("fit")));
  }

  legend() {
    const has = new Set(this.film.states.flatMap(({ nodes }) => nodes.map(({ look }) => look)));
    const keys = [["both", "forward and its gradient"], ["forward", "forward"], ["backward", "backward"], ["saved", "saved for backward"], ["leaf", "a leaf's .grad"], ["forward kernel", "kernel"], ["backward kernel", "kernel, backward"]];
    return h("ul", { class: "tm-legend" }, ...keys.filter(([look]) => has.has(look)).map(([look, words]) => h("li", {}, h("i", { class: `tm-key tm-${look.replace(" ", "-")}` }), words)));
  }

  /** What a state counts; each number has a bar, the longest in the state with most. @param {Film["states"][0]} state @param {number} number */
  row(state, number) {
    const lines = state.counts.map(({ what, words, value }) => {
      const all = this.film.states.flatMap(({ counts }) => counts.filter((count) => count.what === what));
      const share = value / Math.max(1, ...all.map((count) => count.value));
      return h("span", {}, words, h("i", { class: "tm-bar", "aria-hidden": "true", style: { width: `${100 * share}%` } }));
    });
    return h("tr", { onclick: () => this.go(number) }, h("th", { scope: "row" }, state.title), h("td", {}, ...lines));
  }

  // Where one is

  /** Show a place at once. @param {number} at */
  show(at) {
    this.at = Math.min(Math.max(at, 0), this.film.states.length - 1);
    const number = Math.round(this.at);
    const state = this.film.states[number];
    const words = this.at === number ? `${state.title}, state ${number + 1} of ${this.film.states.length}` : `Between ${this.film.states[Math.floor(this.at)].title} and ${this.film.states[Math.ceil(this.at)].title}`;
    this.slider.value = String(this.at);
    this.slider.setAttribute("aria-valuetext", words);
    if (this.words.textContent !== state.words) this.words.textContent = state.words;
    [this.rows, this.stops].forEach((items) => items.forEach((item, i) => (i === number ? item.setAttribute("aria-current", "step") : item.removeAttribute("aria-current"))));
    this.paintSoon();
  }

  /** Move to a state; at once if the reader wants no motion. @param {number} number @returns {Promise<void>} */
  go(number) {
    cancelAnimationFrame(this.moving);
    const from = this.at;
    const long = STEP * Math.max(0.4, Math.abs(number - from));
    return new Promise((resolve) => {
      const arrive = () => {
        this.show(number);
        this.tell(`${this.film.states[number].title}: ${this.film.states[number].counts.map(({ words }) => words).join(", ")}.`);
        resolve();
      };
      if (this.still.matches || from === number) return arrive();
      const start = performance.now();
      const advance = () => {
        const share = (performance.now() - start) / long;
        if (share >= 1) return arrive();
        this.show(from + (number - from) * share);
        this.moving = requestAnimationFrame(advance);
      };
      advance();
    });
  }

  /** To the next state in a direction. @param {number} direction */
  step(direction) {
    this.stop();
    const next = direction > 0 ? Math.floor(this.at + 1) : Math.ceil(this.at - 1);
    this.go(Math.min(Math.max(next, 0), this.film.states.length - 1));
  }

  toggle() {
    if (this.playing) return this.stop();
    this.playing = true;
    this.play.textContent = "❚❚";
    this.play.title = "Pause (space)";
    this.play.setAttribute("aria-label", this.play.title);
    if (this.at >= this.film.states.length - 1) this.show(0);
    this.advance();
  }

  async advance() {
    const last = this.film.states.length - 1;
    await this.go(Math.min(Math.floor(this.at) + 1, last));
    if (!this.playing) return;
    if (this.at >= last) return this.stop();
    this.timer = setTimeout(() => this.advance(), REST);
  }

  stop() {
    this.playing = false;
    clearTimeout(this.timer);
    cancelAnimationFrame(this.moving);
    this.play.textContent = "▶";
    this.play.title = "Play (space)";
    this.play.setAttribute("aria-label", this.play.title);
  }

  /** @param {KeyboardEvent} event */
  sliderKey(event) {
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 };
    if (!(event.key in steps)) return;
    event.preventDefault();
    event.stopPropagation();
    this.step(steps[/** @type {keyof typeof steps} */ (event.key)]);
  }

  // Nodes

  /** Where the nodes of the nearest state are now. @returns {{number: number, places: import("./morph_paint.js").Rect[]}} */
  nearest() {
    const number = Math.round(this.at);
    const [before, share] = this.painter.split(this.at);
    if (!share) return { number, places: this.film.states[number].nodes };
    /** @type {import("./morph_paint.js").Rect[]} */
    const places = [];
    const moved = this.painter.places(before, share);
    this.film.moves[before].forEach(([source, target, leadsSource, leadsTarget], i) => {
      if (number === before ? leadsSource : leadsTarget) places[number === before ? source : target] = moved[i];
    });
    return { number, places };
  }

  /** Mark a node and all that it came from and became. @param {number} state @param {number} node -1 for none @param {boolean} kept */
  mark(state, node, kept) {
    this.cursor = node < 0 ? null : { state, node, kept };
    const marked = this.film.states.map(() => /** @type {Set<number>} */ (new Set()));
    if (node >= 0) {
      marked[state].add(node);
      for (let at = state; at < marked.length - 1; at++) for (const [source, target] of this.film.moves[at]) if (target >= 0 && marked[at].has(source)) marked[at + 1].add(target);
      for (let at = state; at > 0; at--) for (const [source, target] of this.film.moves[at - 1]) if (source >= 0 && marked[at].has(target)) marked[at - 1].add(source);
      this.tell(this.describe(state, node, marked));
    } else this.tell(HINT);
    this.painter.marked = marked;
    this.paintSoon();
  }

  /** @param {number} state @param {number} node @param {Set<number>[]} marked */
  describe(state, node, marked) {
    const { title, says, inferred } = this.film.states[state].nodes[node];
    const names = (/** @type {number} */ at) => {
      const all = [...marked[at]].map((index) => this.film.states[at].nodes[index].title);
      return all.length > 6 ? `${all.slice(0, 6).join(", ")} and ${all.length - 6} more` : all.join(", ");
    };
    const from = state && marked[state - 1].size ? ` From ${names(state - 1)}${inferred ? " (inferred)" : ""}.` : state ? " New here." : "";
    const next = state + 1 < marked.length ? (marked[state + 1].size ? ` Becomes ${names(state + 1)}.` : " Nothing is left of it in the next state.") : "";
    return `${title}: ${says}.${from}${next}`;
  }

  /** @param {string} words */
  tell(words) {
    this.told.textContent = words;
  }

  /** The node under a point of the canvas. @param {number} x @param {number} y */
  hit(x, y) {
    const { scale, left, top } = this.eye();
    const [gx, gy] = [(x - left) / scale, (y - top) / scale];
    const { number, places } = this.nearest();
    const node = places.findLastIndex((box) => box && Math.abs(gx - box.x) <= box.w / 2 + 2 && Math.abs(gy - box.y) <= box.h / 2 + 2);
    return { number, node };
  }

  /** @param {number} direction */
  walk(direction) {
    const number = Math.round(this.at);
    const { nodes } = this.film.states[number];
    const from = this.cursor?.state === number ? this.cursor.node : direction > 0 ? -1 : nodes.length;
    this.mark(number, Math.min(Math.max(from + direction, 0), nodes.length - 1), true);
  }

  // Pointer, keys, camera

  listen() {
    /** @type {[number, number] | null} */
    let held = null;
    let dragged = false;
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      held = [event.offsetX, event.offsetY];
      dragged = false;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
      if (held) {
        dragged ||= Math.hypot(offsetX - held[0], offsetY - held[1]) > 4;
        if (!dragged) return;
        this.zoom.x += offsetX - held[0];
        this.zoom.y += offsetY - held[1];
        held = [offsetX, offsetY];
        return this.paintSoon();
      }
      const { number, node } = this.hit(offsetX, offsetY);
      canvas.style.cursor = node < 0 ? "grab" : "pointer";
      if (!this.cursor?.kept && node !== (this.cursor?.node ?? -1)) this.mark(number, node, false);
    });
    canvas.addEventListener("pointerup", ({ offsetX, offsetY }) => {
      held = null;
      if (dragged) return;
      const { number, node } = this.hit(offsetX, offsetY);
      this.mark(number, node, node >= 0);
    });
    canvas.addEventListener("pointerleave", () => !this.cursor?.kept && this.mark(0, -1, false));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.ownerDocument.addEventListener("keydown", (event) => this.key(event));
  }

  /** Zoom with Ctrl held, as maps in pages do: else the page scrolls. @param {WheelEvent} event */
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.zoomBy(Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const onButton = event.target instanceof HTMLButtonElement && (event.key === " " || event.key === "Enter");
    /** @type {Record<string, () => void>} */
    const actions = {
      ArrowLeft: () => this.step(-1),
      ArrowRight: () => this.step(1),
      ArrowUp: () => this.walk(-1),
      ArrowDown: () => this.walk(1),
      Home: () => this.go(0),
      End: () => this.go(this.film.states.length - 1),
      Escape: () => this.mark(0, -1, false),
      " ": () => this.toggle(),
      "+": () => this.zoomBy(1.4),
      "=": () => this.zoomBy(1.4),
      "-": () => this.zoomBy(1 / 1.4),
      0: () => this.fit(),
    };
    if (onButton || !(event.key in actions)) return;
    event.preventDefault();
    actions[event.key]();
  }

  /** @param {number} factor @param {number} [x] the point that stays where it is @param {number} [y] */
  zoomBy(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const scale = Math.min(Math.max(this.zoom.scale * factor, FARTHEST), CLOSEST);
    const [middleX, middleY] = [x - this.canvas.clientWidth / 2, y - this.canvas.clientHeight / 2];
    this.zoom.x = middleX - ((middleX - this.zoom.x) * scale) / this.zoom.scale;
    this.zoom.y = middleY - ((middleY - this.zoom.y) * scale) / this.zoom.scale;
    this.zoom.scale = scale;
    this.paintSoon();
  }

  fit() {
    this.zoom = { scale: 1, x: 0, y: 0 };
    this.paintSoon();
  }

  /** @returns {import("./morph_paint.js").Eye} */
  eye() {
    const { clientWidth, clientHeight } = this.canvas;
    const [width, height] = this.painter.size(this.at);
    const fit = Math.min(1.5, (clientWidth - 2 * MARGIN) / width, (clientHeight - 2 * MARGIN) / height);
    return { scale: Math.max(fit, 0.01) * this.zoom.scale, left: clientWidth / 2 + this.zoom.x, top: clientHeight / 2 + this.zoom.y };
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.canvas.clientWidth * ratio);
    this.canvas.height = Math.round(this.canvas.clientHeight * ratio);
    this.paint();
  }

  paintSoon() {
    this.frame ||= requestAnimationFrame(() => this.paint());
  }

  paint() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const ratio = window.devicePixelRatio || 1;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, this.canvas.clientWidth, this.canvas.clientHeight);
    this.painter.paint(this.context, this.at, this.eye(), this.theme());
  }

  /** @returns {"light" | "dark"} */
  theme() {
    return document.documentElement.dataset.theme === "dark" ? "dark" : "light";
  }

  turn() {
    document.documentElement.dataset.theme = this.theme() === "dark" ? "light" : "dark";
    this.paintSoon();
  }
}
