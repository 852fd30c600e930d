"""Which modules of the explored call ran the code of each compilation, if they are compiled on their own.

Regional compilation calls `compile()` on each of several equal modules: they share one code object, and so its
compilations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from compiler.calls.call import Call
from compiler.calls.kept_graphs import KeptFrame
from compiler.capture.guard_words import input_name
from compiler.record import Artifact, Problem
from compiler.record.builder import Builder
from compiler.record.plain_text import first_and_last
from compiler.torch_api.settings import is_compiled

COMPILED = "_orig_mod."
"""What torch.compile adds to the names of the parameters of a module that it wraps."""
_LOCAL = re.compile(r"L\['(\w+)'\]")
_INLINED = (
    "the call is compiled as a whole, so the code of {count} modules that your program compiles on their own ({names}) "
    "becomes part of its graph"
)
_APART = "each is seen on its own by %%tcompile on a cell that calls the model without torch.compile around the whole"


def add_regions(builder: Builder, kept: Mapping[str, KeptFrame], call: Call | None) -> None:
    """Add to each frame how often its first graph ran, and the paths of the modules that ran it, in order.

    Add a Problem if the explored call is compiled as a whole, but modules of it are to be compiled on their own.
    """
    if call is not None and (inner := _compiled_inside(call)):
        builder.problem(Problem("captured", _INLINED.format(count=len(inner), names=first_and_last(inner)), _APART))
    for frame, known in kept.items():
        captured = builder.artifacts.get(f"captured[{frame}]")
        if frame not in builder.frames or captured is None:
            continue
        names = {id(value): name for name, value in known.root.named_parameters()} if known.root is not None else {}
        found = (_module(names.get(key[1], ""), captured, key[0]) for key in known.calls if key is not None)
        modules = tuple(dict.fromkeys(path for path in found if path))
        builder.frames[frame] = replace(builder.frames[frame], calls=known.calls.total(), modules=modules)


def _module(parameter: str, captured: Artifact, place: int) -> str:
    """The path of the module that a graph was captured of, by the name of the parameter at a place of its inputs.

    For `layers.3.norm.weight`, which the graph has as `self.norm.weight`, it is `layers.3`. Empty if the graph's module
    is the explored one, or if it is not known.
    """
    inputs = [entity for entity in captured.entities if entity.kind == "placeholder"]
    source = inputs[place].attrs.get("source", "") if place < len(inputs) else ""
    owner = _LOCAL.match(source)
    own = input_name(source).removeprefix(f"{owner[1]}.") if owner else ""
    is_inside = bool(own) and parameter.endswith(f".{own}")
    return parameter.removeprefix(COMPILED).removesuffix(own).rstrip(".") if is_inside else ""


def _compiled_inside(call: Call) -> list[str]:
    """Paths of the modules of the call, below the called ones, that `Module.compile()` has been called of."""
    return [
        path
        for root in call.modules().values()
        for path, module in root.named_modules()
        if module is not root and is_compiled(module)
    ]
