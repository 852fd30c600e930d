// Evaluates a recorded graph forward and backward, in float64, for the ATen operations below. It says which others there
// are: what comes after those is unknown, and so are the gradients that would flow through them.

import { LAYERS } from "./evaluate_layers.js";
import {
  asTensor, commonShape, dimsOf, dropped, expanded, expandedTo, joined, keptShape, larger, logSumExp, made, mapped, matmul, permuted, plus, positive, reduced, selected, sliced, smaller, softmax, spread, squeezed, summed, summedTo, swapped, times, unsqueezed, viewed, zipped,
} from "./tensors.js";

/**
 * @typedef {import("./tensors.js").Tensor} Tensor
 * A tensor of the program: result `output` of a node. @typedef {{$: [number, number]}} Ref
 * @typedef {{op?: string, args?: any[], kwargs?: Record<string, any>, grad: boolean, enabled?: boolean, noise?: boolean}} Op
 * @typedef {{nodes: Op[], outputs: [number, number][]}} Program
 * By "node output" and "node input": `flows` is what a node sends back to an input, `derivatives` the local derivative
 * of an elementwise operation.
 * @typedef {{values: Map<string, Tensor>, gradients: Map<string, Tensor>, flows: Map<string, Tensor>,
 *   derivatives: Map<string, Tensor>, unknown: string[]}} Evaluation
 *
 * `run` gives the results, null if it doesn't know what is asked, `back` a gradient for each argument (a list of them for a list); `d` says that each element of
 * the result depends on one element of each input.
 * @typedef {{run: (args: any[], kwargs: any) => (Tensor | null)[] | null, back?: (g: Tensor, args: any[], outs: Tensor[], kwargs: any, all: (Tensor | undefined)[]) => any[],
 *   elementwise?: boolean}} Rule
 */

// ---- functions of a number

/** By a series near 0, else by a continued fraction; full precision. @param {number} x */
export function erf(x) {
  const size = Math.abs(x);
  if (!(size < 6)) return Number.isNaN(x) ? x : Math.sign(x);
  if (size < 2.5) {
    let [term, sum] = [x, x];
    for (let n = 1; Math.abs(term) > 1e-18 * Math.abs(sum); n++) {
      term *= (-x * x) / n;
      sum += term / (2 * n + 1);
    }
    return (2 / Math.sqrt(Math.PI)) * sum;
  }
  let tail = 0;
  for (let n = 60; n > 0; n--) tail = n / 2 / (size + tail);
  return Math.sign(x) * (1 - Math.exp(-size * size) / Math.sqrt(Math.PI) / (size + tail));
}

/** @param {number} x */
const sigmoid = (x) => 1 / (1 + Math.exp(-x));
/** log(1 + exp(x)) @param {number} x */
const softened = (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));
/** @param {number} x */
const normal = (x) => Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI);
/** @param {number} x @param {boolean} condition @param {number} other */
const when = (condition, x, other) => (condition ? x : other);

/** Elementwise functions of one tensor, and their derivatives by x; o is the result, further arguments follow.
 * @type {Record<string, [(x: number, ...more: any[]) => number, (x: number, o: number, ...more: any[]) => number]>} */
