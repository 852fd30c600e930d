"""Observe TorchInductor: FX graphs around its passes, scheduler IR, fusion, generated code.

The hook is the `inner_compile` parameter of `compile_fx` (torch._inductor.compile_fx), so Inductor's own joint passes,
partitioner and decompositions run as usual. Functions without a hook are wrapped during one compilation. With
`build=False`, code is generated but not built, which needs neither g++ nor Triton.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, Protocol

import torch
import torch._dynamo.backends.common as aot_backends
import torch._functorch.config as functorch_config
import torch._inductor.compile_fx as compile_fx
import torch._inductor.config as inductor_config
import torch._inductor.debug as inductor_debug
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import default_partition
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.codegen.cutedsl.cutedsl_scheduling import CuteDSLScheduling
from torch._inductor.codegen.cutlass.scheduling import CUTLASSScheduling
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.codegen.triton import TritonScheduling
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.dependencies import MemoryDep, WeakDep
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import Layout, Pointwise, UserDefinedTritonKernel
from torch._inductor.scheduler import (
    BaseSchedulerNode,
    ExternKernelSchedulerNode,
    FusedSchedulerNode,
    NopKernelSchedulerNode,
    Scheduler,
    WhyNoFuse,
)
from torch._inductor.virtualized import V
from torch._logging._internal import trace_structured

from compiler.record import Decision, GraphHalf, Merge
from compiler.record.distributed_facts import collective_kind
from compiler.torch_api.buffers import Buffer, buffers
from compiler.torch_api.builds import failed_builds_forgotten, without_preparations
from compiler.torch_api.cudagraphs import CudaGraphs
from compiler.torch_api.dynamo import is_restart
from compiler.torch_api.fx import dtype_name, target_name
from compiler.torch_api.kernel_choices import Selection
from compiler.torch_api.line_origins import FxOrigins, KernelLines, LineOrigins
from compiler.torch_api.loop_text import LoopTexts
from compiler.torch_api.memory_lines import MemoryFacts, MemoryLine, memory_facts, memory_lines
from compiler.torch_api.moving import moved_from_meta
from compiler.torch_api.partitioning import Halves, observe_partition
from compiler.torch_api.patching import Function, Wrapper, call_after, call_before, call_instead, replace_attributes
from compiler.torch_api.released import empty_method_caches
from compiler.torch_api.user_triton import SourceLine, check_device, is_launch, source_lines

Kind = Literal["forward", "backward", "inference"]
LoopStage = Literal["ir", "fused_ir"]
_SCHEDULINGS = (CppScheduling, TritonScheduling, CUTLASSScheduling, CuteDSLScheduling)
_USER_LAUNCHES = [
    name for name in ("codegen", "codegen_with_epilogue_fusion") if hasattr(UserDefinedTritonKernel, name)
]
_COMPILERS: dict[str, Kind] = {
    "fw_compiler": "forward", "bw_compiler": "backward", "inference_compiler": "inference",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class IrFacts:
    """One scheduler node.

    `fx` names the post-grad FX nodes that the node computes. `reads` and `writes` are buffer names, `updates` those
    of other nodes' buffers that it writes into.
    `parts` are the names of the nodes that were fused into this node, () if it is not fused.
    `moves` are the bytes read or written per buffer, as Inductor counts: each byte once, internal buffers excluded.
    `tensor` holds `fx.tensor_attrs` of the (last) tensor that the node writes, without "bytes"; {} if there is none.
    """

    name: str
    kind: str
    label: str
    text: str
    fx: FxOrigins
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    updates: tuple[str, ...]
    parts: tuple[str, ...]
    moves: dict[str, int]
    tensor: dict[str, Any]

    @property
    def bytes(self) -> int:
        """Total bytes read and written."""
        return sum(self.moves.values())

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The buffers that a collective fills and that this node waits for; () for all other nodes."""
        return self.reads if self.label.startswith("torch.ops._c10d_functional.wait_tensor") else ()


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """One Inductor kernel: its scheduler nodes, its category, and the FX origins of its lines.

    `category` is "template", "reduction", "pointwise", "other", or "user" for a user's Triton kernel.
    `whole` are the origins of template lines without an entry in `lines`. `source` are the lines of a user's kernel.
    """

    name: str
    nodes: tuple[str, ...]
    category: str
    lines: KernelLines
    whole: FxOrigins
    source: tuple[SourceLine, ...] = ()


