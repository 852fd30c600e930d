// A graph on a canvas, as it is or between two states: `draw([state], 0)`, `draw([before, after], t)` with t from 0 to 1.
// A node is a box with a tensor above its title and one below; an edge is a line as wide as what flows in it.
//
// A state is plain data. `placeState(state)` gives its nodes and edges their places, once; `paintStates` paints on any
// 2D context, also that of an SVG; `GraphCanvas` has the camera, the pointer and the frames.

import { layout } from "./layout.js";

/**
 * A tensor to show: all its numbers if it is small, else a heat map, `rows` × `columns` shares of `most` from -1 to 1
 * (NaN: not finite).
 * @typedef {{type: string, shape: number[], count: number, norm: number, low: number, high: number, zeros: number, nans: number,
 *   infinite: number, numbers: ArrayLike<number> | null, heat: {rows: number, columns: number, cells: ArrayLike<number>} | null}} Tensor
 *
 * A node. `tone` is one of TONES. `above`, `below`: undefined for no room, null for room that is empty now. Between two
 * states, a node with the same id moves; else it comes out of the nodes `from`, or melts into the node `into`.
 * `x`, `y` are its middle, `w`, `h` its size; `placeState` fills them in.
 * @typedef {{id: string, title: string, detail?: string, above?: Tensor | null, below?: Tensor | null, aboveSize?: Tensor | null,
 *   belowSize?: Tensor | null, tone?: string, badge?: string, faint?: boolean, from?: string[], into?: string, x?: number, y?: number, w?: number, h?: number}} Node
 *
 * An edge, from top to bottom. `width` in points; `label` is written at its middle; `flow` from 0 to 1 is how far
 * something has come on its way, `back` from the bottom up.
 * @typedef {{from: string, to: string, width?: number, label?: string, tone?: string, dashed?: boolean, flow?: number, back?: boolean,
 *   points?: ArrayLike<number>}} Edge
 * @typedef {{nodes: Node[], edges: Edge[], width?: number, height?: number}} State
 * @typedef {{x: number, y: number, w: number, h: number}} Rect
 * @typedef {import("./graph_colours.js").Theme} Theme
 * @typedef {{ids: Set<string>, linked: Set<string>, cursor: string}} Marks
 */

const SANS = "system-ui, sans-serif";
const FONTS = { title: `600 12px ${SANS}`, detail: `10.5px ${SANS}`, number: "11px ui-monospace, Menlo, Consolas, monospace", label: `600 10.5px ${SANS}` };
const CELL = { width: 46, height: 16 };
/** A tensor is written in numbers if it has at most so many rows and columns. */
const SIDE = 4;
const HEAT = 64;
const TITLE = 34;
const PAD = 8;
/** A picture that opens is no smaller: it shows a part of a large graph. */
const LEGIBLE = 0.6;
const POINTS = 9;
/** Positive and negative, from Okabe and Ito's palette, on light and dark. */
const SIGNS = { light: ["0, 114, 178", "213, 94, 0"], dark: ["86, 180, 233", "230, 126, 30"] };
/** What nodes and edges are coloured by: the name of a colour of the theme. @type {Record<string, keyof Theme>} */
const TONES = { plain: "border", accent: "accent", backward: "link", warning: "warning", quiet: "muted" };

/** Four digits. @param {number} number */
export function digitsOf(number) {
  if (Number.isNaN(number)) return "nan";
  if (!Number.isFinite(number)) return number > 0 ? "inf" : "-inf";
  if (Number.isInteger(number) && Math.abs(number) < 1e5) return String(number).replace(/^-/, "−");
  const text = number.toPrecision(4);
  return (text.includes("e") ? text.replace(/\.?0+e/, "e") : text.replace(/\.?0+$/, "")).replace(/^-/, "−");
}

/** The rows and columns that a tensor's numbers are written in; null if they are too many. @param {Tensor} tensor @returns {[number, number] | null} */
export function gridOf({ numbers, shape }) {
  if (!numbers) return null;
  const columns = shape.length ? shape[shape.length - 1] : 1;
  const rows = columns ? numbers.length / columns : 0;
  return rows <= SIDE && columns <= SIDE && rows && columns ? [rows, columns] : null;
}