const UNARY = {
  neg: [(x) => -x, () => -1],
  exp: [Math.exp, (_, o) => o],
  exp2: [(x) => 2 ** x, (_, o) => o * Math.LN2],
  expm1: [Math.expm1, (_, o) => o + 1],
  log: [Math.log, (x) => 1 / x],
  log1p: [Math.log1p, (x) => 1 / (1 + x)],
  log2: [Math.log2, (x) => 1 / (x * Math.LN2)],
  log10: [Math.log10, (x) => 1 / (x * Math.LN10)],
  sin: [Math.sin, (x) => Math.cos(x)],
  cos: [Math.cos, (x) => -Math.sin(x)],
  tan: [Math.tan, (_, o) => 1 + o * o],
  asin: [Math.asin, (x) => 1 / Math.sqrt(1 - x * x)],
  acos: [Math.acos, (x) => -1 / Math.sqrt(1 - x * x)],
  atan: [Math.atan, (x) => 1 / (1 + x * x)],
  sinh: [Math.sinh, (x) => Math.cosh(x)],
  cosh: [Math.cosh, (x) => Math.sinh(x)],
  tanh: [Math.tanh, (_, o) => 1 - o * o],
  sigmoid: [sigmoid, (_, o) => o * (1 - o)],
  relu: [(x) => (x < 0 ? 0 : x), (_, o) => when(o > 0, 1, 0)],
  abs: [Math.abs, Math.sign],
  sqrt: [Math.sqrt, (_, o) => 1 / (2 * o)],
  rsqrt: [(x) => 1 / Math.sqrt(x), (_, o) => -(o * o * o) / 2],
  reciprocal: [(x) => 1 / x, (_, o) => -o * o],
  erf: [erf, (x) => (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x)],
  sign: [Math.sign, () => 0],
  sgn: [Math.sign, () => 0],
  floor: [Math.floor, () => 0],
  ceil: [Math.ceil, () => 0],
  silu: [(x) => x * sigmoid(x), (x) => sigmoid(x) * (1 + x * (1 - sigmoid(x)))],
  gelu: [(x) => (x * (1 + erf(x / Math.SQRT2))) / 2, (x) => (1 + erf(x / Math.SQRT2)) / 2 + x * normal(x)],
  softplus: [
    (x, beta = 1, most = 20) => (x * beta > most ? x : Math.log1p(Math.exp(x * beta)) / beta),
    (x, _, beta = 1, most = 20) => (x * beta > most ? 1 : sigmoid(x * beta)),
  ],
  elu: [
    (x, alpha = 1, scale = 1, steep = 1) => scale * (x > 0 ? x : alpha * Math.expm1(x * steep)),
    (x, _, alpha = 1, scale = 1, steep = 1) => scale * (x > 0 ? 1 : alpha * steep * Math.exp(x * steep)),
  ],
  asinh: [Math.asinh, (x) => 1 / Math.sqrt(x * x + 1)],
  acosh: [Math.acosh, (x) => 1 / Math.sqrt(x * x - 1)],
  atanh: [Math.atanh, (x) => 1 / (1 - x * x)],
  erfc: [(x) => 1 - erf(x), (x) => (-2 / Math.sqrt(Math.PI)) * Math.exp(-x * x)],
  trunc: [Math.trunc, () => 0],
  round: [(x) => (Math.abs(x % 1) === 0.5 ? 2 * Math.round(x / 2) : Math.round(x)), () => 0],
  frac: [(x) => x - Math.trunc(x), () => 1],
  mish: [(x) => x * Math.tanh(softened(x)), (x) => Math.tanh(softened(x)) + x * (1 - Math.tanh(softened(x)) ** 2) * sigmoid(x)],
  hardswish: [(x) => (x * Math.min(6, Math.max(0, x + 3))) / 6, (x) => (x < -3 ? 0 : x <= 3 ? x / 3 + 0.5 : 1)],
  hardsigmoid: [(x) => Math.min(6, Math.max(0, x + 3)) / 6, (x) => when(x > -3 && x < 3, 1 / 6, 0)],
  softshrink: [(x, by = 0.5) => (x > by ? x - by : x < -by ? x + by : 0), (x, _, by = 0.5) => when(x > by || x < -by, 1, 0)],
  hardshrink: [(x, by = 0.5) => (x > by || x < -by ? x : 0), (x, _, by = 0.5) => when(x > by || x < -by, 1, 0)],
  threshold: [(x, least, other) => (x > least ? x : other), (x, _, least) => when(x > least, 1, 0)],
  logical_not: [(x) => Number(!x), () => 0],
  isnan: [(x) => Number(Number.isNaN(x)), () => 0],
  leaky_relu: [(x, slope = 0.01) => (x > 0 ? x : slope * x), (x, _, slope = 0.01) => (x > 0 ? 1 : slope)],
  hardtanh: [(x, low = -1, high = 1) => Math.min(high, Math.max(low, x)), (x, _, low = -1, high = 1) => when(x > low && x < high, 1, 0)],
  clamp: [
    (x, low, high) => smaller(larger(x, low ?? -Infinity), high ?? Infinity),
    (x, _, low, high) => when(x >= (low ?? -Infinity) && x <= (high ?? Infinity), 1, 0),
  ],
  clamp_min: [(x, low) => larger(x, low), (x, _, low) => when(x >= low, 1, 0)],
  clamp_max: [(x, high) => smaller(x, high), (x, _, high) => when(x <= high, 1, 0)],
  log_sigmoid_forward: [(x) => Math.min(x, 0) - Math.log1p(Math.exp(-Math.abs(x))), (x) => sigmoid(-x)],
};

