"""`%%tcompile --xray`, and the patched cell: the user's own text, magics included."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from explorer.run.run import Run

CELL = """%%tcompile --xray -o run --stages captured --backend eager
def scaled(x):
    y = x / x.sum().item()  # scale
    return y + 1

scaled(torch.rand(4))"""
SETUP = """%precision 3
import torch
def scaled(x):
    return x / x.sum().item()"""


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    shell.run_line_magic("load_ext", "tcompile")
    yield shell
    shell.run_line_magic("unload_ext", "tcompile")
    InteractiveShell.clear_instance()


def ran(shell: InteractiveShell, cell: str) -> str:
    with capture_output() as captured:
        result = shell.run_cell(cell, store_history=True)
    result.raise_error()
    return captured.stdout + "".join(output.data.get("text/plain", "") for output in captured.outputs)


def test_magic_x_rays_the_cell_and_patches_its_own_text(shell: InteractiveShell) -> None:
    shown = ran(shell, "import torch") + ran(shell, CELL)
    assert "x-ray: 1 site\n" in shown
    assert "fix: verified" in shown
    run = shell.user_ns["run"]
    assert isinstance(run, Run)
    assert run.patch().cell() == CELL.replace(".item()", ".detach()") + "\n"
    run.xray().new_cell()
    shell.payload_manager.clear_payload()


def test_function_of_an_earlier_cell_is_patched_there(shell: InteractiveShell) -> None:
    ran(shell, SETUP)
    ran(shell, "%%tcompile -o run --stages captured --backend eager\nscaled(torch.rand(4))")
    patch = shell.user_ns["run"].patch()
    assert patch.cell() == SETUP.replace(".item()", ".detach()") + "\n"


def test_cell_that_compiles_itself_is_told_that_there_is_no_call(shell: InteractiveShell) -> None:
    code = "torch.compile(lambda x: x.sum().item(), backend='eager')(torch.ones(2))"
    assert "this run has no call to x-ray" in ran(shell, f"%%tcompile --xray -o run --stages captured\n{code}")
