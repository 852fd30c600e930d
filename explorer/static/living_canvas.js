// A graph on a canvas. A node is a box with a tensor above its title and one below; an edge is a line as wide as what flows in it.
//
// A state is plain data. `placeState(state)` gives its nodes and edges their places, once; `paintState` paints on any
// 2D context, also that of an SVG; `GraphCanvas` has the camera, the pointer and the frames.

import { layout } from "./layout.js";

/**
 * A tensor to show: all its numbers if it is small, else a heat map, `rows` × `columns` shares of `most` from -1 to 1
 * (NaN: not finite).
 * @typedef {{type: string, shape: number[], count: number, norm: number, low: number, high: number, zeros: number, nans: number,
 *   infinite: number, numbers: ArrayLike<number> | null, heat: {rows: number, columns: number, cells: ArrayLike<number>} | null}} Tensor
 *
 * A node. `tone` is one of TONES; `badge` is written above it, as a warning if it `warns`. `above`, `below`: undefined for no room, null for room that is empty now.
 * `x`, `y` are its middle, `w`, `h` its size; `placeState` fills them in.
 * @typedef {{id: string, title: string, detail?: string, above?: Tensor | null, below?: Tensor | null, aboveSize?: Tensor | null,
 *   belowSize?: Tensor | null, tone?: string, badge?: string, warns?: boolean, x?: number, y?: number, w?: number, h?: number}} Node
 *
 * An edge, from top to bottom. `width` in points; `label` is written at its middle; `flow` from 0 to 1 is how far
 * something has come on its way, `back` from the bottom up.
 * @typedef {{from: string, to: string, width?: number, label?: string, tone?: string, dashed?: boolean, flow?: number, back?: boolean,
 *   points?: ArrayLike<number>}} Edge
 * @typedef {{nodes: Node[], edges: Edge[], width?: number, height?: number}} State
 * @typedef {{x: number, y: number, w: number, h: number}} Rect
 * @typedef {import("./graph_colours.js").Theme} Theme
 * @typedef {{linked: Set<string>}} Marks
 * @typedef {{left: number, top: number, right: number, bottom: number}} Sight
 */

const SANS = "system-ui, sans-serif";
const FONTS = { title: `600 12px ${SANS}`, detail: `10.5px ${SANS}`, number: "11px 'DejaVu Sans Mono', Menlo, Consolas, monospace", label: `600 10.5px ${SANS}` };
const CELL = { width: 52, height: 17 };
/** A letter of a number is so wide, and so many fit into a cell. */
const LETTER = 6.62;
const DIGITS = 7;
/** A tensor is written in numbers if it has at most so many rows and columns. */
const SIDE = 4;
/** A heat map's width, and that of the words beside it. */
const HEAT = 64;
const WORDS = 104;
const TITLE = 34;
const PAD = 8;
/** A picture that opens is no smaller, and shows a part of a large graph; a small one is no larger than this. */
const LEGIBLE = 0.95;
const LARGEST = 1.35;
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

