"""`tcompile caches`: does a program start faster with warm caches, loaded artifacts or precompiled code?

The program runs several times, each time in a fresh process: with empty caches, with the caches that this run filled,
with empty caches and the artifacts of `torch.compiler.save_cache_artifacts`, and with TORCH_CACHING_PRECOMPILE. All
caches are in a temporary folder; those of the user are neither read nor written, unless the program itself sets
TORCHINDUCTOR_CACHE_DIR: then it runs once, and no verdict is given.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from compiler.logs.cache_keys import CacheOutcome, cache_outcomes
from compiler.logs.cold_start import cold_start_of
from compiler.logs.compilations import compilations_of
from compiler.logs.files import LogError, read_logs
from compiler.record.plain_text import one_line, pluralize, size_text
from explorer.findings.cold_start import bypass_parts
from explorer.reading.plain_text import clip
from explorer.reading.shapes import seconds_text
from explorer.render.document import Document, Parts, Row, Table, Text

TRIALS = ("cold", "warm local caches", "loaded artifacts", "precompile, warm")
_TAIL, _LINE_SHOWN = 4_096, 400
_HELPS = 0.9
"""A trial helps if it takes at most this part of the cold run's time, and torch.compile is what takes less."""
_NOT_ASKED = "Neither the FX graph cache nor AOTAutograd's cache was asked"
_SAVED_BESIDES = f"{_NOT_ASKED}: what is saved is saved besides, as by kernels that are already compiled."


class TrialError(ValueError):
    """The program failed in a trial; the message has its exit code and the end of its output."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of the program: seconds from its start to its exit, seconds of torch.compile, look-ups by outcome.

    `note` says what else was done before or in the run: how large the artifacts are, how long they took to load.
    `own_cache` is the cache folder that the program set itself, "" if it used the one that it was given.
    """

    name: str
    seconds: float
    compiling: float
    outcomes: Mapping[str, int]
    bypasses: tuple[CacheOutcome, ...]
    note: str = ""
    own_cache: str = ""


@dataclass
class _Folders:
    """The temporary folder of all trials."""

    top: Path
    hook: Path = field(init=False)

    def __post_init__(self) -> None:
        self.hook = self.top / "hook"
        self.hook.mkdir()
        shutil.copy(Path(__file__).with_name("cache_hook.py"), self.hook / "sitecustomize.py")


def run_trials(command: Sequence[str], tell: Callable[[str], None] = lambda _: None) -> tuple[Trial, ...]:
    """Run a command five times and measure it; once, if nothing is compiled or the caches are the program's own.

    `tell` is told what runs.

    Raises TrialError and OSError.
    """
    with tempfile.TemporaryDirectory(prefix="tcompile_caches_") as name:
        folders = _Folders(Path(name))
        tell("cold: empty caches")
        cold = _run(command, folders, TRIALS[0], "cold", {"TCOMPILE_CACHES_SAVE": "1"})
        if not cold.compiling or cold.own_cache:
            return (cold,)
        tell("warm: the caches that this run filled")
        warm = _run(command, folders, TRIALS[1], "cold")
        tell("empty caches, and the artifacts that the cold run saved")
        loaded = _run(command, folders, TRIALS[2], "loaded", {"TCOMPILE_CACHES_LOAD": str(folders.top / "run_cold")})
        tell("precompile: filling its cache")
        _run(command, folders, TRIALS[3], "precompile", {"TORCH_CACHING_PRECOMPILE": "1"})
        tell("precompile: from its cache")
        precompiled = _run(command, folders, TRIALS[3], "precompile", {"TORCH_CACHING_PRECOMPILE": "1"})
        return cold, warm, loaded, precompiled


def _run(
    command: Sequence[str], folders: _Folders, name: str, cache: str, extra: Mapping[str, str] | None = None
) -> Trial:
    """Run the command once with the caches of this name."""
    own = folders.top / (f"run_{cache}" if name == TRIALS[0] else f"run_{cache}_{time.monotonic_ns()}")
    trace = own / "trace"
    trace.mkdir(parents=True)
    before = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folders.top / f"cache_{cache}"),
        "TRITON_CACHE_DIR": str(folders.top / f"cache_{cache}" / "triton"),
        "TORCH_TRACE": str(trace),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(folders.hook), before))),
        "TCOMPILE_CACHES_FOLDER": str(own),
        **(extra or {}),
    }
    started = time.time()
    with (own / "stderr").open("w+b") as errors:
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors, check=False)
        seconds = time.time() - started
        if done.returncode:
            raise TrialError(_failure_words(name, done.returncode, _last_line(errors)))
    ends = [_values(path) for path in own.glob("ended_*.json")]
    ended = max((float(end["at"]) for end in ends), default=started + seconds)
    given = ("", environment["TORCHINDUCTOR_CACHE_DIR"])
    own_cache = next((end["cache"] for end in ends if end["cache"] not in given), "")
    return replace(_trial(name, ended - started, trace, _note(own)), own_cache=own_cache)


