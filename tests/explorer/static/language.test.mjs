// Syntax colour and folds.

import assert from "node:assert/strict";
import test from "node:test";

import { foldRegions, spanOf, spans, tokenise, tokeniseRow } from "../../../explorer/static/language.js";

/** Tokens as `class:text`, plain ones left out. */
const coloured = (line, language) =>
  tokenise(line, language).flatMap(([kind, text]) => (kind ? [`${kind}:${text.trim()}`] : []));

test("tokens make up the line again", () => {
  const line = `    mm: "f32[2]" = torch.ops.aten.mm(x, 1e-5, name='a\\'b')  # "no string"`;
  for (const language of ["python", "cpp", "ir", "bytecode", "mlir", "llvm", "ptx", "sass", "amdgcn", "text", "new"]) {
    assert.equal(tokenise(line, language).map(([, text]) => text).join(""), line);
  }
});

test("Python", () => {
  assert.deepEqual(coloured("def f(x): return g(None, 0x1f)  # c", "python"), [
    "k:def", "f:f", "k:return", "f:g", "b:None", "n:0x1f", "c:# c",
  ]);
  assert.deepEqual(coloured("@triton.jit", "python"), ["m:@triton.jit"]);
});

test("C++", () => {
  assert.deepEqual(coloured("for (int64_t i = 0; i < n; ++i) // up", "cpp"), ["k:for", "b:int64_t", "n:0", "c:// up"]);
  assert.deepEqual(coloured("#pragma omp parallel", "cpp"), ["m:#pragma omp parallel"]);
});

test("bytecode and Inductor's loops", () => {
  assert.deepEqual(coloured("   28  RESUME  0", "bytecode"), ["n:28", "m:RESUME", "n:0"]);
  assert.deepEqual(coloured("op0: SchedulerNode # f32", "ir"), ["m:f32"]);
});

test("MLIR, where places in the source are no more than comments", () => {
  assert.deepEqual(coloured("%0 = tt.load %ptr : tensor<64xf32, #blocked> loc(#loc2)", "mlir"), [
    "m:%0", "k:tt.load", "m:%ptr", "b:tensor", "m:#blocked", "c:loc(#loc2)",
  ]);
  assert.deepEqual(coloured('#loc1 = loc("k.py":3:4)', "mlir"), ['c:#loc1 = loc("k.py":3:4)']);
});

test("LLVM IR", () => {
  assert.deepEqual(coloured("  %9 = shl i32 %8, 8, !dbg !18", "llvm"), ["m:%9", "k:shl", "b:i32", "m:%8", "n:8", "c:, !dbg !18"]);
  assert.deepEqual(coloured("  call void @llvm.nvvm.barrier0()", "llvm"), ["k:call", "b:void", "m:@llvm.nvvm.barrier0"]);
});

test("PTX", () => {
  assert.deepEqual(coloured("\t@%p1 ld.global.v4.b32 \t{ %r1 }, [ %rd1 + 0 ]; // x", "ptx"), [
    "m:%p1", "k:ld.global.v4.b32", "m:%r1", "m:%rd1", "n:0", "c:// x",
  ]);
  assert.deepEqual(coloured("\t.loc\t1 29 61 // k.py", "ptx"), ["c:.loc\t1 29 61 // k.py"]);
  assert.deepEqual(coloured("ld.global.L1::evict_first.b32 %r1", "ptx"), ["k:ld.global.L1::evict_first.b32", "m:%r1"]);
  assert.deepEqual(coloured("$L__BB0_1:", "ptx"), ["m:$L__BB0_1"]);
  assert.deepEqual(coloured(".visible .entry kernel(", "ptx"), ["b:.visible", "b:.entry", "f:kernel"]);
});

test("SASS", () => {
  assert.deepEqual(coloured("        /*06d0*/  @P0 IMAD.HI.U32 R17, R9, -0x3, RZ ;", "sass"), [
    "c:/*06d0*/", "m:P0", "k:IMAD.HI.U32", "m:R17", "m:R9", "n:0x3", "m:RZ",
  ]);
  assert.deepEqual(coloured("\t//## k.py:18, PTX line 22", "sass"), ["c://## k.py:18, PTX line 22"]);
});

test("AMD GCN", () => {
  assert.deepEqual(coloured("\tv_fma_f32 v1, v[2:3], s4, 1.0 ; c", "amdgcn"), [
    "k:v_fma_f32", "m:v1", "m:v[2:3]", "m:s4", "n:1.0", "c:; c",
  ]);
  assert.deepEqual(coloured("\ts_waitcnt vmcnt(0)", "amdgcn"), ["k:s_waitcnt", "f:vmcnt", "n:0"]);
});

test("x86 and AArch64", () => {
  assert.deepEqual(coloured("        vmaxps  zmm6,zmm6,ZMMWORD PTR [rcx+0x40]", "x86"), ["k:vmaxps", "m:zmm6", "m:zmm6", "m:rcx", "n:0x40"]);
  assert.deepEqual(coloured("        jne     .L3", "x86"), ["k:jne", "m:.L3"]);
  assert.deepEqual(coloured("    ## line 34: auto tmp1 = x;", "x86"), ["c:## line 34: auto tmp1 = x;"]);
  assert.deepEqual(coloured("        fadd    v0.4s, v1.4s, v2.4s", "aarch64"), ["k:fadd", "m:v0.4s", "m:v1.4s", "m:v2.4s"]);
  assert.deepEqual(coloured("        add     x0, x0, #0x10", "aarch64"), ["k:add", "m:x0", "m:x0", "n:0x10"]);
  assert.deepEqual(coloured("    //## line 34: x", "aarch64"), ["c://## line 34: x"]);
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
