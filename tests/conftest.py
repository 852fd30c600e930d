"""What every test may count on: no network for models, no trace in the user's own folders, and `needs`."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

PRIVATE_FOLDERS = (
    "IPYTHONDIR",
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "JUPYTER_RUNTIME_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
)


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module is imported, for this process and those that tests start."""
    root = tempfile.TemporaryDirectory(prefix="tcompile-tests-")
    config.add_cleanup(root.cleanup)
    for name in PRIVATE_FOLDERS:
        folder = Path(root.name, name.lower())
        folder.mkdir()
        os.environ[name] = str(folder)
    os.environ["HF_HUB_OFFLINE"] = "1"
    # A shell's background job is started with interrupts ignored, and tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


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


FINDERS: dict[str, Callable[[], str | None]] = {"chromium": chromium, "gpu": _gpu}


def _require(program: str) -> None:
    """Skip the test where a program is missing; in CI, where only a GPU may be missing, fail it."""
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
