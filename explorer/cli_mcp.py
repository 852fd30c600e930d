"""`tcompile mcp`: a server of the Model Context Protocol on standard input and output, for coding agents."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from explorer.agent_server.child import Commands, Limits, parse_size, parse_time
from explorer.agent_server.workspace import Workspace
from explorer.entry.file_call import UsageError, add_command

_MCP = """\
Serve tools for coding agents on standard input and output (Model Context Protocol): explore, xray, diagnose, check,
show, load_log, compare, kernel_source, try_kernel, apply_edit, save.

Only files below the folder are named in tools, and nothing in it is changed without --write: edits go to copies. Each
command runs in a child process with limits. They bound accidents and are no sandbox: the program that is explored may
do whatever you may. Do not serve a program that you would not run.

example, for an agent that is configured by a command:
  tcompile mcp --folder . --timeout 5min --memory 8GiB
"""


def add_mcp(commands: Any) -> None:
    """Add the command to the parser."""
    command = add_command(
        commands, "mcp", _MCP, _mcp, help="serve tools for coding agents (MCP, on standard input and output)"
    )
    command.add_argument("--folder", type=Path, default=Path(), metavar="PATH", help="where the program is (here)")
    command.add_argument("--write", action="store_true", help="allow tools to change files in the folder")
    command.add_argument(
        "--timeout", type=_checked_type(parse_time), default=Limits.seconds, metavar="TIME",
        help=f"how long one command may run: 90s, 5min ({Limits.seconds:g}s)",
    )  # fmt: skip
    command.add_argument(
        "--memory", type=_checked_type(parse_size), default=Limits.bytes, metavar="SIZE",
        help=f"resident memory of one command: 500MB, 8GiB ({Limits.bytes // 2**30}GiB)",
    )  # fmt: skip


def _checked_type(parse: Any) -> Any:
    """An argparse type that says what is wrong with a value."""

    def parse_value(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_value


def _mcp(args: argparse.Namespace) -> None:
    if os.name != "posix":
        raise UsageError("tcompile mcp needs Linux, macOS or WSL: it ends the processes of a command by their group")
    try:
        from explorer.agent_server.server import serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "mcp":
            raise
        raise UsageError('tcompile mcp needs the package mcp (2.3 or newer): pip install "tcompile[mcp]"') from None
    if not args.folder.is_dir():
        raise UsageError(f"there is no folder {str(args.folder)!r}")
    serve(Workspace(args.folder, can_write=args.write), Commands(Limits(args.timeout, args.memory)))
