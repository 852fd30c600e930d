"""Equal modules that follow each other are one stack; modules that differ in anything are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.record import Artifact, Entity
from explorer.reading.stacks import folded_rows, names_of_stacks, stacks_of
from explorer.run.payload import artifact_parts


def layer(number: int, width: int = 8, first: str = "linear") -> list[Entity]:
    attrs = {"module": f"model.layers.{number}", "shape": [width], "dtype": "float32"}
    return [
        Entity(f"g.a{number}", "call", f"a{number}", attrs | {"target": first}, (f"g.b{number - 1}",)),
        Entity(f"g.b{number}", "call", f"b{number}", attrs | {"target": "relu"}, (f"g.a{number}",)),
    ]


def graph(*layers: list[Entity]) -> Artifact:
    nodes = tuple(node for each in layers for node in each)
    lines = {number: (node.id,) for number, node in enumerate(nodes, 1)}
    return Artifact("g", "forward", "graph", "python", "x\n" * len(nodes), lines=lines, entities=nodes)


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        (map(layer, range(32)), ["0–31 × 32"]),
        (map(layer, reversed(range(4))), ["3–0 × 4"]),
        (map(layer, (0, 1)), []),
        (map(layer, (0, 1, 3, 4)), []),
        ([layer(0, first="embedding"), *map(layer, range(1, 5))], ["1–4 × 4"]),
        ((layer(number, width=8 + number) for number in range(9)), []),
        ([*map(layer, range(3)), *(layer(number, 4) for number in range(3, 7))], ["0–2 × 3", "3–6 × 4"]),
    ],
)
def test_runs_of_equal_modules_are_stacks(layers: object, names: list[str]) -> None:
    assert [stack.name for stack in stacks_of(graph(*layers))] == names


def test_wiring_inside_a_module_counts() -> None:
    layers = [layer(number) for number in range(4)]
    layers[2][1] = replace(layers[2][1], inputs=("g.b1",))
    assert stacks_of(graph(*layers)) == []


def test_constants_in_the_text_count_but_not_names_and_random_seeds() -> None:
    artifact = graph(*map(layer, range(4)))
    calls = ("linear(view_{0}, 0.5, [8, 1])", "relu(a{0}, 2e-05);  a{0} = None")
    rows = [f'n: "f32[8]" = {call.format(number)}' for number in range(4) for call in calls]
    assert stacks_of(replace(artifact, text="\n".join(rows)))
    seeds = [row.replace("relu(", f"lookup_seed({number}, ") for number, row in enumerate(rows)]
    assert stacks_of(replace(artifact, text="\n".join(seeds)))
    for old, new in (("0.5", "0.25"), ("[8, 1]", "[4, 2]"), ("2e-05", "2e-06")):
        changed = [*rows[:4], rows[4].replace(old, new), rows[5].replace(old, new), *rows[6:]]
        assert stacks_of(replace(artifact, text="\n".join(changed))) == []


def test_all_layers_but_the_first_are_folded() -> None:
    artifact = graph(*map(layer, range(5)))
    stacks = stacks_of(artifact)
    assert folded_rows(artifact, stacks) == [(1, 9, "4 more modules equal to model.layers.0")]
    assert names_of_stacks(stacks)["g.a3"] == {2: "0–4 × 5"}


def test_both_halves_of_a_joint_graph_are_folded() -> None:
    back = [[replace(node, id=f"{node.id}_back") for node in layer(number)] for number in reversed(range(4))]
    loss = [Entity("g.loss", "call", "loss", {"target": "sum"})]
    artifact = graph(*map(layer, range(4)), loss, *back)
    rows = [(first, last) for first, last, _ in folded_rows(artifact, stacks_of(artifact))]
    assert rows == [(1, 7), (10, 16)]


def test_nothing_is_folded_around_other_nodes() -> None:
    other = [Entity("g.mask", "call", "mask", {"target": "full"})]
    artifact = graph(layer(0), layer(1), other, layer(2))
    assert stacks_of(artifact)
    assert folded_rows(artifact, stacks_of(artifact)) == []


def test_parts_without_stacks_stay_as_they_were() -> None:
    parts = artifact_parts(graph(layer(0)))
    assert set(parts["text"].content()) == {"text", "numbers"}
