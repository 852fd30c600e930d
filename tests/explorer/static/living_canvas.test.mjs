import assert from "node:assert/strict";
import { test } from "node:test";

import { digitsOf, placeState, pointAt, shortDigits } from "../../../explorer/static/living_canvas.js";

const tensor = { type: "f32[2]", shape: [2], count: 2, norm: 1, low: 0, high: 1, zeros: 1, nans: 0, infinite: 0, numbers: [0, 1], heat: null };

test("a tensor's numbers have their room, and a route its middle", () => {
  const { nodes } = placeState({ nodes: [{ id: "x", title: "x", above: tensor }, { id: "y", title: "y" }], edges: [{ from: "x", to: "y" }] });
  assert.ok(nodes[0].h > nodes[1].h && nodes[0].w >= 104);
  assert.deepEqual(pointAt([0, 0, 0, 10, 10, 10], 0.75), [5, 10]);
  assert.deepEqual([0.25, -3, 1e-9, NaN, -Infinity].map(digitsOf), ["0.25", "−3", "1e-9", "nan", "-inf"]);
});

test("a cell's digits fit into it", () => {
  assert.deepEqual([-0.00024078, 0.1443, -1234567, 3.0499e-10].map(shortDigits), ["−2.4e-4", "0.1443", "−1.23e6", "3e-10"]);
});
