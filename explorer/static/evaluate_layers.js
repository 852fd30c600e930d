// Rules of ATen operations of networks: norms, losses, and those that pick, sort or sum along a dimension. A rule gives
// null for what it doesn't know.

import { allBut, alongChannels, GRIDS } from "./evaluate_grids.js";
import { asTensor, countOf, dimsOf, dropped, expanded, joined, keptShape, made, mapped, offsets, plus, positive, selected, sliced, spread, stridesOf, summed, summedTo, times, viewed, zipped } from "./tensors.js";

/**
 * @typedef {import("./tensors.js").Tensor} Tensor
 * @typedef {import("./evaluate.js").Rule} Rule
 */

// ---- norms

/** @param {Tensor} a @param {number[]} dims @param {number} eps */
function standardized(a, dims, eps) {
  const { apart, mean, variance, count } = spread(a, dims, 0);
  const inverse = mapped(variance, (v) => 1 / Math.sqrt(v + eps));
  return { unit: times(apart, inverse), mean, inverse, count };
}

/** The gradient through a standardization. @param {Tensor} d @param {ReturnType<typeof standardized>} from @param {number[]} dims */
function throughStandard(d, { unit, inverse, count }, dims) {
  const mean = mapped(summed(d, dims), (x) => x / count);
  const along = mapped(summed(times(d, unit), dims), (x) => x / count);
  return times(zipped(zipped(d, mean, (x, m) => x - m), times(unit, along), (x, y) => x - y), inverse);
}

/** @param {Tensor} a @param {Tensor | null} weight @param {Tensor | null} bias */
function scaledAndMoved(a, weight, bias) {
  const scaled = weight ? times(a, weight) : a;
  return bias ? plus(scaled, bias) : scaled;
}

/** @param {Tensor} a @param {number[]} shape */
const lastDims = (a, shape) => shape.map((_, at) => a.shape.length - shape.length + at);

/** @type {Rule} */
const layerNorm = {
  run: ([a, shape, weight, bias, eps]) => {
    const { unit, mean, inverse } = standardized(a, lastDims(a, shape), eps);
    return [scaledAndMoved(unit, weight, bias), mean, inverse];
  },
  back: (g, [a, shape, weight, bias, eps]) => {
    const dims = lastDims(a, shape);
    const from = standardized(a, dims, eps);
    return [throughStandard(weight ? times(g, weight) : g, from, dims), null, weight && summedTo(times(g, from.unit), weight.shape), bias && summedTo(g, bias.shape)];
  },
};

/** @type {Rule} */
const batchNorm = {
  run: ([a, weight, bias, mean, variance, training, , eps]) => {
    const from = batchUnit(a, mean, variance, training, eps);
    const kept = [from.mean, from.inverse].map((each) => (training ? viewed(each, [-1]) : made([0])));
    return [scaledAndMoved(from.unit, weight && alongChannels(weight, a), bias && alongChannels(bias, a)), ...kept];
  },
  back: (g, [a, weight, bias, mean, variance, training, , eps]) => {
    const from = batchUnit(a, mean, variance, training, eps);
    const d = weight ? times(g, alongChannels(weight, a)) : g;
    const dims = allBut(a, 1);
    const da = training ? throughStandard(d, from, dims) : times(d, from.inverse);
    return [da, weight && viewed(summed(times(g, from.unit), dims), weight.shape), bias && viewed(summed(g, dims), bias.shape), null, null];
  },
};

/** @param {Tensor} a @param {Tensor} mean @param {Tensor} variance @param {boolean} training @param {number} eps */
function batchUnit(a, mean, variance, training, eps) {
  if (training) return standardized(a, allBut(a, 1), eps);
  const inverse = alongChannels(mapped(variance, (v) => 1 / Math.sqrt(v + eps)), a);
  const apart = zipped(a, alongChannels(mean, a), (x, m) => x - m);
  return { unit: times(apart, inverse), mean, inverse, count: 1 };
}