/** Of two, broadcast: the function, its derivatives by x and by y. @type {Record<string, ((x: number, y: number, o: number) => number)[]>} */
const BINARY = {
  mul: [(x, y) => x * y, (_, y) => y, (x) => x],
  div: [(x, y) => x / y, (_, y) => 1 / y, (x, y) => -x / (y * y)],
  pow: [
    (x, y) => x ** y,
    (x, y) => (y === 0 ? 0 : y * x ** (y - 1)),
    (x, y, o) => (x === 0 && y >= 0 ? 0 : o * Math.log(x)),
  ],
  maximum: [larger, (x, y) => (x === y ? 0.5 : x > y ? 1 : 0), (x, y) => (x === y ? 0.5 : x < y ? 1 : 0)],
  minimum: [smaller, (x, y) => (x === y ? 0.5 : x < y ? 1 : 0), (x, y) => (x === y ? 0.5 : x > y ? 1 : 0)],
  hypot: [Math.hypot, (x, _, o) => x / o, (_, y, o) => y / o],
  logaddexp: [(x, y) => y + softened(x - y), (x, y) => sigmoid(x - y), (x, y) => sigmoid(y - x)],
  xlogy: [(x, y) => (x === 0 && !Number.isNaN(y) ? 0 : x * Math.log(y)), (_, y) => Math.log(y), (x, y) => x / y],
  fmod: [(x, y) => x % y, () => 1, (x, y) => -Math.trunc(x / y)],
  remainder: [(x, y) => x - Math.floor(x / y) * y, () => 1, (x, y) => -Math.floor(x / y)],
  floor_divide: [(x, y) => Math.floor(x / y), () => 0, () => 0],
  _prelu_kernel: [(x, y) => (x > 0 ? x : x * y), (x, y) => (x > 0 ? 1 : y), (x) => (x > 0 ? 0 : x)],
  logical_and: [(x, y) => Number(x && y ? 1 : 0), () => 0, () => 0],
  logical_or: [(x, y) => Number(x || y ? 1 : 0), () => 0, () => 0],
  atan2: [Math.atan2, (x, y) => y / (x * x + y * y), (x, y) => -x / (x * x + y * y)],
  tanh_backward: [(g, o) => g * (1 - o * o), (_, o) => 1 - o * o, (g, o) => -2 * g * o],
  sigmoid_backward: [(g, o) => g * o * (1 - o), (_, o) => o * (1 - o), (g, o) => g * (1 - 2 * o)],
  threshold_backward: [(g, o) => (o > 0 ? g : 0), (_, o) => when(o > 0, 1, 0), () => 0],
};

/** Without a derivative. @type {Record<string, (x: number, y: number) => boolean>} */
const COMPARED = { gt: (x, y) => x > y, ge: (x, y) => x >= y, lt: (x, y) => x < y, le: (x, y) => x <= y, eq: (x, y) => x === y, ne: (x, y) => x !== y };

// ---- rules

/** @type {Record<string, Rule>} */
const RULES = {};

for (const [name, [f, df]] of Object.entries(UNARY)) {
  RULES[name] = {
    elementwise: true,
    run: ([a, ...more]) => [mapped(a, (x) => f(x, ...more))],
    back: (g, [a, ...more], [out]) => [mapped(a, (x, at) => g.data[at] * df(x, out.data[at], ...more))],
  };
}

for (const [name, [f, dx, dy]] of Object.entries(BINARY)) {
  RULES[name] = {
    elementwise: true,
    run: ([a, b]) => [zipped(asTensor(a), asTensor(b), (x, y) => f(x, y, 0))],
    back: (g, args, [out]) => {
      const [a, b] = args.slice(0, 2).map(asTensor);
      const [x, y] = [expanded(a, out.shape), expanded(b, out.shape)];
      const along = (/** @type {(x: number, y: number, o: number) => number} */ d) => mapped(g, (each, at) => each * d(x.data[at], y.data[at], out.data[at]));
      return [summedTo(along(dx), a.shape), summedTo(along(dy), b.shape)];
    },
  };
}

