"""Merge two kernels into one loop nest: the host keeps its ranges, the guest's loops are rewritten over them.

Indices are compared, not shapes. A buffer that both kernels access shows which point of one nest corresponds to which
point of the other. This correspondence must be one to one, and each kernel must read the other's results at the points
that write them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.backend.ir import Kernel, Loop
from compiler.backend.ir.expr import Put, Shape
from compiler.backend.ir.index import Atom, Index, Quotient, Remainder, Var, factor_of, is_bijective, product, variables
from compiler.backend.passes.context import Context

Places = Mapping[str, Sequence[Shape]]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why two kernels can't be, or should not be, merged."""

    why: str


def merge_kernels(first: Kernel, second: Kernel, ctx: Context) -> Kernel | Refusal:
    """Merge two kernels into one that computes `first`, then `second`; returns a Refusal if that is not possible."""
    if len(first.loops) + len(second.loops) > ctx.thresholds.fused_loops:
        return Refusal(f"more than {ctx.thresholds.fused_loops} loops in one kernel")
    if len({*first.reads, *first.writes, *second.reads, *second.writes}) > ctx.thresholds.fused_buffers:
        return Refusal(f"more than {ctx.thresholds.fused_buffers} buffers in one kernel")
    if why := _reason_against(first, second, ctx):
        return Refusal(why)
    refusal = Refusal("")
    for host, guest in ((second, first), (first, second)):
        if guest.reduced and not host.reduced:
            continue
        fitted = _fit_ranges(guest, host)
        if isinstance(fitted, Refusal):
            refusal = fitted
            continue
        one, two = (host, fitted) if host is first else (fitted, host)
        if not (why := _conflict(one, two)):
            return _join(host, one, two)
        refusal = Refusal(why)
    return refusal


def _reason_against(first: Kernel, second: Kernel, ctx: Context) -> str:
    """Reason why a kernel with a scatter can't be merged with the other kernel, "" if it can."""
    for one, other in ((first, second), (second, first)):
        if one.taken and not ctx.processors:
            return "on a CPU, a kernel that may add to an element several times runs on one thread"
        made = {loop.target for loop in one.loops if isinstance(loop.value, Put)}
        if met := (one.taken | made) & {*other.targets, *other.reads}:
            return f"{min(met)} is accumulated in no order: it is not known when an element is complete"
    return ""


def _join(host: Kernel, first: Kernel, second: Kernel) -> Kernel:
    loops = tuple(sorted((*first.loops, *second.loops), key=lambda loop: loop.order))
    return Kernel(host.name, host.ranges, host.reduced, loops)


def _fit_ranges(guest: Kernel, host: Kernel) -> Kernel | Refusal:
    """Rewrite the guest's loops over the host's ranges; returns a Refusal if that is not possible."""
    if guest.reduced:
        outer = _correspondence(guest, host, guest.ranges, host.ranges)
        inner = _correspondence(guest, host, guest.reduced, host.reduced)
        if outer is None or inner is None:
            return Refusal("they reduce over different elements")
        if any(loop.is_scan for loop in guest.loops) and [*inner.values()] != [*map(Index.of, host.reduced)]:
            return Refusal("they scan a range in different orders")
        return guest.with_ranges(host.ranges, host.reduced, {**outer, **inner})
    space = host.ranges + host.reduced
    for target in (space, host.ranges) if host.reduced else (space,):
        found = _correspondence(guest, host, guest.ranges, target)
        if found is not None:
            return guest.with_ranges(target, (), found)
    if product(var.size for var in guest.ranges) != product(var.size for var in space):
        return Refusal("their loops have different numbers of points")
    return Refusal("no correspondence of their loops is certain to be one to one")


def _correspondence(
    guest: Kernel, host: Kernel, own: tuple[Var, ...], target: tuple[Var, ...]
) -> Mapping[str, Index] | None:
    """Values of the guest's variables as indices over the host's; None if they do not correspond one to one."""
    if product(var.size for var in own) != product(var.size for var in target):
        return None
    values = _from_buffers(guest, host, own, target)
    used = {var for index in values.values() for var in variables(index)}
    free = [var for var in target if var not in used]
    for var in own:
        if var.name not in values:
            twin = next((other for other in free if other.size == var.size), None)
            if twin is None:
                return None
            free.remove(twin)
            values[var.name] = Index.of(twin)
    at, shape = tuple(values[var.name] for var in own), tuple(var.size for var in own)
    return values if is_bijective(at, shape, target) else None


