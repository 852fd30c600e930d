"""TorchDynamo's settings, changed for the length of a block."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch._dynamo.config as dynamo_config

_SETTING = re.compile(r"torch\._dynamo\.config\.(\w+)")


@contextmanager
def with_settings(statements: Sequence[str]) -> Iterator[None]:
    """Run statements such as `torch._dynamo.config.capture_scalar_outputs = True`; what they set is put back."""
    names = dict.fromkeys(name for line in statements for name in _SETTING.findall(line))
    values = {name: getattr(dynamo_config, name) for name in names}
    own = {name: set(value) if isinstance(value, set) else value for name, value in values.items()}
    with dynamo_config.patch(own):
        exec("\n".join(["import torch", *statements]), {})
        yield
