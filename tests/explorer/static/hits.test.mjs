// Searching all stages.

import assert from "node:assert/strict";
import test from "node:test";

import { excerpt, findInStages } from "../../../explorer/static/hits.js";

const stage = (name, ...ids) => ({ name, title: name, artifacts: ids.map((id) => ({ id, title: id })) });
const texts = (entries) => new Map(Object.entries(entries).map(([id, lines]) => [id, { lines }]));

test("lines are grouped by stage, counted, and the first of them listed", () => {
  const stages = [stage("source", "a"), stage("ir", "b", "c"), stage("ptx", "d")];
  const many = Array.from({ length: 20 }, () => "    x = Relu(relu)");
  const found = findInStages(stages, texts({ a: ["", "  y.relu()"], b: many, c: many, d: ["mov"] }), "relu");
  assert.deepEqual(found.map(({ stage, count, lines }) => [stage.name, count, lines.length]), [["source", 1, 1], ["ir", 40, 5]]);
  assert.deepEqual(found[0].lines[0], { artifact: "a", title: "a", row: 1, number: 2, text: "  y.relu()", column: 4 });
});

test("capitals are told apart only if one is looked for, and texts that are not there are left out", () => {
  const stages = [stage("ir", "b", "missing")];
  const columns = (query) => findInStages(stages, texts({ b: ["Relu relu"] }), query).map(({ lines }) => lines[0].column);
  assert.deepEqual([columns("relu"), columns("Relu"), columns("RELU")], [[0], [0], []]);
});

test("an excerpt begins near to what was found", () => {
  assert.deepEqual(excerpt({ text: "    x = relu(y)", column: 8 }, 4), ["x = ", "relu", "(y)"]);
  const [before, hit, after] = excerpt({ text: `${"a".repeat(90)}relu${"b".repeat(900)}`, column: 90 }, 4);
  assert.deepEqual([before.length, before[0], hit, after.length], [41, "…", "relu", 200]);
  assert.deepEqual(excerpt({ text: "    x", column: 1 }, 2), ["", "  ", " x"]);
});
