"""The user's Triton kernels: `kernel[grid](...)` and torch.library.triton_op.

AOTAutograd turns each launch in a graph into one call of a higher-order operator, which copies the tensors that the
kernel writes and returns the copies. `launches_without_gpu` lets TorchDynamo capture such calls on a machine without a
GPU, and replaces the launch itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, cast

import torch
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
import torch.utils._triton as triton_probes
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_functional,
    triton_kernel_wrapper_mutation,
)
from torch.fx import GraphModule, Node

from compiler.torch_api.patching import Function, call_instead, replace_attribute


class NoGpuError(RuntimeError):
    """A Triton kernel can't run without a GPU."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch in a graph. `function(grid, *arguments)` returns written copies of the arguments named in `written`."""

    name: str
    function: Callable[..., tuple[Any, ...]]
    grid: Any
    arguments: Sequence[Any]
    written: Sequence[str]


def launch_of(node: Node) -> Launch | None:
    """The launch of a node; None if the node is no launch."""
    if node.target is not triton_kernel_wrapper_functional:
        return None
    operator: Any = node.target
    facts: dict[str, Any] = dict(node.kwargs)
    grid, arguments = facts.pop("grid"), facts.pop("kwargs")
    written = tuple(name for name in arguments if name in facts["tensors_to_clone"])
    kernel = _function_of(facts["kernel_idx"])

    def launch(grid: Any, *values: Any) -> tuple[Any, ...]:
        if not torch.cuda.is_available() and any(isinstance(value, torch.Tensor) for value in values):
            raise NoGpuError(
                f"the Triton kernel {kernel.__name__} runs on a GPU, and there is none here: an operator of "
                "torch.library.triton_op runs on a CPU with an implementation of its own, register_kernel('cpu')"
            )
        changed = operator(grid=grid, kwargs=dict(zip(arguments, values, strict=True)), **facts)
        return tuple(changed[name] for name in written)

    return Launch(f"triton.{kernel.__name__}", launch, grid, [*arguments.values()], written)


@dataclass(frozen=True, slots=True)
class GraphLaunch:
    """A launch in a post-grad graph: its number among all launches of the process, and its tensor arguments by name."""

    node: Node
    name: str
    number: int
    arguments: Mapping[str, Node]


def launches(module: GraphModule) -> Iterator[GraphLaunch]:
    """The launches of users' Triton kernels in a post-grad graph, in order."""
    for node in module.graph.find_nodes(op="call_function", target=triton_kernel_wrapper_mutation):
        facts: Any = node.kwargs
        yield GraphLaunch(node, _function_of(facts["kernel_idx"]).__name__, facts["constant_args_idx"], facts["kwargs"])


Written = dict[int, dict[str, str]]
"""The arguments that each launch of a graph writes, by the launch's number: name -> node."""


def written_arguments(module: GraphModule) -> Written:
    """The arguments that the launches of AOTAutograd's graph write."""
    found: Any = module.graph.find_nodes(op="call_function", target=triton_kernel_wrapper_functional)
    each = [node.kwargs for node in found]
    return {
        facts["constant_args_idx"]: {name: facts["kwargs"][name].name for name in facts["tensors_to_clone"]}
        for facts in each
    }


def fuses_epilogues() -> bool | None:
    """Whether what follows a user's kernel may be fused with it; None if this torch has no setting for it."""
    found: bool | None = getattr(inductor_config, "epilogue_fusion_user_defined_triton_kernel", None)
    return found


def _function_of(kernel_index: int) -> Any:
    """A kernel's function, without an autotuner or heuristics around it."""
    kernel: Any = kernel_side_table.get_kernel(kernel_index)
    while not hasattr(kernel, "__name__"):
        kernel = kernel.fn
    return kernel


def operators_kept_whole(inputs: Sequence[Any]) -> AbstractContextManager[None]:
    """Keep AOTAutograd from decomposing torch.library.triton_op in the block if no input is on a GPU.

    The operator may have a CPU implementation.
    """
    if any(isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in inputs):
        return nullcontext()
    return functorch_config.patch(decompose_custom_triton_ops=False)


@dataclass(frozen=True, slots=True)
class PlainLaunch:
    """A launch of a `@triton.jit` function.

    `types` has Triton's type of each parameter. `blocks` holds the "constexpr" parameters; `arguments` are the others,
    in order. `source` defines the function `kernel` and all functions that it calls.
    """

    kernel: Any
    source: str
    name: str
    arguments: Sequence[Any]
    types: Mapping[str, str]
    blocks: Mapping[str, Any]
    grid: tuple[int, int, int]

    def place_of(self, line: int) -> str:
        """The file and line where the user wrote a line of `source`, from 1: "model.py:12"; "" if it is not found."""
        row = self.source.split("\n")[line - 1].strip()
        places = (f"{file}:{number}" for file, number, text in source_lines(self.kernel) if text == row)
        return next(places, "") if line else ""

    def module_named(self, name: str) -> str:
        """The module that the kernel, or a function that it calls, knows by a name, unless it is Triton's; else ""."""
        found = (function.__globals__.get(name) for function in _functions_of(self.kernel))
        names = (each.__name__ for each in found if isinstance(each, ModuleType))
        return next((each for each in names if each.partition(".")[0] != "triton"), "")


