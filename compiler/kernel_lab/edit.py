"""Edit a record's kernel: replace its source and its launch configuration."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from compiler.binary.sources import gpu_of, kernel_source, launch_of, triton_sources
from compiler.record import Artifact, Entity, Kernel, Record


def check_executable(record: Record, kernel: Kernel, source: str) -> None:
    """Check that a source of this kernel, original or edited, may be executed.

    Raises UntrustedError if the record was loaded and is not trusted, and RefusedSourceError (a ValueError) if no code
    generator writes such a source.
    """
    record.require_trust()
    if not record.is_loaded:
        return
    if kernel.language == "cpp":
        from compiler.kernel_lab.cpp_source import check_cpp as check  # imports our own backend
    else:
        from compiler.untrusted.triton_source import check_triton as check  # imports Triton
    check(source)


def source_of(record: Record, kernel: Kernel) -> str:
    """The kernel's source, with an empty first line, as after opening quotes. Raises CannotCompileError."""
    artifact = record[kernel.artifact]
    if kernel.language == "cpp":
        return f"\n{cpp_source(record, kernel)[1]}"
    _, source = kernel_source(artifact, kernel)
    return f"\n{source}" if launch_of(artifact, kernel) else source


def cpp_source(record: Record, kernel: Kernel) -> tuple[str, str]:
    """The prelude that all C++ kernels of an artifact share, and the kernel's function, as source code."""
    artifact = record[kernel.artifact]
    start = min(known.lines[0] for known in record.kernels if known.artifact == kernel.artifact)
    rows = artifact.text.split("\n")
    return "\n".join(rows[: start - 1]), "\n".join(rows[kernel.lines[0] - 1 : kernel.lines[1]]) + "\n"


def function_of(record: Record, kernel: Kernel) -> str:
    """Name of the function in the kernel's source. Raises CannotCompileError."""
    function, _ = kernel_source(record[kernel.artifact], kernel)
    return function


def configurations(record: Record, kernel: Kernel, gpu: str) -> tuple[dict[str, int], ...]:
    """Launch configurations for a GPU, in autotuning's order.

    Raises KernelSourceError, and the errors of `check_executable`.
    """
    if launch := launch_of(record[kernel.artifact], kernel):
        return tuple(launch["configs"])
    check_executable(record, kernel, source_of(record, kernel))
    # Imported here, as Triton may not be installed.
    from compiler.torch_api.triton_kernels import compile_request, reading_kernels
    from compiler.virtual_gpu.gpu import virtual_gpu

    (source,) = triton_sources(record, (kernel.id,))
    with reading_kernels(virtual_gpu(gpu_of(replace(record, target=gpu), (source,)))):
        return compile_request(source.function, source.text, {}, 0).configs


def with_edit(
    record: Record, kernel: Kernel, edited: str, gpu: str, launch: Mapping[str, Any]
) -> tuple[Record, str, str]:
    """A record with the original and the edited kernel, for the GPU `gpu`, and the ids of both kernels.

    `launch` has the launch facts of the edited kernel, if it is our own backend's.
    """
    function, original = function_of(record, kernel), source_of(record, kernel)
    own = launch_of(record[kernel.artifact], kernel)
    artifacts, kernels = [], []
    for source, variant, how in ((original, "original", own), (edited, "edited", launch)):
        text = source.rstrip("\n") if own else _statement(kernel.name, function, source)
        artifact_id = f"kernels[{kernel.place} {variant}]"
        identity = f"{artifact_id}.{kernel.name}"
        made = Artifact(artifact_id, "kernels", variant, "python", text, kernel.graph, half=kernel.half)
        facts = (Entity(identity, "kernel", kernel.name, {"launch": how, "line": 1}),) if own else ()
        artifacts.append(replace(made, entities=facts))
        lines = (1, text.count("\n") + 1)
        kernels.append(replace(kernel, id=identity, artifact=artifact_id, lines=lines, variant=variant))
    artifacts += [artifact for artifact in record.artifacts if artifact.stage != "kernels"]
    both = replace(record, target=gpu, artifacts=tuple(artifacts), kernels=tuple(kernels), binaries=(), problems=())
    return both, kernels[0].id, kernels[1].id


def with_cpp_edit(record: Record, kernel: Kernel, edited: str, prelude: str) -> tuple[Record, str, str]:
    """A record with an original C++ kernel of our backend and the edited one below a prelude, and both ids."""
    artifacts, kernels = [], []
    launch = launch_of(record[kernel.artifact], kernel)
    for source, variant in ((source_of(record, kernel), "original"), (edited, "edited")):
        text, first = f"{prelude}\n{source}", prelude.count("\n") + 2
        artifact_id = f"kernels[{kernel.place} {variant}]"
        identity = f"{artifact_id}.{kernel.name}"
        facts = Entity(identity, "kernel", kernel.name, {"launch": launch, "line": first})
        made = Artifact(artifact_id, "kernels", variant, "cpp", text, kernel.graph, {}, (facts,), {}, kernel.half)
        artifacts.append(made)
        lines = (first, text.count("\n") + 1)
        kernels.append(replace(kernel, id=identity, artifact=artifact_id, lines=lines, variant=variant))
    others = tuple(artifact for artifact in record.artifacts if artifact.stage != "kernels")
    both = replace(record, artifacts=(*others, *artifacts), kernels=tuple(kernels), binaries=(), problems=())
    return both, kernels[0].id, kernels[1].id


def _statement(name: str, function: str, source: str) -> str:
    """The statement that defines a kernel in Inductor's output code, with quotes in the source escaped."""
    quoted = source.replace("\\", "\\\\").replace("'''", "\\'\\'\\'")
    return f"{name} = async_compile.triton('{function}', '''{quoted}''', device_str='cuda')"


def with_configuration(name: str, source: str, numbers: Mapping[str, int]) -> str:
    """The source with a single configuration (`{"XBLOCK": 256, "num_warps": 8}`) in the kernel's decorator.

    Line numbers don't change. Raises SyntaxError, and ValueError if the source has no Inductor kernel of this name.
    """
    functions = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef) and node.name == name
    )
    decorators = (found for node in functions for found in node.decorator_list if isinstance(found, ast.Call))
    decorator = next((found for found in decorators if "triton_heuristics" in ast.unparse(found.func)), None)
    if decorator is None:
        raise ValueError(f"the source has no kernel {name} under a decorator of triton_heuristics")
    kept = [keyword for keyword in decorator.keywords if keyword.arg in ("filename", "triton_meta", "inductor_meta")]
    arguments = ", ".join([repr(dict(numbers)), *(f"{keyword.arg}={ast.unparse(keyword.value)}" for keyword in kept)])
    lines = source.split("\n")
    first, last = decorator.lineno, decorator.end_lineno or decorator.lineno
    written = f"@triton_heuristics.fixed_config({arguments})"
    return "\n".join([*lines[: first - 1], written, *[""] * (last - first), *lines[last:]])
