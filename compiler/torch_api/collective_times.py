"""Estimate the time of a collective by torch's own cost model, which follows NCCL's tuning tables.

torch._inductor.comm_analysis: the fastest of ring and tree under each of NCCL's protocols, for NVIDIA GPUs with NVLink
in a node and InfiniBand between nodes. There is no model for other vendors and for the CPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch._inductor.comm_analysis as comm_analysis

from compiler.record import CollectiveKind
from compiler.torch_api.patching import replace_attributes

_MODELLED: dict[CollectiveKind, str] = {
    "all_reduce": "ALL_REDUCE", "all_gather": "ALL_GATHER", "reduce_scatter": "REDUCE_SCATTER",
    "all_to_all": "ALL_TO_ALL",
}  # fmt: skip
_GENERATIONS = {7: "VOLTA", 8: "AMPERE", 9: "HOPPER", 10: "BLACKWELL"}
_PROTOCOLS = {"SIMPLE": "Simple"}


class CollectiveTime(NamedTuple):
    """Estimated seconds of one call, and the algorithm that the model found fastest ("ring, LL128"); "" if unknown."""

    seconds: float
    algorithm: str


def collective_time(
    kind: CollectiveKind, size: int, *, group_size: int, ranks_on_node: int, capability: tuple[int, int]
) -> CollectiveTime | None:
    """Estimate a collective over `group_size` ranks, of which `ranks_on_node` share a node; None without a model.

    `size` is that of the message in bytes (`Collective.bytes`), `capability` the GPU's compute capability.
    """
    estimate: Any = getattr(comm_analysis, "estimate_nccl_collective_runtime_impl", None)
    coll: Any = getattr(comm_analysis.NCCL_COLL, _MODELLED.get(kind, ""), None)
    gpu: Any = getattr(comm_analysis.NVIDIA_GPU_TYPE, _GENERATIONS.get(capability[0], ""), None)
    if estimate is None or coll is None or gpu is None or group_size < 2:
        return None
    answers: list[Any] = [
        (torch.cuda, "is_available", lambda _: lambda: True),
        (torch.cuda, "device_count", lambda _: lambda: ranks_on_node),
        (comm_analysis, "get_gpu_type", lambda _: lambda: gpu),
    ]
    if hasattr(comm_analysis, "_has_nvlink"):
        answers.append((comm_analysis, "_has_nvlink", lambda _: lambda: True))
    with replace_attributes(answers):
        seconds = estimate(size, group_size, coll) / 1e3
        return CollectiveTime(seconds, _algorithm(size, group_size, coll)) if seconds > 0 else None


def _algorithm(size: int, group_size: int, coll: Any) -> str:
    """Name of the fastest algorithm and protocol; "" for a torch whose model knows only one."""
    choose: Any = getattr(comm_analysis, "_nccl_best_algo_time", None)
    if choose is None:
        return ""
    _, algorithm, protocol = choose(size, group_size, coll)
    names = comm_analysis.NCCL_ALGO(algorithm).name.lower(), comm_analysis.NCCL_PROTO(protocol).name
    return f"{names[0]}, {_PROTOCOLS.get(names[1], names[1])}"
