"""Compile a captured graph to a callable, in `tcompile`: `torch.compile(backend="tcompile")` calls this function."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import count
from threading import RLock
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule, Node

from compiler.backend import pipeline
from compiler.backend.cpp.emit import emit as emit_cpp
from compiler.backend.ir import CompilerUnavailableError, Extern, Kernel, Program, Strided, strided_views
from compiler.backend.ir.reference_interpreter import State, interpret
from compiler.backend.lower.graph import RULES, lower
from compiler.backend.lower.library_calls import row_pitch
from compiler.backend.options import BackendOptions, parse_options
from compiler.backend.passes.context import Context
from compiler.backend.passes.cost import MOST_32
from compiler.backend.passes.matmuls import with_alternatives
from compiler.backend.pipeline import watcher
from compiler.backend.runtime import build_cpp
from compiler.backend.runtime.launch import Launcher, by_kernel, gpu_of
from compiler.backend.torch_glue.compiling import compile_with_autograd
from compiler.backend.torch_glue.constants import with_known_constants
from compiler.backend.torch_glue.data_sizes import is_piece
from compiler.backend.torch_glue.index_bounds import is_below
from compiler.backend.torch_glue.layout import Rules, with_layouts
from compiler.backend.torch_glue.saved import claim_donated_buffers, donate, donated_names
from compiler.backend.triton.emit import emit as emit_triton
from compiler.process import made_to_stay
from compiler.torch_api.aot import Call, mark_boxed, with_backward
from compiler.torch_api.compilations import Around
from compiler.torch_api.fx import are_in_memory, value_of
from compiler.torch_api.unread import skip_unread_work, without_marks

if TYPE_CHECKING:
    from compiler.torch_api.graph_capture import Graphs


LAYOUTS = Rules(RULES.__contains__, row_pitch)
COLLECTED = 5
"""Full garbage collections run in one of this many compilations: without any, memory use would grow."""
KINDS = ("forward", "backward", "inference")
CALL = 4
"""Host time of an extern call, as a number of kernel launches."""
_COMPILATIONS = count()


def tcompile(
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph that TorchDynamo captured; torch.compile calls this.

    >>> fast = torch.compile(model, backend="tcompile", mode="reduce-overhead")

    Raises OptionError for an unknown mode or option; the message suggests the closest valid one.
    """
    chosen = parse_options(mode, options)
    without_marks()
    graphs = cache(_graphs) if chosen.graphs else None
    _wake(inputs)
    halves = (partial(compile_graph, name=name, options=chosen, graphs=graphs) for name in KINDS)
    is_direct = (told := watcher()) is None or not told.replaces
    with with_backward(), build_cpp.stop_on_error():
        return compile_with_autograd(module, inputs, *halves, random=chosen.random, is_direct=is_direct)


@contextmanager
def _skip_unused_tracing() -> Iterator[None]:
    """Skip TorchDynamo's work for logs and traces that are off; in most compilations, also full garbage collections."""
    is_uncollected = (next(_COMPILATIONS) + 1) % COLLECTED
    with skip_unread_work(), made_to_stay() if is_uncollected else nullcontext():
        yield


_AROUND = Around(tcompile, _skip_unused_tracing)
_AROUND.listen()


def compile_graph(
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    name: str,
    options: BackendOptions,
    graphs: Callable[[], Graphs] | None = None,
    passes: Mapping[str, pipeline.Pass] = pipeline.PASSES,
) -> Call:
    """Compile one ATen graph of AOTAutograd. If given, `graphs` returns CUDA graphs to replay it with."""
    saved = saved_for_backward_only(module) if name == "forward" else {}
    mine = donated_names() if name == "backward" else frozenset()
    ctx = context_of(module, inputs, name, options)
    replays = graphs() if graphs is not None and ctx.processors else None
    if ctx.processors:
        ctx.donated = donated_inputs(module, mine)
    if options.tuned and (ctx.processors or options.code == "triton"):
        passes = pipeline.passes_for_tuning(passes)
    stages = pipeline.run(lower(module, name, ctx), ctx, passes)
    program = stages.last
    donate(donatable_buffers(program, saved))
    is_replayed = replays is not None and _is_replayed(replays, module, program, ctx)
    ctx.pass_name = "tune"
    if (told := watcher()) is not None:
        told.after_passes(stages, ctx, options)
        if not told.builds:
            return interpret_program(program)
    call = compile_program(program, ctx, options)
    if replays is None:
        return call
    if is_replayed:
        constants, overwrites = program.constants.values(), bool(program.overwritten)
        return replays.record_graphs(call, module, inputs, name, constants, overwrites=overwrites)
    return replays.mark_backward(call) if name == "backward" else call


def _inputs_on_gpu(module: GraphModule) -> Iterator[Node]:
    for node in module.graph.find_nodes(op="placeholder"):
        if isinstance(value := value_of(node), torch.Tensor) and value.device.type == "cuda":
            yield node


