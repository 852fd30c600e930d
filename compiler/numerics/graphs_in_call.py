"""Run the user's call with the graphs of one stage in place of compiled code.

Everything between the graphs runs as usual: Python after a graph break, AOTAutograd's wrapper around the halves, and
autograd from one graph to the next. Random numbers are the ones that the captured graphs draw, which are eager's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from compiler.calls.call import Call
from compiler.calls.graph_runs import HookedInterpreter, copy_to_cpu
from compiler.calls.kept_graphs import KeptFrame
from compiler.decompose.graphs import LevelGraphs
from compiler.decompose.levels import TABLES
from compiler.decompose.random_draws import Values, give_values, place_draws, record_draws
from compiler.numerics.call_results import CallResults, results
from compiler.numerics.compiled_random import drawing
from compiler.numerics.random_replay import Draws, draws_of, run_with_draws
from compiler.numerics.stage_runs import NotComparableError, Stage, stages_of
from compiler.torch_api.aot import Boxed
from compiler.torch_api.level_traces import Kind
from compiler.triton_interpreter.reference import Reference, Unknown

ATEN = "ATen"


@dataclass(slots=True)
class InPlace:
    """A call and its captures.

    `kept` has a capture by graph id, `heard` the ids of those that the call runs. `levels` returns a capture at each
    decomposition level, or raises LevelError.
    """

    call: Call
    kept: Mapping[str, KeptFrame]
    levels: Callable[[str], LevelGraphs]
    heard: Sequence[str]
    _is_drawn: bool = False
    _drawn: dict[tuple[str, Kind, int], Values] = field(default_factory=dict)
    _random: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)

    def stages(self) -> list[str]:
        """Names of the stages that at least one capture has, in the order of the pipeline."""
        names = [_common(stage.name) for name in self._called_graphs() for stage in stages_of(self.kept[name])]
        levels = [f"decomposed {level}" for level in (ATEN, *TABLES)]
        early = [name for name in ("joint", "joint passes", "forward + backward") if name in names]
        return [*early, *levels, *(["post_grad"] if "post_grad" in names else [])]

    def with_captured_graphs(self) -> CallResults:
        """Results of the call with the captured graphs in place of compiled code."""
        return self._call_with({name: _plain(self.kept[name]) for name in self._called_graphs()})

    def _called_graphs(self) -> list[str]:
        return list(dict.fromkeys(self.heard))

    def _draw(self) -> None:
        """Run the ATen graphs once and keep the random numbers that they draw."""
        if not self._is_drawn:
            self._is_drawn = True
            self._call_with({name: self._level(name, ATEN) for name in self._called_graphs()})

    def at_stage(self, stage: str) -> CallResults:
        """Results of the call with the graphs of a stage in place of compiled code.

        Random numbers that the ATen graphs draw are replayed in the graphs of other stages. Raises NotComparableError,
        or whatever running the graphs raises.
        """
        self._draw()
        if stage.startswith("decomposed "):
            level = stage.removeprefix("decomposed ")
            return self._call_with({name: self._level(name, level) for name in self._called_graphs()})
        with ExitStack() as stack:
            for name in self._called_graphs():
                stack.enter_context(self._halves(name, self.kept[name], stage))
            return results(self.call, self.call.compiled)

    def with_own_draws(self) -> CallResults:
        """Results of the call with the graphs that code was generated from, and the random numbers of that code.

        Raises NotComparableError where the code draws on a GPU, or was not generated from these graphs.
        """
        with ExitStack() as stack:
            for name in self._called_graphs():
                frame = self.kept[name]
                runs = {kind: _run_boxed(run) for kind, run in drawing(frame).items()}
                if frame.halves.keys() != runs.keys() or self.call.devices() - {"cpu"}:
                    raise NotComparableError("the random numbers of its code are not known")
                stack.enter_context(_replace_halves(frame, runs))
            return results(self.call, self.call.compiled)

    def _call_with(self, calls: Mapping[str, Callable[..., Any]]) -> CallResults:
        with replace_graph_calls(self.kept, calls):
            return results(self.call, self.call.compiled)

    def _level(self, name: str, level: str) -> Callable[..., Any]:
        """A callable that runs a capture at one level and takes the arguments of its compiled code."""
        levels, counts = self.levels(name), Counter[Kind]()

        def run_half(kind: Kind, args: Sequence[Any]) -> Any:
            number, counts[kind] = counts[kind], counts[kind] + 1
            if level != ATEN:
                traced = levels.trees[level, kind].traced
                given = give_values(place_draws(self._drawn.get((name, kind, number), {}), traced.values))
                runner = HookedInterpreter(traced.module, given)
                return self._draw_as_eager(name, number, kind, lambda: runner.run(*args))
            drawn: dict[str, tuple[Any, ...]] = {}
            value = HookedInterpreter(levels.aot.graphs[kind], record_draws(drawn)).run(*args)
            self._drawn[name, kind, number] = drawn
            self._random[name, number] = torch.get_rng_state()
            return value

        def run(_compiled: Callable[..., Any], *args: Any) -> Any:
            _same_sizes(name, self.kept[name], args)
            levels.aot.run = run_half
            with _no_autocast():
                return levels.aot.call(*args)

        return run

    def _draw_as_eager(self, name: str, number: int, kind: Kind, run: Callable[[], Any]) -> Any:
        """Run a half, then set the random state that eager has after it."""
        value = run()
        if kind != "backward" and (name, number) in self._random:
            torch.set_rng_state(self._random[name, number])
        return value

    @contextmanager
    def _halves(self, name: str, frame: KeptFrame, stage: str) -> Iterator[None]:
        """Replace the compiled halves of a capture by the graphs of a stage for the length of a block."""
        found = next((item for item in stages_of(frame) if _common(item.name) == stage), None)
        found = found or next((item for item in stages_of(frame) if "inference" in item.graphs), None)
        if found is None or not frame.halves:
            raise NotComparableError(f"the graph of {name} has no {stage}, or was not built")
        with _replace_halves(frame, self._runs(name, frame, found)):
            yield

    def _runs(self, name: str, frame: KeptFrame, stage: Stage) -> dict[Kind, Boxed]:
        if "joint" in stage.graphs:
            divided = next(item for item in stages_of(frame) if "backward" in item.graphs)
            assert frame.joint is not None  # there is a joint graph
            count = frame.joint.options["num_fwd_outputs"]
            joint = JointHalves(stage.graphs["joint"], divided.graphs["forward"], count)
            forward = self._half(name, "forward", joint.forward)
            return {"forward": forward, "backward": self._half(name, "backward", joint.backward)}
        return {kind: self._half(name, kind, partial(_run_graph, stage.graphs[kind])) for kind in frame.halves}

    def _half(self, name: str, kind: Kind, run: Callable[[list[Any], Draws], list[Any]]) -> Boxed:
        """Wrap `run` to take boxed arguments as compiled code does; each call replays its random numbers."""
        count = 0

        def half(arguments: list[Any]) -> list[Any]:
            nonlocal count
            number, count = count, count + 1
            inputs, device = [*arguments], _device(arguments)
            arguments.clear()
            draws = self._draws(name, kind, number)
            with torch.no_grad(), _no_autocast():
                on_cpu = [value.cpu() if isinstance(value, Tensor) else value for value in inputs]
                found = self._draw_as_eager(name, number, kind, lambda: run(on_cpu, draws))
            if kind != "backward" and draws.reason:
                raise NotComparableError(draws.reason)
            return [value.to(device) if isinstance(value, Tensor) else value for value in _require_values(found)]

        return half

    def _draws(self, name: str, kind: Kind, number: int) -> Draws:
        """The draws of a half: a backward uses those of its forward."""
        half: Kind = "forward" if kind == "backward" else kind
        drawn = self._drawn.get((name, half, number))
        return draws_of(self.levels(name).aot.graphs[half], drawn) if drawn else Draws([])


@contextmanager
def replace_graph_calls(kept: Mapping[str, KeptFrame], calls: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace calls of compiled graphs by `call(compiled, *arguments)` for the length of a block."""
    try:
        for name, call in calls.items():
            kept[name].around = call
        yield
    finally:
        for frame in kept.values():
            frame.around = None


