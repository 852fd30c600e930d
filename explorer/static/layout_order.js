// Layers with dummy nodes for long edges, and the order in each layer: weighted medians, down and up, with transposition
// of neighbours after each sweep (Gansner et al. 1993). The best order found is kept.
import { countCrossings, buckets } from "./layout_count.js";

/**
 * A graph in layers. Nodes from `real` on are dummies, for edges that pass a layer; edges from one node share them as long
 * as they can. Segment s runs from node `above[s]` to `below[s]` in the next layer and is part of `load[s]` edges;
 * `aboveAt` and `belowAt` say where at its ends, as a share of the box from its anchor (-0.5 to 0.5). `chains[e]` are the
 * nodes of edge e. `up` and `down` list the segments at each node.
 * @typedef {{real: number, size: number, rank: Int32Array, layers: Int32Array[], pos: Int32Array, chains: number[][],
 *   above: Int32Array, below: Int32Array, aboveAt: Float64Array, belowAt: Float64Array, load: number[], up: Buckets,
 *   down: Buckets}} Layered
 *
 * Where lines end, sorted, and how many each stands for.
 * @typedef {{at: Float64Array, load: Float64Array}} Ends
 *
 * @typedef {import("./layout_count.js").Buckets} Buckets
 * @typedef {{from: number[], to: number[], fromAt: number[], toAt: number[]}} Links
 */

const ORDER_WORK = 3e6;
const SWEEPS = 24;
const PATIENCE = 6;
const STARTS = [0, 4, 2].flatMap((period) => [true, false].map((downward) => ({ downward, period })));

/** @param {Int32Array} realRank @param {Links} links @returns {Layered} */
export function buildLayers(realRank, { from, to, fromAt, toAt }) {
  const rank = Array.from(realRank);
  const [above, below, aboveAt, belowAt, load] = /** @type {number[][]} */ ([[], [], [], [], []]);
  /** @param {number} a @param {number} b @param {number} aAt @param {number} bAt */
  const join = (a, b, aAt, bAt) => {
    above.push(a);
    below.push(b);
    aboveAt.push(aAt);
    belowAt.push(bAt);
    return load.push(1) - 1;
  };
  /** @type {Map<string, {nodes: number[], segments: number[]}>} */
  const trunks = new Map();
  const chains = from.map((source, e) => {
    const key = `${source} ${fromAt[e]}`;
    const { nodes, segments } = trunks.get(key) ?? { nodes: [source], segments: [] };
    trunks.set(key, { nodes, segments });
    const passed = rank[to[e]] - rank[source];
    for (const s of segments.slice(0, passed - 1)) load[s]++;
    for (let i = nodes.length; i < passed; i++) {
      nodes.push(rank.push(rank[source] + i) - 1);
      segments.push(join(nodes[i - 1], nodes[i], i === 1 ? fromAt[e] : 0, 0));
    }
    join(nodes[passed - 1], to[e], passed === 1 ? fromAt[e] : 0, toAt[e]);
    return [...nodes.slice(0, passed), to[e]];
  });
  const size = rank.length;
  const depth = rank.reduce((most, r) => Math.max(most, r), 0) + 1;
  const ranks = Int32Array.from(rank);
  const { start, list } = buckets(depth, ranks);
  const layers = Array.from({ length: depth }, (_, r) => list.slice(start[r], start[r + 1]));
  const ends = { above: Int32Array.from(above), below: Int32Array.from(below) };
  const at = { aboveAt: Float64Array.from(aboveAt), belowAt: Float64Array.from(belowAt), load };
  const sides = { up: buckets(size, ends.below), down: buckets(size, ends.above) };
  return {
    real: realRank.length,
    size,
    rank: ranks,
    layers,
    pos: new Int32Array(size),
    chains,
    ...ends,
    ...at,
    ...sides,
  };
}

/** Order every layer; returns the crossings left. Big graphs get fewer starts and sweeps. @param {Layered} net */
export function orderLayers(net) {
  const effort = ORDER_WORK / (net.size + net.above.length);
  const starts = STARTS.slice(0, Math.max(2, effort / 16));
  const sweeps = Math.max(5, Math.min(SWEEPS, effort / starts.length));
  let best = { crossings: Infinity, layers: net.layers };
  for (const { downward, period } of starts) {
    if (best.crossings === 0) break;
    traverse(net, downward);
    best = improve(net, sweeps, period, best);
  }
  net.layers = best.layers;
  settle(net);
  return best.crossings;
}

/**
 * @param {Layered} net @param {number} sweeps @param {number} period of sweeps, in half of which equal medians change places
 * @param {{crossings: number, layers: Int32Array[]}} best
 */
function improve(net, sweeps, period, best) {
  let least = Infinity;
  for (let sweep = 0, vain = 0; sweep <= sweeps && vain < PATIENCE && best.crossings; sweep++, vain++) {
    if (sweep) medianSweep(net, sweep % 2 === 1, sweep % period < period / 2);
    transpose(net, sweep % 4 < 2);
    const crossings = allCrossings(net);
    if (crossings < least) ((least = crossings), (vain = 0));
    if (crossings < best.crossings) best = { crossings, layers: net.layers.map((layer) => layer.slice()) };
  }
  return best;
}

/** @param {Layered} net */
function settle(net) {
  for (const layer of net.layers) layer.forEach((node, i) => (net.pos[node] = i));
}

