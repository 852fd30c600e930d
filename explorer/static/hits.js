// Where a text is found in lines.

/** So many are looked for; whoever finds more has to say more. */
export const MOST_HITS = 10000;

/**
 * Row and column of each hit, in order. Small letters match both, unless there is a capital.
 * @param {string[]} lines @param {string} query @returns {[number, number][]}
 */
export function findAll(lines, query) {
  const exact = query !== query.toLowerCase();
  /** @type {[number, number][]} */
  const hits = [];
  for (let row = 0; row < lines.length && hits.length < MOST_HITS; row++) {
    const line = exact ? lines[row] : lines[row].toLowerCase();
    for (let at = line.indexOf(query); at >= 0; at = line.indexOf(query, at + query.length)) hits.push([row, at]);
  }
  return hits;
}

/** Index of the first hit that is in a row or after it. @param {[number, number][]} hits @param {number} row */
export function firstIn(hits, row) {
  let low = 0;
  let high = hits.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (hits[middle][0] < row) low = middle + 1;
    else high = middle;
  }
  return low;
}
