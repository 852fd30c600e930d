// Painting a scene on a canvas: what is in sight, with as much detail as its size allows.

import { brightness, mix } from "./graph_colours.js";
import { isStack } from "./graph_model.js";
import { CHIP, FONTS, headerBox } from "./graph_scene.js";

/**
 * @typedef {import("./graph_scene.js").Item} Item
 * @typedef {import("./graph_scene.js").Wire} Wire
 * @typedef {import("./graph_scene.js").Scene} Scene
 * @typedef {import("./graph_colours.js").Theme} Theme
 *
 * Screen x = scale * x + left, in CSS pixels; so too for y and `top`.
 * @typedef {{scale: number, left: number, top: number, width: number, height: number, ratio: number}} Camera
 *
 * What stands out: how many selected and linked entities an item stands for, ids, and the item of the keyboard.
 * @typedef {{primary: Map<Item, number>, linked: Map<Item, number>, preview: Map<Item, number>, primaryIds: Set<string>,
 *   linkedIds: Set<string>, previewIds: Set<string>, wires: Set<Wire>, cursor: Item | null, hover: Item | null}} Marks
 */

/** Least scale for text, for chips and curves, and for shapes rather than dots. */
const TEXT = 0.5;
const CURVES = 0.3;
const SHAPES = 0.16;
/** Least length in pixels of a wire seen from afar. */
const FAINTEST = 2.5;

/** What of the scene is in sight, in graph units. @param {Camera} camera @returns {import("./graph_scene.js").Sight} */
export function sightOf({ scale, left, top, width, height }) {
  return { left: -left / scale, top: -top / scale, right: (width - left) / scale, bottom: (height - top) / scale };
}

export class Painter {
  /**
   * @param {CanvasRenderingContext2D} context @param {Scene} scene @param {Theme} theme
   * @param {import("./graph_colours.js").Colouring} colouring @param {Camera} camera @param {Marks} marks
   */
  constructor(context, scene, theme, colouring, camera, marks) {
    this.context = context;
    this.theme = theme;
    this.colouring = colouring;
    this.camera = camera;
    this.marks = marks;
    this.pixel = 1 / camera.scale;
    this.sight = sightOf(camera);
    const near = scene.between(this.sight.top, this.sight.bottom);
    this.wires = near.wires;
    const seen = near.items.filter((item) => this.sees(item));
    this.open = seen.filter((item) => item.kind === "open");
    this.boxes = seen.filter((item) => item.kind !== "open");
  }

  /** @param {Item} item */
  sees({ x, y, w, h, left, right }) {
    const { sight } = this;
    return x + w + right >= sight.left && x - left <= sight.right && y + h >= sight.top && y <= sight.bottom;
  }

  paint() {
    const { context, camera, theme } = this;
    context.fillStyle = theme.bg;
    context.fillRect(0, 0, camera.width, camera.height);
    context.translate(camera.left, camera.top);
    context.scale(camera.scale, camera.scale);
    this.paintOpenGroups();
    this.paintWires(this.wires, mix(theme.bg, theme.muted, 0.55), 1.1);
    this.paintWires(
      this.wires.filter((wire) => this.marks.wires.has(wire)),
      theme.accent,
      2,
    );
    if (camera.scale >= SHAPES) this.paintBoxes();
    else this.paintDots();
    if (camera.scale >= TEXT) this.paintText();
    this.paintMarks();
    if (camera.scale >= TEXT) this.paintHeaders();
  }

  paintOpenGroups() {
    const { context, theme } = this;
    context.lineWidth = Math.max(1, 0.8 * this.pixel);
    for (const item of this.open) {
      this.box(item, 8, this.shade(item), theme.border);
    }
  }

  /** What an open group is filled with. @param {Item} item */
  shade({ depth }) {
    return depth % 2 ? this.theme.bg : this.theme.panel;
  }

