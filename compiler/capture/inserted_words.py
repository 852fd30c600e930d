"""What TorchDynamo's own names in rewritten bytecode stand for, in plain words."""

from __future__ import annotations

import re
from collections.abc import Mapping

INSTALLED = re.compile(r"__(compiled_fn|resume_at|builtins_dict|import)_")
_ROLES: Mapping[str, str] = {
    "compiled_fn": "the compiled graph `{}`",
    "resume_at": "the function `{}`, which goes on after the graph break",
    "builtins_dict": "Python's builtins, as they were when Dynamo read the function",
    "import": "the module `{}`, under a name of Dynamo's own",
}


def installed(name: str) -> str:
    """What a global is that Dynamo installed."""
    match = INSTALLED.match(name)
    kind = match[1] if match else ""
    shown = name.removeprefix("__import_").replace("_dot_", ".") if kind == "import" else name
    return _ROLES[kind].format(shown) if kind else shown


def called(callee: str, arguments: str) -> str:
    """What a call is for, "" where it is the user's own."""
    if callee.startswith("__compiled_fn_"):
        return f"call the compiled graph with {arguments or 'no inputs'}"
    if callee.startswith("__resume_at_"):
        return f"call the resume function `{callee}` with what it needs to go on"
    if callee.endswith("_create_nested_fn"):
        return "make the inner function again, around its cells"
    for ending, verb in (("enter", "starts"), ("exit", "ends")):
        if callee.endswith(f"record_pregraph_bytecode_{ending}"):
            return f"tell torch's profiler that the work before the graph {verb}"
    return ""
