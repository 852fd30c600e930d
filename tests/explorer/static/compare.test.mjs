// The comparison of two texts, against the longest common subsequence by brute force.

import assert from "node:assert/strict";
import test from "node:test";

import { compareLines, differingPart } from "../../../explorer/static/compare.js";

/** A generator of numbers from 0 to 1 that gives the same ones each time. */
function randomNumbers(seed) {
  return () => {
    seed = (seed * 1664525 + 1013904223) % 4294967296;
    return seed / 4294967296;
  };
}

function longestCommon(a, b) {
  const table = Array.from({ length: a.length + 1 }, () => new Int32Array(b.length + 1));
  for (let i = 1; i <= a.length; i++) {
    for (let j = 1; j <= b.length; j++) {
      const best = Math.max(table[i - 1][j], table[i][j - 1]);
      table[i][j] = a[i - 1] === b[j - 1] ? table[i - 1][j - 1] + 1 : best;
    }
  }
  return table[a.length][b.length];
}

function assertCovers(rows, a, b) {
  assert.deepEqual(rows.flatMap(({ left }) => (left < 0 ? [] : [left])), [...a.keys()]);
  assert.deepEqual(rows.flatMap(({ right }) => (right < 0 ? [] : [right])), [...b.keys()]);
  for (const row of rows) if (row.same) assert.equal(a[row.left], b[row.right]);
}

test("as many lines stand beside their equal as can", () => {
  const random = randomNumbers(1);
  for (let round = 0; round < 500; round++) {
    const text = () => Array.from({ length: random() * 30 }, () => String(Math.floor(random() * 5)));
    const [a, b] = [text(), text()];
    const rows = compareLines(a, b);
    assertCovers(rows, a, b);
    assert.equal(rows.filter((row) => row.same).length, longestCommon(a, b));
  }
});

test("50,000 lines with nothing in order take well under five seconds", () => {
  const random = randomNumbers(2);
  const text = () => Array.from({ length: 50000 }, () => `line ${Math.floor(random() * 50000)}`);
  const [a, b] = [text(), text()];
  const start = performance.now();
  assertCovers(compareLines(a, b), a, b);
  assert.ok(performance.now() - start < 5000);
});

test("equal texts differ nowhere, and an empty one everywhere", () => {
  assert.ok(compareLines(["a", "b"], ["a", "b"]).every((row) => row.same));
  assert.deepEqual(compareLines([], ["a"]), [{ left: -1, right: 0, same: false }]);
});

test("what differs inside a line", () => {
  assert.deepEqual(differingPart("mm(a, b)", "mm(ab, b)"), { from: 4, leftTo: 4, rightTo: 5 });
});