def donated_inputs(module: GraphModule, names: Iterable[str]) -> frozenset[str]:
    """The names in `names` that belong to graph inputs on a GPU. Kernels may overwrite these inputs."""
    return frozenset(node.name for node in _inputs_on_gpu(module)).intersection(names)


def saved_for_backward_only(module: GraphModule) -> Mapping[int, str]:
    """Take over from AOTAutograd the forward's results that only its backward uses; returns their names by position."""
    [output] = module.graph.find_nodes(op="output")
    return {place: output.args[0][place].name for place in claim_donated_buffers()}


def donatable_buffers(program: Program, saved: Mapping[int, str]) -> Iterator[str]:
    """Names of saved tensors that share memory with no other result, input or constant."""
    made = Counter(view.buffer for view in strided_views(program.outputs))
    shared = {*program.inputs, *program.constants}
    for step in program.steps:
        if isinstance(step, Extern) and step.aliases:
            shared.update((*step.targets, *step.reads))
    for place, name in saved.items():
        output = program.outputs[place]
        if isinstance(output, Strided) and made[output.buffer] == 1 and output.buffer not in shared:
            yield name


def _is_replayed(graphs: Graphs, module: GraphModule, program: Program, ctx: Context) -> bool:
    """Decide whether a graph is replayed as a CUDA graph, and report the decision."""
    ctx.pass_name = "cudagraphs"
    steps = tuple(step.targets[0] for step in program.steps if step.targets)
    why = graphs.refusal(module, program.name, is_piece(module)) or _quicker_launched(program, ctx)
    if why:
        ctx.decide(steps, "refused", f"{program.name}: {why}")
        graphs.gave_up |= program.name != "backward"
    else:
        ctx.decide(steps, "captured", f"{program.name}: {graphs.words(module, program.name)}", operations=len(steps))
    return not why


def _quicker_launched(program: Program, ctx: Context) -> str:
    """Reason not to replay a graph, as launching its steps takes the host less time; else "". Always "" for a backward,
    which follows the decision for its forward: a backward has one to two times as many launches.
    """
    launches = sum(1 if isinstance(step, Kernel) else CALL for step in program.steps)
    enough = {"inference": ctx.thresholds.replayed, "forward": ctx.thresholds.replayed_in_training}
    if launches >= enough.get(program.name, 0):
        return ""
    return f"launched one by one, its steps ({len(program.steps)}) take the host less time than a replay"


def context_of(module: GraphModule, inputs: Sequence[Any], name: str, options: BackendOptions) -> Context:
    """Make the context of lowering and the passes. Also changes the graph: one-element constants become aten.full, and
    on a GPU values get layouts that convolutions and padded matmuls prefer.
    """
    with_known_constants(module)
    count, cache = properties(module)
    ctx = Context(options.thresholds, example_sizes(module), name, "lower", processors=count, cache=cache)
    if ctx.processors and (changed := with_layouts(module, inputs, name, LAYOUTS)):
        ctx.decide((name,), "laid out", f"{changed} values have layouts that convolutions and padded matmuls prefer")
    ctx.is_small = (bool(ctx.processors) or options.code == "triton") and is_below(module, MOST_32)
    return ctx


def _wake(inputs: Sequence[Any]) -> None:
    """If inputs are on a GPU, start the compile processes early: they get ready while the graph is lowered."""
    gpus = [value.device for value in inputs if isinstance(value, torch.Tensor) and value.device.type == "cuda"]
    if gpus and torch.cuda.is_available() and not why_no_gpu():
        from compiler.backend.runtime.build_triton import warm_up

        warm_up(gpus[0].index or 0)


def _graphs() -> Graphs:
    from compiler.torch_api.graph_capture import Graphs  # imports much of Inductor

    return Graphs()


def properties(module: GraphModule) -> tuple[int, int]:
    """Number of multiprocessors of a graph's GPU, and the size of its L2 cache in bytes. Both are 0 for a graph on the
    CPU, or without an available GPU.
    """
    values = map(value_of, module.graph.nodes)
    devices = {value.device for value in values if isinstance(value, torch.Tensor) and value.device.type == "cuda"}
    if not devices or not torch.cuda.is_available():
        return 0, 0
    found = torch.cuda.get_device_properties(devices.pop())
    return int(found.multi_processor_count), int(found.L2_cache_size)


def example_sizes(module: GraphModule) -> dict[str, int]:
    """Hints of the graph's symbolic sizes, from the fake tensors of its inputs."""
    sizes: dict[str, int] = {}
    for node in module.graph.find_nodes(op="placeholder"):
        value = value_of(node)
        for size in (value,) if isinstance(value, torch.SymInt) else getattr(value, "shape", ()):
            if not isinstance(size, torch.SymInt) or size.node.is_nested_int():
                continue  # a nested int stands for a ragged dimension and has no value
            if size.node.expr.is_Symbol and size.node.hint is not None:
                sizes[str(size.node.expr)] = int(size.node.hint)
    return sizes