for (const [name, f] of Object.entries(COMPARED)) RULES[name] = { run: ([a, b]) => [{ ...zipped(asTensor(a), asTensor(b), (x, y) => Number(f(x, y))), bool: true }] };

/** a + sign · alpha · b. @param {number} sign @param {boolean} [turned] @returns {Rule} */
function addition(sign, turned = false) {
  return {
    elementwise: true,
    run: ([a, b, by], { alpha = by ?? 1 }) => {
      const [x, y] = turned ? [asTensor(b), asTensor(a)] : [asTensor(a), asTensor(b)];
      return [zipped(x, y, (p, q) => p + sign * alpha * q)];
    },
    back: (g, [a, b, by], _, { alpha = by ?? 1 }) => {
      const scaled = mapped(g, (each) => sign * alpha * each);
      const [first, second] = turned ? [scaled, g] : [g, scaled];
      return [summedTo(first, asTensor(a).shape), summedTo(second, asTensor(b).shape)];
    },
  };
}

/** A move of elements: `places(a, …)` moves a tensor, and the gradient goes back to where each came from. @param {(a: Tensor, ...more: any[]) => Tensor} move @returns {Rule} */
function moves(move) {
  return {
    run: ([a, ...more]) => [move(a, ...more)],
    back: (g, [a, ...more]) => {
      const from = move(made(a.shape, (at) => at), ...more);
      const sum = made(a.shape);
      from.data.forEach((place, at) => (sum.data[place] += g.data[at]));
      return [sum];
    },
  };
}

/** Sum, or mean, over dims. @param {boolean} mean @returns {Rule} */
function total(mean) {
  const share = (/** @type {Tensor} */ a, /** @type {number[]} */ dims) => (mean ? 1 / dims.reduce((all, dim) => all * a.shape[dim], 1) : 1);
  return {
    run: ([a, over, keep = false]) => {
      const dims = dimsOf(a, over);
      return [dropped(mapped(summed(a, dims), (x) => x * share(a, dims)), dims, keep)];
    },
    back: (g, [a, over]) => {
      const dims = dimsOf(a, over);
      return [mapped(expanded(viewed(g, keptShape(a.shape, dims)), a.shape), (x) => x * share(a, dims))];
    },
  };
}

/** The largest (or smallest); ties share the gradient. @param {(x: number, y: number) => number} f @param {number} start @returns {Rule} */
function extreme(f, start) {
  return {
    run: ([a, over, keep = false]) => {
      const dims = dimsOf(a, over);
      return [dropped(reduced(a, dims, f, start), dims, keep)];
    },
    back: (g, [a, over]) => {
      const dims = dimsOf(a, over);
      const isIt = zipped(a, reduced(a, dims, f, start), (x, most) => Number(x === most));
      const share = zipped(isIt, summed(isIt, dims), (is, count) => is / count);
      return [times(expanded(viewed(g, keptShape(a.shape, dims)), a.shape), share)];
    },
  };
}

/** @param {Tensor} q @param {Tensor} k @param {boolean} causal @param {Tensor | null} mask @param {number} [scale] */
function attentionWeights(q, k, causal, mask, scale = 1 / Math.sqrt(q.shape[q.shape.length - 1])) {
  let scores = mapped(matmul(q, swapped(k)), (x) => x * scale);
  if (mask) scores = plus(scores, mask);
  const [rows, columns] = scores.shape.slice(-2);
  if (causal) scores = mapped(scores, (x, at) => (at % columns > Math.floor(at / columns) % rows ? -Infinity : x));
  return softmax(scores, -1);
}

