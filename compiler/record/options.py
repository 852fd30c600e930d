"""Options of an exploration as plain data; `compiler.option_checks` validates them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


class OptionError(ValueError):
    """An option does not exist or has an invalid value. The message names the valid ones."""


@dataclass(frozen=True)
class Options:
    """Options of one exploration; `%tcompile?` explains each.

    `target` is a device of this machine ("cpu", "cuda"), a GPU that need not be present ("h100": see
    `compiler.targets`), or "": the GPU of the tensors, or else an H100 that need not be present, unless something has
    to run (`time`, `check`). `mode`, `dynamic`, `fullgraph`, `backend` and `options` are torch.compile's.
    `stages` is () (all stages without extra work), a tuple of stage names, or ("all",), which also compiles kernels.
    Naming a stage after "kernels" also compiles them. "decomposed" is recorded only if it is named.
    `grad` is None (as the inputs require), True or False (explore under `torch.no_grad`). `check` compares with eager:
    True, the results of the built code; "kernels", each Triton kernel's stores in Triton's interpreter, which needs no
    GPU. `time` measures the call on the device of its tensors, eager and compiled: True (the useful candidates), "all",
    or names of modes and backends ("default,aot_eager").
    `vs` names another backend that generates code: it compiles the same call, and both results are shown side by side.
    `ranks` simulates a job of so many ranks in this process, by a process group that moves nothing. `rank` names the
    ranks to explore, by number or as "first", "last" and "corners" (of the device mesh), with commas. `node` is the
    number of GPUs in a node. `fake` makes tensors that have no memory.
    `step` records how TorchDynamo traces the function, instruction by instruction: True, or the MiB to keep.

    `compiler.option_checks.parse_options` validates the user's options. Options read from a record are not validated,
    as they may be from another machine.
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
    ranks: int = 0
    rank: str = ""
    node: int = 8
    fake: bool = False

    def with_objects(self, asked: Options) -> Options:
        """Attach the user's own objects from `asked`, as a backend may be a function, to `self`; return `self`."""
        if self != asked:
            # A record is JSON, which can't hold a function. This is not a field, so it is neither compared nor written.
            object.__setattr__(self, "_asked", asked)
        return self

    def compile_arguments(self) -> dict[str, Any]:
        """Keyword arguments of torch.compile for these options."""
        asked: Options = getattr(self, "_asked", self)
        chosen: dict[str, Any] = {"fullgraph": self.fullgraph, "dynamic": self.dynamic, "backend": asked.backend}
        if asked.options:
            return chosen | {"options": dict(asked.options)}
        return chosen | ({"mode": self.mode} if self.mode != "default" else {})
