"""Lines of code as they are written, in C++ and in Triton: each says which loop it is for."""

from __future__ import annotations

from compiler.backend.ir import Loop


class Lines:
    """Lines of code. `targets` says of some, by their number, which loop's value they are for: what `line` is told, or
    else `target`. `mark` begins a comment.
    """

    mark = "#"

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.targets: dict[int, str] = {}
        self.depth = 0
        self.target = self.source = ""

    def line(self, text: str, target: str = "") -> None:
        if target := target or self.target:
            self.targets[len(self.lines)] = target
        self.lines.append("    " * self.depth + text)

    def comment(self, loop: Loop) -> None:
        """The line of Python that a loop implements, unless it is that of the loop before."""
        if loop.source and loop.source != self.source:
            self.source = loop.source
            self.line(f"{self.mark} {loop.source}".rstrip("\\"))
