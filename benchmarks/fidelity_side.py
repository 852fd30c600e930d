"""Compile one side of a case: `python -m benchmarks.fidelity_side virtual GPT-2 training bf16`; prints JSON.

It runs in a fresh process. `real` is plain torch.compile on CUDA tensors, with kernels built and run: each output code
as Inductor returns it. `virtual` is an exploration of the same model on CPU tensors, with a virtual target.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, redirect_stdout
from typing import Any

import torch

from benchmarks.fidelity_models import MODELS
from benchmarks.models import Step

MODES = ("inference", "training")
FORMATS = ("fp32", "bf16")
_AOT_ID = re.compile(r"# AOT ID: \['(\d+)_(\w+)'\]")
_KERNELS = re.compile(r"kernels\[(\d+)/(\d+) (\w+)\]")


def real(step: Step, casts: Callable[[str], AbstractContextManager[Any]], _target: str) -> dict[str, Any]:
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    with config.patch(fx_graph_cache=False):
        _, codes = run_and_get_code(lambda: _run(step.to("cuda"), torch.compile(step.model), casts("cuda")))
    torch.cuda.synchronize()
    return {"codes": [[*_of_aot(code), code] for code in codes], "device": torch.cuda.get_device_name()}


def virtual(step: Step, casts: Callable[[str], AbstractContextManager[Any]], target: str) -> dict[str, Any]:
    from compiler.engine import Exploration
    from compiler.record.options import Options

    with Exploration(Options(target=target)) as exploration:
        _run(step, exploration.compile(step.model), casts("cpu"), backward=False)
    record = exploration.record
    return {
        "codes": [[*_of_artifact(artifact.id), artifact.text] for artifact in record.of_stage("kernels")],
        "problems": [f"{problem.stage}: {problem.reason}" for problem in record.problems],
        "decisions": [[d.pass_name, d.verdict, d.why] for d in record.decisions if d.pass_name != "fusion"],
    }


def _run(step: Step, call: Callable[..., Any], casts: AbstractContextManager[Any], backward: bool = True) -> None:
    """Run one call and its backward; an exploration has already written the backward with the forward."""
    with casts:
        loss = step.loss(call(**step.arguments))
    if backward and loss.requires_grad:
        loss.backward()


def _of_aot(code: str) -> tuple[int, str]:
    """The number and the kind (forward, backward, inference) of the graph that the code is for."""
    found = _AOT_ID.search(code)
    if not found:
        raise ValueError("this output code doesn't say which graph it is for (no AOT ID)")
    return int(found[1]), found[2]


def _of_artifact(identity: str) -> tuple[int, str]:
    found = _KERNELS.fullmatch(identity)
    if not found:
        raise ValueError(f"{identity} is no artifact of kernels")
    return int(found[1]), found[3]


def _casts(form: str) -> Callable[[str], AbstractContextManager[Any]]:
    return lambda device: torch.autocast(device, torch.bfloat16) if form == "bf16" else nullcontext()


SIDES = {"real": real, "virtual": virtual}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("format", choices=FORMATS)
    parser.add_argument("--target", default="h200")
    asked = parser.parse_args()
    with redirect_stdout(sys.stderr), ExitStack() as stack:
        torch.manual_seed(0)
        step = MODELS[asked.model]()
        step.model.train(asked.mode == "training")
        if asked.mode == "inference":
            stack.enter_context(torch.no_grad())
        found = SIDES[asked.side](step, _casts(asked.format), asked.target)
    import triton

    print(json.dumps({**found, "torch": torch.__version__, "triton": triton.__version__}))


if __name__ == "__main__":
    main()
