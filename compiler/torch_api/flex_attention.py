"""FlexAttention for a GPU that is not here: its Python code treats CPU tensors as a GPU's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import cast

import torch.nn.attention.flex_attention as flex

_ASKING = tuple(cast("FunctionType", each) for each in (flex._validate_device, flex._apply_kernel_options))
"""The functions that compare the tensors' device with "cpu", to refuse a backward and auxiliary outputs."""


@contextmanager
def attend_as_on_gpu() -> Iterator[None]:
    """Let `flex_attention` take CPU tensors for a GPU's in the block: with a backward and all auxiliary outputs.

    TorchDynamo traces these functions and guards on them: with another constant in their code, they remain torch's own.
    """
    before = [function.__code__ for function in _ASKING]
    for function, code in zip(_ASKING, before, strict=True):
        constants = (None if constant == "cpu" else constant for constant in code.co_consts)
        function.__code__ = code.replace(co_consts=tuple(constants))
    try:
        yield
    finally:
        for function, code in zip(_ASKING, before, strict=True):
            function.__code__ = code