def _from_buffers(guest: Kernel, host: Kernel, own: tuple[Var, ...], target: tuple[Var, ...]) -> dict[str, Index]:
    """Values of the guest's variables, found from buffers that both kernels access: equal indices mean equal points."""
    values: dict[str, Index] = {}
    allowed, theirs = set(target), _places(host)
    for name, places in _places(guest).items():
        for place, other in zip(places, theirs.get(name, ()), strict=False):
            pairs = [(mine, yours) for mine, yours in zip(place, other, strict=True) if variables(yours) <= allowed]
            for mine, yours in pairs:
                found = solve_digits(mine, yours) if variables(yours) else []
                if {atom for atom, _ in found} <= {*own}:
                    values = {**{atom.name: value for atom, value in found if isinstance(atom, Var)}, **values}
            for var in own:
                if var.name not in values and (digits := _value_of_digits(var, pairs)) is not None:
                    values[var.name] = digits
    return values


def _value_of_digits(var: Var, pairs: Sequence[tuple[Index, Index]]) -> Index | None:
    """Value of a variable, composed of its digits, as for merged dimensions; None if a digit is missing."""
    digits = {unit: yours for mine, yours in pairs if (unit := _unit(mine, var)) is not None}
    value, step = Index.of(0), Index.of(1)
    while step != var.size:
        found = next(((size, yours) for (unit, size), yours in digits.items() if unit == step), None)
        if found is None:
            return None
        value, step = value + found[1] * step, step * found[0]
    return value


def _unit(digit: Index, var: Var) -> tuple[Index, Index] | None:
    """Unit and size of a digit of a variable, `var // unit % size`; None for another index."""
    atom, size = digit.atom, None
    if isinstance(atom, Remainder):
        size, atom = atom.by, atom.of.atom
    if isinstance(atom, Quotient) and atom.of.atom == var:
        return atom.by, size or var.size // atom.by
    return (Index.of(1), size) if atom == var and size else None


def values_at(loop: Loop, at: Shape) -> dict[str, Index] | None:
    """Values of a loop's variables at the point that stores at index `at`; None unless all are determined."""
    found = [pair for mine, yours in zip(loop.index, at, strict=True) for pair in solve_digits(mine, yours)]
    values = {atom.name: value for atom, value in found if isinstance(atom, Var) and atom in loop.ranges}
    pairs = [(Index.of(atom), value) for atom, value in found]
    for var in loop.ranges:
        if var.name not in values:
            if (told := _value_of_digits(var, pairs)) is None:
                return None
            values[var.name] = told
    return values


def solve_digits(mine: Index, yours: Index) -> list[tuple[Atom, Index]]:
    """Solve `mine` == `yours` for the atoms of `mine`: a single atom or the digits of a mixed-radix number, else []."""
    if mine.atom is not None:
        return [(mine.atom, yours)]
    left = [atoms[0] for atoms, _ in mine.terms if len(atoms) == 1]
    rest, step = mine, Index.of(1)
    digits: list[tuple[Atom, Index, Index]] = []
    while (atom := next((atom for atom in left if factor_of(mine, atom) == step), None)) is not None:
        if (size := _count(atom)) is None:
            return []
        left.remove(atom)
        digits.append((atom, step, size))
        rest, step = rest - Index.of(atom) * step, step * size
    if rest.terms or not digits:
        return []
    *low, (last, unit, _) = digits
    return [*((atom, (yours // step) % size) for atom, step, size in low), (last, yours // unit)]


def _count(atom: Atom) -> Index | None:
    """Number of values of a variable or of a digit; None for other atoms."""
    if isinstance(atom, Var):
        return atom.size
    if isinstance(atom, Remainder):
        return atom.by
    if isinstance(atom, Quotient) and isinstance(var := atom.of.atom, Var):
        count = var.size // atom.by
        return count if count * atom.by == var.size else None
    return None


def _places(kernel: Kernel) -> Places:
    """Indices at which a kernel reads and writes each buffer; writes come first."""
    found: dict[str, list[Shape]] = {loop.target: [loop.index] for loop in kernel.loops}
    for load in kernel.loads:
        found.setdefault(load.buffer, []).append(load.index)
    return found


def _conflict(first: Kernel, second: Kernel) -> str:
    """Reason against a merge, if a kernel reads the other's result at another index than the written one; else ""."""
    for writer, reader in ((first, second), (second, first)):
        written = {loop.target: loop.index for loop in writer.loops}
        for load in reader.loads:
            if load.buffer in written and load.index != written[load.buffer]:
                return f"one writes {load.buffer}[{', '.join(map(str, written[load.buffer]))}], the other reads {load}"
    return ""
