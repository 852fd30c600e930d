// Horizontal places: the shortest edges across that the order allows, by network simplex, with long edges held straight.
import { networkSimplex } from "./layout_simplex.js";

/**
 * `left` and `right` are how far each node reaches from its anchor.
 * @typedef {import("./layout_order.js").Layered} Layered
 * @typedef {{left: Float64Array, right: Float64Array}} Reach
 */

const STRAIGHTNESS = [1, 2, 8]; // what a unit across costs, by how many ends are dummies

/**
 * The anchor of each node, from the left.
 * @param {Layered} net @param {Reach} reach whole numbers @param {number} gap a whole number
 */
export function placeAcross(net, reach, gap) {
  const { block, count } = straightBlocks(net);
  const program = separations(net, reach, gap, block, count);
  for (let s = 0; s < net.above.length; s++) pull(net, reach, s, block, program);
  const value = networkSimplex(program);
  const firsts = net.layers.flatMap((layer) => [...layer.subarray(0, 1)]);
  const least = Math.min(...firsts.map((node) => value[block[node]] - reach.left[node]));
  return Float64Array.from(block, (b) => value[b] - least);
}

/** Dummies of an edge move as one, unless two such stretches cross: then the one further right bends. @param {Layered} net */
function straightBlocks({ size, real, layers, up, above, pos }) {
  const block = new Int32Array(size).fill(-1);
  let count = 0;
  for (const layer of layers) {
    let reached = -1;
    for (const node of layer) {
      const before = node >= real ? above[up.list[up.start[node]]] : -1;
      const straight = before >= real && pos[before] > reached;
      block[node] = straight ? block[before] : count++;
      if (straight) reached = pos[before];
    }
  }
  return { block, count };
}

/** Neighbours in a layer stay apart. @param {Layered} net @param {Reach} reach @param {number} gap @param {Int32Array} block @param {number} count */
function separations(net, reach, gap, block, count) {
  const least = new Map();
  for (const layer of net.layers) {
    for (let i = 1; i < layer.length; i++) {
      const key = block[layer[i - 1]] * count + block[layer[i]];
      const apart = reach.right[layer[i - 1]] + gap + reach.left[layer[i]];
      least.set(key, Math.max(least.get(key) ?? 0, apart));
    }
  }
  const keys = [...least.keys()];
  const from = keys.map((key) => Math.floor(key / count));
  const to = keys.map((key) => key % count);
  return { count, from, to, length: [...least.values()], weight: keys.map(() => 0) };
}

/**
 * Let segment s cost its width, measured from a further variable to the left of both ends.
 * @param {Layered} net @param {Reach} reach @param {number} s @param {Int32Array} block
 * @param {{count: number, from: number[], to: number[], length: number[], weight: number[]}} program
 */
function pull(net, reach, s, block, program) {
  const [a, b] = [net.above[s], net.below[s]];
  if (block[a] === block[b]) return;
  const cost = STRAIGHTNESS[+(a >= net.real) + +(b >= net.real)];
  const point = program.count++;
  program.from.push(point, point);
  program.to.push(block[a], block[b]);
  program.length.push(-Math.round(net.aboveAt[s] * (reach.left[a] + reach.right[a])));
  program.length.push(-Math.round(net.belowAt[s] * (reach.left[b] + reach.right[b])));
  program.weight.push(cost, cost);
}
