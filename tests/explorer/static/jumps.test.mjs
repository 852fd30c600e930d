// Lanes of jumps, and two listings side by side.

import assert from "node:assert/strict";
import test from "node:test";

import { sideBySide } from "../../../explorer/static/bytecode_rows.js";
import { gutterWidth, inLanes } from "../../../explorer/static/jumps.js";

const crosses = (a, b) =>
  Math.min(a.from, a.to) <= Math.max(b.from, b.to) && Math.min(b.from, b.to) <= Math.max(a.from, a.to);

test("a jump around others is outside of them, and jumps that share rows share no lane", () => {
  const jumps = inLanes([[0, 9], [2, 3], [8, 5], [4, 6]]);
  assert.equal(jumps[1].lane, 0);
  assert.ok(jumps[0].lane > Math.max(...jumps.slice(1).map(({ lane }) => lane)));
  for (const a of jumps) for (const b of jumps) assert.ok(a === b || a.lane !== b.lane || !crosses(a, b));
  assert.ok(gutterWidth(jumps) > gutterWidth(jumps.slice(1, 2)));
  assert.equal(gutterWidth([]), 0);
});

const instruction = (id, line, label, argument = "") => ({
  id, kind: "instruction", label, attrs: { line, argument, offset: Number(id) }, inputs: [], origins: line ? [`L${line}`] : [],
});

test("what both sides have stands on one row, under its line; what was inserted is named", () => {
  const written = [instruction("0", 1, "RESUME"), instruction("2", 2, "LOAD_FAST", "x"), instruction("4", 3, "RETURN_VALUE")];
  const rewritten = [instruction("0", 1, "RESUME"), instruction("2", 0, "LOAD_GLOBAL", "g"), instruction("4", 0, "CALL"), instruction("6", 3, "RETURN_VALUE")];
  const rows = sideBySide(written, rewritten, new Map([["2", "call the graph"]]));
  const told = (cell) => cell && (cell.kind === "code" ? cell.entity.label + (cell.inserted ? "+" : "") : (cell.words ?? `line ${cell.line}`));
  assert.deepEqual(rows.map((row) => row.map(told)), [
    ["line 1", "line 1"],
    ["RESUME", "RESUME"],
    ["line 2", "call the graph"],
    ["LOAD_FAST", "LOAD_GLOBAL+"],
    [null, "CALL+"],
    ["line 3", "line 3"],
    ["RETURN_VALUE", "RETURN_VALUE"],
  ]);
});
