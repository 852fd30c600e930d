"""What the backend's programs are made of. Everything is frozen, prints canonically, and is checked by `verify.py`.

    Program        buffers, inputs, a list of steps, outputs
    Step           a Kernel, or an Extern: one call of a PyTorch operator
    Kernel         loops that run as one loop nest: over `ranges`, and for each point of these over `reduced`
    MatmulKernel   a kernel that first multiplies matrices, as an Extern would; its loops read the result
    ComboKernel    several kernels in one launch
    Loop           fills one buffer: `target[index] = value`, at each point; or reduces `value` over `reduced`
    Expr           the scalar value of a loop, see `expr.py`

Lowering gives each ATen operation one loop in a kernel of its own; the passes then only merge kernels, put expressions
in place of loads, and change how loops are walked. A loop addresses buffers by coordinates, one index for each
dimension: where an element lies in memory is the buffer's business (`strides`), so views and layouts cost nothing.
An extern addresses memory by `Strided` views, as PyTorch does.
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
    """What the backend can't compile, or a broken program: the message says what and where."""


class CompilerUnavailableError(RuntimeError):
    """A compiler could not do its work, through no fault of the code that it was given: a later attempt may succeed."""


class _Printed:
    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory with a shape. `strides` are in elements; all sizes may be symbolic. `reuses` names a buffer whose memory
    it takes over, "" for memory of its own. Of a dtype without a name in `scalar.DTYPES` there are no loops.
    """

    name: str
    dtype: torch.dtype
    shape: Shape
    strides: Shape
    device: str = "cpu"
    reuses: str = ""

    @property
    def size(self) -> Index:
        """Its number of elements."""
        return product(self.shape)

    @property
    def span(self) -> Index:
        """Elements of memory that it needs: more than `size` if its strides leave gaps."""
        if self.size.constant == 0:
            return Index.of(0)
        return scalar_product(tuple(size - 1 for size in self.shape), self.strides) + 1

    def offset(self, index: Shape) -> Index:
        """The offset of an element from the buffer's first one, in elements."""
        return scalar_product(index, self.strides)

    def __str__(self) -> str:
        return f"{self.name}: {dtype_name(self.dtype)}[{', '.join(map(str, self.shape))}]"


SCANS = ("cumsum", "cumprod")
"""Reductions that store what they have come to at each point: along one range, in its order."""

REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin", *SCANS)
"""`argmax` and `argmin` give the first position, counted in row-major order over the loop's `reduced`, as int64."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Fills `target`. At each point of `ranges` it stores `value` at `index`; with a `reduction`, what that makes of
    `value` over `reduced`. The loop meets each element of the target exactly once, but for one whose value is a `Put`:
    that says where, and `index` is empty.

    Of a kernel's loops, each has as `ranges` the kernel's, and if it reduces also the same `reduced`; one that does
    not reduce may walk the kernel's `ranges + reduced` instead. `order` is its place in the lowered program. `origins`
    are names of FX nodes; `source` is the line of Python that it implements ("file.py:12 y = x + 1", "" if unknown),
    `operator` what it is part of there ("layer_norm").
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
        """All variables that its value may use."""
        return self.ranges + self.reduced

    @property
    def is_scan(self) -> bool:
        """Whether it stores at each point of its space, although it reduces."""
        return self.reduction in SCANS

    @property
    def stored(self) -> tuple[Var, ...]:
        """The variables of the points that it stores at."""
        return self.space if self.is_scan else self.ranges

    @property
    def reads(self) -> set[str]:
        """The buffers of its loads."""
        return {load.buffer for load in loads(self.value)}

    @property
    def place(self) -> Shape:
        """Where it writes."""
        return self.value.index if isinstance(self.value, Put) else self.index

    def __str__(self) -> str:
        if isinstance(self.value, Put):
            return f"{self.target} = {self.value}"
        where = f"{self.target}[{', '.join(map(str, self.index))}]"
        over = f"{self.reduction} over {', '.join(map(str, self.reduced))} of " if self.reduction else ""
        return f"{where} = {over}{as_text(self.value)}"


@dataclass(frozen=True, repr=False)
class Kernel(_Printed):
    """Loops that run as one loop nest, in this order. `local` are the targets that nothing outside the kernel reads:
    they need no memory. Inside, what one loop stores another may read at the same index only.
    """

    name: str
    ranges: tuple[Var, ...]
    reduced: tuple[Var, ...]
    loops: tuple[Loop, ...]
    local: frozenset[str] = frozenset()

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """What its loops write, in their order."""
        return tuple(loop.target for loop in self.loops)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The buffers that it reads and does not write before, sorted."""
        written: set[str] = set()
        loaded: set[str] = set()
        for loop in self.loops:
            loaded |= loop.reads - written
            written.add(loop.target)
        return tuple(sorted(loaded | self.taken))

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """What its loops read, of its own buffers too, in their order."""
        return tuple(load for loop in self.loops for load in loads(loop.value))

    def places(self, name: str) -> set[Shape]:
        """Where its loops read a buffer."""
        return {load.index for load in self.loads if load.buffer == name}

    @property
    def operands(self) -> tuple[Strided, ...]:
        """Views that it reads outside its loops: the operands of a matmul."""
        return ()

    @cached_property
    def taken(self) -> frozenset[str]:
        """The buffers that it accumulates into: its targets reuse their memory."""
        return frozenset(loop.value.onto for loop in self.loops if isinstance(loop.value, Put))

    @cached_property
    def buffers(self) -> tuple[str, ...]:
        """Buffers that its code is given, in the order in which its loops name them."""
        kept = {*self.reads, *self.writes} - self.taken
        named = (name for loop in self.loops for name in (*(load.buffer for load in loads(loop.value)), loop.target))
        return tuple(name for name in dict.fromkeys((*named, *sorted(kept))) if name in kept)

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """The buffers that it leaves in memory, in the order of its loops."""
        return tuple(target for target in self.targets if target not in self.local)

    def without_unused_loops(self) -> Kernel:
        """The kernel without the loops that no stored value needs."""
        needed = set(self.writes)
        for loop in reversed(self.loops):
            needed |= loop.reads if loop.target in needed else set()
        loops = tuple(loop for loop in self.loops if loop.target in needed)
        return replace(self, loops=loops, local=self.local & needed)

    def with_ranges(self, ranges: tuple[Var, ...], reduced: tuple[Var, ...], values: Mapping[str, Index]) -> Kernel:
        """The kernel over other ranges; `values` maps the names of its own variables to indices over these."""

        def move(loop: Loop) -> Loop:
            own = ranges + reduced if not loop.reduction and len(loop.ranges) > len(self.ranges) else ranges
            index = tuple(substitute(place, values) for place in loop.index)
            value = with_index(loop.value, values)
            return replace(loop, index=index, value=value, ranges=own, reduced=reduced if loop.reduction else ())

        return Kernel(self.name, ranges, reduced, tuple(map(move, self.loops)), self.local)

    @property
    def over(self) -> str:
        """Its ranges, as text."""
        outer, inner = (", ".join(f"{var} < {var.size}" for var in group) for group in (self.ranges, self.reduced))
        return (outer or "one point") + (f"; {inner}" if inner else "")

    def __str__(self) -> str:
        lines = [f"    {loop}{'  # local' if loop.target in self.local else ''}" for loop in self.loops]
        return "\n".join([f"kernel {self.name} over {self.over}:", *lines])


@dataclass(frozen=True, slots=True)
class Strided:
    """A buffer's memory as PyTorch addresses it: an argument of an extern, or an output. `offset` is in elements from
    the buffer's first one.
    """

    buffer: str
    shape: Shape
    strides: Shape
    offset: Index

    def is_all_of(self, buffer: Buffer) -> bool:
        """Whether it covers all of the buffer, in the same layout."""
        return (self.shape, self.strides, self.offset.constant) == (buffer.shape, buffer.strides, 0)

    def __str__(self) -> str:
        shape, strides = ", ".join(map(str, self.shape)), ", ".join(map(str, self.strides))
        offset = f" from {self.offset}" if self.offset.constant != 0 else ""
        return f"{self.buffer}.view([{shape}], strides [{strides}]{offset})"


Argument: TypeAlias = Any
"""Of an extern: a `Strided`, an `Index` (a size), a tuple or list of arguments, or a constant as PyTorch takes it."""


@dataclass(frozen=True, repr=False)
class Extern(_Printed):
    """One call of `function`, as `name`: an ATen operator, or any callable of a graph. `outputs` are the buffers that
    it makes, a nested tuple where it returns several; `writes` those of its arguments that it changes.

    `pinned` calls stay in their order: they draw random numbers or have effects. What a call returns that `aliases`
    may share memory with its arguments.
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
        """The buffers that it makes."""
        return tuple(name for name in leaves(self.outputs) if isinstance(name, str))

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The buffers among its arguments, sorted."""
        return tuple(sorted({view.buffer for view in strided_views((self.args, self.kwargs))}))

    def __str__(self) -> str:
        args = [*map(_argument_text, self.args), *(f"{key}={_argument_text(value)}" for key, value in self.kwargs)]
        made = _argument_text(self.outputs) if self.targets else "_"
        return f"{made} = {self.name}({', '.join(args)})"


