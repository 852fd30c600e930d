"""Every exercise of `tcompile.lessons`: graded from the record alone, its right answer accepted, wrong ones never.

Each program is explored once for all its exercises. Records go through JSON first, as grading needs nothing else.
"""

from __future__ import annotations

from functools import cache

import pytest

from compiler.record import Record
from explorer.teach.ask import questions_of
from explorer.teach.catalogue import EXERCISES
from explorer.teach.exercise import explore_program
from explorer.teach.programs import PROGRAMS
from explorer.teach.question import Question

RIGHT = {
    "loop": "3", "loop_inputs": "1", "loop_breaks": "none", "plain_print": "3",
    "linear_ops": "4", "linear_inputs": "3", "linear_shape": "3", "linear_hidden": "4, 3",
    "print_line": "3", "print_graphs": "2", "branch_line": "3", "branch_graphs": "2", "branch_ops": "3",
    "nested_line": "3", "nested_shape": "2, 4",
    "sizes_again": "1", "sizes_changed": "x", "sizes_graphs": "2", "flag_again": "1", "flag_changed": "keep",
    "dtype_again": "1", "dtype_changed": "x",
    "square_gradient": "7", "square_nodes": "3", "paths_a": "[5, 8]", "paths_b": "[1, 2]", "paths_leaves": "a, b",
    "detached_w": "[1, 1]", "detached_v": "[0, 4]",
    "square_joint": "3", "mlp_leaves": "w, v", "paths_forward": "5",
    "square_saved": "1", "mlp_saved": "3", "mlp_saved_bytes": "512", "square_saved_inputs": "1", "mlp_recomputed": "0",
    "gelu_becomes": "mul, erf, add", "silu_becomes": "neg, exp, add, div", "passes_left": "5", "passes_captured": "6",
    "chain_fusion": "2+3, 5+6", "normalize_fusion": "2+3+4", "broadcast_fusion": "2+3",
    "softmax_kernels": "1", "softmax_reductions": "1", "chain_kernels": "2", "chain_library": "1", "mlp_library": "5",
    "softmax_bytes": "16 KiB", "broadcast_bytes": "16512",
    "whole": "int64", "half": "float32", "small": "bool", "mixed": "float64",
    "autocast_matmul": "bfloat16", "autocast_sum": "float32",
}  # fmt: skip


@cache
def record_of(program: str) -> Record:
    found = explore_program(PROGRAMS[program]).record
    assert found is not None
    return Record.from_json(found.to_json())


def wrong_answers(question: Question, right: str) -> list[str]:
    """Three answers near the right one."""
    if question.form == "number":
        (number,) = [question.read(right)]
        return [str(number + 1), str(number + 2), str(number - 1 if number else number + 3)]
    if question.form == "groups":
        return ["none", right.rpartition("+")[0] if right.count("+") > 1 else "2+6", f"{right}, 2+{right[-1]}"
                if f"2+{right[-1]}" not in right and right != "2+3+4" else "2+3+4+5"]  # fmt: skip
    if question.form == "lines":
        return ["2", "2, 3", "2, 4"]
    if question.kind == "dtype":
        return [name for name in ("float16", "float32", "int64", "bool", "float64") if name != right][:3]
    if question.kind == "gradient":
        return ["none", f"[{right}]", right.replace("[", "").replace("]", "")[:1] if "[" in right else "6.9"]
    if question.kind == "shape":
        return ["scalar", f"{right}, 1", "5, 5"]
    return ["none", f"{right}, other", "other"]


@pytest.mark.parametrize("name", EXERCISES)
def test_right_answer_is_accepted_and_wrong_ones_never(name: str) -> None:
    exercise = EXERCISES[name]
    (question,) = questions_of(exercise.ask)
    record, listing = record_of(exercise.program.name), exercise.program.listing
    right = question.grade(RIGHT[name], record, listing)
    assert (right.verdict, right.words) == ("right", ""), right
    assert all(each.stage for each in right.explanations), right
    wrong = wrong_answers(question, RIGHT[name])
    assert len(set(wrong)) == 3
    for answer in wrong:
        grade = question.grade(answer, record, listing)
        assert grade.verdict == "wrong", (answer, grade)
        assert grade.found == right.found
        assert grade.explanations


def test_there_are_forty_exercises_over_ten_topics() -> None:
    assert len(EXERCISES) >= 40
    assert len({exercise.topic for exercise in EXERCISES.values()}) >= 10
    assert set(RIGHT) == set(EXERCISES)
    assert {exercise.program.name for exercise in EXERCISES.values()} == set(PROGRAMS)