/** @param {Tensor | null | undefined} tensor @returns {[number, number]} */
function sizeOf(tensor) {
  if (!tensor) return [0, tensor === null ? CELL.height : 0];
  const grid = gridOf(tensor);
  if (grid) return [grid[1] * CELL.width, grid[0] * CELL.height];
  return [HEAT + 92, tensor.heat ? Math.max(heatHeight(tensor.heat), 3 * 13) : 3 * 13];
}

/** @param {{rows: number, columns: number}} heat */
function heatHeight({ rows, columns }) {
  return Math.min(HEAT, Math.max(8, (HEAT * rows) / columns));
}

const ruler = globalThis.document?.createElement("canvas").getContext("2d");
/** @type {Map<string, number>} */
const widths = new Map();

/** @param {string} text @param {string} font */
function widthOf(text, font) {
  const key = `${font} ${text}`;
  let known = widths.get(key);
  if (known === undefined) {
    if (ruler) ruler.font = font;
    widths.set(key, (known = ruler?.measureText(text).width ?? 7 * text.length));
  }
  return known;
}

/** Give nodes and edges that have none their places, in layers from the top. @template {State} S @param {S} state @returns {S} */
export function placeState(state) {
  const index = new Map(state.nodes.map(({ id }, at) => [id, at]));
  for (const node of state.nodes) {
    const [above, below] = [sizeOf(node.aboveSize ?? node.above), sizeOf(node.belowSize ?? node.below)];
    const words = Math.max(widthOf(node.title, FONTS.title), widthOf(node.detail ?? "", FONTS.detail));
    node.w = Math.ceil(Math.max(words, above[0], below[0], 34) + 2 * PAD);
    node.h = Math.ceil(TITLE - (node.detail ? 0 : 12) + (above[1] && above[1] + PAD) + (below[1] && below[1] + PAD));
  }
  const known = state.edges.filter(({ from, to }) => index.has(from) && index.has(to));
  const pairs = known.map(({ from, to }) => [index.get(from) ?? 0, index.get(to) ?? 0]);
  const boxes = state.nodes.map(({ w = 0, h = 0 }) => ({ width: w, height: h }));
  const drawn = layout(boxes, pairs, { gap: 26, layerGap: 46 });
  state.nodes.forEach((node, at) => {
    node.x = drawn.x[at];
    node.y = drawn.y[at];
  });
  known.forEach((edge, at) => (edge.points = drawn.routes[at]));
  state.width = drawn.width;
  state.height = drawn.height;
  return state;
}

// ---- between two states

/** @param {number} a @param {number} b @param {number} t */
const mixed = (a, b, t) => a + (b - a) * t;

/** Slow at both ends. @param {number} t */
export const eased = (t) => t * t * (3 - 2 * t);

/** @param {Node} node @returns {Rect} */
const rectOf = ({ x = 0, y = 0, w = 0, h = 0 }) => ({ x, y, w, h });

/** @param {Rect} a @param {Rect} b @param {number} t @returns {Rect} */
function between(a, b, t) {
  return { x: mixed(a.x, b.x, t), y: mixed(a.y, b.y, t), w: mixed(a.w, b.w, t), h: mixed(a.h, b.h, t) };
}

/**
 * The nodes and edges to paint at time t, each with where it is and how opaque.
 * @param {State[]} states one, or two @param {number} t
 * @returns {{nodes: {node: Node, rect: Rect, alpha: number}[], edges: {edge: Edge, points: ArrayLike<number>, alpha: number}[]}}
 */
export function inBetween(states, t) {
  const [before, after] = states;
  if (!after || t <= 0) return still(before);
  if (t >= 1) return still(after);
  const time = eased(t);
  const [old, fresh] = [byId(before), byId(after)];
  const nodes = [];
  for (const node of before.nodes) {
    if (fresh.has(node.id)) continue;
    const target = fresh.get(node.into ?? "");
    const rect = target ? between(rectOf(node), rectOf(target), time) : rectOf(node);
    nodes.push({ node, rect, alpha: Math.max(0, 1 - (target ? Math.max(0, 2 * time - 1) : 2 * time)) });
  }
  for (const node of after.nodes) {
    const same = old.get(node.id);
    const sources = (node.from ?? []).flatMap((id) => old.get(id) ?? []);
    const start = same ? rectOf(same) : sources.length ? middleOf(sources) : null;
    const rect = start ? between(start, rectOf(node), time) : rectOf(node);
    nodes.push({ node, rect, alpha: same ? 1 : start ? Math.min(1, 2 * time) : Math.max(0, 2 * time - 1) });
  }
  const rects = new Map(nodes.map(({ node, rect }) => [node.id, rect]));
  return { nodes, edges: movingEdges(before, after, time, rects) };
}

