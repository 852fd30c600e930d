"""`import tcompile`: the whole public surface, against a list."""

from __future__ import annotations

import inspect

import pytest

import compiler
import explorer
import tcompile
from compiler.backend import tcompile as backend

FUNCTIONS = {
    "autograd", "backend", "chain_rule", "check", "decompose", "explore", "export", "load", "open",
    "save_and_load", "targets",
}  # fmt: skip
CLASSES = {"CheckError", "Run"}
OF_IPYTHON = {"load_ipython_extension", "unload_ipython_extension"}


def test_public_names_are_these() -> None:
    assert list(tcompile.__all__) == sorted(FUNCTIONS | CLASSES | OF_IPYTHON)
    assert dir(tcompile) == sorted(tcompile.__all__)


@pytest.mark.parametrize("name", sorted(FUNCTIONS | CLASSES))
def test_public_name_is_that_of_its_package(name: str) -> None:
    inner = backend if name == "backend" else getattr(compiler if name == "open" else explorer, name)
    assert getattr(tcompile, name) is inner


@pytest.mark.parametrize("name", sorted(FUNCTIONS | CLASSES))
def test_docstring_begins_with_a_short_line(name: str) -> None:
    """The first line stands alone in the docs and in a completer."""
    first = (inspect.getdoc(getattr(tcompile, name)) or "").splitlines()[0]
    assert 20 <= len(first) <= 90, first
    assert first.endswith((".", ":")), first


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tcompile' has no attribute 'nothing'"):
        _ = tcompile.nothing
