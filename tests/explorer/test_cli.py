"""The command line: output, files, one-line errors, exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import compiler.binary
from compiler.record import Record
from compiler.record.options import Options
from explorer import cli
from explorer.entry import call_inputs
from explorer.entry.call_inputs import InputError
from explorer.run import files
from explorer.run.run import Run
from tests.compiler.broken import TORCH
from tests.explorer.findings import fused_record
from tests.explorer.small_record import small_record

MODELS = """\
import torch
from torch import nn


def softmax(x, w):
    return torch.softmax(x @ w, -1)


def scaled(x, scale=1.0, *, flip=False):
    return -x * scale if flip else x * scale


def fails(x):
    y = x.relu()
    return y @ y


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 8)

    def forward(self, x):
        return self.head(x).relu()


class Wide(nn.Module):
    def __init__(self, width):
        super().__init__()


class Breaks(nn.Module):
    def __init__(self):
        raise RuntimeError("no weights today")


class Settings:
    pass


model = Model()
count = 3
"""


BARE = """\
import parts
from torch import nn
from torch.nn.functional import relu

bare = nn.Linear(1, 1)
bare = nn.Sequential(
    nn.Linear(4, 4),
    nn.ReLU(),
)


def function(x):
    bare = x
    return x.relu()


class Written(nn.Module):
    def forward(self, x):
        return x.relu()


written = Written()
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return files.write(small_record(), tmp_path / "run.json")