/** @param {State} state */
function still({ nodes, edges }) {
  return {
    nodes: nodes.map((node) => ({ node, rect: rectOf(node), alpha: 1 })),
    edges: edges.flatMap((edge) => (edge.points?.length ? [{ edge, points: edge.points, alpha: 1 }] : [])),
  };
}

/** @param {State} state */
const byId = (state) => new Map(state.nodes.map((node) => [node.id, node]));

/** @param {Node[]} nodes @returns {Rect} */
function middleOf(nodes) {
  const share = 1 / nodes.length;
  const sum = (/** @type {(rect: Rect) => number} */ pick) => nodes.reduce((all, node) => all + pick(rectOf(node)), 0);
  return { x: share * sum(({ x }) => x), y: share * sum(({ y }) => y), w: share * sum(({ w }) => w), h: share * sum(({ h }) => h) };
}

/** @param {State} before @param {State} after @param {number} time @param {Map<string, Rect>} rects */
function movingEdges(before, after, time, rects) {
  const key = (/** @type {Edge} */ { from, to }) => `${from}\n${to}`;
  const old = new Map(before.edges.map((edge) => [key(edge), edge]));
  const kept = new Set(after.edges.map(key));
  const edges = [];
  for (const edge of after.edges) {
    const same = old.get(key(edge));
    const route = same?.points?.length && edge.points?.length ? mixedRoute(same.points, edge.points, time) : followed(edge, rects);
    if (route) edges.push({ edge, points: route, alpha: same ? 1 : Math.max(0, 2 * time - 1) });
  }
  for (const edge of before.edges) {
    const route = kept.has(key(edge)) ? null : followed(edge, rects);
    if (route) edges.push({ edge, points: route, alpha: Math.max(0, 1 - 2 * time) });
  }
  return edges;
}

/** A straight line between two nodes that are under way. @param {Edge} edge @param {Map<string, Rect>} rects */
function followed({ from, to }, rects) {
  const [a, b] = [rects.get(from), rects.get(to)];
  return a && b ? [a.x, a.y + a.h / 2, b.x, b.y - b.h / 2] : null;
}

/** @param {ArrayLike<number>} a @param {ArrayLike<number>} b @param {number} t */
function mixedRoute(a, b, t) {
  const points = [];
  for (let i = 0; i < POINTS; i++) {
    const [[ax, ay], [bx, by]] = [pointAt(a, i / (POINTS - 1)), pointAt(b, i / (POINTS - 1))];
    points.push(mixed(ax, bx, t), mixed(ay, by, t));
  }
  return points;
}

/** The point of a route at a share of its length. @param {ArrayLike<number>} points @param {number} share @returns {[number, number]} */
export function pointAt(points, share) {
  const lengths = [];
  for (let i = 2; i < points.length; i += 2) lengths.push(Math.hypot(points[i] - points[i - 2], points[i + 1] - points[i - 1]));
  let left = share * lengths.reduce((sum, length) => sum + length, 0);
  for (let i = 0; i < lengths.length; i++) {
    if (left <= lengths[i] || i === lengths.length - 1) {
      const part = lengths[i] ? Math.min(1, left / lengths[i]) : 0;
      return [mixed(points[2 * i], points[2 * i + 2], part), mixed(points[2 * i + 1], points[2 * i + 3], part)];
    }
    left -= lengths[i];
  }
  return [points[0], points[1]];
}

// ---- painting

/**
 * Paint states at time t, in graph units.
 * @param {CanvasRenderingContext2D} context @param {State[]} states @param {number} t @param {Theme} theme @param {Marks} [marks]
 */
export function paintStates(context, states, t, theme, marks = { ids: new Set(), linked: new Set(), cursor: "" }) {
  const { nodes, edges } = inBetween(states, t);
  context.textBaseline = "middle";
  for (const { edge, points, alpha } of edges) paintEdge(context, edge, points, alpha, theme);
  for (const { node, rect, alpha } of nodes) paintNode(context, node, rect, alpha, theme, marks);
  for (const { edge, points, alpha } of edges) paintLabel(context, edge, points, alpha, theme);
  context.globalAlpha = 1;
}

