"""The user's names of a captured graph's inputs: `layer1.weight`, where TorchDynamo has a path through modules."""

from __future__ import annotations

import re
from dataclasses import dataclass

from compiler.record import Artifact

_ROOT = re.compile(r"^[LG]\['(\w+)'\]")
_MODULE = re.compile(r"^(?:\._modules\['([^']+)'\]|\.(\w+))")
_OWN = re.compile(r"^\._(?:parameters|buffers)\['([^']+)'\]$")
_CALLED = ("self", "fn", "mod", "module", "model")
"""What torch and its users call the module whose forward it is; others are named."""


@dataclass(frozen=True, slots=True)
class InputNames:
    """The inputs of a graph in order, "" where one has no name."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, captured: Artifact) -> InputNames:
        inputs = [entity for entity in captured.entities if entity.kind == "placeholder"]
        return cls(tuple(input_name(str(entity.attrs.get("source") or "")) for entity in inputs))

    def named(self, text: str) -> str:
        """`gradient of input 3` with the name of that input."""
        return re.sub(r"\binput (\d+)$", lambda match: self._name(int(match[1])) or match[0], text)

    def _name(self, place: int) -> str:
        return self.names[place] if place < len(self.names) else ""


def input_name(source: str) -> str:
    """`L['self']._modules['layer1']._parameters['weight']` is `layer1.weight`, `L['x']` is `x`."""
    root = _ROOT.match(source)
    if root is None:
        return ""
    parts: list[str] = []
    rest = source[root.end() :]
    while match := _MODULE.match(rest):
        if own := _OWN.match(rest):
            return ".".join([*([] if root[1] in _CALLED else [root[1]]), *parts, own[1]])
        parts.append(match[1] or match[2])
        rest = rest[match.end() :]
    return f"{root[1]}{source[root.end() :]}"
