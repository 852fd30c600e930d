"""Rules about collectives: buckets, small messages, kept gathers, redistributions that cancel, exposed communication,
code that depends on the rank.

Their changes are tried by simulation: the call is explored again with the change, and collectives, bytes and estimated
times are compared (`compiler.advise.simulate`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from compiler.advise.facts import Advice, Change, Evidence, Gain, percent, seconds
from compiler.advise.reading import MOVES, Reading, operator_of
from compiler.distributed.rank_branches import captured_branches
from compiler.record import Collective, CollectiveKind, Entity, Record
from compiler.record.plain_text import pluralize, size_text
from compiler.timing.overlap import HIDDEN, Schedule, schedules, with_earliest_starts

BUCKETS: Mapping[CollectiveKind, str] = {
    "all_gather": "bucket_all_gathers_fx", "reduce_scatter": "bucket_reduce_scatters_fx",
    "all_reduce": "bucket_all_reduces_fx",
}  # fmt: skip
"""The option of Inductor that buckets collectives of a kind."""
PASSES: Mapping[str, Mapping[str, object]] = {
    "bucketing": {"bucket_all_gathers_fx": "all", "bucket_reduce_scatters_fx": "all"},
    "overlap scheduling": {
        "aten_distributed_optimizations.enable_overlap_scheduling": True,
        "aten_distributed_optimizations.compute_estimator": "analytical",
    },
    "reordering": {"reorder_for_compute_comm_overlap": True},
    "async TP": {"_micro_pipeline_tp": True},
}
"""Inductor's passes on communication, by name, with the options that turn them on."""
LEAST_BUCKETED = 4
WORTH = 0.05
"""Minimum share of the communication for which exposed time, or latency, is reported."""
LATENCY = 0.5
"""A message is small if more than this share of its estimated time is latency."""


def unbucketed_collectives(reading: Reading) -> Iterator[Advice]:
    """Report many collectives of one kind, group and dtype that could go in one message each half."""
    record = reading.record
    if any(record.options.options.get(option, "none") != "none" for option in BUCKETS.values()):
        return
    many = _buckets(reading)
    if not many:
        return
    options: dict[str, object] = {BUCKETS[group[0].kind]: "all" for group in many}
    evidence = tuple(
        Evidence(
            f"{len(group)} × {group[0].kind} in the {group[0].half or 'graph'}, {size_text(_mean(group))} on average, "
            f"all over {group[0].group_size} ranks.",
            ids=(group[0].entities[0], *reading.lines(group[0].entities)),
        )
        for group in many
    )
    yield Advice(
        "bucket-collectives", "Collectives could be bucketed",
        f"{sum(map(len, many))} collectives send their messages one by one. In buckets, each latency is paid once.",
        evidence, _bucket_gain(many, record), _with_options(record, "Let Inductor put them into buckets.", options),
    )  # fmt: skip


def _with_options(record: Record, text: str, options: Mapping[str, object]) -> Change:
    """The record's options and these, without those that this version of torch refuses."""
    from compiler.torch_api.settings import known_options  # imports Inductor, which is not needed to read a record

    return Change(text, {"options": {**record.options.options, **known_options(options)}})


def _buckets(reading: Reading) -> list[list[Collective]]:
    """Collectives that could share a message: of one half, kind, group and dtype, and none needs another's result."""
    found: dict[tuple[object, ...], list[Collective]] = {}
    for each in reading.record.collectives:
        if each.origin == "graph" and each.entities and each.kind in BUCKETS:
            found.setdefault((each.graph, each.half, each.kind, each.group, each.dtype), []).append(each)
    buckets = (bucket for group in found.values() for bucket in _independent_collectives(group, reading))
    return [bucket for bucket in buckets if len(bucket) >= LEAST_BUCKETED]


def _independent_collectives(group: Sequence[Collective], reading: Reading) -> list[list[Collective]]:
    """The collectives of one graph in sets of which none needs another's result."""
    own = {found.entities[0]: found for found in group}
    home = reading.homes.get(group[0].entities[0])
    before: dict[str, int] = {}
    for entity in home.entities if home is not None else ():
        before[entity.id] = max((before.get(name, 0) + (name in own) for name in entity.inputs), default=0)
    sets: dict[int, list[Collective]] = {}
    for node, found in own.items():
        sets.setdefault(before.get(node, 0), []).append(found)
    return list(sets.values())