/** @param {Theme} theme @param {string | undefined} tone */
const toneOf = (theme, tone) => /** @type {string} */ (theme[TONES[tone ?? "plain"] ?? "border"]);

/** @param {CanvasRenderingContext2D} context @param {Edge} edge @param {ArrayLike<number>} points @param {number} alpha @param {Theme} theme */
function paintEdge(context, { width = 1.5, tone = "quiet", dashed = false, flow, back }, points, alpha, theme) {
  if (alpha <= 0) return;
  context.globalAlpha = alpha * (tone === "quiet" ? 0.6 : 0.9);
  context.strokeStyle = toneOf(theme, tone);
  context.lineWidth = width;
  context.setLineDash(dashed ? [5, 4] : []);
  trace(context, points);
  context.stroke();
  context.setLineDash([]);
  if (flow === undefined) return;
  const [x, y] = pointAt(points, back ? 1 - flow : flow);
  context.globalAlpha = alpha;
  context.fillStyle = toneOf(theme, back ? "backward" : "accent");
  context.beginPath();
  context.roundRect(x - 5, y - 5, 10, 10, 5);
  context.fill();
}

/** A line with round corners. @param {CanvasRenderingContext2D} context @param {ArrayLike<number>} points */
function trace(context, points) {
  const last = points.length - 2;
  context.beginPath();
  context.moveTo(points[0], points[1]);
  for (let i = 2; i < last; i += 2) {
    const [x, y] = i + 2 < last ? [(points[i] + points[i + 2]) / 2, (points[i + 1] + points[i + 3]) / 2] : [points[last], points[last + 1]];
    const [px, py] = i === 2 ? [points[0], points[1]] : [(points[i - 2] + points[i]) / 2, (points[i - 1] + points[i + 1]) / 2];
    const near = (/** @type {number} */ end, /** @type {number} */ corner) => end + (2 / 3) * (corner - end);
    context.bezierCurveTo(near(px, points[i]), near(py, points[i + 1]), near(x, points[i]), near(y, points[i + 1]), x, y);
  }
  if (last === 2) context.lineTo(points[last], points[last + 1]);
}

/** @param {CanvasRenderingContext2D} context @param {Edge} edge @param {ArrayLike<number>} points @param {number} alpha @param {Theme} theme */
function paintLabel(context, { label, tone }, points, alpha, theme) {
  if (!label || alpha < 0.5) return;
  const [x, y] = pointAt(points, 0.5);
  const width = widthOf(label, FONTS.label) + 8;
  context.globalAlpha = 0.94 * alpha;
  context.fillStyle = theme.bg;
  context.fillRect(x - width / 2, y - 8, width, 16);
  context.globalAlpha = alpha;
  context.fillStyle = tone === "quiet" || !tone ? theme.muted : theme.fg;
  write(context, label, x, y, FONTS.label, "center");
}

/** @param {CanvasRenderingContext2D} context @param {string} text @param {number} x @param {number} y @param {string} font @param {"left" | "center"} align */
function write(context, text, x, y, font, align) {
  context.font = font;
  context.fillText(text, align === "center" ? x - widthOf(text, font) / 2 : x, y);
}

/**
 * @param {CanvasRenderingContext2D} context @param {Node} node @param {Rect} rect @param {number} alpha @param {Theme} theme
 * @param {Marks} marks
 */