/** @type {Rule} */
const attention = {
  run: ([q, k, v, , causal = false], { attn_mask = null, scale }) => [matmul(attentionWeights(q, k, causal, attn_mask, scale ?? undefined), v)],
  back: (g, [q, k, v, , causal = false], _, { attn_mask = null, scale: given }) => {
    const scale = given ?? 1 / Math.sqrt(q.shape[q.shape.length - 1]);
    const weights = attentionWeights(q, k, causal, attn_mask, scale);
    const dw = matmul(g, swapped(v));
    const inner = summed(times(dw, weights), [weights.shape.length - 1]);
    const ds = mapped(times(weights, zipped(dw, inner, (x, y) => x - y)), (x) => x * scale);
    return [matmul(ds, k), matmul(swapped(ds), q), matmul(swapped(weights), g)];
  },
};

/** @param {Tensor} a @param {(row: number, column: number) => boolean} keeps */
function triangle(a, keeps) {
  const [rows, columns] = a.shape.slice(-2);
  return mapped(a, (x, at) => (keeps(Math.floor(at / columns) % rows, at % columns) ? x : 0));
}

/** @param {Tensor} a @param {Tensor} b */
const outer = (a, b) => matmul(viewed(a, [-1, 1]), viewed(b, [1, -1]));

Object.assign(RULES, /** @type {Record<string, Rule>} */ ({
  add: addition(1),
  sub: addition(-1),
  rsub: addition(-1, true),
  sum: total(false),
  mean: total(true),
  amax: extreme(larger, -Infinity),
  amin: extreme(smaller, Infinity),
  max: extreme(larger, -Infinity),
  min: extreme(smaller, Infinity),
  view: moves(viewed),
  _unsafe_view: moves(viewed),
  reshape: moves(viewed),
  _reshape_alias: moves(viewed),
  expand: moves(expandedTo),
  t: moves((a) => (a.shape.length < 2 ? a : swapped(a))),
  transpose: moves(swapped),
  permute: moves((a, order) => permuted(a, order.map((/** @type {number} */ dim) => positive(dim, a.shape.length)))),
  unsqueeze: moves(unsqueezed),
  squeeze: moves(squeezed),
  select: moves(selected),
  slice: moves((a, dim = 0, start = 0, end = Infinity, step = 1) => sliced(a, dim, start ?? 0, end ?? Infinity, step)),
  clone: moves((a) => a),
  alias: moves((a) => a),
  detach: { run: ([a]) => [a] },
  _to_copy: moves((a) => a),
  lift_fresh: moves((a) => a),
  lerp: {
    elementwise: true,
    run: ([a, b, by]) => [zipped(zipped(asTensor(b), a, (y, x) => y - x), zipped(asTensor(by), a, (w) => w), (d, w) => d * w)].map((moved) => plus(a, moved)),
    back: (g, [a, b, by]) => {
      const w = asTensor(by);
      return [summedTo(zipped(g, w, (x, share) => x * (1 - share)), a.shape), summedTo(times(g, w), b.shape), typeof by === "object" ? summedTo(times(g, zipped(b, a, (y, x) => y - x)), w.shape) : null];
    },
  },
  addcmul: {
    run: ([a, b, c], { value = 1 }) => [zipped(a, times(b, c), (x, y) => x + value * y)],
    back: (g, [a, b, c], _, { value = 1 }) => {
      const scaled = mapped(g, (x) => value * x);
      return [summedTo(g, a.shape), summedTo(times(scaled, c), b.shape), summedTo(times(scaled, b), c.shape)];
    },
  },
  addcdiv: {
    run: ([a, b, c], { value = 1 }) => [zipped(a, zipped(b, c, (x, y) => x / y), (x, y) => x + value * y)],
    back: (g, [a, b, c], _, { value = 1 }) => {
      const share = zipped(mapped(g, (x) => value * x), c, (x, y) => x / y);
      return [summedTo(g, a.shape), summedTo(share, b.shape), summedTo(mapped(times(share, zipped(b, c, (x, y) => x / y)), (x) => -x), c.shape)];
    },
  },
  bitwise_not: { run: ([a]) => [{ ...mapped(a, (x) => (a.bool ? Number(!x) : ~x)), bool: a.bool }] },
  bitwise_and: { run: ([a, b]) => [{ ...zipped(a, asTensor(b), (x, y) => x & y), bool: a.bool }] },
  bitwise_or: { run: ([a, b]) => [{ ...zipped(a, asTensor(b), (x, y) => x | y), bool: a.bool }] },
  copy: { run: ([a, b]) => [expanded(b, a.shape)], back: (g, [a, b]) => [made(a.shape), summedTo(g, b.shape)] },
  ones_like: { run: ([a]) => [made(a.shape, () => 1)] },
  zeros_like: { run: ([a]) => [made(a.shape)] },
  fill: { run: ([a, value]) => [made(a.shape, () => asTensor(value).data[0])] },
  mm: { run: ([a, b]) => [matmul(a, b)], back: (g, [a, b]) => [matmul(g, swapped(b)), matmul(swapped(a), g)] },
  bmm: { run: ([a, b]) => [matmul(a, b)], back: (g, [a, b]) => [matmul(g, swapped(b)), matmul(swapped(a), g)] },
  mv: { run: ([a, b]) => [viewed(matmul(a, viewed(b, [-1, 1])), [a.shape[0]])], back: (g, [a, b]) => [outer(g, b), viewed(matmul(viewed(g, [1, -1]), a), b.shape)] },
  dot: { run: ([a, b]) => [viewed(summed(times(a, b), [0]), [])], back: (g, [a, b]) => [times(b, g), times(a, g)] },
  addmm: {
    run: ([c, a, b], { beta = 1, alpha = 1 }) => [zipped(matmul(a, b), c, (x, y) => alpha * x + beta * y)],
    back: (g, [c, a, b], _, { beta = 1, alpha = 1 }) => {
      const scaled = mapped(g, (x) => alpha * x);
      return [summedTo(mapped(g, (x) => beta * x), c.shape), matmul(scaled, swapped(b)), matmul(swapped(a), scaled)];
    },
  },
  cat: {
    run: ([parts, dim = 0]) => [joined(parts, dim)],
    back: (g, [parts, dim = 0]) => {
      let start = 0;
      const at = positive(dim, g.shape.length);
      return [parts.map((/** @type {Tensor} */ { shape }) => sliced(g, at, start, (start += shape[at])))];
    },
  },
  split: {
    run: ([a, size, dim = 0]) => Array.from({ length: Math.ceil(a.shape[positive(dim, a.shape.length)] / size) }, (_, at) => sliced(a, dim, at * size, (at + 1) * size)),
    back: (_, [, , dim = 0], outs, __, all) => [joined(outs.map((out, at) => all[at] ?? made(out.shape)), dim)],
  },
  stack: {
    run: ([parts, dim = 0]) => [joined(parts.map((/** @type {Tensor} */ part) => unsqueezed(part, dim)), dim)],
    back: (g, [parts, dim = 0]) => [parts.map((/** @type {Tensor} */ _, /** @type {number} */ at) => selected(g, dim, at))],
  },
  where: {
    elementwise: true,
    run: ([is, a, b]) => {
      const shape = commonShape(is.shape, commonShape(asTensor(a).shape, asTensor(b).shape));
      const [c, x, y] = [is, asTensor(a), asTensor(b)].map((each) => expanded(each, shape));
      return [made(shape, (at) => (c.data[at] ? x.data[at] : y.data[at]))];
    },
    back: (g, [is, a, b]) => {
      const c = expanded(is, g.shape);
      const side = (/** @type {boolean} */ yes) => mapped(g, (x, at) => (Boolean(c.data[at]) === yes ? x : 0));
      return [null, summedTo(side(true), asTensor(a).shape), summedTo(side(false), asTensor(b).shape)];
    },
  },
  masked_fill: {
    run: ([a, mask, value]) => [zipped(a, mask, (x, is) => (is ? asTensor(value).data[0] : x))],
    back: (g, [a, mask]) => [summedTo(zipped(g, mask, (x, is) => (is ? 0 : x)), a.shape), null, null],
  },
  _softmax: {
    run: ([a, dim]) => [softmax(a, dim)],
    back: (g, [a, dim], [out]) => [times(out, zipped(g, summed(times(g, out), dimsOf(a, dim)), (x, y) => x - y))],
  },
  _safe_softmax: {
    run: ([a, dim]) => [mapped(softmax(a, dim), (x) => (Number.isNaN(x) ? 0 : x))],
    back: (g, [a, dim], [out]) => [times(out, zipped(g, summed(times(g, out), dimsOf(a, dim)), (x, y) => x - y))],
  },
  tril: { run: ([a, by = 0]) => [triangle(a, (row, column) => column <= row + by)], back: (g, [, by = 0]) => [triangle(g, (row, column) => column <= row + by)] },
  triu: { run: ([a, by = 0]) => [triangle(a, (row, column) => column >= row + by)], back: (g, [, by = 0]) => [triangle(g, (row, column) => column >= row + by)] },
  _log_softmax: {
    run: ([a, dim]) => [zipped(a, logSumExp(a, dimsOf(a, dim)), (x, all) => x - all)],
    back: (g, [a, dim], [out]) => [zipped(g, times(mapped(out, Math.exp), summed(g, dimsOf(a, dim))), (x, y) => x - y)],
  },
  logsumexp: {
    run: ([a, over, keep = false]) => [dropped(logSumExp(a, dimsOf(a, over)), dimsOf(a, over), keep)],
    back: (g, [a, over]) => {
      const dims = dimsOf(a, over);
      const share = zipped(a, logSumExp(a, dims), (x, all) => Math.exp(x - all));
      return [times(expanded(viewed(g, keptShape(a.shape, dims)), a.shape), share)];
    },
  },
  var: {
    run: ([a, over, ...more], { correction = 1, keepdim = more[0] === true }) => [dropped(spread(a, dimsOf(a, over), correction ?? 1).variance, dimsOf(a, over), keepdim)],
    back: (g, [a, over], _, { correction = 1 }) => {
      const dims = dimsOf(a, over);
      const { apart, count } = spread(a, dims, 0);
      return [mapped(times(expanded(viewed(g, keptShape(a.shape, dims)), a.shape), apart), (x) => (2 * x) / (count - (correction ?? 1)))];
    },
  },
  _scaled_dot_product_flash_attention_for_cpu: attention,
}), LAYERS);

