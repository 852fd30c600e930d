"""Try advice: time the user's call with and without the change, on fresh copies.

Both are compiled anew with empty caches (twice if compile time is compared, as torch does some work only once in a
process). Their results are compared, and both are timed in turns over several rounds. The gain is the median of the
differences in each round, with its quartiles. The state of the user's process is restored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from compiler.advise.facts import Advice, Change
from compiler.calls.call import Call, without_output
from compiler.calls.copies import CannotCopyError, Copy, copy_call, main_device
from compiler.calls.versions import CannotApplyError, files_by_name, files_of, version
from compiler.numerics.policy.judge import Scope, judge, worst
from compiler.record import Check, Record
from compiler.record.measure_facts import Trial, What
from compiler.record.options import Options
from compiler.targets import is_virtual
from compiler.timing.candidates import Spec
from compiler.timing.one_process import check_one_process
from compiler.timing.rounds import calls_a_round, clock_for, settle, warm_up
from compiler.timing.spread import Spread
from compiler.timing.work import job, mark_steps, work
from compiler.torch_api import apart
from compiler.torch_api.dynamo_caches import separate_caches
from compiler.torch_api.pytrees import tree_leaves
from compiler.torch_api.settings import with_settings
from compiler.torch_api.widened import random_state

ROUNDS = 11
BUDGET_SECONDS = 10.0
"""Time limit for all rounds of both sides; slow calls get fewer rounds."""
LEAST_ROUNDS = 5

Tell = Callable[[str], None]
Within = Callable[[], AbstractContextManager[Any]]
__all__ = ["CannotApplyError", "CannotCopyError", "run_trial"]
Same = Literal["equal", "close", "differs", "not comparable"]


@dataclass
class _Side:
    """The call with or without the change, and its measurements.

    `graphs` counts the graphs compiled so far, and `compiled` those of the first call and the other explored calls.
    """

    name: str
    options: Options
    change: Change = field(default_factory=lambda: Change(""))
    within: Within = nullcontext
    step: Callable[[], None] | None = None
    calls: int = 1
    compile_seconds: float = 0.0
    graphs: int = 0
    compiled: int = 0
    draws: bool = False
    results: Sequence[Result] = ()
    rounds: list[float] = field(default_factory=list)

    def count_graph(self) -> None:
        self.graphs += 1

    @property
    def spec(self) -> Spec:
        asked = self.options.compile_arguments()
        return Spec(self.name, asked["backend"], asked.get("mode", "default"), dict(asked.get("options", {})))


def run_trial(advice: Advice, record: Record, call: Call, tell: Tell | None = None) -> Trial:
    """Apply a change to the call of a record and measure its effect.

    Raises ValueError for advice without an applicable change, OptionError in a job of ranks, CannotApplyError if the
    change can't be made to this call or the call then fails, CannotCopyError if the call can't be copied.
    """
    if advice.change is None or not advice.change.can_be_tried:
        raise ValueError(f"there is nothing to try: {advice.title!r} is to be done by hand")
    check_one_process(call)
    of = advice.gain.of if advice.gain is not None else "call"
    later = call.later if advice.rule == "recompile" else ()
    is_elsewhere = of == "call" and is_virtual(record.target)  # the gain was expected on a GPU that is not present
    bench = _Bench(call, later, tell or (lambda _: None), is_elsewhere=is_elsewhere)
    within = _context_of_change(advice.change, call.fn, files_by_name(record, files_of(call.fn)))
    before = _Side("as it is", record.options)
    after = _Side("changed", changed_options(record.options, advice.change), advice.change, within)
    with bench.isolate() as folder:
        for _ in range(2 if of == "compile" else 1):  # the first time includes work that torch does once in a process
            bench.prepare(after, folder)
            bench.prepare(before, folder)
        bench.in_turns(before, after)
    return bench.trial(advice, before, after)


def changed_options(options: Options, change: Change) -> Options:
    """The options, updated by a change."""
    asked = dict(change.options)
    if "mode" in asked or "options" in asked:
        asked = {"mode": "default", "options": {}} | asked
    return replace(options, **asked)


def _context_of_change(change: Change, fn: Any, files: Mapping[str, str]) -> Within:
    """A function that makes a context manager to apply a change. Raises CannotApplyError."""
    if change.suggestion is not None:
        return version(change.suggestion, fn, files) or nullcontext
    if change.settings:
        return lambda: with_settings(change.settings)
    return nullcontext


class _Bench:
    def __init__(self, call: Call, later: Sequence[Call], tell: Tell, *, is_elsewhere: bool) -> None:
        self.call, self.later, self.tell = call, later, tell
        self.is_elsewhere = is_elsewhere
        self.recompile_limit = apart.recompile_limit()
        self.device = main_device(copy_call(call))
        self.clock = clock_for(self.device)
        self.what: What = "forward"

    @contextmanager
    def isolate(self) -> Iterator[str]:
        """Run a block without side effects in the user's process; yields a folder for caches."""
        with ExitStack() as stack:
            stack.enter_context(self._own_draws())
            stack.enter_context(without_output())
            stack.enter_context(replace(self.call.surroundings, autocast=()).restore())
            folder = stack.enter_context(apart.cache_folder())
            stack.enter_context(apart.forget_compilations())
            yield folder

    def _own_draws(self) -> AbstractContextManager[None]:
        return torch.random.fork_rng([self.device] if self.device.type == "cuda" else [])

    def prepare(self, side: _Side, folder: str) -> None:
        """Compile, keep the results of the first call, and warm up."""
        self.tell(f"{side.name}: compiling")
        with side.within(), separate_caches():
            try:
                with self._own_draws():
                    self._first_call(side, folder)
                assert side.step is not None
                self.tell(f"{side.name}: warming up")
                side.step = settle(side.step, lambda: side.graphs, self.recompile_limit).step
                side.calls = calls_a_round(warm_up(side.step, self.clock).seconds)
            except CannotApplyError:
                raise
            except Exception as error:
                name = "with the change" if side.change.text else "when it is made again"
                raise CannotApplyError(f"the call raises {type(error).__name__} {name}: {error}") from error

    def _first_call(self, side: _Side, folder: str) -> None:
        around = self.call.surroundings
        if side.change.autocast:
            around = replace(around, autocast=((self.device.type, getattr(torch, side.change.autocast)),))
        asked = job(copy_call(self.call), around, None, None)
        self.what = asked.what
        copy = copy_call(self.call)
        kept: list[Any] = []
        run = _compile_side(copy, side)
        made = work(copy, _keep_first_value(run, kept), asked)
        side.graphs = 0
        self.clock.synchronize()
        torch.manual_seed(0)  # the random state is restored at the end of the enclosing block
        random = random_state()
        start = time.perf_counter()
        with apart.empty_caches(folder):
            made.step()
            for other in self.later:
                later_args, later_kwargs = other.copied_arguments()
                with other.surroundings.restore():
                    run(*later_args, **later_kwargs)
            self.clock.synchronize()
        side.compile_seconds, side.compiled = time.perf_counter() - start, side.graphs
        side.draws = random != random_state()
        gradients = [None if leaf.grad is None else leaf.grad.detach().clone() for leaf in copy.leaves()]
        side.results = results_of(kept[0] if kept else None, gradients)
        kept.append(None)  # keep nothing from now on
        made.rest()
        again = work(copy, run, asked)
        replays = side.spec.replays and not side.change.eager
        side.step = mark_steps(again).step if replays else again.step

    def in_turns(self, *sides: _Side) -> None:
        """Time the sides in turns; each turn begins with an untimed call."""
        a_round = sum(self._mean(side) * side.calls for side in sides)
        rounds = min(ROUNDS, max(LEAST_ROUNDS, int(BUDGET_SECONDS / max(a_round, 1e-9))))
        for number in range(rounds):
            self.tell(f"both in turns: round {number + 1} of {rounds}")
            for side in sides:
                side.rounds.append(self._mean(side))

    def _mean(self, side: _Side) -> float:
        assert side.step is not None
        with side.within():
            side.step()
            return self.clock.seconds(side.step, side.calls)

    def trial(self, advice: Advice, before: _Side, after: _Side) -> Trial:
        gained = Spread.of_numbers([first - second for first, second in zip(before.rounds, after.rounds, strict=True)])
        old, new = Spread.of_numbers(before.rounds), Spread.of_numbers(after.rounds)
        same, words = agreement(
            before.results, after.results, expected=advice.numbers, draws=before.draws or after.draws
        )
        of = advice.gain.of if advice.gain is not None else "call"
        compiled = (before.compile_seconds, after.compile_seconds) if of == "compile" else (None, None)
        graphs = (before.compiled, after.compiled) if advice.rule == "recompile" else (None, None)
        return Trial(
            advice=advice.id, what=self.what, device=self.device.type, before=old.middle, after=new.middle,
            gained=gained.middle, low=gained.low, high=gained.high, rounds=len(before.rounds),
            compile_before=compiled[0], compile_after=compiled[1],
            graphs_before=graphs[0], graphs_after=graphs[1], same=same, numbers=words,
            expected=None if advice.gain is None or self.is_elsewhere else advice.gain.seconds, of=of,
        )  # fmt: skip


