"""Hide the frames of observers from TorchDynamo, where torch calls them while frames are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C._dynamo.eval_frame import set_eval_frame
from torch._dynamo.decorators import skip

Called = Callable[..., Any]


def unseen(function: Called) -> Called:
    """`function` itself, whose frame TorchDynamo skips; the frames of what it calls are not skipped."""
    skip(function)
    return function


@unseen
def call_unseen(function: Called, *args: Any) -> Any:
    """Call a function that TorchDynamo looks at no frame of."""
    before = set_eval_frame(None)
    try:
        return function(*args)
    finally:
        set_eval_frame(before)
