// Layers with dummy nodes for long edges, and the order in each layer: weighted medians, down and up, with transposition
// of neighbours after each sweep (Gansner et al. 1993). The best order found is kept.
import { countCrossings, buckets } from "./layout_count.js";

/**
 * A graph in layers. Nodes from `real` on are dummies, for edges that pass a layer; edges from one node share them as long
 * as they can. Segment s runs from node `above[s]` to `below[s]` in the next layer and is part of `load[s]` edges;
 * `aboveAt` and `belowAt` say where at its ends, as a share of the box from its anchor (-0.5 to 0.5). `chains[e]` are the
 * nodes of edge e. `trunks` are the dummies of some long edges, the most used first. `up` and `down` list the segments at
 * each node.
 * @typedef {{real: number, size: number, rank: Int32Array, layers: Int32Array[], pos: Int32Array, chains: number[][],
 *   trunks: number[][], above: Int32Array, below: Int32Array, aboveAt: Float64Array, belowAt: Float64Array, load: number[], up: Buckets,
 *   down: Buckets}} Layered
 *
 * Where lines end, sorted, and how many each stands for.
 * @typedef {{at: number[], load: number[]}} Ends
 *
 * @typedef {import("./layout_count.js").Buckets} Buckets
 * @typedef {{from: number[], to: number[], fromAt: number[], toAt: number[]}} Links
 */

const ORDER_WORK = 3e6;
const SWEEPS = 24;
const PATIENCE = 6;
const TRUNKS = 40;
const SHIFT_EFFORT = 50;
const HURRY = 6;
/**
 * First orders to try: walks down or up the graph, that turn to far nodes first (-1), last (1) or as they come (0); and in
 * how many sweeps equal medians change places in half (0: never).
 */
const STARTS = [
  { downward: false, far: 0, period: 0 },
  { downward: true, far: 0, period: 0 },
  { downward: true, far: -1, period: 0 },
  { downward: false, far: 0, period: 4 },
  { downward: false, far: 1, period: 4 },
  { downward: true, far: -1, period: 4 },
];

/** @type {Ends} */
const NO_ENDS = { at: [], load: [] };

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
  const amount = (/** @type {{segments: number[]}} */ { segments }) => segments.reduce((sum, s) => sum + load[s], 0);
  const heaviest = [...trunks.values()].sort((a, b) => amount(b) - amount(a)).slice(0, TRUNKS);
  const longest = heaviest.map(({ nodes }) => nodes.slice(1)).filter((nodes) => nodes.length > 1);
  const net = { real: realRank.length, size, rank: ranks, layers, pos: new Int32Array(size), chains, trunks: longest };
  return { ...net, ...ends, ...at, ...sides };
}

/** Order every layer; returns the crossings left. Big graphs get fewer starts and sweeps. @param {Layered} net */
export function orderLayers(net) {
  const effort = ORDER_WORK / (net.size + net.above.length);
  const hurried = effort < HURRY;
  const starts = STARTS.slice(0, hurried ? 1 : Math.max(2, effort / 16));
  const sweeps = Math.max(hurried ? 2 : 5, Math.min(SWEEPS, effort / starts.length));
  let best = { crossings: Infinity, layers: net.layers };
  for (const { downward, far, period } of starts) {
    if (best.crossings === 0) break;
    traverse(net, downward, far);
    best = improve(net, sweeps, period, best);
  }
  net.layers = best.layers.map((layer) => layer.slice());
  settle(net);
  if (best.crossings && effort > SHIFT_EFFORT && shiftTrunks(net)) best = improve(net, sweeps, 0, best);
  net.layers = best.layers;
  settle(net);
  return best.crossings;
}

/** Move long edges as a whole to the left or right of everything, where that lessens crossings. @param {Layered} net */
function shiftTrunks(net) {
  let shifted = 0;
  for (const trunk of net.trunks) {
    const [first, last] = [net.rank[trunk[0]], net.rank[trunk[trunk.length - 1]]];
    const before = net.layers.slice(first, last + 1).map((layer) => layer.slice());
    let least = crossingsBetween(net, first - 1, last);
    let best = before;
    for (const side of [0, 1]) {
      const moved = before.map((layer, i) => {
        const rest = layer.filter((node) => node !== trunk[i]);
        return Int32Array.from(side ? [...rest, trunk[i]] : [trunk[i], ...rest]);
      });
      putLayers(net, first, moved);
      const crossings = crossingsBetween(net, first - 1, last);
      if (crossings < least) ((least = crossings), (best = moved), shifted++);
    }
    putLayers(net, first, best);
  }
  return shifted;
}

