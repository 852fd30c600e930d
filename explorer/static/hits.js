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

/**
 * A line in which something was found: of which artifact, its row and number, and where in it.
 * @typedef {{artifact: string, title: string, row: number, number: number, text: string, column: number}} Line
 * @typedef {{stage: import("./store.js").StageInfo, count: number, lines: Line[]}} StageLines
 */

/** So many lines of a stage are listed; all are counted. */
const MOST_LISTED = 5;
/** So much of a line is shown before what was found in it, and after. */
const BEFORE = 40;
const AFTER = 200;

/**
 * The lines of each stage that hold a text, as far as texts have arrived.
 * @param {import("./store.js").StageInfo[]} stages @param {Map<string, import("./store.js").Artifact>} artifacts
 * @param {string} query @returns {StageLines[]} stages in which it is
 */
export function findInStages(stages, artifacts, query) {
  const exact = query !== query.toLowerCase();
  return stages.flatMap((stage) => {
    /** @type {Line[]} */
    const found = [];
    let count = 0;
    for (const { id, title } of stage.artifacts) {
      const { lines = [], numbers } = artifacts.get(id) ?? {};
      lines.forEach((text, row) => {
        const column = (exact ? text : text.toLowerCase()).indexOf(query);
        if (column < 0 || ++count > MOST_LISTED) return;
        found.push({ artifact: id, title, row, number: numbers?.[row] || row + 1, text, column });
      });
    }
    return count ? [{ stage, count, lines: found }] : [];
  });
}

/** A line before, at and after what was found in it. @param {Line} line @param {number} length @returns {[string, string, string]} */
export function excerpt({ text, column }, length) {
  const start = Math.min(text.length - text.trimStart().length, column);
  const [from, end] = [Math.max(start, column - BEFORE), column + length];
  return [(from > start ? "…" : "") + text.slice(from, column), text.slice(column, end), text.slice(end, end + AFTER)];
}