def _mean(group: Sequence[Collective]) -> float:
    return sum(found.bytes for found in group) / len(group)


def _bucket_gain(many: Sequence[Sequence[Collective]], record: Record) -> Gain | None:
    """Time of the messages less that of one message each half, by torch's cost model; None without a model."""
    if any(found.seconds is None for group in many for found in group):
        return None
    now = sum(found.seconds or 0.0 for group in many for found in group)
    then = sum(_estimate(group[0], sum(found.bytes for found in group), record) for group in many)
    how = f"torch's cost model gives {seconds(now)} for the messages, {seconds(then)} for one bucket of each kind"
    return Gain(now - then, "call", how) if now > then else None


def _estimate(found: Collective, size: int, record: Record) -> float:
    """Estimated seconds of a collective with a message of this size."""
    from compiler.distributed.collectives import with_estimate  # imports torch, which is not needed to read a record

    groups = {group.name: group for group in record.groups}
    sized = replace(found, input_bytes=size, output_bytes=size, seconds=None)
    return with_estimate(sized, groups.get(found.group), record.place, record.target).seconds or 0.0


def small_messages(reading: Reading) -> Iterator[Advice]:
    """Report messages whose time is mostly latency, if no bucket can take them."""
    record = reading.record
    alike = {id(found) for bucket in _buckets(reading) for found in bucket}
    small = [
        found
        for found in record.collectives
        if found.seconds and id(found) not in alike and _estimate(found, 1, record) > LATENCY * found.seconds
    ]
    total = sum(found.seconds or 0.0 for found in record.collectives)
    took = sum(found.seconds or 0.0 for found in small)
    if not small or took < WORTH * total:
        return
    sizes = sorted(found.bytes for found in small)
    words = size_text(sizes[0]) if sizes[0] == sizes[-1] else f"{size_text(sizes[0])} to {size_text(sizes[-1])}"
    text = (
        f"{pluralize(len(small), 'message')} of {words}: over half of the {seconds(took)} is latency, which no network "
        "makes shorter."
    )
    ids = tuple(found.entities[0] for found in small[:5] if found.entities)
    yield Advice(
        "small-messages", "Small messages", text,
        (Evidence(f"{percent(took / total)} of the communication's time.", "estimate", (*ids, *reading.lines(ids))),),
        change=Change("Send more at once: a larger batch, tensors that are stacked before the collective, or a smaller "
                      "group (fewer ranks in this dimension of the mesh)."),
    )  # fmt: skip


def kept_gathers(reading: Reading) -> Iterator[Advice]:
    """Report gathered tensors that the forward keeps for the backward."""
    kept = [found for found in reading.record.collectives if found.kind == "all_gather" and _is_kept(found, reading)]
    if not kept:
        return
    size = sum(found.output_bytes for found in kept)
    ids = tuple(found.entities[0] for found in kept[:5])
    yield Advice(
        "kept-gathers", "Gathers are kept for the backward",
        f"{pluralize(len(kept), 'gathered tensor')}, {size_text(size)}, stay in memory from the forward to the "
        f"backward. The shards take {size_text(sum(found.input_bytes for found in kept))}.",
        (Evidence(f"{size:,} bytes are saved between the halves.", ids=(*ids, *reading.lines(ids))),),
        change=Change(
            "Gather again in the backward: checkpoint each block with a policy that recomputes all_gather_into_tensor "
            "and wait_tensor (CheckpointPolicy.MUST_RECOMPUTE); for fully_shard, reshard_after_forward=True. That "
            "sends as many bytes again and frees the memory in between."
        ),
    )  # fmt: skip


