"""`tcompile.make_repro`: a repro of a run in this process. It imports torch only when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from explorer.entry.repro import ReproFile
    from explorer.run.run import Run

SECONDS = 180.0
"""How long a repro may be made smaller."""


def make_repro(
    run: Run, output: Path | str = "repro.py", asked: str = "", *, real_inputs: bool = False, seconds: float = SECONDS
) -> ReproFile:
    """Write the smallest file that shows a fault of a run again.

    >>> made = tcompile.make_repro(run, "repro.py", "break[0/0].0")

    `asked` is the id of a break, a finding of `diagnose`, a kernel or a graph; "" for the worst fault. Wrong numbers
    are found in a run with `check=True`. With `real_inputs`, the values are saved beside the file. Of a saved record
    that is trusted, the text of its graphs is executed. Raises ReproError if the fault can't be shown again; then
    nothing is written.
    """
    from explorer.entry.repro import write_repro

    return write_repro(run, output, asked, real_inputs=real_inputs, seconds=seconds)
