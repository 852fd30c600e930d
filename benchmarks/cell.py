"""A `%%tcompile` cell in a real kernel, observed as a notebook would: `python -m benchmarks.cell gpt2`.

Prints a JSON object: `captured` is the seconds from sending the cell until the entities of the biggest captured graph
arrive, while the cell still runs; `seconds` until the kernel is idle again; `widget_bytes` the size of the finished
widget, sent once; `sent_bytes` all bytes sent for it while it grew; `peak_mib` the kernel's peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

from benchmarks.fresh import ROOT
from benchmarks.models import MODELS

SETUP = """
import torch
from benchmarks.models import MODELS
%load_ext tcompile
torch.manual_seed(0)
step = MODELS[{model!r}]()
model, arguments, loss = step.model, step.arguments, step.loss
"""
CELL = """%%tcompile --target cpu
loss(model(**arguments)).backward()
"""
PEAK = "print(open('/proc/self/status').read())"
CAPTURED = re.compile(r"captured\[.*\]")
LIMIT_SECONDS = 900


@dataclass
class Heard:
    """Messages received from the kernel: a widget's current state, and how many bytes were sent for it."""

    state: dict[str, Any] = field(default_factory=dict)
    parts: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)
    sent: int = 0

    def take(self, message: dict[str, Any], at: float) -> None:
        if not message["msg_type"].startswith("comm_"):
            return
        data, buffers = message["content"].get("data", {}), message.get("buffers", [])
        self.sent += len(json.dumps(data).encode()) + sum(len(buffer) for buffer in buffers)
        state = data.get("state", {})
        self.state |= {name: value for name, value in state.items() if name != "parts"}
        for (_, artifact, name, _), buffer in zip(state.get("parts", []), buffers, strict=True):
            self.parts.setdefault((artifact, name), (at, 0))
            self.parts[artifact, name] = (self.parts[artifact, name][0], len(buffer))

    def captured(self) -> float | None:
        """When the biggest captured graph's entities arrived; None if they did not."""
        found = [(size, at) for (artifact, name), (at, size) in self.parts.items()
                 if name == "entities" and CAPTURED.fullmatch(artifact)]  # fmt: skip
        return max(found)[1] if found else None

    def held(self) -> int:
        """Bytes of the current state, with each part counted once."""
        return len(json.dumps(self.state).encode()) + sum(size for _, size in self.parts.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    asked = parser.parse_args()
    manager, client = start_new_kernel(cwd=str(ROOT), env=dict(os.environ), startup_timeout=120)
    try:
        print(json.dumps(measured(client, asked.model)))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def measured(client: BlockingKernelClient, model: str) -> dict[str, Any]:
    for _ in run(client, SETUP.format(model=model)):
        pass
    heard, seconds = Heard(), 0.0
    for message, seconds in run(client, CELL):
        heard.take(message, seconds)
    if "manifest" not in heard.state:
        raise SystemExit("the cell showed no widget")
    return {
        "seconds": seconds,
        "captured": heard.captured(),
        "widget_bytes": heard.held(),
        "sent_bytes": heard.sent,
        "peak_mib": peak_mib(client),
        "parts": {" ".join(key): {"at": at, "bytes": size} for key, (at, size) in heard.parts.items()},
    }


def run(client: BlockingKernelClient, code: str) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield each message of a cell with its seconds since sending. Raises SystemExit when the cell fails."""
    start = time.perf_counter()
    request = client.execute(code)
    while True:
        message = client.get_iopub_msg(timeout=LIMIT_SECONDS)
        if message["parent_header"].get("msg_id") != request:
            continue
        if message["msg_type"] == "error":
            raise SystemExit("\n".join(message["content"]["traceback"]))
        yield message, time.perf_counter() - start
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            return


def peak_mib(client: BlockingKernelClient) -> float:
    printed = "".join(message["content"]["text"] for message, _ in run(client, PEAK) if message["msg_type"] == "stream")
    found = re.search(r"VmHWM:\s+(\d+) kB", printed)
    return int(found[1]) / 1024 if found else float("nan")


if __name__ == "__main__":
    main()
