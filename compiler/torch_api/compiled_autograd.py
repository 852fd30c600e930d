"""Compiled autograd, in which TorchDynamo traces the backward including its Python hooks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch._dynamo.compiled_autograd as compiled_autograd
from torch._C._dynamo import compiled_autograd as settings

from compiler.torch_api.patching import call_hidden_before, replace_attribute


def is_enabled() -> bool:
    """Whether compiled autograd would compile a backward that runs now."""
    return compiled_autograd.compiled_autograd_enabled


def call_before_enabling(act: Callable[[], None]) -> AbstractContextManager[None]:
    """Call `act` in the block whenever compiled autograd is about to be enabled."""

    def act_if_enabled(compiler: Any, _dynamic: Any) -> None:
        if compiler is not None:
            act()

    return replace_attribute(settings, "set_autograd_compiler", call_hidden_before(act_if_enabled))
