"""Measure memory, launches and host time of a candidate, apart from its timed rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from compiler.record.measure_facts import Candidate, HostTime
from compiler.timing import host_split, peak
from compiler.timing.cold import Heard
from compiler.timing.rounds import Clock, GpuClock
from compiler.timing.work import Work
from compiler.torch_api.profiled import GpuWork

LEAST_STREAM_CALLS = 3


@dataclass(frozen=True, slots=True)
class Pool:
    """Memory held by CUDA graphs, which share one pool per process.

    `shared_with` are the candidates before; `replays` is whether this one asks for CUDA graphs.
    """

    replays: bool = False
    bytes: int = 0
    shared_with: str = ""


def with_resource_use(candidate: Candidate, work: Work, heard: Heard, clock: Clock, pool: Pool) -> Candidate:
    """The candidate with what one more call shows. Raises what the call raises."""
    found = replace(candidate, peak_bytes=max(peak.peak_bytes(work, clock), pool.bytes))
    if isinstance(clock, GpuClock):
        return _on_gpu(found, work, heard, clock, pool)
    host = HostTime(guards=heard.guards) if heard.guards is not None else None
    return replace(found, launches=heard.calls, host=host)


def _on_gpu(candidate: Candidate, work: Work, heard: Heard, clock: GpuClock, pool: Pool) -> Candidate:
    stream = clock.stream(work.step, max(LEAST_STREAM_CALLS, candidate.calls_a_round))
    host, found = host_split.on_gpu(work.step, clock, heard.guards)
    known = None if host == HostTime() else host
    candidate = replace(candidate, stream_seconds=stream, host=known)
    if found is None:
        return with_note(candidate, "launches are not known: the profiler saw nothing of the GPU")
    for note in _graph_notes(found, pool):
        candidate = with_note(candidate, note)
    return replace(candidate, launches=found.launched)


def _graph_notes(found: GpuWork, pool: Pool) -> Iterator[str]:
    if pool.replays and not found.graphs:
        yield "no CUDA graph was launched in its calls: torch refused them"
    elif pool.replays:
        yield f"its CUDA graphs run {found.kernels} kernels and copies"
    if pool.bytes:
        shared = f", together with those of {pool.shared_with}" if pool.shared_with else ""
        yield f"CUDA graphs hold {pool.bytes / 2**20:,.1f} MiB between calls too{shared}"


def with_note(candidate: Candidate, note: str) -> Candidate:
    return replace(candidate, notes=(*candidate.notes, note))
