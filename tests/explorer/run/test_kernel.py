"""%%tcompile in a real Jupyter kernel: what it sends to the front end, errors, interrupts, await."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

WIDGET = "application/vnd.jupyter.widget-view+json"
SETUP = """
%load_ext explorer
import os, asyncio, torch
from torch import nn

def f(x):
    return torch.softmax(x, -1)

def forever(x):
    while True:
        x = torch.sin(x)

net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
x = torch.ones(2, 3)
"""

Message = dict[str, Any]


class Kernel:
    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self.client = client

    def run(self, code: str, *, interrupt_at: str = "", cell: str = "") -> list[Message]:
        """The messages that running a cell makes, in order; the reply last."""
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        request = self.client.session.msg("execute_request", {**content, "stop_on_error": False})
        request["metadata"]["cellId"] = cell
        self.client.shell_channel.send(request)
        messages = []
        while not messages or messages[-1]["content"].get("execution_state") != "idle":
            message = self.client.get_iopub_msg(timeout=120)
            if message["parent_header"].get("msg_id") != request["header"]["msg_id"]:
                continue
            messages.append(message)
            if interrupt_at and interrupt_at in (message["msg_type"], message["content"].get("text", "").strip()):
                time.sleep(0.5)
                self.manager.interrupt_kernel()
        return [*messages[:-1], self._reply(request["header"]["msg_id"])]

    def _reply(self, request: str) -> Message:
        while True:
            reply = self.client.get_shell_msg(timeout=120)
            if reply["parent_header"].get("msg_id") == request:
                return reply

    def value(self, code: str) -> str:
        """The text of an expression's value."""
        return next(m for m in self.run(code) if m["msg_type"] == "execute_result")["content"]["data"]["text/plain"]


@pytest.fixture(scope="module")
def kernel(kernel_name: str) -> Iterator[Kernel]:
    manager = KernelManager(kernel_name=kernel_name)
    manager.start_kernel(cwd=str(Path(__file__).parents[3]), env=dict(os.environ))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=120)
    kernel = Kernel(manager, client)
    assert kernel.run(SETUP)[-1]["content"]["status"] == "ok"
    yield kernel
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def kinds(messages: list[Message]) -> list[str]:
    return [message["msg_type"] for message in messages]


def shown(messages: list[Message], kind: str) -> list[dict[str, str]]:
    return [message["content"]["data"] for message in messages if message["msg_type"] == kind]


def test_static_html_then_the_widget_then_the_value(kernel: Kernel) -> None:
    messages = kernel.run("%%tcompile\nf(x)")
    static, widget = shown(messages, "display_data")
    assert static.keys() == {"text/plain", "text/html"}
    assert widget.keys() >= {"text/plain", WIDGET}
    value = shown(messages, "execute_result")
    assert [data["text/plain"].startswith("tensor(") for data in value] == [True]
    order = kinds(messages)
    assert order.index("display_data") < order.index("comm_open") < order.index("execute_result")


def test_static_html_is_updated_to_the_final_view(kernel: Kernel) -> None:
    messages = kernel.run("%%tcompile -o run\nf(x)")
    last = shown(messages, "update_display_data")[-1]
    assert 'title="tcompile-static"' in last["text/html"]
    assert "<script" not in last["text/html"]
    assert "Captured" in last["text/plain"]
    transient = [m["content"]["transient"]["display_id"] for m in messages if m["msg_type"] == "update_display_data"]
    assert len(set(transient)) == 1


def test_widget_appears_before_the_cell_ends(kernel: Kernel) -> None:
    messages = kernel.run("%%tcompile\ny = f(x)\nfor part in (net, net):\n    z = part(x)\nprint('the end')\nnet(x)")
    order = [kind + str(m["content"].get("text", "")) for kind, m in zip(kinds(messages), messages, strict=True)]
    assert order.index("comm_open") < order.index("execute_result")
    messages = kernel.run(
        "%%tcompile\nwith torch.enable_grad():\n    y = net(x)\n    print('captured')\n    y.sum().backward()"
    )
    order = [kind for kind in kinds(messages) if kind in ("comm_open", "stream")]
    assert order.index("comm_open") < order.index("stream")


def test_run_returns_the_displayed_widget(kernel: Kernel) -> None:
    messages = kernel.run("%%tcompile -o run\nf(x)")
    model = shown(messages, "display_data")[1][WIDGET]["model_id"]
    assert kernel.value("run.widget().model_id") == repr(model)
    kernel.run("run.selection = [run['captured'].entities[0].id]")
    assert kernel.value("run.widget().selection == list(run.selection)") == "True"


def test_no_widget_option_shows_html_only(kernel: Kernel) -> None:
    messages = kernel.run("%%tcompile --no-widget\nf(x)")
    assert len(shown(messages, "display_data")) == 1
    assert "comm_open" not in kinds(messages)


def test_rerun_cell_closes_its_old_widget(kernel: Kernel) -> None:
    for _ in range(3):
        messages = kernel.run("%%tcompile -o run\nf(x)", cell="first")
    assert "comm_close" in kinds(messages)
    kernel.run("%%tcompile -o other\nf(x)", cell="second")
    assert kernel.value("run.widget().comm is not None, other.widget().comm is not None") == "(True, True)"


