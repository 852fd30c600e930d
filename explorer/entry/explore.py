"""`tcompile.explore`: run one call under torch.compile and record every stage."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compiler.record.options import OptionError, Options
from explorer.run.run import Run

if TYPE_CHECKING:
    from compiler.distributed.ranks import Ranks
    from compiler.record import Record
    from compiler.torch_api.fx import SourceFrame


def explore(
    fn: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    calls: Sequence[Sequence[Any]] = (),
    **options: Any,
) -> Run:
    """Call a function under torch.compile and return the `Run`, with the result of every stage.

    >>> run = tcompile.explore(model, x, target="h100")
    >>> print(run)                # stages, kernels, graph breaks, problems
    >>> print(run["captured"])    # one stage

    `fn` is a function, bound method or `nn.Module`; it is called with `args` and `kwargs`. `options` are those of
    `%%tcompile`, by name: target, mode, dynamic, fullgraph, backend, vs, options, stages, grad, time, check, step,
    ranks, rank, node, fake.
    `run.value` is the call's result. To also explore a backward pass, let `fn` call `backward()`, or use `%%tcompile`.

    With `ranks`, one rank of a distributed job is simulated, or several (`rank="first,last"`), and `run.ranks` has all.
    A function that takes no arguments and returns a module makes it on each rank: `explore(make_model, x, ranks=8)`.

    `calls=[(a,), (b,)]` calls `fn(a)` and `fn(b)` instead: `run.recompiles` shows what the second call recompiled, and
    `run.value` is a list.

    Raises OptionError for an unknown option or an invalid value, TypeError if `fn` can't be compiled, and any exception
    of `fn`.
    """
    return explore_call(fn, args, kwargs, options, calls=calls)


def explore_call(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    *,
    calls: Sequence[Sequence[Any]] = (),
    site: tuple[SourceFrame, ...] | None = None,
) -> Run:
    """Explore a call. `site` is the source line of the call; by default, the user's line that makes the call."""
    checked = _check_options(fn, options)
    if not callable(fn):
        raise TypeError(f"explore takes a function or module and then its arguments; got {type(fn).__name__}")
    # These import torch, which `tcompile.load` and the command line's `show` do not need.
    from compiler import engine
    from compiler.distributed.group import simulate_asked
    from explorer.entry.callee import ORIGINALS, named_refusal

    why_not = named_refusal(fn)
    if why_not:
        name = getattr(fn, "__qualname__", type(fn).__name__)
        hint = f"; {ORIGINALS[why_not]}" if why_not in ORIGINALS else ""
        raise TypeError(f"{name} can't be explored: it {why_not}{hint}")
    calls = _tuples(args, calls)
    if checked.ranks:
        from explorer.entry.ranks import explore_ranks

        return explore_ranks(fn, args, kwargs or {}, checked, calls, site)
    with simulate_asked(checked):
        found = engine.explore(fn, args, kwargs, checked, calls=calls, site=site)
    return Run(found.record, found.value, kept=found.kept, call=found.call, ranks=_gather(found.record))


def _gather(record: Record) -> Callable[[], Ranks] | None:
    """In a job of several processes: send this rank's record to rank 0; on rank 0, how to gather those of all."""
    from compiler.distributed.gathered import RealRanks

    job = RealRanks.of_process()
    if job is None:
        return None
    if job.rank:
        job.send(record)
        return None
    return functools.partial(job.gather, record)


def _check_options(fn: Callable[..., Any], options: Mapping[str, Any]) -> Options:
    """Parse the options. For an argument of `fn` itself, the OptionError explains how to pass it."""
    from compiler.option_checks import parse_options  # it imports torch

    try:
        return parse_options(**options)
    except OptionError as error:
        unknown = [name for name in options if name not in Options.__dataclass_fields__]
        own = [name for name in unknown if _takes(fn, name)]
        if not own:
            raise
        given = ", ".join(f"{name!r}: …" for name in own)
        title = getattr(fn, "__qualname__", type(fn).__name__)
        raise OptionError(
            f"{', '.join(own)} {'is' if len(own) == 1 else 'are'} no option of explore, but {title} takes "
            f"{'it' if len(own) == 1 else 'them'}: write explore(…, kwargs={{{given}}})"
        ) from error


def _takes(fn: Callable[..., Any], name: str) -> bool:
    """Whether `fn` takes a keyword argument of this name."""
    try:
        parameters = inspect.signature(getattr(fn, "forward", fn)).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return False
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _tuples(args: Sequence[Any], calls: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """Check and return `calls`. Raises TypeError if a call is not a tuple or list, or if there are also `args`."""
    if calls and args:
        raise TypeError("explore takes arguments for one call, or calls=[(a,), (b,)] for several; it got both")
    wrong = next((call for call in calls if not isinstance(call, tuple | list)), None)
    if wrong is not None:
        raise TypeError(f"each of `calls` is a tuple of arguments, like (x,); got {type(wrong).__name__}")
    return calls
