"""%tkernel and %%tkernel in an IPython shell: a kernel opened, edited, compiled, checked; every mistake on its line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

import explorer
from compiler.kernel_lab import numbers
from compiler.triton_interpreter.program import Launch
from explorer.entry.options import join_values
from explorer.kernel_lab import cell as kernel_cell
from explorer.kernel_lab.trial import KernelTrial
from explorer.run.run import Run
from tests.compiler.broken import TORCH

ON_GPU = torch.cuda.is_available()
needs_interpreter = pytest.mark.skipif(
    ON_GPU, reason="with a GPU, kernels do not run in the interpreter, which checks bounds"
)

triton = pytest.importorskip("triton", reason="Triton has no wheel for this platform")
tl = pytest.importorskip("triton.language")

SETUP = """
import torch
from torch import nn

def f(x, w):
    return torch.softmax(x @ w, -1)

def softmax_of(x):
    return torch.softmax(x, -1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16)

    def forward(self, x):
        return torch.tanh(self.first(x)).sum()

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        y = self.norm(x)
        y = nn.functional.scaled_dot_product_attention(y, y, y)
        return (nn.functional.dropout(y, 0.25).tanh() * 3).sum()
"""
FUSED = "exp_prepare_softmax_online_sub" if TORCH < "2.12" else "prepare_softmax_online"
NAME = f"triton_per_fused__softmax_{FUSED}_0"
LOAD = "tmp0 = tl.load(in_out_ptr0 + (r0_1 + 256*x0), "
STORE = "tl.store(in_out_ptr0 + (r0_1 + 256*x0), tmp15, xmask)"


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    found = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    for cell in (
        "%load_ext explorer",
        SETUP,
        "%%tcompile --target h100 -o run\nf(torch.randn(12, 64), torch.randn(64, 256))",
        "%%tcompile --target h100 -o trained\nNet()(torch.randn(8, 16)).backward()",
        "%%tcompile --backend tcompile --target h100 -o plain\nsoftmax_of(torch.randn(12, 64))",
        "%%tcompile --backend tcompile --target cpu -o on_cpu\nsoftmax_of(torch.randn(12, 64))",
        "%%tcompile --backend tcompile --target h100 -o ours\nAttention()(torch.randn(1, 2, 32, 16)).backward()",
    ):
        with capture_output():
            assert found.run_cell(cell).success
    yield found
    found.run_cell("%unload_ext explorer")
    InteractiveShell.clear_instance()


def opened(shell: InteractiveShell, line: str = "run softmax") -> str:
    """The cell that `%tkernel` inserts below."""
    assert shell.run_cell(f"%tkernel {line}").success
    text = shell.rl_next_input
    assert text is not None
    return text


def ran(shell: InteractiveShell, cell: str) -> tuple[KernelTrial, str, str]:
    """A cell's trial, and its output as text and as HTML."""
    with capture_output() as captured:
        assert shell.run_cell(cell).success
    (shown,) = captured.outputs
    trial = shell.user_ns["_tk"]
    assert isinstance(trial, KernelTrial)
    return trial, shown.data["text/plain"], shown.data["text/html"]


def cell_from_view(run: Run, kernel: str) -> str:
    """The cell that the live view inserts below after a click on a kernel of a run."""
    widget = run.widget()
    with mock.patch.object(widget, "send") as send:
        widget._on_message(widget, {"type": "lab", "kernel": kernel}, [])
    (message,) = (call.args[0] for call in send.call_args_list)
    assert message["type"] == "cell"
    return str(message["text"] or f"# {message['problem']}")


def line_of(cell: str, code: str) -> int:
    """The line number of this code in the cell, counted like in a notebook."""
    return next(number for number, line in enumerate(cell.split("\n"), 1) if code in line)


def test_a_kernel_is_put_in_a_cell(shell: InteractiveShell) -> None:
    cell = opened(shell)
    assert cell.startswith(f"%%tkernel run {NAME}\nimport triton\n")
    assert "@triton.jit" in cell
    run = shell.user_ns["run"]
    assert cell_from_view(run, NAME) == cell
    assert kernel_cell.cell_text(run.record, "softmax", "mine").startswith(f"%%tkernel mine {NAME}\n")


