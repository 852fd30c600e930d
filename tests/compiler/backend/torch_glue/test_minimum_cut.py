"""The minimum cut equals that of networkx's usual algorithm, on both sides."""

from __future__ import annotations

import math
import random
from typing import Any

import networkx
import pytest
import torch
import torch._functorch.partitioners as partitioners

from compiler.backend.torch_glue.partition import use_quick_cut
from compiler.torch_api import partitioning


def graph_of(seed: int) -> networkx.DiGraph:
    """A graph like the partitioner's: each node is two halves with a capacity between them."""
    chance = random.Random(seed)
    graph = networkx.DiGraph()
    nodes = chance.randint(2, 40)
    for node in range(nodes):
        weight = math.inf if chance.random() < 0.1 else chance.randint(0, 9) * 4 ** chance.randint(0, 5)
        graph.add_edge(f"{node}_in", f"{node}_out", capacity=weight)
        for user in range(node + 1, nodes):
            if chance.random() < 2.5 / nodes:
                graph.add_edge(f"{node}_out", f"{user}_in", capacity=math.inf)
        if node == 0 or chance.random() < 0.3:
            graph.add_edge("source", f"{node}_in", capacity=math.inf)
        if node == nodes - 1 or chance.random() < 0.2:
            graph.add_edge(f"{node}_{chance.choice(['in', 'out'])}", "sink", capacity=math.inf)
        if chance.random() < 0.2:
            graph.add_edge(f"{node}_out", f"{chance.randrange(nodes)}_in", capacity=chance.randint(1, 99))
    return graph


def quick_cut(graph: networkx.DiGraph) -> Any:
    with use_quick_cut():
        return networkx.minimum_cut(graph, "source", "sink")


def test_cut_matches_networkx() -> None:
    cuts = 0
    for seed in range(300):
        graph = graph_of(seed)
        try:
            expected = networkx.minimum_cut(graph, "source", "sink")
        except networkx.NetworkXUnbounded:
            with pytest.raises(networkx.NetworkXUnbounded):
                quick_cut(graph)
            continue
        assert quick_cut(graph) == expected, seed
        cuts += expected[0] > 0
    assert cuts > 50


def test_unreachable_sink_is_cut_off_alone() -> None:
    graph = networkx.DiGraph()
    graph.add_edge("source", "a", capacity=math.inf)
    graph.add_edge("b", "sink", capacity=3)
    assert quick_cut(graph) == networkx.minimum_cut(graph, "source", "sink")


def test_replaced_cut_still_passes_the_graph_to_readers() -> None:
    graph = graph_of(1)
    with partitioning._read_bans() as banned, use_quick_cut():
        (partitioners if partitioning.HAS_QUICK_CUT else networkx).minimum_cut(graph, "source", "sink")
    assert banned.keys() == {name.removesuffix("_in") for name in graph["source"]}


@pytest.mark.skipif(partitioning.HAS_QUICK_CUT, reason="torch 2.15 has a quick cut of its own")
def test_backend_uses_the_quick_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = []
    quick = networkx.algorithms.flow.boykov_kolmogorov
    monkeypatch.setattr(
        networkx.algorithms.flow,
        "boykov_kolmogorov",
        lambda *args, **options: cuts.append(args[1:]) or quick(*args, **options),
    )
    torch._dynamo.reset()
    x = torch.randn(4, requires_grad=True)
    torch.compile(lambda x: x.sin().exp(), backend="tcompile")(x).sum().backward()
    assert cuts == [("source", "sink")]
