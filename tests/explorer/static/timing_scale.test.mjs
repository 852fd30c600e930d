// Where bars, ticks and parts of a stack stand on the axis of times.

import assert from "node:assert/strict";
import test from "node:test";

import { axisEnd, percent, roundTicks, stacked, tickText } from "../../../explorer/static/timing_scale.js";

test("ticks stand at round numbers, from 0 to the last that is on the axis, and are few", () => {
  assert.deepEqual(roundTicks(2.7, 6), [0, 0.5, 1, 1.5, 2, 2.5]);
  assert.deepEqual(roundTicks(100, 5), [0, 20, 40, 60, 80, 100]);
  assert.deepEqual(roundTicks(0, 5), [0]);
  for (const most of [0.0031, 0.7, 9.99, 48, 1234]) {
    const ticks = roundTicks(most, 6);
    assert.ok(ticks.length >= 3 && ticks.length <= 7, `${most}: ${ticks}`);
    assert.ok(ticks.at(-1) <= most * (1 + 1e-9));
  }
});

test("a tick has the digits that its step needs", () => {
  assert.deepEqual(roundTicks(0.0031, 6).map((tick) => tickText(tick, 0.001)), ["0.000", "0.001", "0.002", "0.003"]);
  assert.equal(tickText(1.5, 0.5), "1.5");
  assert.equal(tickText(2000, 500), "2,000");
});

test("parts follow each other, and one that is not known takes no room", () => {
  assert.deepEqual(stacked([1, null, 3], 8), [{ left: 0, width: 12.5 }, { left: 12.5, width: 0 }, { left: 12.5, width: 37.5 }]);
  assert.equal(percent(9, 8), 100);
  assert.equal(percent(1, 0), 0);
});

test("one round that took far longer than the others does not squeeze the bars", () => {
  const row = { seconds: 1, high: 1.1, rounds: [0.9, 1, 1.05] };
  const usual = axisEnd([row]);
  assert.ok(usual > 1.1 && usual < 1.2);
  assert.ok(axisEnd([{ ...row, rounds: [0.9, 1, 50] }]) < 1.5);
  assert.ok(axisEnd([row, { seconds: null, high: null, rounds: [] }]) === usual);
});
