"""The backend's IR. All classes are frozen and print canonically; `passes/verify.py` checks programs.

    Program        buffers, inputs, a list of steps, outputs
    Step           a Kernel, or an Extern: one extern call of a PyTorch operator
    Kernel         loops that run as one loop nest: an outer one over `ranges`, an inner one over `reduced`
    MatmulKernel   a matmul with a fused epilogue: loops that read its result
    ComboKernel    several kernels in one launch
    Loop           fills one buffer: `target[index] = value`, at each point; or reduces `value` over `reduced`
    Expr           the scalar value of a loop, see `expr.py`

Lowering turns each ATen operation into one or more loops, each in its own kernel. The passes then merge kernels, inline
expressions into their readers, and reorder loops. A loop addresses buffers by coordinates, one index per dimension.
The buffer's `strides` give the offset of an element, so views and layouts cost nothing. An extern call addresses
memory by `Strided` views, as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch

from compiler.backend.ir.expr import Expr, Load, Put, Shape, dtype_name, loads, with_index
from compiler.backend.ir.index import Index, Var, as_text, product, scalar_product, substitute


class BackendError(RuntimeError):
    """Raised for a graph that the backend can't compile, or an invalid program; the message gives the reason."""


class CompilerUnavailableError(RuntimeError):
    """Raised if a compiler fails for a reason other than the generated code: a later attempt may succeed."""


