"""Make the smallest file that shows one fault of a call again, and the text of an issue about it."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.process.environment import environment
from compiler.record import Environment, Record
from compiler.record.plain_text import did_you_mean, one_line
from compiler.repro.arguments_text import CannotWriteError, arguments_text
from compiler.repro.program import BREAK, CRASH, KERNEL, SLOW, WRONG, Repro
from compiler.repro.reduce import Effort
from compiler.repro.runner import Runner, confirm
from compiler.repro.search import NOT_SHOWN, Found, NotShownError, reduce_graph, reduce_program
from compiler.repro.subgraph import CannotCutError, RecordedGraph
from compiler.repro.values import MAKE_RANDOM, TensorFacts, facts_of
from explorer.run import files

if TYPE_CHECKING:
    from explorer.run.run import Run

_KINDS = {"wrong number": WRONG, "failure": CRASH, "graph break": BREAK, "slow": SLOW}


class ReproError(ValueError):
    """Raised if a fault can't be reproduced; the message is one line."""


@dataclass(frozen=True)
class Fault:
    """One fault of a run. `graph` is the id of its captured graph, "" if unknown; `nodes` are the nodes behind it.

    `index` counts the graph breaks before it. `name` is a kernel's name, or torch's kind of a break. `aliases` are
    other names that are printed for it: the number in a diagnosis, torch's number of a break, the id of an artifact.
    """

    id: str
    kind: str
    words: str
    graph: str = ""
    nodes: frozenset[str] = frozenset()
    index: int = 0
    name: str = ""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class UserProgram:
    """The user's file, and text that makes the call in it: a function `make_call`."""

    path: Path
    make_call: str

    def before_graph(self) -> str:
        """Code that runs the user's program, for the operators that it registers; its file need not be there."""
        text, name = self.path.read_text(), self.path.name
        return (
            f"USERS_PROGRAM = {text!r}\nexec(compile(USERS_PROGRAM, {name!r}, 'exec'), {{'__name__': 'users_program'}})"
        )


@dataclass(frozen=True)
class ReproFile:
    """The file that was written. `is_confirmed` is whether it shows the fault in a fresh process."""

    path: Path
    fault: Fault
    found: Found
    is_confirmed: bool

    def __str__(self) -> str:
        found = self.found
        seen = "confirmed in a fresh process" if self.is_confirmed else "NOT confirmed in a fresh process"
        head = f"wrote {self.path}: {found.size} of {found.whole} {found.unit}, {found.tried} programs tried; {seen}"
        detail = [] if self.fault.kind == KERNEL else [f"  {one_line(found.detail)}"]  # it is all of Inductor's code
        return "\n".join([head, f"shows: {found.repro.shows}", *detail, *found.blame])

    def issue(self) -> str:
        """The text of an issue, in the form of PyTorch's bug reports for torch.compile."""
        from torch.utils.collect_env import get_pretty_env_info

        text = self.path.read_text()
        return "\n".join([
            f"### 🐛 Describe the bug\n\n{self.fault.words}\n",
            f"The file below shows it: `{self.found.repro.shows}`. It was reduced to {self.found.size} of "
            f"{self.found.whole} {self.found.unit}.\n", *self.found.blame, "",
            f"```python\n{text.rstrip()}\n```\n",
            f"### Error logs\n\n```\n{without_paths(self.found.detail.rstrip())}\n```\n",
            f"### Versions\n\n```\n{without_paths(get_pretty_env_info())}\n```\n",
        ])  # fmt: skip


def without_paths(text: str) -> str:
    """The text without the folders of this machine: of packages, of the user, and of the files that were tried."""
    text = re.sub(r"(/[^\s/\"']+)*/tcompile_repro_\w+/repro_\d+\.py", "repro.py", text)
    text = re.sub(r"(/[^\s/\"']+)*/(site|dist)-packages/", "", text)
    return text.replace(str(Path.cwd()), ".").replace(str(Path.home()), "~")


def versions(where: Environment) -> str:
    """The versions and the machine in one line."""
    names = (f"torch {where.torch}", f"triton {where.triton or 'none'}", f"Python {where.python}", where.platform)
    return ", ".join([*names, where.processor, where.gpu or "no GPU", f"{where.threads} threads"])


