// One artifact as a graph: GraphView with the tools around it.

import { h } from "./dom.js";
import { GraphView } from "./graph.js";
import { saveButtons, textButton, zoomButtons } from "./picture.js";
import { TOOLS } from "./views.js";

/** @typedef {import("./store.js").Artifact} Artifact */

/** What nodes can be coloured by: an attribute that some of them have, and its words. */
const OVERLAYS = [
  ["bytes", "by bytes"],
  ["measured_µs", "by measured time"],
  ["saved_bytes", "by bytes saved"],
  ["gradient_norm", "by norm of gradients"],
  ["gradient_health", "by health of gradients"],
  ["dtype", "by dtype"],
];

export class DrawingView {
  /** @param {HTMLElement} root @param {import("./text_view.js").Callbacks} callbacks @param {Artifact} artifact @param {import("./store.js").Store} store */
  constructor(root, callbacks, artifact, store) {
    this.store = store;
    this.artifact = artifact;
    this.callbacks = callbacks;
    this.canvas = h("div", { class: "tc-drawing" });
    root.replaceChildren(this.tools(), this.canvas);
    this.graph = new GraphView(this.canvas, {
      onSelect: (ids) => callbacks.onSelect(ids, false),
      onHover: (id) => callbacks.onHover(id === null ? [] : [id]),
    });
    root.append(this.graph.legend);
    this.graph.setGraph(artifact.entities ?? []);
    /** @type {import("./rainbow.js").Rainbow | null} */
    this.rainbow = null;
    /** @type {string[]} */
    this.hits = [];
    this.hit = -1;
    /** @type {string[]} */
    this.linked = [];
    this.at = -1;
  }

  tools() {
    const entities = this.artifact.entities ?? [];
    const there = OVERLAYS.filter(([name]) => entities.some(({ attrs }) => attrs[name]));
    const overlays = [["none", "no overlay"], ...there];
    const overlay = h(
      "select",
      {
        "aria-label": "Overlay",
        title: "Colour the nodes",
        onchange: () => this.graph.setOverlay(overlay.value),
      },
      ...overlays.map(([value, text]) => h("option", { value }, text)),
    );
    const picture = {
      zoom: (/** @type {number} */ factor) => this.graph.zoom(factor),
      fit: () => this.graph.fit(),
      actualSize: () => this.graph.actualSize(),
      size: () => this.graph.size(),
      paint: (/** @type {CanvasRenderingContext2D} */ context) => this.graph.paintAll(context),
      title: this.artifact.info.id,
    };
    return h(
      "div",
      { class: "tc-drawing-tools", role: "toolbar", "aria-label": "Graph" },
      zoomButtons(picture),
      textButton("open all", "Open every module group", () => this.graph.openAll()),
      textButton("close all", "Close every module group", () => this.graph.closeAll()),
      saveButtons(picture, this.callbacks.withTools),
      ...this.morphButton(),
      overlay,
    );
  }

  morphButton() {
    const { operations, graph } = this.artifact.info;
    if (!this.store.kernel || !operations) return [];
    return [textButton("eager → kernels", "run.morph()", () => this.callbacks.withTools(() => TOOLS.showMorph?.(this.canvas, this.store, graph)))];
  }

  /** Colour the nodes by source line, or by what the overlay says. @param {import("./rainbow.js").Rainbow | null} rainbow */
  colour(rainbow) {
    this.rainbow = rainbow;
    this.graph.setRainbow(rainbow);
  }

  /** @param {Set<string>} primary @param {Set<string>} linked */
  select(primary, linked) {
    this.linked = (this.artifact.entities ?? []).filter((entity) => linked.has(entity.id)).map((entity) => entity.id);
    this.graph.setSelection(primary, linked);
  }

  /** @param {Set<string>} linked */
  preview(linked) {
    this.graph.setPreview(linked.size ? linked : null);
  }

  /** @param {number} row of its text */
  showRow(row) {
    this.graph.focus(this.artifact.rows.get(row)?.at(-1) ?? "");
  }

  /** @param {number} direction @returns {[number, number]} */
  stepLinked(direction) {
    if (!this.linked.length) return [0, 0];
    this.at = (this.at + direction + this.linked.length) % this.linked.length;
    this.graph.focus(this.linked[this.at]);
    return [this.at + 1, this.linked.length];
  }

  /** @param {string} query @returns {[number, number, boolean]} */
  find(query) {
    this.hits = query ? this.graph.search(query) : [];
    this.hit = this.hits.length ? 0 : -1;
    return this.stepHit(0);
  }

  /** @param {number} direction @returns {[number, number, boolean]} */
  stepHit(direction) {
    if (this.hits.length) this.hit = (this.hit + direction + this.hits.length) % this.hits.length;
    if (this.hit >= 0) this.graph.focus(this.hits[this.hit]);
    return [this.hit + 1, this.hits.length, false];
  }

  themeChanged() {
    this.graph.themeChanged();
  }

  focus() {
    const target = this.canvas.querySelector("[tabindex]");
    if (target instanceof HTMLElement) target.focus({ preventScroll: true });
  }

  destroy() {
    this.graph.destroy();
  }
}
