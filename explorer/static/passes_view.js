// What each of Triton's passes changed, as diffs; and layouts as grids: a colour for each warp, the thread's elements lit up.

import { DocumentView } from "./document_view.js";
import { h, svgElement } from "./dom.js";
import { LATE_VIEWS } from "./late_views.js";

/** @typedef {{bases: Record<string, number[][]>, shape: number[], title: string}} Layout */
/** @typedef {Record<string, number>} Where */

/** So many rows and columns of a tile are drawn; a tile has no more than 128 × 128 elements in most kernels. */
const MOST_ROWS = 64;
const MOST_COLUMNS = 128;
const SIDE = 11;
/** Okabe and Ito's colours, by warp. */
const WARPS = ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#0072b2", "#d55e00", "#f0e442", "#999999"];
const SIGNS = { "+": "tc-added", "-": "tc-removed", "@": "tc-hunk" };

class PassesView extends DocumentView {
  /** @param {HTMLElement} body */
  begin(body) {
    body.classList.add("tc-passes");
    return super.begin(body);
  }

  /** The diff of a pass, with a colour for what is gone and what is new. @param {[string, number, number]} source @param {string} label */
  code(source, label) {
    const code = super.code(source, label);
    const paint = () => {
      const lines = (code.textContent ?? "").split("\n");
      code.replaceChildren(...lines.map((line) => h("span", { class: `tc-diff-row ${SIGNS[/** @type {"+"} */ (line[0])] ?? ""}` }, `${line}\n`)));
    };
    if (this.store.artifacts.get(source[0])?.lines) paint();
    else {
      const stop = this.store.listen((what, id) => {
        if (what !== "text" || id !== source[0]) return;
        stop();
        queueMicrotask(paint);
      });
    }
    return code;
  }
}

class LayoutsView extends DocumentView {
  /** @param {HTMLElement} body @returns {import("./document.js").Charts} */
  begin(body) {
    super.begin(body);
    return { layout: (data) => drawLayout(data) };
  }
}

/** The tile as a grid. @param {Layout} layout */
function drawLayout(layout) {
  const rank = layout.shape.length;
  const [height, width] = rank > 1 ? layout.shape.slice(-2) : [1, layout.shape[0]];
  const rows = Math.min(height, MOST_ROWS);
  const columns = Math.min(width, MOST_COLUMNS);
  const places = placesOf(layout);
  const lanes = 2 ** (layout.bases.lane?.length ?? 0);
  const svg = svgElement("svg", { viewBox: `0 0 ${columns * SIDE} ${rows * SIDE}`, width: String(columns * SIDE), height: String(rows * SIDE), role: "img", "aria-label": `${layout.title}: which thread holds which element` });
  const said = h("p", { class: "tc-layout-line", role: "status" }, "Point at an element, or press an arrow key: its owner's elements light up.");
  /** @type {{element: SVGElement, owner: string, words: string}[]} */
  const cells = [];
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const held = places.get(row * width + column) ?? [];
      const first = held[0] ?? {};
      const element = svgElement("rect", { x: String(column * SIDE), y: String(row * SIDE), width: String(SIDE - 1), height: String(SIDE - 1), fill: colourOf(first, lanes) });
      svg.append(element);
      cells.push({ element, owner: ownerOf(first, lanes), words: `${rank > 1 ? `[${row}, ${column}]` : `[${column}]`}: ${inWords(held, lanes)}` });
    }
  }
  let at = -1;
  /** @param {number} next */
  const choose = (next) => {
    if (next === at || next < 0 || next >= cells.length) return;
    at = next;
    for (const cell of cells) cell.element.classList.toggle("tc-same", cell.owner === cells[at].owner);
    cells.forEach((cell, index) => cell.element.classList.toggle("tc-here", index === at));
    said.textContent = cells[at].words;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    choose(Math.floor(((event.clientY - box.top) / box.height) * rows) * columns + column);
  });
  const chart = h("div", { class: "tc-layout", tabIndex: 0, role: "group", "aria-label": `${layout.title}; arrow keys go from element to element` }, svg);
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (!step) return;
    choose(at < 0 ? 0 : at + step);
    event.preventDefault();
    event.stopPropagation();
  });
  const cut = rows < height || columns < width ? h("p", { class: "tc-why" }, `The first ${rows} × ${columns} of ${height} × ${width} elements.`) : null;
  return h("div", {}, ...[said, chart, cut].filter((each) => each !== null));
}

/** Where each element of the tile at index 0 of the higher dimensions is, by row × width + column. @param {Layout} layout */
function placesOf({ bases, shape }) {
  const rank = shape.length;
  /** @type {[number[], Where][]} */
  let all = [[new Array(rank).fill(0), {}]];
  for (const [name, own] of Object.entries(bases)) {
    const steps = Array.from({ length: 2 ** own.length }, (_, index) => coordinatesOf(own, index, rank));
    all = all.flatMap(([at, where]) => steps.map((step, index) => /** @type {[number[], Where]} */ ([at.map((value, axis) => value ^ step[axis]), { ...where, [name]: index }])));
  }
  /** @type {Map<number, Where[]>} */
  const found = new Map();
  for (const [at, where] of all) {
    if (at.slice(0, -2).some(Boolean)) continue;
    const key = (rank > 1 ? at[rank - 2] * shape[rank - 1] : 0) + at[rank - 1];
    found.set(key, [...(found.get(key) ?? []), where]);
  }
  return found;
}

/** @param {number[][]} bases @param {number} index @param {number} rank */
function coordinatesOf(bases, index, rank) {
  const at = new Array(rank).fill(0);
  bases.forEach((basis, bit) => (index >> bit) & 1 && basis.forEach((value, axis) => (at[axis] ^= value)));
  return at;
}

/** By warp, every second lane lighter; memory by bank of 8 elements. @param {Where} where @param {number} lanes */
function colourOf(where, lanes) {
  if ("warp" in where) return `color-mix(in srgb, ${WARPS[where.warp % WARPS.length]} ${100 - 40 * (where.lane % 2) - (30 * where.lane) / lanes}%, var(--tc-bg))`;
  const group = Math.floor((where.offset ?? where.column ?? 0) / 8) % 8;
  return `color-mix(in srgb, ${WARPS[group]} 70%, var(--tc-bg))`;
}

/** @param {Where} where @param {number} lanes */
function ownerOf(where, lanes) {
  return "warp" in where ? String(where.warp * lanes + where.lane) : String(Math.floor((where.offset ?? where.column ?? 0) / 8));
}

/** @param {Where[]} held @param {number} lanes */
function inWords(held, lanes) {
  const [first] = held;
  if (!first) return "nowhere";
  if ("offset" in first) return `offset ${first.offset} (in elements)`;
  if ("row" in first) return `lane ${first.row}, column ${first.column} of tensor memory`;
  const threads = new Set(held.map((each) => ownerOf(each, lanes)));
  const also = threads.size > 1 ? `, and ${threads.size - 1} more threads` : "";
  return `thread ${ownerOf(first, lanes)} (warp ${first.warp}, lane ${first.lane}), register ${first.register}${also}`;
}

Object.assign(LATE_VIEWS, { passes: PassesView, layouts: LayoutsView });
