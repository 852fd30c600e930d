"""The user's own call, with graphs of one stage in place of compiled code: what it then gives is the user's to see.

Between the graphs runs what always does: the Python after a graph break, AOTAutograd's wrapper around the halves, and
autograd from one graph to the next. Random numbers are those that the captured graphs draw, which are eager's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from compiler.decompose.drawn import Drawing, Given, Values, placed
from compiler.decompose.graphs import LevelGraphs
from compiler.decompose.levels import TABLES
from compiler.interpret.kept import KeptFrame
from compiler.interpret.reference import Unknown
from compiler.measure.call_results import CallResults, results
from compiler.measure.calls import Call
from compiler.measure.handed_draws import Draws, Handing, draws_of
from compiler.measure.joint_halves import JointHalves
from compiler.measure.own_draws import OwnDraws
from compiler.measure.stage_runs import NotComparableError, Stage, stages_of
from compiler.torch_api.halves import Boxed
from compiler.torch_api.level_traces import Kind

ATEN = "ATen"


@dataclass(slots=True)
class InPlace:
    """One call and its captures, `kept` by graph, of which `heard` are called. `levels` gives one at each level, or
    raises LevelError.
    """

    call: Call
    kept: Mapping[str, KeptFrame]
    levels: Callable[[str], LevelGraphs]
    heard: Sequence[str]
    _is_drawn: bool = False
    _drawn: dict[tuple[str, Kind, int], Values] = field(default_factory=dict)
    _random: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)

    def stages(self) -> list[str]:
        """The names of the stages that some capture has, in order."""
        names = [_common(stage.name) for name in self._called() for stage in stages_of(self.kept[name])]
        levels = [f"decomposed {level}" for level in (ATEN, *TABLES)]
        early = [name for name in ("joint", "joint passes", "forward + backward") if name in names]
        return [*early, *levels, *(["post_grad"] if "post_grad" in names else [])]

    def captured(self) -> CallResults:
        """The call with the captured graphs as they are."""
        return self._around({name: _plain(self.kept[name]) for name in self._called()})

    def _called(self) -> list[str]:
        return list(dict.fromkeys(self.heard))

    def _draw(self) -> None:
        """Run the graphs of ATen operators once, for what they draw."""
        if not self._is_drawn:
            self._is_drawn = True
            self._around({name: self._level(name, ATEN) for name in self._called()})

    def at(self, stage: str) -> CallResults:
        """The call with the graphs of a stage. Raises NotComparableError, or whatever running them raises.

        What graphs of ATen operators draw is kept, and handed to those of other stages.
        """
        self._draw()
        if stage.startswith("decomposed "):
            level = stage.removeprefix("decomposed ")
            return self._around({name: self._level(name, level) for name in self._called()})
        with ExitStack() as stack:
            for name in self._called():
                stack.enter_context(self._halves(name, self.kept[name], stage))
            return results(self.call, self.call.compiled)

    def with_own_draws(self) -> CallResults:
        """The call with the graphs that code was made of, and the random numbers that the code draws.

        Raises NotComparableError where it draws them on a GPU, or was not made of such graphs.
        """
        with ExitStack() as stack:
            for name in self._called():
                frame = self.kept[name]
                if frame.halves.keys() != frame.graphs.keys() or self.call.devices() - {"cpu"}:
                    raise NotComparableError("the random numbers of its code are not known")
                runs = {kind: _unhanded(graph.module) for kind, graph in frame.graphs.items()}
                stack.enter_context(_instead(frame, runs))
            return results(self.call, self.call.compiled)

    def _around(self, calls: Mapping[str, Callable[..., Any]]) -> CallResults:
        with around(self.kept, calls):
            return results(self.call, self.call.compiled)

    def _level(self, name: str, level: str) -> Callable[..., Any]:
        """A capture at one level, called as its compiled code is."""
        levels, counts = self.levels(name), Counter[Kind]()

        def run_half(kind: Kind, args: Sequence[Any]) -> Any:
            number, counts[kind] = counts[kind], counts[kind] + 1
            if level != ATEN:
                traced = levels.trees[level, kind].traced
                given = placed(self._drawn.get((name, kind, number), {}), traced.values)
                return self._synchronized(name, number, kind, lambda: Given(traced.module, given).run(*args))
            drawing = Drawing(levels.aot.graphs[kind])
            value = drawing.run(*args)
            self._drawn[name, kind, number] = drawing.drawn
            self._random[name, number] = torch.get_rng_state()
            return value

        def run(_compiled: Callable[..., Any], *args: Any) -> Any:
            _same_sizes(name, self.kept[name], args)
            levels.aot.run = run_half
            with _no_autocast():
                return levels.aot.call(*args)

        return run

    def _synchronized(self, name: str, number: int, kind: Kind, run: Callable[[], Any]) -> Any:
        """What is drawn after a forward half is what eager draws there."""
        value = run()
        if kind != "backward" and (name, number) in self._random:
            torch.set_rng_state(self._random[name, number])
        return value

    @contextmanager
    def _halves(self, name: str, frame: KeptFrame, stage: str) -> Iterator[None]:
        """The compiled halves of a capture, stood for by the graphs of a stage."""
        found = next((item for item in stages_of(frame) if _common(item.name) == stage), None)
        found = found or next((item for item in stages_of(frame) if "inference" in item.graphs), None)
        if found is None or not frame.halves:
            raise NotComparableError(f"the graph of {name} has no {stage}, or was not built")
        with _instead(frame, self._runs(name, frame, found)):
            yield

    def _runs(self, name: str, frame: KeptFrame, stage: Stage) -> dict[Kind, Boxed]:
        if "joint" in stage.graphs:
            divided = next(item for item in stages_of(frame) if "backward" in item.graphs)
            assert frame.joint is not None  # there is a joint graph
            count = frame.joint.options["num_fwd_outputs"]
            joint = JointHalves(stage.graphs["joint"], divided.graphs["forward"], count)
            forward = self._half(name, "forward", joint.forward)
            return {"forward": forward, "backward": self._half(name, "backward", joint.backward)}
        return {kind: self._half(name, kind, _runner(stage.graphs[kind])) for kind in frame.halves}

    def _half(self, name: str, kind: Kind, run: Callable[[list[Any], Draws], list[Any]]) -> Boxed:
        """`run` as the compiled code is called, with the random numbers of each forward."""
        count = 0

        def half(arguments: list[Any]) -> list[Any]:
            nonlocal count
            number, count = count, count + 1
            inputs, device = [*arguments], _device(arguments)
            arguments.clear()
            draws = self._draws(name, kind, number)
            with torch.no_grad(), _no_autocast():
                found = self._synchronized(name, number, kind, lambda: run([_cpu(value) for value in inputs], draws))
            if kind != "backward" and draws.reason:
                raise NotComparableError(draws.reason)
            return [value.to(device) if isinstance(value, Tensor) else value for value in _known(found)]

        return half

    def _draws(self, name: str, kind: Kind, number: int) -> Draws:
        """Random numbers are drawn in the forward half."""
        half: Kind = "forward" if kind == "backward" else kind
        drawn = self._drawn.get((name, half, number))
        return draws_of(self.levels(name).aot.graphs[half], drawn) if drawn else Draws([])


@contextmanager
def around(kept: Mapping[str, KeptFrame], calls: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Make calls of compiled graphs in the block calls of these: `call(compiled, *arguments)`."""
    try:
        for name, call in calls.items():
            kept[name].around = call
        yield
    finally:
        for frame in kept.values():
            frame.around = None