/** @type {Rule} */
const groupNorm = {
  run: ([a, weight, bias, n, , , groups, eps]) => {
    const { unit, mean, inverse } = standardized(viewed(a, [n, groups, -1]), [2], eps);
    return [scaledAndMoved(viewed(unit, a.shape), weight && alongChannels(weight, a), bias && alongChannels(bias, a)), mean, inverse];
  },
  back: (g, [a, weight, bias, n, , , groups, eps]) => {
    const from = standardized(viewed(a, [n, groups, -1]), [2], eps);
    const d = viewed(weight ? times(g, alongChannels(weight, a)) : g, [n, groups, -1]);
    const unit = viewed(from.unit, a.shape);
    const dims = allBut(a, 1);
    return [viewed(throughStandard(d, from, [2]), a.shape), weight && viewed(summed(times(g, unit), dims), weight.shape), bias && viewed(summed(g, dims), bias.shape)];
  },
};

/** @type {Rule} */
const rmsNorm = {
  run: ([a, shape, weight, eps]) => {
    if (eps === null || eps === undefined) return null; // it depends on the data type
    const { unit, inverse } = rmsUnit(a, lastDims(a, shape), eps);
    return [weight ? times(unit, weight) : unit, inverse];
  },
  back: (g, [a, shape, weight, eps]) => {
    const dims = lastDims(a, shape);
    const { unit, inverse, count } = rmsUnit(a, dims, eps);
    const d = weight ? times(g, weight) : g;
    const along = mapped(summed(times(d, unit), dims), (x) => x / count);
    return [times(zipped(d, times(unit, along), (x, y) => x - y), inverse), null, weight && summedTo(times(g, unit), weight.shape)];
  },
};

/** @param {Tensor} a @param {number[]} dims @param {number} eps */
function rmsUnit(a, dims, eps) {
  const count = dims.reduce((all, dim) => all * a.shape[dim], 1);
  const inverse = mapped(summed(times(a, a), dims), (x) => 1 / Math.sqrt(x / count + eps));
  return { unit: times(a, inverse), inverse, count };
}

/** @param {Tensor} a @param {number} order @param {number[]} dims */
function normOf(a, order, dims) {
  const sizes = mapped(a, Math.abs);
  if (!Number.isFinite(order)) return furthest(sizes, dims, order > 0);
  return mapped(summed(mapped(sizes, (x) => (order === 0 ? Number(x !== 0) : x ** order)), dims), (x) => (order === 0 ? x : x ** (1 / order)));
}

/** @param {Tensor} a @param {number[]} dims @param {boolean} largest */
function furthest(a, dims, largest) {
  const result = made(keptShape(a.shape, dims), () => (largest ? -Infinity : Infinity));
  const to = offsets(a.shape, stridesOf(result.shape).map((stride, dim) => (dims.includes(dim) ? 0 : stride)));
  a.data.forEach((x, at) => (result.data[to[at]] = Number.isNaN(x) || Number.isNaN(result.data[to[at]]) ? NaN : largest ? Math.max(x, result.data[to[at]]) : Math.min(x, result.data[to[at]])));
  return result;
}

/** @type {Rule} */
const vectorNorm = {
  run: ([a, order = 2, over, keep = false]) => [dropped(normOf(a, order, dimsOf(a, over)), dimsOf(a, over), keep)],
  back: (g, [a, order = 2, over]) => {
    const dims = dimsOf(a, over);
    const norm = normOf(a, order, dims);
    const along = expanded(viewed(g, norm.shape), a.shape);
    if (Number.isFinite(order)) return [times(along, zipped(a, norm, (x, n) => (n && order ? Math.sign(x) * (Math.abs(x) / n) ** (order - 1) : 0)))];
    const isIt = zipped(a, norm, (x, n) => Number(Math.abs(x) === n));
    return [times(along, times(zipped(a, isIt, (x, is) => Math.sign(x) * is), mapped(expanded(summed(isIt, dims), a.shape), (count) => 1 / count)))];
  },
};

// ---- losses; a reduction is 0: none, 1: mean, 2: sum

/** @param {Tensor} all @param {number} reduction */
function reducedLoss(all, reduction) {
  if (reduction === 0) return all;
  const sum = all.data.reduce((total, x) => total + x, 0);
  return asTensor(reduction === 1 ? sum / all.data.length : sum);
}

