// Words that can be explained, found in a line.

import assert from "node:assert/strict";
import test from "node:test";

import { explainedIn } from "../../../explorer/static/explain.js";
import { cellText, compareCells } from "../../../explorer/static/list_view.js";

const word = (name) => [name, "", ""];
const found = (line, ...names) =>
  explainedIn(Object.fromEntries(names.map((name) => [name, word(name)])), line).map(({ from, to, meaning }) => [
    line.slice(from, to),
    meaning[0],
  ]);

test("the longest part of a dotted name that is known", () => {
  assert.deepEqual(found("mm = torch.ops.aten.mm.default(a)", "aten.mm", "aten.mm.default"), [
    ["aten.mm.default", "aten.mm.default"],
  ]);
  assert.deepEqual(found("tl.load(p).to(tl.float32)", "tl.load", "load"), [["tl.load", "tl.load"]]);
});

test("registers, layouts and intrinsics with their sign; names of objects are no words", () => {
  assert.deepEqual(found("@llvm.fma.f32(%tid.x) #ttg.slice", "@llvm.fma.f32", "%tid.x", "#ttg.slice"), [
    ["@llvm.fma.f32", "@llvm.fma.f32"], ["%tid.x", "%tid.x"], ["#ttg.slice", "#ttg.slice"],
  ]);
  assert.deepEqual(found("constructor toString"), []);
});

test("cells sort by size or by letters, missing ones last in both directions", () => {
  const sorted = (sign, ...cells) => cells.sort((a, b) => compareCells(a, b, sign));
  assert.deepEqual(sorted(1, 10, null, 9), [9, 10, null]);
  assert.deepEqual(sorted(-1, 10, null, 9), [10, 9, null]);
  assert.deepEqual(sorted(1, "k10", "k9", null), ["k9", "k10", null]);
});

test("cells are written with their unit", () => {
  assert.deepEqual([cellText(2048, "bytes"), cellText(37.5, "percent"), cellText(1.2, "µs"), cellText(null, ""), cellText(1200, "")], [
    "2.00 KiB", "37.5 %", "1.2 µs", "", "1,200",
  ]);
});
