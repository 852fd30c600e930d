"""Code for the CPU: threads, the compiler, vector instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from compiler.advise.facts import Advice, Change, Evidence, Gain, percent
from compiler.advise.reading import KernelFacts, Reading
from compiler.record.plain_text import pluralize

ELEMENTS = {16: "AVX-512", 8: "AVX2", 4: "NEON or VSX"}
"""How many float32 a vector instruction of each kind takes at once."""
THREADED = 0.3
"""What a second core saves at the least, of the time in kernels, where both are free."""
WORTH_WAKING = 1e-3
"""Seconds of a call from which on it is worth waking threads."""
LARGE = 64 * 1024
"""Bytes from which on a loop is worth vectors and threads."""

_VECTOR = re.compile(r"at::vec::Vectorized(?:N)?<(\w+)")
_STEP = re.compile(r"loadu\([^;]*static_cast<int64_t>\((\d+)\)\)")
_LIBRARY_CALL = re.compile(r"std::(?!min|max|numeric_limits|atomic)(\w+)\(")
_SCALARS = {"int64_t": "64-bit integers", "double": "float64", "bool": "booleans"}


def threads(reading: Reading) -> Iterator[Advice]:
    """Idle cores."""
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
    """Code that could not be built without a C++ compiler."""
    for problem in reading.record.problems:
        if "C++ compiler" in problem.hint or "InvalidCxxCompiler" in problem.reason:
            found = f"Code for the CPU can't be built here: {problem.reason.splitlines()[0]}."
            change = Change("Install a C++ compiler (Debian: apt-get install g++; macOS: xcode-select --install).")
            yield Advice("no-compiler", "No C++ compiler", found, (), None, change)
            return


def vectors(reading: Reading) -> Iterator[Advice]:
    """Loops in C++ that Inductor wrote without vector instructions."""
    loops = [(found, _code(reading, found)) for found in reading.kernels if found.kernel.language == "cpp"]
    plain = [(found, code) for found, code in loops if not _VECTOR.search(code) and found.bytes >= LARGE]
    if not plain:
        return
    moved, whole = sum(found.bytes for found, _ in plain), sum(found.bytes for found in reading.kernels)
    found = (
        f"{len(plain)} of {pluralize(len(loops), 'C++ kernel')} run element by element, without vector instructions: "
        f"{percent(moved / whole)} of the bytes that a call moves."
    )
    ids = tuple(each.kernel.id for each, _ in plain[:5])
    evidence = [fact for each, code in plain[:3] for fact in reading.evidence(_why_plain(code, each), [each])]
    if width := vector_width(reading):
        evidence.append(Evidence(f"The others use {width}.", "recorded", ids))
    change = Change(
        "Use float32 (or bfloat16) where 64-bit integers or float64 are not needed, and reduce and index along the "
        "last, contiguous dimension."
    )
    yield Advice("vectors", "Loops without vector instructions", found, tuple(evidence), None, change)


def vector_width(reading: Reading) -> str:
    """The vector instructions that the C++ kernels use: `AVX-512, 16 floats at once`; "" for none."""
    texts = (_code(reading, found) for found in reading.kernels if found.kernel.language == "cpp")
    steps = [int(step) for text in texts for step in _STEP.findall(text) if "Vectorized<float>" in text]
    width = next((step for step in (16, 8, 4) if step in steps), 0)
    return f"{ELEMENTS[width]}, {width} floats at once" if width else ""


def _why_plain(code: str, found: KernelFacts) -> str:
    """The reason why a loop is not vectorised, as far as its text shows."""
    types = [words for name, words in _SCALARS.items() if re.search(rf"\b{name}\*", code)]
    if types:
        return f"{found.kernel.name} computes with {' and '.join(types)}."
    if called := sorted(set(_LIBRARY_CALL.findall(code))):
        return f"{found.kernel.name} calls {', '.join(called[:3])} of the C++ library for each element."
    return (
        f"{found.kernel.name}: Inductor found no vector form for an operation in it, or for how it goes through memory."
    )


def _code(reading: Reading, found: KernelFacts) -> str:
    artifact = next((each for each in reading.record.of_stage("kernels") if each.id == found.kernel.artifact), None)
    first, last = found.kernel.lines
    return "\n".join(artifact.text.split("\n")[first - 1 : last]) if artifact is not None else ""