def _is_kept(found: Collective, reading: Reading) -> bool:
    """Whether the backward reads the result of a gather in the forward's graph, as it is or as a view."""
    if found.half != "forward" or not found.entities:  # FSDP's hooks gather outside of the graphs
        return False
    backward = next(
        (artifact for artifact in reading.record.of_stage("backward") if artifact.graph == found.graph), None
    )
    if backward is None:
        return False
    saved = {name for entity in backward.entities for name in entity.attrs.get("forward", ()) if _is_saved(entity)}
    todo = [name for name in _forward_nodes(found.wait or found.entities[0], reading) if name in reading.entities]
    seen = set(todo)
    while todo:
        name = todo.pop()
        if name in saved:
            return True
        views = [user.id for user in reading.users_of(name) if operator_of(user) in MOVES and user.id not in seen]
        seen.update(views)
        todo += views
    return False


def _is_saved(entity: Entity) -> bool:
    return entity.attrs.get("role") == "saved by the forward"


def _forward_nodes(node: str, reading: Reading) -> Iterator[str]:
    """The node of AOTAutograd's forward that a node of the last graph comes from."""
    entity = reading.entities.get(node)
    if entity is not None and reading.homes[node].stage == "forward":
        yield node
    elif entity is not None:
        yield from (name for name in entity.origins if name in reading.homes and reading.homes[name].stage == "forward")


def cancelling_redistributions(reading: Reading) -> Iterator[Advice]:
    """Report a redistribution whose result only goes into one that undoes it, or of which a rank keeps its own part."""
    undone = {"all_gather": ("reduce_scatter",), "all_to_all": ("all_to_all",), "all_reduce": ()}
    known = {found.entities[0]: found for found in reading.record.collectives if found.entities}
    pairs: list[tuple[Collective, Collective | None]] = []
    for node, found in known.items():
        if found.kind not in undone or node not in reading.homes:
            continue
        start = found.wait or node
        read = _values_read(start, reading)
        users = {user.id for _, ends in read for user in ends}
        other = known.get(users.pop()) if len(users) == 1 else None
        if other is not None and other.group == found.group and other.kind in undone[found.kind]:
            pairs.append((found, other))
        elif found.kind != "all_to_all" and _is_mostly_dropped(start, [value for value, _ in read], reading):
            pairs.append((found, None))
    if not pairs:
        return
    size = sum(found.bytes + (other.bytes if other else 0) for found, other in pairs)
    verb = "is" if len(pairs) == 1 else "are"
    evidence = tuple(
        Evidence(
            f"{found.kind} of {size_text(found.bytes)}, then {other.kind if other else 'only a part of it is read'}.",
            ids=(*found.entities[:1], *reading.lines(found.entities)),
        )
        for found, other in pairs[:5]
    )
    yield Advice(
        "cancelling-redistributions", "Redistributions cancel",
        f"{pluralize(len(pairs), 'redistribution')} of {size_text(size)} in all {verb} undone before anything computes "
        "with the result.",
        evidence,
        change=Change("Give both layers the same placement, so that nothing is redistributed between them: "
                      "output_layouts of the first and input_layouts of the second, with use_local_output=False."),
    )  # fmt: skip


def _is_mostly_dropped(start: str, read: Sequence[Entity], reading: Reading) -> bool:
    """Whether at most half of a value is read, of which these are the parts."""
    sizes = [_elements(value) for value in read]
    return bool(sizes) and all(sizes) and 2 * sum(sizes) <= _elements(reading.entities[start])


def _elements(entity: Entity) -> int:
    """Number of elements of a call's result; 0 for a symbolic shape, and for several results."""
    shape = entity.attrs.get("shape", ())
    return prod(shape) if shape and all(isinstance(size, int) for size in shape) else 0


def _values_read(start: str, reading: Reading) -> list[tuple[Entity, list[Entity]]]:
    """A value and its views, copies and parts that other calls read, each with these calls."""
    todo, seen = [start], {start}
    found: list[tuple[Entity, list[Entity]]] = []
    while todo:
        name = todo.pop()
        users = reading.users_of(name)
        moves = [user.id for user in users if operator_of(user) in MOVES]
        ends = [user for user in users if operator_of(user) not in MOVES]
        found += [(reading.entities[name], ends)] if ends else []
        todo += [move for move in moves if move not in seen]
        seen.update(moves)
    return found


