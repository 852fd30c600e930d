"""From a fault of a call to the smallest file that shows it: options, nodes of the graph, or statements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from compiler.repro.program import CRASH, KERNEL, WRONG, Repro, graph_body
from compiler.repro.reduce import Effort, minimize
from compiler.repro.runner import Runner, Shown
from compiler.repro.source import count_statements, reduce_source
from compiler.repro.subgraph import CannotCutError, RecordedGraph

LAYERS = ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor")
"""torch.compile's backends, each of which does more than the one before."""
DOES_WHAT = {
    "eager": "TorchDynamo's capture",
    "aot_eager": "AOTAutograd",
    "aot_eager_decomp_partition": "decompositions or the partitioner",
    "inductor": "Inductor",
    "tcompile": "the backend tcompile",
}


NOT_SHOWN = "not seen in another process, which has Inductor's caches of its own"


class NotShownError(ValueError):
    """Raised if the whole program does not show the fault in another process; the message is one line."""


@dataclass(frozen=True)
class Found:
    """The smallest repro that was found. `size` and `whole` count nodes of the graph, or statements (`unit`).

    `blame` says which part of the compiler it is, as far as it was bisected.
    """

    repro: Repro
    size: int
    whole: int
    unit: str
    detail: str
    tried: int
    blame: tuple[str, ...] = ()


def reduce_graph(
    graph: RecordedGraph,
    start: Repro,
    runner: Runner,
    effort: Effort,
    *,
    trains: bool,
    before: str = "",
    values: str = "",
    first: Collection[str] = (),
) -> Found:
    """The smallest part of a graph that shows the fault of `start`. `first` are nodes that are tried as a part at once.

    Raises NotShownError, CannotCutError.
    """
    search = _GraphSearch(graph, start, runner, effort, trains, before, values)
    return search.find(first)


@dataclass
class _GraphSearch:
    graph: RecordedGraph
    start: Repro
    runner: Runner
    effort: Effort
    trains: bool
    before: str
    values: str
    detail: str = ""
    builds: bool = True

    def find(self, first: Collection[str]) -> Found:
        names = list(self.graph.names)
        self.builds = self.start.kind != KERNEL
        left = [name for name in names if name in first]
        if not (left and self._shows(left)):
            if not self._shows(names) and not self._shows_without_gradients(names):
                raise NotShownError(f"{NOT_SHOWN}: {self.detail}")
            left = names
        self.builds = self.builds and not (self.start.kind == CRASH and self._shows_without_builds(left))
        self._simplify_options(left)
        left = minimize(left, self._shows, self.effort)
        repro = self._repro(left)
        shown = self.runner.run(repro, builds=self.builds)
        blame = blame_of(repro, self.runner, self.effort) if self.start.kind in (WRONG, CRASH) else ()
        return Found(
            repro, self.graph.size(left), self.graph.size(names), "nodes", shown.detail, self.effort.tried, blame
        )

    def _repro(self, names: Collection[str]) -> Repro:
        body = graph_body(self.graph, names, trains=self.trains, before=self.before, values=self.values)
        return replace(self.start, body=body)

    def _shows(self, names: Sequence[str]) -> bool:
        try:
            repro = self._repro(names)
        except CannotCutError as error:
            self.detail = str(error)
            return False
        self.effort.tried += 1
        shown = self.runner.run(repro, builds=self.builds)
        self.detail = shown.detail
        return is_shown(self.start, shown)

    def _shows_without_gradients(self, names: Sequence[str]) -> bool:
        trains, self.trains = self.trains, False
        return trains and self._shows(names)

    def _shows_without_builds(self, names: Sequence[str]) -> bool:
        self.builds = False
        is_shown_so = self._shows(names)
        self.builds = True
        return is_shown_so

    def _simplify_options(self, names: Sequence[str]) -> None:
        """Leave out gradients and options of torch.compile that the fault does not need."""
        if self.trains and self.start.kind != KERNEL:
            self.trains = False
            self.trains = not self._shows(names)
        for name in [name for name in self.start.compile if name != "backend"]:
            before = self.start
            left = {key: value for key, value in before.compile.items() if key != name}
            self.start = replace(before, compile=left)
            if not self._shows(names):
                self.start = before


def is_shown(repro: Repro, shown: Shown) -> bool:
    """Whether what a program shows is the fault of the repro."""
    return repro.shows in shown.faults


def reduce_program(
    text: str, start: Repro, make_call: str, runner: Runner, effort: Effort, choose: Callable[[Sequence[str]], str]
) -> Found:
    """The smallest program that shows the fault of `start`. `make_call` is the text of the function of that name.

    If `start` does not say what it shows, `choose` takes it from the faults that the whole program shows.
    Raises NotShownError.
    """
    details: list[str] = []
    if not start.shows:
        shown = runner.run(replace(start, body=f"{text}\n\n{make_call}"), guarded=True)
        if not shown.faults:
            raise NotShownError(f"{NOT_SHOWN}: {shown.detail}")
        start = replace(start, shows=choose(shown.faults))

    def repro_of(source: str) -> Repro:
        return replace(start, body=f"{source}\n\n{make_call}")

    def shows(source: str) -> bool:
        shown = runner.run(repro_of(source), guarded=True)
        details.append(shown.detail)
        return is_shown(start, shown)

    whole = count_statements(text)
    if not shows(text):
        raise NotShownError(f"{NOT_SHOWN}: {details[-1]}")
    small = reduce_source(text, shows, effort)
    repro = repro_of(small)
    shown = runner.run(repro, guarded=True)
    blame = blame_of(repro, runner, effort) if start.kind in (WRONG, CRASH) else ()
    return Found(repro, count_statements(small), whole, "statements", shown.detail, effort.tried, blame)


def blame_of(repro: Repro, runner: Runner, effort: Effort) -> tuple[str, ...]:
    """Which backend is the first to show the fault, and which pass or step of it."""
    asked = repro.compile.get("backend", "inductor")
    backend = asked if isinstance(asked, str) else getattr(asked, "__name__", type(asked).__name__)
    layers = [*LAYERS[:3], backend]
    text = repro.text()
    found = [f"eager against float64: {detail}" for detail in _eagers_fault(repro, runner)]
    guilty = next((name for name in layers if name == backend or _shows_with(repro, runner, name)), backend)
    found.append(f"first wrong with backend={guilty!r}: {DOES_WHAT.get(guilty, 'the backend itself')}")
    if guilty == "tcompile" and repro.kind == WRONG:
        found.append(runner.ask("passes", text))
    elif guilty == backend == "inductor" and not effort.is_spent:
        steps = runner.ask("bisect", text, shows=repro.shows)
        found += [f"torch's bisector: {steps}"] if steps else []
    return tuple(found)


def _eagers_fault(repro: Repro, runner: Runner) -> list[str]:
    if repro.kind != WRONG:
        return []
    detail = runner.run(repro).detail
    return [detail] if "float64" in detail else []


def _shows_with(repro: Repro, runner: Runner, backend: str) -> bool:
    return is_shown(repro, runner.run(repro, arguments={"backend": backend}))