class _Printed:
    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of a tensor. `strides` are in elements. Sizes and strides may be symbolic. `reuses` names the buffer
    that it takes its memory from, "" for a new allocation. Loops only read and write dtypes of `scalar.DTYPES`.
    """

    name: str
    dtype: torch.dtype
    shape: Shape
    strides: Shape
    device: str = "cpu"
    reuses: str = ""

    @property
    def size(self) -> Index:
        """Number of elements."""
        return product(self.shape)

    @property
    def span(self) -> Index:
        """Size of its memory, in elements: more than `size` if its strides leave gaps."""
        if self.size.constant == 0:
            return Index.of(0)
        return scalar_product(tuple(size - 1 for size in self.shape), self.strides) + 1

    def offset(self, index: Shape) -> Index:
        """Offset of an element from the start of the buffer, in elements."""
        return scalar_product(index, self.strides)

    def __str__(self) -> str:
        return f"{self.name}: {dtype_name(self.dtype)}[{', '.join(map(str, self.shape))}]"


SCANS = ("cumsum", "cumprod")
"""Scans: reductions along one range that store the running result at each of its points."""

REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin", *SCANS)
"""All reductions. `argmax` and `argmin` return the first position in row-major order over `reduced`, as int64."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop nest that fills the buffer `target`. At each point of `ranges` it stores `value` at `index`, or the
    `reduction` of `value` over `reduced`. It writes each element of the target exactly once. The exception is a
    scatter: its value is a `Put`, which has its own index, and `index` is empty.

    A loop has the `ranges` of its kernel. A reduction also has the kernel's `reduced`; a loop without reduction may
    have the kernel's `ranges + reduced` as its `ranges`. `order` is its position in the lowered program. `origins` are
    names of FX nodes. `source` is the user's line of Python ("file.py:12 y = x + 1", "" if unknown), `operator` the
    operator that the loop is part of ("layer_norm").
    """

    target: str
    ranges: tuple[Var, ...]
    index: Shape
    value: Expr
    reduction: str = ""
    reduced: tuple[Var, ...] = ()
    order: int = 0
    origins: tuple[str, ...] = ()
    source: str = ""
    operator: str = ""

    @property
    def space(self) -> tuple[Var, ...]:
        """All loop variables that its value may use."""
        return self.ranges + self.reduced

    @property
    def is_scan(self) -> bool:
        """Whether it is a scan: a reduction that stores at each point of its space."""
        return self.reduction in SCANS

    @property
    def stored(self) -> tuple[Var, ...]:
        """Variables of the loop nest in which it stores: `space` for a scan, else `ranges`."""
        return self.space if self.is_scan else self.ranges

    @property
    def reads(self) -> set[str]:
        """Names of the buffers that it loads from."""
        return {load.buffer for load in loads(self.value)}

    @property
    def place(self) -> Shape:
        """Index at which it stores."""
        return self.value.index if isinstance(self.value, Put) else self.index

    def __str__(self) -> str:
        if isinstance(self.value, Put):
            return f"{self.target} = {self.value}"
        where = f"{self.target}[{', '.join(map(str, self.index))}]"
        over = f"{self.reduction} over {', '.join(map(str, self.reduced))} of " if self.reduction else ""
        return f"{where} = {over}{as_text(self.value)}"


@dataclass(frozen=True, repr=False)
class Kernel(_Printed):
    """Loops that run as one loop nest, in order. `local` names the targets that nothing outside the kernel reads: they
    need no memory. A loop may read another loop's target only at the index that is written at the same point.
    """

    name: str
    ranges: tuple[Var, ...]
    reduced: tuple[Var, ...]
    loops: tuple[Loop, ...]
    local: frozenset[str] = frozenset()

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """Names of the buffers that its loops write, in the order of the loops."""
        return tuple(loop.target for loop in self.loops)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Sorted names of its input buffers: those it scatters into, or reads before any of its loops writes them."""
        written: set[str] = set()
        loaded: set[str] = set()
        for loop in self.loops:
            loaded |= loop.reads - written
            written.add(loop.target)
        return tuple(sorted(loaded | self.taken))

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """Loads of its loops, in order, including loads of its own targets."""
        return tuple(load for loop in self.loops for load in loads(loop.value))

    def places(self, name: str) -> set[Shape]:
        """Indices at which its loops read a buffer."""
        return {load.index for load in self.loads if load.buffer == name}

    @property
    def operands(self) -> tuple[Strided, ...]:
        """Operands of its matmul; () for other kernels."""
        return ()

    @cached_property
    def taken(self) -> frozenset[str]:
        """Names of the buffers that it scatters into: its targets reuse their memory."""
        return frozenset(loop.value.onto for loop in self.loops if isinstance(loop.value, Put))

    @cached_property
    def buffers(self) -> tuple[str, ...]:
        """Names of the buffers that its generated function takes, in the order in which its loops use them."""
        kept = {*self.reads, *self.writes} - self.taken
        named = (name for loop in self.loops for name in (*(load.buffer for load in loads(loop.value)), loop.target))
        return tuple(name for name in dict.fromkeys((*named, *sorted(kept))) if name in kept)

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """Names of the targets that it stores in memory, in the order of its loops."""
        return tuple(target for target in self.targets if target not in self.local)

    def without_unused_loops(self) -> Kernel:
        """The kernel without the loops that no stored value needs."""
        needed = set(self.writes)
        for loop in reversed(self.loops):
            needed |= loop.reads if loop.target in needed else set()
        loops = tuple(loop for loop in self.loops if loop.target in needed)
        return replace(self, loops=loops, local=self.local & needed)

    def with_ranges(self, ranges: tuple[Var, ...], reduced: tuple[Var, ...], values: Mapping[str, Index]) -> Kernel:
        """The kernel over other ranges; `values` maps names of the old loop variables to indices over the new ones."""

        def move(loop: Loop) -> Loop:
            own = ranges + reduced if not loop.reduction and len(loop.ranges) > len(self.ranges) else ranges
            index = tuple(substitute(place, values) for place in loop.index)
            value = with_index(loop.value, values)
            return replace(loop, index=index, value=value, ranges=own, reduced=reduced if loop.reduction else ())

        return Kernel(self.name, ranges, reduced, tuple(map(move, self.loops)), self.local)

    @property
    def over(self) -> str:
        """Text of its ranges."""
        outer, inner = (", ".join(f"{var} < {var.size}" for var in group) for group in (self.ranges, self.reduced))
        return (outer or "one point") + (f"; {inner}" if inner else "")

    def __str__(self) -> str:
        lines = [f"    {loop}{'  # local' if loop.target in self.local else ''}" for loop in self.loops]
        return "\n".join([f"kernel {self.name} over {self.over}:", *lines])


