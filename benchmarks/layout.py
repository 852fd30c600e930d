"""Layout quality and speed: explorer/static/layout.js against Graphviz `dot` on GPT-2 (12 layers, sequence 128).

    python benchmarks/layout.py [--keep FOLDER]

Graphs: what AOTAutograd makes of transformers' GPT-2 in train mode with random weights, forward and backward, trimmed
the way the graph view trims them: placeholders, get_attr nodes and the output are not nodes, and an edge is counted
once however often its value is used. Both programs get the same boxes and the same gaps.

Crossings are counted geometrically, by one function for both drawings: our routes are polylines, dot's splines are
sampled into polylines of eight pieces a Bézier segment. Every point where the lines of two edges properly cross
counts once; edges that share an end are left out, since lines that meet at a box touch there in any drawing. Our own
`crossings` (counted between layers, exact for the polylines) is reported beside it.

Milliseconds are the median of five runs, ours in node after one warm-up run, dot's as a whole process. A 10,000-node
graph is timed too (ours only). Results go to benchmarks/results/layout.json.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
CHIPS = {"placeholder", "get_attr", "output"}
GAP, LAYER_GAP = 16, 28
BAR_CROSSINGS, BAR_MS, BAR_MS_BIG = 1.5, 1000.0, 5000.0
RUNS = 5

DRIVER = """
import { readFileSync } from "node:fs";
const { layout } = await import(process.argv[1]);
const { nodes, edges, gap, layerGap, runs } = JSON.parse(readFileSync(0, "utf8"));
const once = () => layout(nodes, edges, { gap, layerGap });
const drawn = once();
const times = Array.from({ length: runs }, () => {
  const start = performance.now();
  once();
  return performance.now() - start;
});
const { width, height, crossings } = drawn;
console.log(JSON.stringify({ times, width, height, crossings, routes: drawn.routes.map((route) => [...route]) }));
"""


@dataclass(frozen=True)
class Trimmed:
    """A graph of boxes: `sizes` are (width, height) in drawing units, `edges` index pairs, from producer to user."""

    name: str
    sizes: list[tuple[float, float]]
    edges: list[tuple[int, int]]


@dataclass(frozen=True)
class Drawing:
    """What a layout program made: one polyline an edge, milliseconds, and the area in drawing units."""

    lines: list[np.ndarray]
    ms: float
    width: float
    height: float
    own_count: int = -1


@dataclass(frozen=True)
class Row:
    graph: str
    nodes: int
    edges: int
    ours: int
    ours_layered: int
    dot: int
    ratio: float
    ours_ms: float
    dot_ms: float
    area_ratio: float


def capture_gpt2() -> dict[str, list[dict[str, Any]]]:
    """GPT-2's forward and backward graphs as entities in the front end's form."""
    import torch
    import transformers
    from functorch.compile import aot_module_simplified, make_boxed_func, min_cut_rematerialization_partition

    torch.manual_seed(0)
    caught: dict[str, Any] = {}

    def keep(name: str) -> Any:
        def compiler(graph: Any, _inputs: Any) -> Any:
            caught[name] = graph
            return make_boxed_func(graph.forward)

        return compiler

    def backend(graph: Any, inputs: Any) -> Any:
        return aot_module_simplified(
            graph,
            inputs,
            fw_compiler=keep("forward"),
            bw_compiler=keep("backward"),
            decompositions=dict(torch.export.default_decompositions().items()),
            partition_fn=min_cut_rematerialization_partition,
        )

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False)).train()
    tokens = torch.randint(0, 50257, (1, 128))
    torch.compile(model, backend=backend)(input_ids=tokens).logits.sum().backward()
    return {name: entities(graph, f"{name}[0/0]") for name, graph in caught.items()}


def entities(graph: Any, artifact: str) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{artifact}.{node.name}",
            "kind": "call" if node.op.startswith("call") else node.op,
            "label": node.name,
            "attrs": attributes(node),
            "inputs": [f"{artifact}.{source.name}" for source in node.all_input_nodes],
            "origins": [],
        }
        for node in graph.graph.nodes
    ]


def attributes(node: Any) -> dict[str, Any]:
    attrs: dict[str, Any] = {"op": node.op, "target": str(node.target)}
    value = node.meta.get("val")
    if hasattr(value, "dtype"):
        shape = [int(size) for size in value.shape]
        attrs |= {"dtype": str(value.dtype).removeprefix("torch."), "shape": shape}
        attrs["bytes"] = int(np.prod(shape, dtype=np.int64)) * value.dtype.itemsize
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if stack:
        path, kind = list(stack.values())[-1]
        attrs["module"] = path.removeprefix("L['self'].").removeprefix("L['self']")
        attrs["module_type"] = kind if isinstance(kind, str) else kind.__name__
    return attrs


def trim(name: str, found: list[dict[str, Any]]) -> Trimmed:
    kept = [entity for entity in found if entity["kind"] not in CHIPS]
    index = {entity["id"]: number for number, entity in enumerate(kept)}
    pairs = ((index.get(source), number) for number, entity in enumerate(kept) for source in entity["inputs"])
    edges = dict.fromkeys((source, target) for source, target in pairs if source is not None)
    sizes = [(float(max(56, 20 + 7 * len(entity["label"]))), 34.0) for entity in kept]
    return Trimmed(name, sizes, list(edges))


def draw_ours(graph: Trimmed) -> Drawing:
    nodes = [{"id": str(i), "width": width, "height": height} for i, (width, height) in enumerate(graph.sizes)]
    request = {"nodes": nodes, "edges": graph.edges, "gap": GAP, "layerGap": LAYER_GAP, "runs": RUNS}
    module = (ROOT / "explorer/static/layout.js").as_uri()
    command = ["node", "--input-type=module", "-e", DRIVER, module]
    answer = json.loads(subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=True).stdout)
    lines = [np.array(route).reshape(-1, 2) for route in answer["routes"]]
    return Drawing(lines, statistics.median(answer["times"]), answer["width"], answer["height"], answer["crossings"])


def draw_dot(graph: Trimmed) -> Drawing:
    boxes = [f"n{i} [width={width / 72}, height={height / 72}]" for i, (width, height) in enumerate(graph.sizes)]
    arrows = [f"n{a} -> n{b}" for a, b in graph.edges]
    settings = f'graph [nodesep={GAP / 72}, ranksep={LAYER_GAP / 72}]; node [shape=box, fixedsize=true, label=""]'
    source = "digraph {\n" + ";\n".join([settings, *boxes, *arrows]) + "\n}"
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        done = subprocess.run(["dot", "-Tplain"], input=source, capture_output=True, text=True, check=True)
        times.append((time.perf_counter() - start) * 1e3)
    size = np.array(done.stdout.split("\n", 1)[0].split()[2:4], float) * 72
    lines = dot_lines(done.stdout)
    return Drawing([lines[edge] for edge in graph.edges], statistics.median(times), size[0], size[1])


def dot_lines(plain: str) -> dict[tuple[int, int], np.ndarray]:
    lines = {}
    for row in plain.splitlines():
        words = row.split()
        if words[0] == "edge":
            count = int(words[3])
            points = np.array(words[4 : 4 + 2 * count], float).reshape(-1, 2) * 72
            lines[int(words[1][1:]), int(words[2][1:])] = sample(points)
    return lines


def sample(control: np.ndarray, pieces: int = 8) -> np.ndarray:
    """The polyline of a piecewise cubic Bézier curve, given as 3n + 1 control points."""
    t = np.linspace(0, 1, pieces + 1)[1:, None]
    curves = [control[i : i + 4] for i in range(0, len(control) - 1, 3)]
    parts = [(1 - t) ** 3 * a + 3 * t * (1 - t) ** 2 * b + 3 * t**2 * (1 - t) * c + t**3 * d for a, b, c, d in curves]
    return np.vstack([control[:1], *parts])


def crossings(lines: list[np.ndarray], edges: list[tuple[int, int]]) -> int:
    """Points where lines of two edges with no common end properly cross."""
    starts = np.vstack([line[:-1] for line in lines])
    ends = np.vstack([line[1:] for line in lines])
    owner = np.repeat(np.arange(len(lines)), [len(line) - 1 for line in lines])
    ends_of = np.array(edges)
    found: set[tuple[int, int]] = set()
    for members in bands(starts, ends):
        for first, second in proper(starts, ends, members):
            a, b = ends_of[owner[first]], ends_of[owner[second]]
            if not set(a) & set(b):
                found.add((int(first), int(second)))
    return len(found)


def bands(starts: np.ndarray, ends: np.ndarray, step: float = 20.0) -> list[np.ndarray]:
    """Segments by the horizontal bands that they touch, so that only near pairs are compared."""
    low = np.floor(np.minimum(starts[:, 1], ends[:, 1]) / step).astype(int)
    high = np.floor(np.maximum(starts[:, 1], ends[:, 1]) / step).astype(int)
    rows: dict[int, list[int]] = defaultdict(list)
    for segment, (first, last) in enumerate(zip(low, high, strict=True)):
        for row in range(first, last + 1):
            rows[row].append(segment)
    return [np.array(row) for row in rows.values()]


def proper(starts: np.ndarray, ends: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Pairs among `members` that cross inside both segments."""
    a, b = starts[members], ends[members]

    def side(point: np.ndarray) -> np.ndarray:
        along, to = (b - a)[:, None], point[None] - a[:, None]
        return np.sign(along[..., 0] * to[..., 1] - along[..., 1] * to[..., 0])

    apart = side(a) * side(b) < 0
    first, second = np.nonzero(np.triu(apart & apart.T, 1))
    return np.stack([members[first], members[second]], 1)


