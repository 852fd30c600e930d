"""An exploration does not change torch's behaviour: torch's counters are the same with and without it."""

from __future__ import annotations

import copy
import gc
import random
import re
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.config as dynamo_config
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.utils import clear_compilation_metrics, counters, get_compilation_metrics

from compiler.engine import Exploration
from compiler.process import without_collection
from compiler.record import Record
from compiler.record.options import Options
from tests.compiler.parity_programs import PROGRAMS, Program


@dataclass(frozen=True)
class Counts:
    """torch's counters: each compilation in order, the captured graphs, and graph breaks by reason."""

    compilations: tuple[tuple[Any, ...], ...]
    graphs: int
    ops: int
    breaks: dict[str, int]
    logged: int
    frames: dict[str, int]


@contextmanager
def logged_breaks() -> Iterator[list[str]]:
    """The graph breaks that torch logs in the block: its counters omit breaks at branches and loops."""
    logged = []
    log: Any = InstructionTranslatorBase.log_graph_break

    def observed(translator: Any, options: Any, reason: str, exc: Any, *args: Any, **kwargs: Any) -> Any:
        if not exc.logged:
            logged.append(reason)
        return log(translator, options, reason, exc, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InstructionTranslatorBase, "log_graph_break", observed)
        yield logged


def counted(logged: Sequence[str]) -> Counts:
    numbers: dict[str, int] = {}
    compilations = []
    for found in get_compilation_metrics():
        frame, _, compilation = str(found.compile_id).rpartition("/")
        place = numbers.setdefault(frame, len(numbers))
        restarts = tuple(sorted(map(without_addresses, found.restart_reasons or ())))
        compilations.append((place, compilation, found.co_name, found.graph_op_count, found.fail_type, restarts))
    stats = counters["stats"]
    return Counts(
        tuple(compilations),
        stats["unique_graphs"],
        stats["calls_captured"],
        {without_addresses(reason): count for reason, count in counters["graph_break"].items()},
        len(logged),
        dict(counters["frames"]),
    )


def without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x", text)


def state() -> dict[str, Any]:
    """State of a process that an exploration could leave changed."""
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "threads": (torch.get_num_threads(), threading.active_count()),
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": str(np.random.get_state()),
        "settings": [copy.deepcopy(c.get_config_copy()) for c in (dynamo_config, inductor_config, functorch_config)],
        "warnings": list(warnings.filters),
        "imports": (list(sys.meta_path), list(sys.path_hooks), sys.gettrace(), sys.getprofile(), sys.excepthook),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
    }


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def started(name: str) -> Program:
    torch._dynamo.reset()
    gc.collect()  # torch would count the callbacks of weak references as frames
    counters.clear()
    clear_compilation_metrics()
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    return PROGRAMS[name]()


def alone(name: str) -> tuple[Counts, dict[str, Any]]:
    program = started(name)
    with logged_breaks() as logged, program.around(), without_collection():
        compiled = torch.compile(program.fn, backend="eager", fullgraph=program.fullgraph)
        for args in program.calls:
            compiled(*args, **program.kwargs)
    return counted(logged), state()


def explored(name: str) -> tuple[Counts, dict[str, Any], Record]:
    program = started(name)
    options = Options(stages=("captured",), fullgraph=program.fullgraph)
    with logged_breaks() as logged, program.around(), without_collection(), Exploration(options) as exploration:
        compiled = exploration.compile(program.fn)
        for args in program.calls:
            compiled(*args, **program.kwargs)
        counts = counted(logged)
    return counts, state(), exploration.record


def settled(name: str) -> tuple[Counts, dict[str, Any]]:
    """torch's own counts, once two runs agree: in the first runs it sees more of its own frames."""
    found = alone(name)
    for _ in range(4):
        last, found = found, alone(name)
        if found == last:
            return found
    raise AssertionError(f"torch alone counts something else each time: {last[0]}, {found[0]}")


@pytest.mark.parametrize("name", PROGRAMS)
def test_counts_and_state_match_torch_alone(name: str) -> None:
    expected, before = settled(name)
    found, after, record = explored(name)
    assert found == expected
    assert after == before
    assert told(record) == (expected.graphs, expected.ops, expected.logged, recompiled(expected))


def told(record: Record) -> tuple[int, int, int, int]:
    captured = record.of_stage("captured")
    calls = [entity for artifact in captured for entity in artifact.entities if entity.kind == "call"]
    ops = sum("." not in entity.label for entity in calls)  # without nodes in bodies of higher-order operators
    return len(captured), ops, len(record.breaks), len(record.recompiles)


def recompiled(counts: Counts) -> int:
    return sum(compilation != "0" for _, compilation, *_ in counts.compilations)
