"""%%tcompile and %tcompile in an IPython shell: options, the compiled call, messages, stored results."""

from __future__ import annotations

import re
import subprocess
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from explorer.budget.commit_diff import lines_behind
from explorer.entry import callee, magics
from explorer.entry.watch import changes_text, difference
from explorer.run.run import Run

SETUP = """
import functools
import numpy as np
import torch
from torch import nn

def f(x, w=2.0):
    return torch.sin(x) * w

def g(x):
    return x + 1

async def awaited(x):
    return f(x)

def yielding(x):
    yield f(x)

def my_backend(module, inputs):
    return module

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 2)

    def forward(self, x):
        return self.second(self.first(x).relu())

    def loss(self, x):
        return self(x).square().sum()

class Adder:
    def __call__(self, x):
        return x + 1

net = Net()
adder = Adder()
x = torch.arange(6.0).reshape(2, 3)
criterion = nn.MSELoss()
"""


@dataclass(frozen=True)
class Ran:
    """The outcome of a cell: IPython's result, and all printed or displayed text."""

    result: ExecutionResult
    text: str

    @property
    def error(self) -> str:
        error = self.result.error_before_exec or self.result.error_in_exec
        return f"{type(error).__name__}: {error}" if error else ""


class Shell:
    def __init__(self, ipython: InteractiveShell) -> None:
        self.ipython = ipython

    def ran(self, cell: str) -> Ran:
        with capture_output() as captured:
            result = self.ipython.run_cell(cell, store_history=True)
        shown = [output.data.get("text/plain", "") for output in captured.outputs]
        return Ran(result, "\n".join([captured.stdout, captured.stderr, *shown]))

    def explored(self, code: str, line: str = "--backend eager") -> Run:
        """The run of a cell; fails if the cell failed."""
        ran = self.ran(f"%%tcompile {line}\n{code}")
        assert ran.error == ""
        return self.ipython.user_ns["_tc"]

    def __getitem__(self, name: str) -> object:
        return self.ipython.user_ns[name]

    def __contains__(self, name: str) -> bool:
        return name in self.ipython.user_ns


@pytest.fixture(scope="module")
def ipython() -> Iterator[InteractiveShell]:
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    shell.run_cell("%load_ext explorer")
    shell.run_cell(SETUP)
    yield shell
    shell.run_cell("%unload_ext explorer")
    InteractiveShell.clear_instance()


@pytest.fixture
def shell(ipython: InteractiveShell) -> Iterator[Shell]:
    before = dict(ipython.user_ns)
    yield Shell(ipython)
    for name in ipython.user_ns.keys() - before.keys():
        if not name.startswith("__"):  # torch.compile keeps its own objects under such names
            del ipython.user_ns[name]
    ipython.user_ns.update(before)


CHOSEN = [
    ("f(x)", "f"),
    ("net(x)", "Net"),
    ("net(x).sum().backward()", "Net"),
    ("print(f(x))", "f"),
    ("g(f(x))", "f"),
    ("f(x) + g(x)", "f"),
    ("np.asarray(f(x))", "f"),
    ("torch.relu(g(x))", "g"),
    ("criterion(net(x), torch.zeros(2, 2))", "Net"),
    ("criterion(x, x)", "MSELoss"),
    ("g(x)\ny = f(x)", "f"),
    ("y = f(x)\ny += g(x)", "g"),
    ("for i in range(2):\n    y = f(x + i)", "f"),
    ("with torch.no_grad():\n    y = net(x)", "Net"),
    ("if x.sum() > 0:\n    y = f(x)\nelse:\n    y = g(x)", "f"),
    ("if x.sum() < 0:\n    y = f(x)\nelse:\n    y = g(x)", "g"),
    ("[g(x) for _ in range(2)]", "g"),
    ("net.loss(x)", "Net.loss"),
    ("net.first(x)", "Linear"),
    ("functools.partial(f, w=3.0)(x)", "f"),
    ("adder(x)", "Adder.__call__"),
    ("(lambda v: v + 1)(x)", "<lambda>"),
    ("torch.no_grad()(f)(x)", "f"),
    ("opt = torch.optim.SGD(net.parameters())\nfor _ in range(2):\n    opt.zero_grad()\n"
     "    loss = criterion(net(x), torch.zeros(2, 2))\n    loss.backward()\n    opt.step()", "Net"),
    ("y = f(x)\ny.sum()", "f"),
    ("y = f(x)\ny", "f"),
    ("y = net(x).sum()\ny.backward()", "Net"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "name"), CHOSEN)
