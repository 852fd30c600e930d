"""Rules about memory traffic: copies, casts, unfused loops, reductions too small for a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product

from compiler.advise.facts import Advice, Change, Evidence, Gain, percent, seconds
from compiler.advise.reading import CASTS, JOINS, MOVES, KernelFacts, Reading
from compiler.advise.waiting import saved_seconds, whole_call
from compiler.inductor.fusion_words import reason_words
from compiler.record import Decision, Entity
from compiler.record.plain_text import pluralize, size_text

WORTH = 0.03
"""Minimum share of the kernels' time for which a kind of traffic is reported."""
TINY_BYTES = 256 * 1024
"""Bytes below which a reduction keeps a GPU busy for no longer than its launch takes."""
NARROWER = frozenset({"float32", "float16", "bfloat16"})
LEAST_TINY, MANY = 3, 0.1
"""Minimum number of such launches, and minimum share of all launches, to report them."""


def layout_copies(reading: Reading) -> Iterator[Advice]:
    """Report kernels that only copy data to another layout."""
    moves = [found for found in reading.kernels if _only_moves(found) and not _casts(reading, found)]
    copies = [found for found in moves if not JOINS & set(found.operators)]
    yield from _advise_on_copies(
        reading, copies, "layout-copies", "Copies for another layout",
        "Have the data in the layout that is read: make it contiguous once, outside of the call (weights above all), "
        "keep images in channels_last, or put transposes where a matmul can take them as they are.",
    )  # fmt: skip


def dtype_casts(reading: Reading) -> Iterator[Advice]:
    """Report kernels that only convert data to another dtype."""
    casts = [found for found in reading.kernels if _only_moves(found) and _casts(reading, found)]
    yield from _advise_on_copies(
        reading, casts, "dtype-casts", "Casts to another format",
        "Keep what is cast at each call in the format that is used: under autocast, weights are cast again in each "
        "call; model.to(torch.bfloat16) holds them so (and trains in it: keep a float32 copy for the optimizer).",
    )  # fmt: skip


_OF_CODE = re.compile(r"^G\[|\._buffers\[")
"""Sources of inputs that are constants of the program: globals and buffers."""


def double_precision(reading: Reading) -> Iterator[Advice]:
    """Report float64 that a constant brings into a computation whose inputs have narrower numbers."""
    inputs = {
        entity.attrs.get("dtype") for artifact in reading.record.of_stage("captured") for entity in artifact.entities
        if entity.kind == "placeholder" and not _OF_CODE.search(str(entity.attrs.get("source", "")))
    }  # fmt: skip
    known = reading.entities
    wide = {name for found in reading.kernels for name in found.nodes if known[name].attrs.get("dtype") == "float64"}
    mixed = [
        name for name in sorted(wide) if any(
            known[each].attrs.get("dtype") in NARROWER and known[each].attrs.get("shape")
            for each in known[name].inputs if each in known
        )
    ]  # fmt: skip
    if not mixed or "float64" in inputs or not inputs & NARROWER:
        return
    are = "operation of the graph is" if len(wide) == 1 else "operations of the graph are"
    found = f"{len(wide)} {are} in float64, and no argument of the call is."
    told = "PyTorch promotes: a float64 tensor with dimensions turns all that it is combined with into float64."
    moved = sum(each.bytes for each in reading.kernels if wide & set(each.nodes))
    change = Change(
        "Make the constant in the dtype of the data: dtype=x.dtype, torch.as_tensor(array, dtype=x.dtype). NumPy's "
        "arrays are float64 unless told."
    )
    evidence = (
        Evidence(told, "recorded", (*mixed[:1], *reading.lines(mixed[:1]))),
        Evidence(f"The kernels with them read and write {size_text(moved)}; float64 has twice the bytes of float32."),
    )
    numbers = "Results are then float32, with its rounding."
    yield Advice("float64", "Float64 by promotion", found, evidence, None, change, numbers)


def _only_moves(found: KernelFacts) -> bool:
    return bool(found.operators) and set(found.operators) <= MOVES and not found.is_matmul


