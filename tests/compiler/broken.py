"""Code that breaks a graph, and the expected facts of the break. `«…»` marks the user's expression that breaks."""

from __future__ import annotations

import contextlib
import io
import itertools
import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo.config as dynamo_config
import torch.fx.experimental._config
from torch.torch_version import TorchVersion

from compiler.engine import explore
from compiler.record import Record, Suggestion
from compiler.record.options import Options

IMPORTS = """
import array, contextlib, copy, datetime, hashlib, io, json, logging, os, pickle, random, sys, threading, time, uuid
import warnings
import numpy as np
import torch
from torch import nn
log = logging.getLogger("somebody")
"""
TORCH = TorchVersion(torch.__version__)
MODERN = TORCH >= "2.13"
#: What breaks a graph before torch 2.14 or 2.15, which follow it.
FOLLOWED = (("random.random()", "object()") if TORCH >= "2.14" else ()) + (("bytearray(3)",) if TORCH >= "2.15" else ())
FIRST = IMPORTS.count("\n") + 1
X = (torch.tensor([1.0, 2.0, 3.0, 4.0]),)
NUMBERS = itertools.count()


@dataclass(frozen=True)
class Broken:
    """A graph break: `before` breaks with `kind`, and `after` is the code after following the advice.

    `after` is given only if the advice is not a rewrite or settings. `word` is part of the plain sentence or of the
    advice. `outcome` and `consequence` are as in the record.
    """

    kind: str
    before: str
    after: str = ""
    word: str = ""
    args: tuple[Any, ...] = X
    outcome: str = "resumed"
    consequence: str = ""
    calls: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.before.partition("«")[2].partition("»")[0].replace("\n", " ")[:40] + " " + self.kind[:24]

    @property
    def code(self) -> str:
        return self.before.replace("«", "").replace("»", "")

    @property
    def span(self) -> tuple[int, int, int, int]:
        """First line, column, last line and column of the marked expression."""
        start = self.before.index("«")
        end = self.before.index("»") - 1
        return (*_place(self.code, start), *_place(self.code, end))


def _place(code: str, offset: int) -> tuple[int, int]:
    before = code[:offset]
    return FIRST + before.count("\n"), offset - (before.rfind("\n") + 1)


def function(code: str) -> Callable[..., Any]:
    """The function `f` defined by some code, in a separate file, like a cell."""
    file, text = f"<tcompile broken {next(NUMBERS)}>", IMPORTS + code
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": "broken"}
    exec(compile(text, file, "exec"), names)
    return names["f"]


def captured(code: str, args: tuple[Any, ...] = X, **options: Any) -> Record:
    """The record of capturing `f` of this code, without its output."""
    fn = function(code)
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return explore(fn, args, options=Options(stages=("captured",), **options)).record


def rewritten(code: str, suggestion: Suggestion) -> str:
    """The code with a suggestion's lines instead of its own."""
    lines = code.split("\n")
    lines[suggestion.line - FIRST : suggestion.end_line - FIRST + 1] = suggestion.rewrite.split("\n")
    return "\n".join(lines)


@contextlib.contextmanager
def settings(statements: tuple[str, ...]) -> Iterator[None]:
    """Apply a suggestion's settings, and restore them afterwards."""
    restored = {name: getattr(dynamo_config, name) for name in dynamo_config.get_config_copy()}
    kept = {name: set(value) for name, value in restored.items() if isinstance(value, set)}
    fresh = {name: set(value) for name, value in kept.items() if name.endswith("logging_functions")}
    changed = ("capture_scalar_outputs", "capture_dynamic_output_shape_ops", "trace_autograd_ops", "allow_rnn",
               "trace_numpy", "compiled_autograd", "allow_unspec_int_on_nn_module")  # fmt: skip
    shapes = torch.fx.experimental._config.patch(use_duck_shape=True)
    with shapes, dynamo_config.patch({**{name: restored[name] for name in changed}, **fresh}):
        exec("\n".join(["import torch", *statements]), {})
        yield
