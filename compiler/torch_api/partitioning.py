"""AOTAutograd's partitioner: the values of a joint graph that the forward saves.

torch's min-cut partitioner (torch._functorch.partitioners; Chen et al., "Training deep nets with sublinear memory
cost", solved as a minimum cut) builds a networkx graph whose edges say why a value can't be recomputed. The graph is
read when it is passed to `minimum_cut`, a function of networkx before torch 2.15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import networkx
import torch._functorch.config as functorch_config
import torch._functorch.partitioners as partitioners
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch.fx import GraphModule

from compiler.torch_api import fx
from compiler.torch_api.patching import Function, call_before, replace_attribute

HAS_QUICK_CUT = hasattr(partitioners, "minimum_cut")
_BANNED = "cannot recompute"


@dataclass(frozen=True, slots=True)
class Joint:
    """A joint graph before it is partitioned, and the partitioner's options."""

    module: GraphModule
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Halves:
    """A joint graph partitioned into forward and backward.

    `banned` maps a value's name to torch's reason not to recompute it; empty without a minimum cut.
    """

    joint: Joint
    forward: GraphModule
    backward: GraphModule
    banned: Mapping[str, str] = field(default_factory=dict)


def observe_partition(
    on_partition: Callable[[Halves], None], partition: Function, module: GraphModule, *args: Any, **options: Any
) -> Any:
    """Partition a joint graph with AOTAutograd's partitioner, and report the result to `on_partition`."""
    joint = Joint(fx.detached_copy(module), options)
    with _read_bans() as banned:
        forward, backward = partition(module, *args, **options)
    on_partition(Halves(joint, forward, backward, banned))
    return forward, backward


def divide(joint: Joint, budget: float | None) -> Halves:
    """Partition a joint graph again, without changing it.

    With a budget: the minimum cut under `activation_memory_budget=budget`. With None: `default_partition`, which saves
    every value that the backward uses.
    """
    module = fx.detached_copy(joint.module)
    options = {name: value for name, value in joint.options.items() if name != "compiler"}
    if budget is None:
        forward, backward = default_partition(module, (), **options)
        return Halves(joint, forward, backward)
    with functorch_config.patch(activation_memory_budget=budget), _read_bans() as banned:
        forward, backward = min_cut_rematerialization_partition(module, (), **options)
    return Halves(joint, forward, backward, banned)


@contextmanager
def _read_bans() -> Iterator[dict[str, str]]:
    """Collect the reasons against recomputation from minimum cuts in the block; the last cut counts."""
    banned: dict[str, str] = {}

    def read(graph: Any, source: Any, sink: Any, *_: Any, **__: Any) -> None:
        if source == "source" and sink == "sink":
            banned.clear()
            banned.update(_bans(graph))

    owner = partitioners if HAS_QUICK_CUT else networkx
    with replace_attribute(owner, "minimum_cut", call_before(read)):
        yield banned


def _bans(graph: Any) -> dict[str, str]:
    if "source" not in graph:
        return {}
    reasons = {name.removesuffix("_in"): str(edge.get("reason", "")) for name, edge in graph["source"].items()}
    return {name: reason.removeprefix(_BANNED).removeprefix(": ") for name, reason in reasons.items()}


def bytes_of(value: Any) -> int:
    """Bytes of a tensor, or of all tensors in a tuple; tensors of symbolic size and other values count 0."""
    if isinstance(value, tuple | list):
        return sum(bytes_of(item) for item in value)
    return int(fx.tensor_attrs(value).get("bytes", 0))
