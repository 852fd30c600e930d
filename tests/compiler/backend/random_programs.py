"""Random programs of tensors: views, broadcasts, reductions, gathers, scatters, mutations, of many shapes and dtypes.

Values stay small whole numbers: an operation that would leave this range rounds and clamps. So sums are exact in any
order, and compiled and eager results must be equal. `benchmarks/backend_fuzz.py` runs more of them than the tests do,
and minimizes failures.
"""

# ruff: noqa: ARG005 every operation is given all that it may need

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from compiler.backend import backend, tcompile
from compiler.backend.ir import Program
from compiler.backend.passes.context import Context
from compiler.torch_api.patching import replace_attribute

MOST = 400
"""The maximum number of elements of a value."""
NEAR: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4, "equal_nan": True}
Unary = Callable[[Tensor, int], Tensor]
Binary = Callable[[Tensor, Tensor, int], Tensor]


def whole(x: Tensor, scale: float = 1.37) -> Tensor:
    """Round and clamp to small whole numbers, which removes rounding errors."""
    return (x.float() * scale).round().clamp(-16, 16)


def small(x: Tensor) -> Tensor:
    return x.float().clamp(-16, 16)


def rows(x: Tensor) -> Tensor:
    """The tensor with at least one dimension."""
    return x if x.dim() else x.reshape(1)


def dim(x: Tensor, k: int) -> int:
    return k % x.dim() - (x.dim() if k & 8 else 0)


def places(x: Tensor, size: int, shape: Sequence[int]) -> Tensor:
    """Data-dependent indices below `size`, in a given shape."""
    count = 1
    for length in shape:
        count *= length
    if not x.numel():
        return torch.zeros(shape, dtype=torch.int64, device=x.device)
    flat = x.reshape(-1)[torch.arange(count, device=x.device) % x.numel()]
    return (flat.float().abs().long() % size).reshape(shape)


def pictures(x: Tensor) -> Tensor:
    """The tensor as a batch of pictures, N C H W, large enough for a window."""
    x = x.reshape((1,) * (4 - x.dim()) + x.shape) if x.dim() < 4 else x.flatten(0, x.dim() - 4)
    return functional.pad(x, (0, max(0, 3 - x.shape[-1]), 0, max(0, 3 - x.shape[-2])))


def filters(x: Tensor, k: int) -> Tensor:
    """The weights of a convolution of the pictures from `x`."""
    picture = pictures(x.float())
    return (picture[:1, :, :2, :2].sign() + torch.tensor([[1.0, 0], [-1, k % 3]], device=x.device)).expand(
        2, *picture.shape[1:2], 2, 2
    )


