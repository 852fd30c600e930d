// Tensors in JavaScript: numbers in float64, row by row, and what PyTorch does with them: broadcasting, views, products.

/** `bool`: of truth values. @typedef {{shape: number[], data: Float64Array, bool?: boolean}} Tensor */

/** @param {number[]} shape */
export const countOf = (shape) => shape.reduce((all, size) => all * size, 1);

/** @param {number[]} shape @param {(at: number) => number} [fill] @returns {Tensor} */
export function made(shape, fill) {
  const data = new Float64Array(countOf(shape));
  if (fill) for (let at = 0; at < data.length; at++) data[at] = fill(at);
  return { shape, data };
}

/** @param {number | Tensor} value @returns {Tensor} */
export const asTensor = (value) => (typeof value === "object" ? value : { shape: [], data: Float64Array.of(Number(value)) });

/** @param {Tensor} a @param {(x: number, at: number) => number} f */
export const mapped = ({ shape, data }, f) => made(shape, (at) => f(data[at], at));

/** @param {number[]} a @param {number[]} b */
export function commonShape(a, b) {
  const rank = Math.max(a.length, b.length);
  const size = (/** @type {number[]} */ shape, /** @type {number} */ at) => shape[at - rank + shape.length] ?? 1;
  return Array.from({ length: rank }, (_, at) => (size(a, at) === 1 ? size(b, at) : size(a, at)));
}

/** @param {number[]} shape */
export function stridesOf(shape) {
  const strides = new Array(shape.length).fill(1);
  for (let dim = shape.length - 2; dim >= 0; dim--) strides[dim] = strides[dim + 1] * shape[dim + 1];
  return strides;
}

/** For each element of a shape, an offset: the sum of its indices times strides. @param {number[]} shape @param {number[]} strides */
export function offsets(shape, strides) {
  const found = new Int32Array(countOf(shape));
  const index = new Array(shape.length).fill(0);
  let offset = 0;
  for (let at = 0; at < found.length; at++) {
    found[at] = offset;
    for (let dim = shape.length - 1; dim >= 0; dim--) {
      offset += strides[dim];
      if (++index[dim] < shape[dim]) break;
      offset -= strides[dim] * shape[dim];
      index[dim] = 0;
    }
  }
  return found;
}

/** Where each element of a larger shape is in a tensor that is broadcast to it. @param {number[]} from @param {number[]} to */
function broadcastOffsets(from, to) {
  const own = stridesOf(from);
  const lead = to.length - from.length;
  return offsets(to, to.map((_, dim) => (dim < lead || from[dim - lead] === 1 ? 0 : own[dim - lead])));
}

/** @param {number[]} a @param {number[]} b */
const sameShape = (a, b) => a.length === b.length && a.every((size, dim) => size === b[dim]);

/** @param {Tensor} a @param {number[]} shape @returns {Tensor} */
export function expanded(a, shape) {
  if (sameShape(a.shape, shape)) return a;
  const from = broadcastOffsets(a.shape, shape);
  return made(shape, (at) => a.data[from[at]]);
}

/** The sum over what was broadcast. @param {Tensor} g @param {number[]} shape @returns {Tensor} */
export function summedTo(g, shape) {
  if (sameShape(g.shape, shape)) return g;
  const to = broadcastOffsets(shape, g.shape);
  const sum = made(shape);
  for (let at = 0; at < g.data.length; at++) sum.data[to[at]] += g.data[at];
  return sum;
}

/** @param {Tensor} a @param {Tensor} b @param {(x: number, y: number) => number} f */
export function zipped(a, b, f) {
  const shape = commonShape(a.shape, b.shape);
  const [x, y] = [expanded(a, shape), expanded(b, shape)];
  return made(shape, (at) => f(x.data[at], y.data[at]));
}

/** @param {Tensor} a @param {Tensor} b */
export const plus = (a, b) => zipped(a, b, (x, y) => x + y);
/** @param {Tensor} a @param {Tensor} b */
export const times = (a, b) => zipped(a, b, (x, y) => x * y);

