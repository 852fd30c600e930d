"""The private names that the adapter uses exist in this torch; when one moves, this says which."""

import torch

from compiler.torch_api import names
from compiler.torch_api.patching import replaced


def test_every_private_name_in_use_exists() -> None:
    assert list(names.missing()) == [], f"torch {torch.__version__} moved these; see compiler/torch_api"


def test_missing_names_are_reported() -> None:
    original = names.REQUIRED
    try:
        names.REQUIRED = (*original, "torch._dynamo.convert_frame:no_such_name")
        assert list(names.missing()) == ["torch._dynamo.convert_frame:no_such_name"]
    finally:
        names.REQUIRED = original


def test_replaced_puts_the_original_back_after_an_error() -> None:
    class Owner:
        name = "before"

    class Child(Owner):
        pass

    for owner in (Owner, Child):
        try:
            with replaced(owner, "name", lambda old: old + " after"):
                assert owner.name == "before after"
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            assert owner.name == "before"
    assert "name" not in vars(Child)
