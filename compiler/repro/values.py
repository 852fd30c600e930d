"""The inputs of a repro: shapes, strides, dtypes and ranges of values, and code that makes random ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MAKE_RANDOM = '''
def random_tensor(shape, stride, dtype, device, low, high, special=(), trains=False):
    """Random values from `low` to `high` in the same layout; `special` values (inf, nan) are at a few places."""
    elements = 1 + sum((size - 1) * step for size, step in zip(shape, stride)) if all(shape) else 0
    storage = torch.rand(elements, dtype=torch.float64) * (high - low) + low
    if dtype.is_complex:
        storage = torch.complex(storage, torch.rand(elements, dtype=torch.float64) * (high - low) + low)
    elif not dtype.is_floating_point:
        storage = torch.randint(low, high + 1, (elements,))
    for number, value in enumerate(special):
        storage[torch.rand(elements) < 0.1] = value
    tensor = storage.to(dtype).to(device).as_strided(shape, stride)
    return tensor.requires_grad_() if trains else tensor
'''


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """A tensor's layout, and the range of its finite values. `special` are infinities and NaN."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str
    low: float
    high: float
    special: tuple[float, ...] = ()
    trains: bool = False

    @classmethod
    def of_tensor(cls, tensor: Tensor) -> TensorFacts:
        trains = tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())
        tensor = tensor.detach()
        values = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        finite = values[values.isfinite()].double() if values.is_floating_point() else values
        low, high = (finite.min().item(), finite.max().item()) if finite.numel() else (0, 0)
        special = _special(values) if values.is_floating_point() else ()
        layout = (tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride())))
        return cls(*layout, tensor.dtype, str(tensor.device), low, high, special, trains)

    def code(self, *, trains: bool) -> str:
        """The call of `random_tensor` that makes a tensor like it."""
        special = "".join(
            f", special=({', '.join(f'float({str(value)!r})' for value in self.special)},)" * bool(self.special)
        )
        grad = ", trains=True" if trains and self.trains else ""
        low, high = (int(self.low), int(self.high)) if not self.dtype.is_floating_point else (self.low, self.high)
        where = f"{self.shape}, {self.stride}, {self.dtype}, {self.device!r}"
        return f"random_tensor({where}, {low!r}, {high!r}{special}{grad})"


def _special(values: Tensor) -> tuple[float, ...]:
    found = ((math.inf, values == math.inf), (-math.inf, values == -math.inf), (math.nan, values.isnan()))
    return tuple(value for value, where in found if bool(where.any()))


def facts_of(value: Any) -> Any:
    """TensorFacts for a tensor, a plain number for a number; None for what no code can make."""
    if isinstance(value, Tensor):
        ordinary = (
            value.layout == torch.strided and not value.is_quantized and type(value) in (Tensor, torch.nn.Parameter)
        )
        return TensorFacts.of_tensor(value) if ordinary else None
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.hint
    return value if isinstance(value, bool | int | float) else None
