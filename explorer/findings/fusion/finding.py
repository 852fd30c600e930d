"""Fusion as a document: for each kernel its nodes, fusion steps and bytes moved; then the unfused pairs by reason, with
their cost in bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from compiler.record import Entity, Record
from compiler.record.plain_text import pluralize, size_text
from explorer.findings.fusion.fusion import Fusion, Kernel, Refusal, fusions, tree
from explorer.render.document import Bar, Choice, Fold, Items, Link, Only, Parts, Piece, Row, Section, Table, Tag, Text
from explorer.render.finding import Finding
from explorer.render.text import document_finding

STAGE = "fusion"
MOST_PAIRS = 12
"""Maximum number of unfused pairs in the text of each half; `run.fusion.unfused` has all pairs."""
ORDERS = ("as they run", "by bytes moved", "by bytes saved", "by potential saving")
LIMITS = (
    "One kernel in place of two would save at most the bytes in front of a pair. Their sum counts tensors that several "
    "pairs share more than once."
)


def fusion_finding(record: Record) -> Finding | None:
    """Finding of the fusion stage; None unless the record has the stages before and after fusion."""
    found = fusions(record) if record.of_stage("ir") or record.of_stage("lowered") else []
    if not found:
        return None
    entities = {kernel_id(half, kernel): kernel_entity(half, kernel) for half in found for kernel in half.kernels}
    halves = tuple((half.title, (half_section(half),)) for half in found)
    launches = _count_words(sum(half.launches for half in found), "launch", "launches")
    document = [Choice("Half of the graph", halves, "menu")]
    return document_finding(STAGE, "fusion", document, entities, launches, is_open=False)


def kernel_id(half: Fusion, kernel: Kernel) -> str:
    """Id of a kernel's entity in this finding."""
    return f"fusion[{half.title}].{kernel.node.label}"


def kernel_entity(half: Fusion, kernel: Kernel) -> Entity:
    """Entity of a kernel, linked to its call in the generated code, else to its scheduler node."""
    call = kernel.call
    definition = f"kernels[{half.title}].{call.label}" if call is not None and call.kind == "call" else ""
    origins = (kernel.node.id,) if call is None else (call.id, definition) if definition else (call.id,)
    attrs = {"nodes": kernel.nodes, "bytes before": kernel.before, "bytes": kernel.after, "least bytes": kernel.least}
    kind = "extern call" if kernel.is_call else "fused kernel"
    return Entity(kernel_id(half, kernel), kind, kernel.name, attrs, (), origins)


def half_section(half: Fusion) -> Section:
    """Section of one half (forward, backward or inference): totals, bytes per call, kernels, and unfused pairs."""
    rounds = f" in {pluralize(half.rounds, 'round')}" if half.rounds else ""
    calls = sum(kernel.is_call for kernel in half.kernels)
    kinds = ((half.launches, "kernel launch", "kernel launches"), (calls, "extern call", "extern calls"))
    became = " and ".join(_count_words(*kind) for kind in kinds if kind[0])
    nodes = sum(kernel.nodes for kernel in half.kernels)
    heading = f"Fusion, {half.title}: {pluralize(nodes, 'node')} became {became}{rounds}"
    views = (
        (f"Fused nodes and calls {len(half.kernels):,}", _drawn_kernels(half)),
        (f"Not fused {len(half.refusals):,}", _every_pair(half)),
    )
    drawn = Only(("view",), (_drawn_totals(half), Choice("What is shown", views)))
    return Section((Only(("text", "html"), tuple(_text_parts(half))), drawn), heading, "half")


def _text_parts(half: Fusion) -> Iterator[Parts]:
    """Text of a half: totals, refusals by reason and by pair, and a line for each kernel."""
    yield Text(
        f"A call moves {size_text(half.after)}; without fusion {size_text(half.before)}. With every byte once for each "
        f"kernel {size_text(half.least_each)}, if all were one kernel {size_text(half.least)}",
        "line",
    )
    if half.refusals:
        reasons = tuple(Row((str(count), size_text(size), words)) for words, count, size in half.reasons())
        pairs = tuple(_pairs_alike(half))[:MOST_PAIRS]
        title = f"Not fused: {pluralize(len(half.refusals), 'pair')}; what one kernel would save at most"
        yield Section((Table((), reasons, right=(0, 1)),), title)
        yield Section((Table((), pairs, right=(0, 1)),), "The largest potential savings:")
    title = "Fused nodes and calls, in the order in which they run: nodes; bytes before fusion, now, and the least"
    rows = tuple(Row(_numbers(kernel), (kernel_id(half, kernel),)) for kernel in half.kernels)
    yield Section((Table((), rows, right=(1, 2, 3, 4)),) if rows else (), title)


def _pairs_alike(half: Fusion) -> Iterator[Row]:
    """Rows of unfused pairs by kernel names and reason, most bytes first: count, total bytes, names, reason."""
    groups: dict[tuple[str, str, str], list[Refusal]] = {}
    for item in half.refusals:
        why = f"{item.words} (torch: {item.told})" if item.told else item.words
        groups.setdefault((item.first.name, item.second.name, why), []).append(item)
    for (first, second, words), items in sorted(groups.items(), key=lambda entry: -sum(i.bytes for i in entry[1])):
        times = f"{len(items)} ×" if len(items) > 1 else ""
        yield Row((times, size_text(sum(item.bytes for item in items)), f"{first} and {second}: {words}"))


def _numbers(kernel: Kernel) -> tuple[str, ...]:
    sizes = map(size_text, (kernel.before, kernel.after, kernel.least))
    again = f"reads {size_text(kernel.again)} more than once" if kernel.again else ""
    return (kernel.name, str(kernel.nodes), *sizes, again)


