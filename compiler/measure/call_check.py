"""`--check`: the user's own call compiled, and with each stage's graphs in place of compiled code, against eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from compiler.builder import Builder
from compiler.decompose.graphs import CHECKPOINTED, LevelError, LevelGraphs, is_checkpointed
from compiler.interpret.kept import KeptFrame
from compiler.measure import precision_casts
from compiler.measure.call_results import CallResults, drawn, exact, results
from compiler.measure.calls import Call
from compiler.measure.in_place import InPlace, around
from compiler.measure.own_draws import draws_its_own
from compiler.measure.stage_runs import NotComparableError
from compiler.measure.stage_words import not_comparable, on_cpu, stage_checks
from compiler.measure.verdicts import FLOOR, Compared, Judge, largest_of, of_call
from compiler.record import Check
from compiler.torch_api.level_traces import first_line

CAPTURED = "captured"
MOST = 0.25
"""A float64 reference from which eager is farther than this, of the largest magnitude, says nothing."""

OTHER_WAY = "eager's own numbers are far from it: in float64 the call takes another way, at a branch or a comparison"
OWN_DRAWS = (
    "of the same graph run by eager with Inductor's random numbers: by design those are others than eager's "
    "(torch._inductor.config.fallback_random = True draws eager's)"
)
OTHERS_DRAWS = (
    "it draws random numbers, and Inductor draws others than eager does "
    "(torch._inductor.config.fallback_random = True draws eager's)"
)


@dataclass
class CallCheck:
    """One call with all that it takes to check it. `compiled` compiles the user's function anew; `unheard` keeps that
    out of the record. `levels` gives a capture at each level, or raises LevelError.
    """

    builder: Builder
    call: Call
    kept: Mapping[str, KeptFrame]
    levels: Callable[[str], LevelGraphs]
    compiled: Callable[[], Callable[..., Any]]
    unheard: Callable[[], AbstractContextManager[Any]]
    heard: list[str] = field(default_factory=list)

    def checks(self) -> Iterator[Check]:
        """The call as a whole, then each of its results, then those with the graphs of stages in their place.

        Raises what the call raises.
        """
        own = [*self._own_checks()]
        yield self._whole(own)
        yield from own
        yield from self._captured_checks()
        if len(self.heard) > 1:
            yield from self._stage_checks()

    @cached_property
    def eager(self) -> CallResults:
        return results(self.call, self.call.fn)

    @cached_property
    def mine(self) -> CallResults:
        with around(self.kept, {name: self._hearing(name) for name in self.kept}):
            return results(self.call, self.call.compiled)

    def _hearing(self, name: str) -> Callable[..., Any]:
        def hear(run: Callable[..., Any], *args: Any) -> Any:
            self.heard.append(name)
            return run(*args)

        return hear

    @cached_property
    def exact(self) -> CallResults | str:
        """The call in float64, or why that is not known."""
        try:
            found = exact(self.call, drawn(self.call))
        except Exception as error:  # noqa: BLE001 - what works in one format only fails in many ways
            return f"{type(error).__name__}: {first_line(error)}"
        if not found.alike(self.eager):
            return "in float64 the call gives other outputs or gradients"
        return OTHER_WAY if self._is_far(found) else found

    def _is_far(self, best: CallResults) -> bool:
        """Whether eager's own outputs have nothing to do with those in float64."""
        pairs = [(value.double(), best.outputs[name]) for name, value in self.eager.outputs.items()
                 if value.is_floating_point()]  # fmt: skip
        most = largest_of(other for _, other in pairs)
        return any(largest_of([own - other]) > MOST * max(largest_of([other]), FLOOR * most) for own, other in pairs)

    @cached_property
    def in_place(self) -> InPlace:
        return InPlace(self.call, self.kept, self.levels, self.heard)

    def _own_checks(self) -> Iterator[Check]:
        """A `Check` for each result of the compiled call."""
        mine, reference = self.mine, self.eager
        best = self.exact if isinstance(self.exact, CallResults) else None
        if self.eager.draws and self._draws_its_own():
            best = None
            try:
                reference = self.in_place.with_own_draws()
            except NotComparableError:
                yield Check("outputs and gradients", None, None, "not comparable", words=OTHERS_DRAWS)
                return
        yield from self._compared(mine, reference, best)

    def _draws_its_own(self) -> bool:
        return any(draws_its_own(graph.module) for frame in self.kept.values() for graph in frame.graphs.values())

    def _compared(self, mine: CallResults, eager: CallResults, best: CallResults | None) -> Iterator[Check]:
        changed = sorted(mine.changed() | eager.changed())
        narrowest = precision_casts.narrowest([*self.kept.values()])
        kinds = zip(
            mine.parts(changed), eager.parts(changed), best.parts(changed) if best else ({}, {}, {}), strict=True
        )
        for ours, theirs, exacts in kinds:
            judge = Judge(largest_of(theirs.values()), narrowest)
            for name in dict.fromkeys([*theirs, *ours]):
                yield judge.check(Compared(name, ours.get(name), theirs.get(name), exacts.get(name)))

    def _whole(self, own: Sequence[Check]) -> Check:
        """What is to be said of the whole call."""
        if not own:
            words = "the call gives no tensors, and changes none"
            return Check("the call", None, None, "not comparable", words=words)
        if own[0].verdict == "not comparable":
            return replace(own[0], subject="the call", words=f"not comparable: {own[0].words}")
        own_draws = self.eager.draws and self._draws_its_own()
        unknown = self.exact if isinstance(self.exact, str) and not own_draws else ""
        whole = of_call(own, unknown)
        notes = [whole.note, f"compared with the results {OWN_DRAWS}" if own_draws else "", self._casts(own)]
        return replace(whole, note="; ".join(filter(None, notes)))

    def _casts(self, own: Sequence[Check]) -> str:
        """Where 16-bit formats are used and numbers are not eager's: why, and which setting makes them so."""
        dtype = precision_casts.narrowest([*self.kept.values()])
        if dtype is None or all(check.verdict == "equal" for check in own) or not self._has_kernels():
            return ""
        return f"{precision_casts.why(dtype)}; {self._tried(own)}"

    def _has_kernels(self) -> bool:
        return any(frame.graphs for frame in self.kept.values())

    def _tried(self, own: Sequence[Check]) -> str:
        """What the setting changes, where it is cheap to see."""
        seconds = sum(timing.seconds for timing in self.builder.timings if timing.what == "compile")
        if seconds > precision_casts.MOST_SECONDS or (self.eager.draws and self._draws_its_own()):
            return f"{precision_casts.SETTING} rounds as eager does"
        found = precision_casts.emulated(self.call, self.compiled, self.unheard)
        after = [*self._compared(found, self.eager, None)]
        return precision_casts.effect(own, after)

    def _captured_checks(self) -> Iterator[Check]:
        """The captured graphs as they are, in the call; of several, together."""
        graph = self.heard[0] if len(self.heard) == 1 else ""
        modules = [frame.captured for name in self.heard for frame in [self.kept[name]]]
        if not self.heard or None in modules:
            return
        if self.eager.draws and any(is_checkpointed(module) for module in modules if module is not None):
            yield not_comparable(CAPTURED, graph, CHECKPOINTED)
            return
        yield from self._stage(CAPTURED, graph, self.in_place.captured)

    def _stage_checks(self) -> Iterator[Check]:
        """The whole call with the graphs of one stage after the other."""
        for stage in self.in_place.stages():
            yield from self._stage(stage, "", partial(self.in_place.at, stage))

    def _stage(self, stage: str, graph: str, run: Callable[[], CallResults]) -> tuple[Check, ...]:
        try:
            found = run()
        except (NotComparableError, LevelError) as error:
            return (not_comparable(stage, graph, str(error)),)
        except Exception as error:  # noqa: BLE001 - graphs fail in many ways, and the other stages don't care
            reason = f"it can't be run: {type(error).__name__}: {first_line(error)}"
            return (not_comparable(stage, graph, reason),)
        if not found.alike(self.eager):
            return (not_comparable(stage, graph, "it gives other outputs or gradients than eager"),)
        return self._told(stage, graph, found)

    def _told(self, stage: str, graph: str, mine: CallResults) -> tuple[Check, ...]:
        changed = sorted(mine.changed() | self.eager.changed())
        own, eager = on_cpu(mine.named(changed)), on_cpu(self.eager.named(changed))
        best = on_cpu(self.exact.named(changed)) if isinstance(self.exact, CallResults) else None
        return stage_checks(own, eager, best, stage, graph)
