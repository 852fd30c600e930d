"""TorchInductor observed: FX graphs around its passes, scheduler IR, fusion, generated code.

The hook is the `inner_compile` parameter of `compile_fx` (torch._inductor.compile_fx), so Inductor's own joint passes,
partitioner and decompositions run as usual. Where torch has no hook, a function is wrapped for the length of one
compilation. With `build=False` code is generated and not built: no g++, no Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.codegen.triton import TritonScheduling
from torch._inductor.dependencies import MemoryDep
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import Layout
from torch._inductor.scheduler import (
    BaseSchedulerNode,
    ExternKernelSchedulerNode,
    FusedSchedulerNode,
    NopKernelSchedulerNode,
)
from torch._inductor.virtualized import V

from compiler.torch_api.builds import failed_builds_forgotten, without_preparations
from compiler.torch_api.cudagraphs import CudaGraphs, Verdict
from compiler.torch_api.dynamo import is_restart
from compiler.torch_api.fusion_rounds import FusionRounds, MergeFacts
from compiler.torch_api.kernel_choices import Selection
from compiler.torch_api.line_origins import FxOrigins, KernelLines, LineOrigins
from compiler.torch_api.loop_text import LoopTexts
from compiler.torch_api.memory_lines import MemoryFacts, MemoryLines
from compiler.torch_api.moving import moved_from_meta
from compiler.torch_api.partitioning import Halves, wrap_partition
from compiler.torch_api.patching import Original, Wrapper, around, replaced
from compiler.torch_api.released import empty_method_caches
from compiler.torch_api.user_triton import UserKernels

Kind = Literal["forward", "backward", "inference"]


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Layout of one buffer; sizes and strides are ints, or strings where they are symbolic."""

    dtype: str
    shape: tuple[int | str, ...]
    stride: tuple[int | str, ...]
    device: str


@dataclass(frozen=True, slots=True)
class IrFacts:
    """One scheduler node.

    `fx` are the post-grad FX nodes it computes; `reads` and `writes` are buffer names. `moves` are the bytes that
    it reads or writes of each, as Inductor counts: every byte once, and none of a buffer that is used within the
    node alone.
    """

    name: str
    kind: str
    label: str
    text: str
    fx: FxOrigins
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    parts: tuple[str, ...]
    moves: dict[str, int]
    tensor: TensorFacts | None

    @property
    def bytes(self) -> int:
        """All that it moves."""
        return sum(self.moves.values())


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """One kernel of Inductor's: its scheduler nodes, its category, and its lines' origins.

    `whole` are the origins of a template's lines that have none of their own. See `ir_kind` for categories.
    """

    name: str
    nodes: tuple[str, ...]
    category: str
    lines: KernelLines
    whole: FxOrigins


class InductorObserver(Protocol):
    """Hears each stage of one `compile_fx` call, in order.

    `branch` names the branch (torch.cond) that nodes are in, "" outside of branches, which come first. Nodes are
    read lazily. `built` gets the code of a half, and returns what is called for it.
    """

    def pre_grad(self, module: torch.fx.GraphModule) -> None: ...
    def joint(self, module: torch.fx.GraphModule) -> None: ...
    def partitioned(self, halves: Halves) -> None: ...
    def aot_graph(self, kind: Kind, module: torch.fx.GraphModule) -> None: ...
    def post_grad(self, kind: Kind, module: torch.fx.GraphModule) -> None: ...
    def ir(self, kind: Kind, nodes: Iterable[IrFacts], branch: str) -> None: ...
    def merged(self, kind: Kind, facts: MergeFacts) -> None: ...
    def refused(self, kind: Kind, first: str, second: str, reason: str, number: int) -> None: ...
    def fused_ir(self, kind: Kind, nodes: Iterable[IrFacts], branch: str) -> None: ...
    def kernel(self, kind: Kind, facts: KernelFacts) -> None: ...
    def memory(self, kind: Kind, facts: MemoryFacts) -> None: ...
    def code(self, kind: Kind, text: str, language: str) -> None: ...
    def failed(self, kind: Kind, error: Exception) -> None: ...
    def decided(self, pass_name: str, verdict: str, why: str) -> None: ...
    def captured_as(self, kind: Kind, verdict: Verdict) -> None: ...
    def selected(self, kind: Kind, selections: Sequence[Selection]) -> None: ...
    def built(self, kind: Kind, run: Callable[..., Any]) -> Callable[..., Any]: ...

    def goes_on(self, kind: Kind) -> bool:
        """Whether anybody asks for what Inductor makes of such a graph."""
        ...


