// Layered drawing of a directed graph, after Sugiyama: ranks by network simplex (Gansner et al. 1993), dummy nodes for
// long edges, weighted medians with transposition, coordinates after Brandes and Köpf (2002). Cycles are cut by turning
// edges round. The same input gives the same drawing; nothing here touches the DOM.

/**
 * A box to place. Edges meet it at `anchor`, measured from its left side (default: the middle).
 * @typedef {{width: number, height: number, anchor?: number}} Box
 *
 * `ports` holds two numbers an edge: how far from the anchors its two ends are. Nodes listed in `top` and `bottom`
 * are put before the first and after the last layer (they stand for the border of a group).
 * @typedef {{gap?: number, layerGap?: number, ports?: ArrayLike<number>, top?: number[], bottom?: number[]}} LayoutOptions
 *
 * `x` and `y` are where the anchor and the vertical middle of each box are; a route is x, y, x, y … from the first node
 * of its edge to the second, and empty for an edge from a node to itself.
 * @typedef {{x: Float64Array, y: Float64Array, width: number, height: number, routes: Float64Array[], crossings: number}} Drawn
 *
 * A connected piece: `from[e]` is above `to[e]`; `fromPort`, `toPort` are offsets from the anchors.
 * @typedef {{nodes: number[], from: number[], to: number[], fromPort: number[], toPort: number[]}} Piece
 *
 * @typedef {import("./layout_order.js").Layered} Layered
 */

import { buckets } from "./layout_count.js";
import { networkSimplex } from "./layout_simplex.js";
import { buildLayers, orderLayers } from "./layout_order.js";
import { placeAcross } from "./layout_place.js";

const GAP = 16;
const LAYER_GAP = 28;
const EDGE_WEIGHT = 12;

/**
 * Place boxes in layers so that edges run downward, with few crossings and straight long edges.
 * @param {Box[]} nodes
 * @param {ArrayLike<number>[]} edges pairs of indices into `nodes`
 * @param {LayoutOptions} [options]
 * @returns {Drawn}
 */
export function layout(nodes, edges, options = {}) {
  const { flipped, from, to } = withoutCycles(nodes.length, edges);
  const pieces = splitPieces(nodes.length, from, to, options.ports, flipped);
  const drawn = pieces.map(({ piece }) => drawPiece(piece, nodes, options));
  const bordered = Boolean(options.top?.length || options.bottom?.length);
  const { offsets, width, height } = pack(drawn, options.gap ?? GAP, bordered);
  const x = new Float64Array(nodes.length);
  const y = new Float64Array(nodes.length);
  const routes = Array.from(edges, () => new Float64Array(0));
  drawn.forEach((part, p) => {
    const [dx, dy] = offsets[p];
    pieces[p].piece.nodes.forEach((node, i) => ((x[node] = part.x[i] + dx), (y[node] = part.y[i] + dy)));
    pieces[p].edges.forEach((same, i) => {
      for (const edge of same) routes[edge] = shifted(part.routes[i], dx, dy, flipped[edge] === 1);
    });
  });
  return { x, y, width, height, routes, crossings: drawn.reduce((sum, part) => sum + part.crossings, 0) };
}

/** @param {Float64Array} route @param {number} dx @param {number} dy @param {boolean} backward */
function shifted(route, dx, dy, backward) {
  const moved = new Float64Array(route.length);
  for (let i = 0; i < route.length; i += 2) {
    const at = backward ? route.length - 2 - i : i;
    moved[at] = route[i] + dx;
    moved[at + 1] = route[i + 1] + dy;
  }
  return moved;
}

// ---- cycles and connected pieces

/**
 * Edges with those that close a cycle turned round (depth first, from nodes that no edge enters, in the order given).
 * @param {number} count @param {ArrayLike<number>[]} edges
 */
function withoutCycles(count, edges) {
  const { start, list } = buckets(
    count,
    Int32Array.from(edges, (edge) => edge[0]),
  );
  const state = new Uint8Array(count);
  const next = start.slice(0, count);
  const flipped = new Uint8Array(edges.length);
  const entered = new Uint8Array(count);
  for (const edge of edges) entered[edge[1]] = 1;
  const roots = [...entered.keys()].sort((a, b) => entered[a] - entered[b]);
  for (const root of roots) {
    const stack = state[root] ? [] : [root];
    while (stack.length) {
      const node = stack[stack.length - 1];
      state[node] = 1;
      if (next[node] === start[node + 1]) ((state[node] = 2), stack.pop());
      else {
        const edge = list[next[node]++];
        const target = edges[edge][1];
        if (state[target] === 0) stack.push(target);
        else if (state[target] === 1) flipped[edge] = 1;
      }
    }
  }
  const from = Int32Array.from(edges, (edge, i) => edge[flipped[i]]);
  const to = Int32Array.from(edges, (edge, i) => edge[1 - flipped[i]]);
  return { flipped, from, to };
}