def test_kept_run_gets_a_new_widget(kernel: Kernel) -> None:
    kernel.run("%%tcompile -o run\nf(x)", cell="third")
    kernel.run("kept = run")
    kernel.run("%%tcompile -o run\nf(x)", cell="third")
    assert kernel.value("kept.widget().comm is not None and kept.widget() is not run.widget()") == "True"


def test_two_magics_in_one_cell_keep_both_widgets(kernel: Kernel) -> None:
    messages = kernel.run("%tcompile -o one f(x)\n%tcompile -o two f(x + 1)", cell="fourth")
    assert kinds(messages).count("comm_open") >= 2
    assert kernel.value("one.widget().comm is not None and two.widget().comm is not None") == "True"


def test_no_widget_is_closed_without_cell_ids(kernel: Kernel) -> None:
    kernel.run("%%tcompile -o one\nf(x)")
    kernel.run("%%tcompile -o two\nf(x)")
    assert kernel.value("one.widget().comm is not None and two.widget().comm is not None") == "True"


def test_note_replaces_html_if_nothing_is_compiled(kernel: Kernel) -> None:
    messages = kernel.run("%%tcompile\nx.sum()")
    last = shown(messages, "update_display_data")[-1]
    assert "nothing was compiled: the last statement" in last["text/plain"]
    assert "<code>x.sum()</code>" in last["text/html"]


def test_angle_brackets_are_escaped(kernel: Kernel) -> None:
    messages = kernel.run("%%tcompile\nlen('<script>')")
    assert "<script>" not in shown(messages, "update_display_data")[-1]["text/html"]


def test_error_is_sent_once_with_user_lines(kernel: Kernel) -> None:
    messages = kernel.run("%%tcompile\ny = f(x)\nf(x) @ torch.ones(7, 7)")
    errors = [message["content"] for message in messages if message["msg_type"] == "error"]
    assert [error["ename"] for error in errors] == ["RuntimeError"]
    traceback = "\n".join(errors[0]["traceback"])
    assert "run_cell_magic" not in traceback
    assert "/explorer/" not in traceback
    assert messages[-1]["content"]["status"] == "error"
    assert shown(messages, "update_display_data")[-1]["text/html"].startswith("<div")


@pytest.mark.parametrize("code", ["1 +", "return 1", "f(x)\n  y"])
def test_syntax_error_matches_the_bare_cell(kernel: Kernel, code: str) -> None:
    sent = [m["content"] for m in kernel.run(f"%%tcompile\n{code}") if m["msg_type"] == "error"]
    bare = [m["content"] for m in kernel.run(code) if m["msg_type"] == "error"]
    assert [error["ename"] for error in sent] == [error["ename"] for error in bare]
    assert [len(error["traceback"]) for error in sent] == [len(error["traceback"]) for error in bare]


def test_wrong_option_is_a_one_line_error(kernel: Kernel) -> None:
    messages = kernel.run("%%tcompile --mode training\nf(x)")
    assert messages[-1]["content"]["ename"] == "UsageError"
    told = "".join(message["content"]["text"] for message in messages if message["msg_type"] == "stream")
    assert told.count("\n") == 1
    assert "model.train()" in told


def test_await_runs_in_the_kernels_own_loop(kernel: Kernel) -> None:
    kernel.run("loop = asyncio.get_running_loop()")
    messages = kernel.run("%%tcompile\nawait asyncio.sleep(0)\nassert asyncio.get_running_loop() is loop\nf(x)")
    assert messages[-1]["content"]["status"] == "ok"
    assert len(shown(messages, "execute_result")) == 1


@pytest.mark.parametrize(
    ("code", "interrupt_at"),
    [
        ("print('started', flush=True)\nforever(x)", "started"),
        ("f(x)\nprint('started', flush=True)\nwhile True:\n    pass", "started"),
        ("for _ in range(10**9):\n    f(x)", "comm_open"),
        ("print('started', flush=True)\nwhile True:\n    await asyncio.sleep(0.01)", "started"),
    ],
)
def test_interrupt_keeps_the_run_and_a_working_kernel(kernel: Kernel, code: str, interrupt_at: str) -> None:
    interrupted = kernel.run(f"%%tcompile -o stopped\n{code}", interrupt_at=interrupt_at)
    assert interrupted[-1]["content"]["ename"] in ("KeyboardInterrupt", "CancelledError")
    assert kernel.value("type(stopped).__name__") == "'Run'"
    messages = kernel.run("%%tcompile\nf(x)")
    assert messages[-1]["content"]["status"] == "ok"
    assert len(shown(messages, "execute_result")) == 1


def test_repeated_cells_do_not_leak_memory(kernel: Kernel) -> None:
    process = psutil.Process(int(kernel.value("os.getpid()")))
    for run in range(20):
        assert kernel.run("%%tcompile\nf(x)", cell="again")[-1]["content"]["status"] == "ok"
        if run == 4:
            early = process.memory_info().rss
    assert process.memory_info().rss - early < 16 * 2**20
    widgets = "from explorer.run.widget import Explorer; import gc; gc.collect()"
    kernel.run(widgets)
    assert int(kernel.value("sum(isinstance(o, Explorer) for o in gc.get_objects())")) < 30
