"""Repair broken programs by applying exactly what `tcompile diagnose --json` says, and nothing else.

Programs with another fault than a break or a recompilation (`cause`) count as named if a finding has the right line.
The patch is applied with git. Of findings with a verified change and no edit, the snippet is used as it says: arguments
of torch.compile, or statements before the first call. Then breaks and compilations are counted by torch's own log and
counters, and the results are compared with those of the unchanged program, run eagerly.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import linecache
import logging
import os
import random
import subprocess
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.agent_programs import PROGRAMS, Broken
from benchmarks.xray import _Listener
from compiler.numerics.policy.judge import judge
from compiler.torch_api.pytrees import tree_leaves
from explorer import cli
from explorer.entry import call_inputs
from explorer.run.answers import Page, read_page

LEAST_REPAIRED = 0.75


@dataclass(frozen=True)
class Cost:
    """Lines in torch's log of graph breaks, and graphs that torch compiles, in all calls of a program."""

    breaks: int
    compilations: int


@dataclass(frozen=True)
class Repair:
    """The outcome for one program. `differs` says how the results differ, "" if they are equal.

    `states` are the findings and their states.
    """

    before: Cost
    after: Cost
    differs: str = ""
    states: tuple[str, ...] = ()

    @property
    def is_worse(self) -> bool:
        """Whether results differ, or torch compiles or breaks more. A function that was skipped has no compilations."""
        more = 0 < self.before.compilations < self.after.compilations
        return bool(self.differs) or self.after.breaks > self.before.breaks or more

    @property
    def is_repaired(self) -> bool:
        """Whether no break is left, and at most one recompilation, where there was a break or one more."""
        is_less = self.after.breaks < self.before.breaks or self.after.compilations < self.before.compilations
        return not self.is_worse and is_less and self.after.breaks == 0 and self.after.compilations <= 2


def repairs(names: Sequence[str]) -> bool:
    """Repair programs; whether at least three of four are repaired, and none is made worse."""
    chosen = [each for each in PROGRAMS if not names or each.name in names or each.kind in names]
    outcomes: Counter[str] = Counter()
    for program in chosen:
        start = time.perf_counter()
        try:
            if program.cause:
                outcome, told = _repair_cause(program)
                outcomes[outcome] += 1
                print(f"{program.kind:14} {program.name:24} {outcome:13} {told} ({time.perf_counter() - start:.1f} s)",
                      flush=True)  # fmt: skip
                continue
            found = _repair(program)
            outcome = "worse" if found.is_worse else "repaired" if found.is_repaired else "not repaired"
            told = f"breaks {found.before.breaks} -> {found.after.breaks}, compilations {found.before.compilations} -> "
            told += f"{found.after.compilations} {found.differs}"
            told += "" if found.is_repaired else f" [{', '.join(found.states)}]"
        except Exception as error:  # noqa: BLE001 - a program that can't be diagnosed is a result
            outcome, told = "failed", f"{type(error).__name__}: {error}".splitlines()[0]
        outcomes[outcome] += 1
        print(
            f"{program.kind:14} {program.name:24} {outcome:13} {told} ({time.perf_counter() - start:.1f} s)", flush=True
        )
    named, causes = outcomes["repaired"] + outcomes["named"], sum(bool(each.cause) for each in chosen)
    print(f"{outcomes['repaired']} of {len(chosen)} repaired, {outcomes['worse']} made worse; {dict(outcomes)}; "
          f"{causes} with a cause that no break shows; {named} of {len(chosen)} repaired or named")  # fmt: skip
    can_be_repaired = sum(not each.cause or each.has_fix for each in chosen)
    enough = LEAST_REPAIRED * (len(chosen) if len(chosen) == len(PROGRAMS) else can_be_repaired)
    return outcomes["repaired"] >= enough and not outcomes["worse"] and not outcomes["not named"]


def _repair(program: Broken) -> Repair:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        path = Path(f"{program.name}.py")
        path.write_text(program.text)
        before, expected = _cost(path, program, {}, ()), _results(path, program)
        page = _diagnose(path, program)
        if patch := "".join(line for line in page.facts["patch"].splitlines(True) if not line.startswith("# ")):
            subprocess.run(["git", "apply", "-"], input=patch, text=True, check=True, capture_output=True)
        settings, statements = _snippets(page)
        after = _cost(path, program, settings, statements)
        states = tuple(f"{item['rule']}: {item['state']}" for item in page.items)
        return Repair(before, after, _difference(expected, _results(path, program)), states)