def is_launch(node: Node) -> bool:
    """Whether a post-grad node launches a user's Triton kernel."""
    return node.target is triton_kernel_wrapper_mutation


SourceLine = tuple[str, int, str]
"""A line of a user's kernel: file, line number, text."""


def source_lines(kernel: Any) -> Iterator[SourceLine]:
    """The lines of a user's kernel, and of the `@triton.jit` functions that it calls, where the user wrote them."""
    for function in _functions_of(kernel):
        rows, first = inspect.getsourcelines(function)
        yield from ((function.__code__.co_filename, number, row.strip()) for number, row in enumerate(rows, first))


def _functions_of(kernel: Any) -> Iterator[FunctionType]:
    """The Python functions of a user's kernel and of the `@triton.jit` functions that it calls."""
    pending, seen = [kernel], set()
    while pending:
        function: Any = pending.pop()
        while not inspect.isfunction(function):  # JITFunction, and autotuners and heuristics around it
            function = function.fn
        if function in seen:
            continue
        seen.add(function)
        yield function
        called = (function.__globals__.get(name) for name in function.__code__.co_names)
        pending += [each for each in called if type(each).__name__ == "JITFunction"]


def check_device(kernel: Any, device: torch.device | None) -> None:
    """Raise NoGpuError if a kernel's device is a CPU and Triton has no CPU backend."""
    from triton.backends import backends

    if device is not None and device.type == "cpu" and "cpu" not in backends:
        raise NoGpuError(
            f"Triton can't compile the kernel {kernel.__name__} for the CPU that its tensors are on: "
            "move them to a GPU, or leave out `check`, `time` and target='cpu' to see the code for a GPU"
        )


@contextmanager
def launches_without_gpu(driver: AbstractContextManager[None], launch: Callable[[PlainLaunch], None]) -> Iterator[None]:
    """Let TorchDynamo capture Triton launches in the block without a GPU; each launch calls `launch`.

    `driver` activates a Triton driver in its block. Nothing changes if Triton has a GPU or is not installed.
    """
    if not triton_probes.has_triton_package() or triton_probes.has_triton():
        yield
        return
    from triton import JITFunction

    def observe_run(run: Function, kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if warmup:
            return run(kernel, *args, grid=grid, warmup=True, **options)
        return launch(_plain_launch(kernel, args, grid, options))

    with (
        replace_attribute(triton_probes, "has_triton", _pretend_triton),
        driver,
        replace_attribute(JITFunction, "run", call_instead(observe_run)),
    ):
        yield


def _pretend_triton(original: Any) -> Callable[..., bool]:
    """A `has_triton` that returns True; its `cache_clear` clears the original's cache, which Inductor uses."""

    def has_triton(**_devices: bool) -> bool:  # torch 2.15 passes include_cpu=
        return True

    has_triton.cache_clear = original.cache_clear  # type: ignore[attr-defined]
    return has_triton


def _plain_launch(kernel: Any, args: Sequence[Any], grid: Any, options: Mapping[str, Any]) -> PlainLaunch:
    """The launch `kernel[grid](*args, **options)`, without compiler options such as num_warps."""
    from torch._inductor.codegen.triton import TritonKernel
    from torch._inductor.codegen.wrapper import user_defined_triton_kernel_transitive_closure_source_code
    from triton.language import constexpr
    from triton.runtime.jit import mangle_type

    given = {name: value for name, value in options.items() if name in kernel.arg_names}
    bound = kernel.signature.bind(*args, **given)
    bound.apply_defaults()
    values = {n: value.value if isinstance(value, constexpr) else value for n, value in bound.arguments.items()}
    types = {
        parameter.name: "constexpr" if parameter.is_constexpr else mangle_type(values[parameter.name])
        for parameter in kernel.params
    }
    sizes = map(int, (*(grid(values) if callable(grid) else grid), 1, 1)[:3])
    code = user_defined_triton_kernel_transitive_closure_source_code(kernel)
    blocks = {name: value for name, value in values.items() if types[name] == "constexpr"}
    others = (value for name, value in values.items() if name not in blocks)
    return PlainLaunch(
        kernel=kernel,
        source=f"{TritonKernel.gen_common_triton_imports()}\n@triton.jit\n{code}",
        name=kernel.__name__,
        arguments=[value.detach() if isinstance(value, torch.Tensor) else value for value in others],
        types=types,
        blocks=blocks,
        grid=cast("tuple[int, int, int]", tuple(sizes)),
    )