/** As many digits as fit into a cell. @param {number} number */
export function shortDigits(number) {
  const whole = digitsOf(number);
  if (whole.length <= DIGITS) return whole;
  const shorter = [3, 2, 1].flatMap((digits) => [digitsOf(Number(number.toPrecision(digits))), number.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e").replace(/^-/, "−")]);
  return shorter.find((text) => text.length <= DIGITS) ?? whole;
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
  return [HEAT + WORDS, tensor.heat ? Math.max(heatHeight(tensor.heat), 3 * 13) : 3 * 13];
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
    const words = Math.max(widthOf(node.title, FONTS.title), widthOf(node.detail ?? "", FONTS.detail), node.badge ? widthOf(node.badge, FONTS.label) : 0);
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

/** @param {number} a @param {number} b @param {number} t */
const mixed = (a, b, t) => a + (b - a) * t;

/** @param {Node} node @returns {Rect} */
const rectOf = ({ x = 0, y = 0, w = 0, h = 0 }) => ({ x, y, w, h });

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
 * Paint a state in graph units.
 * @param {CanvasRenderingContext2D} context @param {State} state @param {Theme} theme @param {Marks} [marks]
 * @param {Sight} [sight] what is outside of it is left out
 */
export function paintState(context, state, theme, marks = { linked: new Set() }, sight = undefined) {
  const nodes = state.nodes.filter(({ x = 0, y = 0, w = 0, h = 0 }) => !sight || isSeen(sight, x - w / 2, y - h / 2, x + w / 2, y + h / 2));
  const edges = state.edges.filter(({ points }) => points?.length && (!sight || isSeen(sight, ...boundsOf(points))));
  context.textBaseline = "middle";
  for (const edge of edges) paintEdge(context, edge, theme);
  for (const node of nodes) paintNode(context, node, theme, marks);
  const taken = nodes.map(rectOf);
  for (const edge of edges) paintLabel(context, edge, theme, taken);
  context.globalAlpha = 1;
}

/** With room for what stands out: badges, labels, wide lines. @param {Sight} sight @param {number} left @param {number} top @param {number} right @param {number} bottom */
function isSeen(sight, left, top, right, bottom) {
  const out = 80;
  return right + out > sight.left && left - out < sight.right && bottom + out > sight.top && top - out < sight.bottom;
}

/** @param {ArrayLike<number>} points @returns {[number, number, number, number]} */
function boundsOf(points) {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (let at = 0; at < points.length; at += 2) {
    [left, right] = [Math.min(left, points[at]), Math.max(right, points[at])];
    [top, bottom] = [Math.min(top, points[at + 1]), Math.max(bottom, points[at + 1])];
  }
  return [left, top, right, bottom];
}

/** @param {Theme} theme @param {string | undefined} tone */
const toneOf = (theme, tone) => /** @type {string} */ (theme[TONES[tone ?? "plain"] ?? "border"]);

/** @param {CanvasRenderingContext2D} context @param {Edge} edge @param {Theme} theme */
function paintEdge(context, { width = 1.5, tone = "quiet", dashed = false, flow, back, points = [] }, theme) {
  context.globalAlpha = tone === "quiet" ? 0.6 : 0.9;
  context.strokeStyle = toneOf(theme, tone);
  context.lineWidth = width;
  context.setLineDash(dashed ? [5, 4] : []);
  trace(context, points);
  context.stroke();
  context.setLineDash([]);
  if (flow === undefined) return;
  const [x, y] = pointAt(points, back ? 1 - flow : flow);
  context.globalAlpha = 1;
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

/** Where on its way a label may be: as near to the middle as there is room. */
const SHARES = [0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8];

/** @param {Rect} a @param {Rect} b */
const overlap = (a, b) => 2 * Math.abs(a.x - b.x) < a.w + b.w && 2 * Math.abs(a.y - b.y) < a.h + b.h;

/** @param {CanvasRenderingContext2D} context @param {Edge} edge @param {Theme} theme @param {Rect[]} taken nodes, and labels before this one */
function paintLabel(context, { label, tone, points = [] }, theme, taken) {
  if (!label) return;
  const width = widthOf(label, FONTS.label) + 8;
  const places = SHARES.map((share) => pointAt(points, share)).map(([x, y]) => ({ x, y, w: width, h: 16 }));
  const place = places.find((rect) => !taken.some((other) => overlap(rect, other))) ?? places[0];
  const { x, y } = place;
  taken.push(place);
  context.globalAlpha = 0.94;
  context.fillStyle = theme.bg;
  context.fillRect(x - width / 2, y - 8, width, 16);
  context.globalAlpha = 1;
  context.fillStyle = tone === "quiet" || !tone ? theme.muted : theme.fg;
  write(context, label, x, y, FONTS.label, "center");
}

/** @param {CanvasRenderingContext2D} context @param {string} text @param {number} x @param {number} y @param {string} font @param {"left" | "center"} align */
function write(context, text, x, y, font, align) {
  context.font = font;
  context.fillText(text, align === "center" ? x - widthOf(text, font) / 2 : x, y);
}

/** @param {CanvasRenderingContext2D} context @param {Node} node @param {Theme} theme @param {Marks} marks */
function paintNode(context, node, theme, marks) {
  const { x, y, w, h } = rectOf(node);
  const [left, top] = [x - w / 2, y - h / 2];
  context.globalAlpha = 1;
  if (marks.linked.has(node.id)) outline(context, left - 3, top - 3, w + 6, h + 6, theme.link, 3);
  context.fillStyle = theme.panel;
  context.fillRect(left, top, w, h);
  outline(context, left, top, w, h, toneOf(theme, node.tone), node.tone && node.tone !== "plain" ? 2 : 1);
  const [above, below] = [sizeOf(node.aboveSize ?? node.above), sizeOf(node.belowSize ?? node.below)];
  const titleTop = top + (above[1] && above[1] + PAD);
  if (node.above) paintTensor(context, node.above, x, top + PAD / 2, theme);
  context.fillStyle = theme.fg;
  const middle = titleTop + (TITLE - (node.detail ? 0 : 12)) / 2;
  write(context, node.title, x, middle - (node.detail ? 7 : 0), FONTS.title, "center");
  context.fillStyle = theme.muted;
  if (node.detail) write(context, node.detail, x, middle + 8, FONTS.detail, "center");
  if (node.below) paintTensor(context, node.below, x, top + h - below[1] - PAD / 2, theme);
  if (node.badge) paintBadge(context, node.badge, x, top, node.warns ? theme.warning : theme.muted, theme);
}

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {number} w @param {number} h @param {string} colour @param {number} width */
function outline(context, x, y, w, h, colour, width) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.beginPath();
  context.roundRect(x, y, w, h, 3);
  context.stroke();
}

/** Words on the upper edge, above the numbers. @param {CanvasRenderingContext2D} context @param {string} text @param {number} x its middle @param {number} top @param {string} colour @param {Theme} theme */
function paintBadge(context, text, x, top, colour, theme) {
  const width = widthOf(text, FONTS.label) + 10;
  context.fillStyle = colour;
  context.beginPath();
  context.roundRect(x - width / 2, top - 16, width, 16, [4, 4, 0, 0]);
  context.fill();
  context.fillStyle = theme.bg;
  write(context, text, x, top - 7.5, FONTS.label, "center");
}

/** Where the cells of a node's tensor are, in graph units: for the pointer. @param {Node} node @param {"above" | "below"} which */
export function cellsOf(node, which) {
  const tensor = node[which];
  if (!tensor) return null;
  const grid = gridOf(tensor);
  const { x, y, h } = rectOf(node);
  const top = which === "above" ? y - h / 2 + PAD / 2 : y + h / 2 - sizeOf(tensor)[1] - PAD / 2;
  if (grid) return { left: x - (grid[1] * CELL.width) / 2, top, rows: grid[0], columns: grid[1], width: CELL.width, height: CELL.height };
  const { heat } = tensor;
  return heat ? { left: x - (HEAT + WORDS) / 2, top, rows: heat.rows, columns: heat.columns, width: HEAT / heat.columns, height: heatHeight(heat) / heat.rows } : null;
}

/** The element that a cell shows, or the first of its block. @param {Tensor} tensor @param {number} row @param {number} column @param {{rows: number, columns: number}} cells */
function elementOf({ shape, count }, row, column, { rows, columns }) {
  const wide = shape.length ? shape[shape.length - 1] : 1;
  return Math.ceil((row * count) / wide / rows) * wide + Math.ceil((column * wide) / columns);
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
    const text = shortDigits(numbers[at]);
    context.font = FONTS.number;
    context.fillText(text, cx + (CELL.width - LETTER * text.length) / 2, cy + CELL.height / 2 + 0.5);
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
  const left = x - (HEAT + WORDS) / 2;
  const { heat } = tensor;
  if (heat) {
    const { rows, columns, cells } = heat;
    const [wide, high] = [HEAT / columns, heatHeight(heat) / rows];
    context.fillStyle = theme.bg;
    context.fillRect(left, top, HEAT, high * rows);
    for (let at = 0; at < rows * columns; at++) {
      context.fillStyle = tintOf(cells[at], 1, theme, 0.9);
      context.fillRect(left + (at % columns) * wide, top + Math.floor(at / columns) * high, wide + 0.2, high + 0.2);
    }
  }
  const words = [tensor.type, `‖·‖ ${shortDigits(tensor.norm)}`, rangeOf(tensor)];
  words.forEach((text, row) => {
    context.fillStyle = row === 2 && (tensor.nans || tensor.infinite) ? theme.warning : row ? theme.fg : theme.muted;
    write(context, text, left + HEAT + 6, top + 6 + 13 * row, FONTS.detail, "left");
  });
}

/** @param {number} number */
const threeDigits = (number) => shortDigits(Number(number.toPrecision(3)));

/** @param {Tensor} tensor */
function rangeOf({ nans, infinite, low, high }) {
  if (nans) return `${nans.toLocaleString("en")} NaN`;
  return infinite ? `${infinite.toLocaleString("en")} infinite` : `${threeDigits(low)} … ${threeDigits(high)}`;
}

// ---- the canvas itself

/**
 * What a canvas tells: a node (or null) was chosen; a number of a tensor is dragged, by so many points from where it began.
 * @typedef {{choose?: (id: string | null) => void, hover?: (id: string | null) => void,
 *   canGrab?: (id: string, which: "above" | "below") => boolean, grab?: (id: string, which: "above" | "below", cell: number) => boolean, drag?: (points: number) => void, drop?: () => void}} Listener
 */

/** Shows a state, follows the pointer: wheel zooms, dragging moves the picture, or a number that can be dragged. */
export class GraphCanvas {
  /** @param {Listener} [listener] @param {() => Theme} [theme] */
  constructor(listener = {}, theme) {
    this.listener = listener;
    this.themeOf = theme;
    this.element = document.createElement("canvas");
    this.element.className = "tc-living-canvas";
    this.element.setAttribute("role", "img");
    this.context = /** @type {CanvasRenderingContext2D} */ (this.element.getContext("2d"));
    /** @type {State} */
    this.state = { nodes: [], edges: [] };
    this.camera = { scale: 1, left: 0, top: 0 };
    this.follows = true;
    /** @type {Marks} */
    this.marks = { linked: new Set() };
    this.frame = 0;
    /** @type {{x: number, y: number, moves: boolean, number: boolean} | null} */
    this.held = null;
    /** The node that is to be in sight. */
    this.revealed = "";
    this.observer = new ResizeObserver(() => this.resized());
    this.observer.observe(this.element);
    this.listen();
  }

  /** Show a state in the next frame. Its nodes have places. @param {State} state */
  draw(state) {
    const isFirst = !this.state.nodes.length;
    this.state = state;
    if (isFirst) this.fit(LEGIBLE);
    this.repaint();
  }

  /** @returns {[number, number]} */
  size() {
    return [this.state.width ?? 0, this.state.height ?? 0];
  }

  resized() {
    if (!this.follows) return this.repaint();
    this.fit(LEGIBLE);
    this.reveal(this.revealed);
  }

  repaint() {
    this.frame ||= requestAnimationFrame(() => this.paint());
  }

  paint() {
    this.frame = 0;
    const { clientWidth: width, clientHeight: height } = this.element;
    if (!width || !this.state.nodes.length || !this.themeOf) return;
    const ratio = devicePixelRatio;
    if (this.element.width !== Math.round(width * ratio)) this.element.width = Math.round(width * ratio);
    if (this.element.height !== Math.round(height * ratio)) this.element.height = Math.round(height * ratio);
    const { context, camera } = this;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.translate(camera.left, camera.top);
    context.scale(camera.scale, camera.scale);
    const [x, y, scale] = [-camera.left / camera.scale, -camera.top / camera.scale, camera.scale];
    paintState(context, this.state, this.themeOf(), this.marks, { left: x, top: y, right: x + width / scale, bottom: y + height / scale });
  }

  /** All of it in sight. @param {number} [least] the least scale: then not all of it is in sight */
  fit(least = 0.02) {
    const { clientWidth: width, clientHeight: height } = this.element;
    const [w, h] = this.size();
    const scale = Math.min(LARGEST, (width - 32) / (w || 1), (height - 32) / (h || 1));
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
    this.revealed = id;
    const node = this.state.nodes.find((each) => each.id === id);
    if (!node) return;
    const { x, y, w, h } = rectOf(node);
    const { scale, left, top } = this.camera;
    const { clientWidth: width, clientHeight: height } = this.element;
    const [sx, sy] = [left + x * scale, top + y * scale];
    const isIn = sx - (w / 2) * scale >= 0 && sx + (w / 2) * scale <= width && sy - (h / 2) * scale >= 0 && sy + (h / 2) * scale <= height;
    if (isIn) return;
    this.camera = { scale, left: width / 2 - x * scale, top: height / 2 - y * scale };
    this.repaint();
  }

  /** What is at a point of the canvas. @param {number} px @param {number} py */
  at(px, py) {
    const { scale, left, top } = this.camera;
    const [x, y] = [(px - left) / scale, (py - top) / scale];
    const node = this.state.nodes.find((each) => Math.abs(x - (each.x ?? 0)) <= (each.w ?? 0) / 2 && Math.abs(y - (each.y ?? 0)) <= (each.h ?? 0) / 2);
    if (!node) return null;
    for (const which of /** @type {("above" | "below")[]} */ (["above", "below"])) {
      const cells = cellsOf(node, which);
      const [column, row] = cells ? [Math.floor((x - cells.left) / cells.width), Math.floor((y - cells.top) / cells.height)] : [-1, -1];
      if (cells && column >= 0 && row >= 0 && column < cells.columns && row < cells.rows) return { node, which, cell: elementOf(/** @type {Tensor} */ (node[which]), row, column, cells) };
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
      this.element.style.cursor = hit?.which && this.listener.canGrab?.(hit.node.id, hit.which) ? "ew-resize" : hit ? "pointer" : "grab";
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
