"""The settings that the installed torch.compile accepts, and its compiled functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from compiler.torch_api import settings


def f(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def compiled(fn: Any) -> Any:
    return torch.compile(fn, backend="eager")


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @torch.compile(backend="eager")
    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return self(x).sum()


class NetWithCompiledForward(torch.nn.Module):
    @torch.compile(backend="eager")
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def compiled_in_place() -> Net:
    net = Net()
    net.compile(backend="eager")
    return net


@functools.wraps(compiled(f))
def wrapper(x: torch.Tensor) -> torch.Tensor:
    return x


@pytest.mark.parametrize(
    "made",
    [lambda: compiled(f), lambda: compiled(Net()), compiled_in_place, NetWithCompiledForward, lambda: Net().loss],
)
def test_result_of_torch_compile_is_compiled(made: Callable[[], Any]) -> None:
    assert settings.is_compiled(made())


@pytest.mark.parametrize("target", [f, Net(), Net().forward, torch.compiler.disable(f), wrapper, Mock(), len, 3])
def test_other_functions_are_not_compiled(target: Any) -> None:
    assert not settings.is_compiled(target)


def test_settings_have_their_declared_type() -> None:
    known = settings.inductor_settings()
    assert known["max_autotune"] is bool
    assert known["triton.cudagraphs"] is bool


def test_documented_modes_exist() -> None:
    assert {"default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"} <= settings.modes().keys()


def test_backends_for_debugging_are_known_but_not_advertised() -> None:
    assert "eager" in settings.backends()
    assert "eager" not in settings.advertised_backends()
    assert "inductor" in settings.advertised_backends()