def compare(graph: Trimmed) -> Row:
    ours, dot = draw_ours(graph), draw_dot(graph)
    mine, theirs = crossings(ours.lines, graph.edges), crossings(dot.lines, graph.edges)
    area = ours.width * ours.height / (dot.width * dot.height)
    ratio = mine / theirs if theirs else float(mine)
    counts = (len(graph.sizes), len(graph.edges), mine, ours.own_count, theirs)
    return Row(graph.name, *counts, ratio, ours.ms, dot.ms, area)


def ten_thousand() -> Trimmed:
    """A synthetic graph: 10,000 nodes, most inputs near, one in twenty far."""
    rng = random.Random(0)
    edges: dict[tuple[int, int], None] = {}
    for node in range(1, 10_000):
        for _ in range(rng.choice((1, 1, 2))):
            reach = 400 if rng.random() < 0.05 else 12
            edges[max(0, node - rng.randint(1, reach)), node] = None
    return Trimmed("10,000 nodes", [(90.0, 34.0)] * 10_000, list(edges))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder for the captured graphs; used again when they are there")
    found = gpt2(parser.parse_args().keep)
    rows = [compare(trim(f"GPT-2 {name}", found[name])) for name in ("forward", "backward")]
    big = draw_ours(ten_thousand())
    checks = report(rows, big)
    write(rows, big, checks)
    return 0 if all(passed for *_, passed in checks) else 1


