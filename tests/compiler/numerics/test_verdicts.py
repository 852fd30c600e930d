"""The verdict of each comparison with eager on the same numbers: read this list before changing one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from compiler.advise.trial import Result, agreement
from compiler.export.saving import compare_outputs
from compiler.numerics.call_words import check_result
from compiler.numerics.policy.by_dtype import numbers
from compiler.numerics.policy.judge import Scope, is_reference, judge
from compiler.numerics.stage_words import stage_checks
from compiler.record import Check
from tests.compiler.numerics.verdict_cases import Case, cases
from tests.golden import assert_golden

GOLDEN = Path(__file__).parent / "golden" / "verdicts.txt"


def kernel(case: Case) -> Iterator[str]:
    """check="kernels": a buffer that a Triton kernel stores."""
    scope = Scope.of_results((eager for _, eager in case.eager), case.narrowest)
    for (name, mine), (_, eager) in zip(case.mine, case.eager, strict=True):
        yield said(judge(name, mine, eager, scope=replace(scope, rounded_comparisons=True)))


def without_break(case: Case) -> Iterator[str]:
    """Whether a version of the call without a graph break does the same, so that it may be timed."""
    scope = Scope.of_results(eager for _, eager in case.eager)
    for (name, mine), (_, eager) in zip(case.mine, case.eager, strict=True):
        yield "differs" if judge(name, mine, eager, scope=scope).verdict == "differs" else "equal"


def level(case: Case) -> Iterator[str]:
    """Decompositions: results of a level, by dtype."""
    for found in numbers(case.mine, case.eager, case.exact):
        beyond = "as near to float64 as eager" if found.beyond else ""
        yield joined(found.verdict, amount(found.max_relative), beyond, found.note)


def stage(case: Case) -> Iterator[str]:
    """check=True: results of a stage, by dtype."""
    yield from map(said, stage_checks(case.mine, case.eager, case.exact, "forward", "0/0"))


def call(case: Case) -> Iterator[str]:
    """check=True: results of the compiled call."""
    scope = Scope.of_results((tensor for _, tensor in case.eager), case.narrowest)
    exact = dict(case.exact or ())
    for (name, mine), (_, eager) in zip(case.mine, case.eager, strict=True):
        yield said(check_result(name, mine, eager, exact.get(name), scope))


def advice(case: Case) -> Iterator[str]:
    """Tried advice: results before and after a change, as outputs and as gradients."""
    for is_gradient in (False, True):
        before = [Result(name, tensor, is_gradient) for name, tensor in case.eager]
        after = [Result(name, tensor, is_gradient) for name, tensor in case.mine]
        yield joined("gradient" if is_gradient else "output", *agreement(before, after))


def saving(case: Case) -> Iterator[str]:
    """explorer.save_and_load: outputs of a model before and after it is saved."""
    mine, eager = ([value for _, value in named] for named in (case.mine, case.eager))
    yield compare_outputs(mine, eager).verdict


def reference(case: Case) -> Iterator[str]:
    """check=True: whether float64 is close enough to eager to be a reference."""
    if case.exact is None:
        return
    is_near = is_reference([value for _, value in case.eager], [value for _, value in case.exact])
    yield "yes" if is_near else "no"


POLICIES: tuple[Callable[[Case], Iterator[str]], ...] = (
    kernel,
    without_break,
    level,
    stage,
    call,
    advice,
    saving,
    reference,
)


def said(check: Check) -> str:
    return joined(check.verdict, amount(check.max_relative), check.words.removeprefix(f"{check.verdict}: "), check.note)


def amount(error: float | None) -> str:
    return "" if not error else f"{error:.2g}"


def joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def answers(policy: Callable[[Case], Iterator[str]], case: Case) -> list[str]:
    try:
        return list(policy(case))
    except (TypeError, RuntimeError, NotImplementedError) as error:
        return [f"raises {type(error).__name__}: {str(error).splitlines()[0]}"]


def verdicts() -> Iterator[str]:
    for case in cases():
        yield case.name
        lines = [(policy.__name__, answer) for policy in POLICIES for answer in answers(policy, case)]
        if all("equal" in answer.split("; ") for _, answer in lines):
            yield "    equal everywhere"
        else:
            yield from (f"    {policy:<14}{answer}" for policy, answer in lines)


def test_verdicts_match_the_golden_list() -> None:
    assert_golden(GOLDEN, "\n".join(verdicts()))


def test_case_names_are_unique() -> None:
    names = [case.name for case in cases()]
    assert len(names) == len(set(names)) > 100
