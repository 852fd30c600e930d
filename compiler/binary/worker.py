"""The process in which Triton compiles: jobs on stdin, outputs on stdout.

`python -m compiler.binary.worker HELPERS`, where HELPERS is the Inductor module that generated kernels use
(`compiler.torch_api.triton_kernels.HELPERS`). It needs torch's folder but imports neither torch nor the user's modules,
so it starts in a sixth of a second. The worker, Triton and the vendor's tools write files only to TMPDIR, which is
private and deleted at the end.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import itertools
import linecache
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from compiler.binary import listing
from compiler.binary.alone import import_alone
from compiler.binary.jobs import Job, LayoutFacts, Output, read, write
from compiler.binary.layout_facts import read_layouts
from compiler.binary.pass_dumps import Dump, changes, text_before_pipelining

_OF_HEURISTICS = ("triton_heuristics", "DeviceProperties", "AutotuneHint", "ReductionHint", "TileHint")
_SCRATCH = ("global_scratch_size", "profile_scratch_size")
_REGISTERS = re.compile(r"^ptxas\S* info\s+: Used (\d+) registers", re.MULTILINE)
_SPILLS = re.compile(r"(\d+) bytes spill stores")
_PTXAS_SAID = re.compile(r"`ptxas` stderr:\n(.*?)\n*Repro command", re.DOTALL)
_PTX_PATH = re.compile(r"(ptxas\S*) \S+\.ptx, line")


def main() -> None:
    """Compile jobs until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outputs = os.fdopen(os.dup(1), "wb")
    log = _Log(Path(os.environ["TMPDIR"], "log"))
    _import_helpers(sys.argv[1])
    try:
        while job := read(sys.stdin.buffer, Job):
            write(outputs, compile_job(job, log))
    except BrokenPipeError:
        os._exit(1)  # the parent process has ended
    finally:
        shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)


class _Log:
    """A file to which stdout and stderr of Triton, MLIR and ptxas are redirected."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._path = path
        os.dup2(self._descriptor, 1)
        os.dup2(self._descriptor, 2)

    def clear(self) -> None:
        os.ftruncate(self._descriptor, 0)

    def text(self) -> str:
        sys.stdout.flush()
        sys.stderr.flush()
        return self._path.read_text(errors="replace")


def compile_job(job: Job, log: _Log) -> Output:
    """Compile one kernel; after a failure, the output has the error and the stages before it."""
    log.clear()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder  # Triton writes each stage there as it completes,
        os.environ["TRITON_STORE_BINARY_ONLY"] = str(int(job.to_run))  # or only the last one
        output = Output()
        dumps: list[Dump] = []
        try:
            with _dump_passes(log, dumps) if job.with_passes else nullcontext():
                kernel = _compile(job)
            if job.to_run:
                return _binary(kernel)
            output = _facts(job, kernel, log.text())
        except Exception as error:  # noqa: BLE001 - Triton, LLVM and ptxas fail in many ways; each is a result
            output = Output(error=_message(job, error, log.text()))
        output = replace(output, **_texts(job, Path(folder), output.error))
        return _with_passes(output, dumps, job, Path(folder))


def _compile(job: Job) -> Any:
    """Compile a kernel with Triton. Raises Triton's errors."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    target = GPUTarget(job.backend, job.architecture, job.warp_size)
    _prepare(target)
    function = _kernel(job)
    names = {"triton": triton, "inf": math.inf, "nan": math.nan}
    signature, constants, attributes = eval(job.arguments, names)
    return triton.compile(ASTSource(function, signature, constants, attributes), target=target, options=job.options)


@contextmanager
def _dump_passes(log: _Log, dumps: list[Dump]) -> Iterator[None]:
    """Let MLIR print the code before each pass in the block, and collect what each run of passes printed."""
    watch_passes = import_alone("triton_passes").watch_passes
    with watch_passes(log.clear, lambda pipeline, after: dumps.append(Dump(pipeline, log.text(), after))):
        yield


def _with_passes(output: Output, dumps: list[Dump], job: Job, folder: Path) -> Output:
    """The output with what the passes changed, and with the layouts in the TTGIR."""
    if not dumps:
        return output
    found = tuple(each for dump in dumps for each in changes(dump, job.file))
    scheduled = next((text for dump in dumps if (text := text_before_pipelining(dump))), "")
    layouts: tuple[LayoutFacts, ...] = ()
    texts = [*folder.rglob("*.ttgir")]
    if texts:
        layouts = read_layouts(texts[0], job)
    return replace(output, passes=found, scheduled=scheduled, layouts=layouts)


def _prepare(target: Any) -> None:
    """Set Triton's target, and skip hashing Triton's files for its cache key."""
    import triton.runtime.cache
    from triton.backends.driver import DriverBase
    from triton.runtime import driver

    class Driver(DriverBase):  # type: ignore[misc]
        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            raise NotImplementedError(f"nothing is launched here, so {ty} needs no name")

        def get_current_target(self) -> Any:
            return target

        def get_active_torch_device(self) -> Any:
            raise NotImplementedError("no tensor is here")

        def get_benchmarker(self) -> Any:
            raise NotImplementedError("nothing runs here")

    driver.set_active(Driver())
    if hasattr(triton.runtime.cache, "triton_key"):
        triton.runtime.cache.triton_key = lambda: "tcompile"


def _kernel(job: Job) -> Any:
    """The job's `@triton.jit` function, without Inductor's heuristics."""
    tree = ast.parse(job.source)
    tree.body = [kept for statement in tree.body for kept in _without_heuristics(statement)]
    lines = job.source.splitlines(keepends=True)
    linecache.cache[job.file] = (len(job.source), None, lines, job.file)  # triton.jit reads the source from there
    namespace: dict[str, Any] = {"__name__": job.name, "__file__": job.file}
    exec(compile(tree, job.file, "exec"), namespace)
    return namespace[job.name]


