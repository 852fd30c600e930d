"""C++ kernels as Python functions."""

from __future__ import annotations

import gc
import shutil
import threading
import types

import pytest
import torch

from compiler.backend.cpp.emit import Code, Function
from compiler.backend.runtime import build_cpp

pytestmark = pytest.mark.skipif(not build_cpp.compiler(), reason="needs a C++ compiler")

WAITING = """
extern "C" int meet(volatile int* mine, const volatile int* other, int threads) {
    *mine = 1;
    while (!*other) { }
    return threads;
}
"""


def kernels(text: str, *functions: Function) -> dict[str, types.BuiltinFunctionType]:
    found = build_cpp.Build(Code(text, functions)).functions()
    assert all(isinstance(function, types.BuiltinFunctionType) for function in found.values())
    return dict(found)  # type: ignore[arg-type]


def test_kernel_receives_arguments_and_returns_its_value() -> None:
    text = """
extern "C" int fill(double* to, const float* from, long count, long start, int threads) {
    for (long i = 0; i < count; ++i) to[i] = (double)from[0] + start + i;
    return threads;
}
"""
    fill = kernels(text, Function("fill", "fill", ("to", "from"), ("count", "start"), True))["fill"]
    gc.collect()
    to, start = torch.zeros(4, dtype=torch.float64), torch.full((1,), 0.5)
    assert fill(to.data_ptr(), start.data_ptr(), 3, -(2**40), 7) == 7
    assert to.tolist() == [0.5 - 2**40, 1.5 - 2**40, 2.5 - 2**40, 0]
    assert fill(to.data_ptr(), start.data_ptr(), 0, 0, 0) == 0


def test_kernel_releases_the_gil() -> None:
    meet = kernels(WAITING, Function("meet", "meet", ("mine", "other"), (), True))["meet"]
    here, there = (torch.zeros(1, dtype=torch.int32) for _ in range(2))
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(meet(here.data_ptr(), there.data_ptr(), 1)), daemon=True)
    thread.start()
    assert meet(there.data_ptr(), here.data_ptr(), 2) == 2
    thread.join(20)
    assert found == [1]


def test_cxx_may_be_several_words(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = build_cpp.compiler()[0]
    monkeypatch.setenv("CXX", f"env LC_ALL=C '{plain}'")
    assert build_cpp.compiler() == (shutil.which("env"), "LC_ALL=C", plain)
    one = kernels('extern "C" int one(int threads) { return 1; }', Function("one", "one", (), (), True))["one"]
    assert one(1) == 1


def test_missing_cxx_warns_and_another_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.warns(UserWarning, match="'no-such-compiler -m64', and there is no program 'no-such-compiler'"):
        assert build_cpp.compiler()
