"""Pairs of results for the recorded verdicts of every comparison with eager.

All numbers come from whole numbers and powers of two, so that they are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from compiler.numerics.policy.judge import TOLERANCE

Named = list[tuple[str, Tensor]]
FORMATS = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
OF_TOLERANCE = {"a quarter": 0.25, "twice": 2.0, "8 times": 8.0, "12 times": 12.0, "100 times": 100.0}
OF_ROUNDINGS = (1, 8, 32, 200)
INF, NAN = float("inf"), float("nan")


@dataclass(frozen=True)
class Case:
    """Results of a call: of compiled code, of eager, and in float64 if known.

    `narrowest` is a narrower dtype of an intermediate result.
    """

    name: str
    mine: Named
    eager: Named
    exact: Named | None = None
    narrowest: torch.dtype | None = None


def cases() -> Iterator[Case]:
    """Every case, with a unique name."""
    for name, dtype in FORMATS.items():
        yield from _of_format(name, dtype)
        yield from _against_float64(name, dtype)
    yield from _of_narrower_formats()
    yield from _of_small_numbers()
    yield from _without_numbers()
    yield from _of_other_types()
    yield from _of_other_layouts()


def _values(dtype: torch.dtype) -> Tensor:
    """16 values from 1/8 to 2 that every dtype represents exactly."""
    return (torch.arange(1, 17, dtype=torch.float64) / 8).to(dtype)


def _case(
    name: str, mine: Tensor, eager: Tensor, exact: Tensor | None = None, narrowest: torch.dtype | None = None
) -> Case:
    return Case(name, [("y", mine)], [("y", eager)], None if exact is None else [("y", exact)], narrowest)


def _off(eager: Tensor, error: float, place: int = 0) -> Tensor:
    """Eager's values with an error in one element, in the same dtype."""
    mine = eager.double().clone()
    mine[place] += error
    return mine.to(eager.dtype)


def _of_format(name: str, dtype: torch.dtype) -> Iterator[Case]:
    eager, unit, allowed = _values(dtype), torch.finfo(dtype).eps, TOLERANCE[dtype]
    yield _case(f"{name}, equal", eager.clone(), eager)
    yield _case(f"{name}, one unit in the last place of a small value", _off(eager, unit / 8), eager)
    for count in OF_ROUNDINGS:
        yield _case(f"{name}, {count} units in the last place of the largest", _off(eager, count * unit * 2, 15), eager)
    for words, times in OF_TOLERANCE.items():
        yield _case(f"{name}, {words} the tolerance", _off(eager, times * allowed * 2, 15), eager)
    yield _case(f"{name}, other numbers", -eager, eager)


def _against_float64(name: str, dtype: torch.dtype) -> Iterator[Case]:
    """Errors beyond the tolerance, with eager on the other side of float64, or with float64 far from both."""
    eager, error = _values(dtype), 2 * TOLERANCE[dtype] * 2
    mine = _off(eager, error, 15)
    for own in (1.0, 0.6, 0.4):  # so ours is 2, 2.7 and 3.5 times as far from float64 as eager
        exact = _off(eager.double(), -own * error, 15)
        yield _case(f"{name}, beyond the tolerance, {1 + 1 / own:.1f} times as far from float64", mine, eager, exact)
    yield _case(f"{name}, beyond the tolerance, eager is float64", mine, eager, eager.double())
    yield _case(f"{name}, beyond the tolerance, nearer to float64", mine, eager, _off(eager.double(), error, 15))
    for far in (0.05, 0.2, 0.5):
        exact = _off(eager.double(), -far * 2, 15)
        yield _case(
            f"{name}, 12 times the tolerance, float64 is off by {far}", _off(eager, 6 * error, 15), eager, exact
        )


def _of_narrower_formats() -> Iterator[Case]:
    eager = _values(torch.float32)
    for name in ("fp16", "bf16"):
        allowed = TOLERANCE[FORMATS[name]]
        for words in ("a quarter", "twice"):
            mine = _off(eager, OF_TOLERANCE[words] * allowed * 2, 15)
            yield _case(f"fp32 by way of {name}, {words} its tolerance", mine, eager, None, FORMATS[name])