def _without_heuristics(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the statement without imports, decorators and calls of Inductor's heuristics."""
    if isinstance(statement, ast.FunctionDef):
        statement.decorator_list = [d for d in statement.decorator_list if "triton_heuristics" not in ast.unparse(d)]
    if isinstance(statement, ast.ImportFrom):
        statement.names = [alias for alias in statement.names if alias.name not in _OF_HEURISTICS]
        if not statement.names:
            return
    if not (isinstance(statement, ast.Expr) and "set_driver_to" in ast.unparse(statement)):
        yield statement


def _import_helpers(module: str) -> None:
    """Import a module with only its innermost package, without executing outer packages such as torch.

    If that fails, because the module needs its outer packages, import these too.
    """
    *packages, _innermost, _name = itertools.accumulate(module.split("."), "{}.{}".format)
    for name in packages:
        found = importlib.util.find_spec(name)
        bare = types.ModuleType(name)
        bare.__path__ = list(found.submodule_search_locations or ()) if found else []
        bare.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = bare
    try:
        importlib.import_module(module)
    except (ImportError, AttributeError):  # this torch's helpers need the outer packages
        for name in [name for name in sys.modules if name.partition(".")[0] == packages[0]]:
            del sys.modules[name]
        importlib.import_module(module)


def _facts(job: Job, kernel: Any, log: str) -> Output:
    """Facts from Triton's metadata, and from ptxas or the AMD assembler's directives."""
    metadata = kernel.metadata
    if job.backend == "hip":
        registers, spills = _amd_registers(kernel.asm["amdgcn"])
    else:
        registers, spills = _last(_REGISTERS, log), _last(_SPILLS, log)
    return Output(
        registers=registers,
        spill_bytes=spills,
        shared_memory=metadata.shared,
        tensor_memory=getattr(metadata, "tmem_size", None),
        threads=metadata.num_warps * job.warp_size,
    )


def _binary(kernel: Any) -> Output:
    """The binary of a kernel. Raises ValueError if each launch needs scratch memory."""
    scratch = [size for name in _SCRATCH if (size := getattr(kernel.metadata, name, None)) is not None]
    if any(scratch):
        raise ValueError("it needs scratch memory, which the launcher does not give")
    shared, threads = kernel.metadata.shared, kernel.metadata.num_warps
    return Output(
        shared_memory=shared,
        threads=threads * 32,
        binary=kernel.asm["cubin"],
        function=kernel.metadata.name,
        spare=len(scratch),
    )


def _amd_registers(text: str) -> tuple[int | None, int | None]:
    """Vector registers of a thread, and its spilled bytes: 4 for each spilled register."""
    spilled = _last(re.compile(r"\.vgpr_spill_count:\s*(\d+)"), text)
    return _last(re.compile(r"\.vgpr_count:\s*(\d+)"), text), None if spilled is None else 4 * spilled


def _last(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.findall(text)
    return int(found[-1]) if found else None


def _texts(job: Job, folder: Path, error: str) -> dict[str, Any]:
    """Texts of the stages that Triton reached, from its cache, and SASS from the cubin."""
    files = {path.suffix[1:]: path for path in folder.rglob("*") if path.suffix}
    raw = {stage: files[stage].read_text() for stage in listing.LANGUAGES if stage in files}
    texts = {stage: listing.canonical(listing.LANGUAGES[stage], text) for stage, text in raw.items()}
    if "cubin" in files and "ptx" in raw:
        try:
            texts["sass"] = listing.sass_listing(_disassemble(files["cubin"]), raw["ptx"], job.file)
        except (OSError, subprocess.CalledProcessError) as failure:
            error = error or f"nvdisasm failed: {getattr(failure, 'stderr', '') or failure}".strip()
    return {"texts": texts, "error": error}


def _disassemble(cubin: Path) -> str:
    """Disassemble with nvdisasm. Raises OSError, subprocess.CalledProcessError."""
    from triton import knobs

    command = [knobs.nvidia.nvdisasm.path, *listing.NVDISASM_OPTIONS, "-ndf", str(cubin)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _message(job: Job, error: Exception, log: str) -> str:
    """The failing tool's message, without this process's paths."""
    node = getattr(error, "node", None)
    if node is not None:  # a triton.compiler.CompilationError
        return _at_line(job, error, node)
    text = f"{type(error).__name__}: {error}"
    if said := _PTXAS_SAID.search(text):
        errors = [line for line in said[1].splitlines() if "error" in line or "fatal" in line]
        return _PTX_PATH.sub(r"\1 line", "\n".join(errors) or said[1])
    diagnostics = [re.sub(r"^\S*?([\w.]+:\d+:\d+:)", r"\1", line) for line in log.splitlines() if ": error:" in line]
    return "\n".join(dict.fromkeys((*diagnostics, text)))


def _at_line(job: Job, error: BaseException, node: ast.AST) -> str:
    """The source line and the error's reason; the error may be in a function called on that line."""
    functions = [found for found in ast.walk(ast.parse(job.source)) if isinstance(found, ast.FunctionDef)]
    first = next((found.lineno for found in functions if found.name == job.name), 1)
    line = first + getattr(node, "lineno", 1) - 1
    while error.__cause__ is not None:
        error = error.__cause__
    why = getattr(error, "error_message", None) or f"{type(error).__name__}: {error}"
    return f"line {line}, `{job.source.splitlines()[line - 1].strip()}`: {why}"


if __name__ == "__main__":
    main()