def faults(run: Run) -> list[Fault]:
    """The faults of a run: what `diagnose` found, kernels, and captured graphs, which may be slow."""
    record = run.record
    graphs = {frame.id: frame.graphs[0] for frame in record.frames if frame.graphs}
    found = [
        Fault(each.id, BREAK, each.what, graphs.get(each.frame, ""), index=index, name=each.kind)
        for index, each in enumerate(record.breaks)
    ]
    broken = 0
    for number, each in enumerate(run.diagnose(try_fixes=False).findings, 1):
        kind = _KINDS.get(each.kind)
        if kind is not None and not (kind == SLOW and each.kind != "slow"):
            aliases = tuple(filter(None, (each.kind, str(number), f"[{number}]", each.gb_id)))
            place, name = (broken, each.rule) if kind == BREAK else (0, "")
            found.append(Fault(each.id, kind, each.message, index=place, name=name, aliases=aliases))
            broken += kind == BREAK
    found += [
        Fault(each.id, KERNEL, f"the kernel {each.name}", each.graph, _nodes_of(record, each.id), name=each.name)
        for each in record.kernels
    ]
    graphs_by_id = {each.id: each.graph for each in record.of_stage("captured")}
    found += [Fault(g, SLOW, f"graph {g} is slow", g, aliases=(each,)) for each, g in graphs_by_id.items()]
    return found


def _nodes_of(record: Record, kernel: str) -> frozenset[str]:
    captured = {entity.id: entity.label for each in record.of_stage("captured") for entity in each.entities}
    return frozenset(captured[name] for name in record.linked_ids(kernel) if name in captured)


def find_fault(run: Run, asked: str) -> Fault:
    """The fault with this id, kind, or name or part of a kernel's name; the worst for "". Raises ReproError."""
    known = faults(run)
    order = (WRONG, CRASH, BREAK)
    if not asked:
        ranked = sorted((each for each in known if each.kind in order), key=lambda each: order.index(each.kind))
        if not ranked:
            names = ", ".join(each.id for each in known[:6])
            raise ReproError(f"nothing is broken or wrong; a kernel or a slow graph is named by its id: {names}")
        return ranked[0]
    for each in known:
        if asked in (each.id, each.kind, *each.aliases) or each.name == asked:
            return each
    parts = [each for each in known if asked in each.name]
    if len(parts) == 1:
        return parts[0]
    raise ReproError(f"no fault {asked!r}{did_you_mean(asked, [each.id for each in known])}")


def write_repro(
    run: Run,
    output: Path | str,
    asked: str,
    program: UserProgram | None = None,
    *,
    real_inputs: bool,
    seconds: float,
    listener: Callable[[str], None] | None = None,
    failure: str = "",
) -> ReproFile:
    """Write a repro, as `make_repro` does. `program` is the user's file; without it, the program is the run's call.

    `failure` are words on an error that compiled code raises when it runs, which is no part of the run.
    """
    tell = listener or (lambda _words: None)
    output = Path(output)
    fault = Fault("failure", CRASH, failure) if failure else find_fault(run, asked)
    if not run.kept and fault.kind != BREAK:
        run = _with_graphs_of_text(run)
    program = program or _program_of_call(run)
    if fault.kind == WRONG:
        fault = _locate(fault, run)
    tell(f"reducing {fault.id}: {one_line(fault.words)}")
    arguments = {name: value for name, value in compile_arguments(run.record).items() if fault.kind != BREAK}
    try:
        arguments_text(arguments)
    except CannotWriteError as error:
        raise ReproError(str(error)) from None
    start = Repro(fault.kind, _shows(fault), "", arguments)
    with Runner(compiles=fault.kind != BREAK) as runner:
        maker = _Maker(run, fault, start, program, runner, Effort(seconds), output, real_inputs)
        try:
            found = maker.find()
        except BaseException:
            maker.remove_values()
            raise
    found = maker.add_about(found)
    saved = repr(str(maker.values_path.resolve()))
    beside = f"__import__('pathlib').Path(__file__).with_name({maker.values_path.name!r})"
    files.replace_file(output, found.repro.text(output.resolve().parent).replace(saved, beside).encode())
    if maker.values:
        import torch

        torch.save(maker.values, maker.values_path)
    return ReproFile(output, fault, found, confirm(output, found.repro.shows))


def _choose_first(shown: Sequence[str]) -> str:
    return shown[0]


def _choose_break(fault: Fault) -> Callable[[Sequence[str]], str]:
    """A function that returns the fault among the breaks that a program shows: by torch's kind, else by its place."""
    named = (f"{BREAK}: {fault.name}", f"{BREAK}: generic_jump" if fault.name == "Data-dependent branching" else "")

    def choose(shown: Sequence[str]) -> str:
        of_kind = (each for each in shown if each == named[0] or (named[1] and each.startswith(named[1])))
        return next(of_kind, shown[min(fault.index, len(shown) - 1)])

    return choose


