"""A C++ compiler that is killed during an exploration fails that exploration, and no later compilation."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
import torch
import torch._inductor.config as inductor_config

from compiler.engine import explore
from compiler.record.options import Options

KILLED_ONCE = """#!/bin/sh
if echo "$*" | grep -q "[.]main[.]so" && mv {first} {first}.done 2>/dev/null; then
    : > "$(echo "$*" | sed "s/.* -o \\([^ ]*\\).*/\\1/")"
    kill -INT $$
fi
exec {compiler} "$@"
"""
"""A compiler that leaves an empty file the first time it builds a library, like a killed linker."""


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x + 0.1875, -1).sin()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_killed_compiler_fails_one_exploration(tmp_path: Path) -> None:
    script, first, x = tmp_path / "g++", tmp_path / "first", torch.randn(4, 8)
    first.touch()
    script.write_text(KILLED_ONCE.format(first=shlex.quote(str(first)), compiler=shutil.which("g++")))
    script.chmod(0o755)
    with inductor_config.patch({"cpp.cxx": (None, str(script)), "cpp_cache_precompile_headers": False}):
        reasons = [problem.reason for problem in explore(softmax, (x,), options=Options(check=True)).record.problems]
        assert ["C++ compile error" in reason for reason in reasons] == [True]
        torch.testing.assert_close(torch.compile(softmax)(x), softmax(x))
        assert explore(softmax, (x,), options=Options(check=True)).record.problems == ()