def wrong(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> str:
    """The only line on stderr after a wrong call; checks that stdout is empty and the exit code 2."""
    try:
        code = cli.main([str(argument) for argument in argv])
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    shown = capsys.readouterr()
    assert code == 2
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("tcompile: ")
    return line


def test_explore_shows_the_summary_and_saves(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.json"
    code = cli.main(
        ["explore", f"{models}:softmax", "--input", "randn(8, 64)", "--input", "randn(64, 16)", "--json", str(output)]
    )
    shown = capsys.readouterr().out
    assert code == 0
    assert shown.startswith("softmax\n")
    assert f"wrote {output}" in shown
    record = files.read(output)
    assert {"source", "captured", "kernels"} <= {artifact.stage for artifact in record.artifacts}
    assert any("return torch.softmax(x @ w, -1)" in artifact.text for artifact in record.of_stage("source"))


@pytest.mark.parametrize("name", ["model", "Model"])
def test_a_model_and_its_class_are_explored(models: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore", f"{models}:{name}", "--input", "x=randn(8, 64)", "--no-grad"]) == 0
    shown = capsys.readouterr().out
    assert "grad=False" in shown
    assert "Inference" in shown
    assert "Backward" not in shown


@pytest.mark.parametrize(("name", "line"), [("bare", "bare = nn.Sequential("), ("parts.last", "import parts"),
                                            ("relu", "from torch.nn.functional import relu"),
                                            ("written", ""), ("function", "")])  # fmt: skip
def test_source_without_a_file_links_to_its_definition(tmp_path: Path, name: str, line: str) -> None:
    (tmp_path / "parts.py").write_text("from torch import nn\nlast = nn.Linear(4, 4)\n")
    script, saved = tmp_path / "bare.py", tmp_path / "run.json"
    script.write_text(BARE)
    argv = ["explore", f"{script}:{name}", "--input", "randn(4, 4)", "--backend", "eager", "--json", str(saved)]
    assert cli.main(argv) == 0
    record = files.read(saved)
    assert [each.title for each in record.of_stage("source") if not each.attrs["installed"]] == ["bare.py"]
    entities = {each.id: each for each in record["source[bare.py]"].entities}
    lines = [entities[name].label for node in record.of_stage("captured")[0].entities if node.kind == "call"
             for name in node.origins if name in entities]  # fmt: skip
    assert set(lines) == {line or "return x.relu()"}


def test_a_function_of_a_file_is_a_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "own.py"
    script.write_text("def plain(graph, inputs):\n    return graph.forward\n\n\ndef f(x):\n    return x.sin()\n")
    words = ["explore", f"{script}:f", "--input", "ones(2)", "--backend"]
    assert cli.main([*words, f"{script}:plain"]) == 0
    assert "backend=own.plain" in capsys.readouterr().out
    script.with_name("broken.py").write_text("1 / 0\n")
    for name, why in (("own.py:other", "has no 'other'"), ("broken.py:f", "raises ZeroDivisionError")):
        assert cli.main([*words, str(tmp_path / name)]) == 2
        assert why in capsys.readouterr().err


def test_inputs_by_position_and_by_name(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["explore", f"{models}:scaled", "--input", "ones(4)", "--input", "2.5", "--input", "flip=True"]
    assert cli.main(argv) == 0
    assert "Captured" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_record(models: Path, tmp_path: Path) -> None:
    texts = []
    for name in ("a.json", "b.json"):
        output = tmp_path / name
        cli.main(["explore", f"{models}:model", "--input", "randn(8, 64)", "--json", str(output)])
        texts.append([artifact.text for artifact in files.read(output).artifacts])
    assert texts[0] == texts[1]


def test_user_exception_keeps_its_traceback(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore", f"{models}:fails", "--input", "randn(8, 64)"]) == 1
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "Traceback (most recent call last):"
    assert f'File "{models}", line 15, in fails' in shown[1]
    said = "mm: mat1" if TORCH >= "2.15" else "mat1"
    assert shown[-1].startswith(f"RuntimeError: {said} and mat2 shapes cannot be multiplied")
    assert "explorer" not in "".join(shown[:2])


def test_exception_in_model_construction_keeps_its_traceback(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore", f"{models}:Breaks"]) == 1
    shown = capsys.readouterr().err
    assert shown.endswith("RuntimeError: no weights today\n")
    assert f'File "{models}"' in shown.splitlines()[1]


def test_file_with_a_syntax_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def f(:\n")
    assert cli.main(["explore", f"{path}:f"]) == 1
    assert capsys.readouterr().err.startswith(f'  File "{path}", line 1\n')


def test_file_imports_its_neighbours(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    user = models.with_name("uses_models.py")
    user.write_text("from models import softmax as f\n")
    assert cli.main(["explore", f"{user}:f", "--input", "randn(2, 3), randn(3, 2)"]) == 0
    assert capsys.readouterr().out.startswith("softmax\n")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{models}", "names no function or model; write path/to/file.py:name"),
        ("nowhere.py:f", "there is no file 'nowhere.py'"),
        ("{folder}:f", "is a folder"),
        ("{folder}/run.json:f", "is not a Python file"),
        ("{models}:softmx", "has no 'softmx'; did you mean 'softmax'?"),
        ("{models}:zzz", "it has: softmax, scaled, fails, Model, Wide, Breaks, Settings, model"),
        ("{models}:count", "'count' in {models} is of type int, not a function or a model"),
        ("{models}:Settings", "is a class, but no nn.Module"),
        ("{models}:Wide", "Wide(width) can't be made without arguments"),
        ("{models}:softmax", "softmax(x, w) can't be called with 0 inputs: missing a required argument: 'x'"),
    ],
)
def test_wrong_target_is_a_one_line_error(
    models: Path, saved: Path, target: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"models": models, "folder": models.parent}
    assert message.format(**places) in wrong(capsys, "explore", target.format(**places))


def test_wrong_options_are_refused_before_the_file_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "loud.py"
    path.write_text("raise RuntimeError('this was run')\n")
    assert "mode='training'" in wrong(capsys, "explore", f"{path}:f", "--mode", "training")
    assert "write it as name=value" in wrong(capsys, "explore", f"{path}:f", "--options", "max_autotune")
    assert "there is no folder" in wrong(capsys, "explore", f"{path}:f", "--html", tmp_path / "no" / "run.html")
    assert "does not end in .json" in wrong(capsys, "explore", f"{path}:f", "--json", "run.html")
    assert "a page has at least 1 item" in wrong(capsys, "explore", f"{path}:f", "--json", "--limit", "0")


def test_wrong_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "invalid choice: 'lower'" in wrong(capsys, "lower")
    assert "required: COMMAND" in wrong(capsys)


def test_show_prints_the_summary_or_a_stage(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", str(saved)]) == 0
    assert "1 graph break" in capsys.readouterr().out
    assert cli.main(["show", str(saved), "forward"]) == 0
    assert "2  cell:2      mm = aten.mm(primals_1, primals_2)" in capsys.readouterr().out
    assert cli.main(["show", str(saved), "forward[0/0]", "--raw"]) == 0
    assert capsys.readouterr().out == small_record()["forward"].text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("breaks", "graph break 1 of 1: Failed to trace builtin operator (GB0059)\n  cell:2:5 in show\n      print(x)"),
        ("recompiles", "recompilation 1 of 1: f (cell:1), shape of `x`"),
        ("guards", "0/0  f (cell:1): 1 guard, and 1 on the insides of modules and of torch\n  `x` is float32, contig"),
        ("guards", "34 ns  failed 1 time\n"),
    ],
)
def test_show_prints_dynamo_facts(saved: Path, capsys: pytest.CaptureFixture[str], name: str, words: str) -> None:
    assert cli.main(["show", str(saved), name]) == 0
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("breaks", "no graph breaks\n"),
        ("recompiles", "no recompilations\n"),
        ("guards", "no guards\n"),
    ],
)
def test_show_of_missing_facts_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    path = files.write(Record("nothing", Options()), tmp_path / "empty.json")
    assert cli.main(["show", str(path), name]) == 0
    assert capsys.readouterr().out == words


def test_show_names_each_of_several_graphs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = small_record()
    other = replace(record["forward"], id="forward[0/1]", entities=())
    path = files.write(record.with_fields(artifacts=(*record.artifacts, other)), tmp_path / "two.json")
    cli.main(["show", str(path), "forward"])
    found = capsys.readouterr().out
    assert found.count("# forward[0/0]  forward half") == found.count("# forward[0/1]  forward half") == 1


def test_show_of_a_finding_prints_its_text(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", str(saved), "timing"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "time of one call (forward) on the CPU, 2 threads"
    assert "aot_eager  40.0 µs  39.0 to 42.0 µs" in "\n".join(told)


def test_show_of_a_missing_stage_is_an_error(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "it has: source, captured, forward, backward, kernels" in wrong(capsys, "show", saved, "nonsense")
    assert "this machine has no Triton" in wrong(capsys, "show", saved, "ttir")
    assert "No such file or directory" in wrong(capsys, "show", tmp_path / "none.json")
    (tmp_path / "run.pkl").write_bytes(b"\x80\x04.")
    assert "TORCH_TRACE" in wrong(capsys, "show", tmp_path / "run.pkl")
    damaged = tmp_path / "damaged.json"
    damaged.write_text('{"schema": 1}')
    assert "missing required field `title`" in wrong(capsys, "show", damaged)


def test_show_is_coloured_for_a_terminal(
    saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    cli.main(["show", str(saved), "source"])
    assert "\x1b[" in capsys.readouterr().out


def test_report_writes_the_page(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(saved)]) == 0
    page = saved.with_suffix(".html")
    assert capsys.readouterr().out == f"wrote {page}\n"
    assert page.read_text().startswith("<!doctype html>")


def test_show_imports_neither_torch_nor_pandas(saved: Path) -> None:
    """The command should start instantly."""
    code = (
        "import sys; from explorer.cli import main; main(['show', sys.argv[1], 'forward']); "
        "sys.exit(', '.join({'torch', 'pandas'} & set(sys.modules)) or 0)"
    )
    shown = subprocess.run([sys.executable, "-c", code, str(saved)], capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr) == (0, "")


def test_closed_output_pipe_is_not_an_error(tmp_path: Path) -> None:
    record = small_record()
    long = replace(record["forward"], text="x\n" * 200_000)
    path = files.write(record.with_fields(artifacts=(long,)), tmp_path / "long.json")
    code = "import sys; from explorer.cli import main; sys.exit(main(sys.argv[1:]))"
    show = subprocess.Popen(
        [sys.executable, "-c", code, "show", str(path), "forward"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert show.stdout is not None
    assert show.stderr is not None
    assert show.stdout.readline() != b""
    show.stdout.close()
    assert show.stderr.read() == b""
    assert show.wait(60) == 0


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("randn(8, 64)", (8, 64), torch.float32),
        ("torch.randn(8, 64, dtype=torch.float16)", (8, 64), torch.float16),
        ("zeros([2, 3], dtype=bfloat16)", (2, 3), torch.bfloat16),
        ("ones(4, dtype='int32')", (4,), torch.int32),
        ("randint(0, 100, [8])", (8,), torch.int64),
        ("full([2], -1.5)", (2,), torch.float32),
        ("tensor([[1, 2], [3, 4]])", (2, 2), torch.int64),
        ("arange(10)", (10,), torch.int64),
        ("rand(2, requires_grad=True)", (2,), torch.float32),
    ],
)
def test_tensor_inputs(text: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    (value,) = call_inputs.parse([text]).args
    assert (tuple(value.shape), value.dtype) == (shape, dtype)


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("-2.5", -2.5), ("True", True), ("None", None), ("'mean'", "mean"), ("[1, (2, 3)]", [1, (2, 3)])],
)
def test_literal_inputs(text: str, value: object) -> None:
    assert call_inputs.parse([text]).args == [value]


def test_named_inputs_and_containers() -> None:
    inputs = call_inputs.parse(["{'a': ones(2)}, [zeros(1)]", "mask=ones(3)", "k=-1"])
    assert inputs.args[0]["a"].tolist() == [1, 1]
    assert inputs.args[1][0].tolist() == [0]
    assert inputs.kwargs["mask"].tolist() == [1, 1, 1]
    assert inputs.kwargs["k"] == -1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').system('true')", "is not one of arange, empty"),
        ("open('x')", "'open' is not one of"),
        ("torch.load('x.pt')", "'load' is not one of"),
        ("torch.hub.load('a', 'b')", "'hub.load' is not one of"),
        ("randn(2).cuda()", "is not one of"),
        ("(lambda: 1)()", "is not one of"),
        ("[x for x in y]", "is not read"),
        ("f'{1}'", "is not read"),
        ("2 ** 99999999", "is not read"),
        ("randn", "'randn' is not a literal, nor a dtype of torch; write randn(…) with its shape"),
        ("os", "'os' is not a literal"),
        ("torch.nn.Module", "is not a literal"),
        ("1) or (2", "is not one value"),
        ("1)(2", "is not one value"),
        ("randn(8,", "is not Python"),
        ("", None),
        ("*[1]", "is not read"),
        ("**{'a': 1}", "`**` is not read"),
        ("randn(**{'size': 1})", "`**` is not read"),
        ("{**{}}", "a key of a dict is a literal"),
        ("randn(-1)", "torch says: "),
        ("randn('a')", "torch says: "),
        ("randn(2, dtype='float33')", "'float33' is not a dtype of torch"),
        ("randn(2, device='tpu')", "torch says: "),
        ("(" * 5000 + ")" * 5000, "is not Python"),
    ],
)
def test_invalid_inputs_are_refused(text: str, message: str | None) -> None:
    if message is None:
        assert call_inputs.parse([text]) == call_inputs.Inputs()
        return
    with pytest.raises(InputError) as error:
        call_inputs.parse([text])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_invalid_command_line_input_is_refused(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = wrong(capsys, "explore", f"{models}:softmax", "--input", "open('x')")
    assert line.startswith("tcompile: --input \"open('x')\": 'open' is not one of arange, ")


def test_show_compiles_kernels_for_machine_stages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler.binary, "compile_incrementally", fused_record.growing, raising=False)
    path = Run(fused_record.fused_record()).save(tmp_path / "run.json")
    assert cli.main(["show", str(path), "PTX", "--trust"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("# ptx[0/0 inference ") == 2
    assert re.search(r"cell:2\s+ld\.global\.b32", shown)