def _locate(fault: Fault, run: Run) -> Fault:
    """The wrong number with the first operation that is wrong, which is tried alone; as it is if none is by itself."""
    from compiler.calls.explored import Explored
    from compiler.numerics.across.snapshot import SnapshotError
    from compiler.numerics.across.values import compare_with_eager

    try:
        first = compare_with_eager(Explored(run.record, None, run.kept, run.call)).first
    except SnapshotError:  # the whole graph is reduced
        return fault
    if first is None or not first.operation.node:
        return fault
    wrong = first.operation
    place = f" The first wrong operation is {wrong.op}, {wrong.place}.".replace(", .", ".")
    return replace(fault, graph=wrong.graph, nodes=frozenset({wrong.node}), words=fault.words + place)


def _with_graphs_of_text(run: Run) -> Run:
    """The run with the graphs that its record has as text."""
    from compiler.repro.recorded_text import graphs_of_record
    from explorer.run.run import Run

    if run.record.trust != "trusted":
        raise ReproError("a graph of a saved record is executed: --trust, if you know who made it")
    try:
        return Run(run.record, kept=graphs_of_record(run.record))
    except CannotCutError as error:
        raise ReproError(str(error)) from None


def _program_of_call(run: Run) -> UserProgram | None:
    """The file of the function that was called, and text that calls it with inputs like those of the call.

    None if the function is not a global name of a file, or gets what no code can make.
    """
    import torch

    if run.call is None:
        return None
    called, call = getattr(run.call.fn, "__self__", run.call.fn), run.call
    owner = type(called) if isinstance(called, torch.nn.Module) else called
    module = sys.modules.get(getattr(owner, "__module__", ""))
    file, names = getattr(module, "__file__", None), vars(module) if module else {}
    name = next((each for each, value in names.items() if value is called), "")
    made = [*map(_code_like, call.args), *(f"{key}={_code_like(value)}" for key, value in call.kwargs.items())]
    if not file or not name or any(text.endswith("=") or not text for text in made):
        return None
    return UserProgram(Path(file), f"{MAKE_RANDOM.strip()}\n\n\n{_call_text(name, ', '.join(made))}")


def _code_like(value: Any) -> str:
    """Code that makes a value like this one; "" for what no code can make."""
    facts = facts_of(value)
    return facts.code(trains=True) if isinstance(facts, TensorFacts) else "" if facts is None else repr(facts)


def _shows(fault: Fault) -> str:
    return {WRONG: "wrong number", SLOW: "slow"}.get(fault.kind, "")


def compile_arguments(record: Record) -> dict[str, Any]:
    """The arguments of torch.compile that the record was made with, without defaults."""
    options = record.options
    asked = {**options.compile_arguments(), "dynamic": options.dynamic}
    return {name: value for name, value in asked.items() if value not in (None, {}, "", "default")}