def _casts(reading: Reading, found: KernelFacts) -> bool:
    """Whether a kernel converts to another dtype."""
    if not set(found.operators) & CASTS:
        return False
    known = reading.entities
    nodes = [known[name] for name in found.nodes if name in known]
    dtypes = ((node, known[name].attrs.get("dtype")) for node in nodes for name in node.inputs if name in known)
    return any(dtype and dtype != node.attrs.get("dtype") for node, dtype in dtypes)


def _advise_on_copies(
    reading: Reading, kernels: Sequence[KernelFacts], rule: str, title: str, change: str
) -> Iterator[Advice]:
    """Advice on kernels that only move data; none if they are a small part of the whole."""
    moved = sum(found.bytes for found in kernels)
    whole = sum(found.bytes for found in reading.kernels)
    took = sum(found.time for found in kernels)
    share = took / reading.kernel_seconds if reading.kernel_seconds else moved / whole if whole else 0.0
    if not kernels or share < WORTH:
        return
    what = f"{'convert' if rule == 'dtype-casts' else 'rearrange'}{'s' * (len(kernels) == 1)}"
    part = "kernels' time" if reading.kernel_seconds else "bytes moved"
    found = f"{pluralize(len(kernels), 'kernel')} only {what} data: {percent(share)} of the {part}."
    told = f"They read and write {size_text(moved)} of {size_text(whole)} in a call."
    evidence = reading.evidence(told, sorted(kernels, key=lambda found: -found.bytes))
    yield Advice(rule, title, found, evidence, _traffic_gain(reading, took), Change(change))


def _traffic_gain(reading: Reading, took: float) -> Gain | None:
    """Half of the kernels' time, as the layout of inputs and outputs can't always be chosen; None if it is 0."""
    gained = 0.5 * saved_seconds(reading, took)
    if not gained:
        return None
    what = "these kernels take" if reading.kernel_basis == "measured" else "the bytes take at full bandwidth"
    how = f"half of the {seconds(took)} that {what}"
    return Gain(gained, "call", how, "estimate", gained / whole_call(reading))


def unfused_loops(reading: Reading) -> Iterator[Advice]:
    """Report producer and consumer loops that were not fused, with the reasons."""
    pairs = sorted(_refused_pairs(reading), key=lambda pair: -pair[0])
    between = sum(moved for moved, *_ in pairs)
    whole = sum(found.bytes for found in reading.kernels)
    gain = _fusion_gain(reading, between)
    is_little = gain is None or (gain.share or 0.0) < WORTH
    if not pairs or not whole or between < WORTH * whole or (reading.gpu is not None and is_little):
        return
    found = (
        f"{pluralize(len(pairs), 'pair')} of loops stay separate kernels though one reads what the other writes: "
        f"{size_text(between)} go through memory, {percent(min(between / whole, 1.0))} of all that a call moves."
    )
    evidence = tuple(_pair_evidence(reading, *pair) for pair in pairs[:3])
    yield Advice("not-fused", "Neighbours that were not fused", found, evidence, gain, Change(_remedy(pairs)))


def _refused_pairs(reading: Reading) -> Iterator[tuple[int, Decision, Entity, Entity]]:
    """Yield pairs of loops that were not fused: the bytes between them, the decision, and the two loops."""
    homes = _kernel_of_parts(reading)
    merged = _loops_of_merges(reading)
    seen = set[tuple[str, str]]()
    refused = [*reading.decisions("fusion", "refused"), *reading.decisions("fuse", "refused")]
    for found in reversed(refused):
        if len(found.subjects) != 2:
            continue
        loops = [merged.get(name, (name,)) for name in found.subjects]
        for names in product(*loops):
            if all(name in reading.entities for name in names):
                first, second = (reading.entities[name] for name in names)
                between = int(found.numbers["bytes"]) if found.pass_name == "fuse" else _bytes_between(first, second)
                key = (homes.get(first.id, first.id), homes.get(second.id, second.id))
                if between and key[0] != key[1] and key not in seen:
                    seen.add(key)
                    yield between, found, first, second


def _loops_of_merges(reading: Reading) -> dict[str, tuple[str, ...]]:
    """The loops in each node that Inductor fused, by the node's id in decisions: `ir[…].op2_op3`."""
    artifacts: dict[tuple[str, str], str] = {
        (artifact.graph, artifact.half): artifact.id for artifact in reading.record.of_stage("ir")
    }
    loops: dict[str, tuple[str, ...]] = {}
    for merge in reading.record.merges:
        prefix = artifacts.get((merge.graph, merge.kind), "")
        first, second, name = (f"{prefix}.{part}" for part in (merge.first, merge.second, merge.name))
        loops[name] = (*loops.get(first, (first,)), *loops.get(second, (second,)))
    return loops