def test_unedited_kernel_is_the_same(shell: InteractiveShell) -> None:
    trial, text, html = ran(shell, opened(shell))
    assert trial.is_right
    assert trial.diff == ""
    assert [check.verdict for check in trial.checks] == ["equal"]
    assert "same numbers as the original" in text
    assert ("interpreter" in text) != ON_GPU  # with a GPU, kernels run there
    assert trial.original.binary is not None
    assert trial.edited.binary is not None
    assert trial.original["sass"] == trial.edited["sass"]
    facts = trial.facts
    assert list(facts.columns) == ["original", "edited"]
    assert facts.loc["registers", "original"] == trial.original.binary.registers
    assert "shared memory" in facts.index
    assert "registers" in html
    assert f">{facts.loc['occupancy percent', 'original']:g} %</td>" in html
    assert "<script" not in html


def test_an_edit_that_keeps_the_numbers(shell: InteractiveShell) -> None:
    cell = opened(shell).replace("(tmp14 / tmp12)", "tmp14 * (1.0 / tmp12)")
    trial, text, _ = ran(shell, cell)
    assert trial.is_right
    assert "+    tmp15 = tmp14 * (1.0 / tmp12)" in trial.diff
    assert trial.check["verdict"].tolist() == (["equal"] if ON_GPU else ["close"])
    before, after = trial.facts.loc["float instructions"]
    assert after < before  # one division by the sum, instead of one per element
    assert ON_GPU or "close to the original's numbers" in text


def test_backslashes_in_an_edit_stay(shell: InteractiveShell) -> None:
    trial, _, _ = ran(shell, opened(shell).replace("(tmp14 / tmp12)", "(tmp14 / tmp12)  # no \\n new line"))
    assert trial.is_right
    assert "# no \\n new line" in trial.diff


def test_custom_launch_config(shell: InteractiveShell) -> None:
    """The source does not change; 12 rows in blocks of 8: the last block is masked."""
    trial, _, _ = ran(shell, opened(shell).replace("\n", " --XBLOCK 8 --num-warps 8\n", 1))
    assert trial.is_right
    assert trial.edited.binary is not None
    assert trial.edited.binary.config["XBLOCK"] == 8
    assert trial.facts.loc["threads", "edited"] == 256
    assert trial.diff == ""


def test_nothing_is_claimed_after_a_compile_failure(shell: InteractiveShell) -> None:
    trial, text, _ = ran(shell, opened(shell).replace("\n", " --num-warps 3\n", 1))
    assert "num_warps must be a power of 2" in trial.findings[0].what
    assert trial.verdict == "the edited kernel does not work"
    assert (trial.checks, trial.notes) == ((), ())
    assert "equal" not in text


def test_launch_config_for_the_gpu_that_was_there(shell: InteractiveShell) -> None:
    record = shell.user_ns["run"].record
    environment = replace(record.environment, gpu="NVIDIA H100 80GB HBM3")
    shell.user_ns["there"] = Run(record.with_fields(target="cuda", environment=environment))
    trial, _, _ = ran(shell, opened(shell, "there softmax").replace("\n", " --num-warps 8 --no-check\n", 1))
    assert trial.is_right
    assert trial.facts.loc["threads", "edited"] == 256


@triton.jit  # type: ignore[untyped-decorator]
def triple(x, y, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < count) * 3, mask=at < count)