  /** @param {Wire[]} wires @param {string} colour @param {number} width */
  paintWires(wires, colour, width) {
    if (!wires.length) return;
    const { context, camera } = this;
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = Math.max(width, 0.7 * this.pixel);
    context.beginPath();
    for (const wire of wires) {
      if (camera.scale >= CURVES) this.curvedWire(wire);
      else if (camera.scale >= SHAPES || this.shows(wire)) this.straightWire(wire);
    }
    context.stroke();
    if (camera.scale < CURVES) return;
    context.beginPath();
    for (const wire of wires) if (wire.to) this.arrowHead(wire, width);
    context.fill();
  }

  /** Whether a wire is long enough to be seen from afar. @param {Wire} wire */
  shows({ points, top, bottom }) {
    const across = Math.abs(points[points.length - 2] - points[0]);
    return Math.max(bottom - top, across) > FAINTEST * this.pixel;
  }

  /** @param {Wire} wire */
  straightWire({ points }) {
    const { context, pixel } = this;
    const last = points.length - 2;
    let [x, y] = [points[0], points[1]];
    context.moveTo(x, y);
    for (let i = 2; i <= last; i += 2) {
      if (i < last && Math.abs(points[i] - x) + Math.abs(points[i + 1] - y) < pixel) continue;
      [x, y] = [points[i], points[i + 1]];
      context.lineTo(x, y);
    }
  }

  /** @param {Wire} wire */
  curvedWire({ points }) {
    const { context } = this;
    context.moveTo(points[0], points[1]);
    for (let i = 2; i < points.length; i += 2) {
      const [x, y, beforeX, beforeY] = [points[i], points[i + 1], points[i - 2], points[i - 1]];
      const middle = (beforeY + y) / 2;
      if (Math.abs(x - beforeX) < 2) context.lineTo(x, y);
      else context.bezierCurveTo(beforeX, middle, x, middle, x, y);
    }
  }

  /** @param {Wire} wire @param {number} width */
  arrowHead({ points }, width) {
    const [x, y] = [points[points.length - 2], points[points.length - 1]];
    const back = y >= points[points.length - 3] ? -6 : 6;
    const half = 2.6 + width / 2;
    this.context.moveTo(x, y);
    this.context.lineTo(x - half, y + back);
    this.context.lineTo(x + half, y + back);
    this.context.closePath();
  }

  /** Rectangles of one colour each, colour by colour; of those that share a pixel only the first. */
  paintDots() {
    const { context, pixel } = this;
    /** @type {Map<string, Item[]>} */
    const byColour = new Map();
    const taken = new Set();
    for (const item of this.boxes) {
      const place = Math.floor(item.y / pixel) * 1e5 + Math.floor(item.x / pixel);
      if (taken.has(place)) continue;
      taken.add(place);
      const { colour } = this.colouring.parts(item.members)[0];
      const same = byColour.get(colour);
      if (same) same.push(item);
      else byColour.set(colour, [item]);
    }
    for (const [colour, items] of byColour) {
      context.fillStyle = mix(this.theme.bg, colour, 0.8);
      for (const { x, y, w, h } of items) context.fillRect(x, y, Math.max(w, pixel), Math.max(h, pixel));
    }
  }

  paintBoxes() {
    for (const item of this.boxes) {
      const parts = this.colouring.parts(item.members);
      if (item.kind === "closed") this.paintClosed(item, parts);
      else this.paintNode(item, parts);
      if (this.camera.scale >= CURVES) this.paintChips(item);
    }
  }

  /** What a box is filled with. @param {string} colour what it means */
  fillOf(colour) {
    const { theme, camera } = this;
    const faint = theme.dark ? 0.2 : 0.13;
    if (this.colouring.rainbow) return mix(theme.bg, colour, 0.5);
    const share = camera.scale >= TEXT ? faint : faint + (0.7 - faint) * (1 - camera.scale / TEXT);
    return this.colouring.numeric ? colour : mix(theme.bg, colour, share);
  }

