"""A record's Triton kernels: source, known launch sizes, and the GPU they were written for."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from compiler.binary.jobs import one_function
from compiler.record import STAGES, Artifact, Kernel, Record
from compiler.targets import TARGETS, Target, is_virtual, known_target
from compiler.torch_api.triton_kernels import CompileRequest, KernelSourceError

_SIZE = re.compile(r"(?:[xyz]|r\d+_)numel(?:_\d+)?$")
_PROPERTIES = re.compile(r"DeviceProperties\(type='(\w+)'.*?multi_processor_count=(\d+), cc=(?:(\d+)|'(\w+)')")

_NO_CONSTANT = ("num_warps", "num_stages")


class CannotCompileError(ValueError):
    """A record or kernel can't be compiled. `hint` says what to do about it."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A Triton kernel: its function's name, its source, and the known sizes of its launch grid.

    In Inductor's code, line 1 of the source is the empty line after the opening quotes. `sizes` has the sizes that are
    numbers in the source ("xnumel"), and the grid if the call has it ("_grid_0"). The function of a user's own kernel
    may have another name than the kernel. `launch` is the compilation and launch data of our own backend's kernels,
    and empty for Inductor's.
    """

    kernel: Kernel
    function: str
    text: str
    sizes: dict[str, int]
    launch: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The file name by which compiled texts refer to the source; line numbers are the same."""
        return f"{self.function}.py"


def triton_sources(record: Record, wanted: Collection[str] | None = None) -> list[KernelSource]:
    """The record's Triton kernels, or the `wanted` ones. Raises CannotCompileError."""
    kernels = [kernel for kernel in record.kernels if kernel.language == "triton"]
    if wanted is not None:
        _check_known(wanted, kernels)
        kernels = [kernel for kernel in kernels if kernel.id in wanted or kernel.name in wanted]
    elif not kernels:
        raise CannotCompileError(*_why_none(record))
    artifacts = {artifact.id: artifact for artifact in record.of_stage("kernels")}
    grids = {identity: _grids(artifact) for identity, artifact in artifacts.items()}
    return [_source(kernel, artifacts, grids) for kernel in kernels]


def kernel_source(artifact: Artifact, kernel: Kernel) -> tuple[str, str]:
    """Function name and source of a kernel, our own or Inductor's. Raises CannotCompileError.

    Inductor's code is `NAME = async_compile.triton('FUNCTION', '''SOURCE''', …)`.
    """
    if launch_of(artifact, kernel):
        return kernel.name, own_source(artifact, kernel)
    first, last = kernel.lines
    statement = "\n".join(artifact.text.split("\n")[first - 1 : last])
    try:
        tree = ast.parse(statement)
    except SyntaxError:
        tree = ast.Module([], [])
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and len(call.args) >= 2:
            texts = [argument.value for argument in call.args[:2] if isinstance(argument, ast.Constant)]
            if len(texts) == 2 and all(isinstance(text, str) for text in texts):
                return str(texts[0]), str(texts[1])
    raise CannotCompileError(f"lines {first} to {last} of {artifact.id} don't define the kernel {kernel.name}")


def gpu_of(record: Record, sources: Collection[KernelSource]) -> Target:
    """The GPU that the record's kernels were written for. Raises CannotCompileError.

    It is the record's target, or its actual GPU, if the table of targets has it. Otherwise it is a GPU of the same
    architecture, if possible with the same number of multiprocessors.
    """
    name = record.target or record.options.target
    for candidate in (name if is_virtual(name) else "", record.environment.gpu):
        if known := known_target(candidate):
            return known
    written_for = _device_properties(sources)
    alike = [known for known in TARGETS if _architecture(known) == written_for[:2]]
    same = [known for known in alike if known.multiprocessors == written_for[2]]
    if found := [*same, *alike]:
        return found[0]
    raise CannotCompileError(
        f"the kernels were written for {record.environment.gpu or name or written_for[1] or 'a GPU'}, which is not in "
        "the table of GPUs",
        f"explore with one of the targets {', '.join(known.name for known in TARGETS)}",
    )


def _architecture(known: Target) -> tuple[str, str]:
    return known.backend, str(known.triton_arch)


def _device_properties(sources: Collection[KernelSource]) -> tuple[str, str, int]:
    """Backend, architecture and number of multiprocessors, from the first source that has them."""
    for source in sources:
        if found := _PROPERTIES.search(source.text):
            return found[1], found[3] or found[4], int(found[2])
    return "", "", 0


