// Which rows are lit, and how strongly.

import assert from "node:assert/strict";
import test from "node:test";

import { LINKED, markRows, mostSpecific, PRIMARY, WEAK } from "../../../explorer/static/marks.js";

const ROWS = [["k"], ["k", "k.L1"], ["k", "k.L2"], ["other"], []];

function marks(primary, linked) {
  const rows = new Map(ROWS.map((ids, row) => [row, ids]));
  const rowsOf = new Map();
  for (const [row, ids] of rows) for (const id of ids) rowsOf.set(id, [...(rowsOf.get(id) ?? []), row]);
  const found = new Uint8Array(ROWS.length);
  markRows({ rows, rowsOf }, new Set(primary), new Set(linked), found);
  return [...found];
}

test("a line is lit strongly, the kernel around it weakly", () => {
  assert.deepEqual(marks(["x"], ["x", "k", "k.L2"]), [WEAK, WEAK, LINKED, 0, 0]);
  assert.deepEqual(marks(["k.L1"], ["k.L1"]), [0, PRIMARY, 0, 0, 0]);
});

test("a kernel of which no line is lit is lit as a whole", () => {
  assert.deepEqual(marks(["x"], ["x", "k", "other"]), [LINKED, LINKED, LINKED, LINKED, 0]);
  assert.deepEqual(marks(["k"], ["k"]), [PRIMARY, PRIMARY, PRIMARY, 0, 0]);
});

test("the head of machine code is lit strongly only where nothing in it is lit", () => {
  const rows = new Map([[0, ["p.kernel"]], [1, ["p.L1"]]]);
  const rowsOf = new Map([["p.kernel", [0]], ["p.L1", [1]]]);
  const lit = (...ids) => {
    const found = new Uint8Array(2);
    markRows({ rows, rowsOf }, new Set(), new Set(ids), found);
    return [...found];
  };
  assert.deepEqual(lit("p.kernel"), [LINKED, 0]);
  assert.deepEqual(lit("p.kernel", "p.L1"), [WEAK, LINKED]);
});

test("a row is about its most specific ids", () => {
  assert.deepEqual(mostSpecific(["k", "k.L1"]), ["k.L1"]);
  assert.deepEqual(mostSpecific(["f.x", "f.x_1", "f.y"]), ["f.x", "f.x_1", "f.y"]);
});
