"""Replay a compiled graph as CUDA graphs, with torch's CUDA graph trees.

torch._inductor.cudagraph_trees is used as in torch's backend "cudagraphs" (torch._dynamo.backends.cudagraphs). CUDA
graph trees share one memory pool, copy inputs that may move, read parameters in place, and separate forward from
backward. They report why a graph can't be captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch._dynamo.backends.cudagraphs as rules
import torch._inductor.cudagraph_trees as trees
from torch._guards import CompileContext
from torch._inductor.cudagraph_utils import (
    check_multiple_devices_or_any_cpu_nodes,
    format_default_skip_message,
    get_mutation_stack_trace,
    get_placeholder_info,
)
from torch._inductor.utils import count_tangents, get_first_incompatible_cudagraph_node
from torch.fx import GraphModule

from compiler.torch_api.aot import Call, forward_facts, mark_boxed
from compiler.torch_api.bindings import keeps_graph
from compiler.torch_api.cudagraphs import WHY_NOT_AT_ALL, explain, replay_words
from compiler.torch_api.fx import value_of


class Graphs:
    """The CUDA graphs of one captured graph's forward, and of its backward if it has one.

    The caller sets `gave_up` if it does not replay the forward.
    """

    def __init__(self) -> None:
        self.device: int | None = None
        self.gave_up = False

    def refusal(self, module: GraphModule, half: str, is_piece: bool) -> str:
        """Why the forward or backward (or a piece of it) is not replayed; "" if it is."""
        if half == "backward" and self.gave_up:
            return "the forward is not replayed, and then the backward is not either"
        why = "data say how large something in it is" if is_piece else _reason_not_replayed(module, half)
        return explain(why, WHY_NOT_AT_ALL) if why else ""

    def words(self, module: GraphModule, half: str) -> str:
        """Describe how the forward or backward is replayed."""
        inputs = module.graph.find_nodes(op="placeholder")
        dynamic = any(isinstance(value_of(node), torch.SymInt) for node in inputs)
        return replay_words("the call", len(_fixed_inputs(module, half)), len(inputs), dynamic)

    def record_graphs(
        self, call: Call, module: GraphModule, inputs: Sequence[Any], half: str, constants: Any, *, overwrites: bool
    ) -> Call:
        """Wrap a call in CUDA graphs: its first run is normal, the second is recorded, later ones are replayed.

        `overwrites` says that the call is a backward that overwrites saved tensors, unless `retain_graph=True`: then
        each of the two ways is recorded by itself, when it is first used.
        """
        self.device = rules.get_device_index(module)
        facts = {
            "device_index": self.device,
            "is_backward": half == "backward",
            "is_inference": half == "inference",
            "stack_traces": rules.get_stack_traces(module),
            "constants": tuple(constants),
            "placeholders": get_placeholder_info(module.graph),
            "mutated_input_idxs": tuple(rules.find_input_mutations(module.graph)),
            "compile_id": CompileContext.current_compile_id(),
        }

        def record() -> Call:
            return trees.cudagraphify_impl(call, list(inputs), _fixed_inputs(module, half), **facts)  # type: ignore[arg-type]

        if not overwrites:
            return mark_boxed(record())
        overwriting, keeping = record(), record()
        return mark_boxed(lambda args: keeping(args) if keeps_graph() else overwriting(args))

    def mark_backward(self, call: Call) -> Call:
        """Wrap a backward that is not replayed, so that the forward's CUDA graphs know when it runs."""
        if self.gave_up or self.device is None:
            return call
        device = self.device

        def call_backward(args: list[Any]) -> Sequence[Any]:
            manager = trees.get_manager(device, create_if_none_exists=False)  # created by the forward's first call
            if manager is not None:
                manager.set_to_running_backward()
            return call(args)

        return mark_boxed(call_backward)


def _reason_not_replayed(module: GraphModule, half: str) -> str:
    """Why a forward or backward can't be a CUDA graph; "" if it can.

    Like torch._dynamo.backends.cudagraphs.check_for_skip, but parameters need not be the first inputs.
    """
    if moving := rules.find_input_mutations(module.graph) - set(_fixed_inputs(module, half)):
        return get_mutation_stack_trace(get_placeholder_info(module.graph), sorted(moving))
    if skip := check_multiple_devices_or_any_cpu_nodes(rules.get_device_node_mapping(module)):
        return skip
    node = get_first_incompatible_cudagraph_node(module)
    return format_default_skip_message(f"incompatible op ({node.name})") if node else ""


def _fixed_inputs(module: GraphModule, half: str) -> Sequence[int]:
    """Indices of static inputs: parameters and buffers; in a backward, the saved tensors."""
    if half == "backward":
        return range(count_tangents(module))
    known = getattr(forward_facts(), "static_input_indices", None) or ()
    return sorted(index for index in known if index < len(module.graph.find_nodes(op="placeholder")))
