// Names that are cut in their middle.

import assert from "node:assert/strict";
import test from "node:test";

import { sharedStarts, shortName } from "../../../explorer/static/names.js";

test("a kernel's name keeps its kind, its last word and its number", () => {
  assert.equal(shortName("triton_poi_fused_add_mul_relu_native_layer_norm_3", 24), "triton_poi_…_norm_3");
  assert.equal(shortName("triton_poi_fused_add_3", 24), "triton_poi_fused_add_3");
});

test("names are never longer than there is room, and keep both ends", () => {
  for (const name of ["x".repeat(60), "a_b_c_d_e_f_g_h_i_j_k_l_m_n_o_p", "block.attention.query.weight.very.long"]) {
    for (let most = 5; most < name.length; most++) {
      const short = shortName(name, most);
      assert.ok(short.length <= most && short.includes("…"), short);
      assert.ok(short[0] === name[0] && short.at(-1) === name.at(-1), short);
    }
  }
});

test("kernels that differ in their number alone stay apart", () => {
  const names = Array.from({ length: 40 }, (_, at) => `triton_red_fused_add_native_layer_norm_backward_${at}`);
  assert.equal(new Set(names.map((name) => shortName(name, 20))).size, names.length);
});

test("what all kernels share is folded before what tells them apart", () => {
  const names = ["triton_poi_fused_add_gelu_0", "triton_red_fused_add_sum_1", "extern_kernels.mm"];
  const shared = sharedStarts(names);
  assert.deepEqual([...shared.values()], [7, 7, 0]);
  assert.equal(shortName(names[0], 24, 7), "…poi_fused_add_gelu_0");
  const alike = ["triton_poi_fused_addmm_relu_0", "triton_poi_fused_addmm_relu_1"];
  assert.equal(shortName(alike[1], 16, sharedStarts(alike).get(alike[1])), "triton_poi_fus…1");
});