def normalized(picture: Tensor, k: int) -> Tensor:
    """Batch norm by each channel's statistics, with the updated running statistics."""
    mean, spread = torch.zeros(2, picture.shape[1], device=picture.device).add(1).unbind()
    found = functional.batch_norm(picture, mean, spread, training=k % 4 > 0, momentum=0.5, eps=0.1)
    return whole(found + mean.view(1, -1, 1, 1) - spread.view(1, -1, 1, 1), 2.3)


ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    functional.elu, functional.hardswish, functional.mish, functional.softplus, functional.leaky_relu,
    functional.silu, functional.hardtanh, functional.selu, functional.logsigmoid, functional.softsign,
)  # fmt: skip
POINTWISE: dict[str, Unary] = {
    "neg": lambda x, k: -x,
    "abs": lambda x, k: x.abs(),
    "relu": lambda x, k: x.relu(),
    "sign": lambda x, k: x.sign(),
    "half": lambda x, k: (x / 2).floor(),
    "remainder": lambda x, k: x.remainder(k % 5 + 1),
    "sin": lambda x, k: whole(x.sin(), 5.3),
    "exp": lambda x, k: whole((-x.abs()).exp(), 7.3),
    "tanh": lambda x, k: whole(x.tanh(), 3.3),
    "gelu": lambda x, k: whole(functional.gelu(x.float())),
    "sigmoid": lambda x, k: whole(x.sigmoid(), 9.7),
    "isnan": lambda x, k: x.isnan(),
    "not": lambda x, k: x == 0,
    "above": lambda x, k: x > k % 4,
    "bfloat16": lambda x, k: x.bfloat16() + 1,
    "float16": lambda x, k: x.half() - 1,
    "int": lambda x, k: x.to((torch.int64, torch.int32, torch.int16, torch.uint8)[k % 4]),
    "double": lambda x, k: x.double() / 4,
    "number": lambda x, k: x * (k % 3) + k % 7 - 2,
    "power": lambda x, k: whole((x.abs() + 1).float().pow((0.5, 2, -1, 1.5)[k % 4])),
    "detach": lambda x, k: x.detach(),
    "clone": lambda x, k: x.clone(),
    "arange": lambda x, k: x + torch.arange(x.numel(), device=x.device).view(x.shape) % 5,
    "default": lambda x, k: x + torch.tensor(2.0),
}
REDUCTIONS: dict[str, Unary] = {
    "sum": lambda x, k: small(rows(x).sum(dim(rows(x), k), keepdim=bool(k & 16))),
    "total": lambda x, k: small(x.sum()),
    "sums": lambda x, k: small(rows(x).sum((0, -1) if rows(x).dim() > 1 else 0, keepdim=bool(k & 16))),
    "mean": lambda x, k: whole(rows(x).float().mean(dim(rows(x), k), keepdim=bool(k & 16))),
    "amax": lambda x, k: rows(x).amax(dim(rows(x), k), keepdim=bool(k & 16)),
    "amin": lambda x, k: rows(x).amin(dim(rows(x), k)),
    "max": lambda x, k: x.max(),
    "argmax": lambda x, k: rows(x).argmax(dim(rows(x), k), keepdim=bool(k & 16)),
    "argmin": lambda x, k: x.argmin() if k & 1 else rows(x).argmin(dim(rows(x), k)),
    "best": lambda x, k: rows(x).max(dim(rows(x), k)).values,
    "place": lambda x, k: rows(x).max(dim(rows(x), k)).indices,
    "any": lambda x, k: rows(x).any(dim(rows(x), k)),
    "all": lambda x, k: (x > -3).all(),
    "prod": lambda x, k: small(rows(x).clamp(-1, 2).prod(dim(rows(x), k))),
    "count": lambda x, k: rows(x).count_nonzero(dim(rows(x), k)),
    "var": lambda x, k: whole(rows(x).float().var(dim(rows(x), k), correction=0)),
    "std": lambda x, k: whole(rows(x).float().std(dim(rows(x), k), correction=0, keepdim=True)),
    "softmax": lambda x, k: whole(rows(x).float().softmax(dim(rows(x), k)), 10.3),
    "log_softmax": lambda x, k: whole(rows(x).float().log_softmax(dim(rows(x), k))),
    "logsumexp": lambda x, k: whole(rows(x).float().logsumexp(dim(rows(x), k))),
    "layer_norm": lambda x, k: whole(functional.layer_norm(rows(x).float(), rows(x).shape[-1:]), 2.3),
    "center": lambda x, k: whole(rows(x).float() - rows(x).float().mean(-1, keepdim=True)),
    "cumsum": lambda x, k: small(rows(x).cumsum(dim(rows(x), k))),
    "norm": lambda x, k: whole(rows(x).float().norm(dim=dim(rows(x), k))),
    "product": lambda x, k: (
        whole(rows(x).float().flatten(1) @ rows(x).float().flatten(1).t(), 0.37) if rows(x).dim() > 1 else x
    ),
    "max_pool": lambda x, k: functional.max_pool2d(pictures(x.float()), 2 + k % 2, 1 + k % 2, k % 2),
    "avg_pool": lambda x, k: whole(functional.avg_pool2d(pictures(x.float()), 2, 1 + k % 2)),
}
VIEWS: dict[str, Unary] = {
    "turn": lambda x, k: x.permute(tuple(reversed(range(x.dim())))),
    "swap": lambda x, k: rows(x).transpose(dim(rows(x), k), -1),
    "select": lambda x, k: rows(x).select(dim(rows(x), k), k % rows(x).shape[dim(rows(x), k)]),
    "narrow": lambda x, k: rows(x).narrow(dim(rows(x), k), 0, (rows(x).shape[dim(rows(x), k)] + 1) // 2),
    "later": lambda x, k: rows(x)[1:],
    "every other": lambda x, k: rows(x)[..., k % 2 :: 2],
    "unsqueeze": lambda x, k: x.unsqueeze(k % (x.dim() + 1)) if x.dim() < 5 else x,
    "squeeze": lambda x, k: x.squeeze(),
    "expand": lambda x, k: x.unsqueeze(0).expand(k % 3 + 1, *x.shape) if x.dim() < 5 else x[0],
    "spread": lambda x, k: rows(x)[..., :1].expand(*rows(x).shape),
    "flat": lambda x, k: x.reshape(-1),
    "split": lambda x, k: x.reshape(2, -1) if x.numel() % 2 == 0 else x.reshape(-1, 1),
    "thirds": lambda x, k: x.reshape(-1, 3) if x.numel() % 3 == 0 else x.reshape(1, -1),
    "flip": lambda x, k: rows(x).flip(dim(rows(x), k)),
    "roll": lambda x, k: rows(x).roll(k % 5, dim(rows(x), k)),
    "pad": lambda x, k: functional.pad(rows(x), (k % 3, k % 2), value=float(k % 2)),
    "cut": lambda x, k: functional.pad(rows(x), (-1, 1)),
    "twice": lambda x, k: torch.cat([rows(x), -rows(x).flip(0).to(torch.float32)], dim(rows(x), k)),
    "stack": lambda x, k: torch.stack([x, x.abs()], k % (x.dim() + 1)),
    "repeat": lambda x, k: rows(x).repeat(*[1] * (rows(x).dim() - 1), 2),
    "diagonal": lambda x, k: x.diagonal(dim1=-1, dim2=-2) if x.dim() > 1 else x,
    "tril": lambda x, k: (x.tril if k & 1 else x.triu)(k % 3 - 1) if x.dim() > 1 else x,
    "unfold": lambda x, k: rows(x).unfold(-1, 2, 1 + k % 2),
    "contiguous": lambda x, k: x.contiguous(),
    "halves": lambda x, k: torch.cat(rows(x).chunk(2, -1)[::-1], -1),
    "nearest": lambda x, k: functional.interpolate(pictures(x.float()), scale_factor=2)[0, 0],
    "empty": lambda x, k: rows(x)[:0] if k % 8 == 0 else rows(x)[:1],
}
INDEXING: dict[str, Unary] = {
    "pick": lambda x, k: rows(x)[places(x, rows(x).shape[0], (3,))],
    "pick two": lambda x, k: (
        x[places(x, x.shape[0], (2, 1)), :, places(-x, x.shape[-1], (3,))]
        if x.dim() > 2
        else rows(x)[places(x, rows(x).shape[0], (2, 2)) - rows(x).shape[0]]
    ),
    "gather": lambda x, k: rows(x).gather(-1, places(x, rows(x).shape[-1], rows(x).shape)),
    "index_select": lambda x, k: rows(x).index_select(0, places(x, rows(x).shape[0], (4,))),
    "embedding": lambda x, k: functional.embedding(
        places(x, rows(x).shape[0], (2, 3)), rows(x).reshape(len(rows(x)), -1)
    ),
    "scatter_add": lambda x, k: small(
        torch.zeros_like(rows(x)).scatter_add(-1, places(x, rows(x).shape[-1], rows(x).shape), rows(x))
    ),
    "index_add": lambda x, k: small(rows(x).index_add(0, places(x, len(rows(x)), (len(rows(x)),)), rows(x).flip(0))),
    "index_put": lambda x, k: small(rows(x).index_put((places(x, len(rows(x)), (2,)),), rows(x)[:1], accumulate=True)),
    "masked": lambda x, k: x.masked_fill(x > k % 4, 3),
    "slice_scatter": lambda x, k: rows(x).slice_scatter(rows(x)[..., :1] + 1, -1, 0, 1),
    "select_scatter": lambda x, k: rows(x).select_scatter(rows(x).select(-1, 0) * 2, -1, -1),
    "one_hot": lambda x, k: functional.one_hot(places(x, 4, (x.numel(),)), 4),
    "sort": lambda x, k: rows(x).sort(-1).values,
}
BINARY: dict[str, Binary] = {
    "add": lambda x, y, k: x + y,
    "sub": lambda x, y, k: x.float() - y,
    "mul": lambda x, y, k: small(x * y),
    "div": lambda x, y, k: whole(x / (y.float().abs() + 1)),
    "maximum": lambda x, y, k: torch.maximum(x, y),
    "where": lambda x, y, k: torch.where(x > y, x, y),
    "less": lambda x, y, k: x < y,
    "equal": lambda x, y, k: x == y,
    "both": lambda x, y, k: torch.logical_and(x, y),
    "lerp": lambda x, y, k: whole(torch.lerp(x.float(), y.float(), 0.3)),
    "joined": lambda x, y, k: torch.cat([rows(x), rows(y).to(torch.float32)], -1),
    "copied": lambda x, y, k: x.clone().copy_(y),
}
MUTATIONS: dict[str, Binary] = {
    "add_": lambda x, y, k: x.add_(y),
    "copy_": lambda x, y, k: x.copy_(y),
    "mul_": lambda x, y, k: x.mul_(k % 3 - 1),
    "store": lambda x, y, k: rows(x)[1:].copy_(rows(y)[:-1]),
    "fill": lambda x, y, k: rows(x)[..., k % rows(x).shape[-1]].fill_(k % 7),
    "masked_": lambda x, y, k: x.masked_fill_(y > 1, 2),
    "accumulate": lambda x, y, k: rows(x).index_add_(0, places(y, len(rows(x)), (len(rows(x)),)), rows(y).to(x.dtype)),
    "diagonal_": lambda x, y, k: rows(x).view(-1)[:: k % 4 + 1].add_(1),
}
USUAL = ("add", "mul", "where", "add_", "sum", "amax", "store")
NAMES = [*POINTWISE, *REDUCTIONS, *VIEWS, *INDEXING, *BINARY, *MUTATIONS, *USUAL]
"""The operations of programs whose seeds tests name."""
MORE: dict[str, Unary] = {
    "activation": lambda x, k: whole(ACTIVATIONS[k % len(ACTIVATIONS)](x.float())),
    "bits": lambda x, k: (x.long() ^ 5) & (x.long() << k % 3) | x.long().bitwise_not() >> 1,
    "choice": lambda x, k: torch.where(x > k % 4, x, (2, 1.5, -1, True)[k % 4]),
    "gaps": lambda x, k: torch.where(x > k % 4, float("nan"), x.float()).nan_to_num(k % 3),
    "bucketize": lambda x, k: torch.bucketize(
        x.float().contiguous(), torch.tensor([-3.0, 0, 3], device=x.device), right=bool(k & 1)
    ),
    "complex": lambda x, k: whole((torch.complex(x.float(), x.float() + 1) * (1 + 2j)).conj().imag),
    "cumprod": lambda x, k: small(rows(x).clamp(-1, 2).cumprod(dim(rows(x), k))),
    "logcumsumexp": lambda x, k: whole(rows(x).float().logcumsumexp(dim(rows(x), k))),
    "cummax": lambda x, k: rows(x).float().cummax(dim(rows(x), k))[k % 2],
    "topk": lambda x, k: rows(x).topk(min(2, rows(x).shape[dim(rows(x), k)]), dim(rows(x), k)).values,
    "argsort": lambda x, k: rows(x).argsort(stable=True, dim=dim(rows(x), k), descending=bool(k & 1)),
    "median": lambda x, k: rows(x).float().median(dim(rows(x), k)).values,
    "var_mean": lambda x, k: whole(torch.stack(torch.var_mean(rows(x).float(), dim(rows(x), k), correction=0))),
    "diff": lambda x, k: rows(x).float().diff(dim=dim(rows(x), k)),
    "batch_norm": lambda x, k: normalized(pictures(x.float()), k),
    "group_norm": lambda x, k: whole(functional.group_norm(pictures(x.float()), 1, eps=0.1), 2.3),
    "attention": lambda x, k: whole(functional.scaled_dot_product_attention(*[pictures(x.float())] * 3)),
    "cross_entropy": lambda x, k: whole(
        functional.cross_entropy(pictures(x.float()), places(x, pictures(x).shape[1], pictures(x)[:, 0].shape))
    ),
    "einsum": lambda x, k: small(torch.einsum("...i,...j->...ij", rows(x)[..., :3], rows(x)[..., :2])),
    "convolution": lambda x, k: small(functional.conv2d(pictures(x.float()), filters(x, k), padding=k % 3)),
    "as_strided": lambda x, k: x.contiguous().as_strided((x.numel() // 2, 2), (1, k % 2)),
    "rot90": lambda x, k: x.rot90(k % 4) if x.dim() > 1 else x,
    "mirrored": lambda x, k: functional.pad(
        pictures(x.float()), (1, k % 3, 2, 0), ("reflect", "replicate", "circular")[k % 3]
    ),
    "bilinear": lambda x, k: whole(
        functional.interpolate(pictures(x.float()), size=(5, 4), mode="bilinear", align_corners=bool(k & 1))
    ),
    "adaptive": lambda x, k: whole(functional.adaptive_avg_pool2d(pictures(x.float()), (2, 3))),
    "max_pool places": lambda x, k: functional.max_pool2d(pictures(x.float()), 2, 1, return_indices=True)[1],
    "repeat_interleave": lambda x, k: rows(x).repeat_interleave(2, dim(rows(x), k)),
    "unbind": lambda x, k: torch.stack(rows(x).unbind(dim(rows(x), k))[::-1], k % 2),
    "tensor_split": lambda x, k: torch.cat(rows(x).tensor_split(3, dim(rows(x), k))[1:], dim(rows(x), k)),
    "scatter": lambda x, k: rows(x).scatter(-1, places(x, rows(x).shape[-1], rows(x).shape), k % 5),
    "scatter_reduce": lambda x, k: small(
        rows(x).float().scatter_reduce(
            -1, places(x, rows(x).shape[-1], rows(x).shape), rows(x).float().clamp(-2, 2),
            ("amax", "amin", "sum", "mean", "prod")[k % 5], include_self=bool(k & 8),
        )
    ),
    "embedding_bag": lambda x, k: whole(
        functional.embedding_bag(
            places(x, len(rows(x)), (2, 3)),
            rows(x).float().reshape(len(rows(x)), -1),
            mode=("sum", "mean", "max")[k % 3],
        )
    ),
}  # fmt: skip
MORE_MUTATIONS: dict[str, Binary] = {
    "index_put_": lambda x, y, k: rows(x).index_put_(
        (places(y, len(rows(x)), (3,)),), rows(x)[:1] + 1, accumulate=True
    ),
    "scatter_": lambda x, y, k: rows(x).scatter_(-1, places(y, rows(x).shape[-1], rows(x).shape), k % 5),
    "clamp_": lambda x, y, k: x.clamp_(-(k % 5), 5),
    "turned_": lambda x, y, k: rows(x).transpose(0, -1).add_(rows(y).transpose(0, -1) if y.shape == x.shape else 1),
    "softmax_": lambda x, y, k: x.add_(whole(rows(x).float().softmax(dim(rows(x), k)), 5.3).view(x.shape)),
    "set": lambda x, y, k: rows(x).__setitem__((..., slice(k % 2, None, 2)), k % 7),
}
MUTATIONS |= MORE_MUTATIONS
UNARY = POINTWISE | REDUCTIONS | VIEWS | INDEXING | MORE
WIDE = [*NAMES, *MORE, *MORE_MUTATIONS]

_CALLS = ("topk", "argsort", "median", "cummax", "as_strided", "einsum", "convolution", "attention")
WRITES = [*VIEWS, *MUTATIONS, *MUTATIONS, *_CALLS, "pick", "flat", "diff", "half", "add", "sum"]
"""Operations for programs that write to views, and pass the result to extern calls."""
REFUSALS = ("modified by an inplace operation", "more than one element of the written-to tensor")
"""Parts of eager mode's error messages; the second occurs on GPUs only."""

Step = tuple[str, int, int, int]
"""An operation, the indices of its earlier values (modulo their number), and a number that selects a variant."""


def fitted(y: Tensor, x: Tensor) -> Tensor:
    """`y` itself if it broadcasts to `x`, else its elements repeated in the shape of `x`."""
    if y.dim() <= x.dim() and all(a in (1, b) for a, b in zip(reversed(y.shape), reversed(x.shape), strict=False)):
        return y
    if not y.numel() or not x.numel():
        return x
    return y.reshape(-1)[torch.arange(x.numel(), device=x.device) % y.numel()].view(x.shape)


def limited(x: Tensor) -> Tensor:
    while x.numel() > MOST:
        longest = max(range(x.dim()), key=lambda axis: x.shape[axis])
        x = x.narrow(longest, 0, x.shape[longest] // 2)
    return x


def step(values: list[Tensor], name: str, first: int, second: int, k: int) -> None:
    """Run a step: append its result, or mutate one of the values."""
    x, y = values[first % len(values)], values[second % len(values)]
    if name in UNARY:
        values.append(limited(UNARY[name](x, k)))
    elif name in BINARY:
        values.append(limited(BINARY[name](x, fitted(y, x), k)))
    else:
        MUTATIONS[name](x, fitted(y, x), k)


def program(steps: Sequence[Step]) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """A function that returns the last values of a program.

    The steps are in its source text, because TorchDynamo would treat numbers passed as arguments as sizes.
    """
    lines = "".join(f"    step(values, {', '.join(map(repr, one))})\n" for one in steps)
    names: dict[str, Any] = {"step": step}
    exec(f"def run(given):\n    values = list(given)\n{lines}    return values[len(given):][-4:]\n", names)
    made: Callable[[Sequence[Tensor]], list[Tensor]] = names["run"]
    return made


def inputs(device: str = "cpu", grow: int = 0) -> list[Tensor]:
    """Tensors of several layouts; with `grow`, other sizes for the same program."""
    make = torch.Generator().manual_seed(3)

    def numbers(*shape: int) -> Tensor:
        return torch.randint(-9, 10, shape, generator=make).float().to(device)

    return [
        numbers(4 + grow, 6),
        numbers(6, 5 + grow).t()[:, ::2],
        numbers(2, 4 + grow, 3),
        numbers(3),
        numbers(),
        numbers(2, 3, 8)[..., 1:7:2],
        torch.arange(12 + 2 * grow, device=device).view(2, -1) % 7,
    ]


def valid(steps: Sequence[Step], given: Sequence[Tensor]) -> list[Step]:
    """The steps that run in eager mode without an error."""
    kept, values = [], list(given)
    for one in steps:
        try:
            step(values, *one)
        except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
            continue
        kept.append(one)
    return kept


def drawn(seed: int, names: Sequence[str], most: int = 30) -> list[Step]:
    choose = random.Random(seed)
    count = choose.randint(1, most)
    return [
        (choose.choice(names), choose.randrange(99), choose.randrange(99), choose.randrange(32)) for _ in range(count)
    ]


@dataclass(frozen=True)
class Case:
    """How to run a program: for other sizes too, with gradients, or with inputs that share memory."""

    steps: Sequence[Step]
    device: str = "cpu"
    dynamic: bool = False
    gradients: bool = False
    shared: bool = False
    options: dict[str, Any] | None = None

    @property
    def grows(self) -> tuple[int, ...]:
        return (0, 2) if self.dynamic else (0,)

    def given(self, grow: int) -> list[Tensor]:
        made = inputs(self.device, grow)
        if self.shared:
            made[3] = made[0][0, :3]
        return [x.requires_grad_() if self.gradients and x.is_floating_point() else x for x in made]

    def results(self, call: Callable[[Sequence[Tensor]], list[Tensor]], grow: int) -> list[Any]:
        """The results, the inputs afterwards, and the gradients."""
        leaves = self.given(grow)
        given = [x + 0 if x.requires_grad else x for x in leaves]
        found = call(given)
        if not self.gradients:
            return [*found, *given]
        losses = [y.float().sum() for y in found if y.requires_grad]
        wanted = [x for x in leaves if x.requires_grad]
        made: Any = torch.autograd.grad(sum(losses), wanted, materialize_grads=True) if losses else ()  # type: ignore[arg-type]
        return [*(y.detach() for y in found), *(x.detach() for x in given), *made]


def compiled_results(case: Case, backend: Any, options: dict[str, Any] | None = None) -> list[list[Any]]:
    torch.compiler.reset()
    call = torch.compile(program(case.steps), backend=backend, dynamic=case.dynamic, options=options, fullgraph=True)
    return [case.results(call, grow) for grow in case.grows]


AGREES, NOT_EAGER, NOT_TORCH = "agrees", "refused by eager mode", "refused by torch's own backends, too"


def check(case: Case) -> str:
    """Compare a program with eager mode.

    Raises AssertionError if a result differs, or the error of the compilation. Returns the error instead if torch does
    not support the program either: a gradient of an overwritten value, or a case in `not_torch`. If torch's capture
    differs from eager mode, the captured program counts, as torch itself runs it.
    """
    try:
        expected = [case.results(program(case.steps), grow) for grow in case.grows]
    except RuntimeError as error:
        if not any(words in str(error) for words in REFUSALS):
            raise
        return NOT_EAGER
    try:
        found = compiled_results(case, tcompile, case.options)
    except torch.AcceleratorError:
        raise  # after this error nothing runs on the GPU any more
    except Exception as error:
        if not_torch(replace(case, device="cpu"), error):
            return NOT_TORCH
        raise
    if differ(found, expected) and differ(captured := compiled_results(case, "aot_eager"), expected):
        expected = captured
    torch.testing.assert_close(found, expected, **NEAR)
    return AGREES


def not_torch(case: Case, error: Exception) -> bool:
    """Whether torch can't compile a program either: capture fails, or its partition raises the same error.

    (The partitioner saves an input for the backward that the program overwrites, and eager mode does not need it:
    `torch.compile`'s own default backend raises, too.)
    """
    try:
        compiled_results(case, "aot_eager")
    except Exception:  # noqa: BLE001 it is the same capture
        return True
    try:
        compiled_results(case, "aot_eager_decomp_partition")
    except Exception as other:  # noqa: BLE001 it may be the same
        return (type(other), str(other).partition(":")[0]) == (type(error), str(error).partition(":")[0])
    return False


@contextmanager
def as_for_a_gpu(run: Callable[[Program, Context], Any] = backend.interpret_triton) -> Iterator[None]:
    """Compile programs on the CPU for an H100, with its multiprocessors and its cache.

    `run` says what runs them; the default is Triton's interpreter.
    """
    with (
        replace_attribute(backend, "properties", lambda _original: lambda _module: (132, 50 * 2**20)),
        replace_attribute(
            backend, "compile_program", lambda _original: lambda program, ctx, _options: run(program, ctx)
        ),
    ):
        yield


def differ(found: list[list[Any]], expected: list[list[Any]]) -> bool:
    try:
        torch.testing.assert_close(found, expected, **NEAR)
    except AssertionError:
        return True
    return False


def case_of(
    seed: int, device: str = "cpu", options: dict[str, Any] | None = None, names: Sequence[str] = NAMES
) -> Case:
    """The case of a seed: every other one runs for two sizes or with gradients."""
    case = Case(drawn(seed, names), "cpu", seed % 4 == 1, seed % 4 == 2, seed % 8 == 3, options)
    for grow in (2, 0) if case.dynamic else (0,):  # on the CPU, because a GPU error ends the process
        given = [x + 0 if x.requires_grad else x for x in case.given(grow)]
        case = replace(case, steps=valid(case.steps, given))
    return replace(case, device=device)
