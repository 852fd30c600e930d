"""Rules about code for the CPU: threads and the compiler."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.advise.facts import Advice, Change, Evidence, Gain, percent
from compiler.advise.reading import Reading
from compiler.record.plain_text import pluralize

THREADED = 0.3
"""Share of a call's time that more threads are expected to save, a conservative estimate."""
WORTH_WAKING = 1e-3
"""Minimum seconds of a call for which starting threads pays."""
LARGE = 64 * 1024
"""Minimum bytes of a loop for which threads pay."""


def threads(reading: Reading) -> Iterator[Advice]:
    """Report idle CPU cores."""
    environment = reading.record.environment
    used = reading.record.measurement.threads if reading.record.measurement is not None else environment.threads
    if reading.on_gpu or not 0 < used < environment.cores or not any(found.bytes >= LARGE for found in reading.kernels):
        return
    found = f"torch uses {pluralize(used, 'thread')}, and this machine has {environment.cores} cores."
    change = Change(
        f"torch.set_num_threads({environment.cores}), or OMP_NUM_THREADS before Python starts. Leave it as it is where "
        "other processes (workers of a DataLoader, other models) need the cores.",
        settings=(f"torch.set_num_threads({environment.cores})",),
    )
    large = sorted((each for each in reading.kernels if each.bytes >= LARGE), key=lambda each: -each.bytes)
    evidence = (Evidence(found, "recorded", tuple(each.kernel.id for each in large[:3])),)
    yield Advice("threads", "Cores that stand idle", found, evidence, _threads_gain(reading), change)


def _threads_gain(reading: Reading) -> Gain | None:
    if reading.seconds is None or reading.seconds <= WORTH_WAKING:
        return None
    how = f"{percent(THREADED)} of a call: what is computed in parallel is divided, the rest is not"
    return Gain(THREADED * reading.seconds, "call", how, "estimate", THREADED)


def no_compiler(reading: Reading) -> Iterator[Advice]:
    """Report code that could not be built without a C++ compiler."""
    for problem in reading.record.problems:
        if "C++ compiler" in problem.hint or "InvalidCxxCompiler" in problem.reason:
            found = f"Code for the CPU can't be built here: {problem.reason.splitlines()[0]}."
            change = Change("Install a C++ compiler (Debian: apt-get install g++; macOS: xcode-select --install).")
            yield Advice("no-compiler", "No C++ compiler", found, (), None, change)
            return