  /** @param {Item} item @param {import("./graph_colours.js").Part[]} parts */
  paintNode(item, parts) {
    const { context, theme } = this;
    const [{ colour }] = parts;
    context.lineWidth = 1;
    this.box(item, 5, this.fillOf(colour), mix(theme.bg, colour, 0.65));
    let y = item.y;
    for (const { colour: part, share } of parts) {
      context.fillStyle = part;
      context.beginPath();
      context.roundRect(item.x, y, 4, share * item.h, parts.length > 1 ? 0 : [5, 0, 0, 5]);
      context.fill();
      y += share * item.h;
    }
  }

  /** A card on another, with a bar that says what is in it. @param {Item} item @param {import("./graph_colours.js").Part[]} parts */
  paintClosed(item, parts) {
    const { context, theme } = this;
    const edge = mix(theme.bg, theme.fg, 0.45);
    context.lineWidth = 1;
    for (const away of item.group && isStack(item.group) ? [9, 6, 3] : [3])
      this.box({ ...item, x: item.x + away, y: item.y + away }, 6, theme.panel, edge);
    this.box(item, 6, this.colouring.numeric ? parts[0].colour : mix(theme.bg, theme.panel, 0.6), edge);
    if (this.colouring.numeric) return;
    let x = item.x + 1;
    for (const { colour, share } of parts) {
      context.fillStyle = colour;
      context.fillRect(x, item.y + item.h - 5, share * (item.w - 2), 4);
      x += share * (item.w - 2);
    }
  }

  /** @param {{x: number, y: number, w: number, h: number}} box @param {number} radius @param {string} fill @param {string} stroke */
  box({ x, y, w, h }, radius, fill, stroke) {
    const { context } = this;
    context.beginPath();
    context.roundRect(x, y, w, h, radius);
    context.fillStyle = fill;
    context.fill();
    context.strokeStyle = stroke;
    context.stroke();
  }

  /** @param {Item} item */
  paintChips(item) {
    const { context, theme, marks } = this;
    for (const chip of item.chips) {
      const has = (/** @type {Set<string>} */ ids) => chip.ids.some((id) => ids.has(id));
      const colour = has(marks.primaryIds)
        ? theme.accent
        : has(marks.linkedIds) || has(marks.previewIds)
          ? theme.link
          : null;
      const middle = chip.y + chip.h / 2;
      const edge = colour ?? mix(theme.bg, theme.muted, 0.5);
      context.lineWidth = colour ? 1.8 : 1;
      context.strokeStyle = edge;
      context.beginPath();
      context.moveTo(chip.into ? chip.x + chip.w : chip.x, middle);
      context.lineTo(chip.into ? item.x : item.x + item.w, middle);
      context.stroke();
      this.box(chip, CHIP.height / 2, colour ? mix(theme.bg, colour, 0.22) : chip.into ? theme.bg : theme.panel, edge);
    }
  }

  paintText() {
    const { context, theme } = this;
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.font = `${FONTS.title} ${theme.sans}`;
    for (const item of this.boxes) {
      const y = item.y + item.h / 2 - (item.detail ? 7 : 0);
      const ink = this.inkOn(item, theme.fg);
      if (item.kind === "closed") this.triangle(item.x + 8, y, false, ink);
      this.text(item.title, item.x + this.indent(item), y, ink);
    }
    context.font = `${FONTS.detail} ${theme.sans}`;
    for (const item of this.boxes) {
      const ink = this.inkOn(item, theme.muted);
      if (item.detail) this.text(item.detail, item.x + this.indent(item), item.y + item.h / 2 + 8, ink);
    }
    context.font = `${FONTS.chip} ${theme.sans}`;
    for (const { chips } of this.boxes) {
      for (const chip of chips) this.text(chip.text, chip.x + 6, chip.y + chip.h / 2 + 0.5, theme.muted);
    }
  }

