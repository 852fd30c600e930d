// The difference of two texts, line by line.

/**
 * One row of a comparison: 0-based lines of the left and the right text, -1 where that side has none.
 * @typedef {{left: number, right: number, same: boolean}} DiffRow
 */

/** Beyond this many edits a stretch is split at lines that are unique on both sides, or shown as replaced. */
const MOST_EDITS = 800;

/** @param {string[]} left @param {string[]} right @returns {DiffRow[]} */
export function compareLines(left, right) {
  const [a, b] = internLines(left, right);
  /** @type {[number, number][]} */
  const pairs = [];
  matchRange(a, b, 0, a.length, 0, b.length, pairs);
  return rowsOf(pairs, a.length, b.length);
}

/** Give equal lines equal numbers. @param {string[]} left @param {string[]} right */
function internLines(left, right) {
  /** @type {Map<string, number>} */
  const numbers = new Map();
  /** @param {string} line */
  const number = (line) => {
    const known = numbers.get(line);
    if (known !== undefined) return known;
    numbers.set(line, numbers.size);
    return numbers.size - 1;
  };
  return [Int32Array.from(left, number), Int32Array.from(right, number)];
}

/**
 * Collect pairs of equal lines of a[al:ah] and b[bl:bh], in order.
 * @param {Int32Array} a @param {Int32Array} b @param {number} al @param {number} ah @param {number} bl
 * @param {number} bh @param {[number, number][]} pairs
 */
function matchRange(a, b, al, ah, bl, bh, pairs) {
  while (al < ah && bl < bh && a[al] === b[bl]) pairs.push([al++, bl++]);
  let tail = 0;
  while (al < ah - tail && bl < bh - tail && a[ah - tail - 1] === b[bh - tail - 1]) tail += 1;
  if (al < ah - tail && bl < bh - tail) matchMiddle(a, b, al, ah - tail, bl, bh - tail, pairs);
  for (; tail > 0; tail--) pairs.push([ah - tail, bh - tail]);
}

/**
 * @param {Int32Array} a @param {Int32Array} b @param {number} al @param {number} ah @param {number} bl
 * @param {number} bh @param {[number, number][]} pairs
 */
function matchMiddle(a, b, al, ah, bl, bh, pairs) {
  const shortest = shortestEdit(a.subarray(al, ah), b.subarray(bl, bh));
  if (shortest) {
    for (const [x, y] of shortest) pairs.push([al + x, bl + y]);
    return;
  }
  const anchors = uniqueAnchors(a, b, al, ah, bl, bh);
  for (const [x, y] of anchors) {
    matchRange(a, b, al, x, bl, y, pairs);
    pairs.push([x, y]);
    [al, bl] = [x + 1, y + 1];
  }
  if (anchors.length) matchRange(a, b, al, ah, bl, bh, pairs);
}

/**
 * Myers' greedy shortest edit script. @param {Int32Array} a @param {Int32Array} b
 * @returns {[number, number][] | null} the pairs of equal lines, or null when there are too many edits
 */
function shortestEdit(a, b) {
  const most = Math.min(a.length + b.length, MOST_EDITS);
  const reach = new Int32Array(2 * most + 3);
  const origin = most + 1;
  /** @type {Int32Array[]} */
  const trace = [];
  for (let edits = 0; edits <= most; edits++) {
    trace.push(reach.slice(origin - edits - 1, origin + edits + 2));
    for (let k = -edits; k <= edits; k += 2) {
      const down = k === -edits || (k !== edits && reach[origin + k - 1] < reach[origin + k + 1]);
      let x = down ? reach[origin + k + 1] : reach[origin + k - 1] + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x += 1;
      reach[origin + k] = x;
      if (x >= a.length && x - k >= b.length) return backtrack(trace, a.length, b.length);
    }
  }
  return null;
}

/** @param {Int32Array[]} trace the furthest reach before each step @param {number} x @param {number} y */
function backtrack(trace, x, y) {
  /** @type {[number, number][]} */
  const pairs = [];
  for (let edits = trace.length - 1; edits >= 0; edits--) {
    const reach = trace[edits];
    const k = x - y;
    const at = edits + 1 + k;
    const down = k === -edits || (k !== edits && reach[at - 1] < reach[at + 1]);
    const fromX = edits === 0 ? 0 : down ? reach[at + 1] : reach[at - 1];
    const fromY = edits === 0 ? 0 : fromX - (down ? k + 1 : k - 1);
    while (x > fromX && y > fromY) pairs.push([--x, --y]);
    [x, y] = [fromX, fromY];
  }
  return pairs.reverse();
}

/**
 * Lines that occur once on each side, as a longest sequence that is in order on both (patience).
 * @param {Int32Array} a @param {Int32Array} b @param {number} al @param {number} ah @param {number} bl
 * @param {number} bh @returns {[number, number][]}
 */
function uniqueAnchors(a, b, al, ah, bl, bh) {
  const inA = onceIn(a, al, ah);
  const inB = onceIn(b, bl, bh);
  /** @type {[number, number][]} */
  const both = [];
  for (const [line, x] of inA) {
    const y = inB.get(line);
    if (x >= 0 && y !== undefined && y >= 0) both.push([x, y]);
  }
  return longestRising(both.sort((p, q) => p[0] - q[0]));
}

/**
 * Where each line is, -1 for those that are there more than once.
 * @param {Int32Array} lines @param {number} low @param {number} high @returns {Map<number, number>}
 */
function onceIn(lines, low, high) {
  const where = new Map();
  for (let at = low; at < high; at++) where.set(lines[at], where.has(lines[at]) ? -1 : at);
  return where;
}

/** @param {[number, number][]} pairs by their first @returns {[number, number][]} longest with rising second */
function longestRising(pairs) {
  /** @type {number[]} */
  const tops = [];
  const before = new Int32Array(pairs.length);
  pairs.forEach(([, y], index) => {
    let low = 0;
    for (let high = tops.length; low < high;) {
      const middle = (low + high) >> 1;
      if (pairs[tops[middle]][1] < y) low = middle + 1;
      else high = middle;
    }
    before[index] = low ? tops[low - 1] : -1;
    tops[low] = index;
  });
  const rising = [];
  for (let at = tops.at(-1) ?? -1; at >= 0; at = before[at]) rising.push(pairs[at]);
  return rising.reverse();
}

/** @param {[number, number][]} pairs @param {number} leftCount @param {number} rightCount @returns {DiffRow[]} */
function rowsOf(pairs, leftCount, rightCount) {
  /** @type {DiffRow[]} */
  const rows = [];
  let left = 0;
  let right = 0;
  for (const [x, y] of [...pairs, /** @type {[number, number]} */ ([leftCount, rightCount])]) {
    while (left < x || right < y) {
      rows.push({ left: left < x ? left++ : -1, right: right < y ? right++ : -1, same: false });
    }
    if (x < leftCount && y < rightCount) rows.push({ left: left++, right: right++, same: true });
  }
  return rows;
}

/**
 * What differs inside two lines: where the difference begins and ends on each side.
 * @param {string} a @param {string} b
 */
export function differingPart(a, b) {
  let from = 0;
  while (from < a.length && from < b.length && a[from] === b[from]) from += 1;
  let tail = 0;
  while (tail < a.length - from && tail < b.length - from && a[a.length - tail - 1] === b[b.length - tail - 1])
    tail += 1;
  return { from, leftTo: a.length - tail, rightTo: b.length - tail };
}