def call_triple(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    triple[(2,)](x, y, x.numel(), BLOCK=64)
    return y


def test_users_kernel_is_checked_whatever_it_calls_its_arguments(shell: InteractiveShell) -> None:
    shell.user_ns["own"] = explorer.explore(call_triple, torch.randn(100), target="h100")
    cell = opened(shell, "own triple_0")
    assert [check.subject for check in ran(shell, cell)[0].checks] == ["y"]
    trial, text, _ = ran(shell, cell.replace("* 3", "* 4"))
    assert not trial.is_right
    assert "what it stores to y differs from the original's" in text


def test_kernel_for_another_gpu(shell: InteractiveShell) -> None:
    trial, _, _ = ran(shell, opened(shell).replace("\n", " --target a100 --no-check -o _tk\n", 1))
    assert trial.edited.binary is not None
    assert trial.edited.binary.target == "a100"
    assert "sm_80" in trial.edited["ptx"]
    assert "not checked" in str(trial)


@pytest.mark.parametrize(
    ("code", "edit", "message"),
    [
        (LOAD, LOAD.replace("=", "= ="), "SyntaxError: invalid syntax"),
        (LOAD, LOAD.replace("= tl", "= tmp99 + tl"), "tmp99 is not defined"),
        pytest.param(
            LOAD,
            LOAD.replace("*x0)", "*x0 + 1)"),
            "tl.load reads out of bounds: element 3072 of in_out_ptr0",
            marks=needs_interpreter,
        ),
        pytest.param(
            STORE,
            STORE.replace("x0)", "x0 - 1)"),
            "tl.store writes out of bounds: element -1 of in_out_ptr0",
            marks=needs_interpreter,
        ),
        (STORE, STORE.replace("tmp15", "tmp15 * 1.01"), "what it stores to in_out_ptr0 differs from the original's"),
    ],
)
def test_a_mistake_is_reported_with_its_line(shell: InteractiveShell, code: str, edit: str, message: str) -> None:
    cell = opened(shell)
    assert code in cell
    edited = cell.replace(code, edit)
    trial, text, html = ran(shell, edited)
    assert not trial.is_right
    (finding,) = trial.findings
    assert message in finding.what
    assert finding.line == line_of(edited, edit)
    assert f"line {finding.line}: " in text
    assert edited.split("\n")[finding.line - 1].strip() in text
    assert "#b3261e" in html


def test_displayed_text_is_escaped(shell: InteractiveShell) -> None:
    _, _, html = ran(shell, opened(shell).replace(LOAD, f"'<b>&' {LOAD}"))
    assert "<b>&'" not in html
    assert "&lt;b&gt;&amp;" in html


def test_backward_kernels_get_the_saved_tensors(shell: InteractiveShell) -> None:
    run = shell.user_ns["trained"]
    kernels = [kernel for kernel in run.record.kernels if kernel.language == "triton" and "backward]" in kernel.id]
    trial, text, _ = ran(shell, opened(shell, f'trained "{kernels[0].id}"'))
    assert trial.kernel.id == kernels[0].id
    assert [check.verdict for check in trial.checks] == ["equal"] * len(trial.checks) != []
    assert "made up" not in text
    assert "random" not in text


def test_our_kernels_run_on_recorded_inputs(shell: InteractiveShell) -> None:
    """Random numbers, a GPU's attention kernel, and the forward run before the last of these."""
    kernels = [kernel for kernel in shell.user_ns["ours"].record.kernels if kernel.language == "triton"]
    assert {kernel.artifact for kernel in kernels} == {"kernels[0/0 forward]", "kernels[0/0 backward]"}
    for kernel in kernels:
        trial, text, _ = ran(shell, opened(shell, f'ours "{kernel.id}"'))
        assert trial.is_right, text
        assert {check.verdict for check in trial.checks} == {"equal"}
        assert trial.original["sass"] == trial.edited["sass"]
        assert "made up" not in text


@pytest.mark.parametrize(
    ("code", "edit", "message"),
    [
        ("= tl.load(", "= = tl.load(", "SyntaxError: invalid syntax"),
        ("= tl.load(", "= tmp99 + tl.load(", "tmp99 is not defined"),
        pytest.param("tl.store(div_ptr + (", "tl.store(div_ptr + (1 + ",
                     "tl.store writes out of bounds: element 768 of div_ptr", marks=needs_interpreter),
        ("tl.store(div_ptr + (64*x + r), ", "tl.store(div_ptr + (64*x + r), float('nan') * ",
         "what it stores to div_ptr differs from the original's"),
        ("tl.store(div_ptr", "tl.store(arg0_1_ptr + (64*x + r), div, mask_x); tl.store(div_ptr",
         "what it stores to arg0_1_ptr differs from the original's"),
    ],
)  # fmt: skip
def test_error_in_our_kernel_has_its_line(shell: InteractiveShell, code: str, edit: str, message: str) -> None:
    cell = opened(shell, "plain kernel")
    assert code in cell
    edited = cell.replace(code, edit, 1)
    trial, _, _ = ran(shell, edited)
    (finding,) = trial.findings
    assert message in finding.what
    assert finding.line == line_of(edited, edit)


def test_our_kernel_with_a_custom_config(shell: InteractiveShell) -> None:
    cell = opened(shell, "plain kernel")
    trial, _, _ = ran(shell, cell.replace("\n", " --XBLOCK 4 --num-warps 8\n", 1))
    assert trial.is_right
    assert trial.edited.binary is not None
    assert (trial.edited.binary.config["XBLOCK"], trial.facts.loc["threads", "edited"]) == (4, 256)
    assert trial.facts.loc["programs", "edited"] == 3
    _, text, _ = ran(shell, cell.replace("\n", " --NBLOCK 8\n", 1))
    assert "this kernel has no NBLOCK; it has XBLOCK" in text


def loaded(shell: InteractiveShell, name: str, folder: object) -> str:
    """The name of a run that was saved and loaded."""
    path = f"{folder}/{name}.json"
    shell.user_ns[name].save(path)
    shell.user_ns[f"loaded_{name}"] = explorer.load(path).trust()
    return f"loaded_{name}"


@pytest.mark.parametrize("name", ["run", "plain", "on_cpu"])
def test_a_loaded_kernel_asks_for_trust(shell: InteractiveShell, tmp_path: object, name: str) -> None:
    """A loaded Triton kernel and a loaded C++ kernel both do."""
    cell = opened(shell, f"{loaded(shell, name, tmp_path)} softmax")
    shell.user_ns[f"loaded_{name}"] = explorer.load(f"{tmp_path}/{name}.json")
    with capture_output() as captured:
        assert not shell.run_cell(cell).success
    assert "call run.trust()" in captured.stderr + captured.stdout


def test_loaded_cell_content_is_checked(shell: InteractiveShell, tmp_path: object) -> None:
    """Both the original in the file and the cell's source are checked; `%tkernel` copied the latter from the file."""
    for name, code, evil in (("plain", "exp(", "__import__('os').system("), ("on_cpu", "expf(", "system(")):
        cell = opened(shell, f"{loaded(shell, name, tmp_path)} softmax").replace(code, evil)
        trial, text, _ = ran(shell, cell)
        assert trial.checks == (), name
        assert "the attribute system is none of a kernel's" in text or "the call of system" in text


@pytest.mark.parametrize(
    ("place", "evil", "message"),
    [
        ("import torch\n", "import torch\nopen(MARK, 'w')\n", "equal"),  # it is not kept
        ("    def call(self, args):\n", "    def call(self, args, x=open(MARK, 'w')):\n", "the head of call"),
        ("args.clear()\n", "args.clear(); torch.save(args, MARK)\n", "the call of `torch.save`"),
        ("args.clear()\n", "args.clear(); aten.save(args, MARK)\n", "the call of `aten.save`"),
        ("args.clear()\n", "args.clear(); max([MARK], key=open)\n", "the name open"),
        ("class Runner:", "class Runner(open(MARK, 'w')):", "bases or decorators"),
    ],
)
def test_host_code_from_files_is_parsed_strictly(
    shell: InteractiveShell, tmp_path: Path, place: str, evil: str, message: str
) -> None:
    run, mark = shell.user_ns["run"], tmp_path / "mark"
    (artifact,) = run.record.of_stage("kernels")
    assert place in artifact.text
    text = artifact.text.replace(place, evil.replace("MARK", repr(str(mark))), 1)
    before, after = (found.partition("async_compile.triton")[0].count("\n") for found in (artifact.text, text))
    moved = after - before
    kernels = tuple(replace(each, lines=tuple(line + moved for line in each.lines)) for each in run.record.kernels)
    others = (each for each in run.record.artifacts if each.stage != "kernels")
    evil_record = run.record.with_fields(artifacts=(*others, replace(artifact, text=text)), kernels=kernels)
    shell.user_ns["evil"] = explorer.load(Run(evil_record).save(tmp_path / "x.json")).trust()
    _, said, _ = ran(shell, opened(shell, "evil softmax"))
    assert message in said
    assert not mark.exists()


@pytest.mark.parametrize(("name", "code"), [("plain", "exp(sub"), ("on_cpu", "expf(sub")])
def test_loaded_own_kernel_runs_on_random_inputs(
    shell: InteractiveShell, tmp_path: object, name: str, code: str
) -> None:
    cell = opened(shell, f"{loaded(shell, name, tmp_path)} kernel")
    trial, text, _ = ran(shell, cell)
    assert [check.verdict for check in trial.checks] == ["equal"]
    assert "inputs are random: the exploration's own were not kept" in text
    trial, _, _ = ran(shell, cell.replace(code, f"{code} + 0.5 * sub"))
    assert [check.verdict for check in trial.checks] == ["differs"]


def test_record_of_an_earlier_version_says_so(shell: InteractiveShell, tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    shell.user_ns["plain"].save(path)
    path.write_text(path.read_text().replace('"arguments"', '"other"'))
    shell.user_ns["old"] = explorer.load(path).trust()
    trial, text, _ = ran(shell, opened(shell, "old kernel"))
    assert trial.edited.binary is not None
    assert "an earlier version saved it, without its arguments: explore it again" in text


def test_cpp_kernel_is_built_run_and_timed(shell: InteractiveShell) -> None:
    """The cell has only the kernel, without the shared helpers."""
    cell = opened(shell, "on_cpu kernel")
    assert cell.split("\n")[1].startswith('extern "C" int kernel_softmax(')
    trial, text, html = ran(shell, cell)
    assert trial.is_right
    assert [(check.subject, check.verdict) for check in trial.checks] == [("out_div", "equal")]
    assert [timing.subject for timing in trial.timings] == ["original", "edited"]
    assert all(0 < timing.low <= timing.seconds <= timing.high for timing in trial.timings)
    assert "same numbers as the original" in text
    assert "µs" in html


@pytest.mark.parametrize(
    ("code", "edit", "message", "has_line"),
    [
        ("::expf(sub)", "::expf(sun)", "was not declared in this scope", True),
        ("::expf(sub)", "::expf(sub);;+", "expected", True),
        ("out_div[", "out_div[1 + ", "it writes out of bounds: element 768 of out_div", False),
        ("out_div[", "out_div[-1 + ", "it writes out of bounds: element -1 of out_div", False),
        ("out_div[", "out_div[3000000000 + ", "it ended its process (SIGSEGV)", False),
        ("return 0;", "out_div[768] = 0.0f; return 0;", "it writes out of bounds: element 768 of out_div", False),
        ("= div;", "= div * 2;", "what it stores to out_div differs from the original's", True),
        (
            "return 0;",
            "((float*)in_arg0_1)[9] = 0; return 0;",
            "stores to in_arg0_1 differs from the original's",
            False,
        ),
        ("return 0;", "__builtin_exit(0);", "it ended its process (exit code 0) instead of returning", False),
        ("kernel_softmax(", "kernel_softmin(", "it could not be called", False),
    ],
)
def test_error_in_cpp_is_reported_without_crashing(
    shell: InteractiveShell, code: str, edit: str, message: str, has_line: bool
) -> None:
    cell = opened(shell, "on_cpu kernel")
    assert code in cell
    edited = cell.replace(code, edit)
    trial, _, _ = ran(shell, edited)
    (finding,) = trial.findings
    assert message in finding.what
    assert finding.line == (line_of(edited, edit) if has_line else 0)


@pytest.mark.parametrize(
    ("later", "message"),
    [
        ("return 0;", "differs from the original's (in a later call with the same arguments"),
        ("__builtin_abort();", "in a later call with the same arguments, it ended its process (SIGABRT)"),
    ],
)
def test_later_calls_are_checked(shell: InteractiveShell, later: str, message: str) -> None:
    edited = f"threads) {{ static int calls; if (calls++) {later}"
    (finding,) = ran(shell, opened(shell, "on_cpu kernel").replace("threads) {", edited))[0].findings
    assert message in finding.what


def test_printed_text_is_shown(shell: InteractiveShell) -> None:
    cell = opened(shell, "on_cpu kernel").replace("return 0;", 'printf("%d rows\\nof 64\\n", 12); return 0;')
    trial, text, html = ran(shell, cell.replace("extern", "#include <cstdio>\nextern", 1))
    assert trial.is_right
    assert len(trial.timings) == 2
    assert "it printed:\n    12 rows\n    of 64)" in text
    assert "12 rows\n    of 64" in html


def test_cpp_kernel_has_no_config(shell: InteractiveShell) -> None:
    _, text, _ = ran(shell, opened(shell, "on_cpu kernel").replace("\n", " --XBLOCK 4\n", 1))
    assert "a kernel in C++ has no GPU to be compiled for, and no configuration" in text


def test_loaded_kernel_runs_on_random_inputs(shell: InteractiveShell, tmp_path: object) -> None:
    trial, text, _ = ran(shell, opened(shell, f"{loaded(shell, 'run', tmp_path)} softmax"))
    assert trial.is_right
    assert "inputs are random: the exploration's own were not kept" in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run", "%tkernel takes a run and a kernel"),
        ("rum softmax", "rum is no result of %%tcompile; did you mean 'run'?"),
        ("f softmax", "f is no result of %%tcompile"),
        (f"run triton_per_fused_softmax_{FUSED}_0", f"did you mean '{NAME}'?"),
        ("trained triton", "kernels have 'triton' in their names"),
    ],
)
def test_wrong_usage_shows_the_right_one(shell: InteractiveShell, line: str, message: str) -> None:
    with capture_output():
        result = shell.run_cell(f"%tkernel {line}")
    assert isinstance(result.error_in_exec, UsageError)
    assert message in str(result.error_in_exec)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--target h200000", "h200"),
        ("--config 99", "there is no configuration 99"),
        ("--YBLOCK 8", "this kernel has no YBLOCK; it has XBLOCK"),
    ],
)
def test_incompatible_options_are_refused(shell: InteractiveShell, options: str, message: str) -> None:
    with capture_output() as captured:
        result = shell.run_cell(opened(shell).replace("\n", f" {options}\n", 1))
    shown = "".join(output.data["text/plain"] for output in captured.outputs)
    assert message in shown + str(result.error_in_exec)


