"""A compiled half of a graph that another function can stand for, as AOTAutograd calls it: with a list, "boxed"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._functorch._aot_autograd.utils import make_boxed_func

Boxed = Callable[[list[Any]], Any]


class Replaceable:
    """Calls `run`, which takes a list of arguments and may empty it; or `instead`, where that is set, just so."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._boxed_call = True  # torch's wrappers copy what is in `__dict__`
        self._run: Boxed = run if getattr(run, "_boxed_call", False) else make_boxed_func(run)
        self.instead: Boxed | None = None

    def __call__(self, arguments: list[Any]) -> Any:
        return self._run(arguments) if self.instead is None else self.instead(arguments)