def test_the_best_call_is_compiled(shell: Shell, code: str, name: str) -> None:
    run = shell.explored(code)
    assert run.record.title == name
    assert run["captured"].text


@pytest.mark.parametrize(
    ("fn", "code", "name"),
    [
        ("g", "g(f(x))", "g"),
        ("f", "y = f(x)\nprint(y)", "f"),
        ("net", "for _ in range(2):\n    y = net(x)\nprint(y)", "Net"),
        ("net.first", "y = net.first(x)\ng(y)", "Linear"),
        ("net.loss", "net.loss(x).backward()", "Net.loss"),
        ("layers[0]", "layers = [net.first]\nlayers[ 0 ](x)\nprint(1)", "Linear"),
        ("torch.nn.functional.relu", "torch.nn.functional.relu(x)", "relu"),
        ('"layers[0]"', "layers = [net.first]\nlayers[0](x)", "Linear"),
    ],
)
def test_fn_picks_another_call(shell: Shell, fn: str, code: str, name: str) -> None:
    assert shell.explored(code, f"--backend eager --fn {fn}").record.title == name


def test_callable_is_compiled_once_for_all_calls(shell: Shell) -> None:
    run = shell.explored("for _ in range(3):\n    y = f(g(f(x)))")
    assert [frame.function for frame in run.record.frames] == ["f"]


def test_forward_and_backward_are_explored(shell: Shell) -> None:
    run = shell.explored("net(x).sum().backward()", "")
    stages = {artifact.stage for artifact in run.record.artifacts}
    assert {"captured", "joint", "forward", "backward", "post_grad", "ir", "fused_ir", "kernels"} <= stages
    assert not run.record.problems


@pytest.mark.parametrize(
    ("code", "function"),
    [
        ("c = torch.compile(g, backend='eager')\nf(c(x))", "g"),
        ("@torch.compile(backend='eager')\ndef h(v):\n    return g(v)\nf(h(x))", "h"),
        ("def train(v):\n    return torch.compile(g, backend='eager')(v)\ntrain(x)", "g"),
        ("from torch import compile as c\nh = c(g, backend='eager')\nf(h(x))", "g"),
        ("n = Net()\nn.compile(backend='eager')\nf(n(x))", "forward"),
    ],
)
def test_cell_with_torch_compile_is_recorded_unchanged(shell: Shell, code: str, function: str) -> None:
    assert [frame.function for frame in shell.explored(code).record.frames] == [function]


GENERATES = """
import functools
from torch import nn
from torch.nn import functional
class Model(nn.Module):
    def forward(self, x):
        return functional.softmax(x, -1)
    def generate(self, x, steps):
        import inspect
        assert list(inspect.signature(self.forward).parameters) == ["x"]
        for _ in range(steps):
            x = self(x) + len("told")
        return x
"""


def test_package_method_runs_its_module_compiled(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "generating.py").write_text(GENERATES)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = callee._package_folders()
    monkeypatch.setattr(callee, "_package_folders", lambda: (*known, tmp_path))
    shell.ran("import generating\nmodel = generating.Model()\nexpected = model.generate(x, 3)")
    run = shell.explored("made = model.generate(x, 3)")
    assert [frame.function for frame in run.record.frames] == ["forward"]
    assert run.record.title == "Model"
    assert torch.equal(shell["made"], shell["expected"])
    assert "forward" not in vars(shell["model"])
    named = shell.explored("model.generate(x, 3)", "--fn model.generate")
    assert [frame.function for frame in named.record.frames][:1] == ["generate"]
    assert [frame.function for frame in shell.explored("model.forward(x)").record.frames] == ["forward"]
    assert "missing 1 required positional argument" in shell.ran("%%tcompile\nmodel.generate(x)").error
    assert "forward" not in vars(shell["model"])


