// Pointer, wheel and keys of a graph view.

import { sightOf } from "./graph_paint.js";
import { HEADER, headerBox } from "./graph_scene.js";
import { chipName, shapeInWords } from "./graph_model.js";
import { ZOOM_STEP } from "./picture.js";

/**
 * @typedef {import("./graph.js").GraphView} GraphView
 * @typedef {import("./graph_scene.js").Item} Item
 * @typedef {import("./graph_scene.js").Chip} Chip
 * @typedef {{item: Item, chip: Chip | null} | null} Hit
 */

const DRAG = 4;
const HANDLE = 22;

export class GraphInput {
  /** @param {GraphView} view */
  constructor(view) {
    this.view = view;
    this.stopping = new AbortController();
    /** @type {{x: number, y: number, moved: boolean} | null} */
    this.drag = null;
    /** @type {string | null} */
    this.hovered = null;
    const { signal } = this.stopping;
    const on = (/** @type {string} */ name, /** @type {(event: any) => void} */ listener) =>
      view.canvas.addEventListener(name, listener, { signal, passive: false });
    on("pointerdown", (event) => this.pressed(event));
    on("pointermove", (event) => this.moved(event));
    on("pointerup", (event) => this.released(event));
    on("pointercancel", () => (this.drag = null));
    on("pointerleave", () => this.hover(null));
    on("dblclick", (event) => this.opened(event));
    on("wheel", (event) => this.wheeled(event));
    on("keydown", (event) => this.typed(event));
    on("focus", () => view.paintSoon());
    on("blur", () => view.paintSoon());
  }

  destroy() {
    this.stopping.abort();
  }

  /** @param {MouseEvent} event @returns {Hit} */
  hit(event) {
    const { x, y } = this.view.unproject(event.offsetX, event.offsetY);
    return this.view.scene.at(x, y, sightOf(this.view.camera));
  }

  /** @param {PointerEvent} event */
  pressed(event) {
    if (event.button > 1) return;
    this.view.canvas.setPointerCapture(event.pointerId);
    this.drag = { x: event.clientX, y: event.clientY, moved: false };
  }

  /** @param {PointerEvent} event */
  moved(event) {
    const { drag } = this;
    if (!drag) return this.hover(this.hit(event));
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (!drag.moved && Math.hypot(dx, dy) < DRAG) return;
    this.drag = { x: event.clientX, y: event.clientY, moved: true };
    this.view.canvas.style.cursor = "grabbing";
    this.view.pan(dx, dy);
  }

  /** @param {PointerEvent} event */
  released(event) {
    const { drag } = this;
    this.drag = null;
    this.view.canvas.style.cursor = "";
    if (!drag || drag.moved || event.button) return;
    const hit = this.hit(event);
    const how = event.ctrlKey || event.metaKey || event.shiftKey ? "toggle" : "only";
    if (!hit) return how === "only" ? this.view.choose([]) : undefined;
    if (hit.chip) return this.view.choose(hit.chip.ids, how);
    if (this.onHandle(hit.item, event)) return this.view.toggleGroup(hit.item.key);
    this.view.marks.cursor = hit.item;
    const ids = hit.item.members.map((entity) => entity.id);
    this.view.choose(ids, how);
  }

  /** Whether a click is on the triangle of a group. @param {Item} item @param {MouseEvent} event */
  onHandle(item, event) {
    const { x, y } = this.view.unproject(event.offsetX, event.offsetY);
    const box = item.kind === "open" ? headerBox(item, sightOf(this.view.camera)) : item;
    return item.kind !== "node" && x < box.x + HANDLE && y < box.y + HEADER;
  }

  /** @param {MouseEvent} event */
  opened(event) {
    const hit = this.hit(event);
    if (hit && !hit.chip && hit.item.kind !== "node" && !this.onHandle(hit.item, event))
      this.view.toggleGroup(hit.item.key);
  }

  /** @param {Hit} hit */
  hover(hit) {
    const { marks, canvas, callbacks } = this.view;
    const id = hit?.chip ? hit.chip.ids[0] : (hit?.item.entity?.id ?? null);
    if (marks.hover === (hit?.item ?? null) && this.hovered === id) return;
    if (this.hovered !== id) callbacks.onHover(id);
    this.hovered = id;
    marks.hover = hit?.item ?? null;
    canvas.style.cursor = hit ? "pointer" : "";
    canvas.title = hit ? this.inWords(hit) : "";
    this.view.paintSoon();
  }

