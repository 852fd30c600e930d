"""Pass: replace a one-hot sum by its only non-zero term.

The gradient of cross entropy sums, for each row, one term per class, all 0 except the target's. A kernel that loops
over the classes only for this sum computes the one term instead. 0 times infinity or NaN is still NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from compiler.backend.ir import Kernel, Loop, Program, Step
from compiler.backend.ir.expr import Const, Expr, Load, Op, indices, operation, parts
from compiler.backend.ir.index import Index, Var, atoms_of
from compiler.backend.passes.context import Context
from compiler.backend.passes.simplify import fold


def one_hot(program: Program, ctx: Context) -> Program:
    """Rewrite kernels that reduce a range only for a one-hot sum."""
    new: dict[int, tuple[Step, ...]] = {}
    for kernel in program.kernels:
        if (found := _of_one_term(kernel)) is not None:
            new[id(kernel)] = (found,)
            ctx.decide(kernel.writes, "one term", f"of {kernel.reduced[0].size} terms all but one are 0")
    return program.replace_steps(new)


def _of_one_term(kernel: Kernel) -> Kernel | None:
    """The kernel without its only reduction, if that is a one-hot sum and nothing else uses the range; else None."""
    sums = [loop for loop in kernel.loops if loop.reduced]
    if type(kernel) is not Kernel or len(sums) != 1 or sums[0].reduction != "sum" or len(sums[0].reduced) != 1:
        return None
    if not set(kernel.targets).isdisjoint(kernel.reads):
        return None  # it overwrites what it reads
    var = sums[0].reduced[0]
    if (term := _Search({loop.target: loop for loop in kernel.loops}, var).term(sums[0].value)) is None:
        return None
    least, end = Const(0, term.at.dtype), fold(var.size)
    inside = operation("and", operation("ge", term.at, least), operation("lt", term.at, end))
    value = operation("where", inside, term.value, Const(0.0, term.value.dtype))
    if not isinstance(term.other, Const):
        value = operation("add", value, term.other)
    plain = replace(sums[0], value=fold(value), reduction="", reduced=())
    loops = tuple(plain if loop is sums[0] else loop for loop in kernel.loops)
    found = replace(kernel, reduced=(), loops=loops).without_unused_loops()
    return found if all(loop.ranges == kernel.ranges for loop in found.loops) else None


@dataclass(frozen=True, slots=True)
class _Term:
    """A term of a one-hot sum: `value` if the reduced variable equals `at`, else `other`.

    `other` is 0, or 0 times a value that may be infinite. The variable occurs in none of the three expressions.
    """

    at: Expr
    value: Expr
    other: Expr

    def apply(self, by: Op, others: tuple[Expr, ...]) -> _Term:
        """The term after an operation: the term is the first argument, `others` are the rest."""
        value, other = (replace(by, args=(argument, *others)) for argument in (self.value, self.other))
        return _Term(self.at, value, other)


@dataclass(frozen=True, slots=True)
class _Search:
    """Searches a kernel's loops for a one-hot term in the reduced variable `var`."""

    loops: Mapping[str, Loop]
    var: Var

    def term(self, value: Expr) -> _Term | None:
        """An expression as a one-hot term, None if it is not one."""
        match value:
            case Load(name) if (maker := self.loops.get(name)) is not None and not maker.reduction:
                return self.term(maker.value)
            case Op("where", (condition, chosen, other)):
                return self.where_term(condition, chosen, other)
            case Op("cast" | "neg", (argument,)) if (inner := self.term(argument)) is not None:
                return inner.apply(value, ())
            case Op("mul", (left, right)):
                for first, second in ((left, right), (right, left)):
                    if not self.is_in(second) and (inner := self.term(first)) is not None:
                        return inner.apply(value, (second,))
        return None

    def where_term(self, condition: Expr, chosen: Expr, other: Expr) -> _Term | None:
        """`chosen if variable == at else 0` as a one-hot term, None for other operands of a `where`."""
        if isinstance(condition, Load) and (maker := self.loops.get(condition.buffer)) is not None:
            condition = maker.value
        match condition, other:
            case Op("eq", (left, right)), Const(0):
                for place, at in ((left, right), (right, left)):
                    is_place = place == Index.of(self.var) and at.dtype == place.dtype
                    if is_place and not self.is_in(at) and not self.is_in(chosen):
                        return _Term(at, chosen, other)
        return None

    def is_in(self, value: Expr) -> bool:
        """Whether the variable occurs in an index of the expression."""
        return any(self.var in atoms_of(index) for part in parts(value) for index in indices(part))