def test_function_compiled_before_is_recorded_unchanged(shell: Shell) -> None:
    shell.ran("def h(v):\n    return v + 3\nc = torch.compile(h, backend='eager')")
    assert [frame.function for frame in shell.explored("g(c(x))").record.frames] == ["h"]
    shell.ran("c(x)")
    shell.ran("%%tcompile --backend eager\ng(c(x))")
    assert (
        "c was compiled before this cell, and what was made then is used again"
        in shell["_tc"].record.problems[0].reason
    )
    assert [frame.function for frame in shell["_tc"].record.frames] == ["h"]
    assert [frame.function for frame in shell.explored("torch.compiler.reset()\ng(c(x))").record.frames] == ["h"]
    shell.ran("%%tcompile --backend eager\ncalls = []\n@torch.compile\ndef bare(v):\n    calls.append(v)\nbare(x)")
    assert len(shell["calls"]) == 1, "compiled by this cell, and not called again for having no graph"


@pytest.mark.parametrize(
    ("code", "reason", "what_to_do"),
    [
        ("x.sum()", "x.sum is built in", "end the cell with a call of your function or model"),
        ("x", "the last statement, `x`, calls nothing", "end the cell with a call"),
        ("np.asarray(x)", "np.asarray is built in", "end the cell with a call"),
        ("torch.jit.script(Net())(x)", "is TorchScript, which runs outside Python", "explore the original model"),
        ("torch.jit.script(Net()).forward(x)", "is TorchScript", "explore the original model"),
        ("torch.jit.script(Net()).__call__(x)", "is TorchScript", "explore the original model"),
        ("torch.jit.trace(f, x)(x)", "is TorchScript, which runs outside Python", "explore the original model"),
        ("torch.nn.functional.relu(x)", "belongs to torch", "name another callee with --fn"),
        ("Net()", "Net is a class", "end the cell with a call"),
        ("await awaited(x)", "awaited is async", "end the cell with a call"),
        ("list(yielding(x))", "yielding is a generator", "end the cell with a call"),
        ("def h(v):\n    return v", "the last statement defines h and does not call it", "end the cell with a call"),
        ("%%time\nf(x)", "the cell is another cell magic's", "write %%tcompile below the other magic's line"),
        ("# nothing", "the cell is empty", "end the cell with a call"),
        ("if x.sum() < 0:\n    f(x)", "`if x.sum() < 0:…`", "f is called on line 3, which did not run"),
        ("(lambda: 1)()", "nothing was captured of lambda: 1", "torch.compile captures operations on tensors"),
    ],
)
def test_uncompiled_cell_explains_why(shell: Shell, code: str, reason: str, what_to_do: str) -> None:
    ran = shell.ran(f"%%tcompile\n{code}")
    assert ran.error == ""
    assert reason in ran.text
    assert what_to_do in ran.text
    assert [problem.stage for problem in shell["_tc"].record.problems] == ["captured"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--mode training", "model.train()"),
        ("--mode evaluation", "model.eval()"),
        ("--mode reduce_overhead", "did you mean 'reduce-overhead'?"),
        ("--optimization_level O1", "modes, not levels"),
        ("--device cuda", "move the model and its inputs with .to(...)"),
        ("--backend graph", "backend='eager'"),
        ("--background", "nothing is compiled in the background"),
        ("--background=True", "nothing is compiled in the background"),
        ("--fulgraph", "did you mean fullgraph=?"),
        ("--options max_autotune", "write it as name=value"),
        ("--options max_autotune=true", "Write True"),
        ("--options epilog_fusion=True", "did you mean 'epilogue_fusion'?"),
        ("--target h101", "did you mean 'h100'?"),
        ("--stages bakward", "did you mean 'backward'?"),
        ("--mode", "expected one argument"),
        ("--dynamic=maybe", "--dynamic"),
        ("-o 1st", "this must be a name"),
        ("-o class", "this must be a name"),
        ("--fn h", "the cell does not call it. It calls: noted, f"),
        ("--fn ff", "did you mean 'f'?"),
        ("--fn f(", "name what is called as the cell writes it"),
        ("f(x)", "takes options on its line and the code below"),
    ],
)
def test_wrong_option_is_refused_and_nothing_runs(shell: Shell, line: str, expected: str) -> None:
    ran = shell.ran(f"%%tcompile {line}\nnoted = list\ny = noted(f(x))")
    assert ran.error.startswith("UsageError: ")
    assert expected in ran.error
    assert "y" not in shell
    assert "_tc" not in shell


