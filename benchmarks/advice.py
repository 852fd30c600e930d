"""Does advice gain what it claims? `python -m benchmarks.advice [MODEL …] [--case training] [--json FILE]`.

Each model is explored and timed, and every suggestion that can be tried automatically is tried. The measured gain is
compared with the claim. A claim holds if the upper quartile of the gain reaches it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.suite_models import WORKLOADS
from compiler.advise import Advice, advise
from compiler.advise.trial import CannotApplyError, run_trial
from compiler.calls.call import Call
from compiler.engine import Exploration
from compiler.option_checks import parse_options
from compiler.process.environment import environment
from compiler.record import Record
from compiler.record.measure_facts import Trial

MODELS = ("MLP", "pointwise", "ResNet-18", "GPT-2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, choices=[*WORKLOADS, []])
    parser.add_argument("--case", choices=("inference", "training"), default="training")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = [row for name in arguments.models for row in _tried(name, arguments.case, arguments.device)]
    if arguments.json is not None:
        found = {"machine": asdict(environment()), "case": arguments.case, "advice": rows}
        arguments.json.write_text(json.dumps(found, indent=1))
    failed = [row for row in rows if row["holds"] is False]
    _say(f"{len(rows)} pieces of advice, {sum(row['holds'] is True for row in rows)} claims hold, {len(failed)} do not")
    for row in failed:
        _say(f"  {row['model']}: {row['advice']['rule']}")


def _tried(name: str, case: str, device: str) -> Iterator[dict[str, Any]]:
    began = time.perf_counter()
    record, call = explored(name, case, device)
    _say(f"{name}, {case}: explored and timed in {time.perf_counter() - began:.0f} s")
    for candidate in record.candidates:
        _say(f"  {candidate.name}: {(candidate.seconds or 0) * 1e3:.3f} ms {candidate.host} {candidate.problem}")
    for advice in advise(record):
        began = time.perf_counter()
        row = _row(name, advice, _trial(advice, record, call))
        _say(f"  {_words(row)} [{time.perf_counter() - began:.0f} s]")
        yield row


def explored(name: str, case: str, device: str) -> tuple[Record, Call]:
    """A model of the suite, explored and timed in its default mode, and its call."""
    step = WORKLOADS[name].build().to(device)
    step.model.train(case == "training")
    with Exploration(parse_options(time="default", grad=case == "training")) as exploration:
        value = exploration.compile(step.model)(**step.arguments)
        if case == "training":
            step.loss(value).backward()
    assert exploration.call is not None
    return exploration.record, exploration.call


def _trial(advice: Advice, record: Record, call: Call) -> Trial | None:
    if not advice.can_be_tried:
        return None
    try:
        return run_trial(advice, record, call)
    except CannotApplyError as error:
        return Trial(advice.id, problem=str(error))


def _row(name: str, advice: Advice, trial: Trial | None) -> dict[str, Any]:
    return {
        "model": name,
        "advice": asdict(advice),
        "trial": asdict(trial) if trial is not None else None,
        "holds": holds(trial) if trial is not None else None,
    }


def holds(trial: Trial) -> bool | None:
    """Whether the gain reached the claim, within noise; None if nothing was claimed or measured."""
    if trial.expected is None or trial.high is None or trial.problem:
        return None
    if trial.of == "compile":
        return (trial.compile_before or 0.0) - (trial.compile_after or 0.0) >= trial.expected
    return trial.high >= trial.expected


def _words(row: dict[str, Any]) -> str:
    advice, trial = row["advice"], row["trial"]
    claim = advice["gain"]
    told = f"{advice['rule']}: " + (f"claims {claim['seconds'] * 1e3:.3f} ms of {claim['of']}" if claim else "no claim")
    if trial is None:
        return f"{told}; {advice['found']} {[item['text'] for item in advice['evidence']]}"
    if trial["problem"]:
        return f"{told}; not tried: {trial['problem']}"
    gained = f"{trial['gained'] * 1e3:.3f} ms ({trial['low'] * 1e3:.3f} to {trial['high'] * 1e3:.3f})"
    times = f"{trial['before'] * 1e3:.3f} to {trial['after'] * 1e3:.3f} ms"
    return (
        f"{told}; gained {gained}, {times}; compile {trial['compile_before']} to {trial['compile_after']}; "
        f"{trial['numbers']}; holds: {row['holds']}"
    )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
