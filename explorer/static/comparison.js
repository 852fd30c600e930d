// Two texts compared: as one, with lines of the first alone, of the second alone, and of both; or side by side.

import { compareLines, differingPart } from "./compare.js";
import { grammarName, placeRows } from "./language.js";

/** @typedef {import("./store.js").Artifact} Artifact */
/** @typedef {import("./text_view.js").Looks} Looks */
/** @typedef {{line: number, other: number, sign: "" | "-" | "+", partner: number}} Row */

/** Equal lines kept around each difference. */
const CONTEXT = 3;

/** @type {Record<string, RegExp>} */
const PLACES_IN_LINES = {
  bytecode: /^ *\d* (?:>>|  ) +\d+ /g,
  mlir: / loc\((?:#loc\w*|unknown)\)/g,
  llvm: /,? !dbg !\d+/g,
  sass: /^ {4}\/\*[\da-f]+\*\//g,
};

/** A line with spaces in place of what says where it is, or is from. @param {string} line @param {string} language */
function withoutPlaces(line, language) {
  const pattern = PLACES_IN_LINES[grammarName(language)];
  return pattern ? line.replace(pattern, (place) => " ".repeat(place.length)) : line;
}

/**
 * @param {Artifact} left @param {Artifact} right
 * @returns {{artifact: Artifact, looks: Looks}} what a text view shows
 */
export function comparison(left, right) {
  const [before, after] = [left.lines ?? [], right.lines ?? []];
  const rows = unified(pairsOf(left, right));
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
 * Both as texts of equally many lines: what is the same, or stands in place of the other, is on lines of one number.
 * @param {Artifact} left @param {Artifact} right
 * @returns {{artifact: Artifact, looks: Looks}[]} what two text views show
 */
export function sideBySide(left, right) {
  const pairs = pairsOf(left, right);
  const [before, after] = [masked(left), masked(right)];
  const parts = pairs.map((pair) => differingPart(before[pair.left] ?? "", after[pair.right] ?? ""));
  const folded = equalRuns(pairs.map(({ same }) => ({ sign: same ? "" : "+" })));
  const stops = pairs.flatMap(({ same }, at) => (!same && pairs[at - 1]?.same !== false ? [at] : []));
  /** @param {Artifact} text @param {"left" | "right"} side @param {string} style @param {"leftTo" | "rightTo"} to */
  const column = (text, side, style, to) => {
    const rows = pairs.map((pair) => pair[side]);
    const differ = pairs.flatMap((pair, at) => (pair.same || Math.min(pair.left, pair.right) < 0 ? [] : [at]));
    /** @type {Looks} */
    const looks = {
      classes: pairs.map(({ same }, at) => (same ? "" : rows[at] < 0 ? "tc-filler" : style)),
      labels: rows.map((row) => (row < 0 ? "" : String(text.numbers?.[row] ?? row + 1))),
      emphasis: new Map(differ.map((at) => [at, [parts[at].from, parts[at][to]]])),
      folded: new Map(folded),
      stops,
    };
    const ids = rows.map((row) => text.rows.get(row) ?? []);
    return { artifact: { info: text.info, lines: rows.map((row) => text.lines?.[row] ?? ""), ...byRow(ids), have: {} }, looks };
  };
  return [column(left, "left", "tc-removed", "leftTo"), column(right, "right", "tc-added", "rightTo")];
}

/**
 * A text that can be compared: an artifact, or a kernel in one.
 * @param {import("./store.js").Store} store @param {string} id @returns {Artifact | undefined}
 */
export function textNamed(store, id) {
  const whole = store.artifacts.get(id) ?? store.artifactOf(id);
  const rows = whole?.rowsOf.get(id);
  if (!whole || !rows?.length) return whole;
  const [first, last] = [Math.min(...rows), Math.max(...rows)];
  const at = [...Array(last - first + 1).keys()];
  return {
    info: { ...whole.info, id: store.links.entity(id)?.label ?? id, title: whole.info.id },
    lines: whole.lines?.slice(first, last + 1),
    numbers: at.map((row) => whole.numbers?.[first + row] ?? first + row + 1),
    ...byRow(at.map((row) => (whole.rows.get(first + row) ?? []).filter((one) => one !== id))),
    entities: whole.entities,
    have: whole.have,
  };
}

/** Which lines are the same, with the rows of both texts. @param {Artifact} left @param {Artifact} right */
function pairsOf(left, right) {
  const [first, second] = [comparable(left), comparable(right)];
  return compareLines(first.texts, second.texts).map((pair) => ({
    ...pair,
    left: first.rows[pair.left] ?? -1,
    right: second.rows[pair.right] ?? -1,
  }));
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
  return byRow(rows.map((row) => {
    const first = row.sign === "+" ? [] : (left.rows.get(row.sign ? row.line : row.other) ?? []);
    const second = row.sign === "-" ? [] : (right.rows.get(row.line) ?? []);
    return [...first, ...second];
  }));
}

/** @param {string[][]} ids of each row */
function byRow(ids) {
  /** @type {Map<string, number[]>} */
  const rowsOf = new Map();
  ids.forEach((some, at) => some.forEach((id) => rowsOf.set(id, [...(rowsOf.get(id) ?? []), at])));
  return { rows: new Map(ids.entries()), rowsOf };
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

/** Long runs of equal lines, but for some around each difference. @param {{sign: string}[]} rows @returns {Map<number, number>} */
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
