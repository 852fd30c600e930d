"""Process-wide settings that a repeated call may change: restore them after the call, and report their names."""

from __future__ import annotations

import gc
import locale
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from compiler.torch_api.settings import dynamo_settings, set_dynamo_settings


@dataclass(frozen=True, slots=True)
class _Setting:
    """A process-wide setting. `name` completes the sentence "the call changes …"."""

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]


def _set_mapping(target: Any, value: Mapping[Any, Any]) -> None:
    for key in [key for key in target if key not in value]:
        del target[key]
    for key, item in value.items():
        if target.get(key) != item:
            target[key] = item


def _set_list(target: list[Any], value: list[Any]) -> None:
    target[:] = value


def _log_levels() -> dict[str, int]:
    loggers = {name: each for name, each in logging.root.manager.loggerDict.items() if isinstance(each, logging.Logger)}
    return {name: each.level for name, each in loggers.items()} | {"": logging.root.level}


def _set_log_levels(levels: Mapping[str, int]) -> None:
    for name, level in levels.items():
        if logging.getLogger(name or None).level != level:
            logging.getLogger(name or None).setLevel(level)


_SETTINGS = (
    _Setting("environment variables", lambda: dict(os.environ), lambda value: _set_mapping(os.environ, value)),
    _Setting("sys.path", lambda: list(sys.path), lambda value: _set_list(sys.path, value)),
    _Setting("sys.argv", lambda: list(sys.argv), lambda value: _set_list(sys.argv, value)),
    _Setting("the working directory", os.getcwd, os.chdir),
    _Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    _Setting("whether garbage is collected", gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    _Setting("the locale", lambda: locale.setlocale(locale.LC_ALL),
             lambda value: locale.setlocale(locale.LC_ALL, value)),
    _Setting("levels of loggers", _log_levels, _set_log_levels),
    _Setting("logging.disable", lambda: logging.root.manager.disable, logging.disable),
    _Setting("NumPy's error settings", np.geterr, lambda value: np.seterr(**value)),
    _Setting("NumPy's print options", np.get_printoptions, lambda value: np.set_printoptions(**value)),
    _Setting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    _Setting("torch's default device", torch.get_default_device,
             lambda device: torch.set_default_device(None if device.type == "cpu" else device)),
    _Setting("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    _Setting("whether gradients are on", torch.is_grad_enabled, torch.set_grad_enabled),
    _Setting("torch's deterministic algorithms", torch.are_deterministic_algorithms_enabled,
             torch.use_deterministic_algorithms),
    _Setting("the precision of float32 matmuls", torch.get_float32_matmul_precision,
             torch.set_float32_matmul_precision),
    _Setting("anomaly detection", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    _Setting("the settings of TorchDynamo", dynamo_settings, set_dynamo_settings),
)  # fmt: skip


@contextmanager
def preserve_process(changed: dict[str, None]) -> Iterator[None]:
    """Restore process-wide settings after the block, and add the names of the changed settings to `changed`."""
    saved = [(setting, setting.get()) for setting in _SETTINGS]
    threads = set(threading.enumerate())
    try:
        yield
    finally:
        for setting, value in saved:
            if setting.get() != value:
                changed[setting.name] = None
                setting.set(value)
        if any(thread not in threads for thread in threading.enumerate()):
            changed["the running threads"] = None
