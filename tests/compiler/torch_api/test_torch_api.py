"""The private names that the adapter uses exist in this torch; when one moves, this says which."""

import ast

import pytest
import torch
import torch.fx._symbolic_trace as symbolic_trace

from compiler.torch_api import names
from compiler.torch_api.patching import replace_attribute
from compiler.torch_api.released import revert_leftover_fx_patches


def test_every_private_name_in_use_exists() -> None:
    assert list(names.missing_names()) == [], f"torch {torch.__version__} moved these; see compiler/torch_api"


def test_missing_names_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(names.OTHERS, "torch._dynamo.convert_frame", "no_such_name")
    assert list(names.missing_names()) == ["torch._dynamo.convert_frame.no_such_name"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import torch\ntorch._C._one()", {"torch._C", "torch._C._one"}),
        (
            "import torch._dynamo.config as config\nconfig.a.b",
            {"torch._dynamo.config", "torch._dynamo.config.a", "torch._dynamo.config.a.b"},
        ),
        ("import torch._dynamo.config as config\nconfig.a = 1", {"torch._dynamo.config"}),
        ("from torch._x import A\nA.b", {"torch._x.A"}),
        ("from torch._x import A\nreplaced(A, 'b', c)", {"torch._x.A", "torch._x.A.b"}),
        ("from torch._x import A\n[(A, 'b', c)]", {"torch._x.A", "torch._x.A.b"}),
        ("import torch._x as x\nx.patch(b=1)", {"torch._x", "torch._x.patch", "torch._x.b"}),
        ("from torch._x import A\nif hasattr(A, 'b'): (A, 'b')", {"torch._x.A"}),
        ("import os\nos._exit", set()),
    ],
)
def test_private_names_are_read_from_code(code: str, expected: set[str]) -> None:
    assert set(names.names_in(ast.parse(code))) == expected


def test_replaced_puts_the_original_back_after_an_error() -> None:
    class Owner:
        name = "before"

    class Child(Owner):
        pass

    for owner in (Owner, Child):
        try:
            with replace_attribute(owner, "name", lambda old: old + " after"):
                assert owner.name == "before after"
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            assert owner.name == "before"
    assert "name" not in vars(Child)


def test_fx_patches_left_by_an_interrupt_are_reverted() -> None:
    call = torch.nn.Module.__call__
    with revert_leftover_fx_patches():
        symbolic_trace.CURRENT_PATCHER = patcher = symbolic_trace._Patcher()
        patcher.patch_method(torch.nn.Module, "__call__", lambda _self: None)
        assert torch.nn.Module.__call__ is not call
    assert torch.nn.Module.__call__ is call
    assert symbolic_trace.CURRENT_PATCHER is None