def _compile_side(copy: Copy, side: _Side) -> Callable[..., Any]:
    """The callable of one side: compiled as a whole, by regions, or eager."""
    if side.change.eager or side.options.backend == "eager":
        return copy.fn
    if not side.change.regions:
        return side.spec.compile(copy.fn, side.options, side.count_graph)
    for block in _blocks(copy, side.change.regions):
        block.forward = side.spec.compile(block.forward, side.options, side.count_graph)
    return copy.fn


def _blocks(copy: Copy, paths: Sequence[str]) -> list[torch.nn.Module]:
    """Modules at these paths. Raises CannotApplyError."""
    for module in copy.modules:
        named = dict(module.named_modules())
        if all(path in named for path in paths):
            return [named[path] for path in paths]
    raise CannotApplyError(f"no module that the call runs has {paths[0]} to {paths[-1]}")


def _keep_first_value(run: Callable[..., Any], kept: list[Any]) -> Callable[..., Any]:
    """Wrap `run` to keep the return value of its first call."""

    def keep_value(*args: Any, **kwargs: Any) -> Any:
        value = run(*args, **kwargs)
        if not kept:
            kept.append(value)
        return value

    return keep_value


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a call: a tensor, or another Python value."""

    name: str
    value: Any
    is_gradient: bool = False


def results_of(value: Any, gradients: Sequence[Tensor | None]) -> list[Result]:
    """Outputs and gradients of a call, with tensors copied so that later calls can't change them."""
    outputs = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in tree_leaves(value)]
    return [
        *(Result(f"output {number}", leaf) for number, leaf in enumerate(outputs)),
        *(Result(f"gradient {number}", leaf, True) for number, leaf in enumerate(gradients) if leaf is not None),
    ]


