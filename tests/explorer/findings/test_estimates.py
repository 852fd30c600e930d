"""Estimates for a GPU that is not here: labelled as estimates everywhere, and never in a table of times."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from explorer import explore
from explorer.run.run import Run
from tests.compiler.models import MLP


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield explore(MLP().eval(), torch.randn(64, 64), target="h100", grad=False, time="aot_eager")
    torch.set_num_threads(threads)


def test_summary_separates_measured_from_estimated(run: Run) -> None:
    told = " ".join(str(run).split())
    assert "Times of the CPU, not of the NVIDIA H100 SXM5 80 GB" in told
    assert "An estimate, not a measurement: on the NVIDIA H100 SXM5 80 GB the kernels of a call need at least" in told
    assert "5 launches take the host about 25.0 µs (5 µs for each launch" in told


def test_estimates_are_separate_from_timings(run: Run) -> None:
    assert set(run.timing.estimates["basis"]) == {"estimate"}
    assert run.timing.estimates.attrs["target"] == "h100"
    assert run.timing.estimates.attrs["launches"] == run.timing.estimates["launches"].sum() == 5
    assert set(run.timing.candidates["device"]) == {"cpu"}
    assert not {"h100", "cuda"} & set(run.timing.candidates["name"])


def test_local_code_has_no_estimates() -> None:
    run = explore(MLP().eval(), torch.randn(64, 64), target="cpu", stages="captured")
    assert run.timing.estimates.empty
