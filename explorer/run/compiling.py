"""Compile a record's kernels lazily, when a stage that needs them is opened.

A `Run` and its widget share one `KernelCompiler`, so that each sees what the other has compiled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from compiler.record import MACHINE_STAGES, Kernel, Problem, Record
from explorer.findings import KnownFindings
from explorer.run.patch import Patch


def compiled_kernels(record: Record) -> tuple[Kernel, ...]:
    """The kernels that can be compiled to machine code: those in Triton and in C++."""
    return tuple(kernel for kernel in record.kernels if kernel.language in ("triton", "cpp"))


def machine_stages(record: Record) -> tuple[str, ...]:
    """The stages that this record's kernels compile to, in pipeline order; () without kernels."""
    languages = {kernel.language for kernel in compiled_kernels(record)}
    found = {"llir", "asm"} if "cpp" in languages else set[str]()
    if "triton" in languages:
        found |= {"ttir", "ttgir", "llir"} | ({"amdgcn"} if _is_amd(record) else {"ptx", "sass"})
    return tuple(stage for stage in MACHINE_STAGES if stage in found)


def reason_absent(record: Record, stage: str) -> str:
    """Why no kernel of the record has a machine stage; "" if one may have it, or the record has a problem for it."""
    if stage not in MACHINE_STAGES or stage in _WITH_PASSES or record.of_stage(stage):
        return ""
    own = machine_stages(record)
    if not own or stage in own or any(problem.stage in MACHINE_STAGES for problem in record.problems):
        return ""
    return f"the kernels of this run have no stage {stage!r}, but {', '.join(own)}"


def _is_amd(record: Record) -> bool:
    from compiler.targets import known_target

    found = known_target(record.target or record.options.target)
    return found.vendor == "amd" if found else "AMD" in record.environment.gpu


_NO_CONFIG = "there is no configuration"
_WITH_PASSES = ("passes", "layouts")
"""Stages that a kernel gets when it is compiled once more, with MLIR printing the code before each pass."""


@dataclass(frozen=True, slots=True)
class Maker:
    """Two functions to add a stage lazily: `left` counts what is still missing, `make` adds the stage to the record."""

    left: Callable[[Record], int]
    make: Callable[[Record], Record]