  /** Titles of open groups, which stay in sight as long as some of the group is. */
  paintHeaders() {
    const { context, theme } = this;
    context.lineWidth = 1;
    for (const item of this.open) {
      const { x, y, w, h } = headerBox(item, this.sight);
      const box = { x: x + 1, y: y + 1, w: w - 4, h: h - 3 };
      this.box(box, 7, this.shade(item), y > item.y || x > item.x ? theme.border : this.shade(item));
      this.triangle(x + 10, y + h / 2, true, theme.muted);
      context.font = `${FONTS.title} ${theme.sans}`;
      this.text(item.title, x + 24, y + h / 2 + 1, theme.fg);
      context.font = `${FONTS.detail} ${theme.sans}`;
      this.text(item.detail, x + 34 + item.titleWidth, y + h / 2 + 1, theme.muted);
    }
  }

  /** @param {Item} item */
  indent(item) {
    return item.kind === "closed" ? 20 : 12;
  }

  /** A colour that is legible on a box. @param {Item} item @param {string} usual */
  inkOn(item, usual) {
    if (!this.colouring.numeric) return usual;
    return brightness(this.colouring.parts(item.members)[0].colour) > 0.55 ? "#1c2128" : "#ffffff";
  }

  /** @param {string} text @param {number} x @param {number} y @param {string} colour */
  text(text, x, y, colour) {
    this.context.fillStyle = colour;
    this.context.fillText(text, x, y);
  }

  /** @param {number} x @param {number} y @param {boolean} down @param {string} colour */
  triangle(x, y, down, colour) {
    const { context } = this;
    context.fillStyle = colour;
    context.beginPath();
    if (down)
      for (const [dx, dy] of [
        [-1, -2],
        [9, -2],
        [4, 4],
      ])
        context.lineTo(x + dx, y + dy);
    else
      for (const [dx, dy] of [
        [0, -4.5],
        [6, 0],
        [0, 4.5],
      ])
        context.lineTo(x + dx, y + dy);
    context.fill();
  }

  paintMarks() {
    const { theme, marks } = this;
    const { context } = this;
    context.setLineDash([]);
    for (const item of [...this.open, ...this.boxes]) {
      const [primary, linked] = [marks.primary.get(item), marks.linked.get(item)];
      if (primary) this.ring(item, theme.accent, 2.5);
      else if (linked) this.ring(item, theme.link, 2.5);
      else if (marks.preview.has(item)) this.ring(item, theme.link, 1.5);
      else if (item === marks.hover) this.ring(item, theme.muted, 1);
      if ((primary || linked) && item.kind === "closed")
        this.badge(item, primary ?? linked ?? 0, primary ? theme.accent : theme.link);
    }
    if (!marks.cursor) return;
    context.setLineDash([4 * this.pixel, 3 * this.pixel]);
    this.ring(marks.cursor, theme.fg, 1.2, 4);
    context.setLineDash([]);
  }

  /** @param {Item} item @param {string} colour @param {number} width in pixels @param {number} [away] */
  ring(item, colour, width, away = 1.5) {
    const { context, pixel } = this;
    const grow = Math.max(away * Math.min(1, pixel), (6 * pixel - item.h) / 2);
    const line = Math.max(Math.min(width, 2 * width * pixel), width * pixel);
    context.lineWidth = line;
    context.strokeStyle = colour;
    context.beginPath();
    context.roundRect(item.x - grow, item.y - grow, item.w + 2 * grow, item.h + 2 * grow, 6);
    context.stroke();
    if (this.camera.scale < SHAPES) ((context.fillStyle = colour), context.fill());
  }

  /** How many in a closed group. @param {Item} item @param {number} count @param {string} colour */
  badge(item, count, colour) {
    const { context } = this;
    if (this.camera.scale < CURVES) return;
    context.font = `${FONTS.chip} ${this.theme.sans}`;
    const text = count.toLocaleString("en");
    const w = context.measureText(text).width + 12;
    const box = { x: item.x + item.w - w + 6, y: item.y - 8, w, h: 16 };
    context.lineWidth = 1.5;
    this.box(box, 8, colour, this.theme.bg);
    this.text(text, box.x + 6, box.y + 8.5, brightness(colour) > 0.55 ? "#1c2128" : "#ffffff");
  }
}
