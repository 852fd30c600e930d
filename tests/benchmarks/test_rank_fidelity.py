"""Two real ranks with gloo against the same ranks simulated: equal stages, exact bytes."""

from __future__ import annotations

import pytest
import torch.distributed as dist

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("torch.distributed with gloo is not in this build", allow_module_level=True)

from benchmarks.rank_fidelity import compare, run_ranks

CASES = ("mlp:ddp", "mlp:fsdp2", "mlp:simple_fsdp", "mlp:tp_sp")
GRAPHS = ("captured", "joint", "forward", "backward")


def test_simulated_ranks_equal_real_ones() -> None:
    for rank, found in run_ranks(2, CASES, GRAPHS, whole=CASES[2:3]).items():
        for name in CASES:
            result = compare(found[name])
            assert result["stages"] >= (12 if name == CASES[2] else 4)
            assert not result["differing"], (rank, name)
            assert not result["problems"], (rank, name)
            assert result["as_real"], (rank, name)
            assert result["bytes"] == result["counted"], (rank, name)