/** Of two tensors: the loss, and its derivatives by both. @param {(x: number, y: number, setting: number) => number} f @param {(x: number, y: number, setting: number) => number} dx @param {(x: number, y: number, setting: number) => number} [dy] @returns {Rule} */
function pairLoss(f, dx, dy = (x, y, setting) => -dx(x, y, setting)) {
  return {
    run: ([a, b, reduction = 1, setting = 1]) => [reducedLoss(zipped(a, b, (x, y) => f(x, y, setting)), reduction)],
    back: (g, [a, b, reduction = 1, setting = 1]) => {
      const along = (/** @type {typeof f} */ d) => {
        const all = zipped(a, b, (x, y) => d(x, y, setting));
        return mapped(times(all, g), (x) => (reduction === 1 ? x / all.data.length : x));
      };
      return [summedTo(along(dx), a.shape), summedTo(along(dy), b.shape)];
    },
  };
}

const least = (/** @type {number} */ x) => Math.max(Math.log(x), -100);
const logistic = (/** @type {number} */ x) => 1 / (1 + Math.exp(-x));
/** log(1 + exp(−x)) */
const softLoss = (/** @type {number} */ x) => Math.max(-x, 0) + Math.log1p(Math.exp(-Math.abs(x)));

/** Binary cross entropy; its third argument is a weight of each element. @param {(x: number, y: number, more: number) => number} f @param {(x: number, y: number, more: number) => number} dx @param {(x: number, y: number, more: number) => number} dy @param {boolean} logits whether a weight of the positive ones follows @returns {Rule} */
function binaryLoss(f, dx, dy, logits) {
  const read = (/** @type {any[]} */ args) => {
    const [a, b, weight, ...rest] = args;
    return { a, b, weight, positive: (logits && rest[0]) || asTensor(1), reduction: rest[logits ? 1 : 0] ?? 1 };
  };
  const joinedBy = (/** @type {any[]} */ args, /** @type {typeof f} */ d) => {
    const { a, b, weight, positive: more } = read(args);
    const extra = expanded(more, a.shape);
    const all = made(a.shape, (at) => d(a.data[at], b.data[at], extra.data[at]));
    return weight ? times(all, weight) : all;
  };
  return {
    run: (args) => [reducedLoss(joinedBy(args, f), read(args).reduction)],
    back: (g, args) => {
      const { a, reduction } = read(args);
      const scaled = (/** @type {typeof f} */ d) => mapped(times(joinedBy(args, d), g), (x) => (reduction === 1 ? x / a.data.length : x));
      return [scaled(dx), scaled(dy)];
    },
  };
}

/** @type {Rule} */
const nllLoss = {
  run: ([a, target, weight, reduction, ignored]) => {
    const { terms, all } = nllTerms(a, target, weight, ignored);
    if (reduction === 0) return [{ shape: target.shape, data: Float64Array.from(terms, ({ w, at }) => (w ? -w * a.data[at] : 0)) }, asTensor(0)];
    const sum = terms.reduce((total, { w, at }) => total - (w ? w * a.data[at] : 0), 0);
    return [asTensor(reduction === 1 ? sum / all : sum), asTensor(all)];
  },
  back: (g, [a, target, weight, reduction, ignored]) => {
    const { terms, all } = nllTerms(a, target, weight, ignored);
    const sum = made(a.shape);
    terms.forEach(({ w, at }, n) => w && (sum.data[at] -= (w * g.data[reduction === 0 ? n : 0]) / (reduction === 1 ? all : 1)));
    return [sum];
  },
};

/** Classes are dim 1, or dim 0 of a vector. @param {Tensor} a @param {Tensor} target @param {Tensor | null} weight @param {number} ignored */
function nllTerms(a, target, weight, ignored) {
  const classes = a.shape[Math.min(1, a.shape.length - 1)];
  const inner = countOf(a.shape.slice(2));
  const terms = Array.from(target.data, (label, n) => ({ w: label === ignored ? 0 : weight ? weight.data[label] : 1, at: (Math.floor(n / inner) * classes + label) * inner + (n % inner) }));
  return { terms, all: terms.reduce((sum, { w }) => sum + w, 0) };
}