RULES.std = {
  run: (args, kwargs) => (RULES.var.run(args, kwargs) ?? []).map((variance) => variance && mapped(variance, Math.sqrt)),
  back: (g, args, [out], kwargs, all) => RULES.var.back?.(zipped(g, out, (x, deviation) => x / (2 * deviation)), args, [out], kwargs, all) ?? [],
};

RULES.gelu = {
  elementwise: true,
  run: (args, kwargs) => (kwargs.approximate === "tanh" ? [mapped(args[0], tanhGelu)] : [mapped(args[0], UNARY.gelu[0])]),
  back: (g, [a], _, { approximate }) => [mapped(a, (x, at) => g.data[at] * (approximate === "tanh" ? tanhGeluSlope(x) : UNARY.gelu[1](x, 0)))],
};

/** @param {number} x */
const tanhGelu = (x) => (x / 2) * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));

/** @param {number} x */
function tanhGeluSlope(x) {
  const t = Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3));
  return (1 + t) / 2 + (x / 2) * (1 - t * t) * Math.sqrt(2 / Math.PI) * (1 + 3 * 0.044715 * x * x);
}

// ---- programs

/** The rule of an operation: of its overload, as `max.dim`, or of all. @param {string} [op] @returns {Rule | undefined} */
const ruleOf = (op = "") => (TENSOR_BOUNDS.has(op) ? undefined : (RULES[op] ?? RULES[op.split(".")[0]]));

