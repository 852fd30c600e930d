"""Bytecode: jumps, what Dynamo inserted in words, and the modified code as Python that does the same when it is run."""

from __future__ import annotations

import dis
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any

import pytest
import torch
from torch._dynamo.convert_frame import register_bytecode_hook

from compiler.capture.rendering import rendered
from compiler.engine import explore
from compiler.options import Options
from compiler.record import Record


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


def breaks_at_keywords(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    print("four", end="\n", flush=True)  # noqa: T201
    return y * 2


def record_of(fn: Callable[..., Any], *args: Any) -> Record:
    return explore(fn, args, options=Options.of(stages=("bytecode",))).record


def from_rendering(code: CodeType, user_globals: dict[str, Any], cells: tuple[CellType, ...]) -> FunctionType:
    """The function that the rendering's text defines, with the cells of the original."""
    python = rendered(code)
    assert python.stopped == ""
    body = "\n".join(f"    {line}" for line in python.lines)
    name = python.lines[0].removeprefix("def ").partition("(")[0]
    text = f"def around({', '.join(python.free)}):\n{body}\n    return {name}\n"
    namespace: dict[str, Any] = {}
    exec(compile(text, "<rendering>", "exec"), namespace)
    made = namespace["around"](*python.free)
    by_name = dict(zip(code.co_freevars, cells, strict=True))
    around = tuple(by_name[free] for free in made.__code__.co_freevars)
    return FunctionType(made.__code__, {**user_globals, **python.constants}, closure=around or None)


CALLS: list[tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = [
    (loops_and_breaks, lambda: (torch.ones(4), torch.ones(4))),
    (loops_and_breaks, lambda: (-torch.ones(4), -torch.ones(4))),
    (closes_over(torch.full((4,), 2.0)), lambda: (torch.arange(4.0),)),
    (writes_back, lambda: (torch.arange(4.0), [torch.zeros(1)])),
    (makes_a_generator, lambda: (torch.arange(4.0),)),
    (breaks_at_keywords, lambda: (torch.arange(4.0),)),
]


@pytest.mark.parametrize(("fn", "inputs"), CALLS)
def test_every_rendering_does_what_its_bytecode_does(fn: Any, inputs: Callable[[], tuple[Any, ...]]) -> None:
    """Each frame's rewritten code is replaced by its rendering, compiled; the call must give what eager gives."""
    seen: list[CodeType] = []
    torch._dynamo.reset()
    handle = register_bytecode_hook(lambda _, new: seen.append(new))
    try:
        torch.compile(fn, backend="eager")(*inputs())
    finally:
        handle.remove()
    assert seen
    expected_inputs, got_inputs = inputs(), inputs()
    expected = fn(*expected_inputs)
    made = from_rendering(seen[0], fn.__globals__, fn.__closure__ or ())
    made.__kwdefaults__ = fn.__kwdefaults__
    for resumed in seen[1:]:  # those that the rendering calls are renderings, too
        for name, known in list(fn.__globals__.items()):
            if name.startswith("__resume_at_") and known.__code__.co_name == resumed.co_name:
                made.__globals__[name] = from_rendering(resumed, made.__globals__, known.__closure__ or ())
    torch.testing.assert_close(made(*got_inputs), expected)
    torch.testing.assert_close(got_inputs, expected_inputs)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("fn", "stopped"),
    [
        (under_no_grad, "it is inside of a try or with block"),
        (returns_a_closure, "no expression for a variable's cell"),
    ],
)
def test_what_python_has_no_words_for_is_said_with_the_instruction(fn: Callable[..., Any], stopped: str) -> None:
    record = record_of(fn, torch.ones(4))
    artifact = record["bytecode[0/0 as Python]"]
    assert stopped in artifact.attrs["stopped"]
    opcode = artifact.attrs["stopped"].split()[0]
    assert opcode in dis.opmap
    assert artifact.text.splitlines()[-1].endswith(artifact.attrs["stopped"])


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


def test_words_say_what_dynamo_inserted() -> None:
    record = record_of(loops_and_breaks, torch.ones(4), torch.ones(4))
    artifact = record["bytecode[0/0 modified]"]
    says = [entity.attrs["says"] for entity in artifact.entities if "says" in entity.attrs]
    assert "call the compiled graph with x" in says
    assert "keep the tuple that the graph returned" in says
    assert "call the resume function `__resume_at_0` with what it needs to go on" in says
    assert all(f"# {words}" in artifact.text for words in says)
    assert not any("says" in entity.attrs for entity in record["bytecode[0/0]"].entities)


def test_a_listing_that_fails_leaves_the_compilation_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such opcode")

    monkeypatch.setattr("compiler.recorder.bytecode_artifacts", failing)
    record = record_of(breaks_at_keywords, torch.ones(4))
    assert [frame.outcome for frame in record.frames] == ["compiled", "compiled"]
    assert [(found.stage, found.reason) for found in record.problems] == [
        ("bytecode", "RuntimeError: no such opcode"),
        ("bytecode", "RuntimeError: no such opcode"),
    ]


def test_resume_functions_have_all_three() -> None:
    record = record_of(loops_and_breaks, torch.ones(4), torch.ones(4))
    frames = [frame.id for frame in record.frames if frame.outcome == "compiled"]
    assert len(frames) == 3
    expected = {f"bytecode[{frame}{suffix}]" for frame in frames for suffix in ("", " modified", " as Python")}
    assert {artifact.id for artifact in record.of_stage("bytecode")} == expected


def test_text_is_the_same_the_second_time_and_short() -> None:
    first, second = (record_of(returns_a_closure, torch.ones(4)) for _ in range(2))
    assert [each.text for each in first.of_stage("bytecode")] == [each.text for each in second.of_stage("bytecode")]
    assert max(len(line) for each in first.of_stage("bytecode") for line in each.text.splitlines()) < 400


def test_what_dynamo_inserted_is_on_no_line_and_what_it_kept_is_on_its_own() -> None:
    record = record_of(loops_and_breaks, torch.ones(4), torch.ones(4))
    written, rewritten = record["bytecode[0/0]"], record["bytecode[0/0 modified]"]
    calls = [entity for entity in written.entities if entity.label == "CALL" and entity.attrs["line"]]
    kept = [entity for entity in rewritten.entities if entity.label == "CALL" and entity.attrs["line"]]
    assert [entity.origins for entity in kept] == [entity.origins for entity in calls[:1]]
    said = [entity for entity in rewritten.entities if "says" in entity.attrs]
    assert said
    assert not any(entity.attrs["line"] or entity.origins for entity in said)
