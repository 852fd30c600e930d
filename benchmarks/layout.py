"""Our graph layout against Graphviz `dot`: `python -m benchmarks.layout [--keep FOLDER]`.

Ours is explorer/static/layout.js. Graphs: forward and backward of GPT-2 (12 layers, sequence 128, train mode, random
weights), from the record of one training step, trimmed like in the graph view: without placeholders, get_attr nodes and
the output, and with one edge per pair of nodes. Both programs get the same boxes and the same gaps. (The view itself
lays out one module group at a time; these are the whole graphs.)

Crossings are counted between neighbouring layers, in the same way for both: pairs of edges that cross, without edges
that share an end. Our count is from layout(); tests/frontend/test_layout.py checks it against the drawn lines (edges
that share a line segment count separately). dot's count is from `dot -v`, for its own best order ("mincross"), so that
its splines, which may cross more often, don't count against it. dot reports it before it ends: placing 1,300 nodes
takes it many minutes, and it is stopped after two.

Milliseconds are the median of five runs in node after one to warm up; a synthetic 10,000-node graph is timed too.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import RESULTS, Figure, load

ROOT = Path(__file__).resolve().parent.parent
CHIPS = {"placeholder", "get_attr", "output"}
GAP, LAYER_GAP = 16, 28
RUNS = 5
DOT_SECONDS = 120
MINCROSS = re.compile(r"^mincross .*?: (\d+) crossings", re.MULTILINE)

DRIVER = """
import { readFileSync } from "node:fs";
const { layout } = await import(process.argv[1]);
const { nodes, edges, gap, layerGap, runs } = JSON.parse(readFileSync(0, "utf8"));
const once = () => layout(nodes, edges, { gap, layerGap });
const { width, height, crossings } = once();
const times = Array.from({ length: runs }, () => {
  const start = performance.now();
  once();
  return performance.now() - start;
});
console.log(JSON.stringify({ times, width, height, crossings }));
"""

Entities = list[dict[str, Any]]


@dataclass(frozen=True)
class Trimmed:
    """A graph of boxes: `sizes` are (width, height) in drawing units, `edges` index pairs, from producer to user."""

    name: str
    sizes: list[tuple[float, float]]
    edges: list[tuple[int, int]]


@dataclass(frozen=True)
class Drawn:
    """The result of layout(): crossings, the area in drawing units, milliseconds of each run."""

    crossings: int
    width: float
    height: float
    times: list[float]

    @property
    def ms(self) -> float:
        return statistics.median(self.times)


@dataclass(frozen=True)
class DotDrawn:
    """The result of dot; `seconds` is None if dot did not end."""

    crossings: int
    seconds: float | None


def gpt2(folder: Path | None) -> dict[str, Entities]:
    """GPT-2's graphs by artifact id, from the folder if they are there."""
    path = folder / "gpt2_graphs.json" if folder else None
    if path and path.exists():
        return dict(json.loads(path.read_text()))
    graphs = capture_gpt2()
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(graphs))
    return graphs


def capture_gpt2() -> dict[str, Entities]:
    import torch

    from benchmarks.models import gpt2 as step_of_gpt2
    from compiler.engine import Exploration
    from compiler.record.options import Options

    torch.manual_seed(0)
    step = step_of_gpt2()
    with Exploration(Options(), title="GPT-2") as exploration:
        step.run(exploration.compile(step.model))
    artifacts = json.loads(exploration.record.to_json())["artifacts"]
    return {artifact["id"]: artifact["entities"] for artifact in artifacts}


def largest(graphs: dict[str, Entities], stage: str) -> Entities:
    """The largest graph of each stage; a graph break makes several graphs of one stage."""
    return max((entities for name, entities in graphs.items() if name.startswith(f"{stage}[")), key=len)


def trim(name: str, entities: Entities) -> Trimmed:
    kept = [entity for entity in entities if entity["kind"] not in CHIPS]
    index = {entity["id"]: number for number, entity in enumerate(kept)}
    pairs = ((index.get(source), number) for number, entity in enumerate(kept) for source in entity["inputs"])
    edges = dict.fromkeys((source, target) for source, target in pairs if source is not None)
    sizes = [(float(max(60, 22 + 7 * len(entity["label"]))), 38.0) for entity in kept]
    return Trimmed(name, sizes, list(edges))


