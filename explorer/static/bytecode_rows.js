// Two listings of bytecode as rows that stand side by side: the same instructions on the same row.

import { compareLines } from "./compare.js";

/** @typedef {import("./store.js").Entity} Entity */
/**
 * One side of a row: an instruction, the source line of those below it, or what Dynamo inserted those below it for.
 * @typedef {{kind: "code", entity: Entity, inserted: boolean} | {kind: "line", line: number, origin: string} |
 *   {kind: "words", words: string, entity: Entity}} Cell
 * @typedef {[Cell | null, Cell | null]} Row
 */

/**
 * @param {Entity[]} written @param {Entity[]} rewritten
 * @param {Map<string, string>} words what stretches are for, by the id of their first instruction
 * @returns {Row[]}
 */
export function sideBySide(written, rewritten, words) {
  const columns = [new Column(written, new Map()), new Column(rewritten, words)];
  /** @type {Row[]} */
  const rows = [];
  const even = () => {
    const [left, right] = columns.map((column) => column.take());
    for (let at = 0; at < Math.max(left.length, right.length); at++) rows.push([left[at] ?? null, right[at] ?? null]);
  };
  for (const { left, right, same } of compareLines(written.map(keyOf), rewritten.map(keyOf))) {
    if (same) even();
    if (left >= 0) columns[0].add(left, false);
    if (right >= 0) columns[1].add(right, !same);
    if (same) alignLast(columns, even);
  }
  even();
  return rows;
}

/**
 * Two equal instructions share a row, also when only one of them begins a source line.
 * @param {Column[]} columns @param {() => void} even
 */
function alignLast(columns, even) {
  const [left, right] = columns.map((column) => column.cells);
  while (left.length < right.length) left.unshift(null);
  while (right.length < left.length) right.unshift(null);
  even();
}

/** What makes an instruction the same: not where it is, nor where it jumps to. @param {Entity} entity */
function keyOf({ label, attrs }) {
  return `${attrs.line} ${label} ${"jump" in attrs ? "" : attrs.argument}`;
}

/** The cells of one side that have no row yet. */
class Column {
  /** @param {Entity[]} entities @param {Map<string, string>} words */
  constructor(entities, words) {
    this.entities = entities;
    this.words = words;
    this.line = 0;
    /** @type {(Cell | null)[]} */
    this.cells = [];
  }

  /** @param {number} index @param {boolean} inserted */
  add(index, inserted) {
    const entity = this.entities[index];
    const { line } = entity.attrs;
    const words = inserted ? this.words.get(entity.id) : undefined;
    if (words) this.cells.push({ kind: "words", words, entity });
    if (line && line !== this.line) this.cells.push({ kind: "line", line, origin: entity.origins[0] ?? "" });
    this.line = line || (inserted ? 0 : this.line);
    this.cells.push({ kind: "code", entity, inserted: inserted && !line });
  }

  take() {
    return this.cells.splice(0);
  }
}
