"""Interrupt a first call in a real Jupyter kernel at random moments, and look for leftovers.

    python -m benchmarks.interrupts compile --moments 30
    python -m benchmarks.interrupts check --moments 30 --seed 1

`compile` calls a function under `torch.compile(backend="tcompile")`; the other modes explore it with `%%tcompile` and
the options in MODES. The signal goes to the kernel's process group, as from Jupyter. After each interrupt the same cell
has to work, and no process, temporary file, replaced function or changed setting may remain.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

import psutil
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).parents[1]
MODES = {
    "compile": None,
    "plain": "",
    "check": "--check",
    "step": "--step",
    "versus": "--backend tcompile --vs inductor",
    "backend": "--backend tcompile",
}
"""The options of `%%tcompile` by mode; None for a plain call of a compiled function."""
GRACE_SECONDS = 20.0
"""Seconds that a process may take to end after an interrupt."""

SETUP = """
%load_ext tcompile
import json, os, sys, torch, warnings, signal
from benchmarks.interrupts import state
"""
DEFINITION = """
torch.compiler.reset()
def f(x, w):
    return torch.softmax(x @ w + {number}.5, -1).sin().sum()
x, w = torch.ones(8, 16), torch.linspace(-1, 1, 256).reshape(16, 16).requires_grad_()
run, g = None, torch.compile(f, backend="tcompile")
"""
COMPILED = "y = g(x, w); y.backward()"
EXPLORED = "%%tcompile -o run {options}\ny = f(x, w)"
CHECK = """
assert torch.allclose(y, f(x, w)), (y, f(x, w))
record = run.record if run is not None else None
print("FACTS", json.dumps({
    "problems": sorted({f"{problem.stage}: {problem.reason}" for problem in record.problems}) if record else [],
    "stages": sorted({artifact.stage for artifact in record.artifacts}) if record else [],
    "state": state(),
}))
"""


def state() -> dict[str, str]:
    """State that an interrupt could leave changed in this process: torch's functions, settings, handlers."""
    import signal
    import warnings

    import torch
    import torch._functorch.config
    import torch._inductor.config

    found: dict[str, str] = {
        "signal": str(signal.getsignal(signal.SIGINT)),
        "warnings": str(len(warnings.filters)),
        "recursion": str(sys.getrecursionlimit()),
        "gradients": str(torch.is_grad_enabled()),
        "modes": str(torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()),
        "output": type(sys.stdout).__name__,
        "environment": str(sorted(name for name in os.environ if name.startswith(("T", "C")))),
        "trace": f"{sys.gettrace()} {sys.getprofile()}",
    }
    for config in (torch._dynamo.config, torch._functorch.config, torch._inductor.config):
        values = config.get_config_copy()
        found |= {f"{config.__name__}.{name}": repr(value)[:200] for name, value in values.items()}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("torch", "triton", "linecache", "traceback"):
            found |= _functions(name, module)
    return found


OF_DYNAMO = "torch.fx.graph_module._forward_from_src"
"""TorchDynamo replaces it while it compiles, with any backend; an interrupt in its own clean-up leaves it replaced."""


def _functions(name: str, module: Any) -> dict[str, str]:
    """The identity of each function of a module and of its classes."""
    found: dict[str, str] = {}
    for key, value in list(vars(module).items()):
        if f"{name}.{key}" == OF_DYNAMO:
            continue
        if isinstance(value, type) and value.__module__ == name:
            found |= {f"{name}.{key}.{k}": str(id(v)) for k, v in list(vars(value).items()) if callable(v)}
        elif callable(value) and hasattr(value, "__name__"):
            found[f"{name}.{key}"] = str(id(value))
    return found


@dataclass(frozen=True, slots=True)
class Moment:
    """One interrupt: its time in seconds, how the cell ended, and the errors found afterwards.

    "ok" means that the cell ended before the interrupt, "went on" that it continued in spite of it.
    """

    seconds: float
    ended: str
    wrong: Sequence[str]


