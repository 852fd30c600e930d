"""Our backend's tests run on poisoned memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compiler.backend.poison import poisoned


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    with poisoned():
        yield