def gpt2(folder: Path | None) -> dict[str, list[dict[str, Any]]]:
    path = folder / "gpt2.json" if folder else None
    if path and path.exists():
        return dict(json.loads(path.read_text()))
    found = capture_gpt2()
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    return found


def report(rows: list[Row], big: Drawing) -> list[tuple[str, float, float, bool]]:
    for row in rows:
        counts = f"crossings {row.ours} (between layers {row.ours_layered}), dot {row.dot}"
        print(f"{row.graph}: {row.nodes} nodes, {row.edges} edges; {counts}; area ÷ dot's {row.area_ratio:.2f}")
        print(f"    {row.ours_ms:.0f} ms, dot {row.dot_ms:.0f} ms")
    figures = [(f"{row.graph}: crossings ÷ dot", row.ratio, BAR_CROSSINGS) for row in rows]
    figures += [(f"{row.graph}: layout ms", row.ours_ms, BAR_MS) for row in rows]
    figures += [("10,000 nodes: layout ms", big.ms, BAR_MS_BIG)]
    checks = [(name, value, bar, value <= bar) for name, value, bar in figures]
    for name, value, bar, passed in checks:
        print(f"{name:36} {value:10.2f}   bar {bar:7.1f}   {'ok' if passed else 'MISSED'}")
    return checks


def write(rows: list[Row], big: Drawing, checks: list[tuple[str, float, float, bool]]) -> None:
    folder = ROOT / "benchmarks/results"
    folder.mkdir(exist_ok=True)
    figures = [{"name": name, "value": value, "bar": bar, "ok": passed} for name, value, bar, passed in checks]
    result = {"graphs": [asdict(row) for row in rows], "ten_thousand_ms": big.ms, "figures": figures}
    (folder / "layout.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
