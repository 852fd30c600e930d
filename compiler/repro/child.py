"""The process that runs repro files: a line with a path comes in, a line with what the file shows goes out."""

from __future__ import annotations

import json
import os
import resource
import runpy
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from compiler.torch_api.repro_programs import bisect_compiler, forget_compiled, without_builds


def main() -> None:
    """Answer each line of stdin, on the descriptor that stdout was; what the programs print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _limit_memory(int(sys.argv[1]))
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"run": _run, "bisect": _bisect, "passes": _passes}[asked["what"]](asked)
        except BaseException as error:  # noqa: BLE001 - a program may raise anything; the answer says what
            answer = {"shown": [], "detail": f"{type(error).__name__}: {error}"[:2000]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _limit_memory(most: int) -> None:
    import torch

    if most and not torch.cuda.is_available():  # CUDA reserves address space for all memory of the machine
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _run(asked: dict[str, Any]) -> dict[str, Any]:
    """Run a repro file's `show`. With `guarded`, whatever would change something outside the process is refused.

    Without `builds`, Inductor only writes its code.
    """
    from compiler.xray.outside import inside_the_process

    forget_compiled()
    with (
        inside_the_process() if asked["guarded"] else nullcontext(),
        nullcontext() if asked["builds"] else without_builds(),
    ):
        shown, detail = _show(asked["path"], asked["compile"])
    return {"shown": shown, "detail": detail[:2000]}


def _show(path: str, arguments: dict[str, Any] | None = None) -> tuple[list[str], str]:
    program = runpy.run_path(path, run_name="repro")
    show: Callable[[], tuple[list[str], str]] = program["show"]
    if arguments is not None:
        program["COMPILE"].clear()
        program["COMPILE"].update(arguments)
    return show()


def _bisect(asked: dict[str, Any]) -> dict[str, Any]:
    """Torch's own bisector over backends, passes and lowerings."""

    def is_right() -> bool:
        forget_compiled()
        return asked["shows"] not in _show(asked["path"], {})[0]

    return {"shown": [], "detail": bisect_compiler(is_right)}


def _passes(asked: dict[str, Any]) -> dict[str, Any]:
    """The first pass of our backend whose result differs."""
    from compiler.backend.inspect.inspection import open as inspect_call

    fn, args, kwargs = runpy.run_path(asked["path"], run_name="repro")["make_call"]()
    return {"shown": [], "detail": inspect_call(fn, *args, **kwargs).check().verdict}


if __name__ == "__main__":
    main()