function paintNode(context, node, { x, y, w, h }, alpha, theme, marks) {
  if (alpha <= 0) return;
  const [left, top] = [x - w / 2, y - h / 2];
  context.globalAlpha = alpha * (node.faint ? 0.45 : 1);
  const chosen = marks.ids.has(node.id);
  if (chosen || marks.linked.has(node.id)) outline(context, left - 3, top - 3, w + 6, h + 6, chosen ? theme.accent : theme.link, 3);
  context.fillStyle = theme.panel;
  context.fillRect(left, top, w, h);
  outline(context, left, top, w, h, toneOf(theme, node.tone), node.tone && node.tone !== "plain" ? 2 : 1);
  if (marks.cursor === node.id) outline(context, left - 6, top - 6, w + 12, h + 12, theme.fg, 1);
  const [above, below] = [sizeOf(node.aboveSize ?? node.above), sizeOf(node.belowSize ?? node.below)];
  const titleTop = top + (above[1] && above[1] + PAD);
  if (node.above) paintTensor(context, node.above, x, top + PAD / 2, theme);
  context.fillStyle = theme.fg;
  const middle = titleTop + (TITLE - (node.detail ? 0 : 12)) / 2;
  write(context, node.title, x, middle - (node.detail ? 7 : 0), FONTS.title, "center");
  context.fillStyle = theme.muted;
  if (node.detail) write(context, node.detail, x, middle + 8, FONTS.detail, "center");
  if (node.below) paintTensor(context, node.below, x, top + h - below[1] - PAD / 2, theme);
  if (node.badge) paintBadge(context, node.badge, left + w, top, theme);
}

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {number} w @param {number} h @param {string} colour @param {number} width */
function outline(context, x, y, w, h, colour, width) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.beginPath();
  context.roundRect(x, y, w, h, 3);
  context.stroke();
}

/** A word at the upper right corner. @param {CanvasRenderingContext2D} context @param {string} text @param {number} right @param {number} top @param {Theme} theme */
function paintBadge(context, text, right, top, theme) {
  const width = widthOf(text, FONTS.label) + 8;
  context.fillStyle = theme.warning;
  context.fillRect(right - width + 6, top - 9, width, 15);
  context.fillStyle = theme.bg;
  write(context, text, right - width / 2 + 6, top - 1, FONTS.label, "center");
}

/** Where the cells of a node's tensor are, in graph units: for the pointer. @param {Node} node @param {"above" | "below"} which */
export function cellsOf(node, which) {
  const tensor = node[which];
  const grid = tensor && gridOf(tensor);
  if (!tensor || !grid) return null;
  const { x, y, w, h } = rectOf(node);
  const [, height] = sizeOf(tensor);
  const top = which === "above" ? y - h / 2 + PAD / 2 : y + h / 2 - height - PAD / 2;
  return { left: x - (grid[1] * CELL.width) / 2, top, rows: grid[0], columns: grid[1], width: CELL.width, height: CELL.height, w };
}

/** @param {CanvasRenderingContext2D} context @param {Tensor} tensor @param {number} x its middle @param {number} top @param {Theme} theme */
function paintTensor(context, tensor, x, top, theme) {
  const grid = gridOf(tensor);
  if (grid) paintNumbers(context, tensor, grid, x, top, theme);
  else paintHeat(context, tensor, x, top, theme);
}

/** @param {CanvasRenderingContext2D} context @param {Tensor} tensor @param {[number, number]} grid @param {number} x @param {number} top @param {Theme} theme */
function paintNumbers(context, { numbers }, [rows, columns], x, top, theme) {
  if (!numbers) return;
  const most = Array.from(numbers).reduce((all, each) => (Number.isFinite(each) ? Math.max(all, Math.abs(each)) : all), 0);
  const left = x - (columns * CELL.width) / 2;
  for (let at = 0; at < rows * columns; at++) {
    const [cx, cy] = [left + (at % columns) * CELL.width, top + Math.floor(at / columns) * CELL.height];
    context.fillStyle = tintOf(numbers[at], most, theme, 0.4);
    context.fillRect(cx + 0.5, cy + 0.5, CELL.width - 1, CELL.height - 1);
    context.fillStyle = Number.isFinite(numbers[at]) ? theme.fg : theme.warning;
    write(context, digitsOf(numbers[at]), cx + CELL.width / 2, cy + CELL.height / 2 + 0.5, FONTS.number, "center");
  }
}

/** @param {number} number @param {number} most @param {Theme} theme @param {number} strength */
function tintOf(number, most, { dark }, strength) {
  if (!Number.isFinite(number)) return `rgba(194, 65, 12, ${strength})`;
  const sign = SIGNS[dark ? "dark" : "light"][number < 0 ? 1 : 0];
  return `rgba(${sign}, ${(number && most ? 0.05 + strength * (Math.abs(number) / most) : 0).toFixed(3)})`;
}

