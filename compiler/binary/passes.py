"""The stage `passes`: what each of Triton's MLIR passes changed in a kernel, as a list with diffs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from compiler.binary.jobs import Output, PassFacts
from compiler.binary.pass_words import PASS_WORDS
from compiler.binary.pipelining import loop_words, unit_words, warp_words
from compiler.binary.results import artifact_id, line_groups
from compiler.binary.sources import KernelSource
from compiler.record import Artifact, Entity
from compiler.record.plain_text import pluralize
from compiler.targets import Target

STAGE = "passes"
MOST_OPERATIONS = 6


def passes_artifact(
    output: Output, source: KernelSource, config: int, target: Target, options: Mapping[str, Any], attrs: dict[str, Any]
) -> Artifact:
    """The artifact of a compiled kernel's passes: a summary, a list, and the diff of each pass that changed something.

    Its entities are the passes, and the lines of the kernel that the diffs are about.
    """
    kernel = source.kernel
    identity = artifact_id(STAGE, kernel, config)
    notes = [*summary(output, source.file, options, target)]
    text = [*notes, "", *_list_rows(output.passes), ""]
    lines: dict[int, tuple[str, ...]] = {}
    entities, places = [], Counter[int]()
    for number, found in enumerate((each for each in output.passes if _is_shown(each)), 1):
        entity_id = f"{identity}.P{number}"
        head, first = pass_title(found), len(text) + 1
        text.append(f"== {number}. {head}")
        lines[first] = (entity_id,)
        for row, place in zip(found.rows, found.places, strict=True):
            text.append(row)
            lines[len(text)] = (entity_id, f"{identity}.L{place}") if place else (entity_id,)
            places[place] += place > 0
        text += [*_after_rows(found), ""]
        facts = {
            "pipeline": found.pipeline, "argument": found.argument, "part": found.part, "removed": found.removed,
            "added": found.added, "operations": operations_text(found), "words": PASS_WORDS.get(found.argument, ""),
            "line": first, "last": len(text) - 1, "failed": found.failed,
        }  # fmt: skip
        name = f"{found.name}, {found.part}" if found.part else found.name
        entities.append(Entity(entity_id, "pass", name, facts, (), (kernel.id,)))
    entities += line_groups(identity, source, places)
    idle = [each.argument for each in output.passes if not _is_shown(each) and not each.part]
    return Artifact(
        identity, STAGE, kernel.name, "mlir", "\n".join(text).rstrip() + "\n", kernel.graph, lines, tuple(entities),
        {"kernel": kernel.id, **attrs, "notes": notes, "idle": idle}, kernel.half,
    )  # fmt: skip


def _is_shown(found: PassFacts) -> bool:
    return found.is_change or found.failed


def summary(output: Output, file: str, options: Mapping[str, Any], target: Target) -> Iterator[str]:
    """Sentences on a kernel: how many passes changed it, the units that it uses, its loops and its warps."""
    ran = [found for found in output.passes if not found.part]
    changed = sum(found.is_change for found in ran)
    asked = ", ".join(f"{name}={options[name]}" for name in ("num_warps", "num_stages", "num_ctas") if name in options)
    yield f"{pluralize(len(ran), 'pass', 'passes')} ran for {target.title} ({asked}); {changed} changed the code."
    ttgir = output.texts.get("ttgir", "")
    for words in unit_words(ttgir):
        yield f"{words[0].upper()}{words[1:]}."
    for line, words in loop_words(output.scheduled or ttgir, ttgir, file, options):
        yield f"Loop at line {line}: {words}." if line else f"A loop: {words}."
    if ttgir:
        words = warp_words(output.scheduled or ttgir, ttgir, target.triton_arch)
        yield f"{words[0].upper()}{words[1:]}."
    if output.error:
        failed = next((f" in the pass {found.name} ({found.argument})" for found in output.passes if found.failed), "")
        yield f"The compilation ended early{failed}: {output.error}"


def pass_title(found: PassFacts) -> str:
    """`to ttgir: TritonGPUCoalesce (tritongpu-coalesce), -3 +10: gives loads …`."""
    part = f", {found.part}" if found.part else ""
    words = PASS_WORDS.get(found.argument, "")
    counts = "failed" if found.failed else f"-{found.removed:,} +{found.added:,}"
    return f"to {found.pipeline}: {found.name}{part} ({found.argument}), {counts}{f': {words}' if words else ''}"


def operations_text(found: PassFacts) -> str:
    """The operations that a pass made more or less of, the largest changes first: `tt.load -2, ttg.local_alloc +2`."""
    ranked = sorted(found.operations.items(), key=lambda item: (-abs(item[1]), item[0]))
    left = len(ranked) - MOST_OPERATIONS
    more = f", and {pluralize(left, 'other')}" if left > 0 else ""
    return ", ".join(f"{name} {count:+,}" for name, count in ranked[:MOST_OPERATIONS]) + more


def _list_rows(found: Sequence[PassFacts]) -> Iterator[str]:
    shown = [each for each in found if _is_shown(each)]
    for number, each in enumerate(shown, 1):
        name = f"{each.name}, {each.part}" if each.part else each.name
        counts = "failed" if each.failed else f"-{each.removed:<6,} +{each.added:<6,}"
        yield f"{number:>3}  {each.pipeline:<5}  {name:<46}  {counts} {operations_text(each)}".rstrip()
    idle = [each for each in found if not _is_shown(each) and not each.part]
    if idle:
        names = Counter(each.argument for each in idle)
        words = ", ".join(f"{name} ({times} times)" if times > 1 else name for name, times in names.items())
        yield f"     {pluralize(len(idle), 'pass', 'passes')} changed nothing: {words}"


def _after_rows(found: PassFacts) -> Iterator[str]:
    if not found.compared:
        yield f"   Too long to compare line by line. Operations: {operations_text(found)}"
    if found.cut:
        yield f"   … {found.cut:,} more rows"
