"""What a user may ask of an exploration, validated with errors in the user's terms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class OptionError(ValueError):
    """An option that does not exist or a value it can't have. The message names the valid ones."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one exploration; see `%tcompile?` for each in words.

    `target` is a device or GPU name ("cpu", "cuda") or "" for the tensors' own device. `mode`, `dynamic`,
    `fullgraph`, `backend` and `options` are torch.compile's. `stages` is "" (all that come without extra work) or
    a tuple of stage names. `grad` is None (as the inputs say), True or False (explore under `torch.no_grad`).
    """

    target: str = ""
    mode: str = "default"
    dynamic: bool | None = None
    fullgraph: bool = False
    backend: str = "inductor"
    options: dict[str, Any] = field(default_factory=dict)
    stages: tuple[str, ...] = ()
    grad: bool | None = None
    time: bool = False
    check: bool = False