def _of_small_numbers() -> Iterator[Case]:
    """Zeros and numbers close to zero, alone and next to larger results of the same call."""
    for name, dtype in FORMATS.items():
        zeros, tiny = torch.zeros(4, dtype=dtype), torch.finfo(dtype).smallest_normal
        denormal = torch.full((4,), tiny / 2, dtype=dtype)
        yield _case(f"{name}, 0 and -0", -zeros, zeros)
        yield _case(f"{name}, denormal numbers for 0", denormal, zeros)
        yield _case(f"{name}, 0 for denormal numbers", zeros, denormal)
        yield _case(f"{name}, the smallest normal numbers, twice as large", 2 * (zeros + tiny), zeros + tiny)
        unit, large = torch.finfo(dtype).eps, _values(dtype)
        for count in (4, 12, 48, 1000):
            small = torch.full((4,), count * unit * 2, dtype=dtype)
            yield Case(
                f"{name}, {count} units of the largest result for 0 in another",
                [("small", small), ("large", large)], [("small", zeros), ("large", large)],
            )  # fmt: skip
        yield _case(f"{name}, half of a small number", zeros + 2**-10, zeros + 2**-11)


def _without_numbers() -> Iterator[Case]:
    for name, dtype in FORMATS.items():
        eager = _values(dtype)
        yield _case(f"{name}, NaN in both", _with(eager, NAN), _with(eager, NAN))
        yield _case(f"{name}, NaN in both and an error", _off(_with(eager, NAN), 1, 8), _with(eager, NAN))
        yield _case(f"{name}, NaN in mine", _with(eager, NAN), eager)
        yield _case(f"{name}, NaN in eager's", eager, _with(eager, NAN))
        yield _case(f"{name}, NaN at another place", _with(eager, NAN, 1), _with(eager, NAN))
        yield _case(f"{name}, infinity in both", _with(eager, INF), _with(eager, INF))
        yield _case(f"{name}, infinity in both, one unit in the last place",
                    _off(_with(eager, INF), torch.finfo(dtype).eps, 7), _with(eager, INF))  # fmt: skip
        yield _case(f"{name}, infinity of the other sign", _with(eager, -INF), _with(eager, INF))
        yield _case(f"{name}, infinity for the largest number",
                    _with(eager, INF), _with(eager, torch.finfo(dtype).max))  # fmt: skip
        yield _case(f"{name}, infinity in both, and in float64", *[_with(eager, INF)] * 2, _with(eager, INF).double())


def _with(tensor: Tensor, value: float, place: int = 0) -> Tensor:
    found = tensor.clone()
    found[place] = value
    return found


def _of_other_types() -> Iterator[Case]:
    for dtype in (torch.int64, torch.int32, torch.uint8):
        eager, name = torch.arange(16).to(dtype), str(dtype).removeprefix("torch.")
        yield _case(f"{name}, equal", eager.clone(), eager)
        yield _case(f"{name}, one value off by 1", _with(eager, 1), eager)
    big = torch.tensor([2**62, 1])
    yield _case("int64, off by 1 where float64 has no such number", big + 1, big)
    flags = torch.arange(1024) % 2 == 0
    yield _case("bool, equal", flags.clone(), flags)
    yield _case("bool, one of 1,024", _with(flags, False), flags)
    yield _case("bool, all", ~flags, flags)
    for dtype, part in ((torch.complex64, torch.float32), (torch.complex128, torch.float64)):
        eager, name = torch.complex(_values(part), _values(part)), str(dtype).removeprefix("torch.")
        allowed = TOLERANCE[part]
        yield _case(f"{name}, equal", eager.clone(), eager)
        yield _case(f"{name}, a quarter the tolerance", eager + allowed / 2, eager)
        yield _case(f"{name}, 100 times the tolerance", eager + 200 * allowed, eager)
        yield _case(f"{name}, conjugate", eager.conj(), eager)
    eighths = _values(torch.float32).to(torch.float8_e4m3fn)
    yield _case("float8_e4m3fn, equal", eighths.clone(), eighths)
    yield _case("float8_e4m3fn, other numbers", (-_values(torch.float32)).to(torch.float8_e4m3fn), eighths)


def _of_other_layouts() -> Iterator[Case]:
    eager = _values(torch.float32)
    square = eager.reshape(4, 4)
    yield _case("fp32, other strides", square.t().contiguous().t(), square)
    yield _case("fp32, transposed", square.t(), square)
    yield _case("fp32, another shape", square, eager)
    yield _case("fp32, a shape that broadcasts", torch.ones(1), torch.ones(4))
    yield _case("fp32 for fp64", eager, eager.double())
    yield _case("fp16 for fp32", eager.half(), eager)
    yield _case("int64 for int32", torch.arange(4), torch.arange(4, dtype=torch.int32))
    yield _case("empty", torch.empty(0), torch.empty(0))
    yield _case("empty, another shape", torch.empty(0, 2), torch.empty(0, 3))
    yield _case("a single number", torch.tensor(1.0), torch.tensor(1.0))
    yield _case("a single number, off", torch.tensor(1.0), torch.tensor(1.001))
    yield Case(
        "fp32 and int64, one of each off",
        [("y", eager * 2), ("n", torch.arange(4) + 1)], [("y", eager), ("n", torch.arange(4))],
    )  # fmt: skip