  /** @param {NonNullable<Hit>} hit */
  inWords({ item, chip }) {
    if (item.group && !chip)
      return [item.group.path, item.group.type, `${item.members.length.toLocaleString("en")} nodes`]
        .filter(Boolean)
        .join("\n");
    const ids = chip ? chip.ids : [item.key];
    const found = ids.flatMap((id) => this.view.model.byId.get(id) ?? []);
    if (found.length > 1) return found.map(chipName).join("\n");
    return found
      .map((entity) => {
        const { target, module, file, line, code } = entity.attrs;
        const place = file ? `${file}:${line}` : "";
        return [entity.label, target === entity.label ? "" : target, shapeInWords(entity), module, place, code]
          .filter(Boolean)
          .join("\n");
      })
      .join("\n");
  }

  /** Two fingers (or the wheel) move, with Ctrl (or pinched) they zoom; at its end the page scrolls. @param {WheelEvent} event */
  wheeled(event) {
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? this.view.camera.height : 1;
    if (event.ctrlKey || event.metaKey) {
      this.view.zoom(Math.exp(-Math.max(-60, Math.min(60, event.deltaY * unit)) * 0.01), event.offsetX, event.offsetY);
      return event.preventDefault();
    }
    const [dx, dy] = event.shiftKey && !event.deltaX ? [event.deltaY, 0] : [event.deltaX, event.deltaY];
    if (this.view.pan(-dx * unit, -dy * unit)) event.preventDefault();
  }

  /** @param {KeyboardEvent} event */
  typed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { view } = this;
    const cursor = view.marks.cursor;
    /** @type {Record<string, () => void>} */
    const actions = {
      "+": () => view.zoom(ZOOM_STEP),
      "=": () => view.zoom(ZOOM_STEP),
      "-": () => view.zoom(1 / ZOOM_STEP),
      f: () => view.fit(),
      0: () => view.fit(),
      1: () => view.actualSize(),
      l: () => view.list.focus(),
      Enter: () => this.enter(cursor),
      Backspace: () => cursor?.home.item && view.toggleGroup(cursor.home.item.key),
      Escape: () => this.clear(),
      ArrowUp: () => this.step(event, () => this.along(cursor, false)),
      ArrowDown: () => this.step(event, () => this.along(cursor, true)),
      ArrowLeft: () => this.step(event, () => this.beside(cursor, -1)),
      ArrowRight: () => this.step(event, () => this.beside(cursor, 1)),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  }

  clear() {
    this.view.marks.cursor = null;
    this.view.choose([]);
    this.view.paintSoon();
  }

  /** @param {Item | null} cursor */
  enter(cursor) {
    if (!cursor) return;
    if (cursor.kind === "node") return this.view.choose([cursor.key]);
    this.view.toggleGroup(cursor.key);
    if (this.view.marks.cursor) this.view.announce(this.view.marks.cursor);
  }

  /** Go where `find` says; at first, to what is highest in sight. @param {KeyboardEvent} event @param {() => Item | undefined} find */
  step(event, find) {
    const { view } = this;
    const highest = () =>
      view.scene.items.filter((item) => view.inSight(item) && item.kind !== "open").sort((a, b) => a.y - b.y)[0];
    const target = view.marks.cursor ? find() : (highest() ?? view.scene.items[0]);
    if (target) view.moveTo(target, event.shiftKey ? "add" : "only");
  }

  /** The nearest item that uses this one's output (or makes its input); else in or out of a group. @param {Item | null} cursor @param {boolean} down */
  along(cursor, down) {
    if (!cursor) return undefined;
    if (cursor.inside && down) return cursor.inside.slots.flatMap((item) => item ?? []).sort((a, b) => a.y - b.y)[0];
    const near = (down ? cursor.out : cursor.into).slice().sort((a, b) => distance(cursor, a) - distance(cursor, b));
    return near[0] ?? (down ? undefined : (cursor.home.item ?? undefined));
  }

  /** The nearest item to the left or right at about the same height. @param {Item | null} cursor @param {number} side */
  beside(cursor, side) {
    if (!cursor) return undefined;
    const { slots } = cursor.home;
    const level = slots.flatMap((item) =>
      item && item !== cursor && item.y < cursor.y + cursor.h && item.y + item.h > cursor.y ? item : [],
    );
    return level.filter((item) => (item.x - cursor.x) * side > 0).sort((a, b) => (a.x - b.x) * side)[0];
  }
}

/** @param {Item} a @param {Item} b */
function distance(a, b) {
  return Math.abs(a.x + a.w / 2 - b.x - b.w / 2) + Math.abs(a.y - b.y);
}
