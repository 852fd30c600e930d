"""Triton's passes and layouts by its private module: the runs of pass managers, and linear layouts of values.

Imported in processes that compile, so it imports torch neither directly nor through others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from triton._C.libtriton import gluon_ir, ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend


@contextmanager
def watch_passes(before: Callable[[], None], after: Callable[[str, str], None]) -> Iterator[None]:
    """Let MLIR print the code before each pass in the block.

    `before` is called before the passes of a stage run, and `after` with the stage's name and the code that they left,
    "" if one failed.
    """
    run = ir.pass_manager.run

    def run_watched(manager: Any, module: Any, *name: str) -> None:
        code = ""
        before()
        try:
            run(manager, module, *name)
            code = str(module)
        finally:
            after((name[0] if name else "").removeprefix("make_"), code)

    os.environ["MLIR_ENABLE_DUMP"] = "1"
    ir.pass_manager.run = run_watched
    try:
        yield
    finally:
        ir.pass_manager.run = run
        del os.environ["MLIR_ENABLE_DUMP"]


class LayoutReader:
    """Reads layouts of TTGIR files for one GPU. Triton ends the process on a shape that it does not expect."""

    def __init__(self, target: GPUTarget) -> None:
        self._context = ir.context()  # the builder does not keep it alive
        ir.load_dialects(self._context)
        make_backend(target).load_dialects(self._context)
        self._builder = gluon_ir.GluonOpBuilder(self._context)

    def values(self, ttgir: Path) -> dict[str, list[Any]]:
        """The values of a file by their type, for types with a layout, in order."""
        module = ir.parse_mlir_module(str(ttgir), self._context)
        found: dict[str, list[Any]] = {}

        def see(operation: Any) -> None:
            for index in range(operation.get_num_results()):
                value = operation.get_result(index)
                if "#" in (kind := str(value.get_type())):
                    found.setdefault(kind, []).append(value)

        module.walk(see)
        self._module = module
        return found

    def layout(self, value: Any) -> Any:
        """The layout of a value, as one of Gluon's classes. Raises TypeError or ValueError if Gluon has none."""
        of_tensor = str(value.get_type()).startswith("tensor<")
        read = self._builder.get_gluon_layout_from_tensor if of_tensor else self._builder.get_gluon_layout_from_memdesc
        return read(value)

    def linear(self, layout: Any, shape: list[int]) -> Any:
        """The linear layout of one of Gluon's layouts, for a shape of powers of two."""
        return self._builder.to_linear_layout(layout._to_ir(self._builder), shape)


def draws_layouts() -> bool:
    """Whether this Triton draws layouts by itself, for comparison."""
    return hasattr(gluon_ir, "get_layout_view")