/**
 * Connected pieces, and for each of their edges the input edges it stands for (parallel edges are drawn as one).
 * @param {number} count @param {Int32Array} from @param {Int32Array} to
 * @param {ArrayLike<number> | undefined} ports @param {Uint8Array} flipped
 * @returns {{piece: Piece, edges: number[][]}[]}
 */
function splitPieces(count, from, to, ports, flipped) {
  const { label, pieces } = components(count, from, to);
  const local = new Int32Array(count);
  for (const { piece } of pieces) piece.nodes.forEach((node, i) => (local[node] = i));
  /** @type {Map<string, number[]>} */
  const seen = new Map();
  for (let e = 0; e < from.length; e++) {
    if (from[e] === to[e]) continue;
    const fromPort = ports?.[2 * e + flipped[e]] ?? 0;
    const toPort = ports?.[2 * e + 1 - flipped[e]] ?? 0;
    const key = `${from[e]} ${to[e]} ${fromPort} ${toPort}`;
    const same = seen.get(key);
    if (same) {
      same.push(e);
      continue;
    }
    const { piece, edges } = pieces[label[from[e]]];
    piece.from.push(local[from[e]]);
    piece.to.push(local[to[e]]);
    piece.fromPort.push(fromPort);
    piece.toPort.push(toPort);
    const first = [e];
    edges.push(first);
    seen.set(key, first);
  }
  return pieces;
}

/** @param {number} count @param {Int32Array} from @param {Int32Array} to */
function components(count, from, to) {
  const parent = Int32Array.from({ length: count }, (_, i) => i);
  const find = (/** @type {number} */ node) => {
    while (parent[node] !== node) node = parent[node] = parent[parent[node]];
    return node;
  };
  for (let e = 0; e < from.length; e++) parent[find(from[e])] = find(to[e]);
  const label = new Int32Array(count).fill(-1);
  /** @type {{piece: Piece, edges: number[][]}[]} */
  const pieces = [];
  for (let node = 0; node < count; node++) {
    const root = find(node);
    if (label[root] < 0) {
      label[root] = pieces.length;
      pieces.push({ piece: { nodes: [], from: [], to: [], fromPort: [], toPort: [] }, edges: [] });
    }
    label[node] = label[root];
    pieces[label[node]].piece.nodes.push(node);
  }
  return { label, pieces };
}

/**
 * Where each piece goes: side by side under a border, else in shelves of about the shape of a page, tallest first.
 * @param {{width: number, height: number}[]} parts @param {number} gap @param {boolean} bordered
 */
function pack(parts, gap, bordered) {
  const area = parts.reduce((sum, part) => sum + (part.width + gap) * (part.height + gap), 0);
  const wide = bordered ? Infinity : Math.max(1.5 * Math.sqrt(area), ...parts.map((part) => part.width));
  const order = parts.map((_, i) => i);
  if (!bordered) order.sort((a, b) => parts[b].height - parts[a].height || a - b);
  /** @type {[number, number][]} */
  const offsets = parts.map(() => [0, 0]);
  let [left, top, shelf, column, filled, width] = [0, 0, 0, 0, 0, 0];
  for (const i of order) {
    const part = parts[i];
    if (bordered || filled + part.height > shelf) {
      [left, column, filled] = [left + (column && column + gap), 0, 0];
      if (left + part.width > wide) [left, top, shelf] = [0, top + shelf + gap, 0];
    }
    offsets[i] = [left, top + filled];
    filled += part.height + gap;
    column = Math.max(column, part.width);
    shelf = Math.max(shelf, part.height);
    width = Math.max(width, left + column);
  }
  return { offsets, width, height: top + shelf };
}