def exposed_communication(reading: Reading) -> Iterator[Advice]:
    """Report communication that the code waits for, and whether other kernels could run during it."""
    for schedule in schedules(reading.record):
        waiting = schedule.exposed_seconds
        if schedule.unknown or not waiting or waiting < WORTH * schedule.seconds:
            continue
        if not any(found.graph == schedule.graph for found in reading.record.of_stage("post_grad")):
            continue  # nothing says which kernel needs a result
        yield _exposed_advice(schedule, with_earliest_starts(schedule, reading.record), reading)


def _exposed_advice(schedule: Schedule, earliest: Schedule, reading: Reading) -> Advice:
    record, waiting = reading.record, schedule.exposed_seconds
    movable = schedule.seconds - earliest.seconds
    worst = sorted(filter(schedule.exposed.__getitem__, schedule.exposed), key=lambda name: -schedule.exposed[name])[:5]
    known = {found.id: found for found in record.collectives}
    evidence = tuple(_exposed_evidence(known[name], schedule, earliest, reading) for name in worst)
    found = (
        f"In the {schedule.title}, the code stands still for {seconds(waiting)} of {seconds(schedule.seconds)} "
        f"({percent(waiting / schedule.seconds)}), waiting for collectives."
    )
    asked = record.options.options
    has_pass = any(set(PASSES[name]) & set(asked) for name in ("overlap scheduling", "reordering"))
    rule = f"exposed-communication {schedule.half}".strip()
    if movable < WORTH * schedule.seconds or has_pass:
        change = Change(
            "Give each collective something to hide behind: larger batches or hidden sizes, so that kernels take "
            "longer than messages; a mesh that keeps this group inside of a node; for tensor parallel, async TP "
            '(torch.compile option "_micro_pipeline_tp"), which cuts a matmul and its collective into pieces.'
        )
        return Advice(rule, "Communication can't overlap", found, evidence, change=change)
    how = (
        "an upper bound: the same kernels in the same order, each collective starts as soon as its input is there, and "
        "neither slows the other down; gathered tensors stay longer in memory"
    )
    change = _with_options(record, "Let Inductor start collectives earlier.", PASSES["overlap scheduling"])
    return Advice(rule, "Communication could overlap", found, evidence, Gain(movable, "call", how), change)


def _exposed_evidence(found: Collective, schedule: Schedule, earliest: Schedule, reading: Reading) -> Evidence:
    lost, left = schedule.exposed[found.id], earliest.exposed[found.id]
    if left < HIDDEN * lost:
        why = "kernels that don't need it can hide it"
    elif lost - left >= WORTH * lost:
        why = f"kernels that don't need it can hide {seconds(lost - left)} of it"
    else:
        why = "no kernel can run meanwhile, as each makes its input or needs its result"
    text = f"{found.kind} of {size_text(found.bytes)}: {seconds(lost)} exposed; {why}."
    return Evidence(text, "estimate", (*found.entities[:1], *reading.lines(found.entities)))


def rank_dependent(reading: Reading) -> Iterator[Advice]:
    """Report branches of the user's code on the rank: they hang if a collective is inside, else differ in code."""
    if reading.record.place is None:
        return
    callers = {(found.called_at.file, found.called_at.line) for found in reading.record.frames if found.called_at}
    sources = reading.record.of_stage("source")
    branches = [found for artifact in sources for found in captured_branches(artifact, callers)]
    hangs = [found for found in branches if found[2]]
    if not branches:
        return
    words = {True: "a collective runs on some ranks only", False: "a branch on the rank"}
    evidence = tuple(
        Evidence(f"Line {line} of {file}: {words[hang]}.", ids=(f"source[{file}].L{line}",))
        for file, line, hang in (hangs or branches)[:5]
    )
    if hangs:
        yield Advice(
            "rank-dependent", "A collective that only some ranks call",
            "The code branches on the rank, and a collective is inside of the branch: ranks that take the other way "
            "don't call it, and the job hangs.", evidence,
            change=Change("Call the collective on every rank; let the branch decide what is sent, such as zeros."),
        )  # fmt: skip
    else:
        yield Advice(
            "rank-dependent", "Code that depends on the rank",
            "The code branches on the rank: ranks capture different graphs and compile different code. A guard on a "
            "value that depends on the rank makes ranks recompile at different times, while the others wait.", evidence,
            change=Change("Move the branch out of the compiled function, or write it as a tensor operation."),
        )  # fmt: skip
