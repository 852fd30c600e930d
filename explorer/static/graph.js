// The graph view: a canvas that shows entities in groups, and what the rest of the front end may ask of it.

import { counted, h } from "./dom.js";
import { Colouring, readTheme } from "./graph_colours.js";
import { GraphInput } from "./graph_input.js";
import { NodeList } from "./graph_list.js";
import { GraphModel } from "./graph_model.js";
import { Painter } from "./graph_paint.js";
import { HEADER, Scene } from "./graph_scene.js";

/**
 * @typedef {import("./graph_model.js").Entity} Entity
 * @typedef {import("./graph_scene.js").Item} Item
 * @typedef {import("./graph_paint.js").Marks} Marks
 * @typedef {{onSelect: (ids: string[]) => void, onHover: (id: string | null) => void}} GraphCallbacks
 */

const MARGIN = 24;
/** The smallest letters, of chips and of shapes, are then nine or ten pixels high. */
const LEGIBLE = 0.92;
const COMFORTABLE = 1;
const CLOSEST = 3;
const MOST_TRACED = 60;
const KEYS =
  "Arrow keys move along edges, Enter opens or closes a group, L lists the nodes, F fits, plus and minus zoom, 1 shows the actual size.";

/** @returns {Marks} */
function noMarks() {
  return {
    primary: new Map(),
    linked: new Map(),
    preview: new Map(),
    primaryIds: new Set(),
    linkedIds: new Set(),
    previewIds: new Set(),
    wires: new Set(),
    cursor: null,
    hover: null,
  };
}

