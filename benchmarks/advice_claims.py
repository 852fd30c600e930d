"""Are the adviser's claims conservative? `python -m benchmarks.advice_claims SUITE.json [MODEL …]`.

SUITE.json has the results of `benchmarks.suite` on a GPU: eager, the default mode, reduce-overhead, with and without
autocast. Each model is explored here for that GPU, with the times of its default mode only. The adviser's claims for
CUDA graphs and for autocast are compared with the measured times of the other candidates.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks.suite_models import WORKLOADS
from compiler.advise import advise
from compiler.engine import Exploration
from compiler.option_checks import parse_options
from compiler.record import Record
from compiler.record.measure_facts import Candidate
from compiler.targets import target


@dataclass(frozen=True)
class Claim:
    """The gain that a rule claimed for a case (None if nothing) and the measured gain, both in seconds per call."""

    model: str
    case: str
    rule: str
    claimed: float | None
    measured: float
    noise: float

    @property
    def holds(self) -> bool:
        """Whether the measured gain reached the claim, within the quartiles of the two candidates."""
        return self.claimed is None or self.measured + self.noise >= self.claimed

    def __str__(self) -> str:
        told = "nothing" if self.claimed is None else f"{self.claimed * 1e6:.0f} µs"
        verdict = "" if self.holds else "  DOES NOT HOLD"
        return f"{self.model}, {self.case}: {self.rule} claims {told}, measured {self.measured * 1e6:.0f} µs{verdict}"


def main(path: str, *models: str) -> None:
    suite = json.loads(Path(path).read_text())
    cases = {(case["model"], case["case"]): _candidates(case) for case in suite["cases"]}
    for model in dict.fromkeys(name for name, _ in cases if not models or name in models):
        for case in ("inference fp32", "inference AMP", "training fp32", "training AMP"):
            if (model, case) in cases:
                for claim in _claims(model, case, cases, suite["machine"]["gpu"]):
                    sys.stdout.write(f"{claim}\n")
                    sys.stdout.flush()


def _candidates(case: dict[str, Any]) -> dict[str, Candidate]:
    found = [msgspec.convert(each, Candidate) for each in case["candidates"]]
    return {each.name: each for each in found if each.seconds is not None}


def _claims(model: str, case: str, cases: dict[tuple[str, str], dict[str, Candidate]], gpu: str) -> Iterator[Claim]:
    measured = cases[model, case]
    own, graphs = measured.get("inductor"), measured.get("inductor reduce-overhead")
    if own is None:
        return
    record = _explored(model, case, gpu).with_fields(candidates=(own,))
    claimed = {advice.rule: advice.gain.seconds for advice in advise(record) if advice.gain is not None}
    if graphs is not None:
        yield _claim(model, case, "cuda-graphs", claimed.get("cuda-graphs"), own, graphs)
    mixed = cases.get((model, case.replace("fp32", "AMP")), {}).get("inductor")
    if case.endswith("fp32") and mixed is not None:
        yield _claim(model, case, "autocast", claimed.get("autocast"), own, mixed)


def _claim(model: str, case: str, rule: str, claimed: float | None, own: Candidate, other: Candidate) -> Claim:
    noise = ((own.high or 0) - (own.low or 0) + (other.high or 0) - (other.low or 0)) / 2
    return Claim(model, case, rule, claimed, (own.seconds or 0) - (other.seconds or 0), noise)


def _explored(model: str, case: str, gpu: str) -> Record:
    """The model's record for that GPU, which need not be here."""
    step = WORKLOADS[model].build()
    training = case.startswith("training")
    step.model.train(training)
    mixed = torch.autocast("cpu", dtype=torch.bfloat16, enabled=case.endswith("AMP"))
    with Exploration(parse_options(target=target(gpu).name, grad=training)) as exploration, mixed:
        exploration.compile(step.model)(**step.arguments)
    return exploration.record


if __name__ == "__main__":
    main(*sys.argv[1:])
