"""CUDA graphs: which parts of a graph Inductor captures and replays as one launch, and why not the others.

Inductor decides twice: while it writes code (torch._inductor.scheduler, `should_partition`: an operation that can't be
captured splits the wrapper into `partition_0`, `partition_1` …), and after (torch._inductor.output_code,
`cudagraph_post_compile`: a reason against capturing the whole graph). Both decisions run unchanged and are observed;
for a virtual GPU nothing is captured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._inductor.compile_fx as compile_fx
import torch._inductor.config as inductor_config
import torch._inductor.cudagraph_utils as cudagraph_utils
import torch._inductor.output_code as output_code
from torch._inductor.scheduler import Scheduler
from torch._inductor.virtualized import V

from compiler.record import Decision
from compiler.torch_api.patching import Function, Wrapper, call_after, call_instead

PASS = "cudagraphs"

WHY_NOT_IN_A_GRAPH: tuple[tuple[str, str], ...] = (
    ("cpu ops", "it runs on the CPU, and a CUDA graph holds only what the GPU does"),
    ("DeviceCopy ops", "it copies between the CPU's memory and the GPU's, and the CPU takes part in that"),
    ("Conditional ops", "the CPU decides which branch runs, and a replay can't ask it"),
    ("unbacked binding ops", "the CPU has to wait for its result to know a size or a number, and a replay can't wait"),
    ("CUDAGraph-unsafe custom ops", "the operator waits for the GPU or allocates by what the data say"),
    ("dynamic shape ops", "its sizes change, and triton.cudagraph_skip_dynamic_graphs leaves such operations out"),
    ("custom partition op", "custom_should_partition_ops names it"),
    ("uses cudagraph-unsafe unbacked symint", "a size in it comes from an operator that is not captured"),
)
"""(the start of torch's reason not to capture one operation, the reason in plain words)"""

WHY_NOT_AT_ALL: tuple[tuple[str, str], ...] = (
    ("mutated inputs", "it writes into an input. A replay writes to the address of the recording, and an input that is "
     "no parameter or buffer may be elsewhere in each call"),
    ("input storage mutation", "it gives an input other memory (set_), which a replay would not do"),
    ("incompatible op", "it has an operator that waits for the GPU or allocates by what the data say"),
    ("symbolic shapes", "its sizes change, and triton.cudagraph_skip_dynamic_graphs leaves such graphs out"),
    ("cpu device", "a part of it runs on the CPU, and a CUDA graph holds only what the GPU does"),
    ("multiple devices", "it runs on more than one device"),
    ("non-Tensor inputs", "an input is no tensor"),
    ("control flow operator", "the CPU decides which branch runs, and a replay can't ask it"),
    ("cpp-wrapper", "the C++ wrapper has no CUDA graphs where graphs are partitioned"),
)  # fmt: skip
"""(a part of torch's reason not to capture a whole graph, the reason in plain words)"""


@dataclass(frozen=True, slots=True)
class Partition:
    """Scheduler nodes of one partition. `reasons` maps each node to the reason not to capture it; {} if captured."""

    nodes: tuple[str, ...]
    captured: bool
    reasons: dict[str, str]


@dataclass(frozen=True, slots=True)
class Capture:
    """One function that Inductor captures.

    `inputs` is the number of inputs, `static` the number of inputs at a fixed address. `mutation` is torch's reason
    against the capture if the function writes into an input that may move, else "".
    """

    inputs: int
    static: int
    mutation: str


Verdict = tuple[str, str, tuple[str, ...], dict[str, float]]
"""(verdict, reason, scheduler nodes concerned, numbers)"""


class CudaGraphs:
    """Observes Inductor's CUDA graph decisions, one forward or backward at a time; `virtual` prevents any capture."""

    def __init__(self, *, virtual: bool) -> None:
        self.virtual = virtual
        self.forget()

    def forget(self) -> None:
        """Forget the decisions of the last half (forward or backward)."""
        self.partitions: list[Partition] = []
        self.captures: list[Capture] = []
        self.refusals: list[str] = []

    def wrappers(self) -> list[Wrapper]:
        found: list[Wrapper] = [
            (Scheduler, "graph_partition", call_after(self.observe_partitions)),
            (compile_fx, "cudagraphify", call_instead(self.observe_capture)),
            (compile_fx, "log_cudagraph_skip_and_bump_counter", call_instead(self.observe_refusal)),
            (output_code, "log_cudagraph_skip_and_bump_counter", call_instead(self.observe_refusal)),
        ]
        if self.virtual:
            found.append((output_code, "maybe_handle_backward_generation", lambda _: lambda *_args: None))
            if hasattr(cudagraph_utils, "check_caching_allocator_for_cudagraphs"):  # 2.13 queries the real allocator
                found.append((cudagraph_utils, "check_caching_allocator_for_cudagraphs", lambda _: lambda: None))
        return found

    def observe_partitions(self, result: tuple[Any, Any], scheduler: Scheduler) -> None:
        if getattr(V.graph, "parent", None) is None:  # a branch is part of the operation that branches
            found = zip(*result, strict=True)
            self.partitions = [_partition(scheduler, nodes, signature.skip_cudagraph) for nodes, signature in found]

    def observe_capture(
        self, capture: Function, model: Any, static_input_idxs: Sequence[int] = (), **facts: Any
    ) -> Any:
        self.captures.append(_capture(model, static_input_idxs, facts))
        return model if self.virtual else capture(model, static_input_idxs, **facts)

    def observe_refusal(self, log: Callable[[str], None], message: str) -> None:
        self.refusals.append(message)
        if not self.virtual:
            log(message)
        elif inductor_config.triton.cudagraph_or_error:
            raise RuntimeError(message)

    def decisions(self, half: str, inputs: Sequence[Any], *, tried: bool) -> Iterator[Decision]:
        """The decisions for `half` ("forward", "backward", "inference"); none if CUDA graphs are off.

        The verdict is "captured", "partitioned" or "refused"; the subjects are scheduler nodes. `tried` is False if
        Inductor gave up on CUDA graphs before it compiled this half.
        """
        if not inductor_config.triton.cudagraphs:
            return
        dynamic = any(isinstance(value, torch.SymInt) for value in inputs)
        for verdict, why, nodes, numbers in self._verdicts(dynamic, tried):
            yield Decision(PASS, "", nodes, verdict, f"{half}: {why}", numbers)

    def _verdicts(self, dynamic: bool, tried: bool) -> Iterator[Verdict]:
        if not tried:
            yield "refused", "the forward half is not captured, and then the backward is not either", (), {}
        elif self.refusals:
            yield "refused", explain(self.refusals[0], WHY_NOT_AT_ALL), (), {}
        elif not self.captures:
            yield "refused", self._why_none_captured(), self._nodes(captured=False), {}
        else:
            yield from self._partition_verdicts()
            yield from self._capture_verdicts(dynamic)
            for node, reason in ((node, reason) for part in self.partitions for node, reason in part.reasons.items()):
                yield "refused", explain(reason, WHY_NOT_IN_A_GRAPH), (node,), {}

    def _why_none_captured(self) -> str:
        reasons = dict.fromkeys(reason for part in self.partitions for reason in part.reasons.values())
        said = "; ".join(explain(reason, WHY_NOT_IN_A_GRAPH) for reason in reasons)
        return f"none of its operations can be captured: {said}" if said else "it has no operations to capture"

    def _partition_verdicts(self) -> Iterator[Verdict]:
        if outside := self._nodes(captured=False):
            graphs = sum(part.captured for part in self.partitions)
            total = len(outside) + len(self._nodes())
            why = f"{graphs} CUDA graph{'s' if graphs > 1 else ''}, and {len(outside)} of {total} operations outside, "
            yield "partitioned", f"{why}launched one by one", (), {"graphs": graphs, "operations outside": len(outside)}

    def _capture_verdicts(self, dynamic: bool) -> Iterator[Verdict]:
        inside = [part.nodes for part in self.partitions if part.captured]
        for number, capture in enumerate(self.captures):
            nodes = inside[number] if number < len(inside) else self._nodes()
            name = f"partition_{number}" if inside else "call"
            numbers: dict[str, float] = {
                "operations": len(nodes),
                "inputs": capture.inputs,
                "static inputs": capture.static,
            }
            if capture.mutation:
                yield "refused", f"{name} runs without: {explain(capture.mutation, WHY_NOT_AT_ALL)}", nodes, numbers
            else:
                yield "captured", replay_words(name, capture.static, capture.inputs, dynamic), nodes, numbers

    def _nodes(self, *, captured: bool = True) -> tuple[str, ...]:
        return tuple(node for part in self.partitions if part.captured == captured for node in part.nodes)


def _partition(scheduler: Any, nodes: Sequence[Any], skipped: bool) -> Partition:
    reasons = {node.get_name(): scheduler.should_partition(node) for node in nodes} if skipped else {}
    return Partition(
        tuple(node.get_name() for node in nodes),
        not skipped,
        {name: reason or "fewer kernels than triton.cudagraph_min_partition_size" for name, reason in reasons.items()},
    )


def _capture(model: Any, static: Sequence[int], facts: dict[str, Any]) -> Capture:
    """Describe a captured function as of its first call, assuming that no input comes from another CUDA graph.

    torch makes the same check at the first call, but allows mutation of inputs that come from another CUDA graph.
    """
    placeholders = facts.get("placeholders", ())
    known = (model, tuple(static), cudagraph_utils.FunctionID(0), (), placeholders, facts.get("mutated_input_idxs", ()))
    function = cudagraph_utils.WrappedFunction(*known, **_fields_of_later_torch(len(known)))
    inputs: list[Any] = [None] * len(placeholders)
    mutation = cudagraph_utils.check_for_mutation(function, inputs, lambda _tensor: False)
    return Capture(len(placeholders), len(set(static)), mutation or "")


def _fields_of_later_torch(known: int) -> dict[str, Any]:
    """Required fields of torch's WrappedFunction after the first `known`, each set to None."""
    later = dataclasses.fields(cudagraph_utils.WrappedFunction)[known:]
    missing = dataclasses.MISSING
    return {field.name: None for field in later if field.default is missing and field.default_factory is missing}


def replay_words(name: str, static: int, inputs: int, dynamic: bool) -> str:
    """Describe how a CUDA graph is replayed, with `static` of its `inputs` at a fixed address."""
    said = (
        f"{name} is replayed as one launch, from its third call on (the first warms up, the second is recorded); "
        f"{static} of its {inputs} inputs stay where they are, the rest are copied in"
    )
    return f"{said}; one CUDA graph is recorded for each set of sizes" if dynamic else said


def explain(message: str, known: Sequence[tuple[str, str]]) -> str:
    """Explain torch's message in plain words, followed by the message without its stack."""
    said = " ".join(message.partition("Found from")[0].split()).rstrip(". ")
    meaning = next((plain for part, plain in known if part in said), "")
    return f"{meaning} (torch: {said})" if meaning else said