/** @param {Layered} net @param {number} first @param {Int32Array[]} layers */
function putLayers(net, first, layers) {
  layers.forEach((layer, i) => {
    net.layers[first + i] = layer;
    layer.forEach((node, at) => (net.pos[node] = at));
  });
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
    const crossings = crossingsBetween(net);
    if (crossings < least) ((least = crossings), (vain = 0));
    if (crossings < best.crossings) best = { crossings, layers: net.layers.map((layer) => layer.slice()) };
  }
  return best;
}

/** @param {Layered} net */
function settle(net) {
  for (const layer of net.layers) layer.forEach((node, i) => (net.pos[node] = i));
}

/**
 * First order: nodes as a depth-first walk from the top (or bottom) comes by them.
 * @param {Layered} net @param {boolean} downward @param {number} far
 */
function traverse(net, downward, far) {
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
      const next = Array.from(onward.list.subarray(onward.start[node], onward.start[node + 1]), (s) => ends[s]);
      if (far) next.sort((a, b) => far * (Number(a >= net.real) - Number(b >= net.real)));
      stack.push(...next.reverse());
    }
  }
  net.layers = layers.map((layer) => Int32Array.from(layer));
  settle(net);
}

/** Crossings under the layers from one to another. @param {Layered} net @param {number} [first] @param {number} [last] */
function crossingsBetween(net, first = 0, last = net.layers.length - 1) {
  let total = 0;
  for (const layer of net.layers.slice(first, last + 1)) {
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

/**
 * Where the lines from a node end in the layer above (or below).
 * @param {Layered} net @param {number} node @param {boolean} upward @returns {Ends}
 */
function endsOf(net, node, upward) {
  const { start, list } = upward ? net.up : net.down;
  const [other, shift] = upward ? [net.above, net.aboveAt] : [net.below, net.belowAt];
  const [first, last] = [start[node], start[node + 1]];
  if (first === last) return NO_ENDS;
  const [at, load] = /** @type {number[][]} */ ([[], []]);
  for (let k = first; k < last; k++) {
    const place = net.pos[other[list[k]]] + shift[list[k]];
    let i = at.length;
    for (; i > 0 && at[i - 1] > place; i--) ((at[i] = at[i - 1]), (load[i] = load[i - 1]));
    at[i] = place;
    load[i] = net.load[list[k]];
  }
  return { at, load };
}

/**
 * Where half of the lines are to the left; between the middle two, nearer to the side where they are closer together.
 * @param {Ends} ends
 */
function weightedMedian({ at, load }) {
  const half = load.reduce((sum, value) => sum + value, 0) / 2;
  let [middle, sum] = [0, load[0]];
  while (sum < half) sum += load[++middle];
  if (sum > half) return at[middle];
  const left = at[middle] - at[0];
  const right = at[at.length - 1] - at[middle + 1];
  if (left + right === 0) return (at[middle] + at[middle + 1]) / 2;
  return (at[middle] * right + at[middle + 1] * left) / (left + right);
}

/** Sort each layer by the medians of its neighbours in the one before. @param {Layered} net @param {boolean} downward @param {boolean} flip whether equal medians change places */
function medianSweep(net, downward, flip) {
  const depth = net.layers.length;
  for (let step = 1; step < depth; step++) {
    const layer = net.layers[downward ? step : depth - 1 - step];
    /** @type {number[]} */
    const places = [];
    /** @type {{node: number, value: number, i: number}[]} */
    const sorted = [];
    for (let i = 0; i < layer.length; i++) {
      const ends = endsOf(net, layer[i], downward);
      if (!ends.at.length) continue;
      places.push(i);
      sorted.push({ node: layer[i], value: weightedMedian(ends), i: flip ? -i : i });
    }
    sorted.sort((a, b) => a.value - b.value || a.i - b.i);
    places.forEach((i, at) => (layer[i] = sorted[at].node));
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
