"""`tcompile run`, and the index of the job that it followed: as text, as a page, as a document of many compilations."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from compiler.logs.compilations import Compilation, Status
from explorer import cli
from explorer.entry.load import load
from explorer.findings.job import RankCompilations, job_document
from explorer.render.document import payload
from explorer.render.static import document_html
from explorer.render.text import document_text
from explorer.run import job_page
from explorer.run.job import Job

ROOT = Path(__file__).parents[3]
RUN = [sys.executable, "-m", "tcompile", "run"]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("TORCH_TRACE", "TORCH_LOGS")} | {
    "PYTHONPATH": str(ROOT)
}


@dataclass(frozen=True)
class Ran:
    """A program that was run under `tcompile run`."""

    folder: Path
    page: Path
    result: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("job")
    trace, page = folder / "trace", folder / "job.html"
    trace.mkdir()
    (trace / "older.log").write_text('V0101 00:00:00.000000 1 a.py:1] {"str": ["old", 1]}\n')
    program = str(Path(__file__).with_name("job_program.py"))
    command = [*RUN, "-o", str(page), "--trace", str(trace), "--", sys.executable, program]
    result = subprocess.run(
        command, capture_output=True, check=False, text=True, env=ENVIRONMENT, cwd=folder, timeout=120
    )
    return Ran(trace, page, result)


@pytest.fixture(scope="module")
def job(ran: Ran) -> Job:
    (ran.folder / "older.log").unlink(missing_ok=True)
    found = load(ran.folder)
    assert isinstance(found, Job)
    return found


def test_run_passes_output_and_exit_code_on(ran: Ran) -> None:
    assert ran.result.returncode == 5, ran.result.stderr
    assert ran.result.stdout == "between\nfailed\nbetween\n"
    assert "tcompile" not in ran.result.stderr


def test_outcome_of_each_compilation(job: Job) -> None:
    outcomes = {(one.id, one.function): one.status for one in job.compilations}
    assert outcomes == {
        ("0/0", "broken"): "broken",
        ("1/0", "torch_dynamo_resume_in_broken_at_11"): "compiled",
        ("2/0", "resized"): "compiled",
        ("2/1", "resized"): "compiled",
        ("2/2", "resized"): "compiled",
        ("2/3", "resized"): "limit",
        ("3/0", "given_up"): "skipped",
        ("4/0", "empty"): "empty",
        ("5/0", "failing"): "failed",
        ("0/0#2", "broken"): "broken",
        ("1/0#2", "torch_dynamo_resume_in_broken_at_11"): "compiled",
    }
    first, _, _, again, *_ = job.compilations
    assert (first.attempts, first.breaks[0].line, first.place, first.nodes) == (2, 11, "job_program.py:8", 1)
    assert "expected 2, actual 3" in again.recompile_reasons[0]
    assert all(one.total > 0 for one in job.compilations)


def test_ids_given_again_have_records_of_their_own(job: Job) -> None:
    assert '"f32[2][1]cpu"' in job["0/0"]["captured"].text
    assert '"f32[3][1]cpu"' in job["0/0#2"]["captured"].text
    with pytest.raises(KeyError, match=r"no compilation '9/9'; there are: "):
        job["9/9"]
    with pytest.raises(TypeError, match="not 0"):
        list(job)  # type: ignore[call-overload]


def test_breaks_of_one_compilation_tell_what_follows(job: Job) -> None:
    for name, after in (("0/0", "1/0"), ("0/0#2", "1/0#2")):
        [broken] = job[name].record.breaks
        assert (broken.resumed_by, broken.nodes) == ((after,), (1, 1))
    [given_up] = job["3/0"].record.breaks
    assert given_up.kind == "Call to `torch._dynamo.graph_break()`"
    assert (given_up.outcome, given_up.consequence, given_up.resumed_by) == ("skipped", "graph break in loop", ())


def test_text_and_html_tell_what_runs_eagerly(job: Job) -> None:
    text, html = repr(job), job._repr_mimebundle_()["text/html"]
    assert "11 compilations of 6 functions" in text
    for words in (
        "resized (job_program.py:15) reached the recompile limit: new inputs run eagerly",
        "given_up (job_program.py:20) runs eagerly",
        "failing (job_program.py:28) failed to compile",
    ):
        assert words in text
        assert words in html
    assert "<script" not in html


def test_logs_are_read_without_torch(ran: Ran, job: Job, tmp_path: Path) -> None:
    code = "import sys, tcompile.__main__ as m; m.main(); assert 'torch' not in sys.modules"
    for words in (["show", str(ran.folder)], ["report", str(ran.folder), "-o", str(tmp_path / "job.html")]):
        command = [sys.executable, "-c", code, *words]
        shown = subprocess.run(command, capture_output=True, check=False, text=True, env=ENVIRONMENT, timeout=60)
        assert shown.returncode == 0, shown.stderr
        assert words[0] != "show" or "2/3" in shown.stdout


def test_commands_on_one_compilation(job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(job.path)
    assert cli.main(["show", path, "0/0#2", "captured"]) == 0
    assert "sin" in capsys.readouterr().out
    assert cli.main(["show", path, "recompiles"]) == 0
    assert "3 recompilations of 1 cause" in capsys.readouterr().out
    assert cli.main(["show", path, "kernels"]) == 2
    assert f"kernels of which compilation? tcompile show {path} " in capsys.readouterr().err
    assert cli.main(["report", path, "--only", "2/1", "-o", str(tmp_path / "one.html")]) == 0
    assert cli.main(["show", path, "7/7"]) == 2
    assert "no compilation '7/7'" in capsys.readouterr().err
    assert cli.main(["show", str(tmp_path)]) == 2
    assert cli.main(["show", str(job.save(tmp_path / "job.html"))]) == 2
    assert "give the logs" in capsys.readouterr().err


def test_page_of_a_run_has_its_compilations(ran: Ran) -> None:
    html = ran.page.read_text()
    assert html.count('data-artifact="" data-part="manifest"') == 11
    assert f"<title>{Path(sys.executable).name} job_program.py</title>" in html
    assert "default-src 'none'" in html


def test_page_is_bounded(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as small:
        small.setattr(job_page, "MOST_READ", 1)
        assert job_page.page_of(job).words.startswith("with the records of the 1 costliest")
    monkeypatch.setattr(job_page, "MOST_RECORDS", 3)
    page = job_page.page_of(job)
    assert len(page.left_out) == 8
    assert page.words == "with the records of the 3 costliest of 11 compilations"


def made(number: int) -> Compilation:
    status: Status = "compiled" if number % 7 else "skipped"
    return Compilation(
        f"{number}/0", f"{number}/0", f"function_{number % 300}", f"/code/<b>file_{number % 40}.py", number % 300, "",
        (), status, "why <script>", 1, (), {"tracing": 0.001 * number}, {"fx_graph": "miss"}, 5, 1, 3, (), (), number,
        number,
    )  # fmt: skip


def test_thousands_of_compilations_stay_small() -> None:
    document = job_document("job", [RankCompilations(None, tuple(map(made, range(3000))))])
    start = time.perf_counter()
    text, html, data = document_text(document), document_html(document), payload(document)
    assert time.perf_counter() - start < 5
    assert len(text.splitlines()) < 60
    assert "<script>" not in html
    assert len(html) < 1_500_000
    assert data["parts"]


SIGNALLED = """
import signal, sys, time
count = 0
def end(number, frame):
    global count
    count += 1
