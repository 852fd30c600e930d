"""The graph breaks of an exploration, with what is known only at its end: what they cut off, and what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import CodeType

from torch.fx import GraphModule

from compiler.capture.sources import SourceBook
from compiler.record import GraphBreak
from compiler.record.break_facts import BreakFacts
from compiler.record.builder import Builder
from compiler.torch_api import fx
from compiler.torch_api.dynamo import break_registry


@dataclass
class EndedGraph:
    """The graph before a break. `calls` is its number of calls.

    `tensors` and `bytes` are the number and the size of the tensors that it returns.
    """

    artifact: str
    calls: int
    tensors: int
    bytes: int


@dataclass
class BreakLog:
    """Collects the breaks of one exploration; `finish` adds facts known only at the end."""

    builder: Builder
    book: SourceBook
    graphs: dict[str, EndedGraph] = field(default_factory=dict)
    codes: dict[str, list[CodeType]] = field(default_factory=dict)

    def add(self, frame: str, facts: BreakFacts) -> None:
        """Add a break. If a frame is traced again, the same break is listed once, with its last outcome."""
        from compiler.capture.breaks import graph_break  # with all rules for suggestions, which a program may not need

        mine = [found for found in self.builder.breaks if found.frame == frame]
        identity = f"break[{frame}].{len(mine)}"
        fullgraph, outermost = self.builder.options.fullgraph, self._is_outermost(frame)
        broken = graph_break(
            identity, frame, facts, self.book, registry=break_registry(), fullgraph=fullgraph, outermost=outermost
        )
        same = next((found for found in mine if (found.kind, found.chain) == (broken.kind, broken.chain)), None)
        if same is None:
            self.builder.breaks.append(broken)
        else:
            self.builder.breaks[self.builder.breaks.index(same)] = replace(broken, id=same.id)

    def _is_outermost(self, frame: str) -> bool:
        """Whether a frame runs the function that the user compiled, or resumes it after a break."""
        of_breaks = {found.id: found.frame for found in self.builder.breaks}
        while not frame.startswith("0/"):
            known = self.builder.frames.get(frame)
            if known is None or known.resumes not in of_breaks:
                return False
            frame = of_breaks[known.resumes]
        return True

    def graph(self, frame: str, artifact: str, module: GraphModule) -> None:
        """Record the graph compiled for a frame, its artifact, and the tensors that it returns."""
        outputs = [value for node in module.graph.nodes if node.op == "output" for value in node.all_input_nodes]
        tensors = [fx.tensor_attrs(fx.value_of(node)) for node in outputs]
        calls = sum(node.op.startswith("call_") for node in module.graph.nodes)
        sizes = [attrs.get("bytes") or 0 for attrs in tensors if attrs]
        self.graphs[frame] = EndedGraph(
            artifact, calls, len(sizes), sum(size for size in sizes if isinstance(size, int))
        )

    def resumes(self, frame: str, codes: Sequence[CodeType]) -> None:
        """Record the functions that resume a frame after its last break."""
        mine = [found for found in self.builder.breaks if found.frame == frame]
        if mine:
            self.codes.setdefault(mine[-1].id, []).extend(codes)

    def break_before(self, code: CodeType) -> str:
        """Id of the break after which this code resumes; "" for any other code."""
        return next((found for found, codes in self.codes.items() if any(code is mine for mine in codes)), "")

    def finish(self, codes: Mapping[str, CodeType]) -> None:
        """Add to each break the graph that it ended, the frames that resume after it, and its cost.

        `codes` are the frames' code objects.
        """
        if not self.builder.breaks:
            return
        from compiler.capture.breaks import frames_after

        resumed_by = {found.id: self._frames_resumed_by(found.id, codes) for found in self.builder.breaks}
        breaks: dict[str, list[str]] = {}
        for found in self.builder.breaks:
            breaks.setdefault(found.frame, []).append(found.id)
        versions = {found.id: self._versions_after(found.frame, resumed_by[found.id]) for found in self.builder.breaks}
        after = {found.id: frames_after(found.id, versions, breaks) for found in self.builder.breaks}
        costs = [self._with_cost(found, resumed_by[found.id], after[found.id]) for found in self.builder.breaks]
        own = {found.id: self._own_unread(found, codes.get(found.frame)) for found in costs}
        self.builder.breaks[:] = [
            replace(found, unread=own[found.id] or self._unread_after_it(found, after[found.id], own))
            for found in costs
        ]

    def _unread_after_it(
        self, found: GraphBreak, after: Set[str], own: Mapping[str, tuple[int, int] | None]
    ) -> tuple[int, int] | None:
        """Lines that a later break left untraced, if no graph follows this break; None otherwise."""
        if found.outcome != "resumed" or found.nodes[1]:
            return None
        later = (own[other.id] for other in self.builder.breaks if other.frame in after)
        return next((lines for lines in later if lines is not None), None)

    def _own_unread(self, found: GraphBreak, code: CodeType | None) -> tuple[int, int] | None:
        """First and last line of the code left untraced because of this break; None if TorchDynamo traced all of it."""
        if code is None or found.outcome == "error":
            return None
        lines = [line for *_, line in code.co_lines() if line is not None and line > code.co_firstlineno]
        last = max(lines, default=0)
        if found.outcome == "skipped":
            return (min(lines), last) if lines else None
        followers = [self.builder.frames[name] for name in found.resumed_by if name in self.builder.frames]
        skipped = {other.frame for other in self.builder.breaks if other.outcome == "skipped"}
        gave_up = any(
            frame.outcome == "failed" or (frame.outcome != "compiled" and frame.id in skipped) for frame in followers
        )
        first = found.chain[0].line if found.chain else found.line
        return (first, last) if (found.outcome == "plain" or gave_up) and first <= last else None

    def _frames_resumed_by(self, identity: str, codes: Mapping[str, CodeType]) -> tuple[str, ...]:
        """Frames that resume after a break; if this call compiled none, the frames that an earlier call compiled."""
        frames = [frame.id for frame in self.builder.frames.values() if frame.resumes == identity]
        own = self.codes.get(identity, ())
        return tuple(frames) or tuple(frame for frame, code in codes.items() if any(code is mine for mine in own))

    def _versions_after(self, name: str, followers: Sequence[str]) -> tuple[str, ...]:
        """Those of the followers that run after this version of a frame: one version of each code object."""
        frames = self.builder.frames
        places = {frame: place for place, frame in enumerate(frames)}
        versions: dict[int, list[str]] = {}
        for follower in sorted(followers, key=places.__getitem__):
            versions.setdefault(frames[follower].code, []).append(follower)
        found = []
        for same_code in versions.values():
            kept = [each for each in same_code if places[each] <= places[name]]
            later = same_code[len(kept) :]
            new = [each for each in later if frames[each].call_number == frames[name].call_number]
            found += new[:1] or kept[-1:] or later[:1]
        return tuple(found)

    def _with_cost(self, found: GraphBreak, followers: tuple[str, ...], after_frames: Set[str]) -> GraphBreak:
        after = sum(self.graphs[frame].calls for frame in after_frames if frame in self.graphs)
        ended = self.graphs.get(found.frame)
        if ended is None or found.outcome in ("skipped", "error"):
            return replace(found, resumed_by=followers, nodes=(0, after))
        return replace(
            found,
            resumed_by=followers,
            ended=ended.artifact,
            nodes=(ended.calls, after),
            crossing=ended.tensors,
            crossing_bytes=ended.bytes,
        )
