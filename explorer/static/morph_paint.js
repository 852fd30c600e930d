// A graph at any place between two of its states, painted on a canvas: nodes split, move and melt. What is a state and
// where its nodes are comes from Python (explorer/findings/morph), as does every colour; frames.py draws the same as SVG.

import { mix } from "./graph_colours.js";

/**
 * Fill, border and text.
 * @typedef {[string, string, string]} Look
 * @typedef {{title: string, detail: string, kind: string, look: string, says: string, x: number, y: number, w: number,
 *   h: number, inferred: boolean}} MorphNode
 *
 * An edge: indices of its nodes, whether it leaves to the side, and its points.
 * @typedef {[number, number, boolean, number[]]} MorphEdge
 * @typedef {{title: string, words: string, counts: {what: string, words: string, value: number}[],
 *   width: number, height: number, cut: number | null, nodes: MorphNode[], edges: MorphEdge[]}} MorphState
 *
 * Indices of a node of a state and of one of the next; -1 for a node that comes or goes. Of several moves from one
 * node, or to one, one leads: it carries the label, and edges follow it.
 * @typedef {[number, number, boolean, boolean]} Move
 * @typedef {{title: string, graph: string, others: string[], dense: boolean, states: MorphState[], moves: Move[][], looks: Record<"light" | "dark", Record<string, Look>>}} Film
 *
 * @typedef {{x: number, y: number, w: number, h: number}} Rect
 * @typedef {{scale: number, left: number, top: number}} Eye
 */

const HEAVY = new Set(["op", "kernel", "extern"]);
const NAMELESS = new Set(["view", "scalar", "input", "stop"]);
/** Least size of letters that are painted, in pixels. */
const LEGIBLE = 4.5;
const SANS = "system-ui, sans-serif";

/** @param {number} share */
const eased = (share) => share * share * (3 - 2 * share);
/** @param {number} first @param {number} last @param {number} share */
const between = (first, last, share) => first + (last - first) * share;

export class MorphPainter {
  /** @param {Film} film */
  constructor(film) {
    this.film = film;
    this.looks = film.looks.light;
    /** @type {Eye} */
    this.eye = { scale: 1, left: 0, top: 0 };
    this.context = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
    /** @type {Map<string, string>} */
    this.mixed = new Map();
    /** The nodes that are marked, by state. @type {Set<number>[]} */
    this.marked = film.states.map(() => new Set());
  }

  /** The state before a place, and how far it is on the way to the next. @param {number} at @returns {[number, number]} */
  split(at) {
    const number = Math.min(Math.floor(at), this.film.states.length - 1);
    return [number, number === this.film.states.length - 1 ? 0 : eased(at - number)];
  }

  /** Width and height of the graph at a place. @param {number} at @returns {[number, number]} */
  size(at) {
    const [number, share] = this.split(at);
    const [first, last] = [this.film.states[number], this.film.states[number + (share ? 1 : 0)]];
    return [between(first.width, last.width, share), between(first.height, last.height, share)];
  }

  /**
   * @param {CanvasRenderingContext2D} context @param {number} at @param {Eye} eye @param {"light" | "dark"} theme
   */
  paint(context, at, eye, theme) {
    this.context = context;
    this.looks = this.film.looks[theme];
    this.eye = eye;
    const [number, share] = this.split(at);
    context.save();
    context.translate(eye.left, eye.top);
    context.scale(eye.scale, eye.scale);
    this.paintCut(number, share);
    if (share) this.paintMoves(number, share);
    else this.paintState(number);
    context.restore();
  }

  /** @param {number} number */
  paintState(number) {
    const state = this.film.states[number];
    this.paintEdges(state, state.nodes, 1);
    state.nodes.forEach((node, i) => this.paintBox(node, this.looks[node.look], 1, this.marked[number].has(i)));
    for (const node of state.nodes) this.paintLabel(node, node, this.looks[node.look][2], 1);
  }

  /** The moves of a step with their places. @param {number} number @param {number} share */
  places(number, share) {
    const [from, to] = [this.film.states[number].nodes, this.film.states[number + 1].nodes];
    return this.film.moves[number].map(([source, target]) => {
      const [first, last] = [from[source] ?? to[target], to[target] ?? from[source]];
      const [grown, shrunk] = [source < 0 ? share : 1, target < 0 ? 1 - share : 1];
      return {
        x: between(first.x, last.x, share),
        y: between(first.y, last.y, share),
        w: between(first.w, last.w, share) * grown * shrunk,
        h: between(first.h, last.h, share) * grown * shrunk,
      };
    });
  }

  /** @param {number} number @param {number} share */
  paintMoves(number, share) {
    const { context } = this;
    const [before, after] = [this.film.states[number], this.film.states[number + 1]];
    const moves = this.film.moves[number];
    const places = this.places(number, share);
    /** @type {Rect[][]} */
    const [old, now] = [[], []];
    moves.forEach(([source, target, leadsSource, leadsTarget], i) => {
      if (leadsSource) old[source] = places[i];
      if (leadsTarget) now[target] = places[i];
    });
    this.paintEdges(before, old, Math.max(0, 1 - 1.7 * share));
    this.paintEdges(after, now, Math.max(0, 1.7 * share - 0.7));
    moves.forEach(([source, target], i) => {
      const [first, last] = [before.nodes[source] ?? after.nodes[target], after.nodes[target] ?? before.nodes[source]];
      const look = this.lookBetween(first.look, last.look, share);
      const alpha = source < 0 ? share : target < 0 ? 1 - share : 1;
      this.paintBox(places[i], look, alpha, this.marked[number].has(source) || this.marked[number + 1].has(target));
    });
    moves.forEach(([source, target, leadsSource, leadsTarget], i) => {
      const [first, last] = [before.nodes[source], after.nodes[target]];
      const ink = this.looks[(share < 0.5 ? (first ?? last) : (last ?? first)).look][2];
      const same = first && last && first.title === last.title;
      if (first && leadsSource && !(same && leadsTarget)) this.paintLabel(first, places[i], ink, Math.max(0, 1 - 2.3 * share));
      if (last && leadsTarget) this.paintLabel(last, places[i], ink, same ? 1 : Math.min(1, Math.max(0, 2.3 * share - 0.95)));
    });
    context.globalAlpha = 1;
  }

