"""`--check`: compare the compiled call, and the call with its captured graphs, with eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from compiler.calls.call import Call
from compiler.calls.kept_graphs import KeptFrame
from compiler.numerics.call_results import CallResults, exact, record_draws, results
from compiler.numerics.call_words import check_call, check_result
from compiler.numerics.compiled_random import draws_its_own
from compiler.numerics.graphs_in_call import replace_graph_calls, with_captured_graphs, with_own_draws
from compiler.numerics.policy.judge import Scope, is_reference, name_of
from compiler.numerics.stage_runs import NotComparableError, stages_of
from compiler.numerics.stage_words import not_comparable, on_cpu, stage_checks
from compiler.record import Check
from compiler.torch_api.flex_attention import attend_without_compiling
from compiler.torch_api.level_traces import first_line

CAPTURED = "captured"
OTHER_WAY = "eager's own numbers are far from it: in float64 the call takes another way, at a branch or a comparison"
EAGERS_DRAWS = {
    "inductor": ("Inductor", "torch._inductor.config.fallback_random = True draws eager's"),
    "tcompile": ('backend="tcompile"', 'options={"random": "eager"} draws eager\'s'),
}
"""Name of each backend, and the setting that makes it draw eager's random numbers."""
OWN_DRAWS = (
    "compared with the results of the same graph run by eager with random numbers of {name}: by design those are "
    "others than eager's"
)
OTHERS_DRAWS = "it draws random numbers, and {name} draws others than eager does"
SETTING = "torch._inductor.config.emulate_precision_casts = True"
NARROW = (torch.bfloat16, torch.float16)


@dataclass
class CallCheck:
    """Compares one call with eager and with float64.

    `kept` are the captures by graph id. `heard` are the ids of the graphs that the call ran, in order. Eager runs are
    inside `pause`: `flex_attention` compiles itself, which is no compilation of the user's.
    """

    call: Call
    kept: Mapping[str, KeptFrame]
    pause: Callable[[], AbstractContextManager[Any]] = nullcontext
    heard: list[str] = field(default_factory=list)

    def checks(self) -> Iterator[Check]:
        """Yield checks of the whole call, of each of its results, and of its results with the captured graphs.

        Raises any exception of the call.
        """
        own = [*self._own_checks()]
        if failed := self._not_compiled:
            words = f"not comparable: {failed} could not be compiled, and eager mode ran in its place"
            yield Check("the call", None, None, "not comparable", words=words)
        else:
            yield self._whole(own)
            yield from own
        yield from self._captured_checks()

    @cached_property
    def eager(self) -> CallResults:
        with self.pause():
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
            with self.pause(), attend_without_compiling():
                found = exact(self.call, record_draws(self.call))
        except Exception as error:  # noqa: BLE001 - code written for one dtype can fail in many ways
            return f"{type(error).__name__}: {first_line(error)}"
        if not found.has_same_results(self.eager):
            return "in float64 the call gives other outputs or gradients"
        outputs = self.eager.outputs
        return found if is_reference([*outputs.values()], [found.outputs[name] for name in outputs]) else OTHER_WAY

    @property
    def called(self) -> dict[str, KeptFrame]:
        """The captures that the call ran, by graph id."""
        return {name: self.kept[name] for name in self.heard}

    @property
    def _not_compiled(self) -> str:
        """Ids of the call's graphs whose backend raised, which say nothing of compiled code; "" for none."""
        return ", ".join(dict.fromkeys(name for name in self.heard if self.kept[name].fell_back))

    def _own_checks(self) -> Iterator[Check]:
        """A `Check` for each result of the compiled call."""
        mine, reference = self.mine, self.eager
        best = self.exact if isinstance(self.exact, CallResults) else None
        if self.eager.draws and self._draws_its_own():
            best = None
            try:
                reference = with_own_draws(self.call, self.called)
            except NotComparableError:
                yield Check(
                    "outputs and gradients", None, None, "not comparable", words=self._draws_words(OTHERS_DRAWS)
                )
                return
        yield from self._check_results(mine, reference, best)

    def _draws_its_own(self) -> bool:
        return any(map(draws_its_own, self.kept.values()))

    def _draws_words(self, words: str) -> str:
        """`words`, completed with the backend's name and the setting that makes it draw eager's random numbers."""
        is_ours = any(frame.programs for frame in self.kept.values())
        name, setting = EAGERS_DRAWS["tcompile" if is_ours else "inductor"]
        return f"{words.format(name=name)} ({setting})"

    def _check_results(self, mine: CallResults, eager: CallResults, best: CallResults | None) -> Iterator[Check]:
        changed = sorted(mine.changed_names() | eager.changed_names())
        narrowest = self._narrowest()
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
        notes = [whole.note, self._draws_words(OWN_DRAWS) if own_draws else "", self._casts(own)]
        return replace(whole, note="; ".join(filter(None, notes)))

    def _casts(self, own: Sequence[Check]) -> str:
        """Explain why 16-bit results are not equal to eager's, and name the setting that helps; "" if not needed.

        Eager rounds to bfloat16 or float16 after each operation. A fused kernel computes in float32 and rounds only
        when it stores. The setting restores eager's intermediate rounding.
        """
        dtype = self._narrowest()
        has_kernels = any(frame.graphs for frame in self.kept.values())
        if dtype is None or all(check.verdict == "equal" for check in own) or not has_kernels:
            return ""
        return (
            f"a fused kernel keeps float32 between operations where eager rounds each result to {name_of(dtype)}; "
            f"{SETTING} rounds as eager does"
        )

    def _narrowest(self) -> torch.dtype | None:
        """The narrowest 16-bit dtype in the graphs; None if there is none."""
        stages = (stage for frame in self.kept.values() for stage in stages_of(frame))
        nodes = (node for stage in stages for graph in stage.graphs.values() for node in graph.graph.nodes)
        found = {node.meta.get("dtype") for node in nodes}
        return next((dtype for dtype in NARROW if dtype in found), None)

    def _captured_checks(self) -> tuple[Check, ...]:
        """Checks of the call with all its captured graphs in place of compiled code; none if a graph is missing."""
        graph = self.heard[0] if len(self.heard) == 1 else ""
        if not self.heard or any(frame.eager is None for frame in self.called.values()):
            return ()
        try:
            found = with_captured_graphs(self.call, self.called)
        except Exception as error:  # noqa: BLE001 - graphs fail in many ways, and the other checks are independent
            reason = f"it can't be run: {type(error).__name__}: {first_line(error)}"
            return (not_comparable(CAPTURED, graph, reason),)
        if not found.has_same_results(self.eager):
            return (not_comparable(CAPTURED, graph, "it gives other outputs or gradients than eager"),)
        changed = sorted(found.changed_names() | self.eager.changed_names())
        own, eager = on_cpu(found.with_names(changed)), on_cpu(self.eager.with_names(changed))
        best = on_cpu(self.exact.with_names(changed)) if isinstance(self.exact, CallResults) else None
        return stage_checks(own, eager, best, CAPTURED, graph)
