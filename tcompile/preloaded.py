"""Import torch and tcompile, then wait on standard input for one command of `tcompile`, and run it.

    python -P -m tcompile.preloaded < JOB       JOB: {"folder": "…", "words": ["show", "run.json"]}

No code of the user is imported, and each process runs one command: nothing of a program stays for the next.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Final

from explorer import cli

_IMPORTED: Final = (
    "compiler.torch_api.all_of_inductor", "compiler.engine", "explorer.entry.call_inputs",
    "explorer.entry.explore", "explorer.entry.ranks", "explorer.entry.budget", "explorer.run.diagnose",
)  # fmt: skip
"""What most commands import only when they need it; `show` alone needs less."""


def main() -> int:
    """Run the command, and return its exit code."""
    for name in _IMPORTED:
        importlib.import_module(name)
    job = json.loads(sys.stdin.buffer.read())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.chdir(job["folder"])
    sys.argv = ["tcompile", *job["words"]]
    return cli.main(job["words"])


if __name__ == "__main__":
    raise SystemExit(main())