@contextmanager
def _replace_halves(frame: KeptFrame, runs: Mapping[Kind, Boxed]) -> Iterator[None]:
    """Replace the compiled halves of a capture for the length of a block."""
    try:
        for kind, half in frame.halves.items():
            half.instead = runs[kind]
        yield
    finally:
        for half in frame.halves.values():
            half.instead = None


def _run_boxed(runs: Callable[[], Reference]) -> Boxed:
    """A callable that runs a graph on the CPU and takes boxed arguments as compiled code does."""

    def half(arguments: list[Any]) -> list[Any]:
        inputs = [*arguments]
        arguments.clear()
        with torch.no_grad(), _no_autocast():
            return _require_values(runs().run(*inputs))

    return half


def _require_values(values: Sequence[Any]) -> list[Any]:
    unknown = next((value for value in values if isinstance(value, Unknown)), None)
    if unknown is not None:
        raise NotComparableError(unknown.reason)
    return list(values)


def _plain(frame: KeptFrame) -> Callable[..., Any]:
    assert frame.eager is not None
    eager = frame.eager
    return lambda _compiled, *args: eager(*args)


def _common(name: str) -> str:
    """The name under which a stage is listed: a graph without gradients goes with the halves of others."""
    return "forward + backward" if name == "inference" else name


