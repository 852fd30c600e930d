"""max-autotune for a GPU that is not here: the kernels that Inductor would time for a product or a convolution, each
with its source, and the one that is shown.

Candidates come from Inductor's own heuristics for that GPU (torch._inductor.template_heuristics). Nothing can be timed,
so they are ranked by rule: Triton templates in Inductor's order, then what else it writes itself, then ATen.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch._inductor.config as inductor_config
import torch._inductor.select_algorithm as select_algorithm
import torch._inductor.template_heuristics.registry as registry
from torch._inductor.codecache import PyCodeCache
from torch._inductor.ir import MultiTemplateBuffer
from torch._inductor.select_algorithm import (
    AlgorithmSelectorCache,
    ExternKernelCaller,
    GeneratedCodeCache,
    TritonTemplate,
    TritonTemplateCaller,
)
from torch._inductor.virtualized import V

from compiler.targets import Target
from compiler.torch_api.patching import replaced
from compiler.torch_api.virtual import DEVICE, HIP_VERSION

MULTIPROCESSORS_FOR_TEMPLATES = 68
"""torch._inductor.utils.is_big_gpu: with fewer, Inductor leaves products to ATen (NVIDIA)."""

_SETTING = re.compile(r"(\w+)=('[^']*'|[^,]+)")
_NUMBER = re.compile(r"_\d+$")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One kernel for an operation. `config` are a template's constants, `source` its Triton code; "" for ATen."""

    name: str
    kind: str
    config: dict[str, str]
    source: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """What Inductor would choose from for the FX node `node`; `shown` is the place of the one that is shown."""

    node: str
    operation: str
    sizes: str
    candidates: tuple[Candidate, ...]
    shown: int
    why: str


@dataclass(slots=True)
class _Open:
    """A selection that Inductor has yet to make: a buffer of several templates is settled when it is scheduled."""

    node: str
    operation: str
    sizes: str
    choices: list[Any]
    chosen: Any
    buffer: Any