@dataclass
class _Maker:
    run: Run
    fault: Fault
    start: Repro
    program: UserProgram | None
    runner: Runner
    effort: Effort
    output: Path
    real_inputs: bool

    def __post_init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.values_path = self.output.with_suffix(".pt")

    def find(self) -> Found:
        errors: list[str] = []
        if self.fault.kind != BREAK:
            for name in [self.fault.graph] if self.fault.graph in self.run.kept else list(self.run.kept):
                try:
                    return self._of_graph(name)
                except (NotShownError, CannotCutError) as error:
                    self.remove_values()
                    errors.append(f"graph {name}: {error}")
        try:
            return self._of_program()
        except (NotShownError, ReproError) as error:
            remedy = self._remedy(errors)
            raise ReproError("; ".join([*errors, str(error), *remedy])) from None

    def _remedy(self, errors: Sequence[str]) -> list[str]:
        """What to try if graphs do not show the fault with random inputs; a saved record has no others."""
        if self.real_inputs or self.run.call is None or not any(NOT_SHOWN in each for each in errors):
            return []
        return ["the inputs were random, and those of the call may show it: --real-inputs, real_inputs=True"]

    def remove_values(self) -> None:
        """Remove the saved values of a graph that does not show the fault."""
        if self.values:
            self.values = {}
            self.values_path.unlink(missing_ok=True)

    def _of_graph(self, name: str) -> Found:
        from compiler.torch_api.fx import is_own_operator

        kept = self.run.kept[name]
        module = kept.captured if kept.captured is not None else kept.eager
        if module is None or (kept.arguments is None and self.run.call is None):
            raise NotShownError("its graph was not kept")
        if kept.arguments is None:
            raise NotShownError("its graph was never called")
        graph = RecordedGraph.of_call(module, kept.arguments, keep=self.real_inputs)
        start = self.start.with_fields(draws=graph.draws)
        has_own = any(map(is_own_operator, module.graph.nodes))
        before = self.program.before_graph() if self.program and has_own else ""
        trains = bool(kept.trained) and self.fault.kind != KERNEL
        values = self._save_values(graph)
        if not start.shows:
            start = start.with_fields(shows=self._fault_shown_by_graph(graph, start, trains, before, values))
        return reduce_graph(
            graph, start, self.runner, self.effort, trains=trains, before=before, first=self.fault.nodes, values=values
        )

    def _save_values(self, graph: RecordedGraph) -> str:
        """The file with the real inputs; "" if they are not asked for."""
        if not self.real_inputs:
            return ""
        import torch

        self.values = dict(graph.values)
        torch.save(self.values, self.values_path)
        return str(self.values_path.resolve())

    def _fault_shown_by_graph(self, graph: RecordedGraph, start: Repro, trains: bool, before: str, values: str) -> str:
        """What the part of the graph that the fault belongs to shows."""
        from compiler.repro.program import graph_body

        names = [name for name in graph.names if not self.fault.nodes or name in self.fault.nodes]
        body = graph_body(graph, names, trains=trains, before=before, values=values)
        shown = self.runner.run(start.with_fields(body=body), builds=start.kind != KERNEL)
        if not shown.faults and trains:
            return self._fault_shown_by_graph(graph, start, False, before, values)
        if not shown.faults:
            raise NotShownError(f"{NOT_SHOWN}: {shown.detail}")
        if self.fault.kind != KERNEL:
            return shown.faults[0]
        name = self.fault.name.rstrip("0123456789").rstrip("_")
        return next((each for each in shown.faults if each == f"kernel {name}"), shown.faults[0])

    def _of_program(self) -> Found:
        if self.program is None:
            raise ReproError("a program is reduced from the file that has it: tcompile repro FILE.py:NAME")
        start = self.start.with_fields(compile={} if self.fault.kind == BREAK else self.start.compile)
        text = self.program.path.read_text()
        choose = _choose_break(self.fault) if self.fault.kind == BREAK else _choose_first
        return reduce_program(text, start, self.program.make_call, self.runner, self.effort, choose)

    def add_about(self, found: Found) -> Found:
        words = json.dumps(one_line(self.fault.words), ensure_ascii=False)[1:-1].replace("\\", "/").replace('"', "'")
        about = (
            f"{words}\n\nReduced by tcompile to {found.size} of {found.whole} {found.unit}.\n"
            f"{versions(environment())}.\n"
            "Exit code 1 if it shows the same, else 0.\n"
        )
        return replace(found, repro=found.repro.with_fields(about=about))


def _with_torch(text: str) -> str:
    """The arguments of a call as on the command line, with `torch.` before what `--input` takes from there."""
    call = ast.parse(f"take({text})", mode="eval").body
    assert isinstance(call, ast.Call)
    for node in ast.walk(call):
        if isinstance(node, ast.Name) and node is not call.func and node.id != "torch":
            node.id = f"torch.{node.id}"
        elif isinstance(node, ast.keyword) and node.arg == "dtype" and isinstance(node.value, ast.Constant):
            node.value = ast.Name(f"torch.{str(node.value.value).removeprefix('torch.')}")
    return ast.unparse(call).removeprefix("take(").removesuffix(")")


def make_call_text(name: str, inputs: Sequence[str], calls: Sequence[str] = ()) -> str:
    """Text of a function `make_call` for inputs as they are written on the command line."""
    return _call_text(name, ", ".join(_with_torch(text) for text in (inputs or calls[:1])))


def _call_text(name: str, values: str) -> str:
    return (
        "def make_call():\n    import copy\n\n    torch.manual_seed(0)\n\n"
        "    def take(*args, **kwargs):\n        return args, kwargs\n\n"
        f"    args, kwargs = take({values})\n"
        f"    fn = {name}() if isinstance({name}, type) else {name}\n"
        "    return (copy.deepcopy(fn) if isinstance(fn, torch.nn.Module) else fn), list(args), kwargs\n"
    )
