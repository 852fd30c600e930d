"""Settings of torch, changed for the length of a block: those that advice changes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch._dynamo.config as dynamo_config
import torch.fx.experimental._config as shape_config

_SETTING = re.compile(r"torch\._dynamo\.config\.(\w+)")


@contextmanager
def with_settings(statements: Sequence[str]) -> Iterator[None]:
    """Run statements such as `torch._dynamo.config.capture_scalar_outputs = True`; what they set is put back.

    That goes for TorchDynamo's settings, the precision of products in float32, the number of threads, and whether equal
    sizes are taken for one symbol.
    """
    names = dict.fromkeys(name for line in statements for name in _SETTING.findall(line))
    values = {name: getattr(dynamo_config, name) for name in names}
    own = {name: set(value) if isinstance(value, set) else value for name, value in values.items()}
    with dynamo_config.patch(own), _of_the_process():
        exec("\n".join(["import torch", *statements]), {})
        yield


@contextmanager
def _of_the_process() -> Iterator[None]:
    duck_shape = shape_config.use_duck_shape
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    try:
        yield
    finally:
        shape_config.use_duck_shape = duck_shape
        if torch.get_float32_matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