def _repair_cause(program: Broken) -> tuple[str, str]:
    """The outcome for a program whose fault is neither a break nor a recompilation, and words about it.

    "named": a finding of the right kind has the line at fault, and there is no change that a program can make. With
    one, what counts is whether results are right after it.
    """
    kind = "wrong number" if program.kind == "wrong number" else "slow"
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        path = Path(f"{program.name}.py")
        path.write_text(program.text)
        page = _diagnose(path, program, ("--target", "cpu", "--no-grad", *(["--check"] * (kind != "slow"))))
        found = [item for item in page.items if item["kind"] == kind]
        named = [item for item in found if program.cause in (item["span"] or {}).get("code", "")]
        told = "; ".join(f"{item['rule']} at line {item['line']}" for item in named or found)
        if not program.has_fix:
            return "named" if named else "not named", told
        settings, _ = _snippets(page)
        f = _load(path).f
        expected, given = (
            [tree_leaves(run(*call)) for call in _calls(program)] for run in (f, torch.compile(f, **settings))
        )
        is_right = bool(settings) and not _difference(expected, given)
        return "repaired" if is_right else "not repaired", f"{told}; {settings}"


def _diagnose(path: Path, program: Broken, options: Sequence[str] = ("--backend", "eager")) -> Page:
    calls = [word for call in program.calls for word in ("--call", call)]
    written = io.StringIO()
    with contextlib.redirect_stdout(written), _quiet():
        code = cli.main(["diagnose", f"{path}:f", *calls, *options, "--json", "--max-bytes", "0"])
    if code:
        raise RuntimeError(f"tcompile diagnose failed with {code}")
    return read_page(written.getvalue())


def _snippets(page: Page) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Arguments of torch.compile, and statements before the first call, of verified changes without an edit."""
    settings: dict[str, Any] = {}
    statements: list[str] = []
    for item in page.items:
        if item["state"] != "verified" or item["edit"]:
            continue
        for line in item["snippet"]:
            if line.startswith("torch.compile(…"):
                settings |= eval(f"dict({line.partition(',')[2]}")
            else:
                statements.append(line)
    return settings, tuple(dict.fromkeys(statements))


def _load(path: Path) -> Any:
    linecache.checkcache()
    name = f"program_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    exec(compile(path.read_text(), str(path), "exec"), vars(module))
    return module


def _calls(program: Broken) -> list[list[Any]]:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    return [call_inputs.parse([text]).args for text in program.calls]


def _cost(path: Path, program: Broken, settings: dict[str, Any], statements: Sequence[str]) -> Cost:
    """Breaks by torch's own log, and compilations by its counters, with the eager backend."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    listener = _Listener()
    with _unchanged_settings(), contextlib.redirect_stdout(io.StringIO()), _quiet():
        logging.disable(logging.NOTSET)
        torch._logging.set_logs(graph_breaks=True)
        for name in ("symbolic_convert", "convert_frame"):
            logging.getLogger(f"torch._dynamo.{name}.__graph_breaks").addHandler(listener)
        module = _load(path)
        names = program.parameters.split(", ")
        run = torch.compile(module.f, backend="eager", **settings)
        of_each = [line for line in statements if line.partition(" = ")[0] in names]  # n = torch.tensor(n)
        for number, call in enumerate(_calls(program)):
            known = {"torch": torch, **dict(zip(names, call, strict=True))}
            exec("\n".join(of_each if number else statements), known)
            run(*(known[name] for name in names))
        torch._logging.set_logs()
    return Cost(len(listener.lines), torch._dynamo.utils.counters["stats"]["unique_graphs"])


def _results(path: Path, program: Broken) -> list[Any]:
    with _unchanged_settings(), _quiet(), contextlib.redirect_stdout(io.StringIO()):
        module = _load(path)
        return [tree_leaves(module.f(*call)) for call in _calls(program)]


@contextlib.contextmanager
def _unchanged_settings() -> Iterator[None]:
    """Reset options of TorchDynamo that a patched program sets."""
    kept = torch._dynamo.config.get_config_copy()
    try:
        yield
    finally:
        for name, value in kept.items():
            if getattr(torch._dynamo.config, name) != value:
                setattr(torch._dynamo.config, name, value)


def _difference(expected: Sequence[Any], found: Sequence[Any]) -> str:
    for number, (first, second) in enumerate(zip(expected, found, strict=True), 1):
        for one, other in zip(first, second, strict=True):
            if judge(f"result of call {number}", other, one).verdict == "differs":
                return f"the result of call {number} differs"
    return ""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):  # noqa: PTH123
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