/** Their bounds are tensors, not numbers. */
const TENSOR_BOUNDS = new Set(["clamp.Tensor", "clamp_min.Tensor", "clamp_max.Tensor"]);

/** Whether it knows an operation, as `add.Tensor`; a division that rounds is none. @param {Op} op */
export function knows({ op, kwargs = {} }) {
  return Boolean(ruleOf(op)) && !kwargs.rounding_mode;
}

/** @param {any} value @param {Map<string, Tensor>} values @returns {any} */
function read(value, values) {
  if (Array.isArray(value)) return value.map((each) => read(each, values));
  if (value?.$) return values.get(value.$.join(" "));
  return value === "inf" || value === "-inf" || value === "nan" ? Number(value.replace("inf", "Infinity")) : value;
}

/** The tensors that an operation reads, in order. @param {Op} node @returns {[number, number][]} */
export function refsOf({ args = [], kwargs = {} }) {
  /** @type {(value: any) => [number, number][]} */
  const found = (value) => (Array.isArray(value) ? value.flatMap(found) : value?.$ ? [value.$] : []);
  return [...args, ...Object.values(kwargs)].flatMap(found);
}

/**
 * @param {Program} program @param {Map<number, Tensor>} sources by node @param {Tensor[]} [seeds] gradients of the outputs
 * @returns {Evaluation}
 */
