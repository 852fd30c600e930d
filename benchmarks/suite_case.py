"""One case of the suite in a process of its own: `python -m benchmarks.suite_case MODEL CASE CANDIDATES SHARE`.

SHARE is "1/2" for the second of two processes side by side: it keeps to its half of the cores. Prints a JSON object:
the case with its candidates, and the machine.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import date
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.event_loop import looped
from benchmarks.suite_models import WORKLOADS
from compiler.environment import environment
from compiler.measure.calls import Call, Surroundings
from compiler.measure.timing import Plan, measured
from compiler.measure_facts import Candidate
from compiler.options import Options

ROUNDS = 9


class WithLoss(nn.Module):
    """A model and its loss in one call."""

    def __init__(self, model: nn.Module, loss: Any) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, **arguments: Tensor) -> Tensor:
        return self.loss(self.model(**arguments))


def main(arguments: Sequence[str]) -> None:
    model, case, candidates, share = arguments
    _keep_to(share)
    call, training = prepared(model, case)
    plan = Plan(candidates, backward=training, optimizer="AdamW" if training else None, rounds=ROUNDS)
    found = measured(call, Options(), plan)
    done = {
        "model": model,
        "about": WORKLOADS[model].about,
        "case": case,
        "candidates": [asdict(candidate) for candidate in found.candidates],
        "measurement": asdict(found.measurement),
        "independent": list(_agreement(call, training, found.candidates)),
    }
    print(json.dumps({"case": done, "machine": _machine()}))


def prepared(model: str, case: str) -> tuple[Call, bool]:
    """The call of a case, on the GPU where there is one, and whether it is training."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind, precision = case.split()
    step = WORKLOADS[model].build().to(device)
    training = kind == "training"
    module = WithLoss(step.model, step.loss).train(training)
    autocast = ((device, torch.bfloat16),) if precision == "AMP" else ()
    surroundings = Surroundings(grad=training, inference=False, autocast=autocast)
    return Call(module, module, (), step.arguments, surroundings), training


def _agreement(call: Call, training: bool, candidates: Sequence[Candidate]) -> Iterator[dict[str, Any]]:
    """The medians of a plain loop of CUDA events over those of the engine: of eager, and in inference of Inductor's
    default too, which is quick to compile once more.
    """
    if not torch.cuda.is_available():
        return
    engines = {candidate.name: candidate.seconds for candidate in candidates}
    for name in ("eager",) if training else ("eager", "inductor"):
        module = copy.deepcopy(call.fn)
        run = module if name == "eager" else torch.compile(module)
        seconds = looped(_step(module, run, call, training)).alone
        if known := engines.get(name):
            yield {"name": name, "seconds": seconds, "ratio": seconds / known}


def _step(module: nn.Module, run: Callable[..., Tensor], call: Call, training: bool) -> Callable[[], None]:
    """One call as a user writes it."""
    optimizer = torch.optim.AdamW(module.parameters()) if training else None

    def step() -> None:
        with call.surroundings.again():
            loss = run(**call.kwargs)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return step


def _machine() -> dict[str, Any]:
    return asdict(environment()) | {"date": date.today().isoformat()}


def _keep_to(share: str) -> None:
    """Use this share of the cores."""
    number, of = map(int, share.split("/"))
    if of > 1 and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[number * len(cores) // of : (number + 1) * len(cores) // of])


if __name__ == "__main__":
    main(sys.argv[1:])
