"""Our own compiler: `torch.compile(model, backend="tcompile")`.

TorchDynamo captures; AOTAutograd and torch's min-cut partitioner make forward and backward; then `lower/` makes a
`Program` of each graph, the passes of `pipeline.PASSES` change it, and `cpp/`, `triton/` and `runtime/` make it run.
Read `ir/` first, then `pipeline.py`. Each stage prints, is verified, and runs in the reference interpreter.

    a value is rounded as in eager mode, at the end of each ATen operation, whether it was fused or not
    what there is no rule for is a call of PyTorch, and a decision in the record says so

Registered by entry point: the name works in any script, with no import. `inspect/` opens a call: `tcompile.open`.
"""

from compiler.backend.backend import tcompile

__all__ = ["tcompile"]