@contextmanager
def _instead(frame: KeptFrame, runs: Mapping[Kind, Boxed]) -> Iterator[None]:
    """Make calls of compiled halves in the block calls of these."""
    try:
        for kind, half in frame.halves.items():
            half.instead = runs[kind]
        yield
    finally:
        for half in frame.halves.values():
            half.instead = None


def _unhanded(graph: GraphModule) -> Boxed:
    """A graph as its compiled code is called, which draws as that does."""

    def half(arguments: list[Any]) -> list[Any]:
        inputs = [*arguments]
        arguments.clear()
        with torch.no_grad(), _no_autocast():
            return _known(OwnDraws(graph).run(*inputs))

    return half


def _known(values: Sequence[Any]) -> list[Any]:
    unknown = next((value for value in values if isinstance(value, Unknown)), None)
    if unknown is not None:
        raise NotComparableError(unknown.reason)
    return list(values)


def _plain(frame: KeptFrame) -> Callable[..., Any]:
    assert frame.captured is not None
    captured = frame.captured
    return lambda _compiled, *args: captured(*args)


def _common(name: str) -> str:
    """A graph without gradients stands beside the halves of others."""
    return "forward + backward" if name == "inference" else name


def _runner(graph: GraphModule) -> Callable[[list[Any], Draws], list[Any]]:
    return lambda inputs, draws: handed(graph, inputs, draws)


def handed(graph: GraphModule, inputs: Sequence[Any], draws: Draws) -> list[Any]:
    """What a graph gives for inputs on the CPU, with these random numbers."""
    draws.started()
    found = list(Handing(graph, (), draws).run(*inputs))
    draws.ended()
    return found


def _same_sizes(name: str, frame: KeptFrame, args: Sequence[Any]) -> None:
    shapes = [[tuple(value.shape) if isinstance(value, Tensor) else value for value in known]
              for known in (args, frame.arguments or ())]  # fmt: skip
    if shapes[0] != shapes[1]:
        raise NotComparableError(f"the graph of {name} is called with other sizes than the first time")


def _cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


def _device(arguments: Sequence[Any]) -> torch.device:
    return next((value.device for value in arguments if isinstance(value, Tensor)), torch.device("cpu"))


@contextmanager
def _no_autocast() -> Iterator[None]:
    """The graphs below the captured one have its casts in them."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