// ---- along a dimension

/** Each line along a dim: its first element, and the step to the next. @param {number[]} shape @param {number} dim @param {(first: number, step: number, count: number) => void} visit */
function lines(shape, dim, visit) {
  const at = positive(dim, shape.length);
  const count = shape.length ? shape[at] : 1;
  const step = countOf(shape.slice(at + 1));
  const all = countOf(shape);
  for (let outer = 0; outer < all; outer += count * step) for (let inner = 0; inner < step; inner++) visit(outer + inner, step, count);
}

/** Along each line, a function of its numbers that gives others. @param {Tensor} a @param {number} dim @param {(line: number[]) => number[]} f */
function alongLines(a, dim, f) {
  const result = made(a.shape);
  lines(a.shape, dim, (first, step, count) => f(Array.from({ length: count }, (_, n) => a.data[first + n * step])).forEach((x, n) => (result.data[first + n * step] = x)));
  return result;
}

/** @param {number[]} line */
const runningSums = (line) => {
  let sum = 0;
  return line.map((x) => (sum += x));
};

/** Gradients of the products of a line's first one, two, three … numbers. @param {number[]} line @param {number[]} g */
function throughProducts(line, g) {
  return line.map((_, at) => {
    let [product, sum] = [line.slice(0, at).reduce((all, x) => all * x, 1), 0];
    for (let n = at; n < line.length; n++) {
      if (n > at) product *= line[n];
      sum += g[n] * product;
    }
    return sum;
  });
}

/** The elements of a line in order. @param {Tensor} a @param {number} dim @param {boolean} descending @param {number} [kept] how many of each line */
function sorted(a, dim, descending, kept = Infinity) {
  const at = positive(dim, a.shape.length);
  const shape = a.shape.map((size, d) => (d === at ? Math.min(size, kept) : size));
  const [values, indices] = [made(shape), made(shape)];
  /** @type {[number, number, number][]} */
  const places = [];
  lines(shape, dim, (...line) => places.push(line));
  let next = 0;
  lines(a.shape, dim, (first, step, count) => {
    const line = Array.from({ length: count }, (_, n) => n).sort((x, y) => (a.data[first + x * step] - a.data[first + y * step]) * (descending ? -1 : 1) || x - y);
    const [to, by, many] = places[next++];
    line.slice(0, many).forEach((n, place) => {
      values.data[to + place * by] = a.data[first + n * step];
      indices.data[to + place * by] = n;
    });
  });
  return [values, indices];
}

/** Where each element of an index along a dim is in a tensor. @param {Tensor} a @param {number} dim @param {Tensor} index */
function gatheredPlaces(a, dim, index) {
  const at = positive(dim, a.shape.length);
  const strides = stridesOf(a.shape);
  const from = offsets(index.shape, strides.map((stride, d) => (d === at ? 0 : stride)));
  return index.data.map((row, n) => from[n] + row * (strides[at] ?? 1));
}

/** A gradient back to where a tensor's elements were taken. @param {Tensor} g @param {Tensor} a @param {ArrayLike<number>} places */
function putBack(g, a, places) {
  const sum = made(a.shape);
  g.data.forEach((x, at) => (sum.data[places[at]] += x));
  return sum;
}

/** Values and indices of a choice along a dim: gradients go to what was chosen. @param {(args: any[], kwargs: any) => {values: Tensor, indices: Tensor, dim: number, keep?: boolean}} choose @returns {Rule} */
function choice(choose) {
  const kept = (/** @type {Tensor} */ tensor, /** @type {number} */ dim, /** @type {boolean | undefined} */ keep) => dropped(tensor, [positive(dim, tensor.shape.length)], keep ?? true);
  return {
    run: (args, kwargs) => {
      const { values, indices, dim, keep } = choose(args, kwargs);
      return [kept(values, dim, keep), kept(indices, dim, keep)];
    },
    back: (g, args, _, kwargs) => {
      const { indices, dim } = choose(args, kwargs);
      return [putBack(g, args[0], gatheredPlaces(args[0], dim, indices))];
    },
  };
}

