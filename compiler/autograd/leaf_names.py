"""Names of tensors as the user knows them: variables, and parameters of the modules that variables hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch

from compiler.autograd.recording import Recording


def names_of_tensors(frame: FrameType | None, recording: Recording | None) -> dict[int, str]:
    """By `id`: paths of the parameters of called modules; else names of variables that the frame can see, and paths
    below them. Names that begin with an underscore are a notebook's own, and come last.
    """
    found: dict[int, str] = {}
    for name, tensor in recording.parameters() if recording else ():
        found.setdefault(id(tensor), name)
    variables = _visible(frame)
    for name, value in variables:
        if isinstance(value, torch.Tensor):
            found.setdefault(id(value), name)
    modules = [(name, value) for name, value in variables if isinstance(value, torch.nn.Module)]
    for name, module in modules:
        for path, tensor in _of_module(module):
            found.setdefault(id(tensor), path if len(modules) == 1 else f"{name}.{path}")
    for name, value in variables:
        for path, tensor in _tensors_inside(value):
            found.setdefault(id(tensor), f"{name}{path}")
    return found


def _visible(frame: FrameType | None) -> list[tuple[str, Any]]:
    if frame is None:
        return []
    both: Mapping[str, Any] = {**frame.f_globals, **frame.f_locals}
    return sorted(both.items(), key=lambda item: item[0].startswith("_"))


def _of_module(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _tensors_inside(value: Any) -> Iterable[tuple[str, torch.Tensor]]:
    """Tensors in a list, tuple or dict."""
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, list | tuple):
        pairs = enumerate(value)
    elif isinstance(value, dict):
        pairs = list(value.items())
    return [(f"[{key!r}]", each) for key, each in pairs if isinstance(each, torch.Tensor)]
