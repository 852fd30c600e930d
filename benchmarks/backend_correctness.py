"""Whole models by `backend="tcompile"` against eager mode: inference, and 20 training steps, in fp32 and bf16 autocast.

    python -m benchmarks.backend_correctness [--device cuda] [--processes 12] [--small] [--out FILE]
        [--backend tcompile,inductor] [--precision bf16] [--steps 1] [MODEL …]
    python -m benchmarks.backend_correctness --architectures transformers,timm --steps 1 --precision bf16

The tolerance is measured: eager mode runs the same steps in float64, as the reference, and in the dtype of the case.
Eager's error (the largest so far in the run, because an error in a step affects all later steps) is the dtype's noise.
The error of compiled code may be SLACK times that. `noise` in a row is our error as a multiple of eager's. Gradients of
the first step are compared the same way, parameter by parameter; a row names the worst. A second backend is a control:
if both fail, the case itself is the cause.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.architectures import LIBRARIES, names_of
from benchmarks.correctness_models import TRIALS, Trial, result, trial

STEPS = 20
SLACK = 4.0
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
KINDS = ("inference", "training")
EAGER_FAILS = "eager mode: "
"""Start of a row's error if the model can't be built or run without compilation."""
Compile = Callable[[torch.nn.Module], Callable[..., Any]]


@dataclass(frozen=True)
class Row:
    """One case. `noise` is the error of compiled code, as a multiple of eager's error against float64: at most SLACK.

    `gradients` is the same for the gradient of the parameter `worst`.
    """

    model: str
    kind: str
    precision: str
    backend: str
    noise: float = 0.0
    gradients: float = 0.0
    worst: str = ""
    first_loss: float = 0.0
    last_loss: float = 0.0
    eager_off: float = 0.0
    seconds: float = 0.0
    error: str = ""

    @property
    def is_right(self) -> bool:
        return not self.error and self.noise <= SLACK and self.gradients <= SLACK

    def __str__(self) -> str:
        told = self.error.strip().splitlines()[-1:] if self.error else []
        ours = f"noise {self.noise:.2f}× gradients {self.gradients:.2f}× of eager's ({self.eager_off:.1e})"
        ours += f" at {self.worst}" * (self.gradients > 1)
        losses = f" loss {self.first_loss:.4f} → {self.last_loss:.4f}" if self.kind == "training" else ""
        verdict = "ok  " if self.is_right else "out " if self.error.startswith(EAGER_FAILS) else "FAIL"
        where = f"{verdict} {self.backend} {self.model:12} {self.kind:9} {self.precision}"
        return f"{where} {told[0][:300] if told else ours + losses} {self.seconds:.1f} s"


def eager(module: torch.nn.Module) -> Callable[..., Any]:
    return module


def compiled(backend: str, mode: str | None, options: Mapping[str, Any]) -> Compile:
    """Compile with a backend by name."""

    def compile_(module: torch.nn.Module) -> Callable[..., Any]:
        torch.compiler.reset()
        made: Callable[..., Any] = torch.compile(module, backend=backend, mode=mode, options=dict(options) or None)
        return made

    return compile_


@dataclass(frozen=True)
class Found:
    """A run's results: the loss of each step and the first step's gradients by parameter; in inference, the output."""

    numbers: tuple[Tensor, ...]
    gradients: Mapping[str, Tensor]


def inference(case: Trial, call: Callable[..., Any], precision: torch.dtype) -> Found:
    """Two calls, because the first may leave state that changes the second."""
    case.model.eval()
    with torch.no_grad(), autocast(case, precision):
        outputs = [result(call(**case.arguments)).double().cpu() for _ in range(2)]
    return Found(tuple(outputs), {})


def training(case: Trial, call: Callable[..., Any], precision: torch.dtype, steps: int) -> Found:
    case.model.train()
    optimizer = torch.optim.SGD(case.model.parameters(), 0.02, momentum=0.9)
    losses, gradients = [], {}
    for number in range(steps):
        optimizer.zero_grad()
        with autocast(case, precision):
            loss = case.loss(call(**case.arguments))
        loss.backward()
        if not number:
            gradients = {
                name: parameter.grad.double().cpu()
                for name, parameter in case.model.named_parameters()
                if parameter.grad is not None
            }
        optimizer.step()
        losses.append(loss.detach().double().cpu())
    return Found(tuple(losses), gradients)


def autocast(case: Trial, precision: torch.dtype) -> Any:
    device = next(case.model.parameters()).device.type
    return torch.autocast(device, precision, enabled=precision == torch.bfloat16)


def noise(ours: Sequence[Tensor], theirs: Sequence[Tensor], exact: Sequence[Tensor], eps: float) -> tuple[float, float]:
    """Our largest error as a multiple of eager's largest error so far, and that multiple at the end.

    Half a unit in the last place of the largest exact number counts as noise if eager happens to be exact.
    """
    worst = most = 0.0
    for own, other, right in zip(ours, theirs, exact, strict=True):
        floor = eps / 2 * float(right.abs().max())
        most = max(most, floor, float((other - right).abs().max()))
        off = float((own - right).abs().max())
        worst = max(worst, off / most if most else float("inf") if off else 0.0)
        if not bool(own.isfinite().all()):
            return float("inf"), most
    return worst, most


def gradient_noise(ours: Found, theirs: Found, exact: Found, eps: float) -> tuple[float, str]:
    """The largest relative error of a parameter's gradient, by norms, and that parameter's name.

    Some gradients are only noise: the floor comes from all of them. AOTAutograd may give a parameter without effect
    zeros where eager mode gives it no gradient.
    """
    more = ours.gradients.keys() - exact.gradients.keys()
    assert exact.gradients.keys() <= ours.gradients.keys(), "a parameter has no gradient"
    assert not any(ours.gradients[name].any() for name in more), "a parameter has a gradient that it should not have"
    whole = sum(float(value.norm()) ** 2 for value in exact.gradients.values()) ** 0.5
    worst = 0.0, ""
    for name, right in exact.gradients.items():
        floor = eps / 2 * (float(right.norm()) + whole / len(exact.gradients))
        off = max(floor, float((theirs.gradients[name] - right).norm()))
        own = float((ours.gradients[name] - right).norm())
        worst = max(worst, (own / off if off else float("inf") if own else 0.0, name))
    return worst


def measured(case: Row, device: str, small: bool, compile_: Compile, steps: int) -> Row:
    """Measure a case: three runs of the same steps."""
    start, dtype = time.perf_counter(), PRECISIONS[case.precision]
    run = inference if case.kind == "inference" else partial(training, steps=steps)

    def ran(how: Compile, width: torch.dtype, wanted: torch.dtype) -> Found:
        made = trial(case.model, small).to(device, width)
        return run(made, how(made.model), wanted)

    failed = EAGER_FAILS
    try:
        exact = ran(eager, torch.float64, torch.float64)
        theirs, failed = ran(eager, torch.float32, dtype), ""
        ours = ran(compile_, torch.float32, dtype)
        eps = torch.finfo(dtype).eps
        worst, off = noise(ours.numbers, theirs.numbers, exact.numbers, eps)
        gradients = gradient_noise(ours, theirs, exact, eps)
        ends = (float(ours.numbers[0].mean()), float(ours.numbers[-1].mean()))
        key = (case.model, case.kind, case.precision, case.backend)
        return Row(*key, worst, *gradients, *ends, off, time.perf_counter() - start)
    except Exception as error:  # noqa: BLE001 the next case is still to be had
        told = f"{failed}{type(error).__name__}: {error}"
        return replace(case, seconds=time.perf_counter() - start, error=" ".join(told.split())[:2000])


def alone(case: Row, device: str, small: bool, mode: str | None, options: Mapping[str, Any], steps: int) -> Row:
    """Measure a case, in a separate process if asked."""
    torch.backends.cudnn.allow_tf32 = False
    return measured(case, device, small, compiled(case.backend, mode, options), steps)


def rows(cases: Sequence[Row], processes: int, *rest: Any) -> Iterator[Row]:
    """Yield the cases as they finish; with several processes, each case has a fresh one."""
    if processes == 1:
        yield from (alone(case, *rest) for case in cases)
        return
    with ThreadPoolExecutor(processes) as workers:
        running = [workers.submit(_in_process, case, *rest) for case in cases]
        yield from (done.result() for done in as_completed(running))


def _in_process(case: Row, *rest: Any) -> Row:
    """Measure a case in a process of its own, whose death is this case's error alone."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        try:
            return process.submit(alone, case, *rest).result()
        except BrokenProcessPool as error:
            return replace(case, error=f"the process died: {error}")