class Templates:
    """Wrappers that make Inductor show the first Triton template, and collect what it would have timed."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.open: list[_Open] = []
        self.sources: dict[str, str] = {}

    def wrappers(self) -> list[tuple[Any, str, Callable[[Any], Any]]]:
        fresh_caches: list[tuple[Any, str, Callable[[Any], Any]]] = [
            (template, "_generated_code_cache", lambda _: GeneratedCodeCache())  # it does not know one GPU from another
            for template in TritonTemplate.all_templates.values()
        ]
        return [
            (AlgorithmSelectorCache, "__call__", self.wrap_selection),
            (AlgorithmSelectorCache, "make_precompile_fn", lambda _make: lambda *_args, **_kwargs: dict),
            (AlgorithmSelectorCache, "do_autotuning", lambda _time: _ranked),
            (MultiTemplateBuffer, "finalize_as_triton_caller", self.wrap_settling),
            (select_algorithm, "PyCodeCache", self.keeping_sources),
            (registry, "_TEMPLATE_HEURISTIC_REGISTRY", self.heuristics),
            (registry, "_HEURISTIC_CACHE", lambda _: {}),
            *fresh_caches,
        ]

    def heuristics(self, registered: dict[Any, Any]) -> dict[Any, Any]:
        """The heuristics that a torch built for the target's vendor registers when it is imported."""
        if _is_vendors_build(self.target):
            return registered
        with ExitStack() as stack:
            others = {key: made for key, made in registered.items() if key[1] != DEVICE.type}
            stack.enter_context(replaced(torch.version, "hip", lambda _: HIP_VERSION if _is_amd(self.target) else None))
            stack.enter_context(replaced(registry, "_TEMPLATE_HEURISTIC_REGISTRY", lambda _: others))
            for name in ("triton", "contiguous_mm"):
                _run_again(f"{registry.__package__}.{name}")
        return others

    def selections(self) -> list[Selection]:
        """The selections since the last time this was asked."""
        found = [self._settled(selection) for selection in self.open]
        self.open = []
        return found

    def wrap_selection(self, select: Callable[..., Any]) -> Callable[..., Any]:
        def selected(
            cache: Any, name: str, choices: list[Any], nodes: Any, layout: Any, *args: Any, **kwargs: Any
        ) -> Any:
            result = select(cache, name, choices, nodes, layout, *args, **kwargs)
            if inductor_config.max_autotune or inductor_config.max_autotune_gemm:
                for filtered in cache.preprocessing_fns:
                    choices = filtered(choices)
                self._heard(name, choices, nodes, layout, result)
            return result

        return selected

    def _heard(self, name: str, choices: list[Any], nodes: Sequence[Any], layout: Any, result: Any) -> None:
        box, chosen = result if isinstance(result, tuple) else (result, None)
        buffer = getattr(getattr(box, "data", None), "data", None)
        several = isinstance(buffer, MultiTemplateBuffer)
        if chosen is None and not several:
            chosen = min(choices, key=_rank)
        node = V.graph.current_node
        sizes = " by ".join(_size(operand.get_size()) for operand in nodes)
        sizes += f" in {str(layout.dtype).removeprefix('torch.')}"
        self.open.append(_Open(node.name, name, sizes, choices, chosen, buffer if several else None))

    def wrap_settling(self, settle: Callable[..., Any]) -> Callable[..., Any]:
        def settled(buffer: Any, caller: Any) -> Any:
            for selection in self.open:
                if selection.buffer is buffer:
                    selection.chosen = caller
            return settle(buffer, caller)

        return settled

    def keeping_sources(self, cache: type[PyCodeCache]) -> type[PyCodeCache]:
        """The code of a candidate is loaded to be timed; here it is kept as text: no file, no module."""
        sources = self.sources

        class Kept(cache):  # type: ignore[misc, valid-type]
            @classmethod
            def load(cls, source_code: str, extra: str = "", **_how: Any) -> Any:
                key = hashlib.sha256((extra + source_code).encode()).hexdigest()
                sources[key] = source_code
                return SimpleNamespace(__file__=key, key=key)

        return Kept

    def _settled(self, selection: _Open) -> Selection:
        """Where no template was settled on, Inductor took ATen's: the layouts of the templates don't fit."""
        order = sorted(selection.choices, key=_rank)
        chosen = selection.chosen or next(
            (choice for choice in order if isinstance(choice, ExternKernelCaller)), order[0]
        )
        candidates = tuple(self._candidate(choice) for choice in selection.choices)
        shown = next(place for place, choice in enumerate(selection.choices) if choice is chosen)
        return Selection(
            selection.node, selection.operation, selection.sizes, candidates, shown, self._why(candidates, shown)
        )

    def _candidate(self, choice: Any) -> Candidate:
        if isinstance(choice, ExternKernelCaller):
            return Candidate(choice.choice.call_name(), "aten", {})
        name = _NUMBER.sub("", choice.name)  # the number counts on through the process
        if isinstance(choice, TritonTemplateCaller):
            source = self.sources.get(str(choice.bmreq.module_path), "")
            return Candidate(name, "template", dict(_SETTING.findall(choice.description)), source)
        return Candidate(name, "decomposition", dict(_SETTING.findall(choice.description)))

    def _why(self, candidates: Sequence[Candidate], shown: int) -> str:
        few = self.target.multiprocessors < MULTIPROCESSORS_FOR_TEMPLATES and self.target.vendor == "nvidia"
        if few and all(candidate.kind == "aten" for candidate in candidates):
            return (
                f"{self.target.title} has {self.target.multiprocessors} multiprocessors, and Inductor considers its "
                f"templates from {MULTIPROCESSORS_FOR_TEMPLATES} on"
            )
        if len(candidates) == 1:
            return "Inductor has no other for it"
        if candidates[shown].kind == "template":
            return "nothing can be timed here: the first Triton template is shown, fused with what fits around it"
        if inductor_config.deterministic:
            return "a deterministic choice was asked for (torch._inductor.config.deterministic)"
        return "nothing can be timed here, and no Triton template fits: the first of the others is shown"


def settings(target: Target) -> dict[str, Any]:
    """What a torch built for the target's vendor sets otherwise: which kernels are candidates at all."""
    if _is_vendors_build(target):
        return {}
    convolutions = "ATEN,TRITON" if _is_amd(target) else "ATEN"
    found = {
        "max_autotune_conv_bwd_weight_backends": convolutions,
        "max_autotune_conv_bwd_input_backends": convolutions,
        "triton.num_decompose_k_splits": 0 if _is_amd(target) else 10,
    }
    known = inductor_config.get_config_copy()
    return {name: value for name, value in found.items() if name in known}  # torch 2.11 lacks the first two


def _is_amd(target: Target) -> bool:
    return target.vendor == "amd"


def _is_vendors_build(target: Target) -> bool:
    return (torch.version.hip is not None) == _is_amd(target)


def _run_again(module: str) -> None:
    """Run a module's code in a copy that nobody else sees."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.loader is None:
        raise ImportError(f"{module} is not where it was")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _ranked(
    _cache: Any, _name: str, _nodes: Any, _layout: Any, _generators: Any, _key: str, choices: Sequence[Any],
    *_args: Any, **_kwargs: Any,
) -> dict[Any, float]:  # fmt: skip
    """In the place of measured times, the places by rule; Inductor takes the least."""
    return {choice: float(place) for place, choice in enumerate(sorted(choices, key=_rank), 1)}


def _rank(choice: Any) -> int:
    return 0 if isinstance(choice, TritonTemplateCaller) else 2 if isinstance(choice, ExternKernelCaller) else 1


def _size(size: Sequence[Any]) -> str:
    return "×".join(map(str, size)) or "scalar"
