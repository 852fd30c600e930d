// Syntax colour and folds.

import assert from "node:assert/strict";
import test from "node:test";

import { foldRegions, spanOf, spans, tokenise, tokeniseRow } from "../../../explorer/static/language.js";

/** Tokens as `class:text`, plain ones left out. */
const coloured = (line, language) =>
  tokenise(line, language).flatMap(([kind, text]) => (kind ? [`${kind}:${text.trim()}`] : []));

test("tokens make up the line again", () => {
  const line = `    mm: "f32[2]" = torch.ops.aten.mm(x, 1e-5, name='a\\'b')  # "no string"`;
  for (const language of ["python", "cpp", "ir", "bytecode", "text", "unheard of"]) {
    assert.equal(tokenise(line, language).map(([, text]) => text).join(""), line);
  }
});

test("Python", () => {
  assert.deepEqual(coloured("def f(x): return g(None, 0x1f)  # c", "python"), [
    "k:def", "f:f", "k:return", "f:g", "b:None", "n:0x1f", "c:# c",
  ]);
  assert.deepEqual(coloured("@triton.jit", "triton"), ["m:@triton.jit"]);
});

test("C++", () => {
  assert.deepEqual(coloured("for (int64_t i = 0; i < n; ++i) // up", "cpp"), ["k:for", "b:int64_t", "n:0", "c:// up"]);
  assert.deepEqual(coloured("#pragma omp parallel", "cpp"), ["m:#pragma omp parallel"]);
});

test("bytecode and intermediate representations", () => {
  assert.deepEqual(coloured("   28  RESUME  0", "bytecode"), ["n:28", "m:RESUME", "n:0"]);
  assert.deepEqual(coloured("%0 = tt.load %ptr : f32 // c", "ttir"), ["m:%0", "m:%ptr", "m:f32", "c:// c"]);
});

const WRAPPER = [
  "kernel = async_compile.cpp_pybinding(['float*'], r'''",
  "#include <cmath>",
  "void kernel()",
  "{",
  "    int a = 1;",
  "    int b = 2;",
  "    int c = 3;",
  "    int d = 4;",
  "}",
  "''')",
  "def call(args):",
  '    """Says',
  '    for what."""',
  "    a = 1",
  "    b = 2",
  "    return a",
];

test("code in a string is coloured as code, a docstring as a string", () => {
  const found = spans(WRAPPER, "python");
  const kinds = (row) => tokeniseRow(WRAPPER[row], row, "python", spanOf(found, row)).map(([kind]) => kind);
  assert.deepEqual(kinds(4), ["", "b", "", "n", ""]);
  assert.deepEqual(kinds(11), ["", "s"]);
  assert.deepEqual(kinds(12), ["s"]);
  assert.equal(spanOf(found, 13), undefined);
});

test("a string that never ends reaches to the end", () => {
  const [span] = spans(['x = """a', "b", "c"], "python");
  assert.deepEqual([span.from, span.to], [0, 2]);
});

test("kernels and functions fold", () => {
  const regions = foldRegions(WRAPPER, spans(WRAPPER, "python"));
  assert.equal(regions.get(0), 9);
  assert.equal(regions.get(3), 7);
  assert.equal(regions.get(10), 15);
});