def agreement(
    before: Sequence[Result], after: Sequence[Result], *, expected: str = "", draws: bool = False
) -> tuple[Same, str]:
    """Whether results are the same within the dtype's tolerance, and their difference in words.

    `expected` describes an expected change of the numbers, if any; `draws` is whether the call draws random numbers.
    """
    if len(before) != len(after):
        return "differs", f"the call gives {len(after)} results with the change, {len(before)} without"
    checks = [check for gradients in (False, True) for check in _checks(before, after, gradients, bool(expected))]
    verdict, words = _in_words(checks, expected)
    if verdict == "differs" and draws:
        return "not comparable", "the call draws random numbers, and with the change it may draw others: not comparable"
    return verdict, words


def _checks(before: Sequence[Result], after: Sequence[Result], gradients: bool, recast: bool) -> list[Check]:
    """Compare either outputs or gradients, as their magnitudes are unrelated.

    With `recast`, a changed dtype alone is no difference.
    """
    pairs = [(old, new) for old, new in zip(before, after, strict=True) if old.is_gradient is gradients]
    scope = Scope.of_results(old.value for old, _ in pairs)
    checks = []
    for old, new in pairs:
        is_cast = recast and isinstance(new.value, Tensor) and isinstance(old.value, Tensor)
        value = new.value.to(old.value.dtype) if is_cast else new.value
        checks.append(judge(old.name, value, old.value, scope=scope))
    return checks


def _in_words(checks: Sequence[Check], expected: str) -> tuple[Same, str]:
    if not checks:
        return "equal", "the call gives no tensors to compare"
    most = worst(checks)
    if most.verdict == "equal":
        return "equal", "results are the same, bit for bit"
    if most.max_relative is None:
        return "differs", f"{most.subject} changes: {most.note}"
    amount = f"the largest difference is {most.max_relative:.1e} of the largest magnitude, in {most.subject}"
    if most.verdict == "close":
        return "close", f"results agree within the format's tolerance: {amount}"
    return "differs", f"numbers change, as expected: {amount}" if expected else f"numbers change: {amount}"