/** @param {boolean} largest */
const extremeOf = (largest) => choice(([a, dim, keep = false]) => {
  const [values, indices] = sorted(a, dim, largest, 1);
  return { values, indices, dim, keep };
});

/** Picks elements: `places(a, …)` says which, for a result of that shape. @param {(a: Tensor, ...more: any[]) => {shape: number[], places: ArrayLike<number>} | null} pick @returns {Rule} */
function picks(pick) {
  return {
    run: ([a, ...more]) => {
      const found = pick(a, ...more);
      return found && [made(found.shape, (at) => a.data[found.places[at]])];
    },
    back: (g, [a, ...more]) => [putBack(g, a, pick(a, ...more)?.places ?? [])],
  };
}

/** A tensor of its own places. @param {number[]} shape */
const ownPlaces = (shape) => made(shape, (at) => at);

/** Elements at integer indices of the first dims, or of one dim. @param {Tensor} a @param {(Tensor | null | undefined)[]} indices */
function indexed(a, indices) {
  const given = indices.flatMap((index, dim) => (index ? [{ index, dim }] : []));
  if (given.some(({ index }) => index.bool) || given.some(({ dim }, at) => dim !== given[0].dim + at)) return null;
  const shape = given.reduce((/** @type {number[]} */ all, { index }) => (index.shape.length > all.length || countOf(index.shape) > countOf(all) ? index.shape : all), []);
  const first = given[0].dim;
  const strides = stridesOf(a.shape);
  const rows = given.map(({ index, dim }) => mapped(expanded(index, shape), (row) => positive(row, a.shape[dim]) * strides[dim]));
  if (rows.some(({ data }) => data.length !== countOf(shape))) return null;
  const [before, after] = [a.shape.slice(0, first), a.shape.slice(first + given.length)];
  const [inner, middle] = [countOf(after), countOf(shape)];
  const outer = countOf(a.shape.slice(first));
  const places = made([...before, ...shape, ...after], (at) => {
    const [head, row, tail] = [Math.floor(at / (inner * middle)), Math.floor(at / inner) % middle, at % inner];
    return head * outer + rows.reduce((sum, { data }) => sum + data[row], 0) + tail;
  });
  return { shape: places.shape, places: places.data };
}

/** @type {Rule} */
const embedding = {
  run: ([table, rows]) => [made([...rows.shape, table.shape[1]], (at) => table.data[rows.data[Math.floor(at / table.shape[1])] * table.shape[1] + (at % table.shape[1])])],
  back: (g, [table, rows, padding = -1, byCount = false]) => {
    const width = table.shape[1];
    const counts = rows.data.reduce((/** @type {Map<number, number>} */ all, /** @type {number} */ row) => all.set(row, (all.get(row) ?? 0) + 1), new Map());
    const sum = made(table.shape);
    g.data.forEach((x, at) => {
      const row = rows.data[Math.floor(at / width)];
      if (row !== padding) sum.data[row * width + (at % width)] += byCount ? x / counts.get(row) : x;
    });
    return [sum];
  },
};

/** @param {(a: Tensor, ...more: any[]) => Tensor[]} parted @param {(parts: Tensor[], ...more: any[]) => Tensor} whole @returns {Rule} */
const parts = (parted, whole) => ({
  run: ([a, ...more]) => parted(a, ...more),
  back: (_, [, ...more], outs, __, all) => [whole(outs.map((out, at) => all[at] ?? made(out.shape)), ...more)],
});

