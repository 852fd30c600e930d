"""Run Inductor's generated code on CPU tensors, without Triton, and keep each temporary of its kernels.

Every kernel runs as one program that covers its whole grid, with torch instead of `triton.language`. The graph of the
code runs on the same inputs, so that values show which line computes which node.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

_DEVICE_LINES = re.compile(
    r"^.*(?:_cuda_getCurrentRawStream|AsyncCompile|triton_heuristics|import triton).*\n", re.MULTILINE
)
_CUDA = {
    "torch.cuda._DeviceGuard(0)": "nullcontext()",
    "torch.cuda.set_device(0)": "pass",
    "_strided_cuda": "_strided_cpu",
}


@dataclass(frozen=True)
class Pointer:
    """A pointer: memory from an offset on, and the addressed elements."""

    memory: Tensor
    at: Any = 0

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.memory, self.at + offset)


@dataclass
class KernelRun:
    """One launch: the final value of each of the kernel's variables."""

    kernel: str
    values: dict[str, Any] = field(default_factory=dict)


def load(pointer: Pointer, mask: Any = None, other: Any = 0, **_hints: Any) -> Tensor:
    index = torch.as_tensor(pointer.at)
    keep = torch.ones_like(index, dtype=torch.bool) if mask is None else torch.as_tensor(mask)
    index, keep = torch.broadcast_tensors(index, keep)
    found = pointer.memory[torch.where(keep, index, 0)]
    return torch.where(keep, found, torch.as_tensor(other, dtype=found.dtype))


def store(pointer: Pointer, value: Any, mask: Any = None) -> None:
    index, kept, keep = torch.broadcast_tensors(
        torch.as_tensor(pointer.at), torch.as_tensor(value), torch.as_tensor(True if mask is None else mask)
    )
    pointer.memory[index[keep]] = kept[keep].to(pointer.memory.dtype)


def atomic_add(pointer: Pointer, value: Any, mask: Any = None, sem: str = "") -> None:
    index, kept, keep = torch.broadcast_tensors(
        torch.as_tensor(pointer.at), torch.as_tensor(value), torch.as_tensor(True if mask is None else mask)
    )
    pointer.memory.index_put_((index[keep],), kept[keep], accumulate=True)


def _full(shape: list[int], value: Any, dtype: Any = torch.float32) -> Tensor:
    return torch.full(tuple(shape), value, dtype=dtype)