def test_fn_called_only_inside_a_function_is_refused(shell: Shell) -> None:
    ran = shell.ran("%%tcompile --fn net\ndef train():\n    return net(x)\ntrain()")
    assert "the cell's own statements don't call it" in ran.error


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--dynamic", {"dynamic": True}),
        ("--no-dynamic", {"dynamic": False}),
        ("--dynamic=False", {"dynamic": False}),
        ("--dynamic=None", {"dynamic": None}),
        ("--fullgraph", {"fullgraph": True}),
        ("--fullgraph=False", {"fullgraph": False}),
        ("--no-grad", {"grad": False}),
        ("--target cpu", {"target": "cpu"}),
        ("--stages captured,bytecode", {"stages": ("captured", "bytecode")}),
        ('--stages "captured"', {"stages": ("captured",)}),
        ("--options guess=1 --options a.b=None", {"options": {"guess": 1, "a.b": None}}),
    ],
)
def test_options_are_read_from_the_magics_line(shell: Shell, line: str, expected: dict[str, object]) -> None:
    options = shell.explored("f(x)", f"--backend eager {line}").record.options
    assert {name: getattr(options, name) for name in expected} == expected


def test_notebook_function_may_be_the_backend(shell: Shell) -> None:
    assert shell.explored("f(x)", "--backend my_backend").record.options.backend.endswith("my_backend")


def test_run_is_stored_under_the_given_name(shell: Shell) -> None:
    shell.ran("%%tcompile -o first --backend eager\nf(x)")
    assert isinstance(shell["first"], Run)
    assert "_tc" not in shell
    assert torch.equal(shell["first"].value, shell["f"](shell["x"]))


def test_run_of_a_failing_cell_is_kept(shell: Shell) -> None:
    ran = shell.ran("%%tcompile --backend eager\ny = f(x)\n1 / (f(x).sum() * 0).int().item()")
    assert ran.error == "ZeroDivisionError: division by zero"
    assert shell["_tc"]["captured"].text


def test_help_shows_the_options_and_runs_nothing(shell: Shell) -> None:
    for cell in ("%tcompile --help", "%%tcompile --help\ny = f(x)", "%%tcompile -h\nawait awaited(x)"):
        ran = shell.ran(cell)
        assert ran.error == ""
        assert "--no-widget" in ran.text
        assert "%tcompile [--target NAME]" in ran.text
    assert "y" not in shell


def test_the_docstring_has_the_options(shell: Shell) -> None:
    assert "--fullgraph" in shell.ipython.find_line_magic("tcompile").__doc__


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("%tcompile f(x)", "f(x)"),
        ("%tcompile --backend eager f( x,  w=3.0 )", "f(x, w=3.0)"),
        ("%tcompile -o kept --backend eager len('a  b' + str(f(x)))", "len('a  b' + str(f(x)))"),
        ("%tcompile --backend eager -- -f(x)", "-f(x)"),
        ("%tcompile --dynamic f(x)[0]", "f(x)[0]"),
        ("%tcompile --backend eager f(x); g(x)", "g(x)"),
        ("y = %tcompile --backend eager f(x)", "f(x)"),
    ],
)
def test_line_magic_behaves_as_the_bare_line(shell: Shell, line: str, code: str) -> None:
    ran = shell.ran(line)
    value = shell["y"] if line.startswith("y =") else ran.result.result
    assert ran.error == ""
    assert str(value) == str(shell.ran(code).result.result)


