"""The private names in use, so that a test can say which one a new torch release moved."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

REQUIRED: tuple[str, ...] = (
    "torch._C._dynamo.eval_frame:reset_code",
    "torch._dynamo.backends.common:aot_module_simplified",
    "torch._dynamo.config:suppress_errors",
    "torch._dynamo.convert_frame:_compile",
    "torch._dynamo.convert_frame:get_and_maybe_log_recompilation_reasons",
    "torch._dynamo.convert_frame:register_bytecode_hook",
    "torch._dynamo.device_interface:CudaInterface.Worker.get_device_properties",
    "torch._dynamo.device_interface:caching_worker_current_devices",
    "torch._dynamo.device_interface:caching_worker_device_properties",
    "torch._dynamo.eval_frame:_debug_get_cache_entry_list",
    "torch._dynamo.eval_frame:cached_backends",
    "torch._dynamo.exc:RestartAnalysis",
    "torch._dynamo.exc:SkipFrame",
    "torch._dynamo.exc:TorchDynamoException",
    "torch._dynamo.guards:DeletedGuardManagerWrapper",
    "torch._dynamo.output_graph:OutputGraph._call_user_compiler",
    "torch._dynamo.pgo:_CODE_STATE",
    "torch._dynamo.pgo:_INIT_CODE_STATE",
    "torch._dynamo.symbolic_convert:InstructionTranslatorBase.log_graph_break",
    "torch._dynamo.utils:CleanupManager._remove_id",
    "torch._dynamo.utils:counters",
    "torch._functorch.config:enable_autograd_cache",
    "torch._functorch.config:force_non_lazy_backward_lowering",
    "torch._guards:CompileContext.current_compile_id",
    "torch._inductor.codegen.common:CSE.generate",
    "torch._inductor.codegen.cpp:CppScheduling.define_kernel",
    "torch._inductor.codegen.triton:TritonKernel._lift_helper",
    "torch._inductor.codegen.triton:TritonKernel.codegen_iteration_ranges_entry",
    "torch._inductor.codegen.triton:TritonKernel.partial_accumulate",
    "torch._inductor.codegen.triton:TritonScheduling.define_kernel",
    "torch._inductor.compile_fx:_check_triton_bf16_support",
    "torch._inductor.compile_fx:_compile_fx_main",
    "torch._inductor.compile_fx:_recursive_joint_graph_passes",
    "torch._inductor.compile_fx:_recursive_pre_grad_passes",
    "torch._inductor.compile_fx:_warn_tf32_disabled",
    "torch._inductor.compile_fx:compile_fx",
    "torch._inductor.compile_fx:compile_fx_backward",
    "torch._inductor.compile_fx:compile_fx_forward",
    "torch._inductor.compile_fx:compile_fx_inner",
    "torch._inductor.compile_fx:min_cut_rematerialization_partition",
    "torch._inductor.compile_fx:partition_fn",
    "torch._inductor.config:benchmark_epilogue_fusion",
    "torch._inductor.config:benchmark_fusion",
    "torch._inductor.config:cpp.vec_isa_ok",
    "torch._inductor.config:fx_graph_cache",
    "torch._inductor.config:layout_optimization",
    "torch._inductor.config:triton.spill_threshold",
    "torch._inductor.cpp_builder:cpp_compiler_search",
    "torch._inductor.cpu_vec_isa:supported_vec_isa_list",
    "torch._inductor.cpu_vec_isa:valid_vec_isa_list",
    "torch._inductor.debug:log_ir_post_fusion",
    "torch._inductor.debug:log_ir_pre_fusion",
    "torch._inductor.fx_passes.fuse_attention:_warn_tf32_disabled",
    "torch._inductor.fx_passes.joint_graph:constant_fold_uniform_value",
    "torch._inductor.fx_passes.pad_mm:_should_pad",
    "torch._inductor.fx_passes.pad_mm:is_mm_compute_bound",
    "torch._inductor.graph:GraphLowering.codegen",
    "torch._inductor.graph:GraphLowering.compile_to_module",
    "torch._inductor.ir:ComputedBuffer.with_original_inner_fn",
    "torch._inductor.ir:Loops.__post_init__",
    "torch._inductor.ir:MultiOutputReduction.store_reduction",
    "torch._inductor.ir:Pointwise.make_loader",
    "torch._inductor.ir:Scan.store_reduction",
    "torch._inductor.ir:Scatter.store_output",
    "torch._inductor.ir:Sort.store_reduction",
    "torch._inductor.loop_body:InterpreterShim.run",
    "torch._inductor.loop_body:LightTracer.create_node",
    "torch._inductor.loop_body:LoopBodyBlock.debug_str",
    "torch._inductor.loop_body:LoopBodyBlock.extract_pw_from_reduction",
    "torch._inductor.pattern_matcher:aot_function",
    "torch._inductor.runtime.hints:TRITON_MAX_BLOCK",
    "torch._inductor.runtime.triton_compat:triton_key",
    "torch._inductor.runtime.triton_helpers:set_driver_to_gpu",
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner._precompile_config",
    "torch._inductor.runtime.triton_heuristics:GridExpr.from_meta",
    "torch._inductor.runtime.triton_heuristics:check_autotune_cache",
    "torch._inductor.runtime.triton_heuristics:config_to_dict",
    "torch._inductor.scheduler:WhyNoFuse.__call__",
    "torch._inductor.select_algorithm:AlgorithmSelectorCache.do_autotuning",
    "torch._inductor.select_algorithm:AlgorithmSelectorCache.make_precompile_fn",
    "torch._inductor.utils:IndentedBuffer.writeline",
    "torch._inductor.virtualized:V.current_node",
    "torch._inductor.virtualized:V.graph",
    "torch._subclasses.fake_tensor:FakeTensorMode.avoid_device_init",
    "torch._subclasses.fake_tensor:init_gpu_context",
    "torch._utils_internal:max_clock_rate",
    "torch.amp.autocast_mode:_enter_autocast",
)


def missing() -> Iterator[str]:
    """The names of `REQUIRED` that the installed torch lacks."""
    for entry in REQUIRED:
        module, _, path = entry.partition(":")
        owner: object = importlib.import_module(module)
        for part in path.split("."):
            if not hasattr(owner, part) and not _is_virtualized(owner):
                yield entry
                break
            owner = getattr(owner, part, None)


def _is_virtualized(owner: object) -> bool:
    return type(owner).__name__ == "_V"