def _failure_words(name: str, code: int, last: str) -> str:
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    before = "" if name == TRIALS[0] else ", though it had succeeded before: it must be able to run five times"
    return f"{name}: the program {how}{before}" + (f". Its last line: {last}" if last else "")


def _last_line(errors: BinaryIO) -> str:
    """The last line of what a program wrote to stderr."""
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - _TAIL))
    return clip(one_line(errors.read().decode(errors="replace").strip().rpartition("\n")[2]), _LINE_SHOWN)


def _values(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text())
    return values


def _note(folder: Path) -> str:
    saved = sum(path.stat().st_size for path in folder.glob("artifacts_*.bin"))
    loading = max((_values(path)["seconds"] for path in folder.glob("loaded_*.json")), default=0.0)
    failed = next((one_line(_values(path)["why"]) for path in folder.glob("not_saved_*.json")), "")
    parts = (
        f"artifacts could not be saved: {failed}" if failed else "",
        f"saved artifacts of {size_text(saved)}" if saved else "",
        f"loaded in {seconds_text(loading)}" if loading else "",
    )
    return ", ".join(filter(None, parts))


def _trial(name: str, seconds: float, trace: Path, note: str) -> Trial:
    try:
        logs = read_logs(trace)
    except LogError:
        return Trial(name, seconds, 0.0, {}, (), note)
    outcomes = [each for log in logs for each in cache_outcomes(log, compilations_of(log))]
    compiling = max(sum(cold_start_of(log).by_phase.values()) for log in logs)
    counts = Counter(each.outcome for each in outcomes)
    return Trial(name, seconds, compiling, counts, tuple(each for each in outcomes if each.outcome == "bypass"), note)


def trial_document(trials: Sequence[Trial]) -> Document:
    """The times of the trials, what helps, and why caches were bypassed."""
    cold = trials[0]
    if not cold.compiling:
        return (Text("torch.compile compiled nothing in this program, so no cache can help.", "lead"),)
    if cold.own_cache:
        return (Text(_own_cache_words(cold.own_cache), "lead"),)
    rows = tuple(_row(trial, cold) for trial in trials)
    head = ("run", "until exit", "torch.compile", "against cold", "look-ups", "note")
    parts: list[Parts] = [Text(_verdict(trials), "lead"), Table(head, rows, right=(1, 2, 3))]
    parts += bypass_parts(cold.bypasses)
    parts.append(Text("Each time is of one run; a difference of a few percent is noise."))
    return parts


def _own_cache_words(folder: str) -> str:
    return (
        f"The program sets TORCHINDUCTOR_CACHE_DIR itself: it read and wrote {folder}, so no run has empty caches, and "
        "nothing is measured. To measure it, set the variable only if it is not set: os.environ.setdefault."
    )


def _row(trial: Trial, cold: Trial) -> Row:
    lookups = ", ".join(
        pluralize(count, word, plural)
        for word, plural in (("hit", "hits"), ("miss", "misses"), ("bypass", "bypasses"))
        if (count := trial.outcomes.get(word, 0))
    )
    against = "" if trial is cold else f"{trial.seconds / cold.seconds:.2f} ×"
    times = seconds_text(trial.seconds), seconds_text(trial.compiling)
    return Row((trial.name, *times, against, lookups or "none", trial.note))


def _verdict(trials: Sequence[Trial]) -> str:
    """What helps this program, in sentences."""
    cold, *others = trials
    helping = sorted((each for each in others if _helps(each, cold)), key=lambda each: each.seconds)
    spent = f"{seconds_text(cold.compiling)} of {seconds_text(cold.seconds)} of a cold run are torch.compile."
    asked = any(trial.outcomes for trial in trials)
    if not helping:
        why = "" if asked else f" {_NOT_ASKED}."
        return f"{spent} No cache makes this program start noticeably faster.{why}"
    listed = "; ".join(f"{each.name}: {seconds_text(cold.seconds - each.seconds)} less" for each in helping)
    useless = [each.name for each in others if each not in helping]
    no_help = f"No help: {', '.join(useless)}." if useless else ""
    return " ".join(filter(None, (f"{spent} {listed}.", no_help, "" if asked else _SAVED_BESIDES)))


def _helps(trial: Trial, cold: Trial) -> bool:
    """Whether the program is faster, and torch.compile is: a cache saves no other time."""
    least = (1 - _HELPS) * cold.seconds
    return min(cold.seconds - trial.seconds, cold.compiling - trial.compiling) >= least


def show_progress(words: str) -> None:
    """Say on stderr which run begins."""
    sys.stderr.write(f"tcompile caches: {words}\n")
    sys.stderr.flush()