def test_kernel_of_other_side_says_how_to_edit(shell: InteractiveShell) -> None:
    with capture_output():
        cell = "%%tcompile --backend tcompile --vs inductor --target h100 -o both\nsoftmax_of(torch.randn(12, 64))"
        assert shell.run_cell(cell).success
    run = shell.user_ns["both"]
    (own,) = kernel_cell.editable(run.record)
    assert cell_from_view(run, own.id).startswith(f"%%tkernel both {own.name}\n")
    with pytest.raises(kernel_cell.NoSuchKernelError, match="explore the call with --backend inductor to edit it"):
        kernel_cell.cell_text(run.record, f"inductor: {run.record.versus.kernels[0].id}", "both")


def test_check_kernels_in_the_magic(shell: InteractiveShell) -> None:
    with capture_output():
        assert shell.run_cell("%tcompile --check kernels -o checked f(torch.randn(8, 8), torch.randn(8, 8))").success
    run = shell.user_ns["checked"]
    assert isinstance(run, Run)
    assert run.record.options.check == "kernels"
    assert set(run.tables.checks["verdict"]) <= {"equal", "close"}
    assert len(run.tables.checks) == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--check", "kernels", "f(x)"], ["--check=kernels", "f(x)"]),
        (["--check", "f(x)"], ["--check=yes", "f(x)"]),
        (["--check=True"], ["--check=yes"]),
        (["--check=False", "kernels"], ["kernels"]),
        (["kernels", "--check"], ["kernels", "--check=yes"]),
    ],
)
def test_check_flag_takes_one_word(words: list[str], expected: list[str]) -> None:
    assert join_values(words) == expected


def test_difference_within_the_originals_own_is_rounding() -> None:
    """Sums by atomic additions, in another order in each run; numbers as of a run on a GPU."""
    launch = Launch("total", "total", "", [torch.zeros(1)], ["out"], {0: None}, lambda _: [])
    theirs, again = [torch.tensor([1000.0])], [torch.tensor([1000.08])]

    def verdict(number: float) -> str:
        own = numbers._checks(launch, theirs, again)
        (check,) = numbers._allow_own_spread(numbers._checks(launch, theirs, [torch.tensor([number])]), own)
        return f"{check.verdict}: {check.note}"

    assert verdict(1000.12) == "close: the original's own runs differ by 0.08"
    assert verdict(1000.5).startswith("differs")
