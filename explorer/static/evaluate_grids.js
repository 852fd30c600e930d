// Rules of ATen's convolutions and pools: a large and a small grid, and a window of the large one for each place of the
// small one.

import { countOf, made, mapped, plus, stridesOf, summed, viewed } from "./tensors.js";

/**
 * @typedef {import("./tensors.js").Tensor} Tensor
 * @typedef {import("./evaluate.js").Rule} Rule
 */

/** A setting for each dim. @param {number[] | number | undefined} given @param {number} rank @param {number} other */
function each(given, rank, other) {
  const list = given === undefined || (Array.isArray(given) && !given.length) ? [other] : [given].flat();
  return Array.from({ length: rank }, (_, dim) => list[dim] ?? list[0]);
}

/**
 * Visit each place of the small grid with each place in its window that is inside of the large one.
 * @param {number[]} large @param {number[]} small @param {{kernel: number[], stride: number[], padding: number[], dilation: number[]}} settings
 * @param {(inLarge: number, inSmall: number, inKernel: number) => void} visit
 */
function windows(large, small, { kernel, stride, padding, dilation }, visit) {
  const strides = stridesOf(large);
  const places = grid(small);
  const steps = grid(kernel);
  for (let at = 0; at < places.length; at++) {
    for (let step = 0; step < steps.length; step++) {
      let offset = 0;
      for (let dim = 0; dim < large.length; dim++) {
        const place = places[at][dim] * stride[dim] - padding[dim] + steps[step][dim] * dilation[dim];
        if (place < 0 || place >= large[dim]) {
          offset = -1;
          break;
        }
        offset += place * strides[dim];
      }
      if (offset >= 0) visit(offset, at, step);
    }
  }
}

/** The indices of all places of a shape. @param {number[]} shape @returns {number[][]} */
function grid(shape) {
  return Array.from({ length: countOf(shape) }, (_, at) => {
    const index = new Array(shape.length);
    for (let dim = shape.length - 1; dim >= 0; dim--) {
      index[dim] = at % shape[dim];
      at = Math.floor(at / shape[dim]);
    }
    return index;
  });
}

/** How the arguments of a convolution lie: its weight has the channels of the small grid, then those of the large one. @param {any[]} args */
function convolution([a, weight, , stride, padding, dilation, transposed, extra, groups]) {
  const rank = weight.shape.length - 2;
  const settings = { kernel: weight.shape.slice(2), stride: each(stride, rank, 1), padding: each(padding, rank, 0), dilation: each(dilation, rank, 1) };
  const reach = settings.kernel.map((/** @type {number} */ size, /** @type {number} */ dim) => settings.dilation[dim] * (size - 1) + 1);
  const grown = each(extra, rank, 0);
  const out = a.shape.slice(2).map((/** @type {number} */ size, /** @type {number} */ dim) => (transposed ? (size - 1) * settings.stride[dim] - 2 * settings.padding[dim] + reach[dim] + grown[dim] : Math.floor((size + 2 * settings.padding[dim] - reach[dim]) / settings.stride[dim]) + 1));
  const channels = transposed ? weight.shape[1] * groups : weight.shape[0];
  const [large, small] = transposed ? [out, a.shape.slice(2)] : [a.shape.slice(2), out];
  /** @type {[number, number, number][]} */
  const pairs = [];
  windows(large, small, settings, (...pair) => pairs.push(pair));
  return { shape: [a.shape[0], channels, ...out], large, small, wide: weight.shape[1], groups, pairs };
}

/** Visit each product of a convolution: indices into the tensor on the large grid, into that on the small one, and into the weight. @param {ReturnType<typeof convolution>} plan @param {any[]} args @param {(inLarge: number, inSmall: number, inWeight: number) => void} visit */
function products({ large, small, wide, groups, pairs }, [a, weight], visit) {
  const [big, little, taps] = [countOf(large), countOf(small), countOf(weight.shape.slice(2))];
  const smallChannels = weight.shape[0];
  const perGroup = smallChannels / groups;
  for (let n = 0; n < a.shape[0]; n++) {
    for (let channel = 0; channel < smallChannels; channel++) {
      const group = Math.floor(channel / perGroup);
      for (let other = 0; other < wide; other++) {
        const first = (n * wide * groups + group * wide + other) * big;
        const second = (n * smallChannels + channel) * little;
        const third = (channel * wide + other) * taps;
        for (const [inLarge, inSmall, inKernel] of pairs) visit(first + inLarge, second + inSmall, third + inKernel);
      }
    }
  }
}

/** @type {Rule} */
const convolutionRule = {
  run: (args) => {
    const [a, weight, bias, , , , transposed] = args;
    const plan = convolution(args);
    const out = made(plan.shape);
    const [x, w, y] = [a.data, weight.data, out.data];
    products(plan, args, transposed ? (large, small, tap) => (y[large] += x[small] * w[tap]) : (large, small, tap) => (y[small] += x[large] * w[tap]));
    return [bias ? plus(out, alongChannels(bias, out)) : out];
  },
  back: (g, args) => {
    const [a, weight, bias, , , , transposed] = args;
    const [da, dw] = [made(a.shape), made(weight.shape)];
    const [x, w, y] = [a.data, weight.data, g.data];
    products(convolution(args), args, (large, small, tap) => {
      const [inInput, inOutput] = transposed ? [small, large] : [large, small];
      da.data[inInput] += y[inOutput] * w[tap];
      dw.data[tap] += y[inOutput] * x[inInput];
    });
    return [da, dw, bias ? viewed(summed(g, allBut(g, 1)), bias.shape) : null];
  },
};

/** A vector as a tensor that is broadcast along dim 1. @param {Tensor} vector @param {Tensor} like */
export const alongChannels = (vector, like) => viewed(vector, like.shape.map((_, dim) => (dim === 1 ? -1 : 1)));