/** @param {CanvasRenderingContext2D} context @param {Tensor} tensor @param {number} x @param {number} top @param {Theme} theme */
function paintHeat(context, tensor, x, top, theme) {
  const left = x - (HEAT + 92) / 2;
  if (tensor.heat) {
    const { rows, columns, cells } = tensor.heat;
    const [wide, high] = [HEAT / columns, heatHeight(tensor.heat) / rows];
    context.fillStyle = theme.bg;
    context.fillRect(left, top, HEAT, high * rows);
    for (let at = 0; at < rows * columns; at++) {
      context.fillStyle = tintOf(cells[at], 1, theme, 0.9);
      context.fillRect(left + (at % columns) * wide, top + Math.floor(at / columns) * high, wide + 0.2, high + 0.2);
    }
  }
  const words = [tensor.type, `‖·‖ ${digitsOf(tensor.norm)}`, rangeOf(tensor)];
  words.forEach((text, row) => {
    context.fillStyle = row === 2 && (tensor.nans || tensor.infinite) ? theme.warning : row ? theme.fg : theme.muted;
    write(context, text, left + HEAT + 6, top + 6 + 13 * row, FONTS.detail, "left");
  });
}

/** @param {Tensor} tensor */
function rangeOf({ nans, infinite, low, high }) {
  if (nans) return `${nans.toLocaleString("en")} NaN`;
  return infinite ? `${infinite.toLocaleString("en")} infinite` : `${shortDigits(low)} … ${shortDigits(high)}`;
}

/** @param {number} number */
const shortDigits = (number) => digitsOf(Number(number.toPrecision(3)));

// ---- the canvas itself

/**
 * What a canvas tells: a node (or null) was chosen; a number of a tensor is dragged, by so many points from where it began.
 * @typedef {{choose?: (id: string | null) => void, hover?: (id: string | null) => void,
 *   grab?: (id: string, which: "above" | "below", cell: number) => boolean, drag?: (points: number) => void, drop?: () => void}} Listener
 */

/** Shows states, follows the pointer: wheel zooms, dragging moves the picture, or a number that can be dragged. */
export class GraphCanvas {
  /** @param {Listener} [listener] @param {() => Theme} [theme] */
  constructor(listener = {}, theme) {
    this.listener = listener;
    this.themeOf = theme;
    this.element = document.createElement("canvas");
    this.element.className = "tc-living-canvas";
    this.element.setAttribute("role", "img");
    this.context = /** @type {CanvasRenderingContext2D} */ (this.element.getContext("2d"));
    /** @type {State[]} */
    this.states = [];
    this.t = 0;
    this.camera = { scale: 1, left: 0, top: 0 };
    this.follows = true;
    /** @type {Marks} */
    this.marks = { ids: new Set(), linked: new Set(), cursor: "" };
    this.frame = 0;
    /** @type {{x: number, y: number, moves: boolean, number: boolean} | null} */
    this.held = null;
    this.observer = new ResizeObserver(() => (this.follows ? this.fit(LEGIBLE) : this.repaint()));
    this.observer.observe(this.element);
    this.listen();
  }

  /** Show states at time t, in the next frame. Their nodes have places. @param {State[]} states @param {number} [t] */
  draw(states, t = 0) {
    const isFirst = !this.states.length;
    this.states = states;
    this.t = t;
    if (isFirst) this.fit(LEGIBLE);
    this.repaint();
  }

  /** The states' size; between two, between their sizes. @returns {[number, number]} */
  size() {
    const [a, b = a] = this.states;
    return [mixed(a?.width ?? 0, b?.width ?? 0, this.t), mixed(a?.height ?? 0, b?.height ?? 0, this.t)];
  }

  repaint() {
    this.frame ||= requestAnimationFrame(() => this.paint());
  }

  paint() {
    this.frame = 0;
    const { clientWidth: width, clientHeight: height } = this.element;
    if (!width || !this.states.length || !this.themeOf) return;
    const ratio = devicePixelRatio;
    if (this.element.width !== Math.round(width * ratio)) this.element.width = Math.round(width * ratio);
    if (this.element.height !== Math.round(height * ratio)) this.element.height = Math.round(height * ratio);
    const { context, camera } = this;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.translate(camera.left, camera.top);
    context.scale(camera.scale, camera.scale);
    paintStates(context, this.states, this.t, this.themeOf(), this.marks);
  }

