// Links, followed up and down but not sideways.

import assert from "node:assert/strict";
import test from "node:test";

import { Links } from "../../../explorer/static/links.js";

const entity = (id, ...origins) => ({ id, kind: "call", label: id, attrs: {}, inputs: [], origins });

const LINKS = new Links([
  ["source", [entity("s1"), entity("s2")]],
  ["captured", [entity("c1", "s1"), entity("c2", "s1", "s2"), entity("c3", "not there")]],
  ["kernels", [entity("k", "c1", "c2")]],
]);

const closure = (...ids) => [...LINKS.closure(ids)].sort();

test("up to the origins and down to what came of it", () => {
  assert.deepEqual(closure("c1"), ["c1", "k", "s1"]);
  assert.deepEqual(closure("s2"), ["c2", "k", "s2"]);
  assert.deepEqual(closure("k"), ["c1", "c2", "k", "s1", "s2"]);
});

test("several at once, unknown ones left out", () => {
  assert.deepEqual(closure("c3", "nowhere"), ["c3"]);
  assert.deepEqual(closure("c3", "s2"), ["c2", "c3", "k", "s2"]);
});

test("instructions stand for the line that they were made of, and so lead to those of other stages", () => {
  const of = (kind, id, ...origins) => ({ ...entity(id, ...origins), kind });
  const links = new Links([
    ["graph", [entity("mul"), entity("add")]],
    ["kernels", [of("kernel", "k", "mul", "add"), of("triton", "k.L1", "mul"), of("triton", "k.L2", "add")]],
    ["ptx", [of("kernel", "p", "k"), of("instructions", "p.L1", "k.L1"), of("instructions", "p.L2", "k.L2")]],
    ["sass", [of("kernel", "s", "k"), of("instructions", "s.L1", "k.L1")]],
  ]);
  assert.deepEqual([...links.closure(["s.L1"])].sort(), ["k.L1", "mul", "p.L1", "s.L1"]);
  assert.deepEqual([...links.closure(["p"])].sort(), ["add", "k", "mul", "p", "s"]);
});

test("a circle ends", () => {
  const circle = new Links([["a", [entity("x", "y"), entity("y", "x")]]]);
  assert.deepEqual([...circle.closure(["x"])].sort(), ["x", "y"]);
});

test("whose an entity is, and its nearest ancestors in some artifacts, in their order", () => {
  assert.equal(LINKS.owner("c2"), "captured");
  assert.equal(LINKS.owner("nowhere"), "");
  assert.deepEqual(LINKS.nearest("c2", new Set(["source"])), ["s1", "s2"]);
  assert.deepEqual(LINKS.nearest("k", new Set(["source"])), ["s1"]);
  assert.deepEqual(LINKS.nearest("s1", new Set(["source"])), []);
});