/** @param {Tensor} a @param {number} kept */
export const allBut = ({ shape }, kept) => shape.map((_, dim) => dim).filter((dim) => dim !== kept);

/** For each place of a pool's result, the elements of its window. @param {Tensor} a @param {number} rank @param {any[]} settings kernel, stride, padding, dilation and ceil_mode */
function pooled(a, rank, [kernel, stride, padding, dilation, ceil]) {
  const size = each(kernel, rank, 1);
  const settings = { kernel: size, stride: stride?.length ? each(stride, rank, 1) : size, padding: each(padding, rank, 0), dilation: each(dilation, rank, 1) };
  const large = a.shape.slice(-rank);
  const small = large.map((side, dim) => {
    const reach = settings.dilation[dim] * (size[dim] - 1) + 1;
    const steps = (side + 2 * settings.padding[dim] - reach) / settings.stride[dim];
    const count = (ceil ? Math.ceil(steps) : Math.floor(steps)) + 1;
    return ceil && (count - 1) * settings.stride[dim] >= side + settings.padding[dim] ? count - 1 : count;
  });
  /** @type {number[][]} */
  const members = Array.from({ length: countOf(small) }, () => []);
  windows(large, small, settings, (inLarge, inSmall) => members[inSmall].push(inLarge));
  return { shape: [...a.shape.slice(0, -rank), ...small], members, big: countOf(large), settings, large, small };
}

/** The largest of each window, and where it is. @param {number} rank @returns {Rule} */
const maxPool = (rank) => ({
  run: ([a, ...settings]) => {
    const { shape, members, big } = pooled(a, rank, settings);
    const indices = made(shape, (at) => {
      const first = Math.floor(at / members.length) * big;
      return members[at % members.length].reduce((best, place) => (a.data[first + place] > a.data[first + best] || Number.isNaN(a.data[first + place]) ? place : best));
    });
    return [mapped(indices, (place, at) => a.data[Math.floor(at / members.length) * big + place]), indices];
  },
  back: (g, [a], [out, indices]) => {
    const sum = made(a.shape);
    const [little, big] = [countOf(out.shape.slice(-rank)), countOf(a.shape.slice(-rank))];
    g.data.forEach((x, at) => (sum.data[Math.floor(at / little) * big + indices.data[at]] += x));
    return [sum];
  },
});

/** @param {number} rank @returns {Rule} */
const averagePool = (rank) => ({
  run: ([a, kernel, stride, padding, ceil, padded = true, divisor]) => averaged(a, averagedWindows(a, rank, [kernel, stride, padding, 1, ceil], padded, divisor)),
  back: (g, [a, kernel, stride, padding, ceil, padded = true, divisor]) => [spreadOut(g, a, averagedWindows(a, rank, [kernel, stride, padding, 1, ceil], padded, divisor))],
});

/** @param {Tensor} a @param {number} rank @param {any[]} settings @param {boolean} padded @param {number | null | undefined} divisor */
function averagedWindows(a, rank, settings, padded, divisor) {
  const pool = pooled(a, rank, settings);
  const { kernel, stride, padding } = pool.settings;
  const counts = grid(pool.small).map((place) => place.reduce((all, index, dim) => {
    const start = index * stride[dim] - padding[dim];
    return all * (Math.min(start + kernel[dim], pool.large[dim] + padding[dim]) - start);
  }, 1));
  return { ...pool, counts: pool.members.map((members, at) => divisor || (padded ? counts[at] : members.length)) };
}

/** @param {number} rank @returns {Rule} */
const adaptivePool = (rank) => ({
  run: ([a, size]) => averaged(a, adaptiveWindows(a, each(size, rank, 1))),
  back: (g, [a, size]) => [spreadOut(g, a, adaptiveWindows(a, each(size, rank, 1)))],
});

/** @param {Tensor} a @param {number[]} small */
function adaptiveWindows(a, small) {
  const large = a.shape.slice(-small.length);
  const strides = stridesOf(large);
  const members = grid(small).map((place) =>
    place.reduce((all, index, dim) => {
      const [first, last] = [Math.floor((index * large[dim]) / small[dim]), Math.ceil(((index + 1) * large[dim]) / small[dim])];
      return all.flatMap((offset) => Array.from({ length: last - first }, (_, step) => offset + (first + step) * strides[dim]));
    }, [0]),
  );
  return { shape: [...a.shape.slice(0, -small.length), ...small], members, big: countOf(large), counts: members.map(({ length }) => length) };
}

/** @param {Tensor} a @param {{shape: number[], members: number[][], big: number, counts: number[]}} pool */
function averaged(a, { shape, members, big, counts }) {
  return [made(shape, (at) => {
    const first = Math.floor(at / members.length) * big;
    return members[at % members.length].reduce((sum, place) => sum + a.data[first + place], 0) / counts[at % members.length];
  })];
}

/** @param {Tensor} g @param {Tensor} a @param {{members: number[][], big: number, counts: number[]}} pool */
function spreadOut(g, a, { members, big, counts }) {
  const sum = made(a.shape);
  g.data.forEach((x, at) => {
    for (const place of members[at % members.length]) sum.data[Math.floor(at / members.length) * big + place] += x / counts[at % members.length];
  });
  return sum;
}

/** @type {Record<string, Rule>} */
export const GRIDS = {
  convolution: convolutionRule,
  max_pool2d_with_indices: maxPool(2),
  max_pool3d_with_indices: maxPool(3),
  avg_pool1d: averagePool(1),
  avg_pool2d: averagePool(2),
  avg_pool3d: averagePool(3),
  _adaptive_avg_pool2d: adaptivePool(2),
  _adaptive_avg_pool3d: adaptivePool(3),
};