def _check_known(wanted: Collection[str], kernels: list[Kernel]) -> None:
    known = {name for kernel in kernels for name in (kernel.id, kernel.name)}
    for name in wanted:
        if name not in known:
            there = ", ".join(kernel.name for kernel in kernels) or "none"
            raise CannotCompileError(f"this record has no Triton kernel {name!r}; it has: {there}")


def _why_none(record: Record) -> tuple[str, str]:
    """The reason why the record has no Triton kernels, and a hint."""
    languages = {kernel.language for kernel in record.kernels}
    if "cpp" in languages:
        return (
            "the kernels of this record are C++, for the CPU: there is nothing for Triton to compile",
            "explore with a GPU as target, such as --target h100: it need not be here",
        )
    if languages:
        return "no kernel of this record was generated: all its calls are to ATen's own", "explore something to fuse"
    if failed := [problem for problem in record.problems if problem.stage in STAGES[: STAGES.index("kernels") + 1]]:
        return "this record has no kernels", f"the stage {failed[0].stage!r} of it could not be had: {failed[0].reason}"
    return "this record has no kernels", "explore a call that computes something, with backend 'inductor'"


def _source(
    kernel: Kernel, artifacts: dict[str, Artifact], grids: dict[str, dict[str, dict[str, int]]]
) -> KernelSource:
    if kernel.artifact not in artifacts:
        raise CannotCompileError(
            f"the source of {kernel.name} is not in this record: its stage 'kernels' was left out",
            "explore with the stage 'kernels' among --stages",
        )
    function, text = kernel_source(artifacts[kernel.artifact], kernel)
    if launch := launch_of(artifacts[kernel.artifact], kernel):
        return KernelSource(kernel, function, text, {}, launch)
    sizes = {**dict(_spelled_sizes(text)), **grids[kernel.artifact].get(kernel.name, {})}
    return KernelSource(kernel, function, text, sizes)


def _spelled_sizes(text: str) -> Iterator[tuple[str, int]]:
    """Yield sizes like `xnumel = 1280` that Inductor writes at the start of a kernel if they are not symbolic."""
    for match in re.finditer(r"^    (\w+) = (\d+)$", text, re.MULTILINE):
        if _SIZE.match(match[1]):
            yield match[1], int(match[2])


def _grids(artifact: Artifact) -> dict[str, dict[str, int]]:
    """Launch grids by kernel, if the call ends in three numbers, as for templates."""
    found = {}
    for match in re.finditer(r"(\w+)\.run\((.*), stream=\w+\)", artifact.text):
        last = match[2].split(", ")[-3:]
        if len(last) == 3 and all(number.isdigit() for number in last):
            found[match[1]] = {f"_grid_{axis}": int(number) for axis, number in enumerate(last)}
    return found


# Kernels of our own backend: their entity has types, configurations and grid (compiler.backend_record.facts).


def launch_of(artifact: Artifact, kernel: Kernel) -> Mapping[str, Any]:
    """Compilation and launch data of a kernel of our own backend; empty for other kernels."""
    entity = next((entity for entity in artifact.entities if entity.id == kernel.id), None)
    return entity.attrs.get("launch", {}) if entity else {}


def own_source(artifact: Artifact, kernel: Kernel) -> str:
    """Source of the kernel's function, below the lines that all functions of the module share."""
    first = min(int(entity.attrs["line"]) for entity in artifact.entities if "launch" in entity.attrs)
    return one_function(artifact.text, first, kernel.lines)


def constants_of(launch: Mapping[str, Any], config: int) -> dict[str, int]:
    """Constants (block sizes) of the configuration with this index."""
    return {name: value for name, value in launch["configs"][config].items() if name not in _NO_CONSTANT}


def grid_of(launch: Mapping[str, Any], config: int) -> tuple[int, int, int]:
    """Number of programs along each axis, in the configuration with this index."""
    blocks = constants_of(launch, config)
    grid = [-(-points // blocks.get(block, 1)) for points, block in launch["grid"]]
    x, y, z = (*([prod(grid)] if launch.get("is_folded") else grid), 1, 1)[:3]
    return x, y, z


def own_request(launch: Mapping[str, Any], config: int) -> CompileRequest:
    """Arguments of `triton.compile` for the configuration with this index. Raises KernelSourceError."""
    configs = launch["configs"]
    if not 0 <= config < len(configs):
        raise KernelSourceError(f"there is no configuration {config}: {len(configs)} would be tried")
    chosen = configs[config]
    names = list(launch["types"])
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in launch["aligned"]}
    return CompileRequest(
        config=chosen,
        configs=tuple(configs),
        arguments=repr((launch["types"], constants_of(launch, config), attributes)),
        options={name: chosen[name] for name in _NO_CONSTANT},
        programs=prod(grid_of(launch, config)),
    )
