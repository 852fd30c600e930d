"""Compare the values of two runs operation by operation, and find the first divergence that is more than rounding."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any

import numpy as np
import torch

from compiler.numerics.across.snapshot import Operation, Snapshot
from compiler.numerics.policy.judge import Scope, judge
from compiler.record import Check

ONLY_FIRST, ONLY_SECOND = "only in the first", "only in the second"


@dataclass(frozen=True, slots=True)
class Pair:
    """An operation of the first run and the one in its place in the second; None where a run has none.

    `check` compares their values by the policy; None if there is only one. `change` says how the operation itself
    changed: its name, dtype or shape, or that it is only in one run.
    """

    id: str
    first: Operation | None
    second: Operation | None
    check: Check | None
    change: str = ""

    @property
    def operation(self) -> Operation:
        found = self.first or self.second
        assert found is not None
        return found

    @property
    def verdict(self) -> str:
        return self.check.verdict if self.check is not None else self.change

    @property
    def diverges(self) -> bool:
        return self.check is not None and self.check.verdict == "differs"


@dataclass(frozen=True)
class Comparison:
    """Two runs, operation by operation. `settings` are those that differ, with both values."""

    titles: tuple[str, str]
    pairs: tuple[Pair, ...]
    settings: Mapping[str, tuple[str, str]]
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Pair | None:
        """The first pair whose values differ by more than rounding; an operation rather than an input."""
        found = [pair for pair in self.pairs if pair.diverges]
        return next((pair for pair in found if pair.operation.kind != "input"), found[0] if found else None)

    @property
    def inputs(self) -> tuple[Pair, ...]:
        """Inputs and weights whose values differ by more than rounding."""
        return tuple(pair for pair in self.pairs if pair.diverges and pair.operation.kind == "input")

    @property
    def changed(self) -> tuple[Pair, ...]:
        """Operations that one run does not have, or has in another form."""
        return tuple(pair for pair in self.pairs if pair.change)

    @property
    def verdict(self) -> str:
        """One line: equal, rounding only, or the first divergence."""
        first = self.first
        if first is not None:
            where = f" at {first.operation.place}" if first.operation.place else ""
            return f"diverges at {first.operation.op}{where}: {self.cause_of(first)}"
        kinds = {pair.check.verdict for pair in self.pairs if pair.check is not None}
        same = "rounding only" if "close" in kinds else "equal" if kinds else "nothing to compare"
        return f"{same}; operations differ" if self.changed else same

    def cause_of(self, pair: Pair) -> str:
        """Why a pair diverges: what comes in, another operation, random numbers, or the operation itself."""
        operation, second = pair.operation, pair.second
        if operation.kind == "input":
            return "this input differs"
        if pair.change:
            return pair.change
        if operation.kind == "result":
            return "the operations before it agree, so it is how they were compiled together"
        if operation.kind == "gradient":
            return "the forward agrees, so it is the backward"
        sources = [self._by_id[name] for name in operation.inputs if name in self._by_id]
        wrong = next((each for each in sources if each.diverges), None)
        if wrong is not None:
            return f"its input {wrong.operation.op} differs"
        if second is not None and [each.second.id if each.second else "" for each in sources] != list(second.inputs):
            before = [each for each in self.changed if self.pairs.index(each) <= self.pairs.index(pair)]
            words = f": {before[-1].operation.op} is {before[-1].change}" if before else ""
            return f"it takes other values{words}"
        if second is not None and operation.code != second.code:
            return f"its line was `{operation.code}` and is `{second.code}`"
        if operation.draws:
            return "it draws random numbers, and the runs drew others"
        return "its inputs agree, so it is this operation"

    @cached_property
    def _by_id(self) -> dict[str, Pair]:
        return {pair.first.id: pair for pair in self.pairs if pair.first is not None}


def compare(first: Snapshot, second: Snapshot) -> Comparison:
    """Compare two runs. Operations are aligned by module, line of code and name, in order."""
    judged = _Judge(first, second)
    pairs = tuple(judged.pair(*each) for each in align(first.header.operations, second.header.operations))
    both = (first.header.settings, second.header.settings)
    settings = {
        name: (both[0].get(name, ""), both[1].get(name, ""))
        for name in dict.fromkeys([*both[0], *both[1]])
        if both[0].get(name) != both[1].get(name)
    }
    notes = tuple(dict.fromkeys((*first.header.notes, *second.header.notes)))
    return Comparison((first.header.title, second.header.title), pairs, settings, notes)


Aligned = tuple[Operation | None, Operation | None]


def align(first: Sequence[Operation], second: Sequence[Operation]) -> Iterator[Aligned]:
    """Pair operations in order: by module, code and name; what is left by module and name, then by module and form."""
    keys: list[Callable[[Operation], Hashable]] = [
        lambda each: (each.kind, each.module, each.file, each.code, each.op),
        lambda each: (each.kind, each.module, each.op),
        lambda each: (each.kind, each.op),
        lambda each: (each.kind, each.module, each.shape),
    ]
    return _align(first, second, keys)


def _align(
    first: Sequence[Operation], second: Sequence[Operation], keys: Sequence[Callable[[Operation], Hashable]]
) -> Iterator[Aligned]:
    if not keys or not first or not second:
        yield from ((each, None) for each in first)
        yield from ((None, each) for each in second)
        return
    old, new = [list(map(keys[0], side)) for side in (first, second)]
    for tag, start, end, low, high in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from zip(first[start:end], second[low:high], strict=True)
        else:
            yield from _align(first[start:end], second[low:high], keys[1:])


@dataclass
class _Judge:
    """Judges pairs in the order of execution; the narrowest dtype so far limits what rounding explains."""

    first: Snapshot
    second: Snapshot

    def __post_init__(self) -> None:
        self._largest = {each.id: each.largest for each in self.first.header.operations}
        self._narrowest: torch.dtype | None = None
        self._is_rounded = False

    def pair(self, first: Operation | None, second: Operation | None) -> Pair:
        for each in (first, second):
            self._narrow(each)
        if first is None or second is None:
            only = first or second
            assert only is not None
            return Pair(only.id, first, second, None, ONLY_SECOND if first is None else ONLY_FIRST)
        check = self._check(first, second)
        self._is_rounded |= check.verdict != "equal"
        return Pair(first.id, first, second, check, _change(first, second))

    def _narrow(self, operation: Operation | None) -> None:
        dtype = getattr(torch, operation.dtype, None) if operation is not None else None
        if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
            known = self._narrowest
            self._narrowest = dtype if known is None or torch.finfo(dtype).eps > torch.finfo(known).eps else known

    def _check(self, first: Operation, second: Operation) -> Check:
        """Compare the values of two operations by the policy; a wider dtype's are rounded to the narrower one."""
        own, theirs = self.second.values.get(second.id), self.first.values.get(first.id)
        if first.shape != second.shape:
            note = f"{second.dtype}{list(second.shape)} instead of {first.dtype}{list(first.shape)}"
            return Check(first.id, None, None, "differs", note, dtype=first.dtype)
        if own is None or theirs is None or own.shape != theirs.shape:
            return Check(first.id, None, None, "not comparable", "the files kept other parts of it", dtype=first.dtype)
        kinds = {each.dtype.kind == "f" for each in (own, theirs)}
        if len(kinds) == 2:
            note = f"{second.dtype} instead of {first.dtype}"
            return Check(first.id, None, None, "differs", note, dtype=first.dtype)
        scope = Scope(max(self._magnitudes_around(first)), self._narrowest, self._is_rounded)
        dtype = _narrower(first.dtype, second.dtype)
        exact = self._exact(first, second, scope) if first.dtype == second.dtype else None
        check = judge(first.id, _tensor(own, dtype), _tensor(theirs, dtype), exact, scope)
        return replace(check, dtype=first.dtype)

    def _magnitudes_around(self, operation: Operation) -> Iterator[float]:
        """The largest magnitudes of what is compared together: an operation with its inputs, all results, gradients."""
        yield operation.largest
        for each in self.first.header.operations:
            if operation.kind in ("result", "gradient") and each.kind == operation.kind:
                yield each.largest
        yield from (self._largest.get(name, 0.0) for name in operation.inputs)

    def _exact(self, first: Operation, second: Operation, scope: Scope) -> torch.Tensor | None:
        """The reference in float64; None if there is none, or if the runs have different ones: other inputs."""
        mine, other = self.first.exact.get(first.id), self.second.exact.get(second.id)
        if mine is None or other is None or mine.shape != other.shape:
            return None
        exact, same = (torch.from_numpy(each.copy()) for each in (mine, other))
        return None if judge("", same, exact, scope=Scope(scope.largest)).verdict == "differs" else exact


def _narrower(first: str, second: str) -> torch.dtype | None:
    """The narrower one of two floating-point dtypes; None for others, which are compared as they are kept."""
    known = [getattr(torch, name, None) for name in (first, second)]
    floats = [each for each in known if isinstance(each, torch.dtype) and each.is_floating_point]
    return max(floats, key=lambda each: torch.finfo(each).eps) if len(floats) == 2 else None


def _tensor(array: np.ndarray[Any, Any], dtype: torch.dtype | None) -> torch.Tensor:
    return torch.from_numpy(array.copy()).to(dtype)


def _change(first: Operation, second: Operation) -> str:
    """How an operation changed, in words; "" if it has the same form."""
    if first.op != second.op:
        return f"{first.op} in the first, {second.op} in the second"
    if first.dtype != second.dtype:
        return f"{first.dtype} in the first, {second.dtype} in the second"
    return ""
