"""The backend that `torch.compile(backend="tcompile")` calls: from a captured graph to something that can be called."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch.fx import GraphModule

from compiler.backend import build, pipeline
from compiler.backend.context import Context
from compiler.backend.emit_cpp import emit
from compiler.backend.interpret import interpret
from compiler.backend.ir import Program
from compiler.backend.launch import Launcher
from compiler.backend.lower.graph import lower
from compiler.backend.options import BackendOptions, parsed
from compiler.torch_api.backend import Call, boxed, compile_with_autograd
from compiler.torch_api.fx import value_of


def tcompile(
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph that TorchDynamo captured. Raises OptionError for a mode or an option that there is not."""
    chosen = parsed(mode, options)
    forward, backward, inference = (
        partial(compile_graph, name=name, options=chosen) for name in ("forward", "backward", "inference")
    )
    return compile_with_autograd(module, inputs, forward, backward, inference)


def compile_graph(
    module: GraphModule,
    _inputs: Sequence[Any],
    *,
    name: str,
    options: BackendOptions,
    passes: Mapping[str, pipeline.Pass] = pipeline.PASSES,
) -> Call:
    """Compile one graph of ATen operators, as AOTAutograd gives it."""
    ctx = Context(options.thresholds, example_sizes(module), name)
    ctx.pass_name = "lower"
    lowered = lower(module, name, ctx)
    program = pipeline.run(lowered, ctx, passes).last
    if options.interpret:
        return interpreted(program)
    if why := no_code(program):
        _say_once(why)
        return interpreted(program)
    return compiled(program, ctx)


def example_sizes(module: GraphModule) -> dict[str, int]:
    """Example values of the graph's symbolic sizes, as far as its inputs have them."""
    sizes: dict[str, int] = {}
    for node in module.graph.find_nodes(op="placeholder"):
        value = value_of(node)
        for size in (value,) if isinstance(value, torch.SymInt) else getattr(value, "shape", ()):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol and size.node.hint is not None:
                sizes[str(size.node.expr)] = int(size.node.hint)
    return sizes


def no_code(program: Program) -> str:
    """Why no code is written for a program, "" if it is."""
    devices = {buffer.device for buffer in program.buffers}
    if devices - {"cpu"}:
        return f"it writes code for the CPU so far, not for {', '.join(sorted(devices - {'cpu'}))}"
    if program.kernels and build.compiler() is None:
        return "no C++ compiler was found; install g++, or name one in the variable CXX"
    return ""


@cache
def _say_once(why: str) -> None:
    warnings.warn(f"tcompile runs graphs in its reference interpreter, which is slow: {why}", stacklevel=2)


def interpreted(program: Program) -> Call:
    """A call that runs the program in the reference interpreter."""

    def call(args: list[Any]) -> Sequence[Any]:
        given = list(args)
        args.clear()
        return interpret(program, given)

    return boxed(call)


def compiled(program: Program, ctx: Context) -> Call:
    """A call that runs the program's kernels as machine code; the first one waits for the compiler."""
    code = emit(program, ctx, build.has_vector_math())
    launcher = Launcher(program, code)
    running = build.Build.start(code) if program.kernels else None
    ready: list[Call] = []

    def call(args: list[Any]) -> Sequence[Any]:
        if not ready:
            ready.append(launcher.made(running.functions() if running else {}))
        return ready[0](args)

    return boxed(call)
