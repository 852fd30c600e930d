"""Read fusion from a record: the nodes of each kernel, the merges, the bytes saved, lower bounds, and unfused
neighbours with the reason and the cost.

Bytes are memory reads and writes of kernels as Inductor counts them: every byte once for each kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from compiler.inductor.fusion_words import reason_words
from compiler.record import Artifact, Decision, Entity, Record
from compiler.record.measure_facts import Merge
from explorer.findings.fusion.traffic import read_again

LIBRARY = "one of them is an extern call: Inductor has no code of it to fuse"
UNTOLD = "Inductor tried, and gave no reason"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A node after fusion: a kernel or an extern call.

    `parts` are its nodes before fusion. `call` is its call in the generated code, None if there is none. `moves` maps
    each buffer to its bytes, every byte counted once. `before` are the bytes that the parts would move as separate
    kernels. `again` are the bytes of repeated reads.
    """

    node: Entity
    parts: tuple[Entity, ...]
    call: Entity | None
    moves: Mapping[str, int]
    before: int
    again: int

    @property
    def name(self) -> str:
        """Name in the generated code; the name of the node if it has no call there."""
        return self.call.label if self.call is not None else self.node.label

    @property
    def nodes(self) -> int:
        """Number of nodes before fusion, at least 1."""
        return max(len(self.parts), 1)

    @property
    def least(self) -> int:
        """Lower bound on the bytes moved: inputs and outputs, every byte once."""
        return sum(self.moves.values())

    @property
    def after(self) -> int:
        """Bytes moved, repeated reads included."""
        return self.least + self.again

    @property
    def is_call(self) -> bool:
        """Whether this is an extern call in the generated code: later passes may replace a call by a kernel."""
        return (self.call or self.node).kind == "extern"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Two unfused kernels that share a buffer or that Inductor tried to fuse. `bytes` are the bytes that fusion saves.

    `words` is the reason in words. `told` is Inductor's own text, or "". `round` is the first round with this refusal,
    or 0.
    """

    first: Kernel
    second: Kernel
    words: str
    told: str
    round: int
    bytes: int


@dataclass(frozen=True)
class Fusion:
    """Fusion in one half (forward, backward or inference) of a graph."""

    artifact: Artifact
    kind: str
    kernels: tuple[Kernel, ...]
    merges: Mapping[str, Merge]
    refusals: tuple[Refusal, ...]
    least: int
    """Bytes of the graph's inputs and outputs: a single kernel for the whole graph would move these."""

    @property
    def title(self) -> str:
        return f"{self.artifact.graph} {self.kind}"

    @cached_property
    def before(self) -> int:
        return sum(kernel.before for kernel in self.kernels)

    @cached_property
    def after(self) -> int:
        return sum(kernel.after for kernel in self.kernels)

    @cached_property
    def least_each(self) -> int:
        """Lower bound on the bytes that these kernels move."""
        return sum(kernel.least for kernel in self.kernels)

    @property
    def launches(self) -> int:
        """Number of launches of generated kernels. On a CPU, several fused nodes may share one function."""
        return len({(kernel.call or kernel.node).id for kernel in self.kernels if not kernel.is_call})

    @property
    def rounds(self) -> int:
        return max((merge.round for merge in self.merges.values()), default=0)

    def steps(self, kernel: Kernel) -> list[Merge]:
        """The merges that built a kernel, last first."""
        found, todo = [], [kernel.node.label]
        while todo:
            if (merge := self.merges.get(todo.pop())) is not None:
                found.append(merge)
                todo += [merge.first, merge.second]
        return found

    def reasons(self) -> list[tuple[str, int, int]]:
        """For each reason: its words, the number of pairs, the potential saving in bytes. Most bytes come first."""
        count, size = Counter(item.words for item in self.refusals), Counter[str]()
        for item in self.refusals:
            size[item.words] += item.bytes
        return sorted(((words, count[words], size[words]) for words in count), key=lambda row: (-row[2], -row[1]))


def fusions(record: Record) -> list[Fusion]:
    """Fusion in each recorded half of each graph: Inductor's graphs first, then our backend's."""
    from explorer.findings.fusion.own import OwnHalf  # late, because OwnHalf subclasses Half

    inductors = [Half(record, artifact).fusion() for artifact in record.of_stage("fused_ir")]
    return inductors + [
        OwnHalf(record, each).fusion() for each in record.of_stage("fused") if each.language == "program"
    ]


