"""The user's call of the explored function, and edits above it."""

from __future__ import annotations

import linecache
from typing import Any

import pytest

from compiler.calls.call import Call
from compiler.torch_api.fx import SourceFrame
from compiler.xray.call_edits import Parameters, UsersCall, find_users_call

CELL = """\
for ids, mask in batches:
    loss = model(ids, mask=mask["left"])
    model(ids + 1, mask=None); model(ids, mask=mask)
    generate(ids, mask)
"""


def wrapped(self: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
    return first


@pytest.fixture(scope="module", autouse=True)
def cell() -> None:
    linecache.cache["<ipython-input-77-call>"] = (
        len(CELL),
        None,
        CELL.splitlines(keepends=True),
        "<ipython-input-77-call>",
    )


def call_at(line: int) -> UsersCall:
    call = Call(
        wrapped, wrapped, (1,), {"mask": 2}, site=(SourceFrame("<ipython-input-77-call>", line, "<module>", ""),)
    )
    found = find_users_call(call, {"model": wrapped})
    assert found is not None
    return found


def test_arguments_are_found_and_statements_inserted_above_the_call() -> None:
    found = call_at(2)
    assert found.is_direct
    assert (found.code_of(0), found.code_of("mask"), found.code_of(1)) == ("ids", "mask['left']", "")
    edit = found.insert_above(["mark(ids)"])
    assert edit is not None
    assert (edit.line, edit.end_line) == (2, 2)
    assert edit.text == '    mark(ids)\n    loss = model(ids, mask=mask["left"])'


def test_only_sure_calls_have_arguments() -> None:
    several, outer = call_at(3), call_at(4)
    assert not several.is_direct
    assert not outer.is_direct
    assert outer.code_of(0) == ""


def test_paths_of_wrapper_arguments_are_those_of_the_call() -> None:
    parameters = Parameters.of(wrapped)
    assert [parameters.name_of(each) for each in (0, 1, 3, "mask")] == ["self", "first", "args[1]", "mask"]
    assert parameters.path_without_kwargs("kwargs['mask'].data") == "mask.data"
    assert parameters.places_of("args[1].data") == [3]
    assert parameters.places_of("first[0]") == [1, "first"]


class Bound:
    def forward(*args: Any) -> Any:
        return args


def test_self_in_args_is_no_argument_of_the_call() -> None:
    parameters = Parameters.of(Bound().forward)
    assert (parameters.name_of(0), parameters.places_of("args[1]")) == ("args[1]", [0])
