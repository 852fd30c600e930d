"""A repro as the text of a Python file that needs torch alone, or tcompile if that is the backend."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from compiler.repro.arguments_text import arguments_text
from compiler.repro.policy_text import policy_text
from compiler.repro.subgraph import CannotCutError, RecordedGraph
from compiler.repro.values import MAKE_RANDOM, TensorFacts
from compiler.torch_api import fx
from compiler.torch_api.repro_programs import FIND_BREAKS, NAME_KERNELS, USE_EAGERS_DRAWS, code_of

BREAK, WRONG, CRASH, KERNEL, SLOW = "graph break", "wrong number", "crash", "kernel", "slow"

_FLAT = """def flat(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from flat(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from flat(each)
"""

_COMPARE = (
    '''
def results_of(call, make):
    """All tensors that a call returns, and the gradients of what requires them."""
    torch.manual_seed(0)
    fn, args, kwargs = make()
    outputs = list(flat(call(fn)(*args, **kwargs)))
    module = fn if isinstance(fn, torch.nn.Module) else torch.nn.Module()
    wanted = [x for x in [*flat((args, kwargs)), *module.parameters()] if x.requires_grad and x.is_leaf]
    trained = [x for x in outputs if x.requires_grad]
    if not (wanted and trained):
        return [x.detach().clone() for x in outputs]
    given = [torch.linspace(-1, 1, x.numel(), device=x.device).to(x.dtype).reshape(x.shape) for x in trained]
    gradients = torch.autograd.grad(trained, wanted, given, allow_unused=True)
    return [x.detach().clone() for x in [*outputs, *(x for x in gradients if x is not None)]]


'''
    + _FLAT
    + '''

def make_wide():
    """The call in float64."""
    fn, args, kwargs = make_call()
    if isinstance(fn, torch.nn.Module):
        fn = fn.double()
    return fn, to_float64(args), to_float64(kwargs)


def to_float64(value):
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().double().requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {name: to_float64(each) for name, each in value.items()}
    return type(value)(map(to_float64, value)) if isinstance(value, (list, tuple)) else value


def show():
    """Compare the compiled call with eager, and both with float64."""
    eager = results_of(lambda fn: fn, make_call)
    mine = results_of(lambda fn: torch.compile(fn, **COMPILE), make_call)
    exact = None
    if HAS_FLOAT64:
        try:
            exact = results_of(lambda fn: fn, make_wide)
        except Exception as error:
            print("no comparison with float64:", type(error).__name__)
    if [(x.shape, x.dtype) for x in mine] != [(x.shape, x.dtype) for x in eager]:
        return ["wrong number"], "the results have other shapes or dtypes than eager's"
    if exact is not None and [x.shape for x in exact] != [x.shape for x in eager]:
        exact = None
    scope = Scope.of_results(eager)
    for place, (own, theirs) in enumerate(zip(mine, eager)):
        check = judge(f"result {place}", own, theirs, exact[place] if exact else None, scope)
        if check.verdict == "differs":
            return ["wrong number"], words_of(check)
    return [], "all results are eager's, up to rounding"


def words_of(check):
    error = "" if check.max_absolute is None else f" by {check.max_absolute:.3g}"
    words = f"{check.subject} differs from eager{error}; {check.note}"
    if check.max_absolute_float64 is None or check.eager_absolute_float64 is None:
        return words
    mine, eager = check.max_absolute_float64, check.eager_absolute_float64
    fault = "eager" if eager > mine else "the compiled code"
    return f"{words}; from float64 compiled is off by {mine:.3g}, eager by {eager:.3g}: {fault} is at fault"
'''
)

_CRASH = (
    '''
def show():
    """The error of the compiled call, without numbers."""
    import re

    def run(compiles):
        fn, args, kwargs = make_call()
        result = (torch.compile(fn, **COMPILE) if compiles else fn)(*args, **kwargs)
        trained = [x for x in flat(result) if x.requires_grad]
        if trained:
            torch.autograd.backward(trained, [torch.ones_like(x) for x in trained])

    try:
        run(compiles=False)
    except Exception as error:
        return [], f"eager raises {type(error).__name__} too"
    try:
        run(compiles=True)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
        words = " ".join(lines[:2]) if lines[0].endswith("raised:") else lines[0]
        return ["crash: " + re.sub(r"\\d+", "#", f"{type(error).__name__}: {words}")[:160]], str(error)
    return [], "no error"


'''
    + _FLAT
)

_SLOW = '''
def show():
    """Whether the compiled call takes longer than eager: the medians of 15 alternating rounds."""
    import statistics
    import time

    fn, args, kwargs = make_call()
    compiled = torch.compile(fn, **COMPILE)

    def seconds(call):
        start = time.perf_counter()
        call(*args, **kwargs)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - start

    with torch.no_grad():
        for call in (fn, compiled) * 3:
            seconds(call)
        rounds = [(seconds(fn), seconds(compiled)) for _ in range(15)]
    ratio = statistics.median(mine / eager for eager, mine in rounds)
    return (["slow"] if ratio >= SLOWER else []), f"the compiled call takes {ratio:.2f} times as long as eager"
'''

_MAIN = """
if __name__ == "__main__":
    shown, detail = show()
    print(detail)
    if SHOWS in shown:
        print(f"shows the same: {SHOWS}")
        sys.exit(1)
    print(f"does not show: {SHOWS}")
"""


@dataclass(frozen=True)
class Repro:
    """What a repro file is made of.

    `shows` is what it is to show again. `compile` are the arguments of torch.compile. `body` defines `make_call`.
    """

    kind: str
    shows: str
    body: str
    compile: Mapping[str, Any] = field(default_factory=dict)
    slower: float = 1.2
    draws: bool = False
    about: str = ""

    def text(self, folder: Path | None = None) -> str:
        """The file; in a known folder, it names other folders by the way from there."""
        return "\n".join([
            f'"""{self.about or self.shows}"""', "", "from __future__ import annotations", "", "import sys", "",
            "import torch", "", arguments_text(self.compile, folder),
            f"SHOWS = {self.shows!r}", *self._settings(), "torch.manual_seed(0)", "", self.body.strip(), "\n",
            self._show().strip("\n"), "", _MAIN,
        ])  # fmt: skip

    def _settings(self) -> list[str]:
        settings = [USE_EAGERS_DRAWS.strip()] if self.draws else []
        if self.kind == SLOW:
            settings.append(f"SLOWER = {self.slower!r}")
        if self.kind == WRONG:
            settings.append(f"HAS_FLOAT64 = {not self.draws}")
        return settings

    def _show(self) -> str:
        compare = f"{policy_text()}\n\n{_COMPARE}"
        return {BREAK: FIND_BREAKS, WRONG: compare, CRASH: _CRASH, KERNEL: NAME_KERNELS, SLOW: _SLOW}[self.kind]

    def with_fields(self, **fields: Any) -> Repro:
        return replace(self, **fields)


def graph_body(
    graph: RecordedGraph, names: Collection[str], *, trains: bool, before: str = "", values: str = ""
) -> str:
    """Text that defines a part of a graph as a module, and a call of it with inputs like the recorded ones.

    `before` is code to run first. With `values`, a file of that name has the inputs themselves. Raises CannotCutError.
    """
    part = graph.cut(names)
    imports: dict[str, None] = {}
    classes = _class_of(part.module, "Graph", imports)
    made = [_input_code(graph.facts[name], trains) for name in part.inputs]
    makers = MAKE_RANDOM.strip()
    if values:
        makers = f"VALUES = torch.load({values!r}, weights_only=True)"
        made = [
            f"VALUES[{name!r}].clone()" + ".requires_grad_()" * (trains and graph.facts[name].trains)
            if isinstance(graph.facts[name], TensorFacts) else made[place]
            for place, name in enumerate(part.inputs)
        ]  # fmt: skip
    inputs = ",\n        ".join(made)
    start = "def make_call():\n    torch.manual_seed(1)\n    inputs = [\n"
    call = f"{start}        {inputs}\n    ]\n    return Graph(), inputs, {{}}"
    return "\n\n\n".join(filter(None, ["\n".join(imports), before, classes, makers, call]))


def _input_code(facts: Any, trains: bool) -> str:
    return facts.code(trains=trains) if isinstance(facts, TensorFacts) else repr(facts)


def _class_of(module: GraphModule, name: str, imports: dict[str, None]) -> str:
    """The class of a graph, after the classes of its bodies; its imports are added to `imports`."""
    lines, text = code_of(module)
    imports |= dict.fromkeys(line for line in lines.splitlines() if _is_needed(line, text))
    bodies: list[str] = []
    attributes: list[str] = []
    for node in module.graph.nodes:
        if node.op == "get_attr" and (body := fx.body_at(module, node)) is not None:
            inner = f"{name}_{str(node.target).replace('.', '_')}"
            bodies.append(_class_of(body, inner, imports))
            attributes.append(f"        self.{node.target} = {inner}()")
        elif node.op == "call_module" or (
            node.op == "get_attr" and isinstance(_attribute_at(module, node), torch.nn.Module)
        ):
            raise CannotCutError(f"the graph calls {node.target}, which is a module and no graph")
        elif node.op == "get_attr":
            raise CannotCutError(f"a body of the graph has the tensor {node.target}")
    start = (
        ["    def __init__(self):", "        super().__init__()", *dict.fromkeys(attributes), ""] if attributes else []
    )
    head = [f"class {name}(torch.nn.Module):", *start]
    return "\n\n\n".join([*dict.fromkeys(bodies), "\n".join([*head, textwrap.indent(text.strip(), "    ")])])


def _is_needed(line: str, text: str) -> bool:
    """Whether the text of a graph uses the name that an import statement binds."""
    name = line.replace("=", " ").split()[0] if "=" in line else line.rsplit(maxsplit=1)[-1] if line.strip() else ""
    return line != "import torch" and name != "" and re.search(rf"\b{re.escape(name)}\b", text) is not None


def _attribute_at(module: GraphModule, node: Any) -> Any:
    return fx.attribute_at(module, str(node.target))