/** @type {Record<string, Rule>} */
export const LAYERS = {
  ...GRIDS,
  native_layer_norm: layerNorm,
  native_batch_norm: batchNorm,
  native_group_norm: groupNorm,
  _fused_rms_norm: rmsNorm,
  linalg_vector_norm: vectorNorm,
  mse_loss: pairLoss((x, y) => (x - y) ** 2, (x, y) => 2 * (x - y)),
  smooth_l1_loss: pairLoss(
    (x, y, beta) => (Math.abs(x - y) < beta ? (x - y) ** 2 / (2 * beta) : Math.abs(x - y) - beta / 2),
    (x, y, beta) => (Math.abs(x - y) < beta ? (x - y) / beta : Math.sign(x - y)),
  ),
  huber_loss: pairLoss(
    (x, y, delta) => (Math.abs(x - y) <= delta ? (x - y) ** 2 / 2 : delta * (Math.abs(x - y) - delta / 2)),
    (x, y, delta) => (Math.abs(x - y) <= delta ? x - y : delta * Math.sign(x - y)),
  ),
  binary_cross_entropy: binaryLoss((x, y) => -(y * least(x) + (1 - y) * least(1 - x)), (x, y) => (x - y) / Math.max((1 - x) * x, 1e-12), (x) => least(1 - x) - least(x), false),
  binary_cross_entropy_with_logits: binaryLoss(
    (x, y, more) => (1 - y) * x + (1 + (more - 1) * y) * softLoss(x),
    (x, y, more) => 1 - y - (1 + (more - 1) * y) * logistic(-x),
    (x, _, more) => (more - 1) * softLoss(x) - x,
    true,
  ),
  nll_loss_forward: nllLoss,
  nll_loss2d_forward: nllLoss,
  embedding,
  cumsum: {
    run: ([a, dim]) => [alongLines(a, dim, runningSums)],
    back: (g, [, dim]) => [alongLines(g, dim, (line) => runningSums(line.reverse()).reverse())],
  },
  cumprod: {
    run: ([a, dim]) => [alongLines(a, dim, (line) => line.map((_, at) => line.slice(0, at + 1).reduce((all, x) => all * x, 1)))],
    back: (g, [a, dim]) => {
      /** @type {number[][]} */
      const gradients = [];
      alongLines(g, dim, (line) => (gradients.push(line), line));
      return [alongLines(a, dim, (line) => throughProducts(line, gradients.shift() ?? []))];
    },
  },
  prod: {
    run: ([a, dim, keep = false]) => {
      const line = typeof dim === "number" ? a : viewed(a, [-1]);
      const at = positive(typeof dim === "number" ? dim : 0, line.shape.length);
      return [dropped(sliced(alongLines(line, at, (numbers) => [numbers.reduce((all, x) => all * x, 1), ...numbers.slice(1)]), at, 0, 1), [at], keep)];
    },
    back: (g, [a, dim]) => {
      const line = typeof dim === "number" ? a : viewed(a, [-1]);
      const at = positive(typeof dim === "number" ? dim : 0, line.shape.length);
      const others = alongLines(line, at, (numbers) => numbers.map((_, n) => numbers.reduce((all, x, m) => (m === n ? all : all * x), 1)));
      return [viewed(times(others, viewed(g, keptShape(line.shape, [at]))), a.shape)];
    },
  },
  gather: picks((a, dim, index) => ({ shape: index.shape, places: gatheredPlaces(a, dim, index) })),
  index_select: picks((a, dim, index) => {
    const places = joined(Array.from(index.data, (row) => viewed(selected(ownPlaces(a.shape), dim, row), keptShape(a.shape, [positive(dim, a.shape.length)]))), dim);
    return { shape: places.shape, places: places.data };
  }),
  index: picks(indexed),
  flip: picks((a, dims) => {
    const places = dims.reduce((/** @type {Tensor} */ all, /** @type {number} */ dim) => alongLines(all, dim, (line) => line.reverse()), ownPlaces(a.shape));
    return { shape: a.shape, places: places.data };
  }),
  roll: picks((a, shifts, dims) => {
    const flat = dims?.length ? null : viewed(ownPlaces(a.shape), [-1]);
    const turned = (/** @type {number} */ shift) => (/** @type {number[]} */ line) => line.map((_, n) => line[(((n - shift) % line.length) + line.length) % line.length]);
    const places = flat ? alongLines(flat, 0, turned(shifts[0])) : dims.reduce((/** @type {Tensor} */ all, /** @type {number} */ dim, /** @type {number} */ at) => alongLines(all, dim, turned(shifts[at])), ownPlaces(a.shape));
    return { shape: a.shape, places: places.data };
  }),
  repeat: picks((a, counts) => {
    const own = viewed(ownPlaces(a.shape), [...new Array(counts.length - a.shape.length).fill(1), ...a.shape]);
    const places = counts.reduce((/** @type {Tensor} */ all, /** @type {number} */ count, /** @type {number} */ dim) => joined(new Array(count).fill(all), dim), own);
    return { shape: places.shape, places: places.data };
  }),
  diagonal: picks((a, offset = 0, first = 0, second = 1) => {
    if (a.shape.length !== 2 || first !== 0 || second !== 1) return null;
    const [down, right] = [Math.max(-offset, 0), Math.max(offset, 0)];
    const count = Math.max(0, Math.min(a.shape[0] - down, a.shape[1] - right));
    return { shape: [count], places: Array.from({ length: count }, (_, n) => (down + n) * a.shape[1] + right + n) };
  }),
  constant_pad_nd: {
    run: ([a, pad, value = 0]) => [padded(a, pad, value)],
    back: (g, [a, pad]) => {
      const inside = pad.every((/** @type {number} */ by) => by >= 0);
      if (!inside) return [null];
      return [a.shape.reduce((/** @type {Tensor} */ all, /** @type {number} */ size, /** @type {number} */ dim) => {
        const before = pad[2 * (a.shape.length - 1 - dim)] ?? 0;
        return sliced(all, dim, before, before + size);
      }, g)];
    },
  },
  topk: choice(([a, k, dim = -1, largest = true]) => {
    const [values, indices] = sorted(a, dim, largest, k);
    return { values, indices, dim };
  }),
  sort: choice(([a, dim = -1, descending = false], kwargs) => {
    const along = kwargs.dim ?? dim;
    const [values, indices] = sorted(a, along, kwargs.descending ?? descending);
    return { values, indices, dim: along };
  }),
  "max.dim": extremeOf(true),
  "min.dim": extremeOf(false),
  unbind: parts(
    (a, dim = 0) => Array.from({ length: a.shape[positive(dim, a.shape.length)] }, (_, at) => selected(a, dim, at)),
    (all, dim = 0) => joined(all.map((part) => viewed(part, [...part.shape.slice(0, positive(dim, part.shape.length + 1)), 1, ...part.shape.slice(positive(dim, part.shape.length + 1))])), positive(dim, all[0].shape.length + 1)),
  ),
  split_with_sizes: parts(
    (a, sizes, dim = 0) => {
      let start = 0;
      return sizes.map((/** @type {number} */ size) => sliced(a, dim, start, (start += size)));
    },
    (all, _, dim = 0) => joined(all, dim),
  ),
  argmax: { run: ([a, dim, keep = false]) => [chosen(a, dim, true, keep)] },
  argmin: { run: ([a, dim, keep = false]) => [chosen(a, dim, false, keep)] },
};

/** @param {Tensor} a @param {number | null | undefined} dim @param {boolean} largest @param {boolean} keep */
function chosen(a, dim, largest, keep) {
  if (typeof dim !== "number") return viewed(sorted(viewed(a, [-1]), 0, largest, 1)[1], []);
  return dropped(sorted(a, dim, largest, 1)[1], [positive(dim, a.shape.length)], keep);
}

/** @param {Tensor} a @param {number[]} pad of the last dim, then of the one before, each at its start and its end @param {number} value */
function padded(a, pad, value) {
  return a.shape.reduceRight((/** @type {Tensor} */ all, _, dim) => {
    const at = 2 * (a.shape.length - 1 - dim);
    const [before, after] = [pad[at] ?? 0, pad[at + 1] ?? 0];
    const rim = (/** @type {number} */ size) => made(all.shape.map((side, d) => (d === dim ? size : side)), () => value);
    const inside = sliced(all, dim, Math.max(-before, 0), all.shape[dim] - Math.max(-after, 0));
    return joined([...(before > 0 ? [rim(before)] : []), inside, ...(after > 0 ? [rim(after)] : [])], dim);
  }, a);
}
