"""Match profiled times to kernels, with their share of the GPU's peak rates, and to source lines."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from compiler.binary.roofline import Work, rate, work
from compiler.record import Entity, Kernel, KernelTime, LineTime, Record
from compiler.targets import Target
from compiler.timing import marks
from compiler.timing.line_chains import Chain, Works
from compiler.timing.spent import Spent, Trace

Placed = tuple[KernelTime, tuple[Chain, ...]]
"""A time with its chains of lines."""


@dataclass(frozen=True, slots=True)
class _Key:
    """Key for grouping times."""

    half: str
    call: str
    function: str = ""
    op: str = ""
    chain: Chain = ()


class Kernels:
    """Kernels of a record by their calls, and the work of each call."""

    def __init__(self, record: Record, gpu: Target | None) -> None:
        self._record = record
        self._gpu = gpu
        self._kernels = {kernel.id: kernel for kernel in record.kernels}
        by_name = {(kernel.artifact, kernel.name): kernel.id for kernel in record.kernels}
        self.calls: dict[str, Entity] = {}
        self._called: dict[str, str] = {}
        for artifact in record.of_stage("kernels"):
            calls = {each.id: each for each in artifact.entities if each.kind in ("call", "extern")}
            self.calls |= calls
            self._called |= {name: by_name.get((artifact.id, call.label), "") for name, call in calls.items()}

    def kernel_of(self, call: str) -> Kernel | None:
        entity = self.calls.get(call)
        if entity is None:
            return None
        own = entity.id if entity.kind == "extern" else self._called[call]
        known = (self._kernels[name] for name in (own, *entity.origins) if name in self._kernels)
        return next(known, None)

    def with_work(self, time: KernelTime, runs: float) -> KernelTime:
        """The time with bytes and FLOPs of all runs of the call, and shares of the GPU's peak rates, if known."""
        kernel = self.kernel_of(time.call)
        if kernel is None:
            return time
        done = work(kernel, self._record)
        moved = round(_bytes(self.calls[time.call]) * runs) or None
        flops = round(done.flops * runs) or None
        time = replace(time, bytes=moved, flops=flops)
        return self._with_shares(time, done, kernel) if self._gpu and time.device == "cuda" and time.seconds else time

    def _with_shares(self, time: KernelTime, done: Work, kernel: Kernel) -> KernelTime:
        assert self._gpu is not None
        peak = rate(self._gpu, _format(done, kernel, self._gpu), matmul=done.matmul)
        return replace(
            time,
            memory_share=time.bytes and time.bytes / time.seconds / self._gpu.memory_bandwidth,
            compute_share=time.flops and time.flops / time.seconds / peak,
        )


def _bytes(call: Entity) -> int:
    return int(call.attrs.get("bytes") or 0)


def _format(done: Work, kernel: Kernel, gpu: Target) -> str:
    """Name of the dtype whose peak rate applies: tf32 for float32 matmuls if torch's settings allow it."""
    convolves = "conv" in kernel.name
    rounds = torch.backends.cudnn.allow_tf32 if convolves else torch.get_float32_matmul_precision() != "highest"
    return "tf32" if done.matmul and done.dtype == "float32" and rounds and "tf32" in gpu.peak else done.dtype


def compiled_times(trace: Trace, kernels: Kernels, works: Mapping[str, Works]) -> list[Placed]:
    """A time for each kernel call of the generated code, and for each other device function."""
    runs = trace.counts()

    def key(each: Spent) -> _Key:
        call = each.mark.removeprefix(marks.CALL_MARK)
        return _Key(each.half, call) if call in kernels.calls else _Key(each.half, "", each.function, each.op)

    found: list[Placed] = []
    for its, items in _group(trace.spent_times(), key).items():
        time = _time(items, trace)
        kernel = kernels.kernel_of(its.call)
        its_work = works.get(its.call, Works())
        if kernel is not None:
            lines = tuple(dict.fromkeys(chain[-1] for chain in its_work.chains))
            time = replace(time, name=kernel.name, kernel=kernel.id, call=its.call, nodes=its_work.nodes, lines=lines)
            time = kernels.with_work(time, runs[marks.CALL_MARK + its.call] / trace.calls)
        found.append((time, its_work.chains))
    return found


def eager_times(trace: Trace, chains: Sequence[Chain]) -> list[Placed]:
    """A time for each device function and the Python line that launched it, from the marks.

    Functions of a backward count for the line of the forward operation.
    """
    by_sequence = trace.marks_by_sequence()

    def key(each: Spent) -> _Key:
        mark = each.mark or by_sequence.get(each.sequence, "")
        chain = chains[int(mark.removeprefix(marks.LINE_MARK))] if mark else ()
        return _Key(each.half, "", each.function, each.op, chain)

    found: list[Placed] = []
    for its, items in _group(trace.spent_times(), key).items():
        time = replace(_time(items, trace), lines=its.chain[-1:])
        found.append((time, (its.chain,) if its.chain else ()))
    return found


def _group(spent: Iterable[Spent], key: Callable[[Spent], _Key]) -> dict[_Key, list[Spent]]:
    groups: dict[_Key, list[Spent]] = {}
    for each in spent:
        groups.setdefault(key(each), []).append(each)
    return groups


def _time(items: Sequence[Spent], trace: Trace) -> KernelTime:
    functions = tuple(dict.fromkeys(each.function for each in items if each.function))
    return KernelTime(
        name=functions[0] if functions else items[0].op,
        side=trace.side,
        half=items[0].half,
        seconds=_median(items, trace.calls),
        launches=len(items) / trace.calls,
        device=trace.device,
        op=items[0].op,
        functions=functions if trace.device == "cuda" else (),
    )


def _median(items: Sequence[Spent], calls: int) -> float:
    """Median of the calls' total times, in seconds; not the mean, as other load on the system slows some calls."""
    sums = dict.fromkeys(range(calls), 0.0)
    for each in items:
        sums[each.call] += each.seconds
    return statistics.median(sums.values())


def line_times(placed: Iterable[Placed]) -> tuple[LineTime, ...]:
    """Divide each time equally among its chains of lines.

    A share counts as own time of the chain's last line, and in the total of all lines of the chain. Time without a
    chain goes to the line "".
    """
    own: dict[tuple[str, ...], float] = defaultdict(float)
    total: dict[tuple[str, ...], float] = defaultdict(float)
    for time, chains in placed:
        about = (time.side, time.half, time.device)
        for chain in chains or ((""),):
            share = time.seconds / max(len(chains), 1)
            own[(*about, chain[-1] if chain else "")] += share
            for line in chain or ("",):
                total[(*about, line)] += share
    return tuple(
        LineTime(line, side, half, own.get((side, half, device, line), 0.0), seconds, device)  # type: ignore[arg-type]
        for (side, half, device, line), seconds in total.items()
    )
