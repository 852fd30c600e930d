"""Simplified indices keep their value: compared with plain integer arithmetic, point by point."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest
import torch

from compiler.backend.ir.expr import Expr, Load, loads, operation, rebuilt
from compiler.backend.ir.index import (
    Index,
    Indirect,
    Symbol,
    Var,
    evaluate,
    is_below,
    is_bijective,
    is_natural,
    product,
    substitute,
)

S, T = Index.of(Symbol("s0")), Index.of(Symbol("s1"))
SIZES = ((1, 1), (2, 3), (3, 2), (5, 4))
Meaning = Callable[[dict[str, int]], int]


def random_index(choose: random.Random, variables: Sequence[Var], depth: int) -> tuple[Index, Meaning]:
    """A random index, and its meaning in plain Python."""
    if depth == 0 or choose.random() < 0.2:
        var = choose.choice([None, *variables, *variables])
        if var is None:
            number = choose.randint(0, 12)
            return Index.of(number), lambda _: number
        return Index.of(var), lambda at: at[var.name]
    left, left_means = random_index(choose, variables, depth - 1)
    sign = choose.choice("++-*//%%")
    if sign in "+-":
        right, right_means = random_index(choose, variables, depth - 1)
        if sign == "+":
            return left + right, lambda at: left_means(at) + right_means(at)
        return left - right, lambda at: left_means(at) - right_means(at)
    by: Index = choose.choice([Index.of(n) for n in (2, 3, 4, 6, 8, 12, 24)] + [S, T, S * 2, S * T])
    if sign == "*":
        return left * by, lambda at: left_means(at) * evaluate(by, at)
    if sign == "/":
        return left // by, lambda at: left_means(at) // evaluate(by, at)
    return left % by, lambda at: left_means(at) % evaluate(by, at)


def points(variables: Sequence[Var], sizes: tuple[int, int]) -> list[dict[str, int]]:
    known = dict(zip(("s0", "s1"), sizes, strict=True))
    ranges = [range(evaluate(var.size, known)) for var in variables]
    names = [var.name for var in variables]
    return [known | dict(zip(names, point, strict=True)) for point in itertools.product(*ranges)]


@pytest.mark.parametrize("seed", range(8))
def test_simplified_index_keeps_its_value(seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(150):
        variables = [
            Var("i0", Index.of(choose.choice([1, 2, 3, 4, 6, 8]))),
            Var("i1", choose.choice([S, T, Index.of(4), S * 2])),
            Var("i2", Index.of(choose.choice([2, 3, 8]))),
        ]
        index, means = random_index(choose, variables, depth=4)
        for sizes in SIZES:
            for at in points(variables, sizes):
                assert evaluate(index, at) == means(at), f"{index} at {at}"


def test_nothing_is_assumed_about_possibly_negative_symbols() -> None:
    k = Index.of(Symbol("k", is_size=False))
    i, j = Index.of(Var("i0", Index.of(6))), Index.of(Var("i1", Index.of(6) - k))
    assert not any(map(is_natural, (k, k + 3, S + k, k * k, Index.of(5) - j, S * k - i * k, (i - k) // 4)))
    assert is_natural((i - k) % 4)
    assert is_natural(S)
    assert k != Index.of(Symbol("k"))


@pytest.mark.parametrize("seed", range(4))
def test_proven_bound_holds_at_every_point(seed: int) -> None:
    choose, certain = random.Random(seed), 0
    for _ in range(200):
        variables = [Var("i0", S), Var("i1", Index.of(choose.choice([2, 3, 8])))]
        index, means = random_index(choose, variables, depth=2)
        limit: Index = choose.choice([Index.of(8), Index.of(24), S * 8, S * T * 4])
        if is_below(index, limit):
            certain += 1
            for sizes in SIZES:
                for at in points(variables, sizes):
                    assert means(at) < evaluate(limit, at), f"{index} < {limit} at {at}"
    assert certain > 20


@pytest.mark.parametrize("seed", range(4))
def test_one_to_one_loop_visits_each_element_once(seed: int) -> None:
    choose, certain = random.Random(seed), 0
    for _ in range(300):
        ranges = [Var(f"i{n}", choose.choice([Index.of(2), Index.of(6), S])) for n in range(choose.randint(1, 3))]
        shape, coordinates = reshaped(choose, ranges)
        if not is_bijective(tuple(coordinates), tuple(shape), tuple(ranges)):
            continue
        certain += 1
        for sizes in SIZES[1:]:
            met = [tuple(evaluate(place, at) for place in coordinates) for at in points(ranges, sizes)]
            known = dict(zip(("s0", "s1"), sizes, strict=True))
            assert len(set(met)) == len(met) == evaluate(product(shape), known)
    assert certain > 100


def reshaped(choose: random.Random, ranges: Sequence[Var]) -> tuple[list[Index], list[Index]]:
    """A shape, and coordinates in it for each point of the ranges: a permutation, concatenated parts, or a mistake."""
    order = choose.sample(ranges, len(ranges))
    position, size = Index.of(0), Index.of(1)
    for var in order:
        position, size = position * var.size + var, size * var.size
    if choose.random() < 0.2:
        position = position * choose.choice([0, 2])
    inner = choose.choice([order[-1].size, Index.of(2), Index.of(3)])
    if (size % inner).constant == 0:
        return [size // inner, inner], [position // inner, position % inner]
    return [size], [position]


def test_views_of_views_simplify_to_the_original() -> None:
    b, t, c = (Var(name, size) for name, size in (("b", S), ("t", T), ("c", Index.of(8))))
    flat = (Index.of(b) * T + t) * 8 + c
    assert [str(flat // (T * 8)), str(flat // 8 % T), str(flat % 8)] == ["b", "t", "c"]
    k = Index.of(Var("k", S * T * 8))
    assert k // (T * 8) * T * 8 + k // 8 % T * 8 + k % 8 == k
    image = k % (T * 64)  # one range for several dimensions, split into rows and columns again
    assert image // 8 * 8 + image % 8 == image
    assert image // (T * 8) == k // (T * 8) % 8


def test_same_named_variables_of_different_sizes_stay_distinct() -> None:
    small, large = Index.of(Var("i", Index.of(4))), Index.of(Var("i", Index.of(64)))
    assert (small // 8).constant == 0
    assert (large // 8).constant is None
    assert small != large


def test_substitution_simplifies_again() -> None:
    i, j = Var("i", Index.of(8)), Var("j", Index.of(4))
    index = Index.of(Var("k", Index.of(32))) // 4
    assert substitute(index, {"k": Index.of(i) * 4 + j}) == Index.of(i)


def test_load_is_renamed_everywhere() -> None:
    """In an index that is read, in an index used as a number, and in nested indices."""
    i = Index.of(Var("i", Index.of(8)))
    held = Index.of(Indirect(Load("places", (i,), torch.int64), Index.of(8)))
    place = Index.of(Indirect(held // Index.of(2) + Index.of(1), Index.of(8)))
    value = operation("add", held % Index.of(3), Load("numbers", (place,), torch.int64))

    def renamed(part: Expr) -> Expr | None:
        return Load("others", part.index, part.dtype) if isinstance(part, Load) and part.buffer == "places" else None

    assert [load.buffer for load in loads(value)].count("places") == 2
    assert {load.buffer for load in loads(rebuilt(value, renamed))} == {"others", "numbers"}
