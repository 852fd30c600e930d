"""Explore a call of a file, and keep the values of its operations."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from explorer.entry.file_call import UsageError, load_call, unless_it_raises

if TYPE_CHECKING:
    from compiler.calls.explored import Explored
    from compiler.numerics.across.snapshot import Snapshot
    from compiler.record import Record

COMPILED_BY = ("backend", "mode", "options", "dynamic")
"""Options that ask for the values of compiled code."""


def save_values(args: argparse.Namespace, options: dict[str, Any]) -> Snapshot | None:
    """The values of the operations of a call. None if the user's code raised; its traceback is printed."""
    import torch

    from compiler.numerics.across.values import compile_with, values_of_call

    if options.get("ranks"):
        raise UsageError("numerics runs graphs again, which a simulated rank can't: leave out --ranks")
    found = unless_it_raises(args, lambda: _explore(args, options | {"stages": "captured"}))
    if found is None:
        return None
    torch.manual_seed(args.seed)
    asked = {name: options[name] for name in COMPILED_BY if name in options}
    return values_of_call(found, _settings(found.record, args.seed, asked), compile_with(asked) if asked else None)


def _explore(args: argparse.Namespace, options: dict[str, Any]) -> Explored:
    from compiler import engine
    from compiler.option_checks import parse_options
    from explorer.entry import user_code

    call, checked = load_call(args), parse_options(**options)

    def explore() -> Explored:
        return engine.explore(
            call.function, call.args, call.kwargs, checked, calls=call.calls, site=call.site or None, copies_inputs=True
        )

    found: Explored = user_code.run_user_code(call.path, explore)
    return found


def _settings(record: Record, seed: int, asked: dict[str, Any]) -> dict[str, str]:
    where = record.environment
    facts = {name: str(getattr(where, name)) for name in where.__dataclass_fields__ if name != "tcompile"}
    return facts | {"seed": str(seed), "values of": "compiled code" if asked else "eager mode"} | {
        name: str(getattr(record.options, name)) for name in asked
    }  # fmt: skip
