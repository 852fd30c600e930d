"""max-autotune for a virtual GPU: Inductor's autotuning candidates, and the candidate to display.

Candidates for a matmul or convolution, with their sources, come from Inductor's own heuristics for that GPU
(torch._inductor.template_heuristics). Nothing can be timed, so they are ranked by rule: Triton templates in Inductor's
order, then other generated code, then ATen.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from compiler.targets import Target
from compiler.torch_api import kernel_choices as choosing
from compiler.torch_api.fx import dtype_name
from compiler.torch_api.kernel_choices import Candidate, Selection, kind_of
from compiler.torch_api.patching import Function, Wrapper, call_instead, replace_attributes
from compiler.virtual_gpu.gpu import DEVICE, HIP_VERSION
from compiler.virtual_gpu.retargeting import OnChoice, Retargeting

MULTIPROCESSORS_FOR_TEMPLATES = 68
"""On NVIDIA GPUs with fewer, Inductor leaves matmuls to ATen (torch._inductor.utils.is_big_gpu)."""

_SETTING = re.compile(r"(\w+)=('[^']*'|[^,]+)")
_NUMBER = re.compile(r"_\d+$")


@dataclass(slots=True)
class _Open:
    """A selection in progress. If it has a `buffer`, the scheduler chooses among several templates later."""

    node: str
    operation: str
    sizes: str
    choices: list[Any]
    chosen: Any
    buffer: Any


class Templates:
    """Makes Inductor choose the first Triton template, and collects its autotuning candidates."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.open: list[_Open] = []
        self.sources: dict[str, str] = {}

    def wrappers(self) -> list[Wrapper]:
        return [
            (*choosing.SELECT, call_instead(self.observe_selection)),
            (*choosing.PRECOMPILE, lambda _make: lambda *_args, **_kwargs: dict),
            (*choosing.AUTOTUNE, lambda _time: _rank_all),
            (*choosing.SETTLE, call_instead(self.observe_settling)),
            (*choosing.CODE_LOADER, self.keeping_sources),
            # CUTLASS: without these, Inductor would compile each candidate with nvcc to ask for its workspace's size.
            (*choosing.CUTLASS_WORKSPACE, lambda _ask: lambda _request: None),
            (*choosing.CUTLASS_LIBRARIES, lambda _find: list),
            (*choosing.HEURISTICS, self.heuristics),
            (*choosing.HEURISTIC_CACHE, lambda _: {}),
            # The caches are not keyed by GPU.
            *((*place, lambda _: choosing.new_code_cache()) for place in choosing.code_caches()),
        ]

    def heuristics(self, registered: dict[Any, Any]) -> dict[Any, Any]:
        """The heuristics that a torch build for the target's vendor registers on import."""
        if _is_vendors_build(self.target):
            return registered
        others = {key: made for key, made in registered.items() if key[1] != DEVICE.type}
        hip = HIP_VERSION if _is_amd(self.target) else None
        with replace_attributes([(torch.version, "hip", lambda _: hip), (*choosing.HEURISTICS, lambda _: others)]):
            choosing.register_heuristics_again()
        return others

    def selections(self) -> list[Selection]:
        """Return the selections made since the last call, and forget them."""
        done, self.open = self.open, []
        return list(map(self._finish, done))

    def observe_selection(
        self, select: Function, cache: Any, name: str, choices: list[Any], nodes: Any, layout: Any, *args: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        result = select(cache, name, choices, nodes, layout, *args, **kwargs)
        if choosing.is_autotuning():
            for filtered in cache.preprocessing_fns:
                choices = filtered(choices)
            self._note_selection(name, choices, nodes, layout, result)
        return result

    def _note_selection(self, name: str, choices: list[Any], nodes: Sequence[Any], layout: Any, result: Any) -> None:
        box, chosen = result if isinstance(result, tuple) else (result, None)
        buffer = getattr(getattr(box, "data", None), "data", None)
        several = choosing.is_undecided(buffer)
        if chosen is None and not several:
            chosen = min(choices, key=_rank)
        node = choosing.current_node()
        sizes = " by ".join(_size(operand.get_size()) for operand in nodes)
        sizes += f" in {dtype_name(layout.dtype)}"
        self.open.append(_Open(node.name, name, sizes, choices, chosen, buffer if several else None))

    def observe_settling(self, settle: Function, buffer: Any, caller: Any) -> Any:
        for selection in self.open:
            if selection.buffer is buffer:
                selection.chosen = caller
        return settle(buffer, caller)

    def keeping_sources(self, cache: type[Any]) -> type[Any]:
        """A subclass of a code cache that keeps code as text. Inductor would load the code only to time it."""
        sources = self.sources

        class Kept(cache):  # type: ignore[misc]
            @classmethod
            def load(cls, source_code: str, extra: str = "", **_how: Any) -> Any:
                key = hashlib.sha256((extra + source_code).encode()).hexdigest()
                sources[key] = source_code
                return SimpleNamespace(__file__=key, key=key)

        return Kept

    def _finish(self, selection: _Open) -> Selection:
        """Finish a selection. If Inductor chose nothing, as no template's layout fits, ATen is chosen."""
        order = sorted(selection.choices, key=_rank)
        chosen = selection.chosen or next((choice for choice in order if kind_of(choice) == "aten"), order[0])
        candidates = tuple(self._candidate(choice) for choice in selection.choices)
        shown = next(place for place, choice in enumerate(selection.choices) if choice is chosen)
        return Selection(
            selection.node, selection.operation, selection.sizes, candidates, shown, self._reason(candidates, shown)
        )

    def _candidate(self, choice: Any) -> Candidate:
        if kind_of(choice) == "aten":
            return Candidate(choice.choice.call_name(), "aten", {})
        kind = kind_of(choice)
        # The number at a name's end increases throughout the process. A CUTLASS kernel's name is a hash.
        name = choosing.cutlass_operation(choice) or _NUMBER.sub("", choice.name)
        source = self.sources.get(str(choice.bmreq.module_path), "") if kind == "template" else ""
        return Candidate(name, kind, dict(_SETTING.findall(choice.description)), source)

    def _reason(self, candidates: Sequence[Candidate], shown: int) -> str:
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
        if choosing.is_deterministic():
            return "a deterministic choice was asked for (torch._inductor.config.deterministic)"
        return "nothing can be timed here, and no Triton template fits: the first of the others is shown"


class InductorRetargeting(Retargeting):
    """Retargets Inductor, including its settings and its max-autotune candidates."""

    def __init__(self, target: Target, on_choice: OnChoice) -> None:
        super().__init__(target, on_choice)
        self.templates = Templates(target)
        self.selections = self.templates.selections

    def wrappers(self) -> list[Wrapper]:
        return super().wrappers() + self.templates.wrappers()

    def settings(self) -> dict[str, Any]:
        """Inductor settings for the target.

        Benchmarking is off, as nothing can be timed. The other defaults depend on the vendor of the torch build.
        """
        settings: dict[str, Any] = dict.fromkeys(choosing.fusion_benchmarks(), False)
        if _is_vendors_build(self.target):
            return settings
        amd = _is_amd(self.target)
        convolutions = "ATEN,TRITON" if amd else "ATEN"
        settings |= {
            "layout_optimization": not amd,
            "triton.spill_threshold": 32 if amd else 16,
            "max_autotune_conv_bwd_weight_backends": convolutions,
            "max_autotune_conv_bwd_input_backends": convolutions,
            "triton.num_decompose_k_splits": 0 if amd else 10,
        }
        known = choosing.known_settings()
        return {name: value for name, value in settings.items() if name in known}  # torch 2.11 lacks two of them


def _is_amd(target: Target) -> bool:
    return target.vendor == "amd"


def _is_vendors_build(target: Target) -> bool:
    return (torch.version.hip is not None) == _is_amd(target)


def _rank_all(
    _cache: Any, _name: str, _nodes: Any, _layout: Any, _generators: Any, _key: str, choices: Sequence[Any],
    *_args: Any, **_kwargs: Any,
) -> dict[Any, float]:  # fmt: skip
    """Return ranks instead of measured times; Inductor takes the minimum."""
    return {choice: float(place) for place, choice in enumerate(sorted(choices, key=_rank), 1)}


def _rank(choice: Any) -> int:
    return ("template", "decomposition", "aten").index(kind_of(choice))


def _size(size: Sequence[Any]) -> str:
    return "×".join(map(str, size)) or "scalar"
