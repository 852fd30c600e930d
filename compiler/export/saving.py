"""Ways to save a model that is compiled, each tried: saved to a file, loaded, called, and compared.

`torch.compile(model)` wraps: the model is its attribute `_orig_mod`, which is why the names in its `state_dict` begin
with that. `model.compile()` compiles in place, and changes no name. Neither puts compiled code into a file; what does
is `torch.export` with AOTInductor.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from compiler.process import preserve_state
from compiler.torch_api.careful_export import aoti_load, aoti_package, careful_export
from compiler.torch_api.pytrees import tree_leaves

PREFIX = "_orig_mod."


@dataclass(frozen=True, slots=True)
class Way:
    """One way to save, and what came of it. `outcome` is "equal", "close", "differs", "fails" or "not tried".

    `code` is what to write, `size` the bytes of the file, `seconds` what saving and loading took, `words` what there is
    to know. `difference` is the largest absolute difference of the outputs.
    """

    name: str
    code: str
    outcome: str
    words: str
    size: int = 0
    seconds: float = 0.0
    difference: float | None = None


@dataclass(frozen=True, slots=True)
class _Trial:
    """Inputs of each way to save: the model in eval mode, a copy with other weights, the call, a file."""

    model: nn.Module
    blank: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    file: Path
    backend: str

    def call(self, fn: Callable[..., Any]) -> Any:
        with torch.no_grad():
            return fn(*self.args, **self.kwargs)

    def compile(self, model: nn.Module) -> Any:
        return torch.compile(model, backend=self.backend)


def ways_to_save(
    model: nn.Module, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *, backend: str = "aot_eager"
) -> list[Way]:
    """Try every way with a copy of `model` in evaluation mode; the model stays as it is, and files are removed.

    `backend` is torch.compile's: names and files are the same for all. Raises TypeError for what is no module,
    ValueError for a model that can't be copied.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"saving is about modules; got {type(model).__name__}")
    try:
        own, blank = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
    except Exception as error:
        raise ValueError(f"this model can't be copied, so nothing can be tried on it: {error}") from error
    _forget(blank)
    with tempfile.TemporaryDirectory() as folder, preserve_state(), careful_export():
        warnings.simplefilter("ignore")
        trials = (
            _Trial(own, copy.deepcopy(blank), tuple(args), dict(kwargs or {}), Path(folder) / f"{number}.pt2", backend)
            for number in range(len(_WAYS))
        )
        return [
            _try_way(name, code, words, trial, save)
            for trial, (name, code, words, save) in zip(trials, _WAYS, strict=True)
        ]


def _forget(model: nn.Module) -> None:
    """Other weights, so that a load that does nothing is seen."""
    with torch.no_grad():
        for value in model.state_dict().values():
            value.fill_(0) if not value.is_floating_point() else value.fill_(0.5)


def _try_way(name: str, code: str, words: str, trial: _Trial, save: Callable[[_Trial], Any]) -> Way:
    start = time.perf_counter()
    if save is _aot_inductor and shutil.which("g++") is None and shutil.which("clang++") is None:
        return Way(name, code, "not tried", "needs a C++ compiler: there is neither g++ nor clang++ on this machine")
    try:
        loaded = save(trial)
        seconds = time.perf_counter() - start
        difference = _difference(trial.call(trial.model), trial.call(loaded))
    except Exception as error:  # noqa: BLE001 - that a way fails is what is to be shown
        return Way(name, code, "fails", f"{words} It fails: {_first_line(error)}", seconds=time.perf_counter() - start)
    size = trial.file.stat().st_size
    return Way(name, code, _outcome(difference), words, size, seconds, difference)


def _outcome(difference: float) -> str:
    return "equal" if difference == 0 else "close" if difference < 1e-4 else "differs"


def _difference(one: Any, other: Any) -> float:
    """The largest absolute difference of all tensors. Raises ValueError where the outputs are not alike."""
    pairs = [_tensors(one), _tensors(other)]
    if [value.shape for value in pairs[0]] != [value.shape for value in pairs[1]]:
        raise ValueError("the outputs have other shapes")
    return max(
        (float((a.double() - b.double()).abs().max()) for a, b in zip(*pairs, strict=True) if a.numel()), default=0.0
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:300]}"


