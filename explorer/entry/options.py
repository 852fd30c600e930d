"""The options of an exploration, for the magics and the command line: names, help and values."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_YES, _NO = ("", "true", "1", "yes"), ("false", "0", "no", "none")


def strip_quotes(text: str) -> str:
    """Strip the quotes around a text, because IPython keeps them."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _true_or_text(text: str) -> bool | str:
    """The value of a flag with an optional value: True for "yes", else the text, which `parse_options` checks."""
    return True if text == "yes" else strip_quotes(text)


_YES_NO = argparse.BooleanOptionalAction
OPTIONS: dict[str, dict[str, Any]] = {
    "--target": {
        "type": strip_quotes, "metavar": "NAME",
        "help": "What to generate code for: cpu, cuda, cuda:0, or a GPU that is not here, such as h100 "
                "(tcompile.targets() lists them); default: the GPU that the tensors are on, else an h100.",
    },
    "--mode": {"type": strip_quotes, "help": "default, reduce-overhead, max-autotune or max-autotune-no-cudagraphs."},
    "--dynamic": {
        "action": _YES_NO, "help": "All sizes symbolic, or none; default: those that are seen to change.",
    },
    "--fullgraph": {
        "action": "store_true", "help": "Ask for one graph: where there would be a break, say why.",
    },
    "--backend": {
        "type": strip_quotes,
        "help": "A backend of torch.compile, or a function that is one: its name in a notebook, FILE.py:NAME on the "
                "command line; default: inductor.",
    },
    "--vs": {
        "type": strip_quotes, "metavar": "BACKEND",
        "help": "Compile the same call with this backend too, inductor or tcompile, and show both side by side.",
    },
    "--options": {
        "type": strip_quotes, "metavar": "KEY=VALUE", "action": "append",
        "help": "One of the backend's settings, as often as needed: --options max_autotune=True",
    },
    "--stages": {
        "type": strip_quotes, "metavar": "A,B",
        "help": "Only these stages, for example captured,forward,ptx; all of them with all, kernels compiled.",
    },
    "--grad": {"action": _YES_NO, "help": "With gradients, or under torch.no_grad(); default: as the inputs ask."},
    "--time": {
        "type": _true_or_text, "metavar": "A,B", "nargs": "?",
        "help": "Time the call, eager and compiled: the candidates that make sense here, --time=all, or names of "
                "modes and backends: --time=default,reduce-overhead,aot_eager.",
    },
    "--check": {
        "type": _true_or_text, "metavar": "kernels", "nargs": "?",
        "help": "Build the code and compare its results with eager; --check kernels compares what each Triton kernel "
                "stores, which needs no GPU.",
    },
    "--ranks": {
        "type": int, "metavar": "N",
        "help": "Simulate a job of N ranks in this process: a process group that moves nothing, made for the cell.",
    },
    "--rank": {
        "type": strip_quotes, "metavar": "R",
        "help": "With --ranks: the rank to explore, or several: --rank 0,7 or --rank first,last,corners; default: 0.",
    },
    "--node": {"type": int, "metavar": "GPUS", "help": "With --ranks: GPUs of a node; default: 8."},
    "--fake": {
        "action": "store_true",
        "help": "Make tensors without memory (FakeTensorMode): a large model is explored without its weights.",
    },
    "--step": {
        "action": "store_true",
        "help": "Record how TorchDynamo reads the code, instruction by instruction: run.replay(), run.tables.steps.",
    },
}  # fmt: skip
"""Keyword arguments of argparse's `add_argument`, by flag."""


def asked_options(args: argparse.Namespace) -> dict[str, Any]:
    """The given options by name. Raises OptionError for an invalid backend setting."""
    from compiler.option_checks import assignments  # it imports torch

    asked = {name: getattr(args, name) for name in (flag[2:] for flag in OPTIONS) if getattr(args, name) is not None}
    return asked | ({"options": assignments(args.options)} if args.options else {})


def join_values(words: Sequence[str]) -> list[str]:
    """Join each flag with its optional value: `--time all` becomes `--time=all`, `--check` alone `--check=yes`.

    If the word after the flag is not a valid value, it stays a separate argument. `--check=no` is left out.
    """
    found: list[str] = []
    for word in words:
        before = found[-1].removesuffix("=yes") if found else ""
        flag, _, value = word.lower().partition("=")
        if before in _VALUES and found[-1] != before and _VALUES[before](word):
            found[-1] = f"{before}={word}"
        elif flag not in _VALUES or value not in (*_YES, *_NO):
            found.append(word)
        elif value in _YES:
            found.append(f"{flag}=yes")
    return found


def _are_candidates(word: str) -> bool:
    if word.startswith("-"):
        return False
    from compiler.torch_api import settings  # it imports torch

    known = {"all", "inductor", *settings.modes(), *settings.backends()}
    return all(part in known for part in word.split(","))


_VALUES: dict[str, Callable[[str], bool]] = {"--time": _are_candidates, "--check": "kernels".__eq__}
"""Flags with an optional value, each with a test of whether the next word is the value."""


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Options as words of a command, each flag joined with its value; those that are None are left out."""
    words = []
    for name, value in options.items():
        if value is False and OPTIONS[f"--{name}"].get("action") is not _YES_NO:
            continue
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            words += [f"--{name}={each}" for each in (value if isinstance(value, list | tuple) else [value])]
    return words