/** @param {Piece} piece @param {Box[]} boxes @param {LayoutOptions} options */
function drawPiece(piece, boxes, options) {
  const own = piece.nodes.map((node) => boxes[node]);
  const rank = rankNodes(piece);
  pinBorder(piece.nodes, rank, options);
  const share = (/** @type {number[]} */ ends, /** @type {number[]} */ ports) =>
    ends.map((node, e) => Math.max(-0.5, Math.min(0.5, ports[e] / (own[node].width || 1))));
  const [fromAt, toAt] = [share(piece.from, piece.fromPort), share(piece.to, piece.toPort)];
  const net = buildLayers(rank, { from: piece.from, to: piece.to, fromAt, toAt });
  const crossings = orderLayers(net);
  const reach = extents(net, own);
  const x = placeAcross(net, reach, Math.ceil(options.gap ?? GAP));
  const { tops, heights, height } = stack(net, own, options.layerGap ?? LAYER_GAP);
  const y = Float64Array.from(own, (_, i) => tops[rank[i]] + heights[rank[i]] / 2);
  const width = x.reduce((most, value, i) => Math.max(most, value + reach.right[i]), 0);
  const routes = net.chains.map((chain, e) => {
    const [first, last] = [chain[0], chain[chain.length - 1]];
    const bottom = (/** @type {number} */ node) => tops[net.rank[node]] + heights[net.rank[node]];
    const [from, to] = [x[first] + piece.fromPort[e], x[last] + piece.toPort[e]];
    const points = [from, y[first] + own[first].height / 2, from, bottom(first)];
    for (const dummy of chain.slice(1, -1)) points.push(x[dummy], tops[net.rank[dummy]], x[dummy], bottom(dummy));
    points.push(to, tops[net.rank[last]], to, y[last] - own[last].height / 2);
    return straightened(points);
  });
  return { x, y, width, height, routes, crossings };
}

/** How far nodes reach from their anchors, in whole numbers; dummies take no room. @param {Layered} net @param {Box[]} boxes */
function extents({ size }, boxes) {
  const [left, right] = [new Float64Array(size), new Float64Array(size)];
  boxes.forEach(({ width, anchor = width / 2 }, i) => {
    left[i] = Math.ceil(anchor);
    right[i] = Math.ceil(width - anchor);
  });
  return { left, right };
}

/** Layers, with short edges. Edges from one node share most of their way, so that each weighs less. @param {Piece} piece */
function rankNodes({ nodes, from, to }) {
  const { start } = buckets(nodes.length, Int32Array.from(from));
  const weight = from.map((node) => Math.max(1, Math.round(EDGE_WEIGHT / (start[node + 1] - start[node]))));
  return networkSimplex({ count: nodes.length, from, to, length: from.map(() => 1), weight });
}

/** Put border nodes outside all others. @param {number[]} nodes @param {Int32Array} rank @param {LayoutOptions} options */
function pinBorder(nodes, rank, { top = [], bottom = [] }) {
  const border = new Set([...top, ...bottom]);
  const inner = rank.filter((_, i) => !border.has(nodes[i]));
  const first = inner.reduce((least, r) => Math.min(least, r), Infinity);
  const last = inner.reduce((most, r) => Math.max(most, r), 0);
  const shift = top.length ? 1 - first : -first;
  const [above, below] = [new Set(top), new Set(bottom)];
  rank.forEach((r, i) => {
    rank[i] = above.has(nodes[i]) ? 0 : below.has(nodes[i]) ? last + shift + 1 : r + shift;
  });
}

/** Where each layer starts and how high it is. @param {Layered} net @param {Box[]} boxes @param {number} gap */
function stack(net, boxes, gap) {
  const heights = net.layers.map((layer) => layer.reduce((most, i) => Math.max(most, boxes[i]?.height ?? 0), 0));
  let next = 0;
  const tops = heights.map((height) => {
    const top = next;
    next += height + gap;
    return top;
  });
  return { tops, heights, height: next - gap };
}

/** The route without points that lie on a straight line. @param {number[]} points */
function straightened(points) {
  const kept = points.slice(0, 2);
  for (let i = 2; i + 2 < points.length; i += 2) {
    const [ax, ay] = kept.slice(-2);
    const [bx, by, cx, cy] = points.slice(i, i + 4);
    if (Math.abs((bx - ax) * (cy - ay) - (cx - ax) * (by - ay)) > 1e-6 * (cy - ay)) kept.push(bx, by);
  }
  kept.push(...points.slice(-2));
  return Float64Array.from(kept);
}
