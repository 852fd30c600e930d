// A canvas context that writes SVG: what a painter draws on a canvas can be saved as a picture of its own.

import { svgElement } from "./dom.js";

/** How far below the middle of a line its letters stand, in font sizes. */
const BASELINE = 0.35;

/** As much of a CanvasRenderingContext2D as the painters use. */
export class SvgContext {
  /** @param {number} width @param {number} height */
  constructor(width, height) {
    /** Measures text. */
    this.canvas = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
    this.fillStyle = this.strokeStyle = "#000000";
    this.lineWidth = 1;
    this.font = "12px sans-serif";
    this.dashes = "";
    this.path = "";
    this.svg = svgElement("svg", { width: String(width), height: String(height), viewBox: `0 0 ${width} ${height}` });
    this.group = /** @type {SVGElement} */ (this.svg);
    this.globalAlpha = 1;
    /** The element made last, and its path: it is filled and outlined in one. @type {SVGElement | null} */
    this.last = null;
  }

  /** @param {keyof SVGElementTagNameMap} tag @param {Record<string, string>} attributes */
  add(tag, attributes) {
    const element = svgElement(tag, attributes);
    if (this.globalAlpha < 1) element.setAttribute("opacity", String(round(this.globalAlpha)));
    this.group.append(element);
    return element;
  }

  /** @param {number} x @param {number} y */
  translate(x, y) {
    this.group = this.add("g", { transform: `translate(${x} ${y})` });
  }

  /** @param {number} x @param {number} y */
  scale(x, y) {
    this.group = this.add("g", { transform: `scale(${x} ${y})` });
  }

  /** @param {number[]} lengths */
  setLineDash(lengths) {
    this.dashes = lengths.map(round).join(" ");
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  fillRect(x, y, width, height) {
    this.add("rect", { ...rounded({ x, y, width, height }), fill: this.fillStyle });
  }

  beginPath() {
    this.path = "";
  }

  /** @param {string} command @param {number[]} numbers */
  draw(command, ...numbers) {
    this.path += command + numbers.map(round).join(" ");
  }

  /** @param {number} x @param {number} y */
  moveTo(x, y) {
    this.draw("M", x, y);
  }

  /** @param {number} x @param {number} y */
  lineTo(x, y) {
    this.draw(this.path ? "L" : "M", x, y);
  }

  /** @param {number[]} numbers */
  bezierCurveTo(...numbers) {
    this.draw("C", ...numbers);
  }

  closePath() {
    this.path += "Z";
  }

  /** @param {number} x @param {number} y @param {number} w @param {number} h @param {number | number[]} radius of all corners, or of each */
  roundRect(x, y, w, h, radius) {
    const most = Math.min(w, h) / 2;
    const corners = Array.isArray(radius) ? radius : Array(4).fill(radius);
    const [a, b, c, d] = corners.map((one) => Math.min(one, most));
    const arc = (/** @type {number} */ r, /** @type {number} */ dx, /** @type {number} */ dy) =>
      r ? this.draw("a", r, r, 0, 0, 1, dx * r, dy * r) : undefined;
    this.draw("M", x + a, y);
    this.draw("H", x + w - b);
    arc(b, 1, 1);
    this.draw("V", y + h - c);
    arc(c, -1, 1);
    this.draw("H", x + d);
    arc(d, -1, -1);
    this.draw("V", y + a);
    arc(a, 1, -1);
    this.closePath();
  }

  fill() {
    if (this.path) this.last = this.add("path", { d: this.path, fill: this.fillStyle });
  }

  stroke() {
    if (!this.path) return;
    const same = this.last === this.group.lastChild && this.last?.getAttribute("d") === this.path;
    const path = same && this.last ? this.last : this.add("path", { d: this.path, fill: "none" });
    path.setAttribute("stroke", this.strokeStyle);
    path.setAttribute("stroke-width", String(round(this.lineWidth)));
    if (this.dashes) path.setAttribute("stroke-dasharray", this.dashes);
  }

  /** @param {string} text */
  measureText(text) {
    this.canvas.font = this.font;
    return this.canvas.measureText(text);
  }

  /** As wide as it was measured: the reader may have another font. @param {string} text @param {number} x @param {number} y its middle */
  fillText(text, x, y) {
    if (!text) return;
    const [, weight = "400", size = "12", family = "sans-serif"] = /^(?:(\d+) )?([\d.]+)px (.*)$/.exec(this.font) ?? [];
    const font = { "font-family": family, "font-size": size, "font-weight": weight, fill: this.fillStyle };
    const place = rounded({ x, y: y + BASELINE * Number(size), textLength: this.measureText(text).width });
    this.add("text", { ...place, lengthAdjust: "spacingAndGlyphs", ...font }).textContent = text;
  }
}

/** @param {number} value */
function round(value) {
  return Math.round(value * 100) / 100;
}

/** @param {Record<string, number>} attributes @returns {Record<string, string>} */
function rounded(attributes) {
  return Object.fromEntries(Object.entries(attributes).map(([name, value]) => [name, String(round(value))]));
}
