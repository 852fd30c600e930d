"""Hand-written records with measured candidates and known ratios, so that texts can be checked."""

from __future__ import annotations

from compiler.record import Candidate, HostTime, Measurement, Record
from compiler.record.options import Options
from tests.explorer.small_record import small_record

MS = 1e-3
KIB = 1024

NOISE = "eager varied by 18 %: read it as ±9 %"


def rounds(middle: float, spread: float) -> tuple[float, ...]:
    """Nine rounds around a median, half of them within `spread` of it."""
    return tuple(middle * (1 + spread * step / 2) for step in (-4, -3, -2, -1, 0, 1, 2, 3, 4))


def candidate(name: str, seconds: float, spread: float = 0.02, **more: object) -> Candidate:
    backend, _, mode = name.partition(" ")
    return Candidate(
        name,
        "" if name == "eager" else backend,
        mode,
        "forward and backward",
        "cpu",
        seconds,
        seconds * (1 - spread),
        seconds * (1 + spread),
        rounds(seconds, spread),
        14,
        **more,
    )


def candidates() -> tuple[Candidate, ...]:
    """Eager and candidates: two faster, one slower, one about equal, one that could not be measured."""
    host = HostTime(guards=0.02 * MS, wrapper=0.11 * MS, launches=0.05 * MS, gpu=0.6 * MS)
    return (
        candidate("eager", 2.0 * MS, 0.09, peak_bytes=512 * KIB),
        candidate("aot_eager", 2.6 * MS, compile_seconds=1.25, peak_bytes=640 * KIB, graphs=2, kernels=0),
        candidate("inductor", 1.0 * MS, compile_seconds=24.0, peak_bytes=256 * KIB, kernels=4, launches=6, graphs=2,
                  host=host, notes=("2 of 9 rounds took more than twice as long",)),
        candidate("inductor max-autotune", 0.8 * MS, compile_seconds=61.0, peak_bytes=256 * KIB, kernels=4, launches=6,
                  graphs=2, host=host),
        candidate("openxla", 1.95 * MS, 0.04, compile_seconds=3.0),
        Candidate("inductor reduce-overhead", "inductor", "reduce-overhead", "forward and backward", "cpu",
                  problem="CUDA graphs need a GPU:\nthe tensors are on the CPU"),
    )  # fmt: skip


def measurement(**changes: object) -> Measurement:
    told = {
        "device": "cpu",
        "device_name": "Xeon Platinum 8488C",
        "threads": 2,
        "method": "Fresh copies of the module; interleaved rounds; median and quartiles.",
        "noise": (NOISE,),
    }
    return Measurement(**(told | changes))


def timed_record(target: str = "h100") -> Record:
    """A record as after `--time`, in Inductor's default mode: the candidates and the measurement's settings."""
    return small_record().with_fields(
        options=Options(target=target, time=True), target=target, measurement=measurement(), candidates=candidates()
    )
