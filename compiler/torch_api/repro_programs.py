"""What repro programs need of torch's private names: a graph's imports, and text that asks torch what it did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from io import StringIO
from typing import Any

import torch
import torch._inductor.compile_fx as compile_fx
import torch._inductor.config as inductor_config
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._inductor.compiler_bisector import CompilerBisector
from torch._inductor.graph import GraphLowering
from torch.fx import GraphModule
from torch.fx.graph_module import _format_import_block
from torch.package.importer import sys_importer

from compiler.torch_api.inductor import generate_only
from compiler.torch_api.patching import Function, Wrapper, call_instead, replace_attributes

FIND_BREAKS = '''
def show():
    """The first line of torch's account of each graph break, also of one before the first operation."""
    counted = torch._dynamo.utils.counters["graph_break"]
    counted.clear()
    fn, args, kwargs = make_call()
    explained = [reason.reason for reason in torch._dynamo.explain(fn)(*args, **kwargs).break_reasons]
    firsts = [(reason.splitlines() or ["?"])[0].strip() for reason in [*counted, *explained]]
    lines = ["graph break: " + first for first in dict.fromkeys(firsts)]
    return lines, "; ".join(lines)
'''
NAME_KERNELS = '''
def show():
    """The kernels that Inductor writes, by their names without numbers."""
    import re

    from torch._inductor.utils import run_and_get_code

    fn, args, kwargs = make_call()
    compiled = torch.compile(fn, **COMPILE)
    _, code = run_and_get_code(compiled, *args, **kwargs)
    kinds = r"(?:triton|cpp)_[a-z_0-9]*fused_\\w+|extern_kernels\\.\\w+|(?<=torch\\.ops\\.)\\w+\\.\\w+\\.\\w+(?=\\()"
    names = re.findall(kinds, "\\n".join(code))
    kernels = list(dict.fromkeys("kernel " + re.sub(r"_\\d+$", "", name) for name in names))
    return kernels, "\\n".join(code)
'''
USE_EAGERS_DRAWS = (
    "torch._inductor.config.fallback_random = True  # Inductor draws the random numbers that eager draws\n"
)


def code_of(module: GraphModule) -> tuple[str, str]:
    """The imports that a graph's `forward` needs, and its text."""
    code = module.graph.python_code("self")
    return _format_import_block(code.globals, sys_importer), code.src


def bisect_compiler(is_right: Callable[[], bool]) -> str:
    """Which backend, subsystem and step of torch.compile makes a call wrong, by torch's own bisector; "" for none.

    `is_right` compiles and calls; it must name no backend.
    """
    with redirect_stdout(StringIO()):
        found = CompilerBisector.do_bisect(is_right)
    if found is None:
        return ""
    step = f", step {found.bisect_number}" if found.bisect_number is not None else ""
    what = f": {' '.join(str(found.debug_info).split())[:200]}" if found.debug_info else ""
    return f"{found.backend}{f', {found.subsystem}' if found.subsystem else ''}{step}{what}"


@contextmanager
def without_builds() -> Iterator[None]:
    """Let Inductor write its code in the block without a build; graphs run as they are, in eager mode."""
    wrappers: list[Wrapper] = [
        (compile_fx, "compile_fx", call_instead(_compile_without_build)),
        (GraphLowering, "compile_to_module", lambda _: generate_only),
    ]
    with inductor_config.patch(force_disable_caches=True), replace_attributes(wrappers):
        yield


def _compile_without_build(
    run: Function,
    module: GraphModule,
    inputs: Sequence[Any],
    inner_compile: Function | None = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    return run(module, inputs, partial(_write_code, inner_compile or compile_fx.compile_fx_inner), *args, **kwargs)


def _write_code(compile_inner: Function, module: GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
    compile_inner(module, inputs, **kwargs)
    return make_boxed_func(module.forward)


def forget_compiled() -> None:
    """Forget everything that was compiled in this process."""
    torch._dynamo.reset()
