// Jumps of a listing as arrows in its gutter: each in a lane of its own, nested ones side by side, drawn row by row.

import { svgElement } from "./dom.js";

/** Jumps that would need more lanes than this share the outermost. */
const MOST_LANES = 8;
/** Points between lanes, and beside them. */
const STEP = 6;
const SIDE = 9;

/** From one row to another. @typedef {{from: number, to: number, lane: number}} Jump */

/**
 * Give each jump the innermost lane that is free along its way, short ones first.
 * @param {[number, number][]} pairs @returns {Jump[]}
 */
export function inLanes(pairs) {
  const jumps = pairs.map(([from, to]) => ({ from, to, lane: 0 }));
  const reach = (/** @type {Jump} */ { from, to }) => Math.abs(from - to);
  /** @type {Jump[][]} */
  const lanes = [];
  for (const jump of [...jumps].sort((a, b) => reach(a) - reach(b))) {
    const free = lanes.findIndex((lane) => !lane.some((other) => overlap(jump, other)));
    jump.lane = Math.min(free < 0 ? lanes.length : free, MOST_LANES - 1);
    (lanes[jump.lane] ??= []).push(jump);
  }
  return jumps;
}

/** @param {Jump} a @param {Jump} b */
function overlap(a, b) {
  return Math.min(a.from, a.to) <= Math.max(b.from, b.to) && Math.min(b.from, b.to) <= Math.max(a.from, a.to);
}

/** How wide the gutter is. @param {Jump[]} jumps */
export function gutterWidth(jumps) {
  return jumps.length ? SIDE + STEP * (1 + Math.max(...jumps.map(({ lane }) => lane))) : 0;
}

/**
 * The piece of the gutter beside one row.
 * @param {Jump[]} jumps @param {number} row @param {number} width @param {number} height
 */
export function jumpPiece(jumps, row, width, height) {
  const svg = svgElement("svg", {
    width: String(width),
    height: String(height),
    "aria-hidden": "true",
    class: "tc-jumps",
  });
  jumps.forEach((jump, index) => {
    const d = pathOf(jump, row, width, height);
    if (d)
      svg.append(svgElement("path", { d, "data-jump": String(index), class: jump.to < jump.from ? "tc-back" : "" }));
  });
  return svg;
}

/** @param {Jump} jump @param {number} row @param {number} width @param {number} height */
function pathOf({ from, to, lane }, row, width, height) {
  const [top, bottom] = [Math.min(from, to), Math.max(from, to)];
  if (row < top || row > bottom) return "";
  const x = width - SIDE - STEP * lane;
  const [middle, edge] = [height / 2, width - 2];
  if (row > top && row < bottom) return `M${x} 0V${height}`;
  const line = row === top ? `M${edge} ${middle}H${x}V${height}` : `M${x} 0V${middle}H${edge}`;
  return row === to ? `${line}M${edge - 4} ${middle - 3}L${edge} ${middle}L${edge - 4} ${middle + 3}` : line;
}
