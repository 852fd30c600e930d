"""Attributes of Inductor and AOTAutograd that `compiler.virtual_gpu` replaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._decomp.decompositions as decompositions
import torch._dynamo.backends.common as aot_backends
import torch._inductor.compile_fx as compile_fx
import torch._inductor.config as inductor_config
import torch._inductor.fx_passes.fuse_attention as fuse_attention
import torch._inductor.fx_passes.joint_graph as joint_graph
import torch._inductor.fx_passes.pad_mm as pad_mm
import torch._inductor.pattern_matcher as pattern_matcher
import torch._subclasses.fake_tensor as fake_tensor
import torch.fx.experimental.proxy_tensor as proxy_tensor
from torch._dynamo.exc import SkipFrame
from torch._functorch.partitioners import default_partition
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._sympy.functions import Identity

from compiler.torch_api.gpu_questions import Place

__all__ = ["Identity", "SkipFrame", "default_partition"]

AOT_MODULE = Place(aot_backends, "aot_module_simplified")
COMPILE_MAIN = Place(compile_fx, "_compile_fx_main")
COMPILE_FORWARD = Place(compile_fx, "compile_fx_forward")
COMPILE_BACKWARD = Place(compile_fx, "compile_fx_backward")
PARTITION = Place(compile_fx, "partition_fn")
DECOMPOSITION = Place(proxy_tensor, "maybe_handle_decomp")
DISPATCH = Place(proxy_tensor.ProxyTorchDispatchMode, "__torch_dispatch__")
FAKE_DEVICE = Place(FakeTensor, "device")
GENERATORS = Place(torch.cuda, "default_generators")
EVALUATION = Place(Identity, "_eval_evalf")
FALLBACK = Place(fake_tensor, "run_fallback_kernel")
LSTM_CHOICE = Place(decompositions, "select_one_layer_lstm_function")
CONSTANT_FOLDING = Place(joint_graph, "constant_fold_uniform_value")
FOLDING_OF_ZEROS = Place(joint_graph.UniformValueConstantFolder, "_add_peephole_patterns")
SHOULD_PAD = Place(pad_mm, "_should_pad")
BFLOAT16_CHECK = Place(compile_fx, "_check_triton_bf16_support")
TF32_WARNINGS = (Place(compile_fx, "_warn_tf32_disabled"), Place(fuse_attention, "_warn_tf32_disabled"))
AOT_FUNCTION = Place(pattern_matcher, "aot_function")

one_layer_lstm = decompositions.one_layer_lstm
is_compute_bound = pad_mm.is_mm_compute_bound
excludes_padding_time = pad_mm.should_exclude_padding_time


def always_pads() -> bool:
    """Whether Inductor pads every matmul that it can (force_shape_pad)."""
    return bool(inductor_config.force_shape_pad)


def hints_of(sizes: Sequence[int | torch.SymInt]) -> list[int]:
    """Inductor's hints for symbolic sizes; the function has another name in torch 2.11."""
    module: Any = pad_mm
    hints: Callable[..., Any] = module.hint_symbols if hasattr(module, "hint_symbols") else module.realize_symbols
    return list(hints(sizes))
