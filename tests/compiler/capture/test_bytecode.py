"""Bytecode: jumps, Dynamo's insertions in words, and the modified code as equivalent Python."""

from __future__ import annotations

import contextlib
import copy
import dis
import io
import linecache
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

import pytest
import torch
from torch._dynamo.convert_frame import register_bytecode_hook

from compiler.capture.bytecode import python_artifact
from compiler.capture.rendering import Rendering, render
from compiler.engine import explore
from compiler.option_checks import parse_options
from compiler.record import Record
from tests.compiler.broken import TORCH, function
from tests.compiler.capture.break_cases import CASES


def loops_and_breaks(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x * 2
    print("one")  # noqa: T201
    for _ in range(3):
        z = z + y
    if z.sum() > 0:
        z = z - 1
    kept = [z, x]
    kept.append(y)
    return kept, z.sin(), {"sum": z + y}


def closes_over(scale: torch.Tensor) -> Callable[..., Any]:
    def inner(x: torch.Tensor, *, shift: int = 1) -> torch.Tensor:
        return x * scale + shift * scale

    return inner


def writes_back(x: torch.Tensor, seen: list[Any]) -> torch.Tensor:
    seen.append(x + 1)
    seen[0] = x * 3
    return x.relu()


def makes_a_generator(x: torch.Tensor) -> torch.Tensor:
    return sum((part * 2 for part in x.unbind()), x.new_zeros(()))


def under_no_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x + 1
        print("three")  # noqa: T201
        return y * 2


def returns_a_closure(x: torch.Tensor) -> tuple[torch.Tensor, Callable[..., Any]]:
    scale = 3

    def inner(y: torch.Tensor) -> torch.Tensor:
        nonlocal scale
        scale += 1
        return y * scale

    return inner(x), inner


def breaks_with_a_closure(x: torch.Tensor) -> torch.Tensor:
    scale = 3

    def inner(y: torch.Tensor) -> torch.Tensor:
        return y * scale

    y = x + 1
    print("five")  # noqa: T201
    scale += 1
    return inner(y)


def calls_a_numbers_method(x: torch.Tensor) -> torch.Tensor:
    return x * (3).bit_length()


def decides_twice(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    if y.sum() > 0 and y.mean() > 9:
        return y
    return y - 1


def fills_an_ordered_dict(x: torch.Tensor) -> dict[str, torch.Tensor]:
    made = OrderedDict(a=x + 1, b=x * 2)
    print("six")  # noqa: T201
    return made


def breaks_at_keywords(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    print("four", end="\n", flush=True)  # noqa: T201
    return y * 2


def record_of(fn: Callable[..., Any], *args: Any) -> Record:
    return explore(fn, args, options=parse_options(stages=("bytecode",))).record


CALLS: list[tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = [
    (loops_and_breaks, lambda: (torch.ones(4), torch.ones(4))),
    (loops_and_breaks, lambda: (-torch.ones(4), -torch.ones(4))),
    (closes_over(torch.full((4,), 2.0)), lambda: (torch.arange(4.0),)),
    (writes_back, lambda: (torch.arange(4.0), [torch.zeros(1)])),
    (makes_a_generator, lambda: (torch.arange(4.0),)),
    (breaks_at_keywords, lambda: (torch.arange(4.0),)),
    (under_no_grad, lambda: (torch.ones(4, requires_grad=True),)),
    (breaks_with_a_closure, lambda: (torch.arange(4.0),)),
    (decides_twice, lambda: (torch.ones(4),)),
    (decides_twice, lambda: (-torch.ones(4),)),
    (fills_an_ordered_dict, lambda: (torch.arange(4.0),)),
]


def code_of(python: Rendering, original: CodeType, user_globals: dict[str, Any]) -> CodeType:
    """The code object of a rendering's text, with the original's variables, as Dynamo requires."""
    assert python.stopped == ""
    head, *body = (number(line, user_globals, python.constants) for line in python.lines)
    variables = [name for name in (*original.co_varnames, *original.co_cellvars) if f"{name}: object" not in body]
    declared = [line for line in body if line.strip().startswith(("nonlocal", "global"))]
    seen = [f"    if 0: {name} = lambda: {name}" for name in original.co_cellvars]
    seen += [f"    if 0: {name} = None" for name in variables] + [f"    if 0: {name}" for name in original.co_freevars]
    lines = [head, *declared, *seen, *(line for line in body if line not in declared)]
    inside = "\n".join(f"    {line}" for line in lines)
    name = head.removeprefix("def ").partition("(")[0]
    text = f"def around({', '.join(original.co_freevars)}):\n{inside}\n    return {name}\n"
    namespace: dict[str, Any] = {}
    exec(compile(text, "<rendering>", "exec"), namespace)
    return namespace["around"](*original.co_freevars).__code__


def test_method_on_a_number_is_parenthesized() -> None:
    assert render(calls_a_numbers_method.__code__).lines[1:] == ("    return (x * (3).bit_length())",)


def branches_that_meet(x: int, flag: bool) -> tuple[int, int, int]:
    y = x
    if flag:
        y = x + 1
    else:
        x = x - 1
    if not flag:
        x = -x
    return x, y, 2 if flag else 3


def test_code_after_a_branch_is_rendered_once() -> None:
    code = branches_that_meet.__code__
    python = render(code)
    assert sum("x = (-x)" in line for line in python.lines) == 1
    assert sum("return" in line for line in python.lines) == 2  # the sides leave different values: 2 and 3
    jumps = {each.offset for each in dis.get_instructions(code) if each.opname.startswith("POP_JUMP")}
    tests = [behind for line, behind in zip(python.lines, python.stands_for, strict=True) if line.strip()[:3] == "if "]
    assert [len(jumps & set(behind)) for behind in tests] == [1, 1, 1]
    assert jumps == python.says.keys()
    rendered: Any = FunctionType(code_of(python, code, {}), {})
    for flag in (True, False):
        assert rendered(5, flag) == branches_that_meet(5, flag)


def number(line: str, user_globals: dict[str, Any], constants: dict[str, Any]) -> str:
    """The line with its constants replaced by new global names, which hold the constants."""
    for name, value in constants.items():
        user_globals[f"tested_{name}_{id(value)}"] = value
        line = re.sub(rf"\b{name}\b", f"tested_{name}_{id(value)}", line)
    return line


def called_through_renderings(fn: Any, args: Sequence[Any]) -> tuple[Any, str, int]:
    """Run a compiled call with each frame's rewritten code replaced by its compiled rendering.

    Returns the call's result and output, and the number of frames.
    """
    frames = []
    user_globals = fn.__globals__

    def hook(original: CodeType, rewritten: CodeType) -> CodeType:
        frames.append(original)
        return code_of(render(rewritten), original, user_globals)

    torch._dynamo.reset()
    handle = register_bytecode_hook(hook)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            value = torch.compile(fn, backend="eager")(*args)
    finally:
        handle.remove()
        torch._dynamo.reset()
        for name in [name for name in user_globals if name.startswith("tested_")]:
            del user_globals[name]
    return value, printed.getvalue(), len(frames)


@pytest.mark.parametrize(("fn", "inputs"), CALLS)
def test_rendered_python_behaves_like_its_bytecode(fn: Any, inputs: Callable[[], tuple[Any, ...]]) -> None:
    """Each frame's rewritten code, also of resume functions, runs as its rendering, and matches eager."""
    expected_inputs, got_inputs = inputs(), inputs()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        expected = fn(*expected_inputs)
    value, got_printed, frames = called_through_renderings(fn, got_inputs)
    assert frames
    assert got_printed == printed.getvalue()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(got_inputs, expected_inputs)


def test_the_common_breaks_are_rendered_and_run() -> None:
    """For the common breaks, every rewritten frame runs as Python."""
    frames = 0
    for case in CASES[::3]:
        if case.outcome == "resumed" and not re.search(r"random\.|now\(", case.code):  # equal in every call
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                torch.manual_seed(0)
                expected = function(case.code)(*copy.deepcopy(case.args))
                torch.manual_seed(0)
                value, _, count = called_through_renderings(function(case.code), copy.deepcopy(case.args))
            torch.testing.assert_close(value, expected)
            frames += count
    assert frames > 40


def with_a_formatted_value(x: torch.Tensor, names: list[str]) -> str:
    return f"{names[0]!r:>9}"


def test_unrenderable_instruction_is_named() -> None:
    python = render(with_a_formatted_value.__code__)
    opcode, _, rest = python.stopped.partition(" ")
    assert opcode in dis.opmap
    assert "Python's own text for it needs" in rest
    artifact = python_artifact(python, graph="0/0", title="")
    assert artifact.text.splitlines()[-1].endswith(python.stopped)


def test_rendered_line_links_through_bytecode_to_source() -> None:
    record = record_of(breaks_at_keywords, torch.ones(4))
    python, modified = record["bytecode[0/0 as Python]"], record["bytecode[0/0 modified]"]
    numbered = python.text.splitlines()
    for line, (identity,) in python.lines.items():
        assert numbered[line - 1].strip() == python.entity(identity).label
    known = {entity.id: entity for entity in modified.entities}
    statement = next(entity for entity in python.entities if "__resume_at_0(" in entity.label)
    behind = [known[origin] for origin in statement.origins]
    assert "call the resume function `__resume_at_0` with the values that it needs" in [
        entity.attrs.get("says") for entity in behind
    ]
    printing = next(entity for entity in python.entities if "'four'" in entity.label)
    lines = {known[origin].attrs["line"] for origin in printing.origins} - {0}
    assert [source_line(breaks_at_keywords, line) for line in lines] == [
        'print("four", end="\\n", flush=True)  # noqa: T201'
    ]
    assert next(iter(lines)) in {record_line(record, identity) for identity in record.linked_ids(printing.id)}


def source_line(fn: Any, line: int) -> str:
    return linecache.getline(fn.__code__.co_filename, line).strip()


def record_line(record: Record, identity: str) -> int:
    """The number of a source line, 0 if there is none."""
    return int(identity.rpartition(".L")[2]) if identity.startswith("source[") else 0


def test_jumps_point_at_their_targets() -> None:
    record = record_of(loops_and_breaks, torch.ones(4), torch.ones(4))
    artifact = record["bytecode[0/0]"]
    jumping = [entity for entity in artifact.entities if "jump" in entity.attrs]
    expected = [each for each in dis.get_instructions(loops_and_breaks) if each.opcode in dis.hasjrel + dis.hasjabs]
    assert [(entity.attrs["offset"], entity.attrs["jump"]) for entity in jumping] == [
        (each.offset, each.argval) for each in expected
    ]
    for entity in jumping:
        assert entity.id in artifact.entity(str(entity.attrs["jump"])).inputs


def test_inserted_instructions_are_explained() -> None:
    record = record_of(loops_and_breaks, torch.ones(4), torch.ones(4))
    artifact = record["bytecode[0/0 modified]"]
    says = [entity.attrs["says"] for entity in artifact.entities if "says" in entity.attrs]
    assert "call the compiled graph with x" in says
    assert "keep the tuple that the graph returned" in says
    assert "call the resume function `__resume_at_0` with the values that it needs" in says
    assert ("only while torch's profiler is on" in says) == (TORCH >= "2.15")
    assert all(f"# {words}" in artifact.text for words in says)
    assert not any("says" in entity.attrs for entity in record["bytecode[0/0]"].entities)


def test_failing_listing_leaves_the_compilation_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such opcode")

    monkeypatch.setattr("compiler.recorder.bytecode_artifacts", failing)
    record = record_of(breaks_at_keywords, torch.ones(4))
    assert [frame.outcome for frame in record.frames] == ["compiled", "compiled"]
    assert [(found.stage, found.reason) for found in record.problems] == [
        ("bytecode", "RuntimeError: no such opcode"),
        ("bytecode", "RuntimeError: no such opcode"),
    ]


def test_resume_functions_have_all_three_listings() -> None:
    record = record_of(loops_and_breaks, torch.ones(4), torch.ones(4))
    frames = [frame.id for frame in record.frames if frame.outcome == "compiled"]
    assert len(frames) == 3
    expected = {f"bytecode[{frame}{suffix}]" for frame in frames for suffix in ("", " modified", " as Python")}
    assert {artifact.id for artifact in record.of_stage("bytecode")} == expected


def test_resume_listing_omits_unreachable_instructions() -> None:
    record = record_of(loops_and_breaks, torch.ones(4), torch.ones(4))
    whole, rest = record["bytecode[0/0]"], record["bytecode[1/0]"]
    assert "left out" not in whole.text
    written, kept = (sum(entity.attrs["line"] > 0 for entity in each.entities) for each in (whole, rest))
    assert kept < written
    assert "never reaches are left out" in rest.text.splitlines()[0]
    body = whole.entities[2].attrs["line"]
    assert body not in {entity.attrs["line"] for entity in rest.entities}


def test_bytecode_text_is_short_and_deterministic() -> None:
    first, second = (record_of(returns_a_closure, torch.ones(4)) for _ in range(2))
    assert [each.text for each in first.of_stage("bytecode")] == [each.text for each in second.of_stage("bytecode")]
    assert max(len(line) for each in first.of_stage("bytecode") for line in each.text.splitlines()) < 400


def test_inserted_instructions_have_no_line_kept_ones_do() -> None:
    record = record_of(loops_and_breaks, torch.ones(4), torch.ones(4))
    written, rewritten = record["bytecode[0/0]"], record["bytecode[0/0 modified]"]
    calls = [entity for entity in written.entities if entity.label == "CALL" and entity.attrs["line"]]
    kept = [entity for entity in rewritten.entities if entity.label == "CALL" and entity.attrs["line"]]
    assert [entity.origins for entity in kept] == [entity.origins for entity in calls[:1]]
    said = [entity for entity in rewritten.entities if "says" in entity.attrs]
    assert said
    assert not any(entity.attrs["line"] or entity.origins for entity in said)
