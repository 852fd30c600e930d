"""`tcompile watch` in a terminal: what a save shows, errors that do not end it, and what it leaves behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

MODEL = "import torch\nfrom watched_parts import scale\n\n\ndef f(x):\n    return torch.softmax(scale(x), -1)\n"
PARTS = "def scale(x):\n    return x * 2\n"
LIBRARY = (
    'import torch\nlib = torch.library.Library("watched", "DEF")\nlib.define("twice(Tensor x) -> Tensor")\n'
    'lib.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")\n\n\n'
    "def f(x):\n    return torch.ops.watched.twice(x)"
)


class _Watching:
    """A running `tcompile watch` in a folder, and what it has printed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.output = folder, folder / "output"
        command = [sys.executable, "-u", "-m", "tcompile", "watch", "model.py:f", "--input", "randn(4, 8)"]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        with self.output.open("w") as output:
            self.process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, env=environment)

    def wait_for(self, words: str, count: int = 1) -> str:
        deadline = time.monotonic() + 60
        while len(re.findall(words, text := self.output.read_text())) < count:
            assert time.monotonic() < deadline, f"no {words!r} in\n{text}"
            assert self.process.poll() is None, text
            time.sleep(0.05)
        return text

    def save(self, name: str, text: str) -> None:
        """Save as editors do: a new file takes the old one's place."""
        (self.folder / "new").write_text(text)
        (self.folder / "new").replace(self.folder / name)


def test_watch_shows_changes_and_survives_errors(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "watched_parts.py").write_text(PARTS)
    watching = _Watching(tmp_path)
    try:
        watching.wait_for("watching model.py, watched_parts.py up to captured")
        watching.save("watched_parts.py", PARTS.replace("2", "3"))
        assert "+ watched_parts.py:2  return x * 3" in watching.wait_for("l_x_ \\* 3")
        watching.save("model.py", MODEL + "def broken(:\n")
        assert "    def broken(:\n" in watching.wait_for("model.py:7: SyntaxError")
        watching.save("model.py", MODEL.replace("softmax", "sofmax"))
        watching.wait_for("model.py:6: AttributeError")
        watching.save("model.py", MODEL + "raise SystemExit(3)\n")
        watching.wait_for("\nmodel.py:7 ended the program by SystemExit\\(3\\) when imported")
        watching.save("model.py", MODEL + "input()\n")
        watching.wait_for("asks for input \\(model.py:7\\)")
        (tmp_path / "model.py").unlink()
        watching.wait_for("model.py is not there any more")
        watching.save("model.py", LIBRARY + " + 1\n")
        watching.wait_for("explored in", 2)
        watching.save("model.py", LIBRARY + " + 2\n")
        watching.wait_for("twice \\+ 2")
        watching.process.send_signal(signal.SIGINT)
        assert watching.process.wait(30) == 0
        assert "stopped watching" in watching.output.read_text()
        assert not list(tmp_path.glob("**/*.pyc"))
    finally:
        watching.process.kill()
