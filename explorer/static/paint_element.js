// Paints a view made of HTML elements on a context: boxes, their borders and stripes, and text. So it can be saved as a
// picture.

import { colourReader } from "./graph_colours.js";
import { shortName } from "./names.js";

/** @typedef {{left: number, top: number, right: number, bottom: number}} Box */

/** What is no part of a picture. */
const CONTROLS = "input, select, svg, .tc-picture-tools, .tc-modes";
const MARGIN = 16;
/** Between the stripes of a hatched box. */
const GAP = 6;
const COLOUR = /(?:rgba?|color|oklab|oklch)\([^()]*\)/;

/** @param {HTMLElement} root @param {string} title @returns {import("./picture.js").Picture} */
export function elementPicture(root, title) {
  return {
    title,
    size: () => [root.scrollWidth + 2 * MARGIN, root.scrollHeight + 2 * MARGIN],
    paint: (context) => new ElementPainter(context, root).paint(root),
  };
}

class ElementPainter {
  /** @param {CanvasRenderingContext2D} context @param {HTMLElement} root */
  constructor(context, root) {
    this.context = context;
    this.opaque = colourReader();
    const { left, top } = root.getBoundingClientRect();
    this.origin = { left: left - MARGIN, top: top - MARGIN };
  }

  /** @param {HTMLElement} root */
  paint(root) {
    const { context } = this;
    const style = getComputedStyle(/** @type {Element} */ (root.closest(".tcompile") ?? root));
    const paper = this.opaque(style.backgroundColor, "#ffffff");
    context.textBaseline = "middle";
    context.fillStyle = paper;
    context.fillRect(0, 0, root.scrollWidth + 2 * MARGIN, root.scrollHeight + 2 * MARGIN);
    this.element(root, paper, { left: -Infinity, top: 0, right: Infinity, bottom: Infinity });
  }

  /** @param {DOMRect} rect @returns {Box} in the picture */
  place({ left, top, right, bottom }) {
    const { origin } = this;
    return { left: left - origin.left, top: top - origin.top, right: right - origin.left, bottom: bottom - origin.top };
  }

  /** @param {Element} element @param {string} under its colour @param {Box} around what is cut off at */
  element(element, under, around) {
    const style = getComputedStyle(element);
    if (style.display === "none" || style.visibility === "hidden" || element.matches(CONTROLS)) return;
    const whole = this.place(element.getBoundingClientRect());
    const box = { ...whole, left: Math.max(whole.left, around.left), right: Math.min(whole.right, around.right) };
    if (box.left >= box.right && whole.left < whole.right) return;
    const ground = this.opaque(style.backgroundColor, under);
    if (ground !== under) this.fill(box, ground);
    if (style.backgroundImage !== "none") this.stripes(box, style, ground);
    this.borders(box, style, ground);
    const clip = style.overflowX === "visible" ? around : { ...around, left: box.left, right: box.right };
    for (const child of element.childNodes) {
      if (child instanceof Element) this.element(child, ground, clip);
      else if (child instanceof Text) this.text(child, style, this.opaque(style.color, ground), clip);
    }
  }

  /** @param {Box} box @param {string} colour */
  fill({ left, top, right, bottom }, colour) {
    this.context.fillStyle = colour;
    this.context.fillRect(left, top, right - left, bottom - top);
  }

  /** @param {Box} box @param {CSSStyleDeclaration} style @param {string} under */
  borders(box, style, under) {
    const [top, right, bottom, left] = ["Top", "Right", "Bottom", "Left"].map((side) => {
      const colour = style.getPropertyValue(`border-${side.toLowerCase()}-color`);
      const width = parseFloat(style.getPropertyValue(`border-${side.toLowerCase()}-width`)) || 0;
      return { width, colour: this.opaque(colour, under) };
    });
    if (top.width) this.fill({ ...box, bottom: box.top + top.width }, top.colour);
    if (bottom.width) this.fill({ ...box, top: box.bottom - bottom.width }, bottom.colour);
    if (left.width) this.fill({ ...box, right: box.left + left.width }, left.colour);
    if (right.width) this.fill({ ...box, left: box.right - right.width }, right.colour);
  }

  /** A hatched box, or one upright stripe: whole, or dashed. @param {Box} box @param {CSSStyleDeclaration} style @param {string} under */
  stripes({ left, top, right, bottom }, { backgroundImage, backgroundPosition, backgroundSize }, under) {
    const { context } = this;
    const colour = COLOUR.exec(backgroundImage);
    if (!colour) return;
    context.strokeStyle = this.opaque(colour[0], under);
    context.setLineDash([]);
    context.beginPath();
    if (backgroundImage.includes("deg")) {
      context.lineWidth = 1.2;
      const height = bottom - top;
      for (let at = left - height; at < right; at += GAP) {
        const [from, to] = [Math.max(at, left), Math.min(at + height, right)];
        context.moveTo(from, bottom - (from - at));
        context.lineTo(to, bottom - (to - at));
      }
    } else {
      const [away, width] = [parseFloat(backgroundPosition) || 0, parseFloat(backgroundSize) || 1];
      context.lineWidth = width;
      if (backgroundImage.startsWith("repeating")) context.setLineDash([3, 3]);
      context.moveTo(left + away + width / 2, top);
      context.lineTo(left + away + width / 2, bottom);
    }
    context.stroke();
    context.setLineDash([]);
  }

  /** Each word where it stands; one that is cut off is shortened. @param {Text} node @param {CSSStyleDeclaration} style @param {string} colour @param {Box} clip */
  text(node, { fontWeight, fontSize, fontFamily }, colour, clip) {
    const { context } = this;
    const range = document.createRange();
    for (const { 0: word, index } of node.data.matchAll(/\S+/g)) {
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      const box = this.place(range.getBoundingClientRect());
      const share = Math.min(1, (clip.right - box.left) / (box.right - box.left));
      const shown = share < 1 ? shortName(word, Math.max(Math.floor(word.length * share), 0)) : word;
      if (!(share > 0) || box.left < clip.left - 1 || (share < 1 && shown.length < 3)) continue;
      context.font = `${fontWeight} ${fontSize} ${fontFamily}`;
      context.fillStyle = colour;
      context.fillText(shown, box.left, (box.top + box.bottom) / 2);
    }
  }
}