def ten_thousand() -> Trimmed:
    """A synthetic graph: 10,000 nodes, most inputs near, one in twenty far."""
    rng = random.Random(0)
    edges: dict[tuple[int, int], None] = {}
    for node in range(1, 10_000):
        for _ in range(rng.choice((1, 1, 2))):
            reach = 400 if rng.random() < 0.05 else 12
            edges[max(0, node - rng.randint(1, reach)), node] = None
    return Trimmed("10,000 nodes", [(90.0, 38.0)] * 10_000, list(edges))


def draw(graph: Trimmed) -> Drawn:
    nodes = [{"width": width, "height": height} for width, height in graph.sizes]
    request = {"nodes": nodes, "edges": graph.edges, "gap": GAP, "layerGap": LAYER_GAP, "runs": RUNS}
    module = (ROOT / "explorer/static/layout.js").as_uri()
    command = ["node", "--input-type=module", "-e", DRIVER, module]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=True)
    return Drawn(**json.loads(done.stdout))


def draw_by_dot(graph: Trimmed) -> DotDrawn:
    boxes = [f"n{i} [width={width / 72}, height={height / 72}]" for i, (width, height) in enumerate(graph.sizes)]
    arrows = [f"n{a} -> n{b}" for a, b in graph.edges]
    settings = f'graph [nodesep={GAP / 72}, ranksep={LAYER_GAP / 72}]; node [shape=box, fixedsize=true, label=""]'
    source = "digraph {\n" + ";\n".join([settings, *boxes, *arrows]) + "\n}"
    with tempfile.TemporaryFile("w+") as log:
        start = time.perf_counter()
        seconds = None
        try:
            subprocess.run(
                ["dot", "-v", "-Tplain"],
                input=source,
                stdout=subprocess.DEVNULL,
                stderr=log,
                text=True,
                check=True,
                timeout=DOT_SECONDS,
            )
            seconds = time.perf_counter() - start
        except subprocess.TimeoutExpired:
            pass  # dot had printed its order long before
        log.seek(0)
        return DotDrawn(int(MINCROSS.findall(log.read())[-1]), seconds)


def compare(graph: Trimmed, ours: Drawn, dot: DotDrawn) -> list[Figure]:
    size = f"{len(graph.sizes):,} nodes, {len(graph.edges):,} edges"
    took = f"dot {dot.seconds * 1e3:,.0f} ms" if dot.seconds else f"dot not done after {DOT_SECONDS} s"
    details = {"nodes": len(graph.sizes), "edges": len(graph.edges), "ours": asdict(ours), "dot": asdict(dot)}
    ratio = ours.crossings / max(1, dot.crossings)
    crossed = f"{ours.crossings} and {dot.crossings}; {size}"
    return [
        Figure(f"{graph.name}: crossings ÷ dot's", ratio, "", 1.5, note=crossed, details=details),
        Figure(f"{graph.name}: layout", ours.ms, "ms", 1000, note=took, runs=tuple(ours.times)),
    ]


def figures(graphs: dict[str, Entities]) -> list[Figure]:
    trimmed = [trim(f"GPT-2 {stage}", largest(graphs, stage)) for stage in ("forward", "backward")]
    measured = [figure for graph in trimmed for figure in compare(graph, draw(graph), draw_by_dot(graph))]
    big = draw(ten_thousand())
    note = f"{big.crossings:,} crossings"
    return [*measured, Figure("10,000 nodes: layout", big.ms, "ms", 5000, note=note, runs=tuple(big.times))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder for the captured graphs, used again when they are there")
    graphs = gpt2(parser.parse_args().keep)
    before = load()
    found = figures(graphs)
    for figure in found:
        print(figure.line())
    RESULTS.mkdir(exist_ok=True)
    content = {"load": [before, load()], "figures": [asdict(figure) | {"met": figure.met} for figure in found]}
    (RESULTS / "layout.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if all(figure.met for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
