"""Fusion by our own backend: kernels before the pass `fuse` and after the last pass, and the refused pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from compiler.record import Artifact, Decision, Entity
from compiler.record.measure_facts import Merge
from explorer.findings.fusion.fusion import Half, Kernel


@dataclass
class OwnHalf(Half):
    """Reader of the fusion in one half of a graph of our backend.

    Kernels are taken after the last pass, as passes after `fuse` may have fused more.
    """

    library: ClassVar[str] = "one of them is a call of PyTorch: there is no code of it to join with"
    untold: ClassVar[str] = "one kernel of both would save nothing, or they are too far apart"
    product: ClassVar[str] = "one of them was a call of PyTorch when loops were fused: a product of matrices"

    @cached_property
    def _programs(self) -> list[Artifact]:
        """The programs of this half, in pass order."""
        mine = (each for each in self.record.artifacts if each.language == "program")
        return [each for each in mine if (each.graph, each.half) == (self.artifact.graph, self.artifact.half)]

    def _nodes(self) -> Sequence[Entity]:
        return _steps(self._programs[-1])

    @cached_property
    def _before(self) -> dict[str, Entity]:
        """Id -> entity of all programs before `fuse`."""
        before = self._programs[: self._programs.index(self.artifact)]
        return {entity.id: entity for artifact in before for entity in artifact.entities}

    @cached_property
    def _calls(self) -> dict[str, Entity]:
        """Node id -> the call in the generated code that the node became."""
        wanted = f"kernels[{self.artifact.graph} {self.kind} call]"
        calls = [call for found in self.record.of_stage("kernels") if found.id == wanted for call in found.entities]
        return {origin: call for call in calls for origin in call.origins}

    @cached_property
    def _fused(self) -> Mapping[str, list[Entity]]:
        """Id of a final node -> the kernels and extern calls after `fuse` whose values the node computes."""
        owner = {name: node.id for node in self._nodes() for name in _values(node)}
        found: dict[str, list[Entity]] = {}
        for step in _steps(self.artifact):
            node = next((owner[name] for name in _values(step) if name in owner), "")
            found.setdefault(node, []).append(step)
        return found

    def _parts(self, node: Entity) -> tuple[Entity, ...]:
        origins = (name for step in self._fused.get(node.id, ()) for name in step.origins)
        return tuple(self._before[name] for name in dict.fromkeys(origins) if name in self._before)

    def _find_merges(self) -> dict[str, Merge]:
        """Name -> merge, by `fuse` and by later passes. The last merge of each final node has the node's name."""
        steps = super()._find_merges()
        inner = {name: f"fuse: {name}" for name in steps}  # no node's name
        found = {inner[name]: replace(item, first=inner.get(item.first, item.first),
                                      second=inner.get(item.second, item.second))
                 for name, item in steps.items()}  # fmt: skip
        for node in self._nodes():
            made_of = self._fused.get(node.id, [])
            tops = [inner.get(each.label, each.label) if each.kind == "kernel" else each.label for each in made_of]
            if len(tops) == 1 and tops[0] in found:
                found[node.label] = replace(found.pop(tops[0]), name=node.label)
            elif len(tops) > 1:
                saved = sum(map(_sum_moves, made_of)) - _sum_moves(node)
                found |= self._join_steps(node.label, tops, saved, found)
        return found

    def _join_steps(self, name: str, tops: Sequence[str], saved: int, known: Mapping[str, Merge]) -> dict[str, Merge]:
        """Name -> merge of a later pass that fused `tops` one after the other; the last merge has the total saving."""
        found: dict[str, Merge] = {}
        first, last = tops[0], len(tops) - 1
        round_of = {made: merge.round for made, merge in known.items()}
        for number, second in enumerate(tops[1:], 1):
            made = name if number == last else f"fuse: {name} {number}"
            round_of[made] = max(round_of.get(first, 0), round_of.get(second, 0)) + 1
            found[made] = Merge(self.artifact.graph, self.kind, round_of[made], first, second, made,
                                saved if number == last else 0)  # fmt: skip
            first = made
        return found

    @cached_property
    def _sources(self) -> dict[str, str]:
        """Empty: the byte counts of our kernels include repeated reads."""
        return {}

    def _refusal_reason(
        self, first: Kernel, second: Kernel, told: Mapping[tuple[str, str], Decision]
    ) -> tuple[str, str, int]:
        """Reason and round of a refusal. The second value, Inductor's own text, is always ""."""
        words, _, number = super()._refusal_reason(first, second, told)
        if words == self.library and not (first.is_call or second.is_call):
            words = self.product
        return words, "", number

    def _was_call(self, kernel: Kernel) -> bool:
        return kernel.is_call or any(part.kind == "extern" for part in kernel.parts)

    def _stated_refusals(self) -> dict[tuple[str, str], Decision]:
        """Pair of final kernels, by name -> the last refusal by the pass `fuse` to fuse parts of the two."""
        owner = {part.id: kernel.node.label for kernel in self.kernels for part in kernel.parts}
        found: dict[tuple[str, str], Decision] = {}
        for item in self.record.decisions:
            if item.pass_name == "fuse" and item.verdict == "refused" and len(item.subjects) == 2:
                first, second = (owner.get(name, "") for name in item.subjects)
                if first and second and first != second:
                    found[first, second] = item
        return found


def _steps(program: Artifact) -> Sequence[Entity]:
    return [entity for entity in program.entities if entity.kind in ("kernel", "extern")]


def _values(step: Entity) -> Sequence[str]:
    """Names of the values that a kernel or call computes, its internal values included."""
    found: Sequence[str] = step.attrs.get("parts") or step.attrs.get("writes") or [step.label]
    return found


def _sum_moves(step: Entity) -> int:
    return sum(step.attrs.get("moves", {}).values())
