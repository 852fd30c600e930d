// Network simplex (Gansner et al. 1993): whole numbers for the nodes of an acyclic graph, so that every edge is at least
// as long as it must be and the weighted sum of lengths is least. Used for ranks and for horizontal places.

/**
 * value[to[e]] - value[from[e]] must be at least length[e], and costs weight[e] a unit.
 * @typedef {{count: number, from: ArrayLike<number>, to: ArrayLike<number>, length: ArrayLike<number>, weight: ArrayLike<number>}} Program
 *
 * A program with the edges at each node, either way.
 * @typedef {{count: number, from: Int32Array, to: Int32Array, length: Int32Array, weight: Int32Array, start: Int32Array,
 *   list: Int32Array}} Incidence
 *
 * The spanning tree being improved. `edge[v]` is the tree edge to v's parent (-1 at the root), `flow[v]` the weight of
 * edges out of v's subtree minus those into it, so that the cut value of `edge[v]` is plus or minus `flow[v]`. `worse`
 * lists nodes whose cut value was negative when last seen (`listed`); `mark` is for walks, each with its own `stamp`.
 * @typedef {{inTree: Uint8Array, edge: Int32Array, flow: Int32Array, listed: Uint8Array, worse: number[], mark: Int32Array,
 *   stamp: number}} Tree
 */

const PIVOTS = 30000;

/**
 * The best values, or good ones when the pivots run out. The graph must be connected.
 * @param {Program} program
 */
export function networkSimplex(program) {
  const graph = incidence(program);
  const value = longestPaths(graph);
  const tree = plantTree(graph, tightTree(graph, value));
  for (let pivot = 0, next = 0; pivot < PIVOTS && next < tree.worse.length; next++) {
    const node = tree.worse[next];
    tree.listed[node] = 0;
    if (!lowersCost(graph, tree, node)) continue;
    pivot++;
    exchange(graph, tree, value, node);
  }
  return value;
}

/** Whether the edge above `node` should leave the tree (its cut value is negative). @param {Incidence} graph @param {Tree} tree @param {number} node */
function lowersCost({ from }, { edge, flow }, node) {
  const e = edge[node];
  return e >= 0 && (from[e] === node ? flow[node] < 0 : flow[node] > 0);
}

/** @param {Program} program @returns {Incidence} */
function incidence(program) {
  const { count } = program;
  const [from, to] = [Int32Array.from(program.from), Int32Array.from(program.to)];
  const [length, weight] = [Int32Array.from(program.length), Int32Array.from(program.weight)];
  const start = new Int32Array(count + 1);
  for (let e = 0; e < from.length; e++) (start[from[e] + 1]++, start[to[e] + 1]++);
  for (let node = 0; node < count; node++) start[node + 1] += start[node];
  const next = start.slice();
  const list = new Int32Array(2 * from.length);
  for (let e = 0; e < from.length; e++) ((list[next[from[e]]++] = e), (list[next[to[e]]++] = e));
  return { count, from, to, length, weight, start, list };
}

/** The least values that the lengths allow. @param {Incidence} graph */
function longestPaths({ count, from, to, length, start, list }) {
  const value = new Int32Array(count);
  const waiting = new Int32Array(count);
  for (const node of to) waiting[node]++;
  const ready = [...value.keys()].filter((node) => !waiting[node]);
  for (const node of ready) {
    for (const e of list.subarray(start[node], start[node + 1])) {
      if (from[e] !== node) continue;
      value[to[e]] = Math.max(value[to[e]], value[node] + length[e]);
      if (--waiting[to[e]] === 0) ready.push(to[e]);
    }
  }
  return value;
}

/**
 * Grow a spanning tree of tight edges, sliding it to meet the node nearest to being tight. Values in the tree are kept
 * relative to how far it has slid.
 * @param {Incidence} graph @param {Int32Array} value
 */
function tightTree({ count, from, to, length, start, list }, value) {
  const inTree = new Uint8Array(from.length);
  const reached = new Uint8Array(count);
  const [leaving, arriving] = [new Heap(), new Heap()];
  let slid = 0;
  let node = 0;
  for (let size = 1; ; size++) {
    reached[node] = 1;
    value[node] -= slid;
    for (let k = start[node]; k < start[node + 1]; k++) {
      const e = list[k];
      const slack = value[to[e]] - value[from[e]] - length[e];
      if (from[e] === node ? !reached[to[e]] : !reached[from[e]])
        (from[e] === node ? leaving : arriving).push(slack, e);
    }
    if (size === count) break;
    while (leaving.size && reached[to[leaving.items[0]]]) leaving.pop();
    while (arriving.size && reached[from[arriving.items[0]]]) arriving.pop();
    const down = leaving.least() - slid <= arriving.least() + slid;
    const heap = down ? leaving : arriving;
    slid = down ? heap.least() : -heap.least();
    const e = heap.pop();
    inTree[e] = 1;
    node = down ? to[e] : from[e];
  }
  for (let i = 0; i < count; i++) value[i] += slid;
  return inTree;
}

/** Numbers to be had in order of their keys. */
class Heap {
  /** @type {number[]} */
  keys = [];
  /** @type {number[]} */
  items = [];

  get size() {
    return this.items.length;
  }

  least() {
    return this.size ? this.keys[0] : Infinity;
  }

  /** @param {number} key @param {number} item */
  push(key, item) {
    let at = this.size;
    for (; at > 0 && this.keys[(at - 1) >> 1] > key; at = (at - 1) >> 1) this.#move((at - 1) >> 1, at);
    this.keys[at] = key;
    this.items[at] = item;
  }

