"""Quantised models: torchao's formats, and float8 matmuls written out, on GPUs with and without float8 and on the CPU.

torchao is no dependency: `pip install torchao` (0.18 works with torch 2.13). A format that torchao refuses on this
machine is one row that says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.breadth_features import missing_stages
from benchmarks.breadth_row import Row
from compiler.engine import explore
from compiler.numerics.policy.by_dtype import numbers
from compiler.option_checks import parse_options
from compiler.record import Record

SETTINGS = (("h100", "inductor"), ("a100", "inductor"), ("cpu", "inductor"), ("h100", "tcompile"), ("cpu", "tcompile"))

FORMATS: dict[str, Callable[[Any], Any]] = {
    "int8 weights": lambda ao: ao.Int8WeightOnlyConfig(),
    "int8 weights and activations": lambda ao: ao.Int8DynamicActivationInt8WeightConfig(),
    "int4 weights, groups of 32": lambda ao: ao.IntxWeightOnlyConfig(
        weight_dtype=torch.int4, granularity=ao.PerGroup(32)
    ),
    "int4 weights, tinygemm": lambda ao: ao.Int4WeightOnlyConfig(
        group_size=32, int4_packing_format="tile_packed_to_4d"
    ),
    "float8 weights": lambda ao: ao.Float8WeightOnlyConfig(),
    "float8, rowwise": lambda ao: ao.Float8DynamicActivationFloat8WeightConfig(granularity=ao.PerRow()),
    "float8, blockwise": lambda ao: ao.Float8DynamicActivationFloat8WeightConfig(
        granularity=[ao.PerBlock([1, 128]), ao.PerBlock([128, 128])]
    ),
}
"""torchao's configurations by what they are, given the module `torchao.quantization`."""


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128))
    return layers.to(torch.bfloat16).eval().requires_grad_(False)


def rowwise(x: Tensor, w: Tensor) -> Tensor:
    """A float8 matmul with a scale for each row, as torchao's rowwise format computes it."""
    x_scale, w_scale = (each.abs().amax(-1, keepdim=True).float() / 448 for each in (x, w))
    x8, w8 = (x / x_scale).to(torch.float8_e4m3fn), (w / w_scale).to(torch.float8_e4m3fn)
    return torch._scaled_mm(x8, w8.t(), x_scale, w_scale.t(), out_dtype=torch.bfloat16)


def quantised_model(name: str) -> nn.Module:
    """The model in one of torchao's formats. Raises ImportError without torchao, and torchao's own errors."""
    import torchao.quantization as ao

    made = model()
    ao.quantize_(made, FORMATS[name](ao))
    return made


def rows(only: str) -> Iterator[Row]:
    """A row for each format and setting."""
    x, w = torch.randn(32, 128, dtype=torch.bfloat16), torch.randn(256, 128, dtype=torch.bfloat16)
    for name in (*FORMATS, "float8 matmul, rowwise"):
        if only not in name:
            continue
        try:
            program, args = (quantised_model(name), (x,)) if name in FORMATS else (rowwise, (x, w))
        except (AssertionError, ImportError, ValueError) as error:
            yield Row(name, "torchao", (), {}, (f"{type(error).__name__}: {error}".split("\n")[0],))
            continue
        for target, backend in SETTINGS:
            yield row(name, program, args, target, backend)


def row(name: str, program: Callable[..., Tensor], args: tuple[Tensor, ...], target: str, backend: str) -> Row:
    """The row of a program in a setting."""
    start = time.perf_counter()
    expected = program(*args)
    torch._dynamo.reset()
    found = explore(program, args, options=parse_options(target=target, backend=backend, grad=False))
    verdict = numbers([("value", found.value)], [("value", expected)])[0].verdict
    told = "; ".join([*_reasons(found.record), *unwrapped_tensors(found.record)])
    missing = missing_stages(found.record, backend)
    return Row(name, f"{target} {backend}", missing, {"value": verdict}, (), time.perf_counter() - start, told)


def unwrapped_tensors(record: Record) -> list[str]:
    """The parts of tensor subclasses that the graphs take: `arg0_1 is qdata of l_weight_`."""
    graphs = (artifact for stage in ("inference", "forward") for artifact in record.of_stage(stage))
    found = []
    for entity in (entity for graph in graphs for entity in graph.entities if entity.kind == "placeholder"):
        _, _, part = str(entity.attrs.get("description", "")).rpartition(".")
        if part and "." in entity.attrs.get("description", "") and entity.origins:
            found.append(f"{entity.label} is {part} of {entity.origins[0].rpartition('.')[2]}")
    return found


def _reasons(record: Record) -> Iterator[str]:
    yield from (f"{problem.stage}: {problem.reason}" for problem in record.problems)
    yield from (decision.why for decision in record.decisions if decision.pass_name == "formats")
