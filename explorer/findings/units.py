"""FSDP's units and DDP's buckets as documents: what is gathered and reduced together, and what a change would do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compiler.record import Artifact, BucketPlan, Collective, Entity, Record, Unit
from compiler.record.plain_text import pluralize, size_text
from explorer.reading.source_lines import SourceLines
from explorer.render.document import Bar, Fold, Items, Link, Parts, Row, Table, Tag, Text, Words
from explorer.render.finding import Finding
from explorer.render.places import line_link
from explorer.render.text import document_finding

DDP = "DistributedDataParallel"
MOST_SIZES = 4
_LINES_OF_A_UNIT = 200


def fsdp_finding(record: Record) -> Finding | None:
    """Finding with a row for each unit of FSDP; None for a record without units."""
    units = [unit for unit in record.units if unit.wrapper != DDP]
    if not units:
        return None
    reader = _Units(record)
    rows = tuple(map(reader.fsdp_row, units))
    head = ("unit", "whole", "kept", "gathers", "then", "gathers again", "reduces", "graph")
    document: list[Parts] = [
        Text(reader.fsdp_words(units), "lead"),
        Table(head, rows, right=(1, 2, 3), label="Units of FSDP"),
        Items(tuple(reader.fsdp_notes(units)), bullet="- "),
    ]
    entities = {unit.id: reader.entity(unit) for unit in units}
    return document_finding("fsdp_units", "FSDP units", document, entities, pluralize(len(units), "unit"))


def ddp_finding(record: Record) -> Finding | None:
    """Finding with the buckets of DDP's graphs, and with those that other caps would make; None without DDP."""
    if not record.bucket_plans:
        return None
    reader = _Units(record)
    units = [unit for unit in record.units if unit.wrapper == DDP]
    document: list[Parts] = [Text(_ddp_words(record), "lead")]
    if units:
        rows = tuple(map(reader.ddp_row, units))
        document.append(Table(("graph", "begins at", "bytes", "parameters"), rows, right=(2,), label="Buckets"))
    document += list(_plan_tables(record.bucket_plans))
    entities = {unit.id: reader.entity(unit) for unit in units}
    used = [plan for plan in record.bucket_plans if plan.is_used]
    count = pluralize(sum(max(len(plan.graphs), 1) for plan in used), "bucket")
    return document_finding("ddp_buckets", "DDP buckets", document, entities, count)


