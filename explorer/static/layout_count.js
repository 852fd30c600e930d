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

const FEW = 24;

/**
 * Crossings of straight lines between two layers: line i runs from `tops[i]` to `bottoms[i]` and stands for `loads[i]`
 * lines (default: one). Lines that share an end don't cross there.
 * @param {ArrayLike<number>} tops @param {ArrayLike<number>} bottoms @param {ArrayLike<number>} [loads]
 */
export function countCrossings(tops, bottoms, loads) {
  return tops.length <= FEW ? countPairs(tops, bottoms, loads) : countByTree(tops, bottoms, loads);
}

/** @param {ArrayLike<number>} tops @param {ArrayLike<number>} bottoms @param {ArrayLike<number>} [loads] */
function countPairs(tops, bottoms, loads) {
  let crossings = 0;
  for (let i = 1; i < tops.length; i++) {
    for (let j = 0; j < i; j++) {
      if ((tops[i] - tops[j]) * (bottoms[i] - bottoms[j]) < 0) crossings += loads ? loads[i] * loads[j] : 1;
    }
  }
  return crossings;
}

/**
 * After Barth, Jünger and Mutzel (2002): a Fenwick tree over the places below.
 * @param {ArrayLike<number>} tops @param {ArrayLike<number>} bottoms @param {ArrayLike<number>} [loads]
 */
function countByTree(tops, bottoms, loads) {
  const lines = Array.from({ length: tops.length }, (_, i) => i);
  const rank = new Int32Array(tops.length);
  lines.sort((a, b) => bottoms[a] - bottoms[b]);
  lines.forEach((line, i) => {
    const before = lines[i - 1];
    rank[line] = i && bottoms[before] === bottoms[line] ? rank[before] : i + 1;
  });
  lines.sort((a, b) => tops[a] - tops[b] || bottoms[a] - bottoms[b]);
  const sums = new Float64Array(tops.length + 1);
  let [crossings, seen] = [0, 0];
  for (const line of lines) {
    const load = loads ? loads[line] : 1;
    let notRight = 0;
    for (let i = rank[line]; i > 0; i -= i & -i) notRight += sums[i];
    for (let i = rank[line]; i < sums.length; i += i & -i) sums[i] += load;
    crossings += load * (seen - notRight);
    seen += load;
  }
  return crossings;
}
