"""Advice as users see it: text, table, static view, the stage with its links, and the results of trying it."""

from __future__ import annotations

import pytest
import torch

from compiler.record.measure_facts import Trial
from explorer import explore
from explorer.findings.advice.finding import advice_finding
from explorer.findings.advice.words import holds, trial_words
from explorer.reading.stages import stage_title
from explorer.run.run import Run
from tests.compiler.advise.advice_cases import printing, products
from tests.explorer.findings.documents import parts_of


@pytest.fixture(scope="module")
def run() -> Run:
    return explore(products, torch.randn(2048, 2048), torch.randn(2048, 2048), target="h100")


@pytest.fixture(scope="module")
def broken() -> Run:
    return explore(printing, torch.randn(10, 10), target="cpu", backend="aot_eager")


def tried(**facts: object) -> Trial:
    known = {
        "before": 3e-3,
        "after": 1e-3,
        "gained": 2e-3,
        "low": 1.9e-3,
        "high": 2.1e-3,
        "rounds": 11,
        "device": "cpu",
    }
    return Trial("break", **(known | facts))  # type: ignore[arg-type]


def test_advice_text_goes_from_finding_to_code(run: Run) -> None:
    text = str(run.advice)
    heading = text.index("TF32 is off · saves an estimated")
    assert heading < text.index("Estimate: 65 %", heading) < text.index("change: Let matmuls", heading)
    assert '      torch.set_float32_matmul_precision("high")' in text
    assert "numbers: Factors are rounded to 10 bits" in text
    assert max(map(len, text.splitlines())) <= 115


def test_failed_trial_keeps_the_claimed_gain(run: Run) -> None:
    before = run.advice.table
    number = next(index for index, advice in enumerate(run.advice) if advice.rule == "tf32")
    failed = Trial(run.advice[number].id, problem="the call raises ValueError")
    after = Run(run.record.with_fields(trials=(failed,))).advice.table
    assert before["numbers"][number] == after["numbers"][number] != ""
    assert after["holds"].isna()[number]


def test_trial_on_an_absent_gpu_is_not_offered(run: Run) -> None:
    assert "run.advice.measure" not in str(run.advice)
    number = next(index for index, advice in enumerate(run.advice) if advice.rule == "tf32")
    with pytest.raises(ValueError, match="which is not here"):
        run.advice.measure(number)
    with pytest.raises(IndexError):
        run.advice.measure(99)


def test_table_has_the_claimed_gains(run: Run) -> None:
    table = run.advice.table.set_index("rule")
    assert table.loc["tf32", "gain_of"] == "call"
    assert table.loc["tf32", "gain_seconds"] > 0
    assert not table["can_be_tried"].any()
    assert table["holds"].isna().all()


def test_advice_stage_links_findings_to_evidence(run: Run) -> None:
    finding = advice_finding(run.record)
    assert finding is not None
    known = {entity.id for entity in run.record.entities()}
    for entity in finding.artifact.entities:
        assert set(entity.origins) <= known
    first = parts_of(finding.data, "card")[0]
    assert parts_of(parts_of(first, "items")[0]["items"][0], "link")
    assert not any("run.advice.measure" in str(text["words"]) for text in parts_of(first, "text"))
    assert stage_title("advice") == "Advice"
    assert str(run["advice"]) == finding.artifact.text


def test_break_advice_links_to_the_break_card(broken: Run) -> None:
    finding = advice_finding(broken.record)
    assert finding is not None
    card = next(card for card in parts_of(finding.data, "card") if card["title"].startswith("Graph break"))
    assert [link["detail"] for link in parts_of(parts_of(card, "items")[0]["items"][0], "link")] == ["the break"]
    assert "torch._higher_order_ops.print" in parts_of(card, "change")[0]["new"][0]
    assert parts_of(card, "change")[0]["place"]
    assert "breaks.break[0/0].0" in broken.linked(finding.artifact.entities[0].id)["id"].to_list()


def test_trying_advice_adds_the_result(broken: Run) -> None:
    number = next(index for index, advice in enumerate(broken.advice) if advice.rule == "break")
    result = broken.advice.measure(number)
    assert result.trial.same == "equal"
    assert result.holds is None  # nothing was claimed
    assert "rounds in turns" in str(result)
    assert "tried: " in str(broken.advice)
    assert "<b>Tried</b>" in broken.advice._repr_mimebundle_()["text/html"]
    assert pytest.approx(result.trial.gained) == broken.advice.table["gained_seconds"][number]
    assert Run(broken.record).advice.trial(broken.advice[number]) == result.trial


def test_loaded_run_has_advice_but_no_trials(broken: Run) -> None:
    loaded = Run(broken.record)
    assert len(loaded.advice) == len(broken.advice)
    with pytest.raises(ValueError, match="no call to try advice on"):
        loaded.advice.measure(0)


def test_trial_result_is_stated_against_the_claim() -> None:
    assert "It gains 2 ms a call" in trial_words(tried(expected=1e-3))
    assert "as claimed (1 ms was expected)" in trial_words(tried(expected=1e-3))
    assert "less than claimed (5 ms was expected)" in trial_words(tried(expected=5e-3))
    assert "No difference that rises above the noise" in trial_words(tried(low=-1e-3, gained=1e-4, high=1e-3))
    assert "It loses 2 ms a call" in trial_words(tried(low=-3e-3, gained=-2e-3, high=-1e-3))
    assert (
        trial_words(tried(problem="the call raises ValueError")) == "It could not be tried: the call raises ValueError."
    )


def test_a_claim_holds_within_the_noise() -> None:
    assert holds(tried(expected=2.05e-3)) is True
    assert holds(tried(expected=2.2e-3)) is False
    assert holds(tried()) is None
    assert holds(tried(expected=1.0, of="compile", compile_before=3.0, compile_after=1.5)) is True


def test_phases_table_has_own_seconds(run: Run) -> None:
    phases = run.timing.phases
    assert phases["own_seconds"].is_monotonic_decreasing
    whole = phases.loc[phases["parent"].isna(), "seconds"].sum()
    assert phases["own_seconds"].sum() == pytest.approx(whole, rel=0.02)
    assert phases.set_index("name").loc["bytecode_tracing", "part"] == "TorchDynamo reads the code"
