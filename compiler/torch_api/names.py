"""The private names of torch and triton in use: a test lists the names that a new release lacks.

Most are read from the code of this folder: imports, attributes of modules, and replaced attributes, which are written
as an owner followed by a name. `OTHERS` lists the rest.
"""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

import torch

OTHERS: dict[str, str] = {
    "torch._C._autograd.SavedTensor": "data unpack_hook",
    "torch._C._dynamo.guards.RootGuardManager": "check",
    "torch._C.DispatchKeySet": "raw_repr",
    "torch._C._VariableFunctions": "addmm",
    "torch._dynamo.callback.CompilationCallbackHandler": "clear register_end_callback",
    "torch._dynamo.config": "accumulated_recompile_limit recompile_limit",
    "torch._dynamo.device_interface.CudaInterface.Worker": "get_device_properties",
    "torch._dynamo.guards.CheckFunctionManager": "invalidate",
    "torch._dynamo.output_graph.OutputGraph": "current_tx",
    "torch._dynamo.utils.CleanupManager": "_remove_id",
    "torch._dynamo.variables.lazy.LazyVariableTracker": "is_realized",
    "torch._functorch._aot_autograd.graph_compile": "_log_fw_bw_graphs _log_inference_graph _log_joint_graph",
    "torch._functorch._aot_autograd.schemas.ViewAndMutationMeta": "tensors_saved_for_backwards_slice",
    "torch._inductor.config": "benchmark_fusion fx_graph_cache layout_optimization",
    "torch._inductor.config.test_configs": "autotune_choice_desc_regex",
    "torch._inductor.config.triton": "num_decompose_k_splits spill_threshold",
    "torch._inductor.dependencies.MemoryDep": "is_indirect",
    "torch._inductor.inductor_prims": "_low_memory_max_pool_offsets_to_indices _low_memory_max_pool_with_offsets "
    "randint random seed",
    "torch._inductor.ir.MultiOutputReduction": "store_reduction",
    "torch._inductor.ir.Scan": "store_reduction",
    "torch._inductor.ir.Scatter": "store_output",
    "torch._inductor.ir.Sort": "store_reduction",
    "torch._inductor.lowering": "fallbacks lowerings",
    "torch._inductor.runtime.triton_compat": "triton_key",
    "torch._inductor.runtime.triton_heuristics.CachingAutotuner": "_precompile_config",
    "torch._inductor.scheduler.BaseSchedulerNode": "get_read_write_buffer_accesses",
    "torch._inductor.scheduler.Scheduler": "score_fusion_memory should_partition",
    "torch._inductor.select_algorithm.PyCodeCache": "load",
    "torch._inductor.template_heuristics.contiguous_mm": "EmptyContiguousMMConfigHeuristics",
    "torch._inductor.template_heuristics.triton": "ROCmMMTemplateConfigHeuristic",
    "torch.autograd.forward_ad": "_current_level",
    "torch.fx._symbolic_trace": "CURRENT_PATCHER",
    "torch.fx.experimental.proxy_tensor": "_ProxyTensor get_proxy_slot maybe_handle_decomp proxy_call set_proxy_slot",
    "torch.fx.traceback": "annotate",
    "torch.library.Library": "_destroy",
}
"""Owner -> names of its attributes, separated by spaces."""


def missing_names() -> Iterator[str]:
    """The private names in use that the installed torch lacks, sorted."""
    files = (path for path in Path(__file__).parent.glob("*.py") if path.name != Path(__file__).name)
    used = {name for path in files for name in names_in(ast.parse(path.read_text()))}
    others = {f"{owner}.{name}" for owner, names in OTHERS.items() for name in names.split()}
    return (name for name in sorted(used | others) if not _exists(name))


def names_in(tree: ast.Module) -> Iterator[str]:
    """The private names that a file relies on, without names guarded by `hasattr` or `getattr`."""
    nodes = list(ast.walk(tree))
    modules, objects = _imports(nodes)
    reached = (_dotted_name(node, modules) for node in nodes if isinstance(getattr(node, "ctx", None), ast.Load))
    asked = {name for node in nodes if _is_question(node) for _, name in _named_attributes(node)}
    replaced = (f"{_dotted_name(owner, {**modules, **objects})}.{name}" for node in nodes if not _is_question(node)
                for owner, name in _named_attributes(node))  # fmt: skip
    patched = (f"{_dotted_name(node.func.value, modules)}.{keyword.arg}" for node in nodes if _is_patch(node)
               for keyword in node.keywords)  # fmt: skip
    for name in {*modules.values(), *objects.values(), *reached, *replaced, *patched}:
        if name.startswith(("torch.", "triton.")) and "._" in name and name.rpartition(".")[2] not in asked:
            yield name


def _imports(nodes: Sequence[ast.AST]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Imported modules and imported objects: name in the file -> dotted name."""
    modules, objects = {}, {}
    for node in nodes:
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            if isinstance(node, ast.ImportFrom):
                objects[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            else:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                modules[alias.asname or name] = name
    return modules, objects


def _dotted_name(node: ast.AST, known: Mapping[str, str]) -> str:
    """The dotted name of an expression that begins with a known name, "" for any other."""
    if isinstance(node, ast.Attribute) and (owner := _dotted_name(node.value, known)):
        return f"{owner}.{node.attr}"
    return known.get(node.id, "") if isinstance(node, ast.Name) else ""


def _named_attributes(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Owners and names of attributes written as `(owner, "name", …)`."""
    items = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.Tuple) else []
    for owner, name in pairwise(items):
        if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value.isidentifier():
            yield owner, name.value


def _is_question(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "getattr")


def _is_patch(node: ast.AST) -> TypeGuard[Any]:
    """Whether a node is a call like `config.patch(setting=…)`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "patch"


def _exists(name: str) -> bool:
    """Whether a module or attribute exists. In CPU-only builds, CUDA bindings are assumed to exist."""
    if name.startswith("torch._C._cuda_") and not torch.backends.cuda.is_built():
        return True
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True