class InductorObserver(Protocol):
    """Callbacks for the stages of one `compile_fx` call, in order.

    `half` is "" for graphs before they are partitioned into forward and backward. `branch` names the torch.cond branch
    of loops or a kernel, or is ""; branches are reported first. `nodes` is a lazy iterator. `on_build` gets the
    compiled function of a half and returns its replacement.
    """

    def on_graph(self, stage: str, half: GraphHalf, module: torch.fx.GraphModule) -> None: ...
    def on_partition(self, halves: Halves) -> None: ...
    def on_loops(self, stage: LoopStage, kind: Kind, nodes: Iterable[IrFacts], branch: str) -> None: ...
    def on_merge(self, merge: Merge) -> None: ...
    def on_refusal(self, kind: Kind, first: str, second: str, reason: str, number: int) -> None: ...
    def on_schedule(self, kind: Kind, buffers: tuple[Buffer, ...]) -> None: ...
    def on_kernel(self, kind: Kind, facts: KernelFacts, branch: str) -> None: ...
    def on_memory(self, kind: Kind, facts: MemoryFacts) -> None: ...
    def on_code(self, kind: Kind, text: str, language: str) -> None: ...
    def on_failure(self, kind: Kind, error: Exception) -> None: ...
    def on_decision(self, kind: Kind, decision: Decision) -> None: ...
    def on_selections(self, kind: Kind, selections: Sequence[Selection]) -> None: ...
    def on_build(self, kind: Kind, run: Function) -> Function: ...

    def needs_code(self, kind: Kind) -> bool:
        """Whether the code of graphs of this kind is requested."""
        ...


class Retargeter(Protocol):
    """Makes Inductor compile for a GPU that need not be present; implemented in `compiler.virtual_gpu`."""

    def wrappers(self) -> list[Wrapper]: ...
    def settings(self) -> dict[str, Any]: ...
    def selections(self) -> Sequence[Selection]: ...
    def check_formats(self, module: torch.fx.GraphModule) -> None: ...
    def trace(self, run: Function, module: torch.fx.GraphModule, inputs: Sequence[Any], /, **kwargs: Any) -> Any: ...
    def call_on_target(
        self, call: Function, module: torch.fx.GraphModule, inputs: Sequence[Any], /, *args: Any, **kwargs: Any
    ) -> Any: ...


@contextmanager
def observe(
    observer: InductorObserver, *, build: bool, gpu: Retargeter | None = None, runs: bool = True
) -> Iterator[None]:
    """Observe every `compile_fx` call in the block; with `gpu`, the calls generate code for that GPU.

    If the compiled code is never run (`runs=False`), meta tensors stand for tensors on the target device.
    """
    wrappers = _Session(observer, build, runs, gpu).wrappers()
    # Caches would hide stages; worker processes are for builds.
    settings: dict[str, Any] = {"fx_graph_cache": False, "fx_graph_remote_cache": False}
    if not build:
        settings["compile_threads"] = 1
    if gpu is not None:
        wrappers += gpu.wrappers()
        settings |= gpu.settings()
    with (
        inductor_config.patch(settings),
        nullcontext() if build else without_preparations(),
        functorch_config.patch(force_non_lazy_backward_lowering=True, enable_autograd_cache=False),
        replace_attributes(wrappers),
    ):
        try:
            yield
        finally:
            empty_method_caches(SIMDScheduling)  # they keep scheduler nodes of several graphs alive


