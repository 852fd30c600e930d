// Two artifacts as one text.

import assert from "node:assert/strict";
import test from "node:test";

import { comparison, sideBySide, textNamed } from "../../../explorer/static/comparison.js";

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

test("side by side, both texts have equally many lines, and what is the same is beside itself", () => {
  const [left, right] = sideBySide(artifact("a", [...SAME, "old 1", "y"], { 20: ["a.old"] }), artifact("b", [...SAME, "old 2", "z", "y"]));
  assert.deepEqual(left.artifact.lines.slice(-3), ["old 1", "", "y"]);
  assert.deepEqual(right.artifact.lines.slice(-3), ["old 2", "z", "y"]);
  assert.deepEqual(left.looks.classes.slice(-3), ["tc-removed", "tc-filler", ""]);
  assert.deepEqual(right.looks.classes.slice(-3), ["tc-added", "tc-added", ""]);
  assert.deepEqual(left.looks.labels.slice(-3), ["21", "", "22"]);
  assert.deepEqual([...left.looks.emphasis], [[20, [4, 5]]]);
  assert.deepEqual([left.looks.stops, right.looks.stops], [[20], [20]]);
  assert.deepEqual([...left.looks.folded], [...right.looks.folded]);
  assert.deepEqual(left.artifact.rowsOf.get("a.old"), [20]);
});

test("a kernel in a text is a text of its own, with its lines' numbers", () => {
  const whole = artifact("k", ["import", "@jit", "def k0", "call"], { 1: ["k.k0"], 2: ["k.k0", "k.k0.L2"] });
  whole.rowsOf = new Map([["k.k0", [1, 2]]]);
  const store = { artifacts: new Map([["k", whole]]), artifactOf: () => whole, links: { entity: () => ({ label: "k0" }) } };
  const kernel = textNamed(store, "k.k0");
  assert.deepEqual([kernel.lines, kernel.numbers, kernel.info.id], [["@jit", "def k0"], [2, 3], "k0"]);
  assert.deepEqual([...kernel.rowsOf], [["k.k0.L2", [1]]]);
  assert.equal(textNamed(store, "k"), whole);
});
