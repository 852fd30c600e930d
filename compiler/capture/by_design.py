"""Graph breaks and recompilations that FSDP and DDP make on purpose, so that nobody has to change anything."""

from __future__ import annotations

import re

from compiler.capture.recompile_advice import IN_ONE_CALL, OF_TORCH
from compiler.record import GraphBreak, Recompile

WRAPPERS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (
        re.compile(r"skipping FSDP hooks|FSDPState|/_fully_shard/"),
        "{code} runs hooks of FSDP, which gather and reduce parameters, and stay out of graphs by design.",
        "Nothing has to change: with fully_shard, one graph for each wrapped module is what to expect. A bare module "
        "of torch.nn, such as Sequential, is not compiled. For no break at all, compile each block, and not the whole "
        "model, before it is wrapped: block = torch.compile(block, fullgraph=True), then fully_shard(block).",
    ),
    (
        re.compile(r"/distributed/fsdp/"),
        "{code} is part of FullyShardedDataParallel, whose hooks stay out of graphs by design.",
        "Nothing has to change: with FullyShardedDataParallel, one graph for each wrapped module is what to expect.",
    ),
    (
        re.compile(r"/nn/parallel/distributed\.py|DistributedDataParallel\._"),
        "{code} is part of DistributedDataParallel, whose logging and reducer stay out of graphs by design.",
        "Nothing has to change: a module of your own class is compiled inside, in a graph for each bucket; a bare "
        "module of torch.nn, such as Sequential, is not. For such a module, and for no break at all, compile the "
        "module and wrap it then: DistributedDataParallel(torch.compile(model)).",
    ),
)
"""Wrappers of torch that break graphs on purpose: what torch's message or the innermost file has, and what to say."""


def is_by_design(found: GraphBreak | Recompile) -> bool:
    """Whether torch breaks the graph, or compiles again, on purpose, and the advice is that nothing has to change."""
    if isinstance(found, Recompile):
        return found.advice in (OF_TORCH, IN_ONE_CALL)
    texts = {text for _, _, text in WRAPPERS}
    return any(item.text in texts for item in found.suggestions)
