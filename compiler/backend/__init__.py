"""Our own compiler: `torch.compile(model, backend="tcompile")`.

TorchDynamo captures; AOTAutograd and torch's min-cut partitioner make forward and backward; then `lower` makes a
`Program` of each graph, the passes of `pipeline.PASSES` change it, and `emit_cpp`, `build` and `launch` make it run.
Read `ir/` first, then `pipeline.py`. Each stage prints, is verified, and runs in `interpret`.

    a value is rounded as in eager mode, at the end of each ATen operation, whether it was fused or not
    what there is no rule for is a call of PyTorch, and a decision in the record says so

Registered by entry point: the name works in any script, with no import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compiler.backend.backend import tcompile

if TYPE_CHECKING:
    from compiler.backend.opened import Opened, open  # noqa: A004

__all__ = ["Opened", "open", "tcompile"]


def __getattr__(name: str) -> Any:
    """To open a call takes much that is not needed to compile one."""
    if name in __all__:
        from compiler.backend import opened

        return getattr(opened, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
