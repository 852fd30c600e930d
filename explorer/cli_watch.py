"""`tcompile watch`: explore a call again on each save of its files, and show what changed."""

from __future__ import annotations

import argparse
from typing import Any

from explorer.entry.file_call import add_code, add_command, add_options, parse_asked

_WATCH = """\
Explore a function or a model each time its file, or a local module that it imports, is saved, and show what changed
since the last time. It stops at the captured graph, which takes less than a second; --stages names other stages.

An error in the file is one message, and watching goes on. Ctrl-C ends it.

examples:
  tcompile watch model.py:model --input "randn(8, 64)"
  tcompile watch attention.py:attend --input "randn(2, 8, 64)" --stages kernels
"""


def add_watch(commands: Any) -> None:
    """Add the command to the parser."""
    command = add_command(
        commands, "watch", _WATCH, _watch, help="explore a function or model again on each save, and show what changed"
    )
    add_code(command)
    add_options(command)


def _watch(args: argparse.Namespace) -> None:
    from explorer.entry.watch import Watch, with_stage

    Watch(args, with_stage(parse_asked(args))).run()
