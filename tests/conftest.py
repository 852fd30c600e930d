"""Shared test setup: no network for models, no files in the user's own folders, and the marker `needs`."""

from __future__ import annotations

import gc
import importlib.util
import json
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from tests.brief_measurements import brief_measurements
from tests.forked_python import explore_once, forked_interpreters, forked_python

PRIVATE_FOLDERS = (
    "IPYTHONDIR",
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "JUPYTER_RUNTIME_DIR",
)
#: Shared by the processes of pytest-xdist, so that each C++ header and kernel is compiled once.
SHARED_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
#: Files whose tests take more than about 20 seconds of CPU time in sum, the longest first.
SLOW = (
    "tests/test_notebooks.py",
    "tests/browser/test_accessibility.py",
    "tests/browser/test_live_widget.py",
    "tests/explorer/test_mcp.py",
    "tests/explorer/run/test_answers.py",
    "tests/explorer/test_cli_check.py",
    "tests/compiler/backend/test_random_programs.py",
    "tests/compiler/triton_interpreter/test_interpret.py",
    "tests/explorer/kernel_lab/test_kernel_lab.py",
    "tests/compiler/capture/test_breaks.py",
    "tests/compiler/test_engine.py",
    "tests/compiler/test_parity.py",
    "tests/compiler/virtual_gpu/test_virtual.py",
    "tests/compiler/xray/test_sites.py",
    "tests/compiler/xray/test_fixes.py",
    "tests/explorer/run/test_kernel.py",
    "tests/explorer/test_cli_watch.py",
    "tests/explorer/run/test_patch.py",
    "tests/compiler/repro/test_repro.py",
    "tests/compiler/logs/test_record_and_log_agree.py",
    "tests/test_wheel.py",
    "tests/compiler/backend/test_edges.py",
    "tests/compiler/backend/test_emit_triton.py",
    "tests/compiler/test_models.py",
    "tests/compiler/xray/test_operators.py",
    "tests/compiler/test_distributed.py",
    "tests/explorer/test_cli_xray.py",
    "tests/browser/test_live_tools.py",
    "tests/explorer/run/test_job.py",
    "tests/explorer/entry/test_cell.py",
    "tests/test_architecture.py",
    "tests/browser/test_live_machine_code.py",
    "tests/test_docs.py",
    "tests/compiler/inductor/test_line_links.py",
    "tests/browser/test_live_updates.py",
    "tests/browser/test_live_timing.py",
    "tests/compiler/backend/test_operators.py",
    "tests/compiler/backend/test_models.py",
    "tests/frontend/test_graph_view.py",
    "tests/explorer/entry/test_magics.py",
    "tests/compiler/backend/test_behaviour.py",
    "tests/compiler/backend/test_data_sizes.py",
    "tests/compiler/inductor/test_modes.py",
    "tests/compiler/timing/test_profile.py",
    "tests/explorer/run/test_hostile_files.py",
    "tests/benchmarks/test_rank_fidelity.py",
    "tests/compiler/timing/test_timing.py",
    "tests/compiler/virtual_gpu/test_torch_cuda.py",
    "tests/compiler/inductor/test_without_build.py",
    "tests/browser/test_chain_rule.py",
    "tests/browser/test_find_and_share.py",
    "tests/compiler/backend/test_scatter.py",
    "tests/compiler/autograd/test_partition.py",
)
#: So many tests take longer than an exploration.
MANY = 1000


