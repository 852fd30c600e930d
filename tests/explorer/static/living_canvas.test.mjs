import assert from "node:assert/strict";
import { test } from "node:test";

import { digitsOf, inBetween, placeState, pointAt } from "../../../explorer/static/living_canvas.js";

const tensor = { type: "f32[2]", shape: [2], count: 2, norm: 1, low: 0, high: 1, zeros: 1, nans: 0, infinite: 0, numbers: [0, 1], heat: null };
const before = placeState({
  nodes: [{ id: "x", title: "x", above: tensor }, { id: "gelu", title: "gelu" }, { id: "old", title: "old", into: "mul" }],
  edges: [{ from: "x", to: "gelu" }],
});
const after = placeState({
  nodes: [{ id: "x", title: "x" }, { id: "mul", title: "mul", from: ["gelu"] }, { id: "erf", title: "erf", from: ["gelu"] }],
  edges: [{ from: "x", to: "erf" }, { from: "erf", to: "mul" }],
});

test("nodes split, melt and move between two states", () => {
  const at = (t) => Object.fromEntries(inBetween([before, after], t).nodes.map(({ node, rect, alpha }) => [node.id, { ...rect, alpha }]));
  const gelu = before.nodes[1];
  assert.deepEqual([at(1e-9).mul.x, at(1e-9).erf.y].map(Math.round), [gelu.x, gelu.y].map(Math.round));
  assert.equal(at(0.5).old.x, (before.nodes[2].x + after.nodes[1].x) / 2);
  assert.ok(at(0.5).gelu.alpha === 0 && at(1 - 1e-9).mul.alpha === 1);
  assert.deepEqual(Object.keys(at(1)), ["x", "mul", "erf"]);
  assert.ok(inBetween([before, after], 0.7).edges.every(({ points }) => [...points].every(Number.isFinite)));
});

test("a tensor's numbers have their room, and a route its middle", () => {
  assert.ok(before.nodes[0].h > after.nodes[0].h && before.nodes[0].w >= 92);
  assert.deepEqual(pointAt([0, 0, 0, 10, 10, 10], 0.75), [5, 10]);
  assert.deepEqual([0.25, -3, 1e-9, NaN, -Infinity].map(digitsOf), ["0.25", "−3", "1e-9", "nan", "-inf"]);
});