def test_line_ending_in_a_semicolon_shows_no_value(shell: Shell) -> None:
    assert shell.ran("%tcompile --backend eager f(x);").result.result is None


def test_line_magic_error_is_shown_as_user_error(shell: Shell) -> None:
    ran = shell.ran("%tcompile --backend eager f(undefined)")
    assert ran.error == "NameError: name 'undefined' is not defined"
    assert "/explorer/" not in ran.text


def test_line_magic_needs_code(shell: Shell) -> None:
    assert "needs something to run" in shell.ran("%tcompile --fullgraph").error


def test_cell_below_another_magic_is_explored(shell: Shell) -> None:
    ran = shell.ran("%%time\n%%tcompile --backend eager\ny = f(x)\ny + 1")
    assert "Wall time" in ran.text
    assert torch.equal(ran.result.result, shell["y"] + 1)
    shell.ran("%%capture seen\n%%tcompile --backend eager\nprint('inside')\nf(x)")
    assert "inside" in shell["seen"].stdout


def test_refused_export_of_a_cell_has_its_line(shell: Shell) -> None:
    shell.ran("class Branching(nn.Module):\n    def forward(self, x):\n        return x if x.sum() > 0 else -x")
    shell.ran("import tcompile\nrun = tcompile.export(Branching(), torch.ones(3))")
    card = str(shell["run"].cards)
    assert re.search(r"^  cell( \d+)?:3:\d+ in forward\n      x\.sum\(\) > 0$", card, re.MULTILINE)
    assert "and here again in export strict" in card


def test_cell_can_export_strictly_and_is_explored(shell: Shell) -> None:
    ran = shell.ran("%%tcompile --backend eager\nexported = torch.export.export(net, (x,), strict=True)\nf(x)")
    assert ran.error == ""
    assert [each.function for each in shell["_tc"].record.frames] == ["f"]
    assert torch.equal(shell["exported"].module()(shell["x"]), shell["net"](shell["x"]))


def test_awaiting_cell_below_another_magic_is_refused(shell: Shell) -> None:
    ran = shell.ran("%%time\n%%tcompile\nawait awaited(x)")
    assert "'await' outside function" in ran.error


@pytest.mark.parametrize(
    "cell", ["%tcompile await awaited(x)", "_ = get_ipython().run_cell_magic('tcompile', '', 'await awaited(x)')"]
)
def test_unsupported_await_is_reported(shell: Shell, cell: str) -> None:
    assert "make %%tcompile the first line of the cell" in shell.ran(cell).error


def test_awaiting_cell_shows_its_value(shell: Shell) -> None:
    assert torch.equal(shell.ran("%%tcompile\ny = await awaited(x)\nf(y)").result.result, shell["f"](shell["y"]))
    assert shell.ran("%%tcompile\ny = await awaited(x)\nf(y);").result.result is None


def test_terminal_prints_a_summary(shell: Shell) -> None:
    ran = shell.ran("%%tcompile --backend eager\nf(x)")
    assert "captured" in ran.text
    assert str(shell["_tc"]).strip() in ran.text


def test_failing_display_does_not_break_the_cell(ipython: InteractiveShell, shell: Shell) -> None:
    class Broken(magics.Output):
        heard = 0

        def hear(self, *_: object) -> None:
            self.heard += 1
            raise OSError("no display")

    registered = ipython.magics_manager.registry["TcompileMagics"]
    broken = Broken()
    registered._output, kept = lambda _args: broken, registered._output
    try:
        with pytest.warns(UserWarning, match=r"could not show all of this exploration(.|\n)*no display"):
            ran = shell.ran("%%tcompile --backend eager\nf(x)")
    finally:
        registered._output = kept
    assert ran.error == ""
    assert shell["_tc"]["captured"].text
    assert broken.heard == 1
    assert "captured" in ran.text  # the final result is shown all the same


