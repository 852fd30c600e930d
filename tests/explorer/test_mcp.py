"""`tcompile mcp`: tools through a client, what they refuse, and the guard that ends what runs too long or too large."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from explorer import cli
from explorer.agent_server import guard
from explorer.agent_server.child import parse_size, parse_time
from explorer.agent_server.workspace import Workspace

needs_mcp = pytest.mark.needs("mcp")
ENDLESS = "import os; open('pid', 'w').write(str(os.getpid()))\nwhile True: pass"
DAEMON = """
import os, signal, time
if not os.fork():
    os.setsid()
    if not os.fork():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open('pid', 'w').write(str(os.getpid()))
        time.sleep(1000)
    os._exit(0)
while not os.path.exists('pid') or not open('pid').read():
    time.sleep(0.01)
"""
HUNGRY = "import os; open('pid', 'w').write(str(os.getpid()))\nkept = []\nwhile True: kept.append(b'1' * 10**7)"


def start_guard(code: str, seconds: float = 60, most_bytes: int = 10**9) -> subprocess.Popen[bytes]:
    words = ["-I", "-S", guard.__file__, str(seconds), str(most_bytes), sys.executable, "-I", "-S", "-c", code]
    process = subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, bufsize=0)
    assert process.stdin is not None
    process.stdin.write(b"\n")
    return process


def is_running(file: Path) -> bool:
    """Whether the process whose number is in the file runs; it does not if there is no file, or nothing in it yet."""
    try:
        process = int(file.read_text())
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ValueError):
        return False


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the processes are looked up in /proc")
@pytest.mark.parametrize(
    ("code", "status", "limits"),
    [
        (ENDLESS, guard.OUT_OF_TIME, {"seconds": 0.5}),
        (HUNGRY, guard.OUT_OF_MEMORY, {"most_bytes": 200 * 10**6}),
        (DAEMON, 0, {}),
        (f"{DAEMON}\nwhile True: pass", guard.OUT_OF_TIME, {"seconds": 1}),
        ("raise SystemExit(3)", 3, {}),
        ("import os; os.kill(os.getpid(), 9)", 128 + 9, {}),
    ],
    ids=["endless", "hungry", "daemon", "endless-daemon", "exits", "killed"],
)
def test_guard_ends_all_processes(
    code: str, status: int, limits: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with start_guard(code, **limits) as process:
        assert process.wait(30) == status
    assert not is_running(tmp_path / "pid")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the processes are looked up in /proc")
@pytest.mark.parametrize("ending", ["closed", "terminated"])
def test_guard_ends_when_nobody_waits(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with start_guard(ENDLESS) as process:
        while not is_running(tmp_path / "pid"):
            time.sleep(0.01)
        assert process.stdin is not None
        if ending == "closed":
            process.stdin.close()
        else:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == guard.ABANDONED
    assert not is_running(tmp_path / "pid")


def test_limits_have_units() -> None:
    assert [parse_time(text) for text in ("90s", "1.5min", "1h")] == [90, 90, 3600]
    assert [parse_size(text) for text in ("1kB", "500MB", "8GiB")] == [1000, 500 * 10**6, 8 * 2**30]
    for parse, text in ((parse_time, "90"), (parse_time, "-1s"), (parse_time, "0s"), (parse_size, "8G")):
        with pytest.raises(ValueError, match="no number with a unit"):
            parse(text)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "mcp"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "explorer.agent_server.server", raising=False)
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert cli.main(["mcp"]) == 2
    assert 'pip install "tcompile[mcp]"' in capsys.readouterr().err


@needs_mcp
def test_client_goes_through_the_tools(python: Path, tmp_path: Path) -> None:
    """Diagnose, edit a copy, check; with --write, edit in place; hostile names, prints and paths."""
    import anyio
    from mcp import Client

    from benchmarks import agent_tools
    from explorer.agent_server.child import Commands, Limits
    from explorer.agent_server.server import make_server

    async def converse() -> None:
        for can_write, cases in ((False, ("loop", "injection", "outside")), (True, ("writes",))):
            folder = tmp_path / f"repository{can_write}"
            folder.mkdir()
            (folder / "program.py").write_text(agent_tools.PROGRAM)
            workspace = Workspace(folder, can_write=can_write)
            async with Client(make_server(workspace, Commands(Limits(), (str(python),))), mode="legacy") as client:
                for case in cases:
                    await agent_tools.CASES[case](agent_tools.Session(client, folder, can_write))
                if can_write:
                    await edit_kernel(agent_tools.Session(client, folder))
            workspace.close()

    async def edit_kernel(session: agent_tools.Session) -> None:
        run = (await session.ask("explore", code="program.py:g", **agent_tools.CALL)).facts["run"]
        kernel = (await session.ask("kernel_source", source=run)).items[0]["id"]
        _, blocks = await session.all_pages("kernel_source", source=run, kernel=kernel)
        text = "\n".join(block["text"] for block in blocks)
        found = await session.ask("try_kernel", source=run, kernel=kernel, text=text, run=False)
        assert (found.facts["is_right"], found.facts["diff"]) == (True, "")
        found = await session.ask("try_kernel", source=run, kernel=kernel, text=f"{text}\n(", run=False)
        assert found.items[0]["line"] >= text.count("\n") + 1, found.items

    anyio.run(converse)


@needs_mcp
def test_server_speaks_on_its_standard_streams(tmp_path: Path) -> None:
    import anyio
    from mcp import Client

    from benchmarks import agent_tools

    async def converse() -> None:
        async with Client(agent_tools.server_parameters(tmp_path)) as client:
            listed = {tool.name for tool in (await client.list_tools()).tools}
            assert listed >= {
                "explore",
                "xray",
                "diagnose",
                "check",
                "show",
                "load_log",
                "compare",
                "apply_edit",
                "save",
            }
            await agent_tools.Session(client, tmp_path).refuse("explore", code=f"{os.pardir}/x.py:f")

    anyio.run(converse)
