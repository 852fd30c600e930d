"""Inductor's generated code heard as text: which kernels it defines, and what one call of it calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch._inductor.graph import GraphLowering

from compiler.torch_api.patching import replaced

_DEFINED = re.compile(r"^(\w+) = async_compile\.", re.MULTILINE)
_LIBRARY = re.compile(
    r"^[ \t]+(?:\w+(?:\[\d+\])? = )?(?:extern_kernels\.|torch\.ops\.(?!inductor|_inductor)|aten\.)", re.MULTILINE
)


@contextmanager
def hearing_code(heard: Callable[[str], None]) -> Iterator[None]:
    """`heard` is told the code of each graph that Inductor generates in the block."""

    def wrap(generate: Callable[..., Any]) -> Callable[..., Any]:
        def told(lowering: GraphLowering) -> Any:
            result = generate(lowering)
            heard(result[0].value)
            return result

        return told

    with replaced(GraphLowering, "codegen", wrap):
        yield


def kernels(code: str) -> int:
    """How many kernels a graph's code defines."""
    return len(set(_DEFINED.findall(code)))


def calls(code: str) -> int:
    """How many kernels and library routines one call of a graph's code runs, counted in its text."""
    defined = set(_DEFINED.findall(code))
    generated = sum(len(re.findall(rf"^[ \t]+{name}(?:\.run)?\(", code, re.MULTILINE)) for name in defined)
    return generated + len(_LIBRARY.findall(code))
