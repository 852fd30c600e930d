"""Explanations of errors that PyTorch raises during compilation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

SCALAR_OUTPUTS = "reads a number from a tensor"
_LIMITS: Mapping[str, tuple[str, str]] = {
    SCALAR_OUTPUTS: (
        "while torch._dynamo.config.capture_scalar_outputs is False: the code traced for it reads a number from a "
        "tensor",
        "set torch._dynamo.config.capture_scalar_outputs = True",
    ),
    r"might be aliasing the input or the output": (
        "here: two of the tensors that a body takes and returns, or that the backward of one does, are the same tensor "
        "or share memory",
        "make them two tensors, by `* 1.0` on one of what the body returns, or on one of the operator's results where "
        "these are added: their gradients are one tensor",
    ),
    r"no rule registered for HigherOrderOperator (?P<operator>\w+) and mode <torch\.utils\.checkpoint": (
        "inside a checkpoint",
        "call it outside of the function given to torch.utils.checkpoint",
    ),
    r"Unsupported for `epilogue_nodes` in CppFlexAttentionTemplate": (
        "for a CPU with this elementwise operation after it: its C++ template fuses none",
        "put the operation outside of the compiled function, or see the code for a GPU (--target h100)",
    ),
    r"torch\.compile on CPU only supports inference and `return_lse` is not supported": (
        "for a CPU with its logsumexp as a result",
        "leave out the logsumexp, or see the code for a GPU (--target h100)",
    ),
    # The second pattern is torch 2.11's message.
    r"FakeTensorUpdater cannot update this argument|'int' object has no attribute 'meta'\s+target: while_loop": (
        "with a number of Python's among what it takes: TorchInductor can't update that",
        "carry a tensor, torch.tensor(0) in place of 0; backend='tcompile' takes numbers too",
    ),
}
"""Limits of torch itself: error pattern -> where the limit applies, and what to change."""


_NO_CHOICES = "No choices to select"
_NO_LIBRARY = (
    "none of the libraries in max_autotune_gemm_backends has a kernel for this matmul here. CUTLASS needs a folder "
    "of NVIDIA's CUTLASS with `include` and `python`, which the environment variable TORCHINDUCTOR_CUTLASS_DIR names "
    "before torch is imported. CUTEDSL has only grouped matmuls in bfloat16 for a B200, and needs nvidia-cutlass-dsl. "
    "Both need an NVIDIA GPU as target"
)


def inner_error(error: BaseException) -> BaseException:
    """The error that Dynamo or Inductor wrapped, or `error` itself."""
    return getattr(error, "inner_exception", None) or error


def first_lines(error: BaseException, count: int = 4) -> str:
    inner = inner_error(error)
    if isinstance(inner, KeyError):  # its text is the key alone
        return f"torch has no entry for {', '.join(map(str, inner.args))} in one of its tables"
    if _NO_CHOICES in str(inner):
        return _NO_LIBRARY
    lines = [line.rstrip() for line in str(inner).splitlines() if line.strip()]
    return "\n".join(lines[:count]) or type(inner).__name__


def operator_limit(
    error: BaseException, operators: Sequence[str], *, needs_scalars: bool = False
) -> tuple[str, str] | None:
    """Reason why torch can't compile higher-order `operators`, and a change to make; None for any other error."""
    if not operators:
        return None
    text = SCALAR_OUTPUTS if needs_scalars else first_lines(error)
    for pattern, (where, change) in _LIMITS.items():
        if found := re.search(pattern, text):
            which = found.groupdict().get("operator") or ", ".join(operators)
            reason = f"torch cannot compile {which} {where}. torch.compile alone meets the same error:"
            return f"{reason}\n{first_lines(error)}", f"{change}; {hint_of(error)}"
    return None


def hint_of(error: BaseException) -> str:
    inner = inner_error(error)
    if type(inner).__name__ == "InvalidCxxCompiler":
        return "install a C++ compiler (on Debian: apt-get install g++), or leave out --time and --check"
    if _NO_CHOICES in str(inner):
        return "name others, too: options={'max_autotune_gemm_backends': 'CUTLASS,TRITON,ATEN'}"
    return f"raised as {type(inner).__name__}; the function itself ran without torch.compile"
