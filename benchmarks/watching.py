"""Seconds from a save to what `tcompile watch` shows, in one warm process; prints a JSON object."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
import threading
import time
from pathlib import Path

from explorer.entry.watch import Watch, with_stage

SOURCE = "import torch\n\n\ndef f(x):\n    return torch.softmax(x * 2.0, -1)\n"
SAVES = 12


class _Saver:
    """Saves the file again after each exploration that is shown, and notes how long that took."""

    def __init__(self, path: Path) -> None:
        self.path, self.saved, self.seconds = path, 0.0, list[float]()

    def hear(self, words: str) -> None:
        if words.startswith("explored in"):
            self.seconds.append(time.perf_counter() - self.saved)
            if len(self.seconds) >= SAVES:
                raise KeyboardInterrupt
        if words.startswith(("watching", "explored in")):
            threading.Timer(0.2, self._save, [len(self.seconds) + 3]).start()

    def _save(self, number: int) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(SOURCE.replace("2.0", f"{number}.0"))
        self.saved = time.perf_counter()
        new.replace(self.path)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "small.py")
        path.write_text(SOURCE)
        saver = _Saver(path)
        args = argparse.Namespace(code=f"{path}:f", inputs=["randn(8, 64)"], calls=[], seed=0)
        with contextlib.redirect_stdout(io.StringIO()):
            Watch(args, with_stage({}), saver.hear).run()
    print(json.dumps({"seconds": saver.seconds}))


if __name__ == "__main__":
    main()
