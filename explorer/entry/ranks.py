"""Explore ranks of a simulated job: run the user's code once for each rank, in a process group of its own."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from compiler import engine
from compiler.calls.call import without_output
from compiler.calls.explored import Explored
from compiler.distributed.group import simulate_asked
from compiler.distributed.ranks import asks_several, explore_others, first_rank
from compiler.distributed.shared_graphs import SharedGraphs
from compiler.record import Record
from compiler.record.options import OptionError, Options
from compiler.torch_api.fx import SourceFrame
from explorer.entry.choice import Choice
from explorer.entry.look_ahead import LookAhead, Site
from explorer.run.run import Run


def explore_ranks(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Options,
    calls: Sequence[Sequence[Any]],
    site: tuple[SourceFrame, ...] | None,
) -> Run:
    """Explore a call on the ranks that the options ask for. The run is that of the first of them."""
    has_inputs = bool(calls or args or kwargs)
    makes = has_inputs and is_script(fn)
    if asks_several(options) and not is_script(fn, has_inputs=has_inputs):
        raise OptionError(
            f"rank={options.rank!r} explores several ranks, and each needs a model of its own: give a function without "
            "arguments that makes the mesh and the model and returns it, explore(make_model, x, ranks=8)"
        )

    def explore_rank(shared: SharedGraphs) -> Explored:
        if not has_inputs and is_script(fn, has_inputs=False):
            return explore_script(fn, options, shared)
        called = fn() if makes else fn
        return engine.explore(called, args, kwargs, options, calls=calls, site=site, shared=shared)

    return explore_each_rank(options, explore_rank)


def is_script(fn: Callable[..., Any], *, has_inputs: bool = True) -> bool:
    """Whether `fn` is a function without parameters: it makes the mesh and a model, which it returns or runs itself.

    If no inputs are given, its parameters may have defaults.
    """
    if not inspect.isroutine(fn):
        return False
    parameters = inspect.signature(fn).parameters.values()
    return not parameters if has_inputs else all(each.default is not each.empty for each in parameters)


def explore_script(fn: Callable[[], Any], options: Options, shared: SharedGraphs) -> Explored:
    """Run a function as plain Python, and explore the model that it calls; without one, the function itself."""
    site = Site(fn.__qualname__, inspect.unwrap(fn).__code__.co_firstlineno)
    with engine.Exploration(options, shared=shared) as exploration:
        namespace = getattr(fn, "__globals__", {})
        choice = Choice([site], exploration.compile, LookAhead([site], {}, namespace), file=site.text)
        choice.watch()
        try:
            value = fn()
        finally:
            choice.close()
        if not exploration.has_graphs and choice.explored is None:
            value = exploration.compile(fn)()
    return exploration.result(value)


def explore_each_rank(options: Options, explore_rank: Callable[[SharedGraphs], Explored]) -> Run:
    """Call `explore_rank` in the process group of each rank, from equal random states; what it prints is shown once.

    The run is that of the first rank, with all in `run.ranks`. Afterwards the random state is the first rank's. The
    other ranks are tried on fake tensors first, as their graphs are mostly those of the first rank, and need no values.
    """
    shared, states = SharedGraphs(), RandomStates()
    with simulate_asked(options, first_rank(options)):
        found = explore_rank(shared)
        if asks_several(options):
            shared.complete(found.record)

    def explore_other(rank: int) -> Record:
        try:
            return explore_once(rank, replace(options, fake=True))
        except Exception:  # noqa: BLE001 - code that reads values can't run on fake tensors, and raises anything
            return explore_once(rank, options)

    def explore_once(rank: int, simulated: Options) -> Record:
        with states.use_temporarily(), without_output(), simulate_asked(simulated, rank):
            return explore_rank(shared).record

    ranks = explore_others(options, found.record, found.shardings, explore_other)
    record = ranks.records[first_rank(options)]
    return Run(record, found.value, kept=found.kept, call=found.call, ranks=lambda: ranks)


class RandomStates:
    """The states of the random number generators of Python, NumPy and torch on the CPU."""

    def __init__(self) -> None:
        self._python, self._numpy, self._torch = random.getstate(), np.random.get_state(), torch.get_rng_state()

    def restore(self) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)

    @contextmanager
    def use_temporarily(self) -> Iterator[None]:
        """Use these states in the block; afterwards the states are as before it."""
        before = RandomStates()
        self.restore()
        try:
            yield
        finally:
            before.restore()
