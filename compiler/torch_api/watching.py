"""Every operation's results, seen as they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Watching(TorchDispatchMode):
    """Tells `made` what each operation in the block returns. Operations run as they would."""

    supports_higher_order_operators = True  # torch.cond and the like come here too

    def __init__(self, made: Callable[[Any], None]) -> None:
        super().__init__()
        self.made = made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        self.made(results)
        return results