@dataclass(frozen=True, slots=True)
class Strided:
    """A strided view of a buffer: an argument of an extern call, or an output. `offset` is from the start of the
    buffer, in elements.
    """

    buffer: str
    shape: Shape
    strides: Shape
    offset: Index

    def is_all_of(self, buffer: Buffer) -> bool:
        """Whether the view is the whole buffer, in the same layout."""
        return (self.shape, self.strides, self.offset.constant) == (buffer.shape, buffer.strides, 0)

    def __str__(self) -> str:
        shape, strides = ", ".join(map(str, self.shape)), ", ".join(map(str, self.strides))
        offset = f" from {self.offset}" if self.offset.constant != 0 else ""
        return f"{self.buffer}.view([{shape}], strides [{strides}]{offset})"


Argument: TypeAlias = Any
"""Argument of an extern call: a `Strided`, an `Index` (a size), a tuple or list of arguments, or a constant."""


@dataclass(frozen=True, repr=False)
class Extern(_Printed):
    """An extern call of `function`: an ATen operator, or another callable of a graph. `name` is its printed name.

    `outputs` names the buffers of its results, as a nested tuple if it returns several. `writes` names the buffers
    that it mutates. `pinned` calls keep their order: they draw random numbers or have side effects. `aliases` says
    whether results may share memory with arguments.
    """

    name: str
    function: Callable[..., Any] = field(compare=False, repr=False)
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]
    outputs: Any
    writes: tuple[str, ...] = ()
    pinned: bool = False
    aliases: bool = False
    origins: tuple[str, ...] = ()
    source: str = ""

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """Names of the buffers of its results."""
        return tuple(name for name in leaves(self.outputs) if isinstance(name, str))

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Names of the buffers among its arguments, sorted."""
        return tuple(sorted({view.buffer for view in strided_views((self.args, self.kwargs))}))

    def __str__(self) -> str:
        args = [*map(_argument_text, self.args), *(f"{key}={_argument_text(value)}" for key, value in self.kwargs)]
        made = _argument_text(self.outputs) if self.targets else "_"
        return f"{made} = {self.name}({', '.join(args)})"


@dataclass(frozen=True, repr=False)
class MatmulKernel(Kernel):
    """A matmul with a fused epilogue: it computes the matmul `call`, then the loops. Each point of a loop reads one
    element of the matmul's result. `parts` has the call and the loops as separate steps.
    """

    call: Extern = field(kw_only=True)

    @property
    def made(self) -> str:
        """Name of the matmul's result, stored in memory unless it is local."""
        return self.call.targets[0]

    @cached_property
    def targets(self) -> tuple[str, ...]:
        return self.made, *(loop.target for loop in self.loops)

    @property
    def operands(self) -> tuple[Strided, ...]:
        return tuple(strided_views(self.call.args))

    @cached_property
    def reads(self) -> tuple[str, ...]:
        return tuple(sorted({*self.parts[1].reads, *self.call.reads} - {self.made}))

    @cached_property
    def parts(self) -> tuple[Extern, Kernel]:
        """The matmul as an extern call, and a kernel of the epilogue's loops."""
        own = self.local - {self.made}
        return self.call, Kernel(f"after_{self.name}", self.ranges, self.reduced, self.loops, own)

    def __str__(self) -> str:
        head, *loops = super().__str__().splitlines()
        return "\n".join([head, f"    {self.call}{'  # local' if self.made in self.local else ''}", *loops])


@dataclass(frozen=True, repr=False)
class ComboKernel(Kernel):
    """Several kernels, `parts`, in one launch. It has no ranges of its own; `loops` has the loops of all parts."""

    parts: tuple[Kernel, ...] = field(kw_only=True)

    def __str__(self) -> str:
        lines = [f"{line}  # over {part.over}" for part in self.parts for line in str(part).splitlines()[1:]]
        return "\n".join([f"kernel {self.name}, {len(self.parts)} in one launch:", *lines])


Step: TypeAlias = Kernel | Extern


def _argument_text(value: Argument) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_argument_text, value))}]"
    if isinstance(value, torch.nn.Module):  # the body of a higher-order operator, with a long repr
        return f"{type(value).__name__}()"
    return str(value) if isinstance(value, str | Strided | Index) else repr(value)


def leaves(value: Any) -> Iterator[Any]:
    """The leaves of nested tuples, lists and dicts; any other value is its own leaf."""
    if isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    else:
        yield value


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to each leaf of nested tuples, lists and slices."""
    if isinstance(value, tuple | list):
        return type(value)(map_leaves(item, change) for item in value)
    if isinstance(value, slice):
        return slice(*(map_leaves(part, change) for part in (value.start, value.stop, value.step)))
    return change(value)


def strided_views(value: Any) -> Iterator[Strided]:
    """Views among arguments, including nested ones."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, Strided))


