// Two artifacts as one text.

import assert from "node:assert/strict";
import test from "node:test";

import { comparison } from "../../../explorer/static/comparison.js";

const artifact = (id, lines, rows = {}) => ({
  info: { id, title: id, language: "python" },
  lines,
  rows: new Map(Object.entries(rows).map(([row, ids]) => [Number(row), ids])),
  rowsOf: new Map(),
  have: {},
});

const SAME = Array.from({ length: 20 }, (_, index) => `same ${index}`);

test("removed lines stand before added ones, with the numbers of both sides", () => {
  const { artifact: both, looks } = comparison(artifact("a", ["x", "old 1", "y"]), artifact("b", ["x", "old 2", "z", "y"]));
  assert.deepEqual(both.lines, ["x", "old 1", "old 2", "z", "y"]);
  assert.deepEqual(looks.classes, ["", "tc-removed", "tc-added", "tc-added", ""]);
  assert.deepEqual(looks.labels.map((label) => label.trim().split(/\s+/).join(" ")), ["1 1", "2 -", "2 +", "3 +", "3 4"]);
  assert.deepEqual(looks.stops, [1]);
});

test("what differs inside a line is emphasised on both sides", () => {
  const { looks } = comparison(artifact("a", ["mm(x, 1)"]), artifact("b", ["mm(x, 20)"]));
  assert.deepEqual([...looks.emphasis], [[0, [6, 7]], [1, [6, 8]]]);
});

test("the same instruction at another offset is the same", () => {
  const listing = (id, lines) => ({ ...artifact(id, lines), info: { id, title: id, language: "bytecode" } });
  const written = ["    3 >>     2 LOAD_FAST                       0 (x)"];
  const rewritten = ["            48 LOAD_GLOBAL                     1 (__compiled_fn_0)", "    3       56 LOAD_FAST                       0 (x)"];
  const { looks } = comparison(listing("a", written), listing("b", rewritten));
  assert.deepEqual(looks.classes, ["tc-added", ""]);
});

test("long equal runs are folded, but for three lines around a difference", () => {
  const { looks } = comparison(artifact("a", [...SAME, "old", ...SAME]), artifact("b", [...SAME, "new", ...SAME]));
  assert.deepEqual([...looks.folded], [[0, 16], [25, 41]]);
});

test("equal texts have no stops, and are one folded run", () => {
  const { looks } = comparison(artifact("a", SAME), artifact("b", SAME));
  assert.deepEqual(looks.stops, []);
  assert.deepEqual([...looks.folded], [[0, 19]]);
});

test("a row holds the entities of both sides", () => {
  const left = artifact("a", ["x", "old"], { 0: ["a.x"], 1: ["a.old"] });
  const { artifact: both } = comparison(left, artifact("b", ["x", "new"], { 0: ["b.x"], 1: ["b.new"] }));
  assert.deepEqual([...both.rows.values()], [["a.x", "b.x"], ["a.old"], ["b.new"]]);
  assert.deepEqual(both.rowsOf.get("b.new"), [2]);
});

test("addresses and places in the source are no differences", () => {
  const sass = (id, ...lines) => ({ ...artifact(id, lines), info: { id, title: id, language: "sass" } });
  const left = sass("a", "    /*0000*/  MOV R1 ;", "\t//## k.py:3", "    /*0010*/  FADD R1 ;");
  const right = sass("b", "    /*0000*/  MOV R1 ;", "    /*0010*/  NOP ;", "    /*0020*/  FADD R2 ;");
  const { artifact: both, looks } = comparison(left, right);
  assert.deepEqual(both.lines.map((line) => line.slice(14)), ["MOV R1 ;", "FADD R1 ;", "NOP ;", "FADD R2 ;"]);
  assert.deepEqual(looks.classes, ["", "tc-removed", "tc-added", "tc-added"]);
  const same = comparison(left, sass("c", "    /*0040*/  MOV R1 ;", "    /*0050*/  FADD R1 ;"));
  assert.deepEqual(same.looks.stops, []);
});