def _spread(names: Sequence[str], most: int) -> list[str]:
    """At most so many names, evenly spread over all."""
    return [
        name for number, name in enumerate(names) if number * most // len(names) != (number - 1) * most // len(names)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(TRIALS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--backend", default="tcompile", help="names of backends, by commas")
    parser.add_argument("--architectures", default="", help=f"instead: small models of {', '.join(LIBRARIES)}")
    parser.add_argument("--most", type=int, default=1000, help="so many architectures, evenly spread")
    parser.add_argument("--precision", choices=PRECISIONS, help="one instead of both")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps")
    parser.add_argument("--mode")
    parser.add_argument("--options", type=json.loads, default={}, help='as JSON: {"interpret": true}')
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    start, found = time.perf_counter(), []
    libraries = given.architectures.split(",") if given.architectures else ()
    names = given.models or _spread([name for library in libraries for name in names_of(library)], given.most)
    names = names or list(TRIALS)
    backends, precisions = given.backend.split(","), [given.precision] if given.precision else list(PRECISIONS)
    cases = [Row(*case) for case in itertools.product(names, KINDS, precisions, backends)]
    for made in rows(cases, given.processes, given.device, given.small, given.mode, given.options, given.steps):
        found.append(made)
        print(made, flush=True)
        if given.out:
            given.out.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n")
    ran = [row for row in found if not row.error.startswith(EAGER_FAILS)]
    wrong = [row for row in ran if not row.is_right]
    print(f"{len(ran) - len(wrong)} of {len(ran)} cases right, {time.perf_counter() - start:.0f} s", end="; ")
    print(f"{len(found) - len(ran)} fail in eager mode already")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
