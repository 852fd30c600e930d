"""Graphs that were split before they were compiled: by DDPOptimizer, or by vLLM, whose pieces have their own events."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compiler.logs.events import Event, read_object
from compiler.logs.graph_text import PrintedGraph, parse_graph
from compiler.record import Decision, Span

DDP_PART = "optimize_ddp_split_child"
PIECE_START = "vllm_piecewise_compile_start"
"""The artifact that vLLM logs before it compiles a piece of a graph for one range of sizes."""
PIECE_GRAPH = re.compile(r"vllm_((?:submod|subgraph)_\d+)")
PIECE_TITLE = "captured by TorchDynamo, a piece of vLLM's"
DDP_FILE = re.compile(r"torch[/\\]nn[/\\]parallel[/\\]distributed\.py")
WHY_DDP = "a bucket of parameters, whose gradients are all-reduced while the backward of the bucket before it runs"
WHY_VLLM = "vLLM compiles the pieces between the operators at which it splits, such as attention"


def piece_of_dump(event: Event) -> str:
    """The name of the piece ("submod_0") whose graph vLLM dumped; "" for any other event."""
    found = PIECE_GRAPH.fullmatch(event.name) if event.kind == "graph_dump" else None
    return found[1] if found is not None else ""


@dataclass
class GraphParts:
    """Finds the part of a compilation's graph (`0/0 submod_1`) that each event belongs to.

    A piece that vLLM compiled for several sizes is one part for each: `0/0 submod_1 size 8`.
    """

    graph: str
    events: list[Event]
    printed: Mapping[str, PrintedGraph]
    _pieces: list[str] = field(init=False)
    _begun: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        starts = [_piece_and_size(event) for event in self._of(PIECE_START)]
        counts = Counter(piece for piece, _ in starts)
        self._pieces = [
            " ".join(filter(None, (self.graph, piece, size if counts[piece] > 1 else ""))) for piece, size in starts
        ]

    @property
    def is_split_by_ddp(self) -> bool:
        return any(True for _ in self._of(DDP_PART))

    def parents_of(self, part: str) -> tuple[str, ...]:
        """A part, and then the graphs that it is a part of: of one size of vLLM's, its piece and the whole graph."""
        words = part.removeprefix(self.graph).split()
        return (
            tuple(dict.fromkeys((part, f"{self.graph} {words[0]}", self.graph))) if self._pieces and words else (part,)
        )

    def part_of(self, event: Event, now: str) -> str:
        """The part that an event belongs to; `now` is that of the event before it.

        The parts are compiled one after the other. Inductor begins each with its passes before autograd, other backends
        with AOTAutograd; backward graphs may be compiled later, and are found by their inputs.
        """
        if event.kind == DDP_PART and isinstance(event.fields, dict):
            return f"{self.graph} {event.fields.get('name', '')}".strip()
        if event.kind in ("dynamo_output_graph", "compiled_autograd_graph"):
            return self.graph
        if self._pieces:
            return self._piece(event, now)
        names = [child.fields.get("name", "") for child in self._of(DDP_PART) if isinstance(child.fields, dict)]
        parts = [f"{self.graph} {name}" for name in names]
        return self._bucket(event, now, parts) if parts else self.graph

    def _piece(self, event: Event, now: str) -> str:
        """The piece that vLLM compiles at an event; it logs the start of each."""
        if event.name == PIECE_START:
            self._begun += 1
            return self._pieces[self._begun - 1]
        if piece := piece_of_dump(event):
            return f"{self.graph} {piece}"
        return self._pieces[self._begun - 1] if self._begun else now

    def _bucket(self, event: Event, now: str, parts: list[str]) -> str:
        first = ("pre_grad",) if any(True for _ in self._of("after_pre_grad_graph")) else ("joint", "inference")
        begins = {"pre_grad": "after_pre_grad_graph", "joint": "aot_joint_graph", "inference": "aot_inference_graph"}
        kind = event.name or event.kind
        if kind in {begins[stage] for stage in first}:
            begun = {part for part in parts if any(f"{stage}[{part}]" in self.printed for stage in first)}
            return next((part for part in parts if part not in begun), parts[-1])
        if kind == "inductor_post_grad_graph":
            inputs = {node.name for node in parse_graph(event.payload).inputs()}
            return max(parts, key=lambda part: (self._fit(inputs, part), part == now))
        return now if now in parts else parts[0]

    def _fit(self, inputs: set[str], part: str) -> float:
        """How well the inputs of a post-grad graph agree with those of a part's halves that have no such graph yet."""
        halves = [
            half for half in ("forward", "backward", "inference") if f"post_grad[{part} {half}]" not in self.printed
        ]
        known = (self.printed.get(f"{half}[{part}]") for half in halves)
        names = ({node.name for node in other.inputs()} for other in known if other is not None)
        return max((len(inputs & own) - len(inputs ^ own) / 2 for own in names), default=-1e9)

    def _of(self, kind: str) -> Iterator[Event]:
        return (event for event in self.events if kind in (event.kind, event.name))


def split_decision(graph: str, subjects: tuple[str, ...], *, is_bucket: bool) -> Decision:
    """The decision of DDPOptimizer or vLLM to make this graph a part of a larger one."""
    who, why = ("DDPOptimizer", WHY_DDP) if is_bucket else ("vLLM", WHY_VLLM)
    return Decision(who, graph, subjects, "split", why)


def why_unsplit(stack: Sequence[Span], dynamo_config: Mapping[str, Any]) -> str:
    """Why DDPOptimizer logged no split of a graph that DistributedDataParallel runs; "" for other graphs.

    `stack` is the call stack of the compilation. Torch splits a graph, and logs it, only if it makes two buckets.
    """
    if not any(DDP_FILE.search(span.file) for span in stack):
        return ""
    mode = dynamo_config.get("optimize_ddp", True)
    if mode not in (True, "ddp_optimizer"):
        return f"torch._dynamo.config.optimize_ddp is {mode!r}, so that DDPOptimizer does not run"
    return (
        "the graph is one bucket: DDPOptimizer begins a second one after 1 MiB of the graph's parameters, counted from "
        "its end, and others after bucket_cap_mb"
    )


def _piece_and_size(event: Event) -> tuple[str, str]:
    """The piece that vLLM starts to compile, and the sizes that it is compiled for: "size 8", "sizes 1-2048"."""
    values = read_object(event.payload)
    first, last = values.get("compile_range_start"), values.get("compile_range_end")
    piece = str(values.get("submod_name") or f"submod_{values.get('piecewise_index', '')}")
    if not isinstance(first, int) or not isinstance(last, int):
        return piece, ""
    return piece, f"size {first}" if first == last else f"sizes {first}-{last}"