@dataclass(frozen=True, repr=False)
class Program(_Printed):
    """A graph as a list of steps.

    `inputs` are the arguments in order: names of buffers, or of symbols for sizes. `outputs` have the form of
    arguments of an extern call. `mutated` names the inputs that a step writes. `constants` are tensors that the graph
    holds, by buffer name. `frees` names the buffers to free after each step: () without a memory plan. `apart` has the
    positions of outputs that are the same view as an earlier output, but must be separate tensors for autograd.
    """

    name: str
    buffers: tuple[Buffer, ...]
    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Argument, ...]
    mutated: frozenset[str] = frozenset()
    constants: Mapping[str, Any] = field(default_factory=dict, compare=False)
    frees: tuple[tuple[str, ...], ...] = ()
    apart: frozenset[int] = frozenset()

    @cached_property
    def by_name(self) -> Mapping[str, Buffer]:
        """Buffers by name."""
        return {buffer.name: buffer for buffer in self.buffers}

    @cached_property
    def returned(self) -> frozenset[str]:
        """Names of the buffers that outputs are views of."""
        return frozenset(view.buffer for view in strided_views(self.outputs))

    @cached_property
    def taken(self) -> frozenset[str]:
        """Names of the buffers that kernels scatter into."""
        return frozenset(name for kernel in self.kernels for name in kernel.taken)

    @cached_property
    def overwritten(self) -> frozenset[str]:
        """Names of the inputs whose memory other buffers reuse: saved tensors that a backward is the last to read."""
        return frozenset(buffer.reuses for buffer in self.buffers).intersection(self.inputs)

    @property
    def steps_with_frees(self) -> Iterator[tuple[Step, tuple[str, ...]]]:
        """Each step with the buffers to free after it."""
        return zip(self.steps, self.frees or ((),) * len(self.steps), strict=True)

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """Its kernels, without the extern calls."""
        return tuple(step for step in self.steps if isinstance(step, Kernel))

    @cached_property
    def calls(self) -> tuple[Extern, ...]:
        """Its extern calls."""
        return tuple(step for step in self.steps if isinstance(step, Extern))

    @cached_property
    def passed(self) -> frozenset[str]:
        """Names of the buffers that extern calls read."""
        return frozenset(name for call in self.calls for name in call.reads)

    def with_steps(self, steps: tuple[Step, ...]) -> Program:
        """The program with other steps, without the buffers that become unused."""
        used = {name for step in steps for name in (*step.targets, *step.reads)}
        used |= {*self.inputs, *self.constants, *self.returned}
        return replace(self, steps=steps, buffers=tuple(buffer for buffer in self.buffers if buffer.name in used))

    def replace_steps(self, new: Mapping[int, tuple[Step, ...]]) -> Program:
        """The program with some steps replaced, by `id` of the old step; the program itself if `new` is empty."""
        return self.with_steps(tuple(one for step in self.steps for one in new.get(id(step), (step,)))) if new else self

    def __str__(self) -> str:
        return "\n".join(text for text, _ in self.rows())

    def rows(self) -> Iterator[tuple[str, Step | Loop | None]]:
        """Lines of its text, each with the step or loop that it belongs to, or None."""
        inputs = ", ".join(str(self.by_name[name]) if name in self.by_name else name for name in self.inputs)
        yield f"program {self.name}({inputs}):", None
        for step, freed in self.steps_with_frees:
            heads = (step, step.call) if isinstance(step, MatmulKernel) else (step,)
            parts: tuple[Step | Loop, ...] = (*heads, *step.loops) if isinstance(step, Kernel) else heads
            yield from ((f"    {line}", part) for line, part in zip(str(step).splitlines(), parts, strict=True))
            yield from ((f"    memory: {note}", step) for note in self._memory(step))
            if freed:
                yield f"    free {', '.join(freed)}", None
        yield f"    return {', '.join(map(_argument_text, self.outputs))}", None

    def _memory(self, step: Step) -> Iterator[str]:
        for target in step.targets:
            if target in self.by_name and (before := self.by_name[target].reuses):
                yield f"{target} takes over {before}"