def _drawn_totals(half: Fusion) -> Table:
    """Bytes that one call moves: without fusion, as generated, and the two lower bounds."""
    amounts = (
        ("without fusion", half.before, "before", "Every node a kernel of its own"),
        ("as generated", half.after, "now", "What the generated kernels and calls read and write"),
        ("each byte once for each kernel", half.least_each, "least",
         "Inputs and outputs of each kernel: what it would move if it read nothing twice"),
        ("all in one kernel", half.least, "least",
         "Inputs and outputs of the graph: no intermediate would touch memory"),
    )  # fmt: skip
    rows = (Row((name, Bar(((size, colour),), "call"), size_text(size)), title=title)
            for name, size, colour, title in amounts)  # fmt: skip
    return Table((), tuple(rows), right=(2,), style="totals", label="Bytes that one call moves")


def _drawn_kernels(half: Fusion) -> tuple[Parts, ...]:
    """Table with a row for each kernel: bars of its bytes, its fusion steps, and its unfused neighbours."""
    near: dict[int, list[Refusal]] = defaultdict(list)
    for item in half.refusals:
        near[id(item.first)].append(item)
        near[id(item.second)].append(item)
    rows = tuple(_kernel_row(half, kernel, near[id(kernel)]) for kernel in half.kernels)
    return (Table((), rows, right=(2,), style="kernels", label="Kernels", orders=ORDERS),)


def _kernel_row(half: Fusion, kernel: Kernel, near: Sequence[Refusal]) -> Row:
    saved, stake = kernel.before - kernel.after, sum(item.bytes for item in near)
    facts = ["extern call" if kernel.is_call else pluralize(kernel.nodes, "node")]
    facts += [f"saves {size_text(saved)}"] if saved > 0 else []
    facts += [f"potential saving {size_text(stake)}"] if stake else []
    sizes = [size_text(size) for size in (kernel.before, kernel.after, kernel.least)]
    title = f"Before {sizes[0]}, now {sizes[1]}, at least {sizes[2]}"
    bar = Bar(((kernel.before, "before"), (kernel.after, "now")), "kernels", kernel.least, title)
    size: list[Piece] = [f"{sizes[0]} → {sizes[1]}" if saved > 0 else sizes[1]]
    if kernel.again:
        size.append(Tag(f"{size_text(kernel.again)} more than once", "small", "Bytes that it reads more than once"))
    name = (Tag(kernel.name, "code", kernel.name), Tag(" · ".join(facts), "small"))
    more = tuple(_detail_folds(half, kernel, near))
    return Row((name, bar, tuple(size)), (kernel_id(half, kernel),), parts=more, keys=(kernel.after, saved, stake))


def _detail_folds(half: Fusion, kernel: Kernel, near: Sequence[Refusal]) -> Iterator[Fold]:
    """Folds of a kernel: its fusion steps, and its unfused neighbours."""
    merges = half.steps(kernel)
    title = [pluralize(max(merge.round for merge in merges), "round") + " of fusion"] if merges else []
    title += [f"{pluralize(len(near), 'neighbour')} not fused"] if near else []
    if not title or (kernel.is_call and not near):
        return
    parts: list[Parts] = []
    if merges:
        known = {part.label: part for part in kernel.parts}
        parts.append(Items(tuple(_tree_lines(tree(kernel, half.merges), known)), "How it was put together"))
    if near:
        rows = (_pair_row(item, [other for other in (item.first, item.second) if other is not kernel], half)
                for item in near)  # fmt: skip
        parts.append(Table((), tuple(rows), right=(0,), style="pairs", label="Neighbours"))
    yield Fold(" · ".join(title), tuple(parts))


def _tree_lines(node: object, known: Mapping[str, Entity], depth: int = 0) -> Iterator[tuple[Piece, ...]]:
    """Lines of a fusion tree: each merge above its two inputs, the last merge first."""
    indent = "\u2003" * depth
    if isinstance(node, str):
        part = known.get(node)
        what = str(part.attrs.get("what", "")) if part else ""
        kind = " ".join(dict.fromkeys([part.kind, what.lower() and what])) if part else ""
        yield indent, Link(node, id=part.id, title=f"Select {part.id}") if part else node, Tag(f" {kind}", "muted")
    elif isinstance(node, list):
        number, saved, *two = node
        yield indent, f"round {number} ", Tag(f"{size_text(saved)} shared", "muted")
        for inner in two:
            yield from _tree_lines(inner, known, depth + 1)


def _every_pair(half: Fusion) -> tuple[Parts, ...]:
    """All unfused pairs, with a filter by reason."""
    reasons = half.reasons()
    numbers = {words: number for number, (words, _, _) in enumerate(reasons, 1)}
    groups = (f"all reasons · {len(half.refusals):,}",
              *(f"{count:,} · {size_text(size)} · {words}" for words, count, size in reasons))  # fmt: skip
    rows = (_pair_row(item, (item.first, item.second), half, numbers[item.words]) for item in half.refusals)
    table = Table((), tuple(rows), right=(0,), style="pairs", label="Reason", groups=groups)
    return Text(LIMITS, "why"), table


def _pair_row(item: Refusal, shown: Sequence[Kernel], half: Fusion, group: int = 0) -> Row:
    words: list[Piece] = []
    for kernel in shown:
        words += [" and "] if words else []
        words.append(Link(kernel.name, id=kernel_id(half, kernel), title="Select this kernel"))
    words.append(Tag(item.words, "small"))
    if item.told:
        words.append(Tag(f"torch, round {item.round}: `{item.told}`", "small"))
    return Row((size_text(item.bytes), tuple(words)), group=group)


def _count_words(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