signal.signal(signal.{name}, end)
print("ready", flush=True)
while not count:
    time.sleep(0.05)
time.sleep(0.5)
print(count, flush=True)
sys.exit(3)
"""


@pytest.mark.parametrize(("name", "to"), [("SIGINT", "it"), ("SIGINT", "all"), ("SIGTERM", "it"), ("SIGUSR1", "it")])
def test_signals_reach_the_command_once(name: str, to: str, tmp_path: Path) -> None:
    command = [*RUN, "-o", str(tmp_path / "a.html"), sys.executable, "-c", SIGNALLED.format(name=name)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        send = os.killpg if to == "all" else os.kill
        send(process.pid, getattr(signal, name))
        assert process.stdout.read() == "1\n"
        assert process.wait(20) == 3


def test_run_ends_by_the_signal_that_ended_the_command() -> None:
    code = "import os, signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGTERM)"
    ended = subprocess.run(
        [*RUN, sys.executable, "-c", code], capture_output=True, check=False, text=True, env=ENVIRONMENT
    )
    assert ended.returncode == -signal.SIGTERM
    assert "compiled nothing" in ended.stderr


def test_wrong_use_of_run() -> None:
    codes = Counter[int]()
    for words in ([], ["-o", "page.txt", "ls"], ["--what", "ls"], ["no-such-command-anywhere"]):
        codes[subprocess.run([*RUN, *words], capture_output=True, check=False, env=ENVIRONMENT).returncode] += 1
    assert codes == {2: 3, 127: 1}


COMPILING = """
import os, sys, time
print(sys.stdin.readline().strip(), os.isatty(0), os.isatty(1), os.isatty(2), flush=True)
head = "V0101 00:00:00.000000 1 torch/_dynamo/convert_frame.py:1] "
with open(os.environ["TORCH_TRACE"] + "/dedicated_log_torch_trace_a.log", "w") as log:
    def write(text):
        print(head + text, file=log, flush=True)
    write('{"str": ["/code/train.py", 1]}')
    stack = '[{"line": 9, "name": "main", "filename": 1}, {"line": 4, "name": "step", "filename": 1}]'
    write('{"dynamo_start": {"stack": %s}, "frame_id": 0, "frame_compile_id": 0, "attempt": 0}' % stack)
    time.sleep(2.2)
    write('{"compilation_metrics": {"co_name": "step"}, "frame_id": 0, "frame_compile_id": 0, "attempt": 0}')
    time.sleep(0.6)
"""


def test_a_terminal_shows_what_is_compiling(tmp_path: Path) -> None:
    parent, child = pty.openpty()
    command = [*RUN, "-o", str(tmp_path / "a.html"), sys.executable, "-c", COMPILING]
    with subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=ENVIRONMENT, close_fds=True) as process:
        os.write(parent, b"hello\n")
        assert process.wait(30) == 0
    os.close(child)
    shown = os.read(parent, 65_536).decode()
    os.close(parent)
    assert "hello True True True" in shown
    assert "compiling step (train.py:4), for 1 s, called at train.py:9" in shown
    assert "\x1b8" in shown
    assert " \rtcompile: 1 compilation" in shown