@dataclass(frozen=True, repr=False)
class MatmulKernel(Kernel):
    """A kernel that multiplies matrices, and whose loops are given the product's elements, each at one point. It means
    `call` and then the loops, which is also what may run in its place (`parts`).
    """

    call: Extern = field(kw_only=True)

    @property
    def made(self) -> str:
        """The buffer of the product, in memory unless it is local."""
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
        """The call, and a kernel of the loops."""
        own = self.local - {self.made}
        return self.call, Kernel(f"after_{self.name}", self.ranges, self.reduced, self.loops, own)

    def __str__(self) -> str:
        head, *loops = super().__str__().splitlines()
        return "\n".join([head, f"    {self.call}{'  # local' if self.made in self.local else ''}", *loops])


@dataclass(frozen=True, repr=False)
class ComboKernel(Kernel):
    """`parts` in one launch. It has no ranges of its own, and all their loops."""

    parts: tuple[Kernel, ...] = field(kw_only=True)

    def __str__(self) -> str:
        lines = [f"{line}  # over {part.over}" for part in self.parts for line in str(part).splitlines()[1:]]
        return "\n".join([f"kernel {self.name}, {len(self.parts)} in one launch:", *lines])


Step: TypeAlias = Kernel | Extern


def _argument_text(value: Argument) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_argument_text, value))}]"
    if isinstance(value, torch.nn.Module):  # the body of a higher-order operator; its repr has a line for each in it
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
    """Apply `change` to all leaves of nested tuples, lists and slices."""
    if isinstance(value, tuple | list):
        return type(value)(map_leaves(item, change) for item in value)
    if isinstance(value, slice):
        return slice(*(map_leaves(part, change) for part in (value.start, value.stop, value.step)))
    return change(value)


def strided_views(value: Any) -> Iterator[Strided]:
    """The views among arguments, nested ones too."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, Strided))


@dataclass(frozen=True, repr=False)
class Program(_Printed):
    """A graph as steps. `inputs` are the call's arguments in their order: names of buffers, or of symbols where a size
    is passed. `outputs` are as for an extern's arguments. `mutated` are inputs that a step writes to. `constants` are
    values that the graph holds: buffers with a value known now. `frees` says for each step, once the program is
    scheduled, which buffers nothing needs after it. Outputs at the places `apart` show what one before them shows, and
    are to be tensors of their own: autograd marks tensors, and callers change their shapes.
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
        """The buffers by name."""
        return {buffer.name: buffer for buffer in self.buffers}

    @cached_property
    def returned(self) -> frozenset[str]:
        """The buffers that outputs lie in."""
        return frozenset(view.buffer for view in strided_views(self.outputs))

    @cached_property
    def taken(self) -> frozenset[str]:
        """The buffers that kernels accumulate into."""
        return frozenset(name for kernel in self.kernels for name in kernel.taken)

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """Its kernels, without the externs."""
        return tuple(step for step in self.steps if isinstance(step, Kernel))

    @cached_property
    def calls(self) -> tuple[Extern, ...]:
        """Its calls of PyTorch."""
        return tuple(step for step in self.steps if isinstance(step, Extern))

    @cached_property
    def passed(self) -> frozenset[str]:
        """The buffers that calls of PyTorch read."""
        return frozenset(name for call in self.calls for name in call.reads)

    def with_steps(self, steps: tuple[Step, ...]) -> Program:
        """The program with other steps, without the buffers that became unused."""
        used = {name for step in steps for name in (*step.targets, *step.reads)}
        used |= {*self.inputs, *self.constants, *self.returned}
        return replace(self, steps=steps, buffers=tuple(buffer for buffer in self.buffers if buffer.name in used))

    def replace_steps(self, new: Mapping[int, tuple[Step, ...]]) -> Program:
        """The program with other steps in place of some, by the identity of these; itself where there are none."""
        return self.with_steps(tuple(one for step in self.steps for one in new.get(id(step), (step,)))) if new else self

    def __str__(self) -> str:
        return "\n".join(text for text, _ in self.rows())

    def rows(self) -> Iterator[tuple[str, Step | Loop | None]]:
        """The lines of its text, each with its step or loop."""
        inputs = ", ".join(str(self.by_name[name]) if name in self.by_name else name for name in self.inputs)
        yield f"program {self.name}({inputs}):", None
        for step, freed in zip(self.steps, self.frees or ((),) * len(self.steps), strict=True):
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