/** @param {Tensor} a @param {number[]} order */
export function permuted(a, order) {
  const own = stridesOf(a.shape);
  const from = offsets(order.map((dim) => a.shape[dim]), order.map((dim) => own[dim]));
  return made(order.map((dim) => a.shape[dim]), (at) => a.data[from[at]]);
}

/** @param {number} dim @param {number} rank */
export const positive = (dim, rank) => (dim < 0 ? dim + Math.max(rank, 1) : dim);

/** @param {Tensor} a @param {number} [i] @param {number} [j] */
export function swapped(a, i = -2, j = -1) {
  const order = a.shape.map((_, dim) => dim);
  const [x, y] = [positive(i, order.length), positive(j, order.length)];
  [order[x], order[y]] = [order[y], order[x]];
  return permuted(a, order);
}

/** Matrix products, batch by batch; leading dims are broadcast. @param {Tensor} a @param {Tensor} b @returns {Tensor} */
export function matmul(a, b) {
  const batch = commonShape(a.shape.slice(0, -2), b.shape.slice(0, -2));
  const [rows, inner] = a.shape.slice(-2);
  const columns = b.shape[b.shape.length - 1];
  const [left, right] = [expanded(a, [...batch, rows, inner]), expanded(b, [...batch, inner, columns])];
  const result = made([...batch, rows, columns]);
  for (let n = 0; n < countOf(batch); n++) {
    for (let i = 0; i < rows; i++) {
      for (let k = 0; k < inner; k++) {
        const x = left.data[(n * rows + i) * inner + k];
        for (let j = 0; j < columns; j++) result.data[(n * rows + i) * columns + j] += x * right.data[(n * inner + k) * columns + j];
      }
    }
  }
  return result;
}

/** @param {Tensor} a @param {number[]} shape one size may be -1 @returns {Tensor} */
export function viewed(a, shape) {
  const known = shape.reduce((all, size) => (size < 0 ? all : all * size), 1);
  return { shape: shape.map((size) => (size < 0 ? a.data.length / known : size)), data: a.data };
}

/** The dims of a reduction, all where none are given. @param {Tensor} a @param {number | number[] | null | undefined} dims */
export function dimsOf({ shape }, dims) {
  const list = typeof dims === "number" ? [dims] : (dims ?? []);
  return list.length ? list.map((dim) => positive(dim, shape.length)) : shape.map((_, dim) => dim);
}

/** @param {number[]} shape @param {number[]} dims */
export const keptShape = (shape, dims) => shape.map((size, dim) => (dims.includes(dim) ? 1 : size));

/** @param {Tensor} a @param {number[]} dims with the reduced dims as 1 */
export const summed = (a, dims) => summedTo(a, keptShape(a.shape, dims));

/** @param {Tensor} a @param {number[]} dims @param {boolean} keep */
export const dropped = (a, dims, keep) => (keep ? a : viewed(a, a.shape.filter((_, dim) => !dims.includes(dim))));

/** @param {Tensor} a @param {number[]} dims @param {(x: number, y: number) => number} f @param {number} start */
export function reduced(a, dims, f, start) {
  const shape = keptShape(a.shape, dims);
  const to = broadcastOffsets(shape, a.shape);
  const result = made(shape, () => start);
  for (let at = 0; at < a.data.length; at++) result.data[to[at]] = f(result.data[to[at]], a.data[at]);
  return result;
}

/** @param {number} x @param {number} y */
export const larger = (x, y) => (Number.isNaN(x) || Number.isNaN(y) ? NaN : Math.max(x, y));
/** @param {number} x @param {number} y */
export const smaller = (x, y) => (Number.isNaN(x) || Number.isNaN(y) ? NaN : Math.min(x, y));

// ---- views and reductions