class Retargeter(Protocol):
    """Makes Inductor compile for a GPU that need not be here: `compiler.virtual_gpu` has one."""

    def wrappers(self) -> list[Wrapper]: ...
    def settings(self) -> dict[str, Any]: ...
    def selections(self) -> Sequence[Selection]: ...
    def check_formats(self, module: torch.fx.GraphModule) -> None: ...
    def wrap_main(self, run: Callable[..., Any]) -> Callable[..., Any]: ...
    def wrap_compile(self, compile_graph: Callable[..., Any]) -> Callable[..., Any]: ...
    def wrap_partition(self, partition: Callable[..., Any]) -> Callable[..., Any]: ...


@contextmanager
def observe(
    observer: InductorObserver, *, build: bool, gpu: Retargeter | None = None, runs: bool = True
) -> Iterator[None]:
    """Observe every `compile_fx` call in the block; with a GPU, these write code for it instead.

    Where nobody `runs` what is compiled, meta tensors stand for tensors of the device that code is written for.
    """
    wrappers = _Session(observer, build, runs, gpu).wrappers()
    settings = _inductor_settings(build)
    if gpu is not None:
        wrappers += gpu.wrappers()
        settings |= gpu.settings()
    with ExitStack() as stack:
        stack.callback(empty_method_caches, SIMDScheduling)  # they hold the scheduler nodes of several graphs
        stack.enter_context(inductor_config.patch(settings))
        if not build:
            stack.enter_context(without_preparations())
        stack.enter_context(functorch_config.patch(force_non_lazy_backward_lowering=True, enable_autograd_cache=False))
        for owner, name, make in wrappers:
            stack.enter_context(replaced(owner, name, make))
        yield


def _inductor_settings(build: bool) -> dict[str, Any]:
    """Caches would hide stages; worker processes are for builds."""
    settings: dict[str, Any] = {"fx_graph_cache": False, "fx_graph_remote_cache": False}
    return settings if build else settings | {"compile_threads": 1}