class _Units:
    """The units of one record, as rows with links."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.lines = SourceLines(record)
        self.graphs = {artifact.graph: artifact for artifact in record.of_stage("captured")}
        self.collectives = {found.id: found for found in record.collectives}

    def entity(self, unit: Unit) -> Entity:
        """Entity of a unit, linked to the operations of its graphs and to the lines that caused its collectives."""
        spans = [span for found in self._collectives_of(unit) for span in found.lines[:1]]
        calls = [entity.id for graph in unit.graphs for entity in _calls(self.graphs.get(graph))]
        attrs = {"parameters": list(unit.parameters), "bytes": unit.bytes}
        return Entity(unit.id, "unit", unit_name(unit), attrs, (), (*self.lines.ids(spans), *calls[:_LINES_OF_A_UNIT]))

    def fsdp_words(self, units: Sequence[Unit]) -> str:
        """What FSDP sends in one step, in all units."""
        sent = {half: self._sum(units, "all_gather", half) for half in ("forward", "backward")}
        gathered = [f"{size_text(size)} in the {half}" for half, size in sent.items() if size]
        reduced = sum(self._sum(units, "reduce_scatter", half, given=True) for half in ("forward", "backward"))
        parts = [f"gathers {' and '.join(gathered)}"] if gathered else []
        parts += [f"reduces {size_text(reduced)} of gradients"] if reduced else []
        kept, whole = sum(unit.shard_bytes for unit in units), sum(unit.bytes for unit in units)
        return (
            f"FSDP shards {pluralize(len(units), 'unit')} over {_mesh(units)}: this rank keeps {size_text(kept)} of "
            f"{size_text(whole)}. "
            f"A step {' and '.join(parts) or 'calls no collective'}, in hooks outside of the graphs."
        )

    def fsdp_notes(self, units: Sequence[Unit]) -> Iterator[Words]:
        """What the table needs to be read, and what can be changed."""
        yield "Graphs end at each unit by design: FSDP keeps its hooks, which call the collectives, out of them."
        again = sum(self._sum([unit], "all_gather", "backward") for unit in units if unit.policy == "freed")
        if again:
            yield (
                f"`reshard_after_forward=False` would save {size_text(again)} of gathers in each backward, and keep "
                "the whole parameters until then."
            )
        if not any(found.half == "backward" for unit in units for found in self._collectives_of(unit)):
            yield "No backward ran in what was explored, so its collectives are not listed."

    def fsdp_row(self, unit: Unit) -> Row:
        """Row of a unit of FSDP."""
        ahead = (" ", Tag("prefetched", "muted")) if unit.prefetched and unit.gathers_again else ()
        cells: tuple[Words, ...] = (
            Tag(unit_name(unit), "code"),
            size_text(unit.bytes),
            size_text(unit.shard_bytes),
            self._gather_words(unit, "forward"),
            _after_words(unit),
            (self._gather_words(unit, "backward"), *ahead),
            self._reduce_words(unit),
            self._links(unit),
        )
        return Row(cells, (unit.id,), title=", ".join(unit.parameters))

    def ddp_row(self, unit: Unit) -> Row:
        """Row of a bucket of DDP: the graph, the line at which it begins, its parameters."""
        first = next((entity for entity in _calls(self.graphs.get(unit.graphs[0])) if entity.attrs.get("line")), None)
        place: Words = ""
        if first is not None:
            link = line_link(str(first.attrs.get("file", "")), int(first.attrs["line"]), self.lines)
            module = (" ", Tag(str(first.attrs["module"]), "code")) if first.attrs.get("module") else ()
            place = (link, *module)
        name = unit.name.removeprefix("bucket ")
        graph = Link(name, open=f"captured[{unit.graphs[0]}]", title=f"Open the captured graph {unit.graphs[0]}")
        size = (size_text(unit.bytes), Bar(((unit.bytes, "now"),), "buckets"))
        cells = (graph, place, size, Tag(_short(unit.parameters), "muted"))
        return Row(cells, (unit.id,), title=", ".join(unit.parameters))

    def _collectives_of(self, unit: Unit) -> list[Collective]:
        return [self.collectives[name] for name in unit.collectives if name in self.collectives]

    def _sum(self, units: Sequence[Unit], kind: str, half: str, given: bool = False) -> int:
        found = [
            each for unit in units for each in self._collectives_of(unit) if (each.kind, each.half) == (kind, half)
        ]
        return sum(each.input_bytes if given else each.output_bytes for each in found)

    def _gather_words(self, unit: Unit, half: str) -> str:
        size = self._sum([unit], "all_gather", half)
        return size_text(size) + _other_dtype(unit.gathered_as, unit) if size else "nothing"

    def _reduce_words(self, unit: Unit) -> str:
        scattered = self._sum([unit], "reduce_scatter", "backward", given=True)
        reduced = self._sum([unit], "all_reduce", "backward")
        parts = [size_text(scattered) + _other_dtype(unit.reduced_as, unit)] if scattered else []
        parts += [f"{size_text(reduced)} over {pluralize(unit.replicas, 'replica')}"] if reduced else []
        return ", then ".join(parts) or "nothing"

    def _links(self, unit: Unit) -> tuple[Link | str, ...]:
        links = [Link(f"{graph}", open=f"captured[{graph}]", title=f"Open the captured graph {graph}")
                 for graph in unit.graphs if graph in self.graphs]  # fmt: skip
        return tuple(piece for link in links for piece in (link, " "))[:-1]


def unit_name(unit: Unit) -> str:
    """The module's path of a unit, or the bucket's name."""
    return unit.name or "the root module"


def _mesh(units: Sequence[Unit]) -> str:
    """The sizes of the mesh, of all units that have the same."""
    sizes = dict.fromkeys((unit.shards, unit.replicas) for unit in units)
    words = (
        f"{shards} ranks" + (f" in each of {replicas} replicas" if replicas > 1 else "") for shards, replicas in sizes
    )
    return " or ".join(words)


def _after_words(unit: Unit) -> str:
    return {"kept": "kept until the backward", "freed": "freed"}.get(unit.policy, unit.policy)


def _other_dtype(dtype: str, unit: Unit) -> str:
    """The dtype of a collective, if the parameters are stored in another."""
    return f" {dtype}" if dtype and dtype != unit.dtype else ""


def _calls(artifact: Artifact | None) -> list[Entity]:
    return [entity for entity in artifact.entities if entity.kind == "call"] if artifact is not None else []


def _short(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f", and {len(names) - 3} more" if len(names) > 3 else "")


def _ddp_words(record: Record) -> str:
    """How DDP's forward is split, and what its backward sends."""
    used = [plan for plan in record.bucket_plans if plan.is_used]
    graphs, later = max(sum(len(plan.graphs) for plan in used), 1), len(used[0].reductions) if used else 0
    split = (
        f"The forward is split into {graphs} graphs, so that gradients are reduced while the backward runs."
        if graphs > 1
        else "The forward is not split: all gradients are ready at once, when its backward ends."
    )
    seen = [found for found in record.collectives if found.origin == "hook" and found.kind == "all_reduce"]
    first = (
        f" This step reduced {size_text(sum(found.input_bytes for found in seen))} in {_times(len(seen))};"
        if seen
        else ""
    )
    return f"{split}{first} from the second step on DDP calls {_times(later)}."


def _times(count: int) -> str:
    return pluralize(count, "all_reduce", "all_reduces")


def _plan_tables(plans: Sequence[BucketPlan]) -> Iterator[Parts]:
    for graph in dict.fromkeys(plan.graph for plan in plans):
        mine = [plan for plan in plans if plan.graph == graph]
        rows = tuple(Row((_cap(plan), _sizes(plan.graphs), _sizes(plan.reductions))) for plan in mine)
        head = ("bucket_cap_mb", "graphs of the forward", "all_reduces of the backward")
        label = "What another bucket_cap_mb would make" + (f" of {graph}" if len(plans) > len(mine) else "")
        yield Table(head, rows, label=label)
    words = (
        "Computed by torch's own rules: DDPOptimizer splits the graph, and DDP's reducer fills its buckets in reverse "
        "order of the parameters (estimate: after the first step it takes the order in which gradients are ready). "
        "Without a bucket_cap_mb of yours, the first all_reduce has at most 1 MiB."
    )
    yield Fold("How this is computed", (Text(words),))


def _cap(plan: BucketPlan) -> Words:
    cap = f"{plan.cap_mb:g}"
    return (Tag(cap, "strong"), " ", Tag("used", "badge")) if plan.is_used else cap


def _sizes(found: Sequence[int]) -> str:
    """The number of parts and their sizes, the first few."""
    if not found:
        return "not split"
    more = f", and {len(found) - MOST_SIZES} more" if len(found) > MOST_SIZES else ""
    return f"{len(found)}: {', '.join(map(size_text, found[:MOST_SIZES]))}{more}"
