"""What a value on Python's stack at a graph break is called: the local that the code stores it to next."""

from __future__ import annotations

import dis
import re
from types import CodeType

from compiler.torch_api.dynamo import RESUME_PREFIX

_ENTRY = re.compile(r"L\['(___stack\d+)'\]")


def stack_names(code: CodeType) -> dict[str, str]:
    """The local that the value on top of the stack is stored to first, by torch's name for it (`___stack0`).

    A resume function loads the stack's entries, and jumps to the instruction after the one that broke the graph.
    """
    if not code.co_name.startswith(RESUME_PREFIX):
        return {}
    top = ""
    listing = list(dis.get_instructions(code))
    for instruction in listing:
        if str(instruction.argval).startswith("___stack") and instruction.opname.startswith("LOAD_FAST"):
            top = str(instruction.argval)
        if instruction.opname.startswith("JUMP"):
            after = next((each for each in listing if each.offset == instruction.argval), None)
            return {top: _stored(after)} if top and after is not None and _stored(after) else {}
    return {}


def _stored(instruction: dis.Instruction) -> str:
    """The local that an instruction stores the top of the stack to, "" if it does something else."""
    if not instruction.opname.startswith("STORE_FAST"):
        return ""
    first = instruction.argval[0] if isinstance(instruction.argval, tuple) else instruction.argval
    return str(first)


def with_names(text: str, names: dict[str, str]) -> str:
    """A guard's source or code with the locals' names in place of torch's."""
    return _ENTRY.sub(lambda entry: f"L['{names.get(entry[1], entry[1])}']", text)