def _load(trial: _Trial, **options: Any) -> Any:
    return torch.load(trial.file, **options)


def _weights(trial: _Trial) -> Any:
    torch.save(trial.model.state_dict(), trial.file)
    trial.blank.load_state_dict(_load(trial))
    return trial.blank


def _wrapped_into_plain(trial: _Trial) -> Any:
    torch.save(trial.compile(trial.model).state_dict(), trial.file)
    trial.blank.load_state_dict(_load(trial))
    return trial.blank


def _load_compiled_into_compiled(trial: _Trial) -> Any:
    torch.save(trial.compile(trial.model).state_dict(), trial.file)
    compiled = trial.compile(trial.blank)
    compiled.load_state_dict(_load(trial))
    return compiled


def _without_prefix(trial: _Trial) -> Any:
    torch.save(trial.compile(trial.model).state_dict(), trial.file)
    state = _load(trial)
    consume_prefix_in_state_dict_if_present(state, PREFIX)
    trial.blank.load_state_dict(state)
    return trial.blank


def _in_place(trial: _Trial) -> Any:
    model = copy.deepcopy(trial.model)
    model.compile(backend=trial.backend)
    torch.save(model.state_dict(), trial.file)
    trial.blank.load_state_dict(_load(trial))
    return trial.blank


def _pickle(trial: _Trial) -> Any:
    torch.save(trial.compile(trial.model), trial.file)
    return _load(trial, weights_only=False)


def _export(trial: _Trial) -> Any:
    torch.export.save(torch.export.export(trial.model, trial.args, dict(trial.kwargs)), trial.file)
    return torch.export.load(trial.file).module()


def _aot_inductor(trial: _Trial) -> Any:
    program = torch.export.export(trial.model, trial.args, dict(trial.kwargs))
    aoti_package(program, trial.file)
    return aoti_load(trial.file)


_WAYS: tuple[tuple[str, str, str, Callable[[_Trial], Any]], ...] = (
    (
        "weights of the model",
        "torch.save(model.state_dict(), file)",
        "The model's own names. Needs the model's Python code to load. Compile after loading.",
        _weights,
    ),
    (
        "weights of torch.compile(model), into the plain model",
        "torch.save(torch.compile(model).state_dict(), file); model.load_state_dict(torch.load(file))",
        "torch.compile(model) is a module around the model, which is its attribute _orig_mod: so each name begins with "
        "`_orig_mod.`, which the plain model does not know.",
        _wrapped_into_plain,
    ),
    (
        "weights of torch.compile(model), into a compiled model",
        "compiled.load_state_dict(torch.load(file))",
        "Both sides have the prefix `_orig_mod.`.",
        _load_compiled_into_compiled,
    ),
    (
        "weights of torch.compile(model), prefix taken off",
        "consume_prefix_in_state_dict_if_present(state, '_orig_mod.')",
        "The remedy for a file saved from a compiled model. To save without it: compiled._orig_mod.state_dict()",
        _without_prefix,
    ),
    (
        "weights after model.compile()",
        "model.compile(); torch.save(model.state_dict(), file)",
        "Compiles in place: the model stays what it is, so its names do too.",
        _in_place,
    ),
    (
        "the compiled module, pickled",
        "torch.save(torch.compile(model), file); torch.load(file, weights_only=False)",
        "Pickle keeps the model and the options of torch.compile, by the names of its classes, and no compiled code: "
        "it is compiled anew at the first call. Loading runs what the file says: only for files that you trust.",
        _pickle,
    ),
    (
        "torch.export",
        "torch.export.save(torch.export.export(model, args), file)",
        "The graph and the weights: loads without the model's Python code. The graph is for the shapes that were "
        "exported; sizes left open are named in dynamic_shapes.",
        _export,
    ),
    (
        "AOTInductor package",
        "torch._inductor.aoti_compile_and_package(torch.export.export(model, args), package_path=file)",
        "Compiled code and weights for this kind of machine: loads without Python code of the model, in C++ too, and "
        "compiles nothing.",
        _aot_inductor,
    ),
)
