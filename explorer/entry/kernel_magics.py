"""The kernel lab: `%tkernel RUN KERNEL` puts a kernel in a cell, `%%tkernel` compiles and checks the edited kernel.

The cell's first line is the magic. In the compiled source an empty line replaces it (Inductor's sources also begin with
an empty line), so that line numbers in errors are those of the cell.
"""
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.display import display
from IPython.utils.process import arg_split  # type: ignore[attr-defined]

from compiler.record import UntrustedError
from compiler.record.plain_text import did_you_mean
from compiler.targets import UnknownTargetError, target
from explorer.kernel_lab.cell import NoSuchKernelError, cell_text, find
from explorer.kernel_lab.trial import try_edit
from explorer.run.run import Run

_BLOCKS = (
    "XBLOCK", "YBLOCK", "ZBLOCK", "R0_BLOCK", "R1_BLOCK", "RBLOCK", "MBLOCK", "NBLOCK", "KBLOCK", "num_warps",
    "num_stages",
)  # fmt: skip
"""All parameters of kernel configurations, both Inductor's and ours."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(f"%%tkernel: {message}; it is written %%tkernel RUN KERNEL, options after")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="%%tkernel", add_help=False, allow_abbrev=False)
    parser.add_argument("run")
    parser.add_argument("kernel")
    parser.add_argument("--target", default="")
    parser.add_argument("--config", type=int, default=0)
    parser.add_argument("-o", "--output", default="_tk")
    parser.add_argument("--no-check", action="store_true")
    for name in _BLOCKS:
        parser.add_argument(f"--{name}", *([f"--{name.replace('_', '-')}"] if name.islower() else []), type=int)
    return parser


@magics_class
class KernelMagics(Magics):
    """The magics `%tkernel` and `%%tkernel`."""

    shell: Any

    @no_var_expand
    @line_cell_magic
    def tkernel(self, line: str, cell: str | None = None) -> None:
        """Put a kernel in a new cell to edit (`%tkernel`), or compile the edited kernel (`%%tkernel`).

        RUN is a variable with the result of an exploration. KERNEL is a kernel's name or a part of it; the kernel is in
        Triton, or in C++ of our own backend. `%%tkernel` shows the facts and times of the edited kernel beside the
        original's:

        %%tkernel RUN KERNEL [--target GPU] [--config N] [--XBLOCK N] [--num-warps N] [--no-check] [-o NAME]

        Results are checked on the exploration's real inputs (random ones if the run was loaded), on the GPU if there is
        one, else in Triton's interpreter. Both kernels are timed if there is a GPU, or if they are in C++. `--config`
        selects one of the autotuning candidates; block sizes and `--num-warps` define your own configuration. The
        result is kept under NAME (`_tk`).
        """
        words = [word.strip("\"'") for word in arg_split(line)]
        if cell is None:
            self._open(words)
        else:
            self._try(_parser().parse_args(words), cell)

    def _open(self, words: Sequence[str]) -> None:
        if len(words) != 2:
            raise UsageError("%tkernel takes a run and a kernel: %tkernel _tc triton_poi_fused_0")
        try:
            self.shell.set_next_input(cell_text(self._run(words[0]).record, words[1], words[0]))
        except NoSuchKernelError as error:
            raise UsageError(str(error)) from None

    def _try(self, args: argparse.Namespace, cell: str) -> None:
        run = self._run(args.run)
        try:
            kernel = find(run.record, args.kernel)
        except NoSuchKernelError as error:
            raise UsageError(str(error)) from None
        chosen = {name: getattr(args, name) for name in _BLOCKS if getattr(args, name) is not None}
        try:
            trial = try_edit(
                run, kernel, "\n" + cell, _target(args.target), args.config, chosen, check=not args.no_check
            )
        except UntrustedError as error:
            raise UsageError(str(error)) from None
        self.shell.push({args.output: trial})
        display(trial)

    def _run(self, name: str) -> Run:
        value = self.shell.user_ns.get(name)
        if isinstance(value, Run):
            return value
        runs = [known for known, held in self.shell.user_ns.items() if isinstance(held, Run)]
        there = f"; there are: {', '.join(runs)}" if runs else "; explore something first"
        raise UsageError(f"{name} is no result of %%tcompile{did_you_mean(name, runs) or there}")


def _target(name: str) -> str:
    try:
        return target(name).name if name else ""
    except UnknownTargetError as error:
        raise UsageError(f"--target {name}: {error}") from None
