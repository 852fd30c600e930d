// Two artifacts as one text: lines of the first alone, of the second alone, and of both.

import { compareLines, differingPart } from "./compare.js";
import { placeRows, withoutPlaces } from "./language.js";

/** @typedef {import("./store.js").Artifact} Artifact */
/** @typedef {import("./text_view.js").Looks} Looks */
/** @typedef {{line: number, other: number, sign: "" | "-" | "+", partner: number}} Row */

/** Equal lines kept around each difference. */
const CONTEXT = 3;

/**
 * @param {Artifact} left @param {Artifact} right
 * @returns {{artifact: Artifact, looks: Looks}} what a text view shows
 */
export function comparison(left, right) {
  const [before, after] = [left.lines ?? [], right.lines ?? []];
  const [first, second] = [comparable(left), comparable(right)];
  const pairs = compareLines(first.texts, second.texts).map((pair) => ({
    ...pair,
    left: first.rows[pair.left] ?? -1,
    right: second.rows[pair.right] ?? -1,
  }));
  const rows = unified(pairs);
  const artifact = {
    info: { ...right.info, title: `${left.info.title} compared with ${right.info.title}` },
    lines: rows.map((row) => (row.sign === "-" ? before[row.line] : after[row.line])),
    ...entitiesOf(rows, left, right),
    have: {},
  };
  const looks = {
    classes: rows.map((row) => ({ "-": "tc-removed", "+": "tc-added", "": "" })[row.sign]),
    labels: rows.map((row) => label(row, left, right)),
    emphasis: emphasis(rows, masked(left), masked(right)),
    folded: equalRuns(rows),
    stops: rows.flatMap((row, at) => (row.sign && !rows[at - 1]?.sign ? [at] : [])),
  };
  return { artifact, looks };
}

/**
 * What of a text is compared: not lines that only name places in the source, nor addresses of instructions.
 * @param {Artifact} artifact
 */
function comparable({ info, lines = [] }) {
  const places = placeRows(lines, info.language);
  const rows = [...lines.keys()].filter((row) => !places.has(row));
  return { rows, texts: rows.map((row) => withoutPlaces(lines[row], info.language).trimEnd()) };
}

/** @param {Artifact} artifact */
function masked({ info, lines = [] }) {
  return lines.map((line) => withoutPlaces(line, info.language));
}

/**
 * Each change as its removed and then its added lines.
 * @param {import("./compare.js").DiffRow[]} pairs @returns {Row[]}
 */
function unified(pairs) {
  /** @type {Row[]} */
  const rows = [];
  for (let at = 0; at < pairs.length; at++) {
    const from = at;
    while (at < pairs.length && !pairs[at].same) at += 1;
    const change = pairs.slice(from, at);
    for (const { left, right } of change)
      if (left >= 0) rows.push({ line: left, other: -1, sign: "-", partner: right });
    for (const { left, right } of change)
      if (right >= 0) rows.push({ line: right, other: -1, sign: "+", partner: left });
    if (at < pairs.length) rows.push({ line: pairs[at].right, other: pairs[at].left, sign: "", partner: -1 });
  }
  return rows;
}

/** The entities on each row, of either side. @param {Row[]} rows @param {Artifact} left @param {Artifact} right */
function entitiesOf(rows, left, right) {
  /** @type {Map<number, string[]>} */
  const ids = new Map();
  /** @type {Map<string, number[]>} */
  const rowsOf = new Map();
  rows.forEach((row, at) => {
    const first = row.sign === "+" ? [] : (left.rows.get(row.sign ? row.line : row.other) ?? []);
    const second = row.sign === "-" ? [] : (right.rows.get(row.line) ?? []);
    ids.set(at, [...first, ...second]);
    for (const id of [...first, ...second]) rowsOf.set(id, [...(rowsOf.get(id) ?? []), at]);
  });
  return { rows: ids, rowsOf };
}

/** Line numbers of both sides, and the sign. @param {Row} row @param {Artifact} left @param {Artifact} right */
function label(row, left, right) {
  const number = (/** @type {Artifact} */ side, /** @type {number} */ line) => String(side.numbers?.[line] ?? line + 1);
  const first = row.sign === "+" ? "" : number(left, row.sign ? row.line : row.other);
  const second = row.sign === "-" ? "" : number(right, row.line);
  return `${first.padStart(5)}${second.padStart(5)} ${row.sign || " "}`;
}

/** What differs inside lines that changed. @param {Row[]} rows @param {string[]} before @param {string[]} after */
function emphasis(rows, before, after) {
  /** @type {Map<number, [number, number]>} */
  const parts = new Map();
  rows.forEach(({ line, sign, partner }, at) => {
    if (!sign || partner < 0) return;
    const [a, b] = sign === "-" ? [before[line], after[partner]] : [before[partner], after[line]];
    const { from, leftTo, rightTo } = differingPart(a, b);
    parts.set(at, [from, sign === "-" ? leftTo : rightTo]);
  });
  return parts;
}

/** Long runs of equal lines, but for some around each difference. @param {Row[]} rows @returns {Map<number, number>} */
function equalRuns(rows) {
  const runs = new Map();
  for (let at = 0; at < rows.length; at++) {
    const from = at;
    while (at < rows.length && !rows[at].sign) at += 1;
    const first = from === 0 ? 0 : from + CONTEXT;
    const last = at === rows.length ? at - 1 : at - 1 - CONTEXT;
    if (last - first > CONTEXT) runs.set(first, last);
  }
  return runs;
}