  /** @param {string} first @param {string} last @param {number} share @returns {Look} */
  lookBetween(first, last, share) {
    if (first === last) return this.looks[first];
    const steps = Math.round(share * 32);
    const [a, b] = [this.looks[first], this.looks[last]];
    return [this.mix(a[0], b[0], steps), this.mix(a[1], b[1], steps), b[2]];
  }

  /** @param {string} from @param {string} to @param {number} steps of 32 */
  mix(from, to, steps) {
    const key = from + to + steps;
    const known = this.mixed.get(key);
    if (known) return known;
    const made = mix(from, to, steps / 32);
    this.mixed.set(key, made);
    return made;
  }

  /** @param {number} number @param {number} share */
  paintCut(number, share) {
    const [first, last] = [this.film.states[number], this.film.states[number + (share ? 1 : 0)]];
    if (first.cut === null && last.cut === null) return;
    const { context } = this;
    const x = between(first.cut ?? last.cut ?? 0, last.cut ?? first.cut ?? 0, share);
    const half = between(first.height, last.height, share) / 2 + 12;
    context.globalAlpha = first.cut === null ? share : last.cut === null ? 1 - share : 1;
    context.strokeStyle = this.looks.saved[1];
    context.lineWidth = 1.5;
    context.setLineDash([6, 5]);
    context.beginPath();
    context.moveTo(x, -half);
    context.lineTo(x, half);
    context.stroke();
    context.setLineDash([]);
    context.globalAlpha = 1;
  }

  /** The edges of a state, moved as their ends have. @param {MorphState} state @param {Rect[]} places by node @param {number} alpha */
  paintEdges(state, places, alpha) {
    if (!alpha) return;
    const { context } = this;
    context.strokeStyle = this.looks.page[1];
    context.lineWidth = 1.2;
    for (const sideways of [false, true]) {
      context.globalAlpha = alpha * (sideways ? 0.45 : 0.8);
      context.beginPath();
      for (const edge of state.edges) if (edge[2] === sideways) this.edge(edge, state.nodes, places);
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  /** @param {MorphEdge} edge @param {MorphNode[]} nodes @param {Rect[]} places */
  edge([from, to, sideways, points], nodes, places) {
    const { context } = this;
    const [a, b] = [places[from] ?? nodes[from], places[to] ?? nodes[to]];
    const [ax, ay, bx, by] = [a.x - nodes[from].x, a.y - nodes[from].y, b.x - nodes[to].x, b.y - nodes[to].y];
    const last = points.length / 2 - 1;
    let [x, y] = [points[0] + ax, points[1] + ay];
    context.moveTo(x, y);
    for (let i = 1; i <= last; i++) {
      const toX = points[2 * i] + between(ax, bx, i / last);
      const toY = points[2 * i + 1] + between(ay, by, i / last);
      if (sideways) context.bezierCurveTo((x + toX) / 2, y, (x + toX) / 2, toY, toX, toY);
      else context.bezierCurveTo(x, (y + toY) / 2, toX, (y + toY) / 2, toX, toY);
      [x, y] = [toX, toY];
    }
  }

  /** @param {Rect} box @param {Look} look @param {number} alpha @param {boolean} marked */
  paintBox({ x, y, w, h }, [fill, border], alpha, marked) {
    const { context } = this;
    context.globalAlpha = alpha;
    context.fillStyle = fill;
    context.strokeStyle = marked ? this.looks.mark[1] : border;
    context.lineWidth = marked ? Math.max(3, 2 / this.eye.scale) : 1.2;
    context.beginPath();
    context.roundRect(x - w / 2, y - h / 2, w, h, Math.min(h / 2, 7));
    context.fill();
    context.stroke();
  }

  /** @param {MorphNode} node @param {Rect} box @param {string} colour @param {number} alpha */
  paintLabel(node, box, colour, alpha) {
    const { dense } = this.film;
    const heavy = HEAVY.has(node.kind);
    if (alpha <= 0.02 || (dense && NAMELESS.has(node.kind)) || (heavy ? 12.5 : 10) * this.eye.scale < LEGIBLE) return;
    const detail = heavy && !dense ? node.detail : "";
    this.context.globalAlpha = alpha;
    this.context.fillStyle = colour;
    this.line(node.title, box, detail ? -6.5 : 0.5, heavy ? "600 12.5px " : "10px ");
    if (detail && 10 * this.eye.scale >= LEGIBLE) this.line(detail, box, 8, "10px ");
  }

  /** A line of text in the middle of a box, narrowed if the box is. @param {string} text @param {Rect} box @param {number} down @param {string} font */
  line(text, { x, y, w }, down, font) {
    const { context } = this;
    context.font = font + SANS;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(text, x, y + down, Math.max(w - 8, 1));
  }
}
