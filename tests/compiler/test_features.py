"""Features of PyTorch, each in one small program: its values are eager's, and a missing stage has its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.breadth_features import FEATURES, Feature, missing_stages, try_feature

WORDS = {
    "sparse (COO)": "takes or makes a sparse tensor",
    "sparse (CSR)": "takes or makes a sparse tensor",
    "torch.uint4": "torch has no entry for torch.uint4",
    "vmap over a compiled function": "only inside of what it compiles",
}
"""What is said of features that graphs do not hold."""


@pytest.mark.parametrize("each", [each for each in FEATURES if each.cheap], ids=lambda each: each.name)
def test_a_feature_is_shown_or_has_its_reason(each: Feature) -> None:
    found = try_feature(each, "h100", "inductor")
    assert found.record is not None, found.error
    assert set(found.verdicts.values()) <= {"equal", "close"}
    assert not missing_stages(found.record, "inductor")
    reasons = " ".join(problem.reason for problem in found.record.problems if problem.stage == "captured")
    assert WORDS.get(each.name, "") in reasons
    assert bool(reasons) == (each.name in WORDS)
    own = [each for each in found.record.breaks if "engine.py" in each.file]
    assert not own, "a compiled function inside another is traced as the function itself"


def test_the_page_has_a_row_for_each_feature() -> None:
    page = (Path(__file__).parents[2] / "docs/features.md").read_text()
    assert not [each.name for each in FEATURES if f"| {each.name} |" not in page]