class _Session:
    def __init__(self, observer: InductorObserver, build: bool, runs: bool, gpu: Retargeter | None) -> None:
        self.observer, self.build, self.runs, self.gpu = observer, build, runs, gpu
        self.kind: Kind = "inference"
        self.depth = 0
        self.in_inductor = False
        self.round = 0
        self.reordered = False
        self.partition_lines: list[MemoryLine] = []
        self.user_operation: tuple[UserDefinedTritonKernel, Any] | None = None
        self.graphs = CudaGraphs(virtual=not build)
        self.lines = LineOrigins()
        self.texts = LoopTexts(_heading)

    def wrappers(self) -> list[Wrapper]:
        partition = partial(observe_partition, self.observer.on_partition)
        found: list[Wrapper] = [
            (aot_backends, "aot_module_simplified", call_instead(self.observe_aot)),
            (compile_fx, "compile_fx", call_instead(self.observe_compile_fx)),
            (compile_fx, "_recursive_pre_grad_passes", call_instead(self.observe_pre_grad_passes)),
            (compile_fx, "_recursive_joint_graph_passes", call_instead(self.observe_joint_passes)),
            (compile_fx, "min_cut_rematerialization_partition", call_instead(partition)),
            (inductor_debug, "log_ir_pre_fusion", call_before(self.observe_pre_fusion)),
            (inductor_debug, "log_ir_post_fusion", call_before(self.observe_post_fusion)),
            (Scheduler, "fuse_nodes", call_before(self.observe_fusion)),
            (Scheduler, "fuse_nodes_once", call_before(self.observe_fusion_round)),
            (Scheduler, "fuse_two_nodes", call_instead(self.observe_merge)),
            (WhyNoFuse, "__call__", call_before(self.observe_refusal)),
            (GraphLowering, "run", call_before(self.observe_lowering)),
            (GraphLowering, "codegen", call_after(self.observe_code)),
            (PythonWrapperCodegen, "run_wrapper_ir_passes", call_after(self.observe_memory)),
            *((scheduling, "define_kernel", call_after(self.observe_kernel)) for scheduling in _SCHEDULINGS),
            *((UserDefinedTritonKernel, name, call_before(self.observe_user_operation)) for name in _USER_LAUNCHES),
            (PythonWrapperCodegen, "define_user_defined_triton_kernel", call_instead(self.observe_user_kernel)),
            *self.lines.wrappers(),
            *self.graphs.wrappers(),
        ]
        if not self.build:
            found.append((GraphLowering, "compile_to_module", lambda _: generate_only))
        return found

    def observe_compile_fx(
        self, run: Function, module: Any, inputs: Any, inner_compile: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        inner = inner_compile or compile_fx.compile_fx_inner
        if inner is compile_fx.compile_fx_inner:
            inner = partial(self.compile_half, inner)
        before, self.in_inductor = self.in_inductor, True
        try:
            return run(module, self.example_inputs(module, inputs), inner, *args, **kwargs)
        finally:
            self.in_inductor = before

    def observe_aot(self, run: Function, module: Any, inputs: Any, **kwargs: Any) -> Any:
        """Observe the compilers of other AOTAutograd backends (aot_eager …); Inductor is observed elsewhere."""
        if self.in_inductor:
            return run(module, inputs, **kwargs)
        forward = kwargs["fw_compiler"]
        kwargs["partition_fn"] = self.on_target(
            partial(self.partition_joint, kwargs.get("partition_fn") or default_partition)
        )
        for name, kind in _COMPILERS.items():
            compile_graph = partial(self.compile_aot_graph, kind, kwargs.get(name) or forward)
            kwargs[name] = self.on_target(compile_graph)
        trace = partial(self.gpu.trace, run) if self.gpu is not None else run
        return trace(module, self.example_inputs(module, inputs), **kwargs)

    def example_inputs(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Sequence[Any]:
        return inputs if self.runs else moved_from_meta(module, inputs)

    def on_target(self, call: Function) -> Function:
        return partial(self.gpu.call_on_target, call) if self.gpu is not None else call

    def compile_aot_graph(
        self, kind: Kind, compile_graph: Function, module: torch.fx.GraphModule, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Compile the forward or backward with the compiler of a backend that uses AOTAutograd."""
        self.observer.on_graph(kind, kind, module)
        try:
            if self.gpu is not None:
                self.gpu.check_formats(module)
            return self.observer.on_build(kind, compile_graph(module, inputs, *args, **kwargs))
        except Exception as error:
            if self.build or is_restart(error):
                raise
            self.observer.on_failure(kind, error)
            return make_boxed_func(module.forward)

    def partition_joint(
        self, partition: Function, module: torch.fx.GraphModule, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        self.observer.on_graph("joint", "", module)
        return observe_partition(self.observer.on_partition, partition, module, inputs, *args, **kwargs)

    def compile_half(
        self, compile_inner: Function, module: torch.fx.GraphModule, inputs: Sequence[Any], **kwargs: Any
    ) -> Any:
        """Compile the forward or backward with Inductor; return the FX graph after an error or without a build."""
        self.kind = _kind_of(kwargs)
        self.observer.on_graph(self.kind, self.kind, module)
        if not self.build and not self.observer.needs_code(self.kind):
            return make_boxed_func(module.forward)
        self.graphs.forget()
        tried = kwargs.get("cudagraphs") is None or bool(kwargs["cudagraphs"])
        try:
            with failed_builds_forgotten():
                compiled = compile_inner(module, inputs, **kwargs)
            for decision in self.graphs.decisions(self.kind, inputs, tried=tried):
                self.observer.on_decision(self.kind, decision)
            if self.gpu is not None:
                self.observer.on_selections(self.kind, self.gpu.selections())
            return self.observer.on_build(self.kind, compiled) if self.build else make_boxed_func(module.forward)
        except Exception as error:  # noqa: BLE001 - the observer gets every error of Inductor
            self.observer.on_failure(self.kind, error)
            return make_boxed_func(module.forward)

    def observe_pre_grad_passes(self, run: Function, module: Any, *args: Any, **kwargs: Any) -> Any:
        with self.count_depth() as depth:
            result = run(module, *args, **kwargs)
        if depth == 1:
            graph: Any = getattr(result, "gm", result)
            self.observer.on_graph("pre_grad", "", graph)
        return result

    def observe_joint_passes(self, run: Function, module: Any, *args: Any, **kwargs: Any) -> Any:
        with self.count_depth() as depth:
            if depth == 1 and _is_joint(module):
                self.observer.on_graph("joint", "", module)
            return run(module, *args, **kwargs)

    @contextmanager
    def count_depth(self) -> Iterator[int]:
        """Count the nesting of passes, which call themselves on subgraphs; the whole graph has depth 1."""
        self.depth += 1
        try:
            yield self.depth
        finally:
            self.depth -= 1

    def observe_lowering(self, lowering: GraphLowering, *_: Any, **__: Any) -> None:
        if not _branch_of(lowering):
            self.lines.add_graph(lowering.orig_gm)
            self.observer.on_graph("post_grad", self.kind, lowering.orig_gm)

    def observe_pre_fusion(self, nodes: Sequence[Any]) -> None:
        self.observer.on_loops("ir", self.kind, self.facts(nodes), _branch_of(V.graph))

    def observe_post_fusion(self, nodes: Sequence[Any]) -> None:
        branch = _branch_of(V.graph)
        self.observer.on_loops("fused_ir", self.kind, self.facts(nodes), branch)
        if not branch:
            self.observer.on_schedule(self.kind, buffers(nodes))

    def facts(self, nodes: Sequence[BaseSchedulerNode]) -> Iterator[IrFacts]:
        return (ir_facts(node, self.lines, self.texts) for node in nodes)

    def observe_fusion(self, *_: Any) -> None:
        """Reset the round count. Fusion goes in rounds until nothing changes, then again with reordered loops."""
        self.round = 0

    def observe_fusion_round(self, _scheduler: Scheduler, _nodes: Any, is_reorder_round: bool) -> None:
        self.round += 1
        self.reordered = is_reorder_round

    def observe_merge(
        self, fuse: Function, scheduler: Scheduler, first: BaseSchedulerNode, second: BaseSchedulerNode, *args: Any
    ) -> Any:
        saved = int(scheduler.score_fusion_memory(first, second))
        names = first.get_name(), second.get_name()
        fused = fuse(scheduler, first, second, *args)
        self.observer.on_merge(Merge("", self.kind, self.round, *names, fused.get_name(), saved, self.reordered))
        return fused

    def observe_refusal(self, why: WhyNoFuse, reason: str, *args: Any) -> None:
        self.observer.on_refusal(self.kind, why.name1, why.name2, reason % args if args else reason, self.round)

    def observe_memory(self, _: Any, wrapper: PythonWrapperCodegen, *_args: Any) -> None:
        """Report the memory lines of a whole graph's wrapper, preceded by those of its partitions."""
        if _branch_of(V.graph):
            return
        lines = [*self.partition_lines, *memory_lines(wrapper.lines)]
        is_partition = isinstance(wrapper, SubgraphPythonWrapperCodegen)
        self.partition_lines = lines if is_partition else []
        if not is_partition:
            self.observer.on_memory(self.kind, memory_facts(wrapper, lines))

    def observe_kernel(
        self, name: str, scheduling: Any, _source: str, nodes: Sequence[Any], kernel: Any = None, **_: Any
    ) -> None:
        parts = [node for node in nodes if isinstance(node, BaseSchedulerNode)]
        templates = [part for node in parts for part in node.get_nodes() if ir_kind(part) == "template"]
        self.report_kernel(KernelFacts(
            name=name,
            nodes=tuple(node.get_name() for node in parts),
            category=_category(parts),
            lines=self.lines.of_kernel(scheduling.kernel_group if isinstance(scheduling, CppScheduling) else kernel),
            whole=self.lines.origins([origin for part in templates for origin in _origins(part)]),
        ))  # fmt: skip

    def report_kernel(self, facts: KernelFacts) -> None:
        self.observer.on_kernel(self.kind, facts, _branch_of(V.graph))

    def observe_user_operation(
        self, operation: UserDefinedTritonKernel, _wrapper: Any, epilogue_fusion: tuple[Any, str] | None = None
    ) -> None:
        """Note whose code is generated, with the loop that becomes part of the user's kernel, if there is one."""
        self.user_operation = operation, epilogue_fusion[0] if epilogue_fusion else None

    def observe_user_kernel(self, define: Function, wrapper: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        """Report a user's Triton kernel when the `codegen` of a launch defines it."""
        if self.user_operation is None:
            return define(wrapper, kernel, *args, **kwargs)
        operation, epilogue = self.user_operation
        if self.build:
            check_device(kernel, operation.get_device())
        found = define(wrapper, kernel, *args, **kwargs)
        origins = [node for node in operation.get_origins() if is_launch(node)]
        names = [operation.get_operation_name()]
        if epilogue is not None:
            origins += epilogue.get_origins()
            names.append(epilogue.get_operation_name())
        whole, source = self.lines.origins(origins), tuple(source_lines(kernel))
        self.report_kernel(KernelFacts(found[0], tuple(names), "user", KernelLines(), whole, source))
        return found

    def observe_code(self, result: Any, lowering: GraphLowering) -> None:
        if not _branch_of(lowering):
            self.observer.on_code(self.kind, result[0].value, "cpp" if lowering.cpp_wrapper else "python")


def generate_only(lowering: GraphLowering) -> Any:
    """Generate code without a build, and return a stub so that Inductor continues.

    Inductor then decides about CUDA graphs and reports the strides of the backward's inputs to AOTAutograd.
    """
    code, _ = lowering.codegen_with_cpp_wrapper() if lowering.cpp_wrapper else lowering.codegen()
    trace_structured("inductor_output_code", payload_fn=lambda: code.value)
    if GraphLowering.save_output_code is not None:  # run_and_get_code sets it
        GraphLowering.save_output_code(code.value)
    # The runner hands each partition to the function that captures it.
    runner = SimpleNamespace(partitions=[], recursively_apply_fns=lambda calls: [f(_raise_not_built) for f in calls])
    return SimpleNamespace(call=_raise_not_built, runner=runner)


def _raise_not_built(_inputs: Any) -> Any:
    raise RuntimeError("this code was generated to be read, and not built: it can't run")


def _kind_of(options: dict[str, Any]) -> Kind:
    if options.get("is_backward"):
        return "backward"
    return "inference" if options.get("is_inference") else "forward"


def _is_joint(module: torch.fx.GraphModule) -> bool:
    return any(node.op == "placeholder" and str(node.target).startswith("tangents") for node in module.graph.nodes)


def _category(nodes: Sequence[BaseSchedulerNode]) -> str:
    kinds = {ir_kind(part) for node in nodes for part in node.get_nodes()}
    return next((kind for kind in ("template", "reduction", "pointwise") if kind in kinds), "other")


def ir_kind(node: BaseSchedulerNode) -> str:
    """The kind of a scheduler node: extern, template, reduction, pointwise, fused or other."""
    if isinstance(node, FusedSchedulerNode):
        return "fused"
    if isinstance(node, ExternKernelSchedulerNode):
        return "extern"
    if isinstance(node, NopKernelSchedulerNode):
        return "other"
    if node.is_template():
        return "template"
    return "reduction" if node.is_reduction() else "pointwise"


def _branch_of(lowering: GraphLowering) -> str:
    """Name of the torch.cond branch being lowered; "" for a whole graph."""
    return lowering.name or "" if getattr(lowering, "parent", None) is not None else ""


def ir_facts(node: BaseSchedulerNode, lines: LineOrigins, text_of: LoopTexts) -> IrFacts:
    """Convert a scheduler node to plain data. Call it only while Inductor compiles the graph."""
    parts = list(node.get_nodes())
    origins = dict.fromkeys(origin for part in parts for origin in _origins(part))
    return IrFacts(
        name=node.get_name(),
        kind=ir_kind(node),
        label=_label(parts),
        text=text_of(node),
        fx=lines.origins(list(origins)),
        reads=tuple(sorted({dep.name for dep in node.read_writes.reads})),
        writes=tuple(node.get_buffer_names()),
        updates=tuple(name for buffer in node.get_outputs() for name in buffer.get_mutations()),
        parts=tuple(part.get_name() for part in parts) if len(parts) > 1 else (),
        moves=_moves(node, parts),
        tensor=_tensor(parts[-1]),
    )


def _moves(node: BaseSchedulerNode, parts: Sequence[BaseSchedulerNode]) -> dict[str, int]:
    """Bytes moved, by buffer.

    For a buffer read at data-dependent indices (an embedding table), Inductor counts the whole buffer in fused nodes.
    Here the count is the maximum over the parts, which read the same rows. Inductor also counts buffers that the node
    only has to come after (`control_deps`); here they are left out.
    """
    if isinstance(node.node, UserDefinedTritonKernel):
        return _moves_of_launch(node.node)
    counted = node.get_read_write_buffer_accesses(include_reads=True, include_writes=True)
    moved = {dep.name for dep in node.read_writes.reads_and_writes() if not isinstance(dep, WeakDep)}
    found = {name: count for name, count in counted.items() if name in moved}
    if len(parts) == 1:
        return found
    deps = [dep for part in parts for dep in part.read_writes.reads_and_writes()]
    pointed = {dep.name for dep in deps if isinstance(dep, MemoryDep) and dep.is_indirect()}
    each = [part.get_read_write_buffer_accesses(include_reads=True, include_writes=True) for part in parts]
    used = {name: max(counts.get(name, 0) for counts in each) for name in pointed}
    return {name: min(count, used.get(name, count)) for name, count in found.items()}


def _moves_of_launch(launch: Any) -> dict[str, int]:
    """Bytes moved by a user's kernel, by buffer: each tensor that it is given, or part of one, is read once.

    What the kernel writes counts twice, but once if nothing was written to the memory before.
    """
    written = {_view_of(each) for each in launch.mutable_args}
    moved: Counter[str] = Counter()
    for view, given in {_view_of(each): each for each in launch.inputs}.items():
        name, elements = given.get_name(), V.graph.sizevars.optimization_hint(math.prod(given.get_size()), fallback=0)
        is_read = view not in written or not _is_unwritten(name, launch)
        moved[name] += int(elements) * int(given.get_dtype().itemsize) * (is_read + (view in written))
    return dict(moved)


def _view_of(tensor: Any) -> tuple[str, str]:
    """Key of a part of a buffer."""
    return tensor.get_name(), str(tensor.get_layout())


def _is_unwritten(name: str, launch: Any) -> bool:
    """Whether a buffer has no values yet when a kernel is launched: Inductor's loop for `torch.empty` has no points."""
    loop = getattr(V.graph.name_to_buffer.get(name), "data", None)
    earlier = itertools.takewhile(lambda operation: operation is not launch, V.graph.operations)
    return (
        isinstance(loop, Pointwise)
        and bool(loop.ranges)
        and all(size == 0 for size in loop.ranges)
        and not any(name in made.get_mutation_names() for operation in earlier for made in operation.get_outputs())
    )


def _origins(node: BaseSchedulerNode) -> list[torch.fx.Node]:
    """The FX nodes that a scheduler node computes.

    An ATen call's `origins` include the producers of its arguments; its `origin_node` is the node that it computes.
    """
    operation = node.node
    if operation is None:
        return []
    own = _called_collective(operation) or operation.get_origin_node() if ir_kind(node) == "extern" else None
    found = [own] if own is not None else operation.get_origins()
    return sorted(found, key=lambda origin: origin.name)


def _called_collective(operation: Any) -> torch.fx.Node | None:
    """The node of a collective; its `origin_node` is the wait, which returns the same buffer."""
    name = str(getattr(operation, "python_kernel_name", None)).removeprefix("torch.ops.")
    if collective_kind(name) is None:
        return None
    called = {node for node in operation.get_origins() if collective_kind(target_name(node))}
    if len(called) < 2:
        return next(iter(called), None)
    return next(node for node in reversed(next(iter(called)).graph.nodes) if node in called)


def _label(parts: Sequence[BaseSchedulerNode]) -> str:
    if len(parts) > 1:
        return f"{len(parts)} fused"
    operation = parts[0].node
    name = getattr(operation, "python_kernel_name", None) or getattr(operation, "cpp_kernel_name", None)
    data = getattr(operation, "data", None)
    reduction = getattr(data, "reduction_type", None)
    return str(name or reduction or type(data if data is not None else operation).__name__)


def _heading(node: BaseSchedulerNode) -> str:
    """A short description of a scheduler node: "reduction sum", "extern_kernels.mm"."""
    kind, label = ir_kind(node), _label(node.get_nodes())
    return {"pointwise": kind, "fused": label, "extern": label}.get(kind, f"{kind} {label}")


def _tensor(node: BaseSchedulerNode) -> dict[str, Any]:
    layout = getattr(node.node, "layout", None)
    if not isinstance(layout, Layout):
        return {}
    shape, stride = list(map(_size, layout.size)), list(map(_size, layout.stride))
    return {"dtype": dtype_name(layout.dtype), "shape": shape, "stride": stride, "device": str(layout.device)}


def _size(value: Any) -> int | str:
    return int(value) if isinstance(value, int) or getattr(value, "is_Integer", False) else str(value)


def inductor_backend(mode: str, options: dict[str, Any], dynamic: bool | None) -> Function:
    """The backend of `torch.compile(mode=…, options=…)`. Raises RuntimeError for an unknown option."""
    return torch._TorchCompileInductorWrapper(mode, options, dynamic)
