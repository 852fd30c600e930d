"""Fusion as a finding: for each kernel the nodes that it is made of, round by round, and the bytes that it moves; and
the pairs that were not fused, by reason, with what that costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from compiler.record import Entity, Record
from compiler.record.plain_text import pluralize, size_text
from explorer.findings.fusion.fusion import Fusion, Kernel, Refusal, fusions, tree
from explorer.reading.plain_text import columns
from explorer.render.finding import Finding, LinkedText

STAGE = "fusion"
MOST_PAIRS = 12
"""So many pairs that were not fused are listed in the text of each half; `run.unfused` has them all."""


def fusion_finding(record: Record) -> Finding | None:
    """What was fused; None for a record without loops before and after it."""
    found = fusions(record) if record.of_stage("ir") or record.of_stage("lowered") else []
    if not found:
        return None
    text = LinkedText()
    for half in found:
        _tell(text, half)
    data = {"halves": [half_data(half) for half in found]}
    launches = sum(half.launches for half in found)
    count = f"{launches:,} {'launch' if launches == 1 else 'launches'}"
    return Finding(text.artifact(STAGE, "fusion", count=count), "view", STAGE, data)


def kernel_id(half: Fusion, kernel: Kernel) -> str:
    """The id of a kernel's entity here."""
    return f"fusion[{half.title}].{kernel.node.label}"


def kernel_entity(half: Fusion, kernel: Kernel) -> Entity:
    """A kernel as an entity: it comes from its call in the generated code and the kernel called, else from its node."""
    call = kernel.call
    definition = f"kernels[{half.title}].{call.label}" if call is not None and call.kind == "call" else ""
    origins = (kernel.node.id,) if call is None else (call.id, definition) if definition else (call.id,)
    attrs = {"nodes": max(len(kernel.parts), 1), "bytes before": kernel.before, "bytes": kernel.after}
    kind = "extern call" if kernel.is_call else "fused kernel"
    return Entity(kernel_id(half, kernel), kind, kernel.name, attrs | {"least bytes": kernel.least}, (), origins)


def _tell(text: LinkedText, half: Fusion) -> None:
    if text.blocks:
        text.add("")
    text.add("\n".join(heading(half)))
    if half.refusals:
        text.add("\n".join(refusal_lines(half)))
    text.add("  Fused nodes and calls, in the order in which they run: nodes; bytes before fusion, now, and the least")
    rows = columns([kernel_row(kernel) for kernel in half.kernels], right=(1, 2, 3, 4)) if half.kernels else []
    for kernel, row in zip(half.kernels, rows, strict=True):
        text.add(f"    {row}".rstrip(), kernel_entity(half, kernel))


def heading(half: Fusion) -> Iterator[str]:
    """Nodes and kernels, and the bytes of a call."""
    nodes = sum(max(len(kernel.parts), 1) for kernel in half.kernels)
    rounds = f" in {pluralize(half.rounds, 'round')}" if half.rounds else ""
    calls = sum(kernel.is_call for kernel in half.kernels)
    kinds = ((half.launches, "kernel launch", "kernel launches"), (calls, "extern call", "extern calls"))
    became = " and ".join(f"{count:,} {one if count == 1 else many}" for count, one, many in kinds if count)
    yield f"Fusion, {half.title}: {pluralize(nodes, 'node')} became {became}{rounds}"
    yield (
        f"  A call moves {size_text(half.after)}; without fusion {size_text(half.before)}. With every byte once for "
        f"each kernel {size_text(half.least_each)}, if all were one kernel {size_text(half.least)}"
    )


def refusal_lines(half: Fusion) -> Iterator[str]:
    """Reasons, then the pairs with the largest potential saving."""
    yield f"  Not fused: {pluralize(len(half.refusals), 'pair')}; what one kernel would save at most"
    rows = [[str(count), size_text(size), words] for words, count, size in half.reasons()]
    yield from (f"    {row}" for row in columns(rows, right=(0, 1)))
    yield "  The largest potential savings:"
    yield from (f"    {row}" for row in columns(list(_alike(half))[:MOST_PAIRS], right=(0, 1)))


def _alike(half: Fusion) -> Iterator[list[str]]:
    """Pairs of the same kernels with the same reason together: how many, bytes in all, names, reason."""
    groups: dict[tuple[str, str, str], list[Refusal]] = {}
    for item in half.refusals:
        groups.setdefault((item.first.name, item.second.name, why(item)), []).append(item)
    for (first, second, words), items in sorted(groups.items(), key=lambda entry: -sum(i.bytes for i in entry[1])):
        times = f"{len(items)} ×" if len(items) > 1 else ""
        yield [times, size_text(sum(item.bytes for item in items)), f"{first} and {second}: {words}"]


def why(item: Refusal) -> str:
    """The reason, and torch's own text."""
    return f"{item.words} (torch: {item.told})" if item.told else item.words


def kernel_row(kernel: Kernel) -> list[str]:
    numbers = (kernel.before, kernel.after, kernel.least)
    again = f"reads {size_text(kernel.again)} more than once" if kernel.again else ""
    return [kernel.name, str(max(len(kernel.parts), 1)), *(size_text(number) for number in numbers), again]


def half_data(half: Fusion) -> dict[str, Any]:
    """One half for the front end: refusals name kernels and reasons by their numbers."""
    places = {id(kernel): number for number, kernel in enumerate(half.kernels)}
    reasons = half.reasons()
    numbers = {words: number for number, (words, _, _) in enumerate(reasons)}
    return {
        "title": half.title,
        "before": half.before,
        "after": half.after,
        "leastEach": half.least_each,
        "least": half.least,
        "rounds": half.rounds,
        "kernels": [kernel_data(half, kernel) for kernel in half.kernels],
        "reasons": [list(row) for row in reasons],
        "refusals": [
            [places[id(item.first)], places[id(item.second)], numbers[item.words], item.told, item.round, item.bytes]
            for item in half.refusals
        ],
    }


def kernel_data(half: Fusion, kernel: Kernel) -> dict[str, Any]:
    return {
        "id": kernel_id(half, kernel),
        "name": kernel.name,
        "library": kernel.is_call,
        "before": kernel.before,
        "after": kernel.after,
        "least": kernel.least,
        "tree": tree(kernel, half.merges),
        "parts": {part.label: [part.id, part.kind, str(part.attrs.get("what", ""))] for part in kernel.parts},
    }
