"""Work that simulated ranks share: a graph that another rank has compiled is not compiled again.

What a backend makes of a captured graph depends on the graph and the sizes of its tensors. Ranks with equal ones differ
only in the names of their process groups, which are replaced in the copies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch.fx import GraphModule

from compiler.record import Collective, Record
from compiler.record.builder import Builder
from compiler.torch_api import fx
from compiler.torch_api.dtensor import inner_tensor

_OWN_STAGES = ("source", "bytecode", "captured", "timing")
"""Stages that every rank records itself."""
_COPIED = ("decisions", "merges", "kernels", "memory", "problems")


def graph_key(module: GraphModule) -> str:
    """All that the compilation of a captured graph depends on: its code, and this rank's tensors, real or fake."""
    facts = [_value_words(fx.value_of(node)) for node in module.graph.nodes]
    return "\n".join([re.sub(r" : torch[\w.]*", "", module.code), *facts])


def _value_words(value: Any) -> str:
    attrs = fx.tensor_attrs(value)
    if not attrs:
        return ""
    local = inner_tensor(value)
    placements = getattr(value, "placements", "")
    return f"{attrs} {tuple(local.shape)} {local.stride()} {value.requires_grad} {placements}"


@dataclass
class SharedGraphs:
    """The graphs of the first rank, by id, and the record with what became of them once it is complete."""

    keys: dict[str, str] = field(default_factory=dict)
    record: Record | None = None
    group_names: tuple[str, ...] = ()

    def complete(self, record: Record) -> None:
        """Share what is in a record. The rank's process groups must still exist."""
        from compiler.torch_api import process_groups

        self.record, self.group_names = record, process_groups.group_names()

    def has(self, graph: str, module: GraphModule) -> bool:
        """Whether the first rank has compiled an equal graph under this id; until it is complete, note the graph."""
        key = graph_key(module)
        if self.record is None:
            self.keys[graph] = key
        return self.record is not None and graph in self.keys and _rename_groups(self.keys[graph], self._names()) == key

    def collectives_of(self, graph: str) -> list[Collective]:
        """The collectives that the first rank found in this graph, with the names of this rank's groups."""
        found = self.record.collectives if self.record is not None else ()
        names = self._names()
        return [
            replace(each, group=names.get(each.group, each.group))
            for each in found
            if each.graph == graph and each.origin == "graph"
        ]

    def _names(self) -> dict[str, str]:
        """Names of the first rank's process groups -> names of the same groups on this rank."""
        from compiler.torch_api import process_groups

        found = dict(zip(self.group_names, process_groups.group_names(), strict=False))
        return {name: own for name, own in found.items() if name != own}

    def copy_into(self, builder: Builder, graphs: Iterable[str]) -> None:
        """Add to a record what the first rank's backend made of these graphs."""
        if self.record is None:
            return
        wanted = set(graphs)
        names, copied = self._names(), set()
        for artifact in self.record.artifacts:
            if artifact.graph in wanted and artifact.stage not in _OWN_STAGES:
                copied |= {entity.id for entity in artifact.entities}
                own_text = replace(artifact, text=_rename_groups(artifact.text, names))
                builder.artifacts.setdefault(artifact.id, own_text)
        builder.autograd_saved += [saved for saved in self.record.autograd_saved if saved.node in copied]
        for part in _COPIED:
            found: list[Any] = getattr(builder, part)
            own = [each for each in found if each.graph in wanted]
            found += [each for each in getattr(self.record, part) if each.graph in wanted and each not in own]


def _rename_groups(text: str, names: Mapping[str, str]) -> str:
    """The text with names of process groups, which are strings in it, replaced."""
    pattern = "|".join(map(re.escape, names))
    return re.sub(f"'({pattern})'", lambda found: f"'{names[found[1]]}'", text) if names else text
