"""A cell under %%tcompile behaves like the bare cell: both run in real IPython shells and are compared."""

from __future__ import annotations

import ast
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from explorer.entry.choice import copy_tree
from tests.compiler.broken import TORCH
from tests.explorer.entry.comparison import Comparison

SETUP = """
import sys, functools, contextlib, inspect
import torch
from torch import nn

def f(x, w=2.0):
    return torch.sin(x) * w

def g(x):
    return x + 1

def both(x, *, key=None):
    return x + key

def boom(x):
    raise ValueError("boom")

def deep(x):
    y = f(x)
    return boom(y)

def badly_shaped(x):
    return torch.sin(x) @ torch.ones(7, 7)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, x):
        return self.layers(x)

class Trainer:
    def __init__(self, net):
        self.net = net

    def step(self, x):
        return self.net(x).sum()

    def __call__(self, x):
        return self.step(x)

trace = []
def noted(value):
    trace.append(value)
    return value

torch.manual_seed(0)
x = torch.arange(6.0).reshape(2, 3)
net = Net()
trainer = Trainer(net)
scaled = functools.partial(f, w=3.0)
"""


@pytest.fixture
def cells(magic_shell: InteractiveShell) -> Iterator[Comparison]:
    yield Comparison(magic_shell, SETUP)
    magic_shell.ast_node_interactivity = "last_expr"


CELLS = [
    "f(x)",
    "f(x);",
    "f(x)  # not silenced;",
    "f(x);  # silenced",
    "y = f(x)",
    "y = f(x); y",
    "y: torch.Tensor = f(x)",
    "total = 0\ntotal += f(x).sum()",
    "a, b = f(x), g(x)",
    "a = b = f(x)",
    "(y := f(x))",
    "x[0] = f(x)[1]",
    "f(x, w=3.0)",
    "f(*[x], **{'w': 4})",
    "f(x).sum() and None",
    "f(x) is None",
    "not f(x).sum()",
    "print(f(x))",
    "print(f(x), end='')\nprint(g(x), file=sys.stderr)",
    "g(f(x))",
    "f(f(x))",
    "f(g(f(x)))",
    "both(noted(x), key=noted(f(noted(x + 1))))\ntrace",
    "noted(both)(noted(x), key=noted(f(noted(x + 1))))",
    "[f(x + i) for i in range(3)]",
    "[[f(x + i + j) for j in range(2)] for i in range(2)]",
    "{i: f(x + i) for i in range(2)}",
    "sum(f(x + i).sum() for i in range(3))",
    "lazy = (f(x + i) for i in range(2))",
    "for i in range(3):\n    y = f(x + i)",
    "for i in range(3):\n    f(x + i)\nelse:\n    z = i",
    "n = 0\nwhile n < 2:\n    n += 1\n    y = f(x * n)",
    "with torch.no_grad():\n    y = net(x)",
    "with contextlib.suppress(ValueError):\n    boom(f(x))",
    "if f(x).sum() > 100:\n    z = 1\nelif g(x).sum() > 0:\n    z = 2",
    "try:\n    boom(x)\nexcept ValueError as error:\n    z = str(error)\nfinally:\n    y = 3",
    "match f(x).shape:\n    case (rows, columns):\n        z = rows * columns",
    "assert f(x).shape == (2, 3), 'shape'",
    "net(x)",
    "net(x).sum().backward()\n[p.grad for p in net.parameters()]",
    "loss = net(x).sum()\nloss.backward()",
    "net.eval()\nnet(x)",
    "torch.manual_seed(3)\nnet(x)",
    "nn.CrossEntropyLoss()(net(x), torch.tensor([0, 1]))",
    "torch.optim.SGD(net.parameters(), lr=0.1).zero_grad()\nnet(x).sum().backward()",
    "net.layers[0](x)",
    "net.forward(x)",
    "trainer.step(x)",
    "trainer(x)",
    "scaled(x)",
    "(lambda v: f(v) + 1)(x)",
    "h = lambda v: f(v)\nh(x)",
    "def h():\n    return f(x)\nh()",
    pytest.param(
        "class Named(str):\n    def title(self): return super().title() + str(f(x).sum())\nNamed('a').title()",
        marks=pytest.mark.skipif(TORCH >= "2.15", reason="torch.compile calls self.title() for super().title() there"),
    ),
    "@functools.lru_cache\ndef h():\n    return f(x)\nh()",
    "@torch.no_grad()\ndef h(v):\n    return net(v)\nh(x)",
    "torch.vmap(f)(x)",
    "torch.func.grad(lambda v: f(v).sum())(x)",
    "list(map(f, [x, x + 1]))",
    "def h():\n    yield f(x)\nlist(h())",
    "locals() is globals()",
    "sorted(name for name in globals() if not name.startswith('_'))",
    "sorted(name for name in dir() if not name.startswith('_'))",
    "eval('f(x)')",
    "exec('y = f(x)')",
    "globals().update(y=f(x))",
    "__name__",
    "get_ipython().user_ns is globals()",
    "inspect.getsource(f)",
    "def h(v):\n    # says why\n    return v + 1\nh(x), inspect.getsource(h)",
    "from __future__ import annotations\ndef h(a: f(1)): ...\nh.__annotations__",
    "y: f(1)\n__annotations__",
    "5",
    "'a;b'",
    "x.sum()",
    "_",
    "import math as m\nm.sqrt(4)",
    "del x",
    "pass",
    "# nothing but this",
    "'''only a string'''",
    "f'{f(x).sum():.2f}'",
    "f'{f(x).sum() = }'",
    "(f(x)\n    .sum()\n    .item())",
    "!echo hello\nf(x)",
    "files = !echo one two\nfiles",
    "%who_ls function",
    "%env TCOMPILE_TEST=1\nf(x)",
    "y = %who_ls Net\ny",
    "%%capture seen\nprint(f(x))",
    "f?",
    "import asyncio\nawait asyncio.sleep(0)\nf(x)",
    "async def h(v):\n    return f(v)\nawait h(x)",
    "async def h(v):\n    return f(v)\ny = await h(x)\nawait h(y);",
    "async def h():\n    for i in range(2):\n        yield f(x + i)\n[y async for y in h()]",
    "\n\n    \nf(x)",
    "    y = 1\n    f(x)",
    "c = torch.compile(f, backend='eager')\nc(x)",
    "@torch.compile(backend='eager')\ndef h(v):\n    return f(v)\nh(x)",
]  # fmt: skip


