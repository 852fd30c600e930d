"""Behaviour beyond the numbers: names, errors, mutation, aliases, layouts, sizes, random numbers."""

from __future__ import annotations

import gc
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.nn import functional

import compiler
from compiler.backend import backend, tcompile
from compiler.backend.ir import BackendError, Extern
from compiler.backend.pipeline import watch
from compiler.backend.runtime import build_cpp
from compiler.record.options import OptionError


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    result: Callable[..., Any] = torch.compile(fn, backend=tcompile, fullgraph=True, **options)
    return result


def test_backward_compiles_with_forward_and_may_run_twice() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    names: list[str] = []

    class Told:
        builds = True
        replaces = False

        def after_passes(self, *found: Any) -> None:
            names.append(found[1].graph)

    with watch(Told()):
        y = compiled(lambda x: (x.exp() * x.sigmoid()).sum())(x)
        assert names == ["forward", "backward"]
        y.backward(retain_graph=True)
        once = x.grad.clone()
        y.backward()
    torch.testing.assert_close(x.grad, 2 * once)
    assert names == ["forward", "backward"]


def test_unknown_mode_or_option_is_named() -> None:
    x = torch.ones(3)
    with pytest.raises(OptionError, match="has the modes default, reduce-overhead"):
        tcompile(torch.fx.symbolic_trace(lambda x: x + 1), [x], mode="training")
    with pytest.raises(OptionError, match="mode='defalt': did you mean 'default'"):
        tcompile(torch.fx.symbolic_trace(lambda x: x + 1), [x], mode="defalt")
    with pytest.raises(OptionError, match="did you mean 'fused_loops'"):
        tcompile(torch.fx.symbolic_trace(lambda x: x + 1), [x], options={"fuse_loops": 3})
    with pytest.raises(OptionError, match="did you mean 'interpret'"):
        tcompile(torch.fx.symbolic_trace(lambda x: x + 1), [x], options={"interprte": True})
    for wrong in ("tile", {3: 4}):
        with pytest.raises(OptionError, match="must be a dict of names and values"):
            tcompile(torch.fx.symbolic_trace(lambda x: x + 1), [x], options=wrong)
    with pytest.raises(OptionError, match="whole number above 0"):
        tcompile(torch.fx.symbolic_trace(lambda x: x + 1), [x], options={"tile": "large"})
    with pytest.raises(OptionError, match="tile=2000000 is above 4096"):
        tcompile(torch.fx.symbolic_trace(lambda x: x + 1), [x], options={"tile": 2_000_000})


