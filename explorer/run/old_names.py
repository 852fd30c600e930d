"""Replacements for removed names, for the AttributeError that a removed name raises."""

from __future__ import annotations

_OF_PACKAGE = {
    "operators": "tcompile.decompose() counts the operators of this torch",
    "thresholds": "use p.with_thresholds(fused_loops=4).totals; notebook 09 has sliders for it",
    "ThresholdControl": "use p.with_thresholds(fused_loops=4)",
}
_OF_RUN = {
    "at_level": 'use run.decompose("prims")',
    "levels": "use run.decompose().table",
    "level_ops": "use run.decompose().operators",
    "time": "use run.timing.measure(…)",
    "timings": "use run.timing.candidates",
    "plot_timings": "use run.timing.plot()",
    "kernel_times": "use run.timing.kernels",
    "line_times": "use run.timing.lines",
    "stage_times": "use run.timing.stages",
    "phases": "use run.timing.phases",
    "estimates": "use run.timing.estimates",
    "profile": "use run.timing.profile()",
    "sweep": "use run.timing.sweep(…)",
    "peak_memory": "use run.memory.peak",
    "plot_memory": "use run.memory.plot()",
    "trace_memory": "use run.memory.trace(call)",
    "unfused": "use run.fusion.unfused",
    "try_advice": "use run.advice.measure(0)",
    "versus": "use run.diff()",
    "recompile_diff": 'use run.diff("0/1")',
} | {
    name: f"use run.tables.{name}"
    for name in ("symbols", "frames", "graphs", "decisions", "saved", "checks", "problems", "steps")
}


def new_name(owner: str, name: str) -> str:
    """Error message for a removed name of a run or of the package; "" for other names."""
    known = _OF_RUN if owner == "run" else _OF_PACKAGE
    return f"{owner}.{name} is no more: {known[name]}" if name in known else ""
