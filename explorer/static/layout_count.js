// Counting and grouping for the layered layout.

/**
 * Indices grouped by key: those with key k are `list[start[k]]` to `list[start[k + 1] - 1]`.
 * @typedef {{start: Int32Array, list: Int32Array}} Buckets
 */

/** @param {number} keys @param {Int32Array} keyOf @returns {Buckets} */
export function buckets(keys, keyOf) {
  const start = new Int32Array(keys + 1);
  for (const key of keyOf) start[key + 1]++;
  for (let k = 0; k < keys; k++) start[k + 1] += start[k];
  const next = start.slice();
  const list = new Int32Array(keyOf.length);
  keyOf.forEach((key, i) => (list[next[key]++] = i));
  return { start, list };
}

/**
 * Crossings of straight lines between two layers: line i runs from `tops[i]` to `bottoms[i]`. Lines that share an end
 * don't cross there.
 * @param {ArrayLike<number>} tops @param {ArrayLike<number>} bottoms
 */
export function countCrossings(tops, bottoms) {
  const order = Array.from({ length: tops.length }, (_, i) => i);
  order.sort((a, b) => tops[a] - tops[b] || bottoms[a] - bottoms[b]);
  return inversions(Float64Array.from(order, (i) => bottoms[i]));
}

/** Pairs out of order, by merge sort. @param {Float64Array<ArrayBuffer>} values */
function inversions(values) {
  let source = values;
  let target = new Float64Array(values.length);
  let count = 0;
  for (let width = 1; width < values.length; width *= 2) {
    for (let low = 0; low < values.length; low += 2 * width) {
      const middle = Math.min(low + width, values.length);
      const high = Math.min(low + 2 * width, values.length);
      for (let k = low, i = low, j = middle; k < high; k++) {
        if (j >= high || (i < middle && source[i] <= source[j])) target[k] = source[i++];
        else (target[k] = source[j++]), (count += middle - i);
      }
    }
    [source, target] = [target, source];
  }
  return count;
}