def test_not_of_combined_masks_inside_a_larger_expression() -> None:
    def masks(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        low, high = x > 0, x < -1
        either = (~(low | high), ~(low & high), ~(low ^ high), (low * high).logical_not())
        return torch.cat(either), *(torch.nn.functional.pad(each.float(), (1, 1)) for each in either)

    x = torch.randn(4, 8)
    torch.testing.assert_close(compiled(masks)(x), masks(x))


def test_modes_and_options_are_accepted() -> None:
    x = torch.randn(4, 8)
    for kwargs in ({"mode": "reduce-overhead"}, {"options": {"tile": 16, "fused_loops": 1}}, {"dynamic": True}):
        torch.testing.assert_close(compiled(lambda x: x.softmax(0), **kwargs)(x), x.softmax(0))


def test_inplace_input_mutation_is_applied() -> None:
    def step(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.mul_(0.5).add_(x.sum(0))
        x[1:] += total
        return x * 2

    ours, theirs = [torch.ones(3, 4), torch.ones(4)], [torch.ones(3, 4), torch.ones(4)]
    torch.testing.assert_close([compiled(step)(*ours), *ours], [step(*theirs), *theirs])


def test_an_input_overwritten_by_a_view_of_itself() -> None:
    def turned(x: torch.Tensor) -> torch.Tensor:
        before = x + 0
        x.copy_(x.t().clone() + x.flip(0))
        return before

    ours, theirs = torch.arange(9.0).view(3, 3), torch.arange(9.0).view(3, 3)
    torch.testing.assert_close([compiled(turned)(ours), ours], [turned(theirs), theirs])


@pytest.mark.parametrize("options", [{}, {"code": "triton"}], ids=["C++", "Triton"])
def test_input_is_overwritten_after_its_last_read(options: dict[str, Any]) -> None:
    """The variance reads the input twice."""

    def replaced(x: torch.Tensor) -> torch.Tensor:
        spread = x.var(1, correction=0)
        x.copy_(torch.arange(15.0).view(5, 3))
        return spread

    ours, theirs = torch.arange(15.0).view(5, 3).sin(), torch.arange(15.0).view(5, 3).sin()
    found = compiled(replaced, options=options)(ours)
    torch.testing.assert_close([found, ours], [replaced(theirs), theirs])


@pytest.mark.parametrize("options", [{}, {"code": "triton"}], ids=["C++", "Triton"])
def test_recomputed_value_reads_input_before_it_is_overwritten(options: dict[str, Any]) -> None:
    """Softmax reads the sum three times."""

    def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x.softmax(1) * 10.3

    ours, theirs = torch.arange(60.0).view(3, 4, 5).sin() * 9, torch.arange(60.0).view(3, 4, 5).sin() * 9
    y = torch.arange(9.0, -3.0, -1).view(3, 4, 1)
    found = compiled(added, options=options)(ours, y)
    torch.testing.assert_close([found, ours], [added(theirs, y), theirs])


@pytest.mark.parametrize("start", [0, 3])
def test_overlapping_inputs_are_read_before_being_overwritten(start: int) -> None:
    """AOTAutograd replaces two overlapping inputs by one, and reads their parts with `as_strided`."""

    def step(whole: torch.Tensor, part: torch.Tensor, other: torch.Tensor) -> None:
        other.copy_(whole[:, :3])
        whole.add_(part.sum())
        other.sub_(part)

    results = []
    for fn in (compiled(step), step):
        memory, other = torch.arange(40.0), torch.zeros(4, 3)
        whole = memory[start : start + 24].view(4, 6)
        fn(whole, whole[0, 1:4], other)
        results.append([memory, other])
    torch.testing.assert_close(*results)


def test_dimension_split_from_a_reduced_dimension() -> None:
    """The backward sums over the result of `repeat`, where three dimensions come from one."""

    def shuffled(x: torch.Tensor) -> torch.Tensor:
        return functional.pixel_shuffle(x.repeat(1, 4, 1, 1), 2) * 2

    gradients = []
    for fn in (compiled(shuffled), shuffled):
        x = torch.ones(2, 3, 4, 5, requires_grad=True)
        gradients.append(torch.autograd.grad((fn(x) * torch.arange(10.0)).sum(), x)[0])
    torch.testing.assert_close(*gradients)


def test_cat_of_empty_tensors() -> None:
    def joined(x: torch.Tensor) -> list[torch.Tensor]:
        none = x[:, :0]
        return [torch.cat([none, none * 2], 1), torch.cat([none, x, none], 1), torch.cat([x[0, :0], none[0]]) + 1]

    x = torch.ones(2, 3)
    torch.testing.assert_close(compiled(joined)(x), joined(x))


@pytest.mark.parametrize("count", [1, 2])
def test_cat_has_the_strides_of_eager(count: int) -> None:
    """Other strides of a cache would recompile the model that reads it."""

    def joined(none: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([none, *[x.transpose(1, 2)] * count], -2)

    none, x = torch.tensor([]), torch.randn(2, 5, 3, 4)
    found, expected = compiled(joined)(none, x), joined(none, x)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()


@pytest.mark.parametrize("options", [None, {"interpret": True}], ids=["machine code", "interpreted"])
def test_gather_from_empty_tensor(options: dict[str, bool] | None) -> None:
    def gathered(x: torch.Tensor) -> torch.Tensor:
        product = x @ x.t()
        return product.gather(-1, torch.zeros_like(product, dtype=torch.int64))

    x = torch.ones(0, 3)
    torch.testing.assert_close(compiled(gathered, options=options)(x), gathered(x))


def test_reductions_of_empty_tensors() -> None:
    def reduced(x: torch.Tensor) -> list[torch.Tensor]:
        none = x[:, :0]
        return [x[:0].amax(1), x[:0].softmax(1), none.sum(1), none.mean(1), none.prod(1), none.var(1), none.all(1)]

    results = []
    for fn in (compiled(reduced), reduced):
        x = torch.ones(2, 3, 4, requires_grad=True)
        found = fn(x)
        total = sum(y.sum() for y in found if y.requires_grad)
        results.append([*found, torch.autograd.grad(total, x)[0]])
    torch.testing.assert_close(*results, equal_nan=True)


def test_outputs_that_alias_stay_views() -> None:
    def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return x.t(), y, y[0], x

    x = torch.ones(3, 4)
    turned, y, row, same = compiled(views)(x)
    assert turned.data_ptr() == x.data_ptr()
    assert row.data_ptr() == y.data_ptr()
    assert same is x


def test_an_argument_given_twice() -> None:
    x = torch.randn(4)
    torch.testing.assert_close(compiled(lambda a, b: a.sin() + b)(x, x), x.sin() + x)


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: torch.randn(6, 4).t(),
    "every other": lambda: torch.randn(8, 12)[::2, ::2],
    "expanded": lambda: torch.randn(4, 1).expand(4, 6),
    "from the middle": lambda: torch.randn(10, 6)[3:7],
    "empty": lambda: torch.randn(4, 0),
    "no rows": lambda: torch.randn(0, 6),
    "one element": lambda: torch.randn(1, 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_inputs(layout: str) -> None:
    x = LAYOUTS[layout]()
    fn = lambda x: (x.sin() + 1, x.sum(-1), x.mean(0), x.t().exp().contiguous())  # noqa: E731
    torch.testing.assert_close(compiled(fn)(x), fn(x), equal_nan=True, check_stride=True)


def test_channels_last_stays_channels_last() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    found = compiled(lambda x: functional.relu(x) * 2)(x)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, functional.relu(x) * 2)


def test_zero_dim_tensors_and_python_numbers() -> None:
    x = torch.tensor(2.5)
    torch.testing.assert_close(compiled(lambda x: (x * 2, x.sum(), x + True))(x), (x * 2, x.sum(), x + True))


def test_types_are_promoted_as_in_eager_mode() -> None:
    def mixed(i: torch.Tensor, h: torch.Tensor, f: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return i + h, i / 2, b + b, b * f, h * f[0], i.float() + 1.5, f > i, (i * 3) // 2, h.sum(), b.sum(), i % 3

    values = torch.arange(-3, 5), torch.randn(8).bfloat16(), torch.randn(8), torch.arange(8) % 3 == 0
    torch.testing.assert_close(compiled(mixed)(*values), mixed(*values))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_rounded_where_eager_mode_rounds(dtype: torch.dtype) -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        return ((x * 1.1 + 0.25) * x - 7) / 3

    x = torch.linspace(-40, 40, 1001).to(dtype)
    assert torch.equal(compiled(chain)(x), chain(x))


def test_nan_and_infinity_propagate_as_in_eager() -> None:
    x = torch.tensor([[1.0, float("nan"), -float("inf")], [float("inf"), 2.0, -0.0], [3.0, 4.0, 5.0]])

    def careful(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.amax(-1), x.amin(0), x.argmax(-1), x.relu(), x.clamp(0, 2), x.exp(), x.tanh(), x.erf(), x.isnan(),
            torch.maximum(x, x.flip(0)), x.sigmoid(), x.log(), x.sign(), 1 / x, torch.fmin(x, x.flip(0)),
        )  # fmt: skip

    torch.testing.assert_close(compiled(careful)(x), careful(x), equal_nan=True)


def test_index_out_of_range_raises_as_in_eager() -> None:
    table, take = torch.randn(5, 4), compiled(lambda table, ids: table[ids] + 1)
    torch.testing.assert_close(take(table, torch.tensor([0, -1, 4])), table[[0, -1, 4]] + 1)
    with pytest.raises(IndexError, match="out of range"):
        take(table, torch.tensor([0, 5, 1]))


def test_batch_and_length_change_without_recompiling() -> None:
    lengths: list[int] = []

    def counting(module: torch.fx.GraphModule, inputs: Any) -> Any:
        lengths.append(length)
        return tcompile(module, inputs)

    norm = torch.nn.LayerNorm(16)

    def block(x: torch.Tensor) -> torch.Tensor:
        y = norm(x)
        return torch.softmax(y @ y.transpose(1, 2), -1).flatten(0, 1)

    dynamic = torch.compile(block, backend=counting, dynamic=True, fullgraph=True)
    for batch, length in ((2, 8), (3, 5), (7, 12), (2, 33)):
        x = torch.randn(batch, length, 16, requires_grad=True)
        found, expected = dynamic(x), block(x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad(y.sin().sum(), x)[0] for y in (found, expected)))
    assert set(lengths) == {8}, "compiled again for another length"


def test_random_eager_option_reproduces_eager_under_one_seed() -> None:
    dropout = torch.nn.Dropout(0.3)

    def noisy(x: torch.Tensor) -> torch.Tensor:
        return dropout(x.sin()) + torch.rand_like(x) + torch.randn(8, device=x.device)

    x, gradients, outputs = torch.randn(4, 8), [], []
    for fn in (compiled(noisy, options={"random": "eager"}), noisy):
        own = x.clone().requires_grad_()
        torch.manual_seed(7)
        outputs.append(fn(own))
        outputs[-1].sum().backward()
        gradients.append(own.grad)
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(gradients[0], gradients[1])


SIZES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "the smaller of two": (lambda x: x.diagonal() + 1, 2),
    "at least eight": (lambda x: functional.pad(x, (0, max(0, 8 - x.shape[-1]))) * 2, 2),
    "half as many again": (lambda x: functional.interpolate(x[None, None], scale_factor=1.5) * 2, 3),
}


@pytest.mark.parametrize("what", SIZES)
def test_nonlinear_sizes_are_settled_by_guards(what: str) -> None:
    """The first two are compiled once per case, the last once per size."""
    fn, most = SIZES[what]
    graphs: list[torch.fx.GraphModule] = []

    def counting(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(module)
        return tcompile(module, inputs)

    dynamic = torch.compile(fn, backend=counting, dynamic=True, fullgraph=True)
    for shape in ((4, 6), (3, 9), (7, 5)):
        x = torch.randn(shape, requires_grad=True)
        found, expected = dynamic(x), fn(x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad(y.sin().sum(), x)[0] for y in (found, expected)))
    assert len(graphs) <= most


def test_existing_guard_decides_the_smaller_of_two_sizes() -> None:
    """AOTAutograd's guard says that there are no more rows than columns; our own guard would fix the number of rows."""
    if torch.__version__.startswith("2.11"):
        pytest.skip("torch 2.11 cannot trace trace's backward for symbolic sizes, with any backend")
    fn = compiled(torch.trace)
    for rows in (5, 9, 3):
        x = torch.randn(rows, 5, requires_grad=True)
        torch._dynamo.mark_dynamic(x, 0)
        fn(x).backward()
        torch.testing.assert_close(x.grad, torch.eye(rows, 5))


def test_later_call_leaves_earlier_outputs_unchanged() -> None:
    fn = compiled(lambda x: (x.sin() + 1, (x @ x).relu().sum(0)))
    first, second = torch.randn(8, 8), torch.randn(8, 8)
    found = fn(first)
    kept = [value.clone() for value in found]
    fn(second)
    torch.testing.assert_close(list(found), kept, rtol=0, atol=0)


def test_nothing_is_kept_alive_after_a_call() -> None:
    fn = compiled(lambda x, w: (x.sin() @ w).softmax(-1))
    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
    fn(x, w).sum().backward()
    y = fn(x, w)
    known = [weakref.ref(value) for value in (x, y)]
    del x, y
    gc.collect()
    assert [ref() for ref in known] == [None, None]


def test_graphs_across_a_break_see_each_others_mutations() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        x.add_(1)
        torch._dynamo.graph_break()
        y[0] = x[1]
        torch._dynamo.graph_break()
        return y.sum(0) + x

    ours, theirs = torch.arange(12.0).view(3, 4), torch.arange(12.0).view(3, 4)
    found = torch.compile(broken, backend=tcompile)(ours)
    torch.testing.assert_close([found, ours], [broken(theirs), theirs])


def test_calls_from_several_threads() -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.t()).softmax(-1).sum(0)

    fn, inputs = compiled(block), [torch.randn(32, 16) for _ in range(6)]
    fn(inputs[0])
    with ThreadPoolExecutor(len(inputs)) as pool:
        found = list(pool.map(lambda x: [fn(x) for _ in range(20)][-1], inputs))
    torch.testing.assert_close(found, [block(x) for x in inputs])


def test_concurrent_first_calls_wait_for_one_build() -> None:
    x = torch.randn(8, 8)
    module = torch.fx.symbolic_trace(lambda x: (x.softmax(0) * 2,))
    with torch.no_grad(), ThreadPoolExecutor(4) as pool:
        call = tcompile(module, [x])
        for found in pool.map(lambda _: call(x), range(4)):
            torch.testing.assert_close([*found], [x.softmax(0) * 2])


@pytest.mark.parametrize("options", [{}, {"code": "triton"}, {"interpret": True}], ids=["C++", "Triton", "interpreter"])
def test_numbers_derived_from_sizes_do_not_recompile(options: dict[str, Any]) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def counting(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(module)
        return tcompile(module, inputs, options=options)

    def scaled(x: torch.Tensor) -> tuple[Any, ...]:
        rows = x.shape[0]
        full = torch.full((3,), float(rows)) + x.numel() / 7
        return x * (rows / 3) + rows * 0.5, torch.where(x > (rows - 1) / 10, x, rows / 2 - 0.25), full, rows / 4

    run = torch.compile(scaled, backend=counting, fullgraph=True, dynamic=True)
    for rows in (5, 6, 9, 12):
        x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows))
        torch.testing.assert_close(run(x), scaled(x))
        torch.testing.assert_close(run(x.half()), scaled(x.half()))
    assert len(graphs) == 2, "one for each dtype"


