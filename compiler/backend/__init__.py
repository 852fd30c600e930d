"""The tcompile backend: `torch.compile(model, backend="tcompile")`.

TorchDynamo captures a graph; AOTAutograd and torch's min-cut partitioner make forward and backward graphs. `lower/`
lowers each graph to a `Program`, the passes of `pipeline.PASSES` transform it, and `cpp/`, `triton/` and `runtime/`
compile and run it. Read `ir/` first, then `pipeline.py`. The program of each stage can be printed, is verified, and
runs in the reference interpreter.

    values are rounded as in eager mode, at the end of each ATen operation, whether fused or not
    an operator without a lowering rule is an extern call, and a decision in the record says so

The backend is registered by entry point: its name works in any script, without an import. `inspect/` shows all stages
of a call, see `tcompile.open`.
"""

from compiler.backend.backend import tcompile

__all__ = ["tcompile"]
