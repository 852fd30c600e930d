"""Fusion by our own backend: kernels before and after its pass `fuse`, and the pairs that it refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from compiler.record import Decision, Entity
from explorer.fusion.fusion import Half, Kernel
from explorer.provenance import ancestors


@dataclass
class OwnHalf(Half):
    """One half of one graph."""

    library: ClassVar[str] = "one of them is a call of PyTorch: there is no code of it to join with"
    untold: ClassVar[str] = "one kernel of both would save nothing, or they are too far apart"

    def _nodes(self) -> Sequence[Entity]:
        return [entity for entity in self.artifact.entities if entity.kind in ("kernel", "extern")]

    @cached_property
    def _before(self) -> dict[str, Entity]:
        """What earlier passes made, by id."""
        half = self.artifact.id.partition("[")[2]
        return {entity.id: entity for artifact in self.record.artifacts for entity in artifact.entities
                if artifact.language == "program" and artifact.id.endswith(f"[{half}")}  # fmt: skip

    @cached_property
    def _calls(self) -> dict[str, Entity]:
        """By node, the call in the generated code that it became."""
        nodes = {node.id for node in self._nodes()}
        wanted = f"kernels[{self.artifact.graph} {self.kind} call]"
        calls = [call for found in self.record.of_stage("kernels") if found.id == wanted for call in found.entities]
        origins = {entity.id: entity.origins for entity in (*self._before.values(), *calls)}
        return {node: call for call in calls for node in nodes & ancestors([call.id], origins)}

    def _parts(self, node: Entity) -> tuple[Entity, ...]:
        return tuple(self._before[name] for name in node.origins if name in self._before)

    @cached_property
    def _sources(self) -> dict[str, str]:
        """None: what our kernels read again is among the bytes that are counted for them."""
        return {}

    def _why(self, first: Kernel, second: Kernel, told: Mapping[tuple[str, str], Decision]) -> tuple[str, str, int]:
        """Our passes' reasons are in plain words as they are."""
        words, _, number = super()._why(first, second, told)
        return words, "", number

    def _told(self) -> dict[tuple[str, str], Decision]:
        """By the kernels that a pair ended up in, the last that the pass said of it."""
        owner = {part.id: kernel.node.label for kernel in self.kernels for part in kernel.parts}
        found: dict[tuple[str, str], Decision] = {}
        for item in self.record.decisions:
            if item.pass_name == "fuse" and item.verdict == "refused" and len(item.subjects) == 2:
                first, second = (owner.get(name, "") for name in item.subjects)
                if first and second and first != second:
                    found[first, second] = item
        return found
