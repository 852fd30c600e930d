"""Compile Triton kernels for this machine's GPU, in parallel in worker processes.

Compilation starts as soon as the code is generated, while AOTAutograd continues. The first call waits for the kernels
and loads them. Binaries are cached on disk (`disk_cache`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import cache, lru_cache

import torch

from compiler.backend.ir import BackendError, CompilerUnavailableError, Program
from compiler.backend.runtime import disk_cache
from compiler.backend.runtime.launch import Assumed
from compiler.backend.triton.emit import TritonFunction, signature
from compiler.backend.triton.tiles import TritonConfig
from compiler.binary.jobs import Job, Output
from compiler.binary.workers import Crew, cores
from compiler.torch_api.cuda_launch import Loaded, load

MOST_WORKERS = 12
_FILE = "<tcompile kernels>"
_FIRST = """
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def kernel(out_ptr, XBLOCK: tl.constexpr):
    x = tl.arange(0, XBLOCK)
    tl.store(out_ptr + x, libdevice.erf(tl.load(out_ptr + x)))
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A kernel to compile in one configuration. `starts` has the offset of each pointer into its buffer, in bytes."""

    function: TritonFunction
    config: TritonConfig
    types: Mapping[str, str]
    job: Job
    starts: tuple[int, ...]


def reason_unsupported() -> str:
    """Why Triton can't compile for this machine's GPU, "" if it can."""
    major, minor = torch.cuda.get_device_capability()
    if major < 7:
        return f"Triton compiles for compute capability 7.0 and later, and this GPU has {major}.{minor}"
    return ""


def specify_kernel(
    program: Program, function: TritonFunction, config: TritonConfig, assumed: Assumed, device: int
) -> Wanted:
    """Specify a kernel for Triton: source, constexprs, and arguments that are multiples of 16.

    Kernels that are equal under canonical names have equal jobs.
    """
    assert function.canonical is not None, "written by `emit`"
    made = function.canonical()
    (own,) = made.code.functions
    types = signature(made.program, own)
    pointers = zip(function.buffers, assumed.alignments(program, function.buffers), strict=True)
    multiples = [is_aligned and name not in made.starts for name, is_aligned in pointers]
    multiples += [name in assumed.multiples for name in function.symbols]
    attributes = {(place,): [["tt.divisibility", 16]] for place, holds in enumerate(multiples) if holds}
    major, minor = torch.cuda.get_device_capability(device)
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    if function.checks:
        options |= {"debug": True, "sanitize_overflow": False}
    arguments = repr((types, dict(config.blocks), attributes))
    target = 10 * major + minor
    job = Job(own.name, _FILE, made.code.text, arguments, options, "cuda", target, 32, to_run=True)
    starts = (made.starts.get(name, 0) * program.by_name[name].dtype.itemsize for name in function.buffers)
    return Wanted(function, config, types, job, tuple(starts))


@dataclass(frozen=True, slots=True)
class Builds:
    """Compiled kernels by cache key. `made` has futures of their binaries, `there` has the loaded kernels."""

    made: Mapping[str, Future[Output]]
    there: dict[str, Loaded] = field(default_factory=dict)

    @staticmethod
    def start(kernels: Sequence[Wanted]) -> Builds:
        """Start to compile the kernels that are not cached on disk, longest source first."""
        jobs = {
            _key(kernel.job.key()): kernel.job for kernel in sorted(kernels, key=lambda kernel: -len(kernel.job.source))
        }
        return Builds({key: _begin(key, job) for key, job in jobs.items()})

    def load(self, kernel: Wanted, device: int) -> Loaded:
        """Wait for a kernel and load it. Raises BackendError if Triton rejects it, or CompilerUnavailableError."""
        key = _key(kernel.job.key())
        if key in self.there:
            return self.there[key]
        try:
            output = self.made[key].result()
        except (OSError, CancelledError) as error:
            raise CompilerUnavailableError(
                f"kernels could not be compiled in processes of their own and kept in {disk_cache.folder()}: {error}"
            ) from error
        if output.error:
            raise BackendError(f"Triton did not take the kernel {kernel.function.name}: {output.error}")
        types = [name for name in kernel.types.values() if name != "constexpr"]
        warps, shared = output.threads // 32, output.shared_memory or 0
        found = load(disk_cache.binary_path(output.binary), output.function, warps, shared, types, output.spare, device)
        return self.there.setdefault(key, found)


@cache
def crew() -> Crew:
    """The pool of worker processes that compile kernels, shared by all graphs."""
    return Crew(min(MOST_WORKERS, max(1, cores() - 1)))


def warm_up(device: int) -> None:
    """Start the workers unless they run. Each compiles a dummy kernel, as a process's first kernel takes a second."""
    if crew().is_awake:
        return
    major, minor = torch.cuda.get_device_capability(device)
    arguments = repr(({"out_ptr": "*fp32", "XBLOCK": "constexpr"}, {"XBLOCK": 128}, {}))
    job = Job("kernel", _FILE, _FIRST, arguments, {"num_warps": 4}, "cuda", 10 * major + minor, 32, to_run=True)
    for _ in range(crew().most):
        crew().submit(job)


def _begin(key: str, job: Job) -> Future[Output]:
    made: Future[Output] = Future()
    if kept := _cached_output(key):
        made.set_result(kept)
    else:
        crew().submit(job).add_done_callback(lambda done: _finish(done, key, made))
    return made


def _finish(done: Future[Output], key: str, made: Future[Output]) -> None:
    """Cache a finished job on disk, then complete the future `made`, as binaries are loaded from the cache's files."""
    try:
        output = done.result()
        if not output.error:
            _keep(key, output)
        made.set_result(output)
    except (OSError, CancelledError) as error:
        made.set_exception(error)


@lru_cache(1024)
def _key(job_key: str) -> str:
    return disk_cache.key(job_key)


def _cached_output(key: str) -> Output | None:
    """A job's output from the disk cache; None if it is not cached."""
    found = disk_cache.read(key)
    return Output(**found[0], binary=found[1]) if found is not None and found[1] else None


def _keep(key: str, output: Output) -> None:
    facts = {name: getattr(output, name) for name in ("shared_memory", "threads", "function", "spare")}
    disk_cache.write(key, facts, output.binary)
