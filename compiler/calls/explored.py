"""The result of exploring a call, and the type of the function that explores a call again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from compiler.calls.call import Call
from compiler.calls.kept_graphs import KeptFrame
from compiler.record import Problem, Record
from compiler.record.options import Options
from compiler.torch_api.shard_shapes import Sharding


@dataclass(frozen=True, slots=True)
class Explored:
    """The record of a call, its return value, and the objects needed to run the call or its kernels again.

    `files` are names of source files in the record, by path. `shardings` is how the call's DTensors are split.
    """

    record: Record
    value: Any
    kept: Mapping[str, KeptFrame]
    call: Call | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    shardings: tuple[Sharding, ...] = ()


class ExploreAgain(Protocol):
    """The type of `compiler.engine.explore_again`, which is passed to modules that the engine itself imports."""

    def __call__(
        self, call: Call, options: Options, *, build: bool = False, inside: Callable[[Explored], None] | None = None
    ) -> Explored:
        """Repeat a call on copies, without side effects, and record every stage."""


def cannot_repeat(error: Exception, stage: str = "timing", what: str = "the call could not be repeated") -> Problem:
    """Problem for a call that raised an error when it was repeated."""
    hint = "explore a call that can run more than once"
    if "does not support backward on CPU" in str(error):  # FlexAttention's, traced for a GPU that is not here
        hint = (
            "numbers come from the CPU, where torch has only its forward: check it without gradients (grad=False), or "
            "with check=\"kernels\", which runs the GPU's kernels in Triton's interpreter"
        )
    return Problem(stage, f"{what}: {type(error).__name__}: {error}", hint)
