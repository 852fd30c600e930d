// Where the reader is, as an address and as steps of a history.

import assert from "node:assert/strict";
import test from "node:test";

import { History } from "../../../explorer/static/history.js";
import { addressOf, placeOf } from "../../../explorer/static/places.js";

const BREAKS = ["breaks.a", "breaks.b", "breaks.c"];
const shown = (name, mode = "", other = "", state = "") => ({ name, mode, other, state });

test("an address names a break by its number, and panes by stage", () => {
  const place = { panes: [shown("source"), shown("breaks")], select: ["breaks.c"], find: "", colours: false };
  assert.equal(addressOf(place, BREAKS), "break=3&panes=source,breaks");
  assert.deepEqual(placeOf("break=3&panes=source,breaks", BREAKS), place);
});

test("every name comes back from an address", () => {
  const names = ["kernels[0/0 forward]", "source[C:\\a,b&c=d#e~f.py]", "x[é 100%+\"<`>]"];
  for (const name of names) {
    const place = { panes: [shown(name, "graph"), shown(name, "", names[0])], select: [name, "b"], find: name, colours: true };
    assert.deepEqual(placeOf(addressOf(place, BREAKS), BREAKS), place);
  }
  assert.match(addressOf({ panes: [shown(names[0])], select: [], find: "" }, []), /^panes=kernels\[0\/0%20forward\]$/);
});

test("a stage alone is an address", () => {
  assert.deepEqual(placeOf("kernels", []), { panes: [shown("kernels")], select: [], find: "", colours: false });
});

test("an address keeps the state of a view", () => {
  const place = { panes: [shown("frame_map", "view", "", "2l-4.50-0.1000")], select: [], find: "", colours: false };
  assert.equal(addressOf(place, []), "panes=frame_map:view@2l-4.50-0.1000");
  assert.deepEqual(placeOf(addressOf(place, []), []), place);
});

test("an address that cannot be read is none", () => {
  for (const bad of ["%E0%A4", "break=9", "break=x", "a=b=c", "panes=,", "panes=:graph", "other=1", "colours=all", "panes=map@<b>", `panes=${"a,".repeat(9)}b`]) {
    assert.equal(placeOf(bad, BREAKS), null, bad);
  }
});

test("a selection too long for an address is left out of it", () => {
  const select = Array.from({ length: 500 }, (_, at) => `forward[0/0].n${at}`);
  assert.equal(addressOf({ panes: [shown("forward")], select, find: "" }, []), "panes=forward");
});

test("history goes back and forward, and forgets what it went back from", () => {
  const history = new History();
  const at = (name, find = "") => ({ panes: [shown(name)], select: [], find });
  history.note(at("a"), false);
  history.note(at("b"), true);
  history.note(at("b", "typed"), true);
  history.note(at("c"), true);
  history.note(at("d"), false); // followed by itself: part of the step to c
  assert.deepEqual(history.move(-1), at("b", "typed"));
  assert.deepEqual(history.move(-1), at("a"));
  assert.equal(history.move(-1), undefined);
  assert.deepEqual(history.move(1), at("b", "typed"));
  history.note(at("e"), true);
  assert.equal(history.leads(1), false);
  assert.deepEqual(history.move(-1), at("b", "typed"));
});