def _same_dtype(compute: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda a, b: compute(*(torch.as_tensor(v, dtype=torch.result_type(a, b)) for v in (a, b)))


def _language() -> dict[str, Any]:
    """The names that a kernel's source uses."""
    dtypes = {f"{kind}{bits}": getattr(torch, f"{kind}{bits}") for kind in ("int", "float") for bits in (16, 32, 64)}
    tl = SimpleNamespace(
        **dtypes, int1=torch.bool, bfloat16=torch.bfloat16, constexpr=int, load=load, store=store, full=_full,
        atomic_add=atomic_add,
        maximum=lambda a, b, *_, **__: _same_dtype(torch.maximum)(a, b),
        minimum=lambda a, b, *_, **__: _same_dtype(torch.minimum)(a, b),
        PropagateNan=SimpleNamespace(ALL=1, NONE=0),
        where=lambda *args: torch.where(*map(torch.as_tensor, args)), arange=torch.arange,
        program_id=lambda _axis: 0, broadcast_to=torch.broadcast_to,
        sum=lambda value, axis: value.sum(axis), range=range, device_assert=lambda *_args: None,
        debug_barrier=lambda: None,
        fma=lambda a, b, c: a * b + c, sqrt_rn=torch.sqrt, abs=torch.abs,
    )  # fmt: skip
    helpers = SimpleNamespace(
        maximum=_same_dtype(torch.maximum),
        minimum=_same_dtype(torch.minimum),
        max2=lambda v, axis: v.amax(axis),
        fmax2=lambda v, axis: v.amax(axis),
    )
    functions = {name: getattr(torch, name) for name in ("erf", "exp", "log", "rsqrt", "sin", "cos", "tanh", "sqrt")}
    libdevice = SimpleNamespace(
        **functions,
    )
    return {"tl": tl, "triton_helpers": helpers, "libdevice": libdevice, "tl_math": libdevice}


class _Kernel:
    def __init__(self, name: str, source: str, runs: list[KernelRun]) -> None:
        text = re.sub(r"^@triton.*?(?=^def )", "", source[source.index("@triton") :], flags=re.MULTILINE | re.DOTALL)
        (function,) = ast.parse(text).body
        assert isinstance(function, ast.FunctionDef)
        self.name, self.runs = name, runs
        self.parameters = [argument.arg for argument in function.args.args]
        namespace = _language()
        exec(f"{text.rstrip()}\n    return locals()", namespace)
        self.function = namespace[name]

    def run(self, *args: Any, **_stream: Any) -> None:
        """Blocks are as long as their axis: XBLOCK is xnumel, R0_BLOCK is r0_numel."""
        known = dict(zip(self.parameters, map(_argument, args), strict=False))
        axes = {name: name.removesuffix("BLOCK").lower() for name in self.parameters if name.endswith("BLOCK")}
        blocks = {name: known[f"{axis}numel"] for name, axis in axes.items()}
        self.runs.append(KernelRun(self.name, self.function(**known, **blocks)))


def _argument(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    elements = value.untyped_storage().nbytes() // value.itemsize - value.storage_offset()
    return Pointer(value.as_strided((elements,), (1,), value.storage_offset()))


def run_code(code: str, inputs: list[Any]) -> list[KernelRun]:
    """Run output code and return its launches, in order."""
    for found, instead in _CUDA.items():
        code = code.replace(found, instead)
    head, _, kernels = code.partition("async_compile = AsyncCompile()")
    runs: list[KernelRun] = []
    compile_kernel = SimpleNamespace(
        triton=lambda name, source, **_device: _Kernel(name, source, runs), wait=lambda _globals: None
    )
    namespace = {"async_compile": compile_kernel, "nullcontext": nullcontext, "get_raw_stream": lambda _index: 0}
    exec(_DEVICE_LINES.sub("", head), namespace)
    exec(kernels.partition("\ndef get_args")[0], namespace)
    namespace["call"](list(inputs))
    return runs


class _Values(Interpreter):
    """Keeps the value of each node on the CPU, from before any later mutation."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.values: dict[str, Any] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        self.values[n.name] = value.clone() if isinstance(value, Tensor) else value
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        moved = kwargs | ({"device": torch.device("cpu")} if "device" in kwargs else {})
        return super().call_function(target, args, moved)


def run_graph(module: GraphModule, inputs: list[Any]) -> dict[str, Any]:
    """Node name -> value."""
    interpreter = _Values(module)
    interpreter.run(*inputs)
    return interpreter.values


def example_inputs(module: GraphModule) -> list[Any]:
    """Random inputs of the graph's shapes: positive (they may be variances), and no index beyond 31."""
    generator = torch.Generator().manual_seed(0)
    return [_example(node.meta["val"], generator) for node in module.graph.nodes if node.op == "placeholder"]


def _example(like: Any, generator: torch.Generator) -> Any:
    if not isinstance(like, Tensor):
        return int(like)
    size = sum((extent - 1) * stride for extent, stride in zip(like.shape, like.stride(), strict=True)) + 1
    if like.dtype.is_floating_point:
        flat = torch.rand(size, generator=generator) / 4 + 0.02
    else:
        flat = torch.randint(0, 2 if like.dtype == torch.bool else 32, (size,), generator=generator)
    return flat.to(like.dtype).as_strided(like.shape, like.stride())


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of a node's value: itself, or those of a tuple."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        yield from (item for item in value if isinstance(item, Tensor))
