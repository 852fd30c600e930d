"""`--check`: compare the compiled call, and the call with the graphs of each stage, with eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from compiler.calls.call import Call
from compiler.calls.kept_graphs import KeptFrame
from compiler.decompose.graphs import LevelError, LevelGraphs
from compiler.numerics import precision_casts
from compiler.numerics.call_results import CallResults, exact, record_draws, results
from compiler.numerics.call_words import check_call, check_result
from compiler.numerics.compiled_random import draws_its_own
from compiler.numerics.graphs_in_call import InPlace, replace_graph_calls
from compiler.numerics.policy.judge import Scope, is_reference
from compiler.numerics.stage_runs import NotComparableError
from compiler.numerics.stage_words import not_comparable, on_cpu, stage_checks
from compiler.record import Check
from compiler.record.builder import Builder
from compiler.torch_api.level_traces import first_line

CAPTURED = "captured"
OTHER_WAY = "eager's own numbers are far from it: in float64 the call takes another way, at a branch or a comparison"
EAGERS_DRAWS = {
    "inductor": "torch._inductor.config.fallback_random = True draws eager's",
    "tcompile": 'options={"random": "eager"} draws eager\'s',
}
"""By backend, the setting that makes random numbers those of eager."""


@dataclass
class CallCheck:
    """Checks one call against eager and float64.

    `compiled` compiles the user's function again; `unheard` keeps that out of the record. `levels` returns a capture at
    each decomposition level, or raises LevelError.
    """

    builder: Builder
    call: Call
    kept: Mapping[str, KeptFrame]
    levels: Callable[[str], LevelGraphs]
    compiled: Callable[[], Callable[..., Any]]
    unheard: Callable[[], AbstractContextManager[Any]]
    heard: list[str] = field(default_factory=list)

    def checks(self) -> Iterator[Check]:
        """Checks of the whole call, of each of its results, and of its results with the graphs of each stage.

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
        with replace_graph_calls(self.kept, {name: self._note_graph(name) for name in self.kept}):
            return results(self.call, self.call.compiled)

    def _note_graph(self, name: str) -> Callable[..., Any]:
        def hear(run: Callable[..., Any], *args: Any) -> Any:
            self.heard.append(name)
            return run(*args)

        return hear

    @cached_property
    def exact(self) -> CallResults | str:
        """Results of the call in float64, or the reason why there are none."""
        try:
            found = exact(self.call, record_draws(self.call))
        except Exception as error:  # noqa: BLE001 - what works in one format only fails in many ways
            return f"{type(error).__name__}: {first_line(error)}"
        if not found.has_same_results(self.eager):
            return "in float64 the call gives other outputs or gradients"
        outputs = self.eager.outputs
        return found if is_reference([*outputs.values()], [found.outputs[name] for name in outputs]) else OTHER_WAY

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
                yield Check("outputs and gradients", None, None, "not comparable", words=self._others_draws())
                return
        yield from self._check_results(mine, reference, best)

    def _draws_its_own(self) -> bool:
        return any(map(draws_its_own, self.kept.values()))

    def _whose_draws(self) -> tuple[str, str]:
        """The name of the code that draws, and the setting with which it draws eager's numbers."""
        if any(frame.programs for frame in self.kept.values()):
            return 'backend="tcompile"', EAGERS_DRAWS["tcompile"]
        return "Inductor", EAGERS_DRAWS["inductor"]

    def _own_draws(self) -> str:
        name, setting = self._whose_draws()
        return (
            f"compared with the results of the same graph run by eager with random numbers of {name}: by design those "
            f"are others than eager's ({setting})"
        )

    def _others_draws(self) -> str:
        name, setting = self._whose_draws()
        return f"it draws random numbers, and {name} draws others than eager does ({setting})"

    def _check_results(self, mine: CallResults, eager: CallResults, best: CallResults | None) -> Iterator[Check]:
        changed = sorted(mine.changed_names() | eager.changed_names())
        narrowest = precision_casts.narrowest([*self.kept.values()])
        kinds = zip(
            mine.parts(changed), eager.parts(changed), best.parts(changed) if best else ({}, {}, {}), strict=True
        )
        for ours, theirs, exacts in kinds:
            scope = Scope.of_results(theirs.values(), narrowest)
            for name in dict.fromkeys([*theirs, *ours]):
                yield check_result(name, ours.get(name), theirs.get(name), exacts.get(name), scope)

    def _whole(self, own: Sequence[Check]) -> Check:
        """The `Check` of the whole call."""
        if not own:
            words = "the call gives no tensors, and changes none"
            return Check("the call", None, None, "not comparable", words=words)
        if own[0].verdict == "not comparable":
            return replace(own[0], subject="the call", words=f"not comparable: {own[0].words}")
        own_draws = self.eager.draws and self._draws_its_own()
        unknown = self.exact if isinstance(self.exact, str) and not own_draws else ""
        whole = check_call(own, unknown)
        notes = [whole.note, self._own_draws() if own_draws else "", self._casts(own)]
        return replace(whole, note="; ".join(filter(None, notes)))

    def _casts(self, own: Sequence[Check]) -> str:
        """For a call in 16-bit formats that is not equal to eager: why, and the setting that makes it equal."""
        dtype = precision_casts.narrowest([*self.kept.values()])
        if dtype is None or all(check.verdict == "equal" for check in own) or not self._has_kernels():
            return ""
        return f"{precision_casts.explain(dtype)}; {self._effect_of_setting(own)}"

    def _has_kernels(self) -> bool:
        return any(frame.graphs for frame in self.kept.values())

    def _effect_of_setting(self, own: Sequence[Check]) -> str:
        """The effect of the setting, measured where compiling takes little time."""
        seconds = sum(timing.seconds for timing in self.builder.timings if timing.what == "compile")
        if seconds > precision_casts.MOST_SECONDS or (self.eager.draws and self._draws_its_own()):
            return f"{precision_casts.SETTING} rounds as eager does"
        found = precision_casts.results_with_casts(self.call, self.compiled, self.unheard)
        after = [*self._check_results(found, self.eager, None)]
        return precision_casts.effect(own, after)

    def _captured_checks(self) -> Iterator[Check]:
        """Checks of the call with its captured graphs, all of them at once."""
        graph = self.heard[0] if len(self.heard) == 1 else ""
        if self.heard and all(self.kept[name].eager is not None for name in self.heard):
            yield from self._stage(CAPTURED, graph, self.in_place.with_captured_graphs)

    def _stage_checks(self) -> Iterator[Check]:
        """Checks of the call with the graphs of each stage in turn."""
        for stage in self.in_place.stages():
            yield from self._stage(stage, "", partial(self.in_place.at_stage, stage))

    def _stage(self, stage: str, graph: str, run: Callable[[], CallResults]) -> tuple[Check, ...]:
        try:
            found = run()
        except (NotComparableError, LevelError) as error:
            return (not_comparable(stage, graph, str(error)),)
        except Exception as error:  # noqa: BLE001 - graphs fail in many ways, and the other stages don't care
            reason = f"it can't be run: {type(error).__name__}: {first_line(error)}"
            return (not_comparable(stage, graph, reason),)
        if not found.has_same_results(self.eager):
            return (not_comparable(stage, graph, "it gives other outputs or gradients than eager"),)
        return self._check_stage(stage, graph, found)

    def _check_stage(self, stage: str, graph: str, mine: CallResults) -> tuple[Check, ...]:
        changed = sorted(mine.changed_names() | self.eager.changed_names())
        own, eager = on_cpu(mine.with_names(changed)), on_cpu(self.eager.with_names(changed))
        best = on_cpu(self.exact.with_names(changed)) if isinstance(self.exact, CallResults) else None
        return stage_checks(own, eager, best, stage, graph)