def _kernel_of_parts(reading: Reading) -> dict[str, str]:
    """Id of the fused node that contains each loop."""
    return {
        part: str(entity.attrs.get("inside", entity.id))
        for stage in ("fused_ir", "fused")
        for artifact in reading.record.of_stage(stage)
        for entity in artifact.entities
        for part in entity.origins
    }


def _bytes_between(first: Entity, second: Entity) -> int:
    """Bytes that `first` writes and `second` reads; 0 if one of them is a library call."""
    if "extern" in (first.kind, second.kind):
        return 0
    shared = set(first.attrs.get("writes", ())) & set(second.attrs.get("reads", ()))
    moves = second.attrs.get("moves", {})
    return sum(int(moves.get(name, 0)) for name in shared)


def _pair_evidence(reading: Reading, moved: int, decision: Decision, first: Entity, second: Entity) -> Evidence:
    ids = (first.id, second.id)
    why = decision.why
    if decision.pass_name == "fusion":
        why = f"{reason_words(why)} (torch: {why})"
    told = f"{first.label} and {second.label}: {size_text(moved)}: {why}."
    return Evidence(told, "recorded", (*ids, *reading.lines(ids)))


def _fusion_gain(reading: Reading, between: int) -> Gain | None:
    if reading.gpu is None:
        return None
    took = saved_seconds(reading, between / reading.gpu.memory_bandwidth)
    if not took:
        return None
    how = (
        f"the {size_text(between)} need not be read again: at full bandwidth {seconds(took)}, if all "
        "of these could be fused"
    )
    return Gain(took, "call", how, "estimate", took / whole_call(reading))


_REMEDIES: tuple[tuple[str, str], ...] = (
    (
        "numel|different numbers of points",
        "their loops run over different sizes: reduce over the same dimensions, or reshape so that the sizes agree",
    ),
    ("intermediate nodes|a step between them", "another operation stands between them: reorder what is computed"),
    (
        "too many reads",
        "one would read too many buffers at once: split the expression, or raise realize_reads_threshold",
    ),
    ("peak memory", "fusing would keep more memory alive: it is a choice of Inductor's to protect memory"),
    (
        "reduce over different",
        "each has to go over all elements before the other begins: reduce over the same dimensions where that will do",
    ),
    ("the other reads", "they meet the elements in different orders, as after a transpose: make the layouts agree"),
    ("strides", "they go through memory in different orders: make the layouts agree (contiguous, channels_last)"),
)


def _remedy(pairs: Sequence[tuple[int, Decision, Entity, Entity]]) -> str:
    """Remedy for the reasons of the first three pairs: the first in `_REMEDIES` that matches."""
    why = " ".join(decision.why for _, decision, *_ in pairs[:3])
    remedies = (text for pattern, text in _REMEDIES if re.search(pattern, why))
    return f"Not always possible: {next(remedies, 'the reasons above say what keeps them apart')}."


def tiny_reductions(reading: Reading) -> Iterator[Advice]:
    """Report reductions that are so small that they take no longer than their launch."""
    if not reading.on_gpu:
        return
    tiny = [found for found in reading.kernels if found.kernel.category == "reduction" and 0 < found.bytes < TINY_BYTES]
    launches = sum(max(found.kernel.calls, 1) for found in tiny)
    if launches < LEAST_TINY or launches < MANY * reading.launches:
        return
    found = (
        f"{launches} of {pluralize(reading.launches, 'launch', 'launches')} are reductions over less than "
        f"{size_text(TINY_BYTES)}: each takes about as long to launch as to run."
    )
    evidence = reading.evidence(f"They move {', '.join(size_text(each.bytes) for each in tiny[:3])}.", tiny)
    change = Change(
        "Reduce several at once (stack them and reduce along a dimension), or have CUDA graphs launch them: "
        "mode='reduce-overhead'. Losses and metrics of every step can be summed up and read now and then."
    )
    yield Advice("tiny-reductions", "Tiny reductions", found, evidence, None, change)