def test_autocast_around_and_inside_the_compiled_function() -> None:
    x, w = torch.randn(6, 8), torch.randn(8, 8)

    def product(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x @ w
        with torch.autocast(x.device.type, enabled=False):
            return y, (y.float() @ w).relu()

    fn = compiled(product)
    with torch.autocast(x.device.type, torch.bfloat16):
        found, expected = fn(x), product(x)
    assert [y.dtype for y in found] == [y.dtype for y in expected]
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(fn(x), product(x))


def test_global_torch_state_is_unchanged() -> None:
    def settings() -> list[Any]:
        return [
            torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype(), torch.backends.cudnn.benchmark,
            torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled(), list(sys.path),
            dict(os.environ), sys.excepthook, threading.excepthook, warnings.filters[:],
        ]  # fmt: skip

    before, numbers = settings(), torch.get_rng_state()
    fn = compiled(lambda x: (x.sin() + 1).softmax(-1).sum(0))
    fn(torch.ones(4, 8, requires_grad=True)).sum().backward()
    assert settings() == before
    assert torch.equal(torch.get_rng_state(), numbers)


def test_call_after_an_error_is_correct() -> None:
    table = torch.randn(5, 4, requires_grad=True)
    take = compiled(lambda table, ids: functional.embedding(ids, table).sin())
    take(table, torch.tensor([0, 1]))
    with pytest.raises(IndexError):
        take(table, torch.tensor([0, 7]))
    torch.testing.assert_close(take(table, torch.tensor([4, 0])), table[[4, 0]].sin())


@torch.library.custom_op("tcompile_tests::refused_below", mutates_args=())
def refused_below(x: torch.Tensor, least: float) -> torch.Tensor:
    """Copy a tensor. Raises ArithmeticError if an element is too small."""
    if bool((x < least).any()):
        raise ArithmeticError("too small")
    return x.clone()


@refused_below.register_fake
def _(x: torch.Tensor, least: float) -> torch.Tensor:
    return torch.empty_like(x)


def test_error_inside_a_call_restores_torch_modes() -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        return refused_below(x * 2, 0.0).exp().sum(0)

    good, bad = torch.ones(3, 4), -torch.ones(3, 4)
    for first in (good, bad):
        torch.compiler.reset()
        fn = compiled(checked)
        for x in (first, good, bad, good):
            for on in (True, False):
                with torch.set_grad_enabled(on), torch.autocast(x.device.type, enabled=on):
                    if x is good:
                        torch.testing.assert_close(fn(x), checked(x))
                    else:
                        with pytest.raises(ArithmeticError, match="too small"):
                            fn(x)
                    assert torch.is_grad_enabled() == on
                    assert torch.is_autocast_enabled(x.device.type) == on


def test_complex_numbers_are_extern_calls() -> None:
    x = torch.randn(4, dtype=torch.complex64)
    torch.testing.assert_close(compiled(lambda x: (x * x + 1).abs())(x), (x * x + 1).abs())
    x[0] = float("nan")
    torch.testing.assert_close(compiled(torch.nan_to_num)(x), x.nan_to_num())


def test_large_reductions_are_as_accurate_as_eager() -> None:
    x = torch.rand(3_000_000) + 100
    torch.testing.assert_close(compiled(lambda x: (x.sum(), x.var()))(x), (x.sum(), x.var()))


def test_missing_compiler_warns_once_and_interprets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_cpp, "compiler", tuple)
    backend._say_once.cache_clear()
    x = torch.randn(4, 8)
    with pytest.warns(UserWarning, match=r"reference interpreter.*no C\+\+ compiler"):
        torch.testing.assert_close(compiled(lambda x: x.softmax(-1))(x), x.softmax(-1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(lambda x: x.softmax(0))(x), x.softmax(0))


def test_compiler_error_text_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.backend.cpp.emit.PRELUDE", "#error nothing works")
    run = compiled(lambda x: x + 1)
    for _ in range(2):
        with pytest.raises(BackendError, match=r"(?s)exit status 1.*nothing works"):
            run(torch.ones(3))


def test_open_without_captured_operations_is_an_error() -> None:
    with pytest.raises(BackendError, match="no tensor operations"):
        compiler.open(lambda: 3)


PLACES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "joined dimensions": lambda x: x.sin().as_strided((6, 4), (4, 1)) + 1,
    "from a place on": lambda x: x.sin()[1].as_strided((2, 3), (1, 4), 5) + 1,
    "windows": lambda x: x.as_strided((5, 3), (2, 1)).sum(-1),
    "of what is turned": lambda x: x.sin().transpose(0, 1).contiguous().as_strided((3, 8), (8, 1)) * 2,
}


@pytest.mark.parametrize("name", PLACES)
def test_dense_as_strided_lowers_to_indexing(name: str) -> None:
    x = torch.randn(3, 8)
    call = compiler.open(PLACES[name], x)
    assert not [step for step in call.scheduled.steps if isinstance(step, Extern)]
    torch.testing.assert_close(call.run(), PLACES[name](x))


def test_as_strided_outside_the_input_is_extern() -> None:
    whole = torch.randn(4, 8)
    for x, fn in (
        (whole[1:3], lambda x: x.as_strided((4, 8), (8, 1), 0) + 1),
        (whole[:, :3], lambda x: x.as_strided((2, 2), (8, 1)) + 1),
    ):
        call = compiler.open(fn, x)
        assert [step.name for step in call.scheduled.steps if isinstance(step, Extern)] == ["aten.as_strided.default"]
        torch.testing.assert_close(call.run(), fn(x))