def _run_graph(graph: GraphModule, inputs: Sequence[Any], draws: Draws) -> list[Any]:
    with draws.check_count():
        return run_with_draws(graph, inputs, draws)


def _same_sizes(name: str, frame: KeptFrame, args: Sequence[Any]) -> None:
    shapes = [[tuple(value.shape) if isinstance(value, Tensor) else value for value in known]
              for known in (args, frame.arguments or ())]  # fmt: skip
    if shapes[0] != shapes[1]:
        raise NotComparableError(f"the graph of {name} is called with other sizes than the first time")


def _device(arguments: Sequence[Any]) -> torch.device:
    return next((value.device for value in arguments if isinstance(value, Tensor)), torch.device("cpu"))


@contextmanager
def _no_autocast() -> Iterator[None]:
    """Turn autocast off for a block: graphs below the captured one contain its casts already."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


class JointHalves:
    """A joint graph as the two halves that AOTAutograd calls: a forward and, later, a backward.

    AOTAutograd passes saved tensors from the forward to the backward and does not look at them. So the forward keeps
    its inputs and saves the index of its call; the backward runs the joint graph on the inputs of that call. `joint`
    returns `count` outputs, then gradients; `forward` is the half that code was generated from.
    """

    def __init__(self, joint: GraphModule, forward: GraphModule, count: int) -> None:
        self._joint, self._count = joint, count
        self._given: Any = forward.graph.output_node().args[0][count:]  # type: ignore[index]
        self._calls: dict[int, tuple[list[Any], Draws]] = {}

    def forward(self, inputs: list[Any], draws: Draws) -> list[Any]:
        """The outputs of the joint graph, and a stand-in for each saved value."""
        number = len(self._calls)
        self._calls[number] = ([copy_to_cpu(value) for value in inputs], draws)
        outputs = self._run(inputs, [], draws)[: self._count]
        return [*outputs, *(self._stand_in(node, number) for node in self._given)]

    def backward(self, inputs: list[Any], _draws: Draws) -> list[Any]:
        """Gradients of the forward call whose index was saved, after any saved sizes."""
        placeholders = self._joint.graph.find_nodes(op="placeholder")
        saved = inputs[: len(inputs) - sum(node.name.startswith("tangents") for node in placeholders)]
        number = next((int(value) for value in saved if isinstance(value, Tensor)), len(self._calls) - 1)
        primals, draws = self._calls[number]
        return self._run([copy_to_cpu(value) for value in primals], inputs[len(saved) :], draws)[self._count :]

    def _run(self, primals: Sequence[Any], tangents: Sequence[Any], draws: Draws) -> list[Any]:
        """Run the joint graph; without tangents its gradients are not used."""
        missing = len(self._joint.graph.find_nodes(op="placeholder")) - len(primals) - len(tangents)
        return _run_graph(self._joint, [*primals, *tangents, *[None] * missing], draws)

    def _stand_in(self, node: Any, number: int) -> Any:
        is_tensor = isinstance(node, Node) and "dtype" in node.meta
        return torch.tensor(number) if is_tensor else 0