export class GraphView {
  /** @param {HTMLElement} root filled by the view @param {GraphCallbacks} callbacks */
  constructor(root, callbacks) {
    this.callbacks = callbacks;
    this.canvas = h("canvas", {
      tabIndex: 0,
      role: "application",
      "aria-roledescription": "graph",
    });
    /** Not in `root`: it must not cover nodes. */
    this.legend = h("div", { class: "tc-legend", "aria-hidden": "true" });
    this.status = h("div", {
      role: "status",
      class: "tc-graph-status",
    });
    this.list = new NodeList(
      (ids, add) => this.choose(ids, add ? "toggle" : "only"),
      () => this.canvas.focus(),
    );
    this.element = h(
      "div",
      { class: "tc-graph" },
      this.canvas,
      this.list.element,
      this.status,
    );
    root.append(this.element);
    this.context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    this.camera = { scale: 1, left: 0, top: 0, width: 0, height: 0, ratio: 1 };
    this.marks = noMarks();
    this.overlay = "none";
    /** @type {import("./rainbow.js").Rainbow | null} */
    this.rainbow = null;
    this.frame = 0;
    this.placed = false;
    /** Where the camera was put: a graph that nobody moved is put there again when its pane changes. */
    this.start = { scale: 0, left: 0, top: 0 };
    /** The factor of presenter mode's type. */
    this.typeSize = 1;
    this.theme = readTheme(this.element);
    /** @type {Map<string, number>} */
    this.widths = new Map();
    /** @type {import("./graph_scene.js").Drawings} */
    this.drawings = new Map();
    this.model = new GraphModel([]);
    this.scene = this.makeScene();
    this.colouring = this.makeColouring();
    this.input = new GraphInput(this);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.element);
  }

  /** @param {Entity[]} entities */
  setGraph(entities) {
    this.model = new GraphModel(entities);
    this.drawings.clear();
    this.marks = noMarks();
    this.list.show(entities);
    this.canvas.setAttribute("aria-label", `Graph of ${counted(this.model.nodes.length, "node")}. ${KEYS}`);
    this.rebuild();
    this.placed = false;
    this.resize();
  }

  /**
   * Highlight, and bring into view if nothing of it is. Opens no group.
   * @param {Set<string>} primary ids @param {Set<string>} linked ids
   */
  setSelection(primary, linked) {
    this.marks.primaryIds = primary;
    this.marks.linkedIds = linked;
    this.list.mark(primary);
    this.markItems();
    const shown = [...(this.marks.primary.size ? this.marks.primary : this.marks.linked).keys()];
    if (shown.length && !shown.some((item) => this.inSight(item))) this.bringIn(shown);
    this.paintSoon();
  }

  /** @param {Set<string> | null} linked ids */
  setPreview(linked) {
    this.marks.previewIds = linked ?? new Set();
    this.marks.preview = this.itemsOf(this.marks.previewIds);
    this.paintSoon();
  }

  /** @param {string} name "none", "bytes", "dtype" or another attribute */
  setOverlay(name) {
    this.overlay = name;
    this.recolour();
  }

  /** @param {import("./rainbow.js").Rainbow | null} rainbow */
  setRainbow(rainbow) {
    this.rainbow = rainbow;
    this.recolour();
  }

  /** Ids of entities that have all words in their op, name, module, code or source line. @param {string} query @returns {string[]} */
  search(query) {
    return this.model.search(query);
  }

  /** Open the groups around an entity and put it in the middle. @param {string} id */
  focus(id) {
    const node = this.model.nodeOf(id);
    if (!node) return;
    if (this.model.reveal(node)) this.rebuild();
    const item = this.scene.itemOf.get(node);
    if (!item) return;
    this.marks.cursor = item;
    this.camera.scale = Math.max(this.camera.scale, COMFORTABLE);
    this.centre(item);
    this.announce(item);
  }

  /** @param {string} path of a module */
  toggleGroup(path) {
    const group = this.model.groups.get(path);
    if (!group || group === this.model.root) return;
    group.open = !group.open;
    this.rebuild(path);
    const item = this.scene.groupItems.get(path);
    if (item) this.keepInSight(item);
  }

  openAll() {
    this.model.openAll(true);
    this.rebuild();
    this.placeAtStart();
  }

  closeAll() {
    this.model.openAll(false);
    this.rebuild();
    this.placeAtStart();
  }

  /** Show everything. */
  fit() {
    const { camera, scene } = this;
    camera.scale = Math.min(1.25 * this.typeSize, this.fittingScale());
    camera.left = (camera.width - scene.width * camera.scale) / 2;
    camera.top = (camera.height - scene.height * camera.scale) / 2;
    this.paintSoon();
  }

  actualSize() {
    this.zoom(1 / this.camera.scale);
  }

  /** All of the graph, with a margin. @returns {[number, number]} */
  size() {
    return [Math.ceil(this.scene.width + 2 * MARGIN), Math.ceil(this.scene.height + 2 * MARGIN)];
  }

  /** Paint all of it: with what is selected, without what is pointed at. @param {CanvasRenderingContext2D} context */
  paintAll(context) {
    const [width, height] = this.size();
    const camera = { scale: 1, left: MARGIN, top: MARGIN, width, height, ratio: 1 };
    const marks = { ...this.marks, preview: new Map(), previewIds: new Set(), cursor: null, hover: null };
    new Painter(context, this.scene, this.theme, this.colouring, camera, marks).paint();
  }

  themeChanged() {
    this.theme = readTheme(this.element);
    this.recolour();
    const size = Number(getComputedStyle(this.element).getPropertyValue("--tc-size")) || 1;
    if (size === this.typeSize) return;
    this.typeSize = size;
    this.placed = false;
    this.resize();
  }

  destroy() {
    this.observer.disconnect();
    cancelAnimationFrame(this.frame);
    this.input.destroy();
    this.list.destroy();
    this.element.remove();
  }

  // The scene

  makeScene() {
    return new Scene(this.model, (text, font) => this.measure(text, font), this.drawings);
  }

  /** @param {string} text @param {string} font */
  measure(text, font) {
    const key = font + text;
    let width = this.widths.get(key);
    if (width === undefined) {
      this.context.font = `${font} ${this.theme.sans}`;
      this.widths.set(key, (width = this.context.measureText(text).width));
    }
    return width;
  }

  /** Lay out anew; what is at the top left of the group of this path stays where it is. @param {string} [path] */
  rebuild(path = "") {
    const before = this.scene.groupItems.get(path);
    const cursor = this.marks.cursor;
    this.scene = this.makeScene();
    const after = this.scene.groupItems.get(path);
    if (before && after) {
      this.camera.left += (before.x - after.x) * this.camera.scale;
      this.camera.top += (before.y - after.y) * this.camera.scale;
    }
    this.marks.hover = null;
    this.marks.cursor =
      cursor && (this.scene.groupItems.get(cursor.key) ?? this.scene.itemOf.get(cursor.key) ?? after ?? null);
    this.markItems();
    this.recolour();
  }

  makeColouring() {
    return new Colouring(this.overlay, this.theme, this.shownMembers(), this.rainbow);
  }

  shownMembers() {
    return this.scene.items.filter((item) => item.kind !== "open").map((item) => item.members);
  }

  recolour() {
    this.colouring = this.makeColouring();
    this.showLegend();
    this.paintSoon();
  }

  showLegend() {
    const entries = this.colouring.legend(this.shownMembers()).map(({ label, colours }) => {
      const background = colours.length > 1 ? `linear-gradient(to right, ${colours.join(", ")})` : colours[0];
      const swatch = h("i", { style: { background, ...(colours.length > 1 ? { width: "64px" } : {}) } });
      return h("span", { class: "tc-legend-item" }, swatch, label);
    });
    this.legend.replaceChildren(...entries);
  }

  // What stands out

  markItems() {
    const { marks } = this;
    marks.primary = this.itemsOf(marks.primaryIds);
    const further = new Set([...marks.linkedIds].filter((id) => !marks.primaryIds.has(id)));
    marks.linked = this.itemsOf(further);
    marks.preview = this.itemsOf(marks.previewIds);
    marks.wires = new Set();
    for (const item of [...marks.primary.keys()].slice(0, MOST_TRACED)) {
      for (const other of item.out) for (const wire of this.scene.trace(item, other)) marks.wires.add(wire);
      for (const other of item.into) for (const wire of this.scene.trace(other, item)) marks.wires.add(wire);
    }
  }

  /** How many of the ids each item in sight stands for. @param {Set<string>} ids */
  itemsOf(ids) {
    /** @type {Map<Item, number>} */
    const counts = new Map();
    for (const id of ids) {
      const item = this.scene.itemOf.get(id);
      if (item) counts.set(item, (counts.get(item) ?? 0) + 1);
    }
    return counts;
  }

  /**
   * Select these, or with "add" these too, or with "toggle" add them, or take them away if all are selected.
   * @param {string[]} ids @param {"only" | "add" | "toggle"} [how]
   */
  choose(ids, how = "only") {
    const before = this.marks.primaryIds;
    const removed = how === "toggle" && ids.every((id) => before.has(id));
    if (how === "only") this.callbacks.onSelect(ids);
    else if (removed) this.callbacks.onSelect([...before].filter((id) => !ids.includes(id)));
    else this.callbacks.onSelect([...new Set([...before, ...ids])]);
  }

  /** Make an item the keyboard's, select it, and show it. @param {Item} item @param {"only" | "add" | "toggle"} [how] */
  moveTo(item, how = "only") {
    this.marks.cursor = item;
    this.keepInSight(item);
    this.announce(item);
    const ids = item.members.map((entity) => entity.id);
    this.choose(ids, how);
    this.paintSoon();
  }

  /** @param {Item} item */
  announce({ kind, title, detail, into, out }) {
    const state = kind === "node" ? "" : kind === "open" ? ", open group" : ", closed group";
    this.status.textContent = `${title}${state}, ${detail}, ${counted(into.length, "input")}, ${counted(out.length, "user")}`;
  }

  // The camera

  resize() {
    const { camera, canvas, element } = this;
    const [width, height, ratio] = [element.clientWidth, element.clientHeight, window.devicePixelRatio || 1];
    if (!width || !height) return;
    const { scale, left, top } = this.start;
    const isMoved = camera.scale !== scale || camera.left !== left || camera.top !== top;
    camera.left += (width - camera.width) / 2;
    Object.assign(camera, { width, height, ratio });
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (!this.placed || !isMoved) this.placeAtStart();
    this.paint();
  }

  placeAtStart() {
    const { camera } = this;
    if (!camera.width) return;
    this.placed = true;
    this.fit();
    if (camera.scale < LEGIBLE * this.typeSize) this.showTop();
    this.start = { scale: camera.scale, left: camera.left, top: camera.top };
  }

  /** The top of a big graph, at a legible size. */
  showTop() {
    const { camera, scene } = this;
    camera.scale = Math.max(LEGIBLE * this.typeSize, Math.min(this.typeSize, (camera.width - 2 * MARGIN) / scene.width));
    const first = scene.items.reduce((top, item) => (item.y < top.y ? item : top), scene.items[0]);
    const wide = scene.width * camera.scale > camera.width;
    camera.left = camera.width / 2 - camera.scale * (wide ? first.x + first.w / 2 : scene.width / 2);
    camera.top = MARGIN;
    this.paintSoon();
  }

  fittingScale() {
    const { camera, scene } = this;
    return Math.min(
      (camera.width - 2 * MARGIN) / (scene.width || 1),
      (camera.height - 2 * MARGIN) / (scene.height || 1),
    );
  }

  /** Move the picture by so many pixels, as far as some of it stays in the middle. Says whether it moved. @param {number} dx @param {number} dy */
  pan(dx, dy) {
    const { camera, scene } = this;
    const bound = (/** @type {number} */ at, /** @type {number} */ room, /** @type {number} */ size) =>
      Math.max(Math.min(at, room / 2), room / 2 - size * camera.scale);
    const [left, top] = [camera.left, camera.top];
    camera.left = bound(left + dx, camera.width, scene.width);
    camera.top = bound(top + dy, camera.height, scene.height);
    this.paintSoon();
    return Math.abs(camera.left - left) + Math.abs(camera.top - top) > 0.01;
  }

  /** @param {number} factor @param {number} [x] pixel that stays where it is @param {number} [y] */
  zoom(factor, x = this.camera.width / 2, y = this.camera.height / 2) {
    const { camera } = this;
    const least = Math.min(0.5, this.fittingScale() / 1.5);
    const scale = Math.max(least, Math.min(CLOSEST, camera.scale * factor));
    camera.left = x - ((x - camera.left) * scale) / camera.scale;
    camera.top = y - ((y - camera.top) * scale) / camera.scale;
    camera.scale = scale;
    this.pan(0, 0);
  }

  /** @param {number} x @param {number} y pixels, to graph units */
  unproject(x, y) {
    const { scale, left, top } = this.camera;
    return { x: (x - left) / scale, y: (y - top) / scale };
  }

  /** @param {Item} item */
  inSight(item) {
    const { x, y } = this.unproject(0, 0);
    const { scale, width, height } = this.camera;
    return item.x + item.w > x && item.x < x + width / scale && item.y + item.h > y && item.y < y + height / scale;
  }

  /** @param {Item} item */
  centre(item) {
    const { camera } = this;
    camera.left = camera.width / 2 - (item.x + item.w / 2) * camera.scale;
    camera.top = camera.height / 2 - (item.y + Math.min(item.h, camera.height / camera.scale) / 2) * camera.scale;
    this.paintSoon();
  }

  /** Show all of these if they fit at a legible size, else the first. @param {Item[]} items */
  bringIn(items) {
    const { camera } = this;
    const [left, top] = [Math.min(...items.map((item) => item.x)), Math.min(...items.map((item) => item.y))];
    const [right, bottom] = [
      Math.max(...items.map((item) => item.x + item.w)),
      Math.max(...items.map((item) => item.y + item.h)),
    ];
    const scale = Math.min((camera.width - 2 * MARGIN) / (right - left), (camera.height - 2 * MARGIN) / (bottom - top));
    if (scale < LEGIBLE) return this.centre(items.reduce((first, item) => (item.y < first.y ? item : first)));
    camera.scale = Math.min(camera.scale, scale);
    camera.left = camera.width / 2 - ((left + right) / 2) * camera.scale;
    camera.top = camera.height / 2 - ((top + bottom) / 2) * camera.scale;
  }

  /** Move as little as it takes to have an item in sight (the top left of a big one). @param {Item} item */
  keepInSight(item) {
    const { camera } = this;
    /** @param {number} at @param {number} size @param {number} room @param {number} margin */
    const move = (at, size, room, margin) => {
      if (at < margin || size > room - margin - MARGIN) return margin - at;
      return Math.min(0, room - MARGIN - at - size);
    };
    const headers = item.depth * HEADER * camera.scale + MARGIN / 2;
    camera.left += move(camera.left + item.x * camera.scale, item.w * camera.scale, camera.width, MARGIN);
    camera.top += move(
      camera.top + item.y * camera.scale,
      item.h * camera.scale,
      camera.height,
      Math.max(MARGIN, headers),
    );
    this.paintSoon();
  }

  // Painting

  paintSoon() {
    this.frame ||= requestAnimationFrame(() => this.paint());
  }

  paint() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (!this.camera.width) return;
    if (this.camera.ratio !== (window.devicePixelRatio || 1)) return this.resize();
    this.context.setTransform(this.camera.ratio, 0, 0, this.camera.ratio, 0, 0);
    new Painter(this.context, this.scene, this.theme, this.colouring, this.camera, this.marks).paint();
  }
}
