"""The reference interpreter: runs a program of any stage on eager PyTorch, one loop after the other.

It is simple and slow: each value is a tensor over all points of its loop. It defines the semantics of programs:
generated code is compared with it, and a wrong result is traced to the pass that introduced it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from compiler.backend.ir import SCANS, BackendError, Extern, Kernel, Loop, MatmulKernel, Program, Strided, map_leaves
from compiler.backend.ir.expr import Const, Expr, Guard, Load, Op, Put
from compiler.backend.ir.index import Index, Indirect, Var, evaluate
from compiler.backend.ir.scalar import OPERATIONS
from compiler.backend.ir.symbols import sources
from compiler.torch_api.bindings import keeps_graph
from compiler.torch_api.fx import has_fakes


def interpret(
    program: Program, args: Sequence[Any], launch: Callable[[State, Kernel], None] | None = None
) -> list[Any]:
    """Run a program on arguments, which it may mutate; returns its outputs. If given, `launch` runs the kernels."""
    state = State.start(program, args)
    for step, freed in program.steps_with_frees:
        if launch is not None and isinstance(step, Kernel):
            launch(state, step)
        else:
            state.run(step)
        for name in freed:
            del state.memory[name]
    outputs = [state.argument(output) for output in program.outputs]
    return [output.detach() if place in program.apart else output for place, output in enumerate(outputs)]


@dataclass(slots=True)
class State:
    """State of a run: `memory` by buffer name, `sizes` by symbol. On fake tensors (`is_fake`) loops compute nothing."""

    program: Program
    sizes: Mapping[str, int]
    memory: dict[str, Any] = field(default_factory=dict)
    is_fake: bool = False

    @staticmethod
    def start(program: Program, args: Sequence[Any]) -> State:
        """Initial state of a run with these arguments."""
        sizes = {name: source.read(args) for name, source in sources(program).items()}
        memory = {**dict(zip(program.inputs, args, strict=True)), **program.constants}
        return State(program, sizes, memory, has_fakes(args))

    def run(self, step: Kernel | Extern) -> None:
        """Run one step."""
        if isinstance(step, MatmulKernel):
            self.run(step.call)
        if isinstance(step, Kernel):
            for loop in step.loops:
                self.loop(loop)
        else:
            made = step.function(*map(self.argument, step.args), **{k: self.argument(v) for k, v in step.kwargs})
            self.keep(step.outputs, made)
            for name in () if step.aliases or self.is_fake else step.targets:
                self.hold(name, step.name)

    def hold(self, name: str, operator: str) -> None:
        """Restride the result of an extern call to match its fake tensor, unless its layout has no strides."""
        buffer = self.program.by_name[name]
        if len(buffer.strides) == len(buffer.shape):
            shape, strides = (tuple(map(self.size, sizes)) for sizes in (buffer.shape, buffer.strides))
            self.memory[name] = match_fake_layout(operator, self.memory[name], shape, strides, buffer.dtype)

    def keep(self, names: Any, values: Any) -> None:
        """Store the results of an extern call by the names of their buffers."""
        if isinstance(names, str):
            self.memory[names] = values
        elif names is not None:
            for name, value in zip(names, values, strict=True):
                self.keep(name, value)

    def size(self, index: Index) -> int:
        """Value of an index without variables."""
        return int(evaluate(index, self.sizes))

    def argument(self, value: Any) -> Any:
        """Convert an argument of an extern call, or an output, to tensors and numbers."""
        return map_leaves(value, self._plain)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Strided):
            return self.view(value)
        return self.size(value) if isinstance(value, Index) else value

    def view(self, view: Strided) -> Any:
        """Tensor for a strided view of a buffer."""
        tensor = self.memory[view.buffer]
        if view.is_all_of(self.program.by_name[view.buffer]) or tensor.layout is not torch.strided:
            return tensor
        start = tensor.storage_offset() + self.size(view.offset)
        return tensor.as_strided([*map(self.size, view.shape)], [*map(self.size, view.strides)], start)

    def loop(self, loop: Loop) -> None:
        """Run a loop: fill its target."""
        if self.is_fake or self.program.by_name[loop.target].device == "meta":
            self.target(loop.target)
            return
        points = _Points(self, loop.space)
        if isinstance(loop.value, Put):
            self.add(loop.target, loop.value, points)
            return
        value = points.full(points.value(loop.value))
        if loop.reduction:
            value = _reduce(loop.reduction, value, len(loop.reduced))
        target = self.target(loop.target)  # only now: it may reuse the memory that the value was read from
        if not loop.stored:
            target.copy_(value.reshape(target.shape))
        elif value.numel():
            places = _Points(self, loop.stored)
            target[tuple(places.full(places.index(index)) for index in loop.index)] = value

    def add(self, target: str, put: Put, points: _Points) -> None:
        """Run a scatter: add the values at all points to elements of the target, or replace the elements."""
        value = points.full(points.value(put.value))
        places = [points.full(points.index(index)) for index in put.index]
        total = self.target(target)
        if places:
            total.index_put_(tuple(places), value, accumulate=put.adds)
        elif put.adds:
            total.add_(value.sum())
        elif value.numel():
            total.copy_(value.flatten()[-1])

    def target(self, name: str) -> torch.Tensor:
        """Tensor of a buffer, allocated if it has no memory yet."""
        if name not in self.memory:
            buffer = self.program.by_name[name]
            shape, strides = [*map(self.size, buffer.shape)], [*map(self.size, buffer.strides)]
            if buffer.reuses and not (buffer.reuses in self.program.overwritten and keeps_graph()):
                self.memory[name] = self.memory.pop(buffer.reuses).as_strided(shape, strides, 0)
            else:
                self.memory[name] = torch.empty_strided(shape, strides, dtype=buffer.dtype, device=buffer.device)
        found: torch.Tensor = self.memory[name]
        return found


class _Points:
    """All points of a loop nest: one axis for each loop variable."""

    def __init__(self, state: State, variables: Sequence[Var]) -> None:
        self.state = state
        self.shape = [state.size(var.size) for var in variables]
        self.device = next((v.device for v in state.memory.values() if isinstance(v, torch.Tensor)), "cpu")
        self.values: dict[str, Any] = dict(state.sizes)
        for axis, var in enumerate(variables):
            shape = [-1 if other == axis else 1 for other in range(len(variables))]
            self.values[var.name] = torch.arange(self.shape[axis], device=self.device).reshape(shape)

    def full(self, value: torch.Tensor) -> torch.Tensor:
        return value.expand(self.shape)

    def index(self, index: Index, wanted: torch.Tensor | None = None) -> torch.Tensor:
        def gather(atom: Indirect) -> torch.Tensor:
            return self.check_bounds(self.value(atom.value, wanted), self.state.size(atom.size), wanted)

        return torch.as_tensor(evaluate(index, self.values, gather), device=self.device)

    def check_bounds(self, place: torch.Tensor, size: int, wanted: torch.Tensor | None) -> torch.Tensor:
        """Check the indices along a dimension at the `wanted` points (None for all), and clamp the others.

        Raises IndexError for an index out of range, also for a negative one, which torch would count from the end.
        """
        wrong = (place < 0) | (place >= size)
        wrong = wrong if wanted is None else wrong & wanted
        if 0 not in self.shape and bool(wrong.any()):
            first = int(place.expand(wrong.shape)[wrong][0])
            raise IndexError(f"index {first} is out of bounds for a dimension of size {size}")
        return place if wanted is None else place.clamp(0, max(size - 1, 0))

    def value(self, value: Expr, wanted: torch.Tensor | None = None) -> torch.Tensor:
        """Evaluate an expression at all points; inside a guard only the `wanted` points are valid."""
        if isinstance(value, Const):
            return torch.tensor(value.value, dtype=value.dtype, device=self.device)
        if isinstance(value, Load):
            return self.load(value, wanted)
        if isinstance(value, Index):
            return self.index(value, wanted)
        if isinstance(value, Guard):
            condition = self.value(value.condition, wanted)
            inside, outside = (each if wanted is None else each & wanted for each in (condition, ~condition))
            return torch.where(condition, self.value(value.value, inside), self.value(value.other, outside))
        assert isinstance(value, Op), "a loop adds, not a value"
        found: torch.Tensor = OPERATIONS[value.name].torch(*(self.value(arg, wanted) for arg in value.args))
        return found.to(value.dtype)

    def load(self, load: Load, wanted: torch.Tensor | None) -> torch.Tensor:
        tensor = self.state.memory[load.buffer]
        if not tensor.numel() and (wanted is not None or 0 in self.shape):
            return torch.zeros((), dtype=tensor.dtype, device=self.device)
        indices = zip(load.index, tensor.shape, strict=True)
        places = [self.check_bounds(self.index(index, wanted), size, wanted) for index, size in indices]
        found: torch.Tensor = tensor[tuple(places)] if places else tensor
        return found


def _reduce(name: str, value: torch.Tensor, count: int) -> torch.Tensor:
    """Reduce a value over its last `count` axes."""
    is_place = name.startswith("arg")
    if not count:
        return torch.zeros_like(value, dtype=torch.int64) if is_place else value
    value = value.flatten(-count).to(torch.int8 if is_place and value.dtype == torch.bool else value.dtype)
    if name in ("sum", "prod", *SCANS):
        is_wide = name != "prod" and value.dtype == torch.float32
        total: torch.Tensor = getattr(value, name)(-1, dtype=torch.float64 if is_wide else value.dtype)
        return total.to(value.dtype)
    found: torch.Tensor = getattr(torch, {"max": "amax", "min": "amin"}.get(name, name))(value, -1)
    return found


def match_fake_layout(
    operator: str, tensor: torch.Tensor | None, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
) -> torch.Tensor | None:
    """Restride the result of an operator to match its fake tensor.

    Returns a view if strides differ only along dimensions of size 1, a copy if they differ otherwise. None stays None:
    some attention kernels leave out optional results. Raises BackendError if shape or dtype differ, or if elements
    share memory in the fake tensor only.
    """
    if tensor is None:
        return None
    if (tensor.shape, tensor.stride(), tensor.dtype) == (shape, strides, dtype):
        return tensor
    if tensor.shape != shape or tensor.dtype != dtype:
        gave, told = (f"{kind}{list(sizes)}" for kind, sizes in ((tensor.dtype, tensor.shape), (dtype, shape)))
        raise BackendError(f"{operator} gave {gave}; by its fake kernel it gives {told}".replace("torch.", ""))
    pairs = list(zip(shape, tensor.stride(), strides, strict=True))
    if all(size == 1 or have == wanted for size, have, wanted in pairs):
        return tensor.as_strided(tensor.shape, strides)
    if tensor.numel() and any(size > 1 and wanted == 0 for size, _, wanted in pairs):
        told = f"by its fake kernel it gives {list(strides)}: elements that share memory"
        raise BackendError(f"{operator} gave strides {list(tensor.stride())}; {told}")
    made = torch.empty_strided(tensor.shape, strides, dtype=dtype, device=tensor.device)
    return made.copy_(tensor)