/** First order: nodes as a depth-first walk from the top (or bottom) comes by them. @param {Layered} net @param {boolean} downward */
function traverse(net, downward) {
  const layers = net.layers.map(() => /** @type {number[]} */ ([]));
  const [onward, back] = downward ? [net.down, net.up] : [net.up, net.down];
  const ends = downward ? net.below : net.above;
  const seen = new Uint8Array(net.size);
  for (let root = 0; root < net.size; root++) {
    if (back.start[root] !== back.start[root + 1]) continue;
    const stack = [root];
    while (stack.length) {
      const node = /** @type {number} */ (stack.pop());
      if (seen[node]) continue;
      seen[node] = 1;
      layers[net.rank[node]].push(node);
      for (let k = onward.start[node + 1] - 1; k >= onward.start[node]; k--) stack.push(ends[onward.list[k]]);
    }
  }
  net.layers = layers.map((layer) => Int32Array.from(layer));
  settle(net);
}

/** @param {Layered} net */
function allCrossings(net) {
  let total = 0;
  for (const layer of net.layers) {
    const [tops, bottoms, loads] = /** @type {number[][]} */ ([[], [], []]);
    for (const node of layer) {
      for (let k = net.down.start[node]; k < net.down.start[node + 1]; k++) {
        const s = net.down.list[k];
        tops.push(net.pos[node] + net.aboveAt[s]);
        bottoms.push(net.pos[net.below[s]] + net.belowAt[s]);
        loads.push(net.load[s]);
      }
    }
    total += countCrossings(tops, bottoms, loads);
  }
  return total;
}

/** Where the lines from a node end in the layer above (or below). @param {Layered} net @param {number} node @param {boolean} upward @returns {Ends} */
function endsOf(net, node, upward) {
  const { start, list } = upward ? net.up : net.down;
  const [other, at] = upward ? [net.above, net.aboveAt] : [net.below, net.belowAt];
  const size = start[node + 1] - start[node];
  const ends = { at: new Float64Array(size), load: new Float64Array(size) };
  const place = (/** @type {number} */ s) => net.pos[other[s]] + at[s];
  const segments = list.subarray(start[node], start[node + 1]);
  (size > 1 ? segments.slice().sort((a, b) => place(a) - place(b)) : segments).forEach((s, i) => {
    ends.at[i] = place(s);
    ends.load[i] = net.load[s];
  });
  return ends;
}

/** @param {Float64Array} sorted */
function weightedMedian(sorted) {
  const middle = sorted.length >> 1;
  if (sorted.length % 2) return sorted[middle];
  if (sorted.length === 2) return (sorted[0] + sorted[1]) / 2;
  const left = sorted[middle - 1] - sorted[0];
  const right = sorted[sorted.length - 1] - sorted[middle];
  if (left + right === 0) return (sorted[middle - 1] + sorted[middle]) / 2;
  return (sorted[middle - 1] * right + sorted[middle] * left) / (left + right);
}

/** Sort each layer by the medians of its neighbours in the one before. @param {Layered} net @param {boolean} downward @param {boolean} flip whether equal medians change places */
function medianSweep(net, downward, flip) {
  const depth = net.layers.length;
  for (let step = 1; step < depth; step++) {
    const layer = net.layers[downward ? step : depth - 1 - step];
    const value = new Map();
    for (const node of layer) {
      const { at } = endsOf(net, node, downward);
      if (at.length) value.set(node, weightedMedian(at));
    }
    const movable = layer.filter((node) => value.has(node));
    const sign = flip ? -1 : 1;
    movable.sort((a, b) => value.get(a) - value.get(b) || sign * (net.pos[a] - net.pos[b]));
    let next = 0;
    layer.forEach((node, i) => {
      if (value.has(node)) layer[i] = movable[next++];
    });
    layer.forEach((node, i) => (net.pos[node] = i));
  }
}

/** Swap neighbours while that lessens crossings. @param {Layered} net @param {boolean} swapEqual */
function transpose(net, swapEqual) {
  const dirty = new Uint8Array(net.layers.length).fill(1);
  for (let round = 0; round < 30; round++) {
    let better = 0;
    for (let r = 0; r < net.layers.length; r++) {
      if (!dirty[r]) continue;
      const gained = transposeLayer(net, net.layers[r], swapEqual && round === 0);
      dirty[r] = 0;
      if (!gained) continue;
      better += gained;
      for (const near of [r - 1, r, r + 1]) if (near >= 0 && near < dirty.length) dirty[near] = 1;
    }
    if (!better) return;
  }
}

/** @param {Layered} net @param {Int32Array} layer @param {boolean} swapEqual */
function transposeLayer(net, layer, swapEqual) {
  const up = Array.from(layer, (node) => endsOf(net, node, true));
  const down = Array.from(layer, (node) => endsOf(net, node, false));
  let gained = 0;
  for (let i = 0; i + 1 < layer.length; i++) {
    const gain =
      between(up[i], up[i + 1]) -
      between(up[i + 1], up[i]) +
      between(down[i], down[i + 1]) -
      between(down[i + 1], down[i]);
    if (gain < 0 || (gain === 0 && !swapEqual)) continue;
    gained += gain;
    for (const list of /** @type {any[]} */ ([layer, up, down])) [list[i], list[i + 1]] = [list[i + 1], list[i]];
    net.pos[layer[i]] = i;
    net.pos[layer[i + 1]] = i + 1;
  }
  return gained;
}

/** Crossings of the lines of a node with those of its right neighbour. @param {Ends} left @param {Ends} right */
function between(left, right) {
  let count = 0;
  let before = 0;
  for (let i = 0, j = 0; i < left.at.length; i++) {
    for (; j < right.at.length && right.at[j] < left.at[i]; j++) before += right.load[j];
    count += before * left.load[i];
  }
  return count;
}
