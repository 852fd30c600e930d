"""`import tcompile`: the whole public surface, against a list."""

from __future__ import annotations

import inspect
import re

import pytest

import compiler
import explorer
import tcompile
from compiler.backend import tcompile as backend

FUNCTIONS = {
    "autograd", "backend", "chain_rule", "check", "decompose", "explore", "export", "load", "load_profile",
    "make_repro", "observe", "open", "save_and_load", "status", "targets",
}  # fmt: skip
CLASSES = {"CheckError", "Job", "Run"}
OBJECTS = {"lessons"}
#: Called by `%load_ext` and `%unload_ext`, not by users.
OF_IPYTHON = {"load_ipython_extension", "unload_ipython_extension"}


def test_public_names_are_these() -> None:
    assert list(tcompile.__all__) == sorted(FUNCTIONS | CLASSES | OBJECTS)
    assert set(vars(tcompile)) >= OF_IPYTHON
    assert dir(tcompile) == sorted(tcompile.__all__)


@pytest.mark.parametrize("name", sorted(FUNCTIONS | CLASSES | OBJECTS))
def test_public_name_is_that_of_its_package(name: str) -> None:
    inner = backend if name == "backend" else getattr(compiler if name == "open" else explorer, name)
    assert getattr(tcompile, name) is inner


@pytest.mark.parametrize("name", sorted(FUNCTIONS | CLASSES | OBJECTS))
def test_docstring_begins_with_a_short_line(name: str) -> None:
    """The first line stands alone in the docs and in a completer."""
    first = (inspect.getdoc(getattr(tcompile, name)) or "").splitlines()[0]
    assert 20 <= len(first) <= 90, first
    assert first.endswith((".", ":")), first


@pytest.mark.parametrize("name", sorted(FUNCTIONS | {"Run"}))
def test_docstring_has_an_example(name: str) -> None:
    examples = re.findall(r"^ *(?:>>>|\.\.\.) (.*)$", inspect.getdoc(getattr(tcompile, name)) or "", re.MULTILINE)
    assert any(re.search(rf"tcompile\.{name}\(|\brun\b|\"tcompile\"", example) for example in examples), examples


def members_of_run() -> list[str]:
    return [name for name in dir(tcompile.Run) if not name.startswith("_")]


@pytest.mark.parametrize("name", members_of_run())
def test_member_of_run_has_a_short_first_line(name: str) -> None:
    first = (inspect.getdoc(inspect.getattr_static(tcompile.Run, name)) or "").splitlines()[0]
    assert 10 <= len(first) <= 110, first
    assert first.endswith((".", ":")), first


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tcompile' has no attribute 'nothing'"):
        _ = tcompile.nothing
