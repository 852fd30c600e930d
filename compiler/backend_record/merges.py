"""The steps of the pass `fuse`, one after the other, as a record holds those of any fusion."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from compiler.backend.ir import Program
from compiler.record import Decision
from compiler.record.measure_facts import Merge


def merges(decisions: Iterable[Decision], before: Program, after: Program, *, graph: str, kind: str) -> list[Merge]:
    """Each pair of kernels that became one, in the order in which the pass chose them. A round merges earlier ones."""
    taken = {kernel.name for kernel in after.kernels}
    known = {target: f"{kernel.name} loop" if kernel.name in taken else kernel.name
             for kernel in before.kernels for target in kernel.targets}  # fmt: skip
    members = {name: [target] for target, name in known.items()}
    found: dict[str, Merge] = {}
    for number, item in enumerate((item for item in decisions if _is_merge(item)), 1):
        first, second = (known[target] for target in item.subjects)
        name, saved = f"step {number}", int(item.numbers.get("bytes", 0))
        rounds = [found[part].round for part in (first, second) if part in found]
        found[name] = Merge(graph, kind, max(rounds, default=0) + 1, first, second, name, saved)
        members[name] = [*members[first], *members[second]]
        known |= dict.fromkeys(members[name], name)
    last = {known[target]: kernel.name for kernel in after.kernels for target in kernel.targets if target in known}
    return [replace(merge, name=last.get(merge.name, merge.name)) for merge in found.values()]


def _is_merge(item: Decision) -> bool:
    return item.pass_name == "fuse" and item.verdict == "fused"
