"""Advice in words: the gain of a change, the code to write, the result of a trial."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.advise import Change, Gain
from compiler.advise.facts import percent, seconds
from compiler.record import Traffic
from compiler.record.measure_facts import Trial
from compiler.record.plain_text import pluralize

BASES = {"measured": "measured", "recorded": "recorded", "estimate": "estimate"}


def gain_words(gain: Gain | None) -> str:
    """Format a gain: `saves an estimated 36 µs a call (40 %)`; "gain not known" without a number."""
    if gain is None:
        return "gain not known"
    of = "a call" if gain.of == "call" else "of compiling"
    share = f" ({percent(gain.share)})" if gain.share is not None else ""
    estimated = "" if gain.basis == "measured" else "an estimated "
    return f"saves {estimated}{seconds(gain.seconds)} {of}{share}"


def gain_source(gain: Gain) -> str:
    """Sentence on the source of a gain: `Estimate: …`."""
    word = "Measured" if gain.basis == "measured" else "Estimate"
    return f"{word}: {gain.how}."


def snippet(change: Change) -> list[str]:
    """Lines of code that make a change; empty if there are none."""
    if change.eager:
        return ["model(x)  # without torch.compile"]
    if change.autocast:
        return [f'with torch.autocast("cuda", dtype=torch.{change.autocast}):', "    loss = …"]
    given = [f"{name}={value!r}" for name, value in change.options.items()]
    if change.regions:
        compiled = ", ".join(["block.forward", *given])
        return [f"for block in {_code_of_lists(change.regions)}:", f"    block.forward = torch.compile({compiled})"]
    whole = [f"torch.compile({', '.join(['model', *given])})"] if given else []
    return [*change.settings, *whole]


def _code_of_lists(blocks: Sequence[str]) -> str:
    """Code that yields all blocks: `model.layers`, `(*model.encoder.layers, *model.decoder.layers)`."""
    paths = dict.fromkeys(block.rpartition(".")[0] for block in blocks)
    lists = [f"model.{path}" if path else "model" for path in paths]
    return lists[0] if len(lists) == 1 else f"({', '.join(f'*{each}' for each in lists)})"


def trial_words(trial: Trial) -> str:
    """Measured gain of a trial, compared with the claim, or the problem of the trial; "" if nothing was measured."""
    if trial.problem:
        return f"It could not be tried: {trial.problem}."
    if trial.traffic_before is not None and trial.traffic_after is not None:
        return traffic_words(trial.traffic_before, trial.traffic_after)
    if trial.before is None or trial.after is None or trial.gained is None:
        return ""
    return f"{_times(trial)} {_verdict(trial)} {_sentence(trial.numbers)}"


def traffic_words(before: Traffic, after: Traffic) -> str:
    """What a rank sends before and after a change, in a sentence; times are estimates."""
    calls = f"{pluralize(before.calls, 'collective')} before, {after.calls} with the change"
    bytes_same = f"{before.bytes:,} bytes in messages, " + (
        "as before" if before.bytes == after.bytes else f"{after.bytes:,} with the change"
    )
    told = f"Explored again with the change: {calls}; {bytes_same}."
    if before.whole is None or after.whole is None or before.exposed is None or after.exposed is None:
        return f"{told} The time of some calls is not known, so times are not compared."
    return (
        f"{told} By estimates, the code stands still for {seconds(before.exposed)} before, {seconds(after.exposed)} "
        f"with the change, and the step takes {seconds(before.whole)} before, {seconds(after.whole)} with it."
    )


def _times(trial: Trial) -> str:
    told = f"{seconds(trial.before or 0.0)} a call as it is, {seconds(trial.after or 0.0)} with the change"
    if trial.compile_before is not None and trial.compile_after is not None:
        return (
            f"Compiling took {seconds(trial.compile_before)} as it is and {seconds(trial.compile_after)} with the "
            f"change, "
            f"once each; {told}."
        )
    return f"{told[:1].upper()}{told[1:]}, {trial.what}, on the {_device(trial)}, {trial.rounds} rounds in turns."


def _device(trial: Trial) -> str:
    return "CPU" if trial.device == "cpu" else "GPU"


def _verdict(trial: Trial) -> str:
    if _compiles_as_often(trial):
        return f"It saves nothing: the calls compile {pluralize(trial.graphs_after or 0, 'graph')}, as before."
    if trial.of == "compile":
        gained = (trial.compile_before or 0.0) - (trial.compile_after or 0.0)
        if trial.graphs_before is not None and trial.graphs_after is not None:
            fewer = f"It compiles {pluralize(trial.graphs_after, 'graph')} instead of {trial.graphs_before}"
            saved = f"and saves {seconds(gained)} of compiling" if gained > 0 else "and took no less time to compile"
            return _compare_with_claim(trial, gained, f"{fewer}, {saved}")
        return _compare_with_claim(
            trial, gained, f"It saves {seconds(gained)} of compiling" if gained > 0 else "It saves nothing"
        )
    low, high = trial.low or 0.0, trial.high or 0.0
    spread = f"({seconds(low)} to {seconds(high)} in half of the rounds)"
    if low > 0:
        return _compare_with_claim(trial, high, f"It gains {seconds(trial.gained or 0.0)} a call {spread}")
    if high < 0:
        return _compare_with_claim(trial, high, f"It loses {seconds(-(trial.gained or 0.0))} a call")
    return _compare_with_claim(trial, high, f"No difference that rises above the noise {spread}")


def _compiles_as_often(trial: Trial) -> bool:
    """Whether a trial of advice on recompilations compiled no fewer graphs with the change: any time saved is noise."""
    if trial.graphs_before is None or trial.graphs_after is None:
        return False
    return trial.graphs_after >= trial.graphs_before


def _compare_with_claim(trial: Trial, reached: float, told: str) -> str:
    """Append a comparison with the claimed gain to the verdict."""
    if trial.expected is None:
        return f"{told}; nothing was claimed."
    kept = "as claimed" if reached >= trial.expected else "less than claimed"
    return f"{told}: {kept} ({seconds(trial.expected)} was expected)."


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def holds(trial: Trial) -> bool | None:
    """Whether the trial confirmed the claim, within the noise; None without a claim or a measurement."""
    if trial.expected is None or trial.gained is None or trial.problem:
        return None
    if trial.of == "compile":
        saved = (trial.compile_before or 0.0) - (trial.compile_after or 0.0)
        return saved >= trial.expected and not _compiles_as_often(trial)
    return (trial.high or 0.0) >= trial.expected