@dataclass
class Half:
    """Reader of the fusion in one half of a graph."""

    record: Record
    artifact: Artifact
    kernels: list[Kernel] = field(default_factory=list)
    library: ClassVar[str] = LIBRARY
    untold: ClassVar[str] = UNTOLD

    @cached_property
    def kind(self) -> str:
        return self.artifact.half

    def fusion(self) -> Fusion:
        every = (self._kernel(node) for node in self._nodes())
        self.kernels = [kernel for kernel in every if kernel.call is not None or kernel.moves]  # no code otherwise
        refusals = sorted(self._refusals(), key=lambda item: -item.bytes)
        return Fusion(self.artifact, self.kind, tuple(self.kernels), self.merges, tuple(refusals), self._least_of_all())

    def _nodes(self) -> Sequence[Entity]:
        """Nodes after fusion: kernels and extern calls."""
        return self.artifact.entities

    @cached_property
    def merges(self) -> dict[str, Merge]:
        """Name of a fused node -> the merge that made it."""
        return self._find_merges()

    def _find_merges(self) -> dict[str, Merge]:
        found = self.record.merges
        return {item.name: item for item in found if item.graph == self.artifact.graph and item.kind == self.kind}

    @cached_property
    def _loops(self) -> dict[str, Entity]:
        """Name -> node before fusion."""
        wanted = f"ir[{self.artifact.graph} {self.kind}]"
        return {item.label: item for found in self.record.of_stage("ir") if found.id == wanted
                for item in found.entities}  # fmt: skip

    @cached_property
    def _code(self) -> Artifact | None:
        wanted = f"kernels[{self.artifact.graph} {self.kind}]"
        return next((found for found in self.record.of_stage("kernels") if found.id == wanted), None)

    @cached_property
    def _calls(self) -> dict[str, Entity]:
        entities = self._code.entities if self._code is not None else ()
        return {node: item for item in entities if item.kind in ("call", "extern") for node in item.origins}

    @cached_property
    def _sources(self) -> dict[str, str]:
        """Name -> source of a Triton kernel."""
        rows = self._code.text.split("\n") if self._code is not None else []
        mine = (item for item in self.record.kernels if self._code is not None and item.artifact == self._code.id)
        return {item.name: "\n".join(rows[item.lines[0] - 1 : item.lines[1]]) for item in mine
                if item.language == "triton"}  # fmt: skip

    def _kernel(self, node: Entity) -> Kernel:
        parts = self._parts(node)
        call, moves = self._calls.get(node.id), count_moves(node, parts)
        before = sum(sum(part.attrs.get("moves", {}).values()) for part in parts) or sum(moves.values())
        return Kernel(node, parts, call, moves, before, self._count_rereads(call, moves))

    def _parts(self, node: Entity) -> tuple[Entity, ...]:
        names = node.attrs.get("parts") or [node.label]
        return tuple(self._loops[name] for name in names if name in self._loops)

    def _count_rereads(self, call: Entity | None, moves: Mapping[str, int]) -> int:
        source = self._sources.get(call.label, "") if call is not None else ""
        if not source or call is None:
            return 0
        return sum(read_again(source, str(call.attrs.get("code", "")), moves).values())

    # Unfused pairs

    def _refusals(self) -> Iterator[Refusal]:
        told = self._stated_refusals()
        for first, second in self._neighbours(told):
            words, text, number = self._refusal_reason(first, second, told)
            size = self._saved_bytes(first, second)
            if size or text:
                yield Refusal(first, second, words, text, number, size)

    def _stated_refusals(self) -> dict[tuple[str, str], Decision]:
        """Pair of final kernels, by name -> Inductor's last refusal to fuse nodes of the two.

        Pairs that were fused later are left out.
        """
        owner = {part.label: kernel.node.label for kernel in self.kernels for part in kernel.parts}
        prefix = f"ir[{self.artifact.graph} {self.kind}]."
        found: dict[tuple[str, str], Decision] = {}
        for item in self.record.decisions:
            if item.pass_name != "fusion" or item.verdict != "refused" or not item.subjects[0].startswith(prefix):
                continue
            first, second = (owner.get(self._first_part(name.removeprefix(prefix)), "") for name in item.subjects)
            if first and second and first != second:
                found[first, second] = item
        return found

    def _first_part(self, name: str) -> str:
        while name in self.merges:
            name = self.merges[name].first
        return name

    def _neighbours(self, told: Mapping[tuple[str, str], Decision]) -> Iterator[tuple[Kernel, Kernel]]:
        """Pairs of a kernel and a reader of its output, and pairs that Inductor tried to fuse."""
        by_name = {kernel.node.label: kernel for kernel in self.kernels}
        pairs = {(maker.node.label, reader.node.label) for maker, reader in self._made_and_read()}
        order = {kernel.node.label: number for number, kernel in enumerate(self.kernels)}
        every = {tuple(sorted(pair, key=order.__getitem__)) for pair in (*pairs, *told)}
        for first, second in sorted(every, key=lambda pair: (order[pair[0]], order[pair[1]])):
            yield by_name[first], by_name[second]

    def _made_and_read(self) -> Iterator[tuple[Kernel, Kernel]]:
        makers = {name: kernel for kernel in self.kernels for name in _written_buffers(kernel)}
        for reader in self.kernels:
            for name in reader.node.attrs.get("reads", ()):
                if (maker := makers.get(name)) is not None and maker is not reader:
                    yield maker, reader

    def _refusal_reason(
        self, first: Kernel, second: Kernel, told: Mapping[tuple[str, str], Decision]
    ) -> tuple[str, str, int]:
        names = first.node.label, second.node.label
        found = told.get(names) or told.get((names[1], names[0]))
        if found is not None:
            return reason_words(found.why), found.why, int(found.numbers.get("round", 0))
        return (self.library if self._was_call(first) or self._was_call(second) else self.untold), "", 0

    def _was_call(self, kernel: Kernel) -> bool:
        """Whether a kernel was an extern call at the time of fusion."""
        return kernel.node.kind == "extern"

    def _saved_bytes(self, first: Kernel, second: Kernel) -> int:
        """Bytes that fusing two kernels would save: common inputs are read once. Intermediates are not read back, and
        are stored only if other kernels read them or the graph returns them.
        """
        saved = 0
        for name in first.moves.keys() & second.moves.keys():
            if name not in _written_buffers(first):
                saved += min(first.moves[name], second.moves[name])
                continue
            needed = self._readers[name] > 1 or name in self._outputs
            saved += second.moves[name] + (0 if needed else first.moves[name])
        return saved

    @cached_property
    def _readers(self) -> Counter[str]:
        return Counter(name for kernel in self.kernels for name in set(kernel.node.attrs.get("reads", ())))

    @cached_property
    def _outputs(self) -> set[str]:
        half = "backward" if self.kind == "backward" else "forward"
        mine = (item for item in self.record.memory if item.side == "compiled" and item.graph == self.artifact.graph)
        return {item.buffer for item in mine if item.half == half and item.what == "output"}

    def _least_of_all(self) -> int:
        """Bytes of all graph inputs that are read, of those that are written in place, and of all outputs."""
        written = {name for kernel in self.kernels for name in _written_buffers(kernel)}
        most: dict[str, int] = {}
        for kernel in self.kernels:
            for name, size in kernel.moves.items():
                if name not in written or name in self._outputs:
                    most[name] = max(size, most.get(name, 0))
        return sum(most.values()) + sum(most.get(name, 0) for name in self._inputs_written_in_place)

    @cached_property
    def _inputs_written_in_place(self) -> set[str]:
        wanted = ("functionalization", "mutated input", self.artifact.graph)
        found = (each for each in self.record.decisions if (each.pass_name, each.verdict, each.graph) == wanted)
        subjects = {each.subjects[0] for each in found} if self.kind != "backward" else ()
        stages = (artifact for stage in ("forward", "inference") for artifact in self.record.of_stage(stage))
        return {item.label for artifact in stages for item in artifact.entities if item.id in subjects}


def count_moves(node: Entity, parts: Sequence[Entity]) -> dict[str, int]:
    """Buffer -> bytes that a node moves, at most the sum over its parts: for indirect reads of a fused node Inductor
    counts the whole buffer.
    """
    moves: dict[str, int] = node.attrs.get("moves", {})
    of_parts = Counter[str]()
    for part in parts:
        of_parts.update(part.attrs.get("moves", {}))
    return {name: min(size, of_parts[name]) if of_parts[name] else size for name, size in moves.items()}


def _written_buffers(kernel: Kernel) -> set[str]:
    return set(kernel.node.attrs.get("writes", ()))


def tree(kernel: Kernel, merges: Mapping[str, Merge]) -> Any:
    """Fusion tree of a kernel as nested lists: a part's name, or `[round, saved, first, second]`."""

    def subtree(name: str) -> Any:
        merge = merges.get(name)
        return name if merge is None else [merge.round, merge.saved, subtree(merge.first), subtree(merge.second)]

    return subtree(kernel.node.label)