export function evaluate(program, sources, seeds) {
  /** @type {Map<string, Tensor>} */
  const values = new Map([...sources].map(([at, tensor]) => [`${at} 0`, tensor]));
  const unknown = new Set();
  program.nodes.forEach((node, at) => {
    if (!node.op) return;
    if (!knows(node)) return unknown.add(node.op);
    if (refsOf(node).some((ref) => !values.has(ref.join(" ")))) return;
    const outs = ruleOf(node.op)?.run(read(node.args, values), read(Object.entries(node.kwargs ?? {}), values).reduce(asKeywords, {}));
    if (!outs?.[0]) return unknown.add(node.op);
    outs.forEach((out, output) => out && values.set(`${at} ${output}`, out));
  });
  return { values, unknown: [...unknown], ...backward(program, values, seeds) };
}

/** @param {Record<string, any>} found @param {[string, any]} entry */
const asKeywords = (found, [name, value]) => (value === null ? found : Object.assign(found, { [name]: value }));

/** @param {Program} program @param {Map<string, Tensor>} values @param {Tensor[]} [seeds] */
function backward({ nodes, outputs }, values, seeds) {
  /** @type {Map<string, Tensor>[]} */
  const [gradients, flows, derivatives] = [new Map(), new Map(), new Map()];
  const add = (/** @type {string} */ key, /** @type {Tensor} */ tensor) => gradients.set(key, gradients.has(key) ? plus(/** @type {Tensor} */ (gradients.get(key)), tensor) : tensor);
  outputs.forEach((ref, at) => {
    const value = values.get(ref.join(" "));
    if (value && nodes[ref[0]].grad) add(ref.join(" "), seeds?.[at] ?? made(value.shape, () => 1));
  });
  for (let at = nodes.length - 1; at >= 0; at--) {
    const node = nodes[at];
    const outs = resultsOf(values, at);
    const all = outs.map((_, output) => gradients.get(`${at} ${output}`));
    const g = all[0] ?? (all.some(Boolean) ? made(outs[0].shape) : undefined);
    if (!g || !node.op || !node.grad || node.enabled === false) continue;
    const given = sent(node, g, values, at, all);
    refsOf(node).forEach(([from, output], input) => {
      const flow = given[input];
      if (!flow || !nodes[from].grad) return;
      flows.set(`${at} ${input}`, flow);
      add(`${from} ${output}`, flow);
    });
    if (ruleOf(node.op)?.elementwise) sent(node, made(g.shape, () => 1), values, at).forEach((each, input) => each && derivatives.set(`${at} ${input}`, each));
  }
  return { gradients, flows, derivatives };
}

/** @param {Map<string, Tensor>} values @param {number} at */
function resultsOf(values, at) {
  const found = [];
  for (let value; (value = values.get(`${at} ${found.length}`)); ) found.push(value);
  return found;
}

/** What an operation sends back to each tensor that it read. @param {Op} node @param {Tensor} g @param {Map<string, Tensor>} values @param {number} at @param {(Tensor | undefined)[]} [all] gradients of all results @returns {(Tensor | null)[]} */
function sent(node, g, values, at, all = []) {
  const rule = ruleOf(node.op);
  const args = read(node.args ?? [], values);
  const outs = resultsOf(values, at);
  const given = rule?.back?.(g, args, outs, read(Object.entries(node.kwargs ?? {}), values).reduce(asKeywords, {}), all) ?? [];
  return (node.args ?? []).flatMap((arg, place) => (Array.isArray(arg) ? (arg.some((each) => each?.$) ? (given[place] ?? arg.map(() => null)) : []) : arg?.$ ? [given[place] ?? null] : []));
}