@pytest.mark.parametrize("code", CELLS)
def test_cell_behaves_as_without_the_magic(cells: Comparison, code: str) -> None:
    assert cells.magic(code) == cells.bare(code)


ERRORS = [
    "1 / 0",
    "y = 1\n\n1 / 0\nz = 2",
    "undefined",
    "undefined(x)",
    "f(undefined)",
    "f()",
    "f(x, x, x)",
    "boom(x)",
    "print(f(x))\nboom(x)",
    "deep(x)",
    "badly_shaped(x)",
    "net(x.T)",
    "net.layers[0](x.T)",
    "net(x).backward()",
    "(f(x)\n    .sum()\n    .no_such_method())",
    "x.no_such_method()",
    "for i in range(3):\n    if i == 1:\n        boom(f(x))",
    "with torch.no_grad():\n    boom(x)",
    "[boom(x) for _ in range(2)]",
    "assert f(x).sum() > 100, 'low'",
    "try:\n    boom(x)\nexcept ValueError as error:\n    raise RuntimeError('second') from error",
    "try:\n    boom(x)\nexcept ValueError:\n    undefined",
    "next(iter([]))",
    "raise SystemExit(3)",
    "sys.exit('done')",
    "raise KeyboardInterrupt",
    "raise StopIteration",
    "raise BaseException('base')",
    "class Odd(Exception):\n    def __setattr__(self, *_): raise TypeError\nraise Odd",
    "1 +",
    "y = 1\nreturn y",
    "y = 1\n  z = 2",
    "def h(:",
    "await",
    "yield f(x)",
    "'unterminated",
    "%no_such_magic",
    "%%no_such_magic\nf(x)",
    "import asyncio\nawait asyncio.sleep(0)\nboom(x)",
]


@pytest.mark.parametrize("code", ERRORS)
def test_error_is_the_same_as_without_the_magic(cells: Comparison, code: str) -> None:
    assert cells.magic(code) == cells.bare(code)


@pytest.mark.parametrize("interactivity", ["all", "last", "last_expr", "none", "last_expr_or_assign"])
@pytest.mark.parametrize(
    "code", ["f(x)\ng(x)", "f(x)\ny = g(x)", "for i in range(2):\n    i\n    f(x)", "f(x)\ng(x);", "y = f(x);"]
)
def test_values_follow_the_ipython_display_setting(cells: Comparison, interactivity: str, code: str) -> None:
    cells.shell.ast_node_interactivity = interactivity
    assert cells.magic(code) == cells.bare(code)


def test_a_silent_request_shows_nothing(cells: Comparison) -> None:
    cells.set_up()
    cells.shell.ast_node_interactivity = "all"
    with capture_output() as captured:
        result = cells.shell.run_cell("%%tcompile\nf(x)\ng(x)", silent=True)
    assert (result.success, captured.stdout, captured.outputs) == (True, "", [])


def test_generator_that_outlives_the_cell_runs_uncompiled(cells: Comparison) -> None:
    cells.magic("lazy = (f(x + i) for i in range(2))")
    assert len(list(cells.shell.user_ns["lazy"])) == 2


def test_functions_defined_in_the_cell_are_unmodified(cells: Comparison) -> None:
    cells.magic("def h(v):\n    return f(v)\nh(x)")
    assert cells.shell.user_ns["h"].__code__.co_names == ("f",)