/** @param {Tensor} a @param {number} dim @param {number} start @param {number} end @param {number} [step] */
export function sliced(a, dim, start, end, step = 1) {
  const at = positive(dim, a.shape.length);
  const clip = (/** @type {number} */ place) => Math.min(a.shape[at], Math.max(0, place < 0 ? place + a.shape[at] : place));
  const [first, last] = [clip(start), clip(end)];
  const own = stridesOf(a.shape);
  const shape = a.shape.map((size, d) => (d === at ? Math.max(0, Math.ceil((last - first) / step)) : size));
  const from = offsets(shape, own.map((stride, d) => (d === at ? stride * step : stride)));
  return made(shape, (i) => a.data[from[i] + first * own[at]]);
}

/** @param {Tensor} a @param {number} dim @param {number} index */
export function selected(a, dim, index) {
  const at = positive(dim, a.shape.length);
  const one = sliced(a, at, positive(index, a.shape[at]), positive(index, a.shape[at]) + 1);
  return viewed(one, one.shape.filter((_, d) => d !== at));
}

/** @param {Tensor[]} parts @param {number} dim */
export function joined(parts, dim) {
  const at = positive(dim, parts[0].shape.length);
  const sizes = parts.map(({ shape }) => shape[at]);
  const shape = parts[0].shape.map((size, d) => (d === at ? sizes.reduce((a, b) => a + b, 0) : size));
  const result = made(shape);
  const inner = countOf(shape.slice(at + 1));
  let start = 0;
  parts.forEach((part, p) => {
    const run = sizes[p] * inner;
    for (let n = 0; n * run < part.data.length; n++) result.data.set(part.data.subarray(n * run, (n + 1) * run), n * shape[at] * inner + start * inner);
    start += sizes[p];
  });
  return result;
}

/** @param {Tensor} a @param {number} dim */
export function unsqueezed(a, dim) {
  const at = dim < 0 ? dim + a.shape.length + 1 : dim;
  return viewed(a, [...a.shape.slice(0, at), 1, ...a.shape.slice(at)]);
}

/** @param {Tensor} a @param {number | number[]} [dims] */
export function squeezed(a, dims) {
  const list = dims === undefined ? a.shape.map((_, d) => d) : dimsOf(a, dims);
  return viewed(a, a.shape.filter((size, d) => size !== 1 || !list.includes(d)));
}

/** @param {Tensor} a @param {number[]} shape */
export const expandedTo = (a, shape) => expanded(a, shape.map((size, d) => (size < 0 ? a.shape[d - shape.length + a.shape.length] : size)));

/** @param {Tensor} a @param {number} dim */
export function softmax(a, dim) {
  const dims = dimsOf(a, dim);
  const most = reduced(a, dims, larger, -Infinity);
  const powers = zipped(a, most, (x, m) => Math.exp(x - m));
  return zipped(powers, summed(powers, dims), (x, all) => x / all);
}

/** @param {Tensor} a @param {number[]} dims */
export function logSumExp(a, dims) {
  const most = mapped(reduced(a, dims, larger, -Infinity), (m) => (Number.isFinite(m) ? m : 0));
  return zipped(summed(zipped(a, most, (x, m) => Math.exp(x - m)), dims), most, (all, m) => Math.log(all) + m);
}

/** @param {Tensor} a @param {number[]} dims @param {number} correction */
export function spread(a, dims, correction) {
  const count = dims.reduce((all, dim) => all * a.shape[dim], 1);
  const mean = mapped(summed(a, dims), (x) => x / count);
  const apart = zipped(a, mean, (x, m) => x - m);
  return { apart, mean, count, variance: mapped(summed(times(apart, apart), dims), (x) => x / (count - correction)) };
}

/** A tensor's norm, range and counts. @param {Tensor} tensor */
export function measured({ data }) {
  let [squares, low, high, zeros, nans, infinite] = [0, Infinity, -Infinity, 0, 0, 0];
  for (const x of data) {
    if (Number.isNaN(x)) nans++;
    else if (!Number.isFinite(x)) infinite++;
    if (x === 0) zeros++;
    squares += x * x;
    low = Math.min(low, x);
    high = Math.max(high, x);
  }
  return { norm: Math.sqrt(squares), low, high, zeros, nans, infinite };
}
