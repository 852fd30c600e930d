"""60 models of transformers, timm, torchvision and diffusers with random weights: forward and backward, explored whole.

It needs `timm`, `diffusers` and `torchvision` besides the project's packages, for instance in a folder that
PYTHONPATH names: `pip install --no-deps --target FOLDER timm diffusers torchvision`.

Each row is a fork of this process, and is kept in `benchmarks/results/breadth_models.jsonl`: a run that was ended goes
on where it was. Delete that file, or the rows of a model, to measure again.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.architectures import define_torchvision_operators
from benchmarks.breadth_features import missing_stages
from benchmarks.breadth_row import Row
from benchmarks.correctness_models import Trial, result, trial
from compiler.capture.error_words import first_lines
from compiler.engine import Exploration
from compiler.numerics.policy.by_dtype import numbers
from compiler.option_checks import parse_options
from tests.forked_python import explore_once

RESULTS = Path("benchmarks/results/breadth_models.jsonl")
SETTINGS: dict[str, tuple[str, ...]] = {"h100": (), "cpu": (), "h100 to SASS": ("all",)}
"""Stages by setting, the target first. `benchmarks.breadth_asm` is about a CPU's instructions."""
SECONDS = 900
"""A row that takes longer is ended."""

TRANSFORMERS = """
    BertForMaskedLM AlbertForMaskedLM DebertaV2ForMaskedLM ModernBertForMaskedLM RobertaForMaskedLM FNetForMaskedLM
    ElectraForMaskedLM NystromformerForMaskedLM GPT2LMHeadModel GPTNeoXForCausalLM GPTJForCausalLM OPTForCausalLM
    BloomForCausalLM FalconForCausalLM LlamaForCausalLM MistralForCausalLM Qwen2ForCausalLM Qwen3ForCausalLM
    Gemma2ForCausalLM PhiForCausalLM MixtralForCausalLM OlmoeForCausalLM MambaForCausalLM T5ForConditionalGeneration
    BartForConditionalGeneration PegasusForConditionalGeneration ViTForImageClassification BeitForImageClassification
    PoolFormerForImageClassification Dinov2ForImageClassification SegformerForImageClassification
    PvtV2ForImageClassification MobileViTForImageClassification
"""
TIMM = """
    resnet18 convnext_atto edgenext_small efficientformer_l1 efficientvit_b0 starnet_s050 ghostnet_050 mambaout_femto
    mobilevit_xxs regnetv_040 repvit_m0_9 vit_tiny_patch16_224 xcit_nano_12_p8_224
"""
TORCHVISION = "squeezenet1_1 mobilenet_v3_small shufflenet_v2_x0_5 mobilenet_v2 mnasnet0_5 densenet121"
DIFFUSERS = """
    UNet2DModel UNet2DConditionModel UNet1DModel AutoencoderKL VQModel DiTTransformer2DModel SD3Transformer2DModel
    FluxTransformer2DModel
"""
MODELS = tuple(
    f"{library}:{name}"
    for library, names in {
        "transformers": TRANSFORMERS, "timm": TIMM, "torchvision": TORCHVISION, "diffusers": DIFFUSERS,
    }.items()
    for name in names.split()
)  # fmt: skip


def rows(only: str) -> Iterator[Row]:
    """A row for each setting and model: one that an earlier run kept, or that of a fork."""
    torch.set_num_threads(1)  # OpenMP hangs in a fork of a process whose threads it has started
    define_torchvision_operators()
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.touch()
    kept = {(row.program, row.setting): row for row in _rows_in_file()}
    explore_once()
    for setting in SETTINGS:
        for name in MODELS:
            if only in name:
                yield kept.get((name, setting)) or _in_fork(name, setting)


def _rows_in_file() -> list[Row]:
    found = (json.loads(line) for line in RESULTS.read_text().splitlines())
    return [Row(**each | {key: tuple(each[key]) for key in ("missing", "problems")}) for each in found]


def _in_fork(name: str, setting: str) -> Row:
    before = len(_rows_in_file())
    if not (child := os.fork()):
        signal.alarm(SECONDS)
        with RESULTS.open("a") as file:
            file.write(json.dumps(asdict(row(name, setting))) + "\n")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    found = _rows_in_file()[before:]
    return found[0] if found else Row(name, setting, (), {}, (f"the process ended with status {status}",))


def row(name: str, setting: str) -> Row:
    """The row of a model in a setting: the value and all gradients against eager, and float64 where they differ."""
    started = time.perf_counter()
    try:
        eager, exact = (outcome(trial(name, True).to("cpu", dtype)) for dtype in (torch.float32, torch.float64))
        with Exploration(parse_options(target=setting.split(maxsplit=1)[0], stages=SETTINGS[setting])) as exploration:
            mine = outcome(trial(name, True), exploration.compile)
    except Exception as error:  # noqa: BLE001 - a model that fails is a row
        problem = f"{type(error).__name__}: {first_lines(error, 1)}"
        return Row(name, setting, (), {}, (problem,), time.perf_counter() - started)
    found = numbers(mine, eager, exact)
    verdicts = {f"{each.count} of {each.dtype}": each.verdict for each in found}
    missing = missing_stages(exploration.record, "inductor")
    if SETTINGS[setting]:
        missing += tuple(stage for stage in ("ttir", "sass") if not exploration.record.of_stage(stage))
    problems = tuple(f"{problem.stage}: {problem.reason}" for problem in exploration.record.problems)
    return Row(name, setting, missing, verdicts, problems, time.perf_counter() - started)


def outcome(case: Trial, compile_: Callable[[Any], Any] = lambda model: model) -> list[tuple[str, Any]]:
    """A model's value and the gradients of its parameters, by name."""
    output = compile_(case.model)(**case.arguments)
    learned = {name: each for name, each in case.model.named_parameters() if each.requires_grad}
    gradients = torch.autograd.grad(case.loss(output), tuple(learned.values()), allow_unused=True)
    return [("value", result(output).detach()), *zip(learned, gradients, strict=True)]
