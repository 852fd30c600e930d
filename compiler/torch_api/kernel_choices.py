"""Attributes of Inductor's autotuning (torch._inductor.select_algorithm), which chooses an operation's kernel."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch._inductor.autotune_process as autotune_process
import torch._inductor.codegen.cuda.compile_utils as cuda_compile
import torch._inductor.config as inductor_config
import torch._inductor.select_algorithm as select_algorithm
import torch._inductor.template_heuristics.registry as registry
from torch._inductor.codegen.cutlass.kernel import CUTLASSTemplateCaller
from torch._inductor.ir import MultiTemplateBuffer
from torch._inductor.select_algorithm import (
    AlgorithmSelectorCache,
    ExternKernelCaller,
    GeneratedCodeCache,
    TritonTemplate,
    TritonTemplateCaller,
)
from torch._inductor.virtualized import V

from compiler.torch_api.gpu_questions import Place

SELECT = Place(AlgorithmSelectorCache, "__call__")
PRECOMPILE = Place(AlgorithmSelectorCache, "make_precompile_fn")
AUTOTUNE = Place(AlgorithmSelectorCache, "do_autotuning")
SETTLE = Place(MultiTemplateBuffer, "finalize_as_triton_caller")
CODE_LOADER = Place(select_algorithm, "PyCodeCache")
CUTLASS_WORKSPACE = Place(autotune_process.CUTLASSBenchmarkRequest, "update_workspace_size")
CUTLASS_LIBRARIES = Place(cuda_compile, "_cuda_lib_options")
# Since torch 2.15 one registry, in a separate module, holds the heuristics of templates and of generated code.
_registry = importlib.import_module(registry.get_template_heuristic.__module__)
_ONE_REGISTRY = "_HEURISTIC_REGISTRY"
HEURISTICS = Place(_registry, _ONE_REGISTRY if hasattr(_registry, _ONE_REGISTRY) else "_TEMPLATE_HEURISTIC_REGISTRY")
HEURISTIC_CACHE = Place(_registry, "_HEURISTIC_CACHE")

new_code_cache = GeneratedCodeCache


@dataclass(frozen=True, slots=True)
class Candidate:
    """One autotuning candidate: `config` has a template's constants, `source` its Triton code ("" for ATen)."""

    name: str
    kind: str
    config: dict[str, str]
    source: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """Inductor's autotuning candidates for one operation, the FX node `node`.

    `shown` is the index of the displayed candidate. `why` is the reason for this candidate.
    """

    node: str
    operation: str
    sizes: str
    candidates: tuple[Candidate, ...]
    shown: int
    why: str


def code_caches() -> Iterator[Place]:
    """The generated-code cache of each Triton template."""
    return (Place(template, "_generated_code_cache") for template in TritonTemplate.all_templates.values())


def kind_of(choice: Any) -> Literal["template", "decomposition", "aten"]:
    """The kind of a candidate: a Triton template, an ATen kernel, or ("decomposition") other generated code."""
    if isinstance(choice, TritonTemplateCaller):
        return "template"
    return "aten" if isinstance(choice, ExternKernelCaller) else "decomposition"


def cutlass_operation(choice: Any) -> str:
    """CUTLASS's name of the operation that a candidate is made from; "" for any other candidate."""
    return str(choice.description).partition(" ")[0] if isinstance(choice, CUTLASSTemplateCaller) else ""


def is_undecided(buffer: Any) -> bool:
    """Whether the scheduler still has to choose a buffer's kernel."""
    return isinstance(buffer, MultiTemplateBuffer)


def current_node() -> Any:
    """The FX node that Inductor is lowering."""
    return V.graph.current_node


def is_autotuning() -> bool:
    """Whether max-autotune is on, for all operations or for matmuls."""
    return bool(inductor_config.max_autotune or inductor_config.max_autotune_gemm)


def is_deterministic() -> bool:
    """Whether torch._inductor.config.deterministic is set, which makes the same choices in every run."""
    return bool(inductor_config.deterministic)


def known_settings() -> dict[str, Any]:
    """Inductor's config in this torch version: name -> value."""
    return inductor_config.get_config_copy()


def fusion_benchmarks() -> tuple[str, str]:
    """Names of the settings that make Inductor benchmark fusions.

    Torch 2.15 renamed the second, and warns about its old name.
    """
    templates = "benchmark_template_fusion"
    return "benchmark_fusion", templates if templates in known_settings() else "benchmark_epilogue_fusion"


def register_heuristics_again() -> None:
    """Register the template heuristics again, by executing private copies of the modules that define them."""
    for name in ("triton", "contiguous_mm"):
        module = f"{registry.__package__}.{name}"
        spec = importlib.util.find_spec(module)
        if spec is None or spec.loader is None:
            raise ImportError(f"{module} is not where it was")
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