def test_the_extension_can_be_unloaded_and_loaded_again(ipython: InteractiveShell) -> None:
    shell = Shell(ipython)
    transformers = list(ipython.input_transformers_post)
    shell.ran("%unload_ext explorer")
    assert "not found" in shell.ran("%%tcompile\n1").error
    assert len(ipython.input_transformers_post) == len(transformers) - 1
    shell.ran("%load_ext explorer")
    shell.ran("%reload_ext explorer")
    assert len(ipython.input_transformers_post) == len(transformers)
    assert shell.ran("%%tcompile --backend eager\nf(x)").error == ""


def test_a_cell_can_be_run_fifty_times(python: Path) -> None:
    """Runs in a separate process, because its memory is measured."""
    script = """
        import gc, sys, psutil, torch
        from collections import Counter
        from IPython.core.interactiveshell import InteractiveShell
        from IPython.utils.capture import capture_output

        shell = InteractiveShell.instance()
        shell.history_manager.enabled = False
        shell.run_cell("%load_ext explorer")
        cell = '''%%tcompile
        import torch
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 2)
            def forward(self, x):
                return torch.softmax(self.layer(x), -1)
        net = Net()
        net(torch.randn(3, 4)).max().backward()'''

        def alive():
            gc.collect()
            names = ("Net", "Run", "Record", "Artifact", "Entity", "Exploration", "Session", "GraphModule", "Event")
            return {name: count for name, count in Counter(type(o).__name__ for o in gc.get_objects()).items()
                    if name in names}

        for run in range(50):
            with capture_output() as captured:
                assert shell.run_cell(cell, store_history=True).success, captured.stdout
            record = shell.user_ns["_tc"].record
            assert not record.recompiles and not record.problems and record["backward"].text, (run, record.problems)
            if run == 9:
                early, memory = alive(), psutil.Process().memory_info().rss
        late = alive()  # collects garbage, as it did before the first measurement
        grown = (psutil.Process().memory_info().rss - memory) / 2**20
        assert late == early, (late, early)
        assert grown < 24, f"{grown:.0f} MiB in 40 runs"
    """
    result = subprocess.run(
        [python, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False, timeout=600
    )
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.fixture
def watching(shell: Shell) -> Iterator[Shell]:
    shell.ran(
        "def inner(v):\n    return v + 1\n@torch.compile(backend='eager')\ndef outer(v):\n    return inner(v) * 2"
    )
    assert shell.ran("%tcompile_watch outer(x)").error == ""
    yield shell
    shell.ran("%tcompile_watch --stop")


def test_watch_sees_what_a_compiled_function_calls(watching: Shell) -> None:
    before = watching["_tc"]
    watching.ran("def inner(v):\n    return v.sin()")
    assert watching["_tc"] is not before


def test_a_watch_that_is_refused_leaves_the_old_one(watching: Shell) -> None:
    ran = watching.ran("%tcompile_watch missing(x)")
    assert ran.error == "UsageError: %tcompile_watch missing(x): NameError: name 'missing' is not defined"
    assert "Traceback" not in ran.text
    before = watching["_tc"]
    watching.ran("outer = torch.compile(inner, backend='eager')")
    assert watching["_tc"] is not before


def test_watch_takes_edited_lines_alone_for_causes(watching: Shell) -> None:
    first = watching["_tc"]
    watching.ran("N = 2\ndef inner(v):\n    return v + 1")  # another cell, another line
    moved = watching["_tc"]
    assert moved is not first
    assert changes_text(difference(first, moved)) == "nothing changed but the source"
    watching.ran("def inner(v):\n    return v + N")
    edited = watching["_tc"]
    assert [line[:3] for line in lines_behind(difference(moved, edited)).splitlines() if " return " in line] == [
        "  -", "  +"
    ]  # fmt: skip
    watching.ran("N = 3")
    assert "captured[0/0]" in (told := changes_text(difference(edited, watching["_tc"])))
    assert "because of" not in told