class _Session:
    def __init__(self, observer: InductorObserver, build: bool, runs: bool, gpu: Retargeter | None) -> None:
        self.observer = observer
        self.build = build
        self.runs = runs
        self.gpu = gpu
        self.kind: Kind = "inference"
        self.depth = 0
        self.in_inductor = False
        self.graphs = CudaGraphs(virtual=not build)
        self.lines = LineOrigins()
        self.texts = LoopTexts(_heading)

    def wrappers(self) -> list[Wrapper]:
        found = [
            (aot_backends, "aot_module_simplified", around(self.observe_aot)),
            (compile_fx, "compile_fx", self.wrap_compile_fx),
            (compile_fx, "_recursive_pre_grad_passes", around(self.observe_pre_grad_passes)),
            (compile_fx, "_recursive_joint_graph_passes", around(self.observe_joint_passes)),
            (compile_fx, "min_cut_rematerialization_partition", wrap_partition(self.observer.partitioned)),
            (inductor_debug, "log_ir_pre_fusion", around(self.observe_pre_fusion)),
            (inductor_debug, "log_ir_post_fusion", around(self.observe_post_fusion)),
            (GraphLowering, "run", around(self.observe_run)),
            (GraphLowering, "codegen", around(self.observe_codegen)),
            (CppScheduling, "define_kernel", around(self.observe_define_kernel)),
            (TritonScheduling, "define_kernel", around(self.observe_define_kernel)),
            *UserKernels(self.user_kernel, builds=self.build).wrappers(),
            *self.lines.wrappers(),
            *FusionRounds(self.merged, self.refused).wrappers(),
            *MemoryLines(self.memory).wrappers(),
        ]
        if not self.build:
            found.append((GraphLowering, "compile_to_module", self.only_generated))
        return found + self.graphs.wrappers()

    def wrap_compile_fx(self, original: Callable[..., Any]) -> Callable[..., Any]:
        default = compile_fx.compile_fx_inner

        def wrapper(module: Any, inputs: Any, inner_compile: Any = default, *args: Any, **kwargs: Any) -> Any:
            inner = self.wrap_inner(inner_compile) if inner_compile is default else inner_compile
            before, self.in_inductor = self.in_inductor, True
            try:
                return original(module, self.example_inputs(module, inputs), inner, *args, **kwargs)
            finally:
                self.in_inductor = before

        return wrapper

    def observe_aot(self, run: Original, module: Any, inputs: Any, **kwargs: Any) -> Any:
        """Observe other AOTAutograd backends (aot_eager …) at their compilers; Inductor further in."""
        if self.in_inductor:
            return run(module, inputs, **kwargs)
        trace = self.gpu.wrap_main(run) if self.gpu is not None else run
        return trace(module, self.example_inputs(module, inputs), **self.observed_compilers(kwargs))

    def example_inputs(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Sequence[Any]:
        return inputs if self.runs else moved_from_meta(module, inputs)

    def observed_compilers(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        forward = kwargs["fw_compiler"]
        backward = kwargs.get("bw_compiler") or forward
        inference = kwargs.get("inference_compiler") or forward
        partition = kwargs.get("partition_fn") or default_partition
        return kwargs | {
            "fw_compiler": self.reporting("forward", forward),
            "bw_compiler": self.reporting("backward", backward),
            "inference_compiler": self.reporting("inference", inference),
            "partition_fn": self.reporting_joint(partition),
        }

    def reporting(self, kind: Kind, compile_graph: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(module: torch.fx.GraphModule, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            self.observer.aot_graph(kind, module)
            try:
                if self.gpu is not None:
                    self.gpu.check_formats(module)
                return self.observer.built(kind, compile_graph(module, inputs, *args, **kwargs))
            except Exception as error:
                if self.build or is_restart(error):
                    raise
                self.observer.failed(kind, error)
                return make_boxed_func(module.forward)

        return self.gpu.wrap_compile(wrapper) if self.gpu is not None else wrapper

    def reporting_joint(self, partition: Callable[..., Any]) -> Callable[..., Any]:
        divide = wrap_partition(self.observer.partitioned)(partition)

        def wrapper(module: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
            self.observer.joint(module)
            return divide(module, *args, **kwargs)

        return self.gpu.wrap_partition(wrapper) if self.gpu is not None else wrapper

    def wrap_inner(self, compile_inner: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(module: torch.fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
            self.kind = _kind_of(kwargs)
            self.observer.aot_graph(self.kind, module)
            if not self.build and not self.observer.goes_on(self.kind):
                return make_boxed_func(module.forward)
            self.graphs.forget()
            tried = kwargs.get("cudagraphs") is None or bool(kwargs["cudagraphs"])
            try:
                with failed_builds_forgotten():
                    compiled = compile_inner(module, inputs, **kwargs)
                for verdict in self.graphs.verdicts(self.kind, inputs, tried=tried):
                    self.observer.captured_as(self.kind, verdict)
                if self.gpu is not None:
                    self.observer.selected(self.kind, self.gpu.selections())
                return self.observer.built(self.kind, compiled) if self.build else make_boxed_func(module.forward)
            except Exception as error:  # noqa: BLE001 - whatever Inductor raises is told to the observer
                self.observer.failed(self.kind, error)
                return make_boxed_func(module.forward)

        return wrapper

    def observe_pre_grad_passes(self, run: Original, module: Any, *args: Any, **kwargs: Any) -> Any:
        with self.nested() as outermost:
            result = run(module, *args, **kwargs)
        if outermost:
            self.observer.pre_grad(result)
        return result

    def observe_joint_passes(self, run: Original, module: Any, *args: Any, **kwargs: Any) -> Any:
        with self.nested() as outermost:
            if outermost and _is_joint(module):
                self.observer.joint(module)
            return run(module, *args, **kwargs)

    @contextmanager
    def nested(self) -> Iterator[bool]:
        self.depth += 1
        try:
            yield self.depth == 1
        finally:
            self.depth -= 1

    def observe_run(self, run: Original, lowering: GraphLowering, *args: Any, **kwargs: Any) -> Any:
        if not _branch_of(lowering):
            self.lines.lowers(lowering.orig_gm)
            self.observer.post_grad(self.kind, lowering.orig_gm)
        return run(lowering, *args, **kwargs)

    def facts(self, nodes: Sequence[BaseSchedulerNode]) -> Iterator[IrFacts]:
        return (ir_facts(node, self.lines, self.texts) for node in nodes)

    def observe_pre_fusion(self, log: Original, nodes: Sequence[Any]) -> Any:
        self.observer.ir(self.kind, self.facts(nodes), _branch_of(V.graph))
        return log(nodes)

    def observe_post_fusion(self, log: Original, nodes: Sequence[Any]) -> Any:
        self.observer.fused_ir(self.kind, self.facts(nodes), _branch_of(V.graph))
        return log(nodes)

    def merged(self, facts: MergeFacts) -> None:
        self.observer.merged(self.kind, facts)

    def refused(self, first: str, second: str, reason: str, number: int) -> None:
        self.observer.refused(self.kind, first, second, reason, number)

    def memory(self, facts: MemoryFacts) -> None:
        self.observer.memory(self.kind, facts)

    def observe_define_kernel(
        self, define: Original, scheduling: Any, source: str, nodes: Sequence[Any], kernel: Any = None
    ) -> Any:
        name = define(scheduling, source, nodes, kernel)
        parts = [node for node in nodes if isinstance(node, BaseSchedulerNode)]
        written = scheduling.kernel_group if isinstance(scheduling, CppScheduling) else kernel
        self.observer.kernel(self.kind, self.kernel_facts(name, parts, written))
        return name

    def user_kernel(self, name: str, operation: str, origins: Sequence[torch.fx.Node]) -> None:
        whole = self.lines.origins(origins)
        self.observer.kernel(self.kind, KernelFacts(name, (operation,), "user", KernelLines(), whole))

    def kernel_facts(self, name: str, nodes: Sequence[BaseSchedulerNode], kernel: Any) -> KernelFacts:
        templates = [part for node in nodes for part in node.get_nodes() if ir_kind(part) == "template"]
        return KernelFacts(
            name=name,
            nodes=tuple(node.get_name() for node in nodes),
            category=_category(nodes),
            lines=self.lines.of(kernel),
            whole=self.lines.origins([origin for part in templates for origin in _origins(part)]),
        )

    def observe_codegen(self, generate: Original, lowering: GraphLowering) -> Any:
        result = generate(lowering)
        if not _branch_of(lowering):
            language = "cpp" if lowering.cpp_wrapper else "python"
            self.observer.code(self.kind, result[0].value, language)
        return result

    def only_generated(self, _build: Callable[..., Any]) -> Callable[..., Any]:
        """Generate code without a build, and let Inductor go on as if it were built.

        It decides about CUDA graphs after that, and tells AOTAutograd the strides of the backward's inputs.
        """

        def generate(lowering: GraphLowering) -> Any:
            if lowering.cpp_wrapper:
                lowering.codegen_with_cpp_wrapper()
            else:
                lowering.codegen()
            return SimpleNamespace(call=_raise_not_built, runner=_not_built_partitions())

        return generate


def _raise_not_built(_inputs: Any) -> Any:
    raise RuntimeError("this code was generated to be read, and not built: it can't run")


def _not_built_partitions() -> SimpleNamespace:
    """A stand-in for generated code's `runner`: hands each partition to the capturing function."""
    return SimpleNamespace(
        partitions=[], recursively_apply_fns=lambda functions: [f(_raise_not_built) for f in functions]
    )


def _kind_of(options: dict[str, Any]) -> Kind:
    if options.get("is_backward"):
        return "backward"
    return "inference" if options.get("is_inference") else "forward"


def _is_joint(module: torch.fx.GraphModule) -> bool:
    return any(node.op == "placeholder" and str(node.target).startswith("tangents") for node in module.graph.nodes)


def _category(nodes: Sequence[BaseSchedulerNode]) -> str:
    kinds = {ir_kind(part) for node in nodes for part in node.get_nodes()}
    for kind in ("template", "reduction", "pointwise"):
        if kind in kinds:
            return kind
    return "other"


def ir_kind(node: BaseSchedulerNode) -> str:
    """What a scheduler node is: extern, template, reduction, pointwise, fused or other."""
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
    """Name of the branch that this is the lowering of, "" for a whole graph."""
    return lowering.name or "" if getattr(lowering, "parent", None) is not None else ""


def ir_facts(node: BaseSchedulerNode, lines: LineOrigins, text_of: LoopTexts) -> IrFacts:
    """A scheduler node as plain data. Only valid while Inductor compiles its graph."""
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
        parts=tuple(part.get_name() for part in parts) if len(parts) > 1 else (),
        moves=_moves(node, parts),
        tensor=_tensor(parts[-1]),
    )


def _moves(node: BaseSchedulerNode, parts: Sequence[BaseSchedulerNode]) -> dict[str, int]:
    """Bytes moved, by buffer.

    Of a buffer read at data-dependent places (an embedding's table), Inductor counts all where nodes are fused.
    Here it is the most that one part uses, as the parts use the same rows.
    """
    found = node.get_read_write_buffer_accesses(include_reads=True, include_writes=True)
    if len(parts) == 1:
        return found
    deps = [dep for part in parts for dep in part.read_writes.reads_and_writes()]
    pointed = {dep.name for dep in deps if isinstance(dep, MemoryDep) and dep.is_indirect()}
    each = [part.get_read_write_buffer_accesses(include_reads=True, include_writes=True) for part in parts]
    used = {name: max(counts.get(name, 0) for counts in each) for name in pointed}
    return {name: min(count, used.get(name, count)) for name, count in found.items()}


def _origins(node: BaseSchedulerNode) -> list[torch.fx.Node]:
    """The FX nodes that a scheduler node computes.

    An ATen call's `origins` include the producers of its arguments; its `origin_node` is the one it computes.
    """
    operation = node.node
    if operation is None:
        return []
    own = operation.get_origin_node() if ir_kind(node) == "extern" else None
    found = [own] if own is not None else operation.get_origins()
    return sorted(found, key=lambda origin: origin.name)


def _label(parts: Sequence[BaseSchedulerNode]) -> str:
    if len(parts) > 1:
        return f"{len(parts)} fused"
    operation = parts[0].node
    name = getattr(operation, "python_kernel_name", None) or getattr(operation, "cpp_kernel_name", None)
    data = getattr(operation, "data", None)
    reduction = getattr(data, "reduction_type", None)
    return str(name or reduction or type(data if data is not None else operation).__name__)


def _heading(node: BaseSchedulerNode) -> str:
    """What a node is, in a few words: "reduction sum", "extern_kernels.mm"."""
    kind, label = ir_kind(node), _label(node.get_nodes())
    return {"pointwise": kind, "fused": label, "extern": label}.get(kind, f"{kind} {label}")


def _tensor(node: BaseSchedulerNode) -> TensorFacts | None:
    layout = getattr(node.node, "layout", None)
    if not isinstance(layout, Layout):
        return None
    return TensorFacts(
        dtype=str(layout.dtype).removeprefix("torch."),
        shape=tuple(_size(value) for value in layout.size),
        stride=tuple(_size(value) for value in layout.stride),
        device=str(layout.device),
    )


def _size(value: Any) -> int | str:
    return int(value) if isinstance(value, int) or getattr(value, "is_Integer", False) else str(value)


def inductor_backend(mode: str, options: dict[str, Any], dynamic: bool | None) -> Callable[..., Any]:
    """`torch.compile(mode=…, options=…)`'s backend. Raises RuntimeError for an unknown option."""
    return torch._TorchCompileInductorWrapper(mode, options, dynamic)
