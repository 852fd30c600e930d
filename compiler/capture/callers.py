"""The caller of each frame that TorchDynamo saw, compiled or plain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType

from compiler.capture.plain_lines import lines_run
from compiler.capture.sources import SourceBook
from compiler.record import Frame
from compiler.record.break_facts import is_dynamo
from compiler.record.builder import Builder


@dataclass
class CallLog:
    """Records code objects of one exploration, original and rewritten, to find the callers of frames."""

    builder: Builder
    book: SourceBook
    codes: dict[int, tuple[CodeType, str]] = field(default_factory=dict)

    def runs(self, code: CodeType, frame: str) -> None:
        self.codes[id(code)] = (code, frame)

    def with_caller(self, frame: Frame, stack: FrameType | None) -> Frame:
        """Add the nearest recorded caller on the Python stack to a frame; without one, return the frame unchanged."""
        while stack is not None and id(stack.f_code) not in self.codes:
            stack = stack.f_back
        if stack is None or is_dynamo(stack.f_code.co_filename):
            return frame
        code, caller = self.codes[id(stack.f_code)]
        place = self.book.span(code.co_filename, stack.f_lineno, code.co_name, code="")
        return replace(frame, caller=caller, called_at=place)

    def finish(self, codes: Iterable[tuple[str, CodeType]]) -> None:
        """Add to each frame its lines that ran as plain Python. `codes` are the frames' code objects."""
        frames = self.builder.frames
        for name, code in codes:
            frames[name] = replace(frames[name], plain=self._plain(frames[name], code))
        self.codes.clear()

    def _plain(self, frame: Frame, code: CodeType) -> tuple[int, ...]:
        breaks = [found for found in self.builder.breaks if found.frame == frame.id]
        is_error = self.builder.options.fullgraph or any(found.outcome == "error" for found in breaks)
        if is_error or is_dynamo(code.co_filename):
            return ()
        broken = (span for found in breaks for span in found.chain[:1] if span.file == frame.file)
        called = (each.called_at for each in self.builder.frames.values() if each.caller == frame.id)
        known = {span.line for span in (*broken, *filter(None, called))}
        whole = frame.outcome != "compiled"
        if whole or any(found.outcome == "plain" for found in breaks):
            return lines_run(code, known, whole=whole)
        return tuple(sorted(known))