  /** All of it in sight, no larger than life. @param {number} [least] the least scale: then not all of it is in sight */
  fit(least = 0.02) {
    const { clientWidth: width, clientHeight: height } = this.element;
    const [w, h] = this.size();
    const scale = Math.min(1, (width - 32) / (w || 1), (height - 32) / (h || 1));
    const used = Math.max(scale, least);
    this.camera = { scale: used, left: (width - w * used) / 2, top: Math.max(16, (height - h * used) / 2) };
    this.follows = true;
    this.repaint();
  }

  /** @param {number} factor @param {number} [x] @param {number} [y] the point that stays, from the canvas's corner */
  zoom(factor, x = this.element.clientWidth / 2, y = this.element.clientHeight / 2) {
    const { scale, left, top } = this.camera;
    const next = Math.min(4, Math.max(0.05, scale * factor));
    this.camera = { scale: next, left: x - ((x - left) * next) / scale, top: y - ((y - top) * next) / scale };
    this.follows = false;
    this.repaint();
  }

  /** Bring a node into sight if it is out of it. @param {string} id */
  reveal(id) {
    const node = this.states[this.states.length - 1]?.nodes.find((each) => each.id === id);
    if (!node) return;
    const { x, y, w, h } = rectOf(node);
    const { scale, left, top } = this.camera;
    const { clientWidth: width, clientHeight: height } = this.element;
    const [sx, sy] = [left + x * scale, top + y * scale];
    const isIn = sx - (w / 2) * scale >= 0 && sx + (w / 2) * scale <= width && sy - (h / 2) * scale >= 0 && sy + (h / 2) * scale <= height;
    if (isIn) return;
    this.camera = { scale, left: width / 2 - x * scale, top: height / 2 - y * scale };
    this.follows = false;
    this.repaint();
  }

  /** What is at a point of the canvas. @param {number} px @param {number} py */
  at(px, py) {
    const { scale, left, top } = this.camera;
    const [x, y] = [(px - left) / scale, (py - top) / scale];
    const nodes = this.states[this.t >= 0.5 ? this.states.length - 1 : 0]?.nodes ?? [];
    const node = nodes.find((each) => Math.abs(x - (each.x ?? 0)) <= (each.w ?? 0) / 2 && Math.abs(y - (each.y ?? 0)) <= (each.h ?? 0) / 2);
    if (!node) return null;
    for (const which of /** @type {("above" | "below")[]} */ (["above", "below"])) {
      const cells = cellsOf(node, which);
      const [column, row] = cells ? [Math.floor((x - cells.left) / cells.width), Math.floor((y - cells.top) / cells.height)] : [-1, -1];
      if (cells && column >= 0 && row >= 0 && column < cells.columns && row < cells.rows) return { node, which, cell: row * cells.columns + column };
    }
    return { node, which: null, cell: -1 };
  }

  listen() {
    const { element } = this;
    element.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== element) return;
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
    }, { passive: false });
    element.addEventListener("pointerdown", (event) => this.pressed(event));
    element.addEventListener("pointermove", (event) => this.moved(event));
    for (const end of /** @type {const} */ (["pointerup", "pointercancel"])) element.addEventListener(end, () => this.released());
  }

  /** @param {PointerEvent} event */
  pressed(event) {
    if (event.button !== 0) return;
    this.element.setPointerCapture(event.pointerId);
    const hit = this.at(event.offsetX, event.offsetY);
    const isNumber = Boolean(hit?.which && this.listener.grab?.(hit.node.id, hit.which, hit.cell));
    this.held = { x: event.offsetX, y: event.offsetY, moves: !hit, number: isNumber };
    if (hit) this.listener.choose?.(hit.node.id);
  }

  /** @param {PointerEvent} event */
  moved(event) {
    const { offsetX: x, offsetY: y } = event;
    if (!this.held) {
      const hit = this.at(x, y);
      this.listener.hover?.(hit?.node.id ?? null);
      return;
    }
    if (this.held.number) this.listener.drag?.(x - this.held.x);
    else {
      this.camera = { ...this.camera, left: this.camera.left + event.movementX, top: this.camera.top + event.movementY };
      this.follows = false;
      this.repaint();
    }
  }

  released() {
    if (this.held?.number) this.listener.drop?.();
    this.held = null;
  }

  destroy() {
    cancelAnimationFrame(this.frame);
    this.observer.disconnect();
  }
}
