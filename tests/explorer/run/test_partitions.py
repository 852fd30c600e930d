"""`run.partitions`: tables, chart and control."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from explorer import explore
from explorer.run.run import Run
from tests.explorer.small_record import small_record


@pytest.fixture(scope="module")
def run() -> Run:
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))
    return explore(model, torch.randn(32, 16), stages=("joint", "forward", "backward"))


def test_table_has_eager_default_and_each_budget(run: Run) -> None:
    table = run.partitions.table(budgets=(1.0, 0.0)).set_index("partition")
    assert list(table.index) == ["eager", "default (keep all)", "min-cut", "min-cut"]
    assert table.loc["eager", "activation_bytes"] > 0
    assert list(table.loc["min-cut", "activation_bytes"])[1] == 0
    assert list(table.loc["min-cut", "recomputed_flops"])[1] > 0


def test_every_value_has_a_reason(run: Run) -> None:
    table = run.partitions.decisions()
    assert set(table.verdict) == {"saved", "recomputed"}
    assert table.why.str.len().min() > 20


def test_the_chart_has_a_point_for_each_budget(run: Run) -> None:
    figure = run.partitions.plot(budgets=(1.0, 0.5, 0.0))
    [curve] = figure.axes[0].lines
    assert len(curve.get_xdata()) == 3
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_budget_slider_repartitions(run: Run) -> None:
    box = run.partitions.control()
    slider, shown = box.children[0].children[2], box.children[1]
    before = shown.value
    slider.value = 0.0
    assert shown.value != before
    assert "0 B</b> of activations kept" in shown.value


def test_loaded_run_says_why_it_cannot_repartition() -> None:
    with pytest.raises(ValueError, match="holds texts and facts, not graphs"):
        Run(small_record()).partitions.table()