class KernelCompiler:
    """Holds the current record, which grows as kernels are compiled. Thread-safe; one thread compiles at a time.

    `listen` adds a callback for new records and progress: it is called with `(record, {"done": 3, "total": 7})`, and
    with `(record, {})` when nothing is running.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._lock = threading.RLock()
        self._listeners: list[Callable[[Record, dict[str, Any]], None]] = []
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None
        self._tried: set[str] = set()
        self.makers = dict.fromkeys(_WITH_PASSES, Maker(_count_without_passes, _with_passes))
        self.known = KnownFindings()
        self.evaluate: Callable[[Mapping[str, Any]], tuple[dict[str, Any], bytes]] | None = (
            None  # a call's tape, run with other inputs
        )
        self.tree: Callable[[str], str] | None = None  # text of an entity's call at each level, if its graph was kept
        self.patch: Callable[[Sequence[str]], Patch] | None = None  # the patch of chosen sites, if there is a call

    @property
    def record(self) -> Record:
        return self._record

    def replace(self, record: Record) -> None:
        """Replace the record by one that a running cell has extended."""
        self._record = record

    def grow(self, longer: Callable[[Record], Record]) -> Record:
        """Replace the record by the result of `longer(record)`, and notify the listeners if it changed."""
        with self._lock:
            before, self._record = self._record, longer(self._record)
            if self._record is not before:
                self._tell({})
        return self._record

    @property
    def is_trusted(self) -> bool:
        """Whether the kernels' code may be executed: the record was made in this process, or the user trusts it."""
        return self._record.trust != "untrusted"

    def trust(self) -> Record:
        """Allow the code of the record's kernels to be executed on this machine."""
        return self.grow(lambda record: record if record.trust != "untrusted" else record.with_trust("trusted"))

    def listen(self, listener: Callable[[Record, dict[str, Any]], None]) -> None:
        self._listeners.append(listener)

    def tell_making(self, stage: str, words: str) -> None:
        """Tell the listeners the progress of making a lazy stage, described by `words`."""
        self._tell({"done": 0, "total": 1, "stage": stage, "words": words})

    def forget(self, listener: Callable[[Record, dict[str, Any]], None]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def _tell(self, progress: dict[str, Any]) -> None:
        for listener in tuple(self._listeners):
            listener(self._record, progress)

    @property
    def left(self) -> tuple[Kernel, ...]:
        """The kernels that have not been compiled or tried yet."""
        done = {binary.kernel for binary in self._record.binaries} | self._tried
        return tuple(kernel for kernel in compiled_kernels(self._record) if kernel.id not in done)

    def pending_stages(self) -> dict[str, int]:
        """Number of kernels that can still be compiled, by stage."""
        count = len(self.left)
        return dict.fromkeys(machine_stages(self._record), count) if count else {}

    def makes(self) -> dict[str, int]:
        """Number of graphs for which `makers` can still add a stage (1 for the x-ray), by stage."""
        left = {stage: maker.left(self._record) for stage, maker in self.makers.items()}
        return {stage: count for stage, count in left.items() if count}

    def make(self, stage: str) -> Record:
        """Add a lazy stage for the live view, and return the record; an error is added to `record.problems`."""
        count = self.makes().get(stage)
        if not count:
            return self._record
        self._tell({"done": 0, "total": count, "stage": stage})
        try:
            self.grow(self.makers[stage].make)
        except Exception as error:  # noqa: BLE001 there is no caller to raise it to
            reason = f"it could not be made: {type(error).__name__}: {error}".strip(": ")
            self.grow(lambda record: record.with_fields(problems=(*record.problems, Problem(stage, reason))))
        finally:
            self._tell({})
        return self._record

    def has_yet_to_make(self, stage: str) -> bool:
        return stage in self.pending_stages() or (stage in _WITH_PASSES and stage in self.makes())

    def make_of_kernels(self, stage: str) -> Record:
        """Add a stage of machine code for all kernels that lack it, and return the record. Raises UntrustedError."""
        return self.grow(self.makers[stage].make) if stage in _WITH_PASSES else self.compile()

    def compile(self, kernels: Collection[str] | None = None, config: int = 0) -> Record:
        """Compile kernels by id (by default the remaining ones), and return the new record.

        `config` is the index of the launch configuration among the autotuning candidates. After an interrupt, finished
        kernels are kept. Failures are added to `record.problems`. Raises ValueError for a `config` that no kernel has,
        UntrustedError for a loaded record that is not trusted.
        """
        if config < 0:
            raise ValueError(f"config counts launch configurations from 0; got {config}")
        with self._lock:
            wanted = self._kernels_without(config) if kernels is None else list(kernels)
            if wanted:
                self._record.require_trust()
                before = self._record
                self._compile(wanted, config)
                self._check_config(config, before, wanted)
        return self._record

    def _check_config(self, config: int, before: Record, wanted: list[str]) -> None:
        """Restore the record `before`, and raise ValueError, if no kernel has this configuration."""
        new = [problem.reason for problem in self._record.problems if problem not in before.problems]
        if config and new and self._record.binaries == before.binaries and all(_NO_CONFIG in reason for reason in new):
            self._record = before
            self._tried.difference_update(wanted)
            self._tell({})
            raise ValueError(new[0])

    def _kernels_without(self, config: int) -> list[str]:
        """Ids of the kernels not yet compiled in this configuration."""
        if config == 0:
            return [kernel.id for kernel in self.left]
        done = {
            binary.kernel
            for binary in self._record.binaries
            if config < len(binary.configs) and binary.config == binary.configs[config]
        }
        return [kernel.id for kernel in compiled_kernels(self._record) if kernel.id not in done]

    def _compile(self, wanted: list[str], config: int) -> None:
        # Imported here because it imports torch and Triton's tools, which reading a record does not need.
        from compiler.binary import compile_incrementally

        self._cancelled.clear()
        found = self._record
        self._tell({"done": 0, "total": len(wanted)})
        try:
            with closing(compile_incrementally(self._record, kernels=wanted, config=config)) as steps:
                for done, found in enumerate(steps, 1):  # noqa: B007 the last one is the result
                    self._tell({"done": done, "total": max(done, len(wanted))})
                    if self._cancelled.is_set():
                        break
                else:
                    self._tried.update(wanted)
        finally:
            self._record = found
            self._tell({})

    def start(self) -> None:
        """Compile the remaining kernels in a thread, unless one is already running."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="tcompile kernels", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        try:
            self.compile()
        except Exception as error:  # noqa: BLE001 a thread has no caller to raise to: the view shows the error
            self._record = with_problem(self._record, error)
            self._tried.update(kernel.id for kernel in compiled_kernels(self._record))
            self._tell({})

    def cancel(self) -> None:
        """Stop after the kernels that are being compiled; they are kept."""
        self._cancelled.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread started by `start`."""
        if self._thread is not None:
            self._thread.join(timeout)


def _without_passes(record: Record) -> list[str]:
    done = {artifact.attrs["kernel"] for artifact in record.of_stage("passes")}
    return [kernel.id for kernel in record.kernels if kernel.language == "triton" and kernel.id not in done]


def _count_without_passes(record: Record) -> int:
    return len(_without_passes(record))


def _with_passes(record: Record) -> Record:
    """Compile the kernels whose passes are not known, and add the stages of `_WITH_PASSES`."""
    from compiler.binary import compile_record  # imports torch

    record.require_trust()
    stages = (*machine_stages(record), *_WITH_PASSES)  # all are there, and need no second compilation
    return compile_record(record, kernels=_without_passes(record), stages=stages)


class RecordHolder:
    """Holds a growing record. The live view uses this type to find the variables that hold its run."""

    compiler: KernelCompiler
    _widget: Any

    @property
    def record(self) -> Record:
        """The current record."""
        return self.compiler.record


def with_problem(record: Record, error: Exception) -> Record:
    """Add a problem to the record for each missing machine-code stage, with the error that prevented it."""
    reason = f"the kernels could not be compiled: {type(error).__name__}: {error}".strip(": ")
    problems = tuple(Problem(stage, reason) for stage in machine_stages(record) if not record.of_stage(stage))
    return record.with_fields(problems=(*record.problems, *problems))
