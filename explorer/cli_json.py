"""`--json`, `--limit`, `--cursor` and `--max-bytes`: the answers of the commands for programs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from explorer.run.answers import MOST_BYTES, Answer, answer_json, check_limits

PRINTED = "-"
"""The value of `--json` without a path, for commands that can also save the record there."""


def add_json(command: Any, *, has_path: bool = False) -> None:
    """Add the flags of answers for programs; with `has_path`, `--json` has another meaning too and exists already."""
    group = command.add_argument_group("answers for programs")
    if not has_path:
        group.add_argument("--json", action="store_true", help="print JSON, one page of it")
    group.add_argument("--limit", type=int, metavar="N", help="most items of a page")
    group.add_argument("--cursor", default="", help="the page that begins there: next_cursor of the page before")
    group.add_argument(
        "--max-bytes", type=int, default=MOST_BYTES, metavar="N",
        help=f"most bytes of a page; 0 for no limit, and nothing is cut ({MOST_BYTES})",
    )  # fmt: skip


def join_json(words: Sequence[str]) -> list[str]:
    """Join `--json` of `explore` and `xray` with its path; `--json=-` if the next word is no path."""
    if words[:1] not in (["explore"], ["xray"]):
        return list(words)
    found: list[str] = []
    for word in words:
        if found[-1:] == ["--json"]:
            is_path = word == PRINTED or not (word.startswith("-") or ".py:" in word)
            found[-1] = f"--json={word if is_path else PRINTED}"
            if is_path:
                continue
        found.append(word)
    return [f"--json={PRINTED}" if word == "--json" else word for word in found]


def prints_json(args: argparse.Namespace) -> bool:
    """Whether the command prints JSON, and not text."""
    return str(getattr(args, "json", False)) in ("True", PRINTED)


@contextmanager
def answers_alone(args: argparse.Namespace) -> Iterator[None]:
    """Keep JSON apart from what the user's code prints, also in C or in a child process: all of that goes to stderr.

    Raises AnswerError for limits that no page can keep, before the user's code runs.
    """
    args.answer_to = sys.stdout
    if not prints_json(args):
        yield
        return
    check_limits(args.limit, args.max_bytes or None)
    with redirect_stdout(sys.stderr):
        if not _is_descriptor_of_process(args.answer_to):
            yield
            return
        args.answer_to.flush()
        with os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n") as args.answer_to:
            os.dup2(2, 1)
            try:
                yield
            finally:
                os.dup2(args.answer_to.fileno(), 1)


def _is_descriptor_of_process(stream: Any) -> bool:
    try:
        return bool(stream.fileno() == 1)
    except (AttributeError, OSError, ValueError):  # of a notebook or a test
        return False


def print_answer(answer: Answer, args: argparse.Namespace) -> None:
    """Print the page that the arguments ask for. Raises AnswerError for an invalid cursor or limit."""
    print(answer_json(answer, args.limit, args.cursor, args.max_bytes or None), file=args.answer_to)