class Doubled(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.copy_location(ast.Constant(node.value * 2), node) if node.value == 21 else node


def test_ast_transformers_of_the_shell_are_applied(cells: Comparison) -> None:
    cells.shell.ast_transformers.append(Doubled())
    try:
        assert cells.magic("y = f(x)\n21").result == 42
    finally:
        cells.shell.ast_transformers.pop()


def test_settings_changed_by_the_cell_stay(cells: Comparison) -> None:
    limit = sys.getrecursionlimit()
    code = "import warnings\nsys.setrecursionlimit(4321)\nwarnings.filterwarnings('ignore', 'of the cell')\nf(x)"
    try:
        cells.magic(code)
        assert sys.getrecursionlimit() == 4321
        assert any(message and message.pattern == "of the cell" for _, message, *_ in warnings.filters)
    finally:
        sys.setrecursionlimit(limit)
        warnings.filters[:] = [entry for entry in warnings.filters if not entry[1] or entry[1].pattern != "of the cell"]


def test_line_numbers_match_the_visible_cell(cells: Comparison) -> None:
    cells.set_up()
    printed = cells.printed("%%tcompile\ny = f(x)\n\n1 / 0")
    assert "line 4" in printed
    assert "----> 4 1 / 0" in printed


def test_line_numbers_count_blank_lines(cells: Comparison) -> None:
    cells.set_up()
    assert "----> 5 1 / 0" in cells.printed("\n%%tcompile\n\n\n1 / 0")


def test_tracebacks_omit_frames_of_torch_compile_and_ours(cells: Comparison) -> None:
    cells.set_up()
    printed = cells.printed("%%tcompile\nc = torch.compile(deep, backend='eager')\nc(x)")
    assert "in deep(x)" in printed
    assert "in boom(x)" in printed
    assert not re.search(r"_dynamo|/explorer/|/compiler/|run_cell_magic", printed)


def test_torch_compile_errors_keep_their_full_traceback(cells: Comparison) -> None:
    cells.set_up()
    printed = cells.printed("%%tcompile\nc = torch.compile(f, backend='no_such_backend')\nc(x)")
    assert "InvalidBackend" in printed
    assert "_dynamo" in printed


def test_error_raised_again_later_has_a_full_traceback(cells: Comparison) -> None:
    cells.magic("error = ValueError('kept')\nraise error")
    assert "in reraise()" in cells.printed("def reraise():\n    raise error\nreraise()")


def test_the_debugger_starts_at_the_users_frame(cells: Comparison) -> None:
    cells.magic("deep(x)")
    *_, innermost = traceback.walk_tb(sys.last_traceback)
    assert innermost[0].f_code.co_name == "boom"


IN_A_GUARD = """
guards = []
def interrupt_a_guard(frame, event, _):
    if event == "call" and frame.f_code.co_filename.endswith("_dynamo/guards.py"):
        guards.append(frame.f_code.co_name)
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)
f(x)
sys.setprofile(interrupt_a_guard)
while time.monotonic() < end:
    f(x)
"""
IN_A_FINALIZER = """
class Last:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
f(x)
Last()
while time.monotonic() < end:
    pass
"""
IN_A_WEAK_DICTIONARY = """
import weakref
class Interrupting(dict):
    def __delitem__(self, _):
        signal.raise_signal(signal.SIGINT)
f(x)
kept = weakref.WeakKeyDictionary()
kept.data = Interrupting()
kept[torch.nn.Identity()] = None
while time.monotonic() < end:
    pass
"""
TWICE = """
f(x)
Last()
try:
    while time.monotonic() < end:
        pass
except KeyboardInterrupt:
    caught = True
Last()
while time.monotonic() < end:
    pass
"""


@pytest.mark.parametrize(
    "code", [IN_A_GUARD, IN_A_FINALIZER, IN_A_WEAK_DICTIONARY, IN_A_FINALIZER.partition("f(x)")[0] + TWICE]
)
def test_dropped_interrupt_stops_the_cell(cells: Comparison, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell ends by itself after 10 seconds, and then without an error."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # pytest's keeps the error
    before = signal.getsignal(signal.SIGINT)
    found = cells.magic(f"import signal, time\nend = time.monotonic() + 10{code}")
    assert "KeyboardInterrupt" in found.error
    assert found.namespace.get("caught", True)
    assert found.namespace.get("guards", True)
    assert signal.getsignal(signal.SIGINT) is before
    assert "interrupts.py" not in found.output


def test_caught_interrupt_is_not_repeated(cells: Comparison) -> None:
    code = """
import signal, time
def step():
    f(x)
    signal.raise_signal(signal.SIGINT)
try:
    step()
except KeyboardInterrupt:
    caught = True
    time.sleep(0.2)
time.sleep(0.2)
last = f(x)
"""
    found = cells.magic(code)
    assert (found.error, found.namespace["caught"]) == ("NoneType: None", True)


def test_a_handler_that_the_cell_sets_stays(cells: Comparison) -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        cells.magic("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nf(x)")
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_copying_a_tree_copies_no_other() -> None:
    """The traceback renderer sets `parent` on nodes that all trees share, which connects all trees."""
    shared = ast.parse("x").body[0].value.ctx
    shared.parent = other = ast.parse("another(cell)")
    try:
        copy = copy_tree(ast.parse("net(x)"))
    finally:
        del shared.parent
    assert ast.unparse(copy) == "net(x)"
    assert not any(getattr(node, "parent", other) is not other for node in ast.walk(copy))
