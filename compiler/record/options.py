"""Options of an exploration as plain data; `compiler.option_checks` validates them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


class OptionError(ValueError):
    """An option that does not exist or a value it can't have. The message names the valid ones."""


@dataclass(frozen=True)
class Options:
    """Options of one exploration; see `%tcompile?` for each in words.

    `target` is a device of this machine ("cpu", "cuda"), a GPU that need not be here ("h100": see
    `compiler.targets`), or "": the GPU that the tensors are on, or else an H100 that need not be here, unless something
    is to be run (`time`, `check`). `mode`, `dynamic`, `fullgraph`, `backend` and `options` are torch.compile's.
    `stages` is () (all that come without extra work), a tuple of stage names, or ("all",): kernels compiled too, which
    also happens where a stage after "kernels" is named. "decomposed" comes only where it is named.
    `grad` is None (as the inputs say), True or False (explore under `torch.no_grad`). `check` compares with eager: True
    what the built code returns, "kernels" what each Triton kernel stores, in Triton's interpreter, which needs no GPU.
    `time` measures the call where its tensors are, eager and compiled: True (the candidates that make sense there),
    "all", or names of modes and backends ("default,aot_eager").
    `vs` names another backend that writes code, to compile the same call with and show beside the first.
    `step` records how TorchDynamo read the function, instruction by instruction: True, or how many MiB of that to keep.

    `compiler.option_checks.parse_options` checks what a user wrote. Options read from a record are not checked: another
    machine made them.
    """

    target: str = ""
    mode: str = "default"
    dynamic: bool | None = None
    fullgraph: bool = False
    backend: str = "inductor"
    options: dict[str, Any] = field(default_factory=dict)
    stages: tuple[str, ...] = ()
    grad: bool | None = None
    time: bool | str = False
    check: bool | Literal["kernels"] = False
    step: bool | int = False
    vs: str = ""

    def with_objects(self, asked: Options) -> Options:
        """These options with the user's own objects: a backend may be a function."""
        if self != asked:
            # A record is JSON, which can't hold a backend that is a function. Not a field: not compared, not written.
            object.__setattr__(self, "_asked", asked)
        return self

    def compile_arguments(self) -> dict[str, Any]:
        """The keyword arguments of torch.compile that these options stand for."""
        asked: Options = getattr(self, "_asked", self)
        chosen: dict[str, Any] = {"fullgraph": self.fullgraph, "dynamic": self.dynamic, "backend": asked.backend}
        if asked.options:
            return chosen | {"options": dict(asked.options)}
        return chosen | ({"mode": self.mode} if self.mode != "default" else {})
