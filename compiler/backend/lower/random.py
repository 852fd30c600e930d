"""Rules of what random operators are decomposed into: seeds, which one call draws for a graph, and functions of a seed
and an element's place, which count with Philox.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from compiler.backend.ir import Buffer, Strided
from compiler.backend.ir.expr import At, Expr, Op, Shape, operation
from compiler.backend.ir.index import Index
from compiler.backend.ir.index_maps import position
from compiler.backend.lower.pointwise import scalar
from compiler.backend.lower.value import Lowering, Rule, Tensor
from compiler.torch_api.fx import value_of


def seed(low: Lowering, node: Node, *_: Any) -> Tensor:
    device = str(value_of(node).device)
    name = f"random_seeds_{device.replace(':', '_')}"
    nodes = low.seeds.setdefault(name, [])
    place = Index.of(len(nodes))
    nodes.append(node.name)
    low.add(Buffer(name, torch.int64, (place + 1,), (Index.of(1),), device))
    return Tensor(name, torch.int64, (), lambda at: (place,), Strided(name, (), (), place))


def real(low: Lowering, node: Node, size: Sequence[Any], seed: Tensor, mode: str, **_: Any) -> Tensor:
    shape = tuple(map(Index.of, size))

    def value(at: Shape) -> Expr:
        return Op(mode, (seed.load(()), At(position(at, shape))), torch.float32)

    return low.fill(node.name, value_of(node), value)


def whole(low: Lowering, node: Node, least: int, end: int, size: Sequence[Any], seed: Tensor) -> Tensor:
    shape, count = tuple(map(Index.of, size)), scalar(end - least, torch.int64)

    def value(at: Shape) -> Expr:
        found = Op("randint", (seed.load(()), At(position(at, shape)), count), torch.int64)
        return operation("add", found, scalar(least, torch.int64))

    return low.fill(node.name, value_of(node), value)


RANDOM: dict[str, Rule] = {
    "prims.inductor_seed.default": seed,
    "prims.inductor_random.default": real,
    "prims.inductor_randint.default": whole,
}
