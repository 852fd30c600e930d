"""`run.advice`: advice on making a call faster, with evidence; `run.advice.measure(k)` verifies it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

from compiler.advise import Advice, advise, can_try
from compiler.record import Record
from compiler.record.measure_facts import Trial
from compiler.targets import target
from explorer.findings.advice.finding import advice_cards
from explorer.findings.advice.words import gain_words, holds, trial_words
from explorer.render.text import card_texts, wrap_lines

if TYPE_CHECKING:
    import pandas as pd

    from compiler.calls.call import Call

Grow = Callable[[Callable[[Record], Record]], Record]
NO_CALL = (
    "this run has no call to try advice on: it was loaded from a file, or its code calls torch.compile itself. Explore "
    "the call here first: %%tcompile, or tcompile.explore(model, x)"
)


class AdviceList(Sequence[Advice]):
    """The advice of a run, sorted by expected gain. Prints as text; `table` is a DataFrame.

    `run.advice[0]` is the first piece of advice; its `evidence`, `gain` and `change` are plain data.
    """

    def __init__(self, record: Record, grow: Grow | None = None, call: Call | None = None) -> None:
        """`grow` applies a function to the run's record and keeps the new record; `call` is the run's call."""
        self._record, self._grow, self._call = record, grow or (lambda longer: longer(record)), call
        self._found = advise(record)
        self._trials = {trial.advice: trial for trial in record.trials}

    def __len__(self) -> int:
        return len(self._found)

    @overload
    def __getitem__(self, index: int) -> Advice: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Advice]: ...
    def __getitem__(self, index: int | slice) -> Advice | Sequence[Advice]:
        return self._found[index]

    def trial(self, advice: Advice) -> Trial | None:
        """The trial of a piece of advice; None if it was not tried."""
        return self._trials.get(advice.id)

    def measure(self, number: int) -> Tried:
        """Apply `run.advice[number]` to the run's own call, on fresh copies, and measure the gain.

        The call is compiled twice, with and without the change. The results are compared, and both versions are timed
        in turns. `run.advice` and the live view then show the outcome. The state of the process stays unchanged. Raises
        IndexError for an unknown number, ValueError for advice that can't be applied automatically, and for a run
        without a call.
        """
        from explorer.findings.timing.again import progress_line

        with progress_line() as line:
            record = self._grow(lambda record: with_trial(record, self._call, number, line))
        advice = self[number]
        return Tried(advice, next(trial for trial in record.trials if trial.advice == advice.id))

    @property
    def table(self) -> pd.DataFrame:
        """One row per piece of advice: its expected gain, the suggested change, and the result of its trial."""
        from explorer.reading.data_frames import table_of

        return table_of("advice", [self._row(number, advice) for number, advice in enumerate(self)])

    def _row(self, number: int, advice: Advice) -> dict[str, Any]:
        gain, trial = advice.gain, self.trial(advice)
        run_trial = trial if trial is not None and not trial.problem else None
        return {
            "number": number,
            "title": advice.title,
            "gain_seconds": gain.seconds if gain else None,
            "gain_of": gain.of if gain else None,
            "gain_share": gain.share if gain else None,
            "basis": gain.basis if gain else None,
            "change": advice.change.text if advice.change else None,
            "can_be_tried": can_try(advice, self._record),
            "gained_seconds": run_trial.gained if run_trial else None,
            "gained_low": run_trial.low if run_trial else None,
            "gained_high": run_trial.high if run_trial else None,
            "holds": holds(run_trial) if run_trial else None,
            "numbers": (run_trial.numbers if run_trial else advice.numbers) or None,
            "found": advice.found,
            "evidence": "; ".join(item.text for item in advice.evidence) or None,
            "how": gain.how if gain else None,
            "rule": advice.rule,
            "id": advice.id,
        }

    def __str__(self) -> str:
        return "\n\n".join(self.texts()) or "no advice: nothing was compiled"

    __repr__ = __str__

    def texts(self) -> list[str]:
        """Each piece of advice as wrapped text."""
        return card_texts(advice_cards(self._record))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        from explorer.render.static import document_html

        return {"text/plain": str(self), "text/html": document_html(advice_cards(self._record))}


def with_trial(record: Record, call: Call | None, number: int, tell: Callable[[str], None] | None = None) -> Record:
    """Try a piece of advice and add the trial to the record, with its `problem` if the change can't be applied.

    Raises IndexError for an unknown number, ValueError for advice that can't be tried and for a run without a call.
    """
    found = advise(record)
    if not 0 <= number < len(found):
        raise IndexError(f"there is no advice {number}: run.advice has {len(found)}, from 0")
    if call is None:
        raise ValueError(NO_CALL)
    # Imported late: they import much of torch, which is not needed to view a run.
    from compiler.advise.simulate import simulate_trial
    from compiler.advise.trial import CannotApplyError, CannotCopyError, run_trial
    from compiler.engine import explore_again

    advice = found[number]
    if advice.can_be_tried and not can_try(advice, record):
        raise ValueError(
            f"{advice.title!r} is about {target(record.target).title}, which is not here: nothing can be timed"
        )
    try:
        trial = (
            simulate_trial(advice, record, call, explore_again)
            if advice.is_simulated
            else run_trial(advice, record, call, tell)
        )
    except (CannotApplyError, CannotCopyError) as error:
        trial = Trial(advice.id, problem=str(error))
    others = tuple(each for each in record.trials if each.advice != advice.id)
    return record.with_fields(trials=(*others, trial))


class Tried:
    """Result of trying `advice`, with the measurement `trial`. Prints as text."""

    def __init__(self, advice: Advice, trial: Trial) -> None:
        self.advice = advice
        self.trial = trial

    @property
    def holds(self) -> bool | None:
        """Whether the trial confirmed the claimed gain, within the noise; None without a claim or a measurement."""
        return holds(self.trial)

    def __str__(self) -> str:
        told = f"{self.advice.title} · {gain_words(self.advice.gain)}"
        return "\n".join([told, *wrap_lines(trial_words(self.trial))])

    __repr__ = __str__


__all__ = ["AdviceList", "Tried", "with_trial"]