def compile_program(program: Program, ctx: Context, options: BackendOptions) -> Call:
    """Compile a program to a call of generated code. The call uses an interpreter if an option asks for that or, with a
    warning, if no code can be generated.
    """
    if options.interpret:
        return interpret_program(program)
    if options.code == "triton" and not ctx.processors:
        return interpret_triton(program, ctx)
    if why := reason_for_no_code(program):
        _say_once(why)
        return interpret_program(program)
    return compile_for_gpu(program, ctx, options) if gpu_of(program) is not None else compile_for_cpu(program, ctx)


def reason_for_no_code(program: Program) -> str:
    """Reason why no code can be generated for a program, "" if it can."""
    devices = {program.by_name[name].device for kernel in program.kernels for name in kernel.writes}
    if other := sorted(name for name in devices if name != "cpu" and not name.startswith("cuda")):
        return f"it writes code for CPUs and CUDA GPUs, not for {', '.join(other)}"
    if len(devices - {"cpu"}) > 1:
        return f"one graph has kernels on several GPUs: {', '.join(sorted(devices - {'cpu'}))}"
    return why_no_gpu() if devices - {"cpu"} else ""


def why_no_gpu() -> str:
    """Reason why kernels can't run on a GPU here, "" if they can."""
    try:
        from compiler.backend.runtime import on_gpu as gpu
    except ImportError as error:
        return f"Triton is not installed ({error})"
    return gpu.reason_unsupported()


@cache
def _say_once(why: str) -> None:
    warnings.warn(f"tcompile runs graphs in its reference interpreter, which is slow: {why}", stacklevel=2)


def interpret_program(program: Program, launch: Callable[[State, Kernel], None] | None = None) -> Call:
    """Make a call that runs the program in the reference interpreter. If given, `launch` runs the kernels."""

    def call(args: list[Any]) -> Sequence[Any]:
        given = list(args)
        args.clear()
        return interpret(program, given, launch)

    return mark_boxed(call)


def interpret_triton(program: Program, ctx: Context) -> Call:
    """Make a call that runs the program's Triton kernels in Triton's interpreter, on the CPU."""
    from compiler.backend.runtime.run_triton_interpreted import launcher

    return interpret_program(program, launcher(program, ctx))


def compile_for_cpu(program: Program, ctx: Context) -> Call:
    """Compile kernels to a C++ shared library; the first call waits for the C++ compiler."""
    code = emit_cpp(program, ctx, build_cpp.has_vector_math())
    launcher = Launcher(program, by_kernel(code))
    running = build_cpp.Build(code) if program.kernels else None
    return _compile_lazily(program, lambda: launcher.compile(running.functions() if running else {}))


def compile_for_gpu(program: Program, ctx: Context, options: BackendOptions) -> Call:
    """Compile GPU kernels with Triton, CPU kernels to a C++ shared library; the first call waits for both."""
    from compiler.backend.runtime.on_gpu import OnGpu

    here, there = (kernels_on(program, device) for device in ("cpu", "cuda"))
    library = emit_cpp(here, ctx, build_cpp.has_vector_math())
    code = emit_triton(with_alternatives(there, ctx) if options.tuned else there, ctx)
    call = OnGpu(program, code, library, ctx, gpu_of(program) or 0, options.tuned)
    running = build_cpp.Build(library) if here.kernels else None
    return _compile_lazily(program, lambda: call.expected_call(running.functions() if running else {}))


def kernels_on(program: Program, device: str) -> Program:
    """The program with only its kernels for one device type."""
    kernels = [kernel for kernel in program.kernels if program.by_name[kernel.targets[-1]].device.startswith(device)]
    return replace(program, steps=tuple(kernels), frees=())


def _compile_lazily(program: Program, make: Callable[[], Call]) -> Call:
    """Make a call that compiles when it first runs, in any thread. The reference interpreter runs the program while the
    C++ compiler fails, and always if the first run is on tensors without memory, such as fake tensors.
    """
    interpreter, making = interpret_program(program), RLock()
    ready: Call | None = None
    failures, next_attempt = 0, 0.0

    def prepare(args: Sequence[Any]) -> None:
        """Compile. The first failure is retried at the next call, later ones after a pause as long as the attempt."""
        nonlocal ready, failures, next_attempt
        if not are_in_memory(args):
            ready = interpreter
            return
        start = monotonic()
        try:
            ready = make()
        except CompilerUnavailableError as error:
            failures += 1
            if failures > 1:
                next_attempt = 2 * monotonic() - start
            _say_once(f"{error}\nCalls of it try to compile again")

    def call(args: list[Any]) -> Sequence[Any]:
        if ready is None:
            with making:
                if ready is None and monotonic() >= next_attempt:
                    prepare(args)
        return (ready or interpreter)(args)

    return mark_boxed(call)
