"""Wait for what a page shows: a click returns before the page has drawn its effect."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

WAIT_SECONDS = 20.0
POLL_SECONDS = 0.05


def wait_until(holds: Callable[[], object]) -> None:
    """Read the page until `holds()` is true; fails after WAIT_SECONDS."""
    end = time.monotonic() + WAIT_SECONDS
    while not holds() and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    assert holds()


def expect_equal(read: Callable[[], T], expected: T) -> None:
    """Read the page until `read()` equals `expected`; fails after WAIT_SECONDS with the value last read."""
    end = time.monotonic() + WAIT_SECONDS
    while (value := read()) != expected and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    assert value == expected
