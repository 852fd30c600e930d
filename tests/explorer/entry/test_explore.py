"""explorer.explore: one call from Python."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.export.pt2_archive._package import AOTICompiledModel

import explorer
from compiler.record.options import OptionError


def f(x: torch.Tensor, w: float = 2.0) -> torch.Tensor:
    return torch.sin(x) * w


def fails(x: torch.Tensor) -> torch.Tensor:
    raise LookupError("the user's own")


async def awaited(x: torch.Tensor) -> torch.Tensor:
    return x


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return self(x).sum()


X = torch.ones(3)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [(f, f(X)), (Net(), X + 1), (Net().loss, torch.tensor(6.0)), (functools.partial(f, w=3.0), f(X, 3.0))],
    ids=["function", "module", "method", "partial"],
)
def test_a_call_is_made_and_recorded(fn: Any, expected: torch.Tensor) -> None:
    run = explorer.explore(fn, X, backend="eager")
    assert torch.equal(run.value, expected)
    assert run["captured"].text


def test_keyword_arguments_are_passed_by_kwargs() -> None:
    assert torch.equal(explorer.explore(f, X, kwargs={"w": 5.0}, backend="eager").value, f(X, 5.0))


class Labelled(torch.nn.Module):
    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None, **more: Any) -> torch.Tensor:
        return (x if labels is None else x - labels) * more.get("factor", 1)


def test_argument_passed_as_option_suggests_kwargs() -> None:
    model = Labelled()
    with pytest.raises(OptionError, match=r"labels is no option .* Labelled takes it: .*kwargs=\{'labels': …\}"):
        explorer.explore(model, X, labels=X)
    with pytest.raises(OptionError, match=r"mask, w are no option.*kwargs=\{'mask': …, 'w': …\}"):
        explorer.explore(model, X, mask=X, w=1)
    with pytest.raises(OptionError, match=r"w is no option of explore, but f takes it"):
        explorer.explore(f, X, w=5.0)
    with pytest.raises(OptionError, match=r"did you mean fullgraph="):
        explorer.explore(f, X, fulgraph=True)
    assert torch.equal(explorer.explore(model, X, kwargs={"labels": X, "factor": 2}, backend="eager").value, X - X)


def test_options_are_in_the_record() -> None:
    run = explorer.explore(f, X, backend="eager", dynamic=True)
    assert (run.record.options.backend, run.record.options.dynamic) == ("eager", True)


def test_wrong_option_is_refused_before_the_call() -> None:
    with pytest.raises(OptionError, match=r"model\.train\(\)"):
        explorer.explore(fails, X, mode="training")


def test_exception_of_the_function_is_raised() -> None:
    with pytest.raises(LookupError, match="the user's own"):
        explorer.explore(fails, X, backend="eager")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (3, "explore takes a function or module and then its arguments; got int"),
        (Net, "Net can't be explored: it is a class"),
        (len, "len can't be explored: it is built in"),
        (torch.jit.script(torch.nn.ReLU()), "RecursiveScriptModule can't be explored: it is TorchScript"),
        (torch.jit.script(torch.nn.ReLU()).forward, "can't be explored: it is TorchScript"),
        (torch.jit.script(torch.nn.ReLU()).__call__, "can't be explored: it is TorchScript"),
        pytest.param(
            AOTICompiledModel.__new__(AOTICompiledModel),
            "it is a package of AOTInductor, .*; explore the model that",
            id="package",
        ),
        (awaited, "awaited can't be explored: it is async"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_uncompilable_object_is_refused(what: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        explorer.explore(what, X)


def test_importing_the_package_needs_neither_torch_nor_ipython() -> None:
    heavy = {"torch", "IPython", "ipywidgets", "pandas"}
    code = (
        "import sys, explorer; [getattr(explorer, name) for name in explorer.__all__]; "
        f"sys.exit(', '.join({heavy} & sys.modules.keys()) or None)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stderr == ""
