"""A Triton kernel of a record, edited: its source in the place of the original's, with another launch configuration."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from compiler.binary.sources import kernel_source
from compiler.record import Artifact, Kernel, Record
from compiler.targets import target


def source_of(record: Record, kernel: Kernel) -> str:
    """The kernel's source, whose line 1 is the empty one after the quotes. Raises CannotCompileError."""
    _, source = kernel_source(record[kernel.artifact], kernel)
    return source


def function_of(record: Record, kernel: Kernel) -> str:
    """The name of the function in the kernel's source. Raises CannotCompileError."""
    function, _ = kernel_source(record[kernel.artifact], kernel)
    return function


def configurations(record: Record, kernel: Kernel, gpu: str) -> tuple[dict[str, int], ...]:
    """The launch configurations that Inductor would try on a GPU, in its order. Raises KernelSourceError."""
    # Where Triton is not installed, this can't be imported.
    from compiler.torch_api.triton_kernels import compile_request, reading_kernels

    with reading_kernels(target(gpu)):
        return compile_request(*kernel_source(record[kernel.artifact], kernel), {}, 0).configs


def with_edit(record: Record, kernel: Kernel, edited: str, gpu: str) -> tuple[Record, str, str]:
    """A record of two kernels, the original and the edited one, written for a GPU; and their ids."""
    function, original = kernel_source(record[kernel.artifact], kernel)
    artifacts, kernels = [], []
    for source, suffix in ((original, "original"), (edited, "edited")):
        text = _statement(kernel.name, function, source)
        artifact_id = f"{kernel.artifact.rstrip(']')} {suffix}]"
        identity = f"{artifact_id}.{kernel.name}"
        artifacts.append(Artifact(artifact_id, "kernels", suffix, "python", text, kernel.graph))
        lines = (1, text.count("\n") + 1)
        kernels.append(replace(kernel, id=identity, artifact=artifact_id, lines=lines))
    others = [artifact for artifact in record.artifacts if artifact.stage != "kernels"]
    both = replace(
        record, target=gpu, artifacts=(*others, *artifacts), kernels=tuple(kernels), binaries=(), problems=()
    )
    return both, kernels[0].id, kernels[1].id


def _statement(name: str, function: str, source: str) -> str:
    """As Inductor writes it. Quotes within are escaped: they are a user's, Inductor's own code has none."""
    quoted = source.replace("\\", "\\\\").replace("'''", "\\'\\'\\'")
    return f"{name} = async_compile.triton('{function}', '''{quoted}''', device_str='cuda')"


def with_configuration(name: str, source: str, numbers: Mapping[str, int]) -> str:
    """The source with its decorator asking for one configuration (`{"XBLOCK": 256, "num_warps": 8}`), line for line.

    Raises SyntaxError, ValueError where the source has no such kernel of Inductor's.
    """
    decorator = next(
        (
            found
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef) and node.name == name
            for found in node.decorator_list
            if isinstance(found, ast.Call) and "triton_heuristics" in ast.unparse(found.func)
        ),
        None,
    )
    if decorator is None:
        raise ValueError(f"the source has no kernel {name} under a decorator of triton_heuristics")
    kept = [keyword for keyword in decorator.keywords if keyword.arg in ("filename", "triton_meta", "inductor_meta")]
    arguments = ", ".join([repr(dict(numbers)), *(f"{keyword.arg}={ast.unparse(keyword.value)}" for keyword in kept)])
    lines = source.split("\n")
    first, last = decorator.lineno, decorator.end_lineno or decorator.lineno
    written = f"@triton_heuristics.fixed_config({arguments})"
    return "\n".join([*lines[: first - 1], written, *[""] * (last - first), *lines[last:]])
