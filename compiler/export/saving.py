"""Try each way to save a compiled model: save to a file, load, call, and compare the outputs.

`torch.compile(model)` wraps the model as the attribute `_orig_mod`, so the keys of its `state_dict` start with
`_orig_mod.`. `model.compile()` compiles in place and changes no keys. Neither saves compiled code to a file; only
`torch.export` with AOTInductor does.
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
from torch import Tensor, nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from compiler.capture.error_words import first_lines
from compiler.numerics.policy.judge import Scope, judge, worst
from compiler.process import preserve_state
from compiler.record import Check
from compiler.record.plain_text import one_line
from compiler.torch_api.careful_export import aoti_load, aoti_package, careful_export
from compiler.torch_api.pytrees import tree_leaves


@dataclass(frozen=True, slots=True)
class Way:
    """One way to save a model, and its result. `outcome` is "equal", "close", "differs", "fails" or "not tried".

    `code` is the code to write for it. `size` is the file's size in bytes, `seconds` the time to save and load. `words`
    explain the result. `difference` is the largest absolute difference of the outputs; None if it is unknown.
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
    """Inputs for each way to save: the model in eval mode, a copy with other weights, the arguments, a file."""

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

    def export(self) -> Any:
        return torch.export.export(self.model, self.args, dict(self.kwargs))

    def move_weights(self, source: nn.Module, target: nn.Module, edit: Callable[[Any], Any] = lambda _: None) -> Any:
        """Load the weights of `source` through the file into `target`, and return `target`.

        `edit` may change the loaded state.
        """
        torch.save(source.state_dict(), self.file)
        state = torch.load(self.file)
        edit(state)
        target.load_state_dict(state)
        return target


def ways_to_save(
    model: nn.Module, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *, backend: str = "aot_eager"
) -> list[Way]:
    """Try every way to save on a copy of `model` in eval mode. The model is not changed, and files are removed.

    `backend` is torch.compile's; names of weights and files do not depend on it. Raises TypeError if `model` is not a
    module, ValueError if it can't be copied.
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
        return [
            _try_way(
                *way,
                _Trial(own, copy.deepcopy(blank), tuple(args), dict(kwargs or {}), Path(folder, f"{n}.pt2"), backend),
            )
            for n, way in enumerate(_WAYS)
        ]


def _forget(model: nn.Module) -> None:
    """Overwrite the weights, so that a load without effect is detected."""
    for value in model.state_dict().values():
        value.fill_(0.5 if value.is_floating_point() else 0)


def _try_way(name: str, code: str, words: str, save: Callable[[_Trial], Any], trial: _Trial) -> Way:
    start = time.perf_counter()
    if save is _aot_inductor and shutil.which("g++") is None and shutil.which("clang++") is None:
        return Way(name, code, "not tried", "needs a C++ compiler: there is neither g++ nor clang++ on this machine")
    try:
        loaded = save(trial)
        seconds = time.perf_counter() - start
        check = compare_outputs(trial.call(loaded), trial.call(trial.model))
    except Exception as error:  # noqa: BLE001 - a failure is a result to show
        reason = f"{type(error).__name__}: {one_line(first_lines(error, 2))[:300]}"
        return Way(name, code, "fails", f"{words} It fails: {reason}", seconds=time.perf_counter() - start)
    if check.verdict == "differs":
        words = f"{words} Its outputs differ: {check.note}."
    return Way(name, code, check.verdict, words, trial.file.stat().st_size, seconds, check.max_absolute)


def compare_outputs(mine: Any, own: Any) -> Check:
    """Compare the tensors of two outputs; return the check with the worst verdict."""
    theirs, ours = ([leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)] for value in (mine, own))
    if len(theirs) != len(ours):
        return Check("outputs", None, None, "differs", f"{len(theirs)} tensors instead of {len(ours)}")
    scope = Scope.of_results(ours)
    none = Check("outputs", 0.0, 0.0, "equal", "there is none")
    return worst([none, *(judge("output", *pair, scope=scope) for pair in zip(theirs, ours, strict=True))])


def _remove_prefix(state: dict[str, Any]) -> None:
    consume_prefix_in_state_dict_if_present(state, "_orig_mod.")


def _compile_in_place(trial: _Trial) -> Any:
    model = copy.deepcopy(trial.model)
    model.compile(backend=trial.backend)
    return trial.move_weights(model, trial.blank)


def _pickle(trial: _Trial) -> Any:
    torch.save(trial.compile(trial.model), trial.file)
    return torch.load(trial.file, weights_only=False)


def _export(trial: _Trial) -> Any:
    torch.export.save(trial.export(), trial.file)
    return torch.export.load(trial.file).module()


def _aot_inductor(trial: _Trial) -> Any:
    aoti_package(trial.export(), trial.file)
    return aoti_load(trial.file)


_WAYS: tuple[tuple[str, str, str, Callable[[_Trial], Any]], ...] = (
    (
        "weights of the model",
        "torch.save(model.state_dict(), file)",
        "The model's own names. Needs the model's Python code to load. Compile after loading.",
        lambda trial: trial.move_weights(trial.model, trial.blank),
    ),
    (
        "weights of torch.compile(model), into the plain model",
        "torch.save(torch.compile(model).state_dict(), file); model.load_state_dict(torch.load(file))",
        "torch.compile(model) is a module around the model, which is its attribute _orig_mod: so each name begins with "
        "`_orig_mod.`, which the plain model does not know.",
        lambda trial: trial.move_weights(trial.compile(trial.model), trial.blank),
    ),
    (
        "weights of torch.compile(model), into a compiled model",
        "compiled.load_state_dict(torch.load(file))",
        "Both sides have the prefix `_orig_mod.`.",
        lambda trial: trial.move_weights(trial.compile(trial.model), trial.compile(trial.blank)),
    ),
    (
        "weights of torch.compile(model), prefix taken off",
        "consume_prefix_in_state_dict_if_present(state, '_orig_mod.')",
        "The remedy for a file saved from a compiled model. To save without it: compiled._orig_mod.state_dict()",
        lambda trial: trial.move_weights(trial.compile(trial.model), trial.blank, _remove_prefix),
    ),
    (
        "weights after model.compile()",
        "model.compile(); torch.save(model.state_dict(), file)",
        "Compiles in place: the model stays what it is, so its names do too.",
        _compile_in_place,
    ),
    (
        "the compiled module, pickled",
        "torch.save(torch.compile(model), file); torch.load(file, weights_only=False)",
        "Pickle keeps the model and the options of torch.compile, by the names of its classes, and no compiled code: "
        "it is compiled again at the first call. Loading runs what the file says: only for files that you trust.",
        _pickle,
    ),
    (
        "torch.export",
        "torch.export.save(torch.export.export(model, args), file)",
        "The graph and the weights: loads without the model's Python code. The graph is for the shapes that were "
        "exported; symbolic sizes are named in dynamic_shapes.",
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