class Kernel:
    """A kernel whose cells can be interrupted after a given time."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient, folder: Path) -> None:
        self.manager, self.client, self.folder = manager, client, folder

    def run(self, code: str, interrupt_after: float | None = None) -> tuple[str, str]:
        """Run a cell; return how it ended ("ok", the error's name, or "went on"), and its output or traceback."""
        request = self.client.execute(code, allow_stdin=False, stop_on_error=False)
        interrupt_at = None if interrupt_after is None else time.monotonic() + interrupt_after
        printed = []
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=_seconds_until(interrupt_at))
            except Empty:
                if interrupt_at is None:
                    raise
                self.manager.interrupt_kernel()
                interrupt_at = None
                continue
            content = message["content"]
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "stream":
                printed.append(content["text"])
            if content.get("execution_state") == "idle":
                break
        return self._reply(request, "".join(printed), interrupted=interrupt_after is not None and interrupt_at is None)

    def _reply(self, request: str, printed: str, *, interrupted: bool) -> tuple[str, str]:
        """The status in the kernel's reply to a cell. An interrupt inside ipykernel itself can lose the reply."""
        try:
            while (reply := self.client.get_shell_msg(timeout=GRACE_SECONDS))["parent_header"].get("msg_id") != request:
                pass
        except Empty:
            return "no reply", printed
        if reply["content"]["status"] == "ok":
            return ("went on" if interrupted else "ok"), printed
        return reply["content"]["ename"], "\n".join([printed, *reply["content"]["traceback"]])

    def facts(self) -> dict[str, Any]:
        """The output of `CHECK`. Raises RuntimeError if it fails."""
        ended, said = self.run(CHECK)
        if ended != "ok":
            raise RuntimeError(said)
        found: dict[str, Any] = json.loads(next(s for s in said.splitlines() if s.startswith("FACTS"))[5:])
        return found

    def processes(self) -> list[str]:
        """The commands of the kernel's child processes that are still running after the time they have to end."""
        end = time.monotonic() + GRACE_SECONDS
        while (found := self._children()) and time.monotonic() < end:
            time.sleep(0.1)
        return found

    def _children(self) -> list[str]:
        assert self.manager.provisioner is not None
        root = psutil.Process(self.manager.provisioner.pid)  # type: ignore[attr-defined]
        children = [child for child in root.children(recursive=True) if child.is_running()]
        return [command for child in children if (command := _command(child))]

    def files(self) -> set[str]:
        """Files in the temporary folder, except the caches of torch and Triton."""
        return {path.name for path in self.folder.iterdir() if not path.name.startswith("torchinductor")}


def _command(process: psutil.Process) -> str:
    """The command line of a process, or its name if it is a zombie; empty if it is gone."""
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.ZombieProcess as zombie:
        return f"zombie {zombie.name or zombie.pid}"
    except psutil.NoSuchProcess:
        return ""


def _seconds_until(moment: float | None) -> float:
    """Seconds to wait for a message: until the deadline, or the maximum time of a cell."""
    return 300 if moment is None else max(0.0, moment - time.monotonic())


@contextmanager
def started() -> Iterator[Kernel]:
    """Start a kernel with its own temporary folder."""
    with tempfile.TemporaryDirectory(prefix="interrupts-", ignore_cleanup_errors=True) as folder:
        manager = KernelManager()
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
        manager.start_kernel(cwd=str(ROOT), env={**environment, "TMPDIR": folder, "PYTHONPATH": path})
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=120)
            yield Kernel(manager, client, Path(folder))
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


def interrupted(mode: str, moments: int, seed: int) -> Iterator[Moment]:
    """Interrupt a first call in a mode at moments drawn from its whole length, each in a function of its own."""
    options = MODES[mode]
    cell = COMPILED if options is None else EXPLORED.format(options=options)
    draw = random.Random(seed)
    with started() as kernel:
        ended, said = kernel.run(SETUP)
        if ended != "ok":
            raise RuntimeError(said)
        for warm_up in range(2):
            kernel.run(DEFINITION.format(number=warm_up))
            begin = time.monotonic()
            ended, said = kernel.run(cell)
            length = time.monotonic() - begin
            if ended != "ok":
                raise RuntimeError(said)
            before = kernel.facts()
        files = kernel.files()
        for number in range(2, moments + 2):
            kernel.run(DEFINITION.format(number=number))
            seconds = draw.uniform(0, length)
            ended, _ = kernel.run(cell, seconds)
            wrong = [f"process left: {command}" for command in kernel.processes()]
            yield Moment(seconds, ended, [*wrong, *_what_is_wrong(kernel, cell, before, files)])


def _what_is_wrong(kernel: Kernel, cell: str, before: dict[str, Any], files: set[str]) -> Iterator[str]:
    """The differences from before the interrupt, once the cell has run again."""
    yield from (f"file left: {name}" for name in kernel.files() - files)
    ended, said = kernel.run(cell)
    if ended != "ok":
        yield f"the cell does not work afterwards: {said}"
        return
    try:
        after = kernel.facts()
    except RuntimeError as error:
        yield f"wrong results afterwards: {error}"
        return
    for name in ("problems", "stages"):
        if after[name] != before[name]:
            yield f"{name}: {before[name]} before, {after[name]} afterwards"
    for name, value in before["state"].items():
        if name in after["state"] and after["state"][name] != value:
            yield f"changed: {name}: {value} before, {after['state'][name]} afterwards"


def main() -> int:
    """Print each moment; the exit status is the number of moments with an error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--moments", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    found = []
    for moment in interrupted(asked.mode, asked.moments, asked.seed):
        found.append(moment)
        print(f"{len(found):3} after {moment.seconds:6.2f} s: {moment.ended:20} {'; '.join(moment.wrong) or 'right'}")
        sys.stdout.flush()
    wrong = sum(bool(moment.wrong) for moment in found)
    stopped = sum(moment.ended not in ("ok", "went on") for moment in found)
    print(f"{asked.mode}: {len(found) - wrong} of {len(found)} right; {stopped} ended by the interrupt")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