  pop() {
    const first = this.items[0];
    const key = /** @type {number} */ (this.keys.pop());
    const item = /** @type {number} */ (this.items.pop());
    if (!this.size) return first;
    let at = 0;
    for (let child = 1; child < this.size; child = 2 * at + 1) {
      if (this.keys[child + 1] < this.keys[child]) child++;
      if (this.keys[child] >= key) break;
      this.#move(child, at);
      at = child;
    }
    this.keys[at] = key;
    this.items[at] = item;
    return first;
  }

  /** @param {number} from @param {number} to */
  #move(from, to) {
    this.keys[to] = this.keys[from];
    this.items[to] = this.items[from];
  }
}

/** @param {Incidence} graph @param {Uint8Array} inTree @returns {Tree} */
function plantTree(graph, inTree) {
  const { count, from, to, weight, start, list } = graph;
  const [flow, mark] = [new Int32Array(count), new Int32Array(count)];
  const edge = new Int32Array(count).fill(-1);
  for (let e = 0; e < from.length; e++) ((flow[from[e]] += weight[e]), (flow[to[e]] -= weight[e]));
  const order = [0];
  for (const node of order) {
    for (let k = start[node]; k < start[node + 1]; k++) {
      const e = list[k];
      if (!inTree[e] || e === edge[node]) continue;
      const child = from[e] === node ? to[e] : from[e];
      edge[child] = e;
      order.push(child);
    }
  }
  /** @type {Tree} */
  const tree = { inTree, edge, flow, listed: new Uint8Array(count), worse: [], mark, stamp: 0 };
  for (const node of order.reverse()) if (node) flow[parent(graph, tree, node)] += flow[node];
  order.forEach((node) => consider(graph, tree, node));
  return tree;
}

/** @param {Incidence} graph @param {Tree} tree @param {number} node */
function parent({ from, to }, { edge }, node) {
  const e = node < 0 ? -1 : edge[node];
  if (e < 0) return -1;
  return from[e] === node ? to[e] : from[e];
}

/** @param {Incidence} graph @param {Tree} tree @param {number} node */
function consider(graph, tree, node) {
  if (tree.listed[node] || !lowersCost(graph, tree, node)) return;
  tree.listed[node] = 1;
  tree.worse.push(node);
}

/**
 * Take the edge above `node` out of the tree, put in the edge that lets the two sides slide the least the other way, and
 * slide the smaller side.
 * @param {Incidence} graph @param {Tree} tree @param {Int32Array} value @param {number} node
 */
function exchange(graph, tree, value, node) {
  const { from, to, length, start, list } = graph;
  const leaving = tree.edge[node];
  const { side, under } = smallerSide(graph, tree, node);
  const upward = (from[leaving] === node) === under;
  const [tips, others] = upward ? [to, from] : [from, to];
  let entering = -1;
  let least = Infinity;
  for (const tip of side) {
    for (let k = start[tip]; k < start[tip + 1]; k++) {
      const e = list[k];
      if (tips[e] !== tip || tree.mark[others[e]] === tree.mark[tip]) continue;
      const slack = value[to[e]] - value[from[e]] - length[e];
      if (slack < least) ((least = slack), (entering = e));
    }
  }
  for (const tip of side) value[tip] += upward ? -least : least;
  const [inner, outer] = under ? [tips, others] : [others, tips];
  rehang(graph, tree, node, entering, inner[entering], outer[entering]);
}

/** The nodes on one side of the edge above `node`, marked: under it, or all others when they are fewer. @param {Incidence} graph @param {Tree} tree @param {number} node */
function smallerSide(graph, tree, node) {
  const { from, to, start, list } = graph;
  const { inTree, mark } = tree;
  const leaving = tree.edge[node];
  const sides = [[node], [parent(graph, tree, node)]];
  tree.stamp += 2;
  sides.forEach((side, s) => (mark[side[0]] = tree.stamp + s));
  for (let i = 0; ; i++) {
    for (let s = 0; s < 2; s++) {
      const at = sides[s][i];
      if (at === undefined) return { side: sides[s], under: s === 0 };
      for (let k = start[at]; k < start[at + 1]; k++) {
        const e = list[k];
        if (!inTree[e] || e === leaving) continue;
        const other = from[e] === at ? to[e] : from[e];
        if (mark[other] !== tree.stamp + s) ((mark[other] = tree.stamp + s), sides[s].push(other));
      }
    }
  }
}

/**
 * Hang the subtree of `node` on the entering edge, by its node `inner`.
 * @param {Incidence} graph @param {Tree} tree @param {number} node @param {number} entering @param {number} inner @param {number} outer
 */
function rehang(graph, tree, node, entering, inner, outer) {
  const { edge, flow } = tree;
  const moved = flow[node];
  const above = parent(graph, tree, node);
  tree.inTree[edge[node]] = 0;
  tree.inTree[entering] = 1;
  const top = meeting(graph, tree, above, outer);
  for (let at = above; at !== top; at = parent(graph, tree, at)) ((flow[at] -= moved), consider(graph, tree, at));
  for (let at = outer; at !== top; at = parent(graph, tree, at)) ((flow[at] += moved), consider(graph, tree, at));
  let [at, link, below] = [inner, entering, 0];
  for (;;) {
    const [next, old, sum] = [parent(graph, tree, at), edge[at], flow[at]];
    edge[at] = link;
    flow[at] = moved - below;
    consider(graph, tree, at);
    if (at === node) return;
    [at, link, below] = [next, old, sum];
  }
}

/** The nearest node above both (or one of them). @param {Incidence} graph @param {Tree} tree @param {number} a @param {number} b */
function meeting(graph, tree, a, b) {
  const { mark } = tree;
  const stamp = (tree.stamp += 2);
  for (let [one, other] = [a, b]; ; [one, other] = [other, parent(graph, tree, one)]) {
    if (one < 0) continue;
    if (mark[one] === stamp) return one;
    mark[one] = stamp;
  }
}
