"""Random numbers of NumPy in compiled code, which come from torch's generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch._numpy.random as torchs_random
from torch._numpy._ndarray import ndarray

from compiler.torch_api.patching import call_instead, replace_attribute


@contextmanager
def numpy_draws_from_torch() -> Iterator[None]:
    """Let functions of `numpy.random` that the block calls give the numbers that they give in compiled code."""
    with ExitStack() as stack:
        for name in torchs_random.__all__:
            if name != "seed":
                stack.enter_context(replace_attribute(np.random, name, call_instead(_draw_from_torch(name))))
        yield


def _draw_from_torch(name: str) -> Callable[..., Any]:
    function = getattr(torchs_random, name)

    def draw(_original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        return value.tensor.numpy() if isinstance(value, ndarray) else value

    return draw
