"""Compile times of a log's compilation by phase and by stage, from the spans that torch logs for trace viewers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from compiler.logs.events import Event, read_object
from compiler.record import Phase

_STAGE_OF_PHASE = {
    "dynamo": "captured",
    "build_guards": "captured",
    "_recursive_pre_grad_passes": "pre_grad",
    "create_aot_dispatcher_function": "joint",
    "min_cut_rematerialization_partition": "forward",
    "entire_backward_compile": "kernels",
    "inductor_compile": "kernels",
    "inductor_codecache_torch_key": "kernels",
    "CacheBase.get_system.triton_key": "kernels",
    "additional_fake_tensor_prop": "post_grad",
    "_recursive_post_grad_passes": "post_grad",
}
"""The stage that a phase makes, and so do the phases inside it that are not listed themselves."""
_INSTEAD = {
    "pre_grad": ("captured",),
    "joint": ("inference", "forward"),
    "forward": ("joint", "inference"),
    "post_grad": ("kernels",),
    "kernels": ("post_grad", "backward", "forward", "inference"),
}
"""Stages that get the time of one that the log doesn't have."""


@dataclass
class _Open:
    name: str
    began: float
    stage: str
    inside: float = 0.0


@dataclass
class PhaseTimes:
    """Seconds and count of each phase by (name, enclosing phase), and seconds of each stage without those inside it."""

    phases: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)

    def phases_of(self, graph: str) -> list[Phase]:
        return [Phase(name, seconds, graph, parent, count) for (name, parent), (seconds, count) in self.phases.items()]

    def by_stage(self, made: Collection[str]) -> dict[str, float]:
        """Seconds of the stages that the log has; the time of another goes to one next to it."""
        seconds: dict[str, float] = {}
        for stage, spent in self.stages.items():
            home = next((each for each in (stage, *_INSTEAD.get(stage, ())) if each in made), "")
            if home:
                seconds[home] = seconds.get(home, 0.0) + spent
        return seconds

    def close(self, ended: _Open, outer: list[_Open], time: float) -> None:
        """Add a phase that ends at `time`, in microseconds; one inside a phase of its name is a part of that."""
        seconds = max(0.0, time - ended.began) / 1e6
        self.stages[ended.stage] = self.stages.get(ended.stage, 0.0) + max(0.0, seconds - ended.inside)
        if outer:
            outer[-1].inside += seconds
        if all(each.name != ended.name for each in outer):
            key = ended.name, outer[-1].name if outer else ""
            before, count = self.phases.get(key, (0.0, 0))
            self.phases[key] = before + seconds, count + 1


def phase_times(events: Iterable[Event]) -> PhaseTimes:
    """The times of one compilation, from its `chromium_event` events."""
    times, open_phases = PhaseTimes(), list[_Open]()
    for event in events:
        values = read_object(event.payload)
        name, time, kind = str(values.get("name", "")), values.get("ts"), values.get("ph")
        if not isinstance(time, int | float):
            continue
        if kind == "B":
            stage = _STAGE_OF_PHASE.get(name) or (open_phases[-1].stage if open_phases else "captured")
            open_phases.append(_Open(name, time, stage))
        elif kind == "E" and any(each.name == name for each in open_phases):
            while open_phases[-1].name != name:  # the log lacks its end
                lost = open_phases.pop()
                open_phases[-1].inside += lost.inside
            times.close(open_phases.pop(), open_phases, time)
    return times
