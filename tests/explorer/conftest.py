"""A shell in which cells are compared with and without %%tcompile."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from explorer.entry import magics
from tests.explorer.entry.comparison import NoOutput


@pytest.fixture(scope="module")
def magic_shell() -> Iterator[InteractiveShell]:
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    shell.run_line_magic("colors", "nocolor")
    registered = magics.TcompileMagics(shell, lambda _args: NoOutput())
    shell.register_magics(registered)
    shell.input_transformers_post.append(registered.rewrite_call)
    gc.freeze()  # a reset collects garbage, which is slow with everything imported since the tests were collected
    yield shell
    magics.unload(shell)
    InteractiveShell.clear_instance()