def pytest_configure(config: pytest.Config) -> None:
    """Set environment variables before any test module is imported, for this process and its child processes."""
    root = tempfile.TemporaryDirectory(prefix="tcompile-tests-")
    config.add_cleanup(root.cleanup)
    workers = os.environ.get("PYTEST_XDIST_WORKER_COUNT")
    for name in PRIVATE_FOLDERS if workers else (*PRIVATE_FOLDERS, SHARED_FOLDER):
        folder = Path(root.name, name.lower())
        folder.mkdir()
        os.environ[name] = str(folder)
    os.environ["HF_HUB_OFFLINE"] = "1"
    # jsonschema's checker of IRIs is optional, and builds its grammar for four seconds when it is imported.
    sys.modules.setdefault("rfc3987_syntax", cast("ModuleType", None))
    # In each process Inductor builds a file per vector instruction set to probe g++; the result is known.
    os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"
    if workers:  # else threads wait for busy cores
        os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // int(workers), 1)))
    # A shell's background job is started with interrupts ignored, and tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow files first, so that processes that get one file at a time end together."""
    places = {file: place for place, file in enumerate(SLOW)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(SLOW)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import test modules without garbage collection: it would go through all objects again as their number grows."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Freeze the objects that test modules import, so that thousands of full garbage collections skip them.

    For many tests, explore once before, because the first exploration imports as many objects again. Also let torch's
    structured trace propagate: pytest adds handlers to loggers that don't, and torch writes long messages to this one
    as soon as it has a handler.
    """
    trace = logging.getLogger("torch.__trace")
    trace.propagate = True
    if len(session.items) > MANY:
        trace.disabled = True  # else it prints a line
        explore_once()
        trace.disabled = False
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """Restore PyTorch's number of threads after each test.

    Otherwise threads would spin for cores that other processes use, and small operations of later tests would take
    milliseconds.
    """
    torch = sys.modules.get("torch")
    threads = torch and torch.get_num_threads()
    yield
    if torch and torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="session")
def measure_briefly() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if "torch" in sys.modules:  # else no test module has imported torch, and the import takes seconds
            for owner, name, value in brief_measurements():
                patch.setattr(owner, name, value)
        yield


@pytest.fixture(autouse=True, scope="session")
def fork_interpreters() -> Iterator[None]:
    """Let processes of Triton's interpreter be forks: each would import torch and Triton for five seconds."""
    if "torch" not in sys.modules:
        yield
        return
    with forked_interpreters():
        yield


@pytest.fixture(scope="session")
def python() -> Iterator[Path]:
    """A `python`, and beside it `tcompile`, whose programs start with torch and tcompile imported."""
    with tempfile.TemporaryDirectory(prefix="tcompile-python-") as folder, forked_python(Path(folder)) as program:
        yield program


@pytest.fixture(scope="session")
def kernel_name(python: Path) -> str:
    """A Jupyter kernel that starts with torch and tcompile imported."""
    folder = Path(os.environ["JUPYTER_DATA_DIR"], "kernels/forked")
    folder.mkdir(parents=True, exist_ok=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (folder / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "forked", "language": "python"}))
    return folder.name


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for program in mark.args:
            _require(program)


def chromium() -> str | None:
    """The path of a Chromium, or None. The variable CHROMIUM says which one to take."""
    names = (os.environ.get("CHROMIUM", "chromium"), "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


def _gpu() -> str | None:
    import torch

    return "cuda" if torch.cuda.is_available() else None


#: The accessibility checker, installed by `make test` from npm.
AXE = Path(__file__).parents[1] / "node_modules/axe-core/axe.min.js"


def _axe() -> str | None:
    return str(AXE) if AXE.exists() else None


#: The type checker of VS Code, installed likewise.
PYRIGHT = Path(__file__).parents[1] / "node_modules/.bin/pyright"


def _pyright() -> str | None:
    return str(PYRIGHT) if PYRIGHT.exists() else None


def _mcp() -> str | None:
    return "mcp" if importlib.util.find_spec("mcp") else None


FINDERS: dict[str, Callable[[], str | None]] = {
    "chromium": chromium, "gpu": _gpu, "axe": _axe, "pyright": _pyright, "mcp": _mcp,
}  # fmt: skip


def _require(program: str) -> None:
    """Skip the test if a program is missing; in CI, where only a GPU may be missing, fail it."""
    if FINDERS.get(program, lambda: shutil.which(program))():
        return
    if os.environ.get("CI") and program != "gpu":
        pytest.fail(f"{program} is not installed, and in CI no test is left out")
    pytest.skip(f"needs {program}")


@pytest.fixture
def free_port() -> int:
    """A port of this machine that nothing listens on."""
    return find_free_port()


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
