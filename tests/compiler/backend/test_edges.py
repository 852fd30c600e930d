"""Edge cases of operators: infinities and ties, empty reductions, resizing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from compiler.backend import backend, tcompile
from compiler.backend.ir import BackendError
from compiler.backend.ir.reference_interpreter import match_fake_layout

INF, NAN = float("inf"), float("nan")
NEAREST = ("nearest", "nearest-exact")
MODES = pytest.mark.parametrize("options", [{}, {"code": "triton"}], ids=["C++", "Triton"])


def check(fn: Callable[[Tensor], Any], x: Tensor, options: dict[str, Any]) -> None:
    """Compare the results of each function, and their gradients under distinct weights, with eager's."""

    def results(call: Callable[[Tensor], Any]) -> list[Tensor]:
        given = x.clone().requires_grad_()
        found = tree_leaves(call(given))
        weighted = [(y * torch.arange(1.0, y.numel() + 1).view(y.shape)).sum() for y in found if y.requires_grad]
        return [*found, torch.autograd.grad(sum(weighted), given)[0]] if weighted else found

    torch.compiler.reset()
    compiled = torch.compile(fn, backend=tcompile, fullgraph=True, options=options)
    torch.testing.assert_close(results(compiled), results(fn), equal_nan=True, rtol=1e-4, atol=1e-5)


ROWS = torch.tensor(
    [
        [1.0, NAN, -INF, 3.0],
        [NAN, NAN, 2.0, 1.0],
        [-INF] * 4,
        [INF, INF, 1.0, -INF],
        [2.0, 2.0, 1.0, 2.0],
        [-0.0, 0, 0, 0],
    ]
)


@MODES
def test_ties_and_nan_in_reductions(options: dict[str, Any]) -> None:
    """The index of equal values is the first one's; a NaN is the largest and the smallest."""

    def places(x: Tensor) -> list[Any]:
        found = [f(dim) for f in (x.argmax, x.argmin, x.max, x.min) for dim in (0, 1)]
        return [*found, x.argmax(), x.bfloat16().argmax(1), x.nan_to_num(0, 9, -9).long().argmin(1), x.amax(1), x.max()]

    check(places, ROWS.detach(), options)


@MODES
def test_first_of_equal_values_in_transposed_memory(options: dict[str, Any]) -> None:
    x = (torch.arange(12).view(3, 4) % 5 == 2).float()
    check(lambda x: [x.t().argmax(), x.t().argmin(), (-x).t().argmin()], x, options)


@MODES
def test_reductions_of_infinite_rows(options: dict[str, Any]) -> None:
    def of_rows(x: Tensor) -> list[Tensor]:
        return [x.logsumexp(1), x.softmax(1), x.log_softmax(1), x.logsumexp(0), x.exp().cumsum(1), x.prod(1)]

    for rows in (ROWS[2:3], ROWS[2:5], ROWS):
        check(of_rows, rows, options)


@MODES
def test_variance_of_too_few_elements(options: dict[str, Any]) -> None:
    def spreads(x: Tensor) -> list[Any]:
        return [x[:, :1].var(1), x[:, :1].std(1), x.var(1, correction=4), x.var(1, correction=9), x[0, 0].var()]

    check(spreads, torch.randn(3, 4).detach(), options)


def test_prod_and_its_gradients() -> None:
    x = torch.randn(4, 5)
    x[1, 2] = x[3, 0] = x[3, 1] = 0
    check(lambda x: [x.prod(), x.prod(0), x.prod(1, keepdim=True), (x > 0).prod(1), x.long().prod(0)], x, {})


def test_embeddings_that_scale_gradients_or_rows() -> None:
    ids = torch.tensor([[0, 2, 1], [2, 2, 5]])

    def embedded(w: Tensor) -> list[Tensor]:
        return [
            functional.embedding(ids, w, padding_idx=-1, scale_grad_by_freq=True),
            functional.embedding(ids, w * 1.0, max_norm=1.0).sin(),
            functional.embedding_bag(ids, w, mode="mean"),
            functional.embedding_bag(ids.view(-1), w, torch.tensor([0, 2, 4]), mode="sum", padding_idx=2),
        ]

    check(embedded, torch.randn(6, 4), {})


def test_embedding_max_norm_mutates_rows_in_place() -> None:
    ours, theirs = torch.ones(4, 3), torch.ones(4, 3)
    fn = lambda w: functional.embedding(torch.tensor([1, 1, 3]), w, max_norm=1.0) * 2  # noqa: E731
    found = torch.compile(fn, backend=tcompile)(ours)
    torch.testing.assert_close([found, ours], [fn(theirs), theirs])


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_interpolate_to_other_sizes(mode: str) -> None:
    def resized(x: Tensor) -> list[Tensor]:
        return [
            functional.interpolate(x, size=size, mode=mode, align_corners=corners, antialias=smooth)
            for size, smooth, corners in (((1, 1), False, True), *itertools.product([(5, 16)], *[(False, True)] * 2))
        ]

    check(resized, torch.randn(2, 3, 8, 10), {})


@MODES
def test_nearest_interpolation(options: dict[str, Any]) -> None:
    def resized(x: Tensor) -> list[Tensor]:
        scales: tuple[Any, ...] = (2, 1.7, (0.5, 3.0))
        found = [functional.interpolate(x, scale_factor=scale, mode=mode) for scale in scales for mode in NEAREST]
        return [*found, functional.interpolate(x[0], size=17, mode="linear", align_corners=True)]

    check(resized, torch.randn(1, 2, 6, 5), options)


def test_negative_view_is_negated() -> None:
    """The imaginary parts of conjugated numbers are views, and kernels read the raw memory."""
    x = torch.randn(4, dtype=torch.complex64)
    torch.testing.assert_close(torch.compile(lambda x: x.conj().imag + 1, backend=tcompile)(x), x.conj().imag + 1)
    with pytest.raises(Exception, match=r"give the call x.resolve_neg\(\)"):
        torch.compile(lambda x: x + 1, backend=tcompile)(x.conj().imag)


def test_efficient_zero_tensors_are_zeros() -> None:
    """Kernels would read them at address 0. Forward-mode derivatives of a backward begin with such zeros."""
    x, zeros = torch.randn(4, requires_grad=True), torch._efficientzerotensor(4)
    hessian = torch.func.hessian(torch.prod)
    run = partial(torch.compile, backend=tcompile)
    torch.testing.assert_close(run(hessian)(x.detach()), hessian(x.detach()))
    double = run(lambda x: x * 2 + 1)
    for _ in range(3):
        assert torch.autograd.grad(double(x), x, zeros)[0].tolist() == [0, 0, 0, 0]


def test_efficient_zero_tensors_may_be_inputs() -> None:
    double = torch.compile(lambda x: x * 2 + 1, backend=tcompile)
    for x in (torch.ones(4), torch._efficientzerotensor(4), torch.ones(4)):
        torch.testing.assert_close(double(x), x * 2 + 1)


def test_meta_tensors_have_shapes() -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() @ x.t() + x.sum()).softmax(-1)

    backend._say_once.cache_clear()
    with pytest.warns(UserWarning, match="reference interpreter.*not for meta"):
        found = torch.compile(block, backend=tcompile)(torch.empty(3, 4, device="meta"))
    with torch._subclasses.FakeTensorMode():
        fake = torch.compile(block, backend=tcompile)(torch.empty(3, 4))
    assert found.is_meta
    assert (found.shape, fake.shape, fake.device.type) == ((3, 3), (3, 3), "cpu")
    torch.testing.assert_close(torch.compile(block, backend=tcompile)(torch.eye(3)), block(torch.eye(3)))


def test_equal_loops_on_two_devices_stay_separate() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        here, there = torch.arange(4) * 2, torch.arange(4, device="meta") * 2
        return x[here.flip(0) // 2] + here, there + 1

    torch.compiler.reset()
    found, there = torch.compile(fn, backend=tcompile, options={"interpret": True})(torch.ones(4))
    torch.testing.assert_close(found, torch.tensor([1.0, 3, 5, 7]))
    assert there.is_meta


def test_missing_stride_zero_in_extern_result_raises() -> None:
    with pytest.raises(BackendError, match=r"mine gave strides \[2, 1\]; by its fake kernel it gives \[0, 1\]"):
        match_fake_layout("mine", torch.ones(3, 2), (3, 2), (0, 1), torch.float32)
    assert match_fake_layout("mine", torch.ones(0, 2), (0, 2), (1, 0), torch.float32) is not None


def test_extern_call_may_return_none_for_a_tensor() -> None:
    """Attention's kernels do so, because only some of them have certain results."""
    assert match_fake_layout("aten.attention", None, (2,), (1,), torch.float32) is None


def test_jagged_nested_tensors() -> None:
    rows = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    found = torch.compile(lambda x: (x * 2).sin(), backend=tcompile)(rows)
    torch.testing.assert_close(found.values(), (rows * 2).sin().values())


def test_stack_is_read_by_index() -> None:
    """The last part has no condition."""

    def taken(x: Tensor, index: Tensor) -> Tensor:
        return torch.stack([x[:, 0], x.amax(1), x[:, 1]])[index % 3] * 2

    x, index = torch.randn(2, 3), torch.arange(6)
    for options in ({}, {"code": "triton"}, {"interpret": True}):
        torch.compiler.reset()
        found = torch.compile(taken, backend=tcompile, options=options)(x, index)
        torch.testing.assert_close(found, taken(x, index))


SLICES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the last": lambda x, _: x[:, -1:] * 2,
    "as many as there are, from the end": lambda x, _: x[:, -x.shape[1] :].exp(),
    "five, from the end": lambda x, _: x[:, x.shape[1] - 5 :].exp(),
    "as many as another tensor has, from the end": lambda x, y: x[:, -y.shape[0] :].exp(),
    "what was there before": lambda x, y: torch.cat([x, y.expand(len(x), -1)], 1)[:, -x.shape[1] :].exp(),
    "scattered": lambda x, _: x.slice_scatter(x[:, -3:] * 2, 1, -3),
}


@pytest.mark.parametrize("name", SLICES)
def test_slices_start_at_a_symbolic_size(name: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(SLICES[name], backend=tcompile, dynamic=True)
    for length, other in ((9, 4), (7, 3), (4, 8), (6, 6)):
        x, y = torch.randn(3, length, requires_grad=True), torch.randn(other)
        ours, theirs = compiled(x, y), SLICES[name](x, y)
        torch.testing.assert_close(ours, theirs)
        for found, expected in zip(*(torch.autograd.grad(z.square().sum(), x) for z in (ours, theirs)), strict=True):
            torch.testing.assert_close(found, expected)


def test_permuted_half_slice_of_a_symbolic_size() -> None:
    """A kernel iterates over it as one range or as two, as long as it provably visits each element once."""

    def half(x: Tensor, weight: Tensor) -> Tensor:
        return torch.bmm(x[:, : x.shape[1] // 2 + 1], weight).transpose(1, 2).relu() * 2

    for options in ({}, {"code": "triton"}, {"interpret": True}):
        torch.compiler.reset()
        compiled = torch.compile(half, backend=tcompile, dynamic=True, options=options)
        for length in (8, 11):
            given = torch.randn(2, length, 4), torch.randn(2, 4, 5)
            torch.testing.assert_close(compiled(*given), half(*given))


@pytest.mark.parametrize("fn", [Tensor.max, Tensor.min, lambda x: x.max(0).values], ids=["max", "min", "max(0)"])
def test_max_of_no_elements_raises_as_in_eager(fn: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises((RuntimeError, IndexError)) as theirs:
        fn(torch.zeros(0, 3))
    with pytest.raises(theirs.type, match="Expected reduction dim"):
        torch.compile(lambda x: fn(x) + 1, backend=tcompile)(torch.zeros(0, 3))
    check(lambda x: x.max(1).values + 1, torch.zeros(0, 3), {})


@MODES
def test_empty_parameter_has_an_empty_gradient(options: dict[str, Any]) -> None:
    """DINOv3 concatenates register tokens, possibly none, with its patches."""

    def joined(patches: Tensor, token: Tensor, registers: Tensor) -> Tensor:
        tokens = (tensor.expand(len(patches), -1, -1) for tensor in (token, registers))
        return functional.layer_norm(torch.cat([*tokens, patches], 1), (8,)).sin().square().sum()

    values = [
        torch.randn(size, generator=torch.Generator().manual_seed(0)) for size in ((2, 4, 8), (1, 1, 8), (1, 0, 8))
    ]

    def gradients(call: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        given = [value.clone().requires_grad_() for value in values]
        return torch.autograd.grad(call(*given), given)

    torch.compiler.reset()
    compiled = torch.compile(joined, backend=tcompile, fullgraph=True, options=options)
    torch.testing.assert_close(gradients(compiled), gradients(joined))


def test_fft_along_a_noncontiguous_dimension() -> None:
    """torch 2.11's fake kernel has wrong strides: Inductor refuses it there."""
    found, expected = (torch.randn(5, 6, 7, generator=torch.Generator().manual_seed(0)).requires_grad_() for _ in "12")
    fn = lambda x: torch.fft.hfftn(x, dim=-3).square()  # noqa: E731
    torch.compile(fn, backend=tcompile)(found).sum().backward()
    fn(expected).sum().backward()
    torch.testing.assert_close(found.grad, expected.grad)


@torch.library.custom_op("tcompile_tests::otherwise_laid_out", mutates_args=())
def otherwise_laid_out(x: Tensor, how: str) -> Tensor:
    """An operator whose result has another layout than its fake kernel's."""
    return {"strides": x.t().clone().t(), "shape": x[:2].clone(), "dtype": x.double()}[how]


@otherwise_laid_out.register_fake
def _(x: Tensor, how: str) -> Tensor:
    return torch.empty_like(x)


def test_padding_gradients_differ_from_fake_kernel_strides() -> None:
    """On a CPU, for pictures in channels-last memory."""

    def padded(x: Tensor) -> list[Tensor]:
        sides = (1, 2, 1, 1)
        return [functional.pad(x, sides, mode) * 2 for mode in ("replicate", "reflect", "circular", "constant")]

    x = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
    for options in ({}, {"interpret": True}):
        check(padded, x, options)


@pytest.mark.parametrize(("options", "dynamic"), [({}, False), ({"code": "triton"}, True)], ids=["C++", "Triton"])
def test_scatter_into_expanded_tensor_materializes_each_element(options: dict[str, Any], dynamic: bool) -> None:
    """torch 2.11's fake kernels differ.

    For in-place writes, where eager mode's elements share memory, torch's own capture decides."""

    def scattered(x: Tensor) -> list[Tensor]:
        same, side, half = x.exp()[..., :1].expand(x.shape), torch.zeros(2, 4), torch.zeros(2, 2, 4)
        found = [
            torch.select_scatter(same, side, 2, 1),
            torch.slice_scatter(same, half, 1, 1, 3),
            torch.diagonal_scatter(same, side, 0, 1, 2),
            torch.select_scatter(x.sum().expand(x.shape), side, 2, 0),
        ]
        return [*found, *(view for y in found for view in (y * 2, y.transpose(0, 1).flatten(1), y.sort(-1).values))]

    def written(x: Tensor) -> list[Tensor]:
        found = [x.exp()[..., :1].expand(x.shape) for _ in range(3)]
        found[0][..., 1].fill_(7)
        found[1][:, 1:3].fill_(7)
        found[2].diagonal(0, 1, 2).fill_(7)
        return [*found, *(y.sort(-1).values for y in found)]

    for fn, other in ((scattered, "eager"), (written, "aot_eager")):
        results = []
        for compiler, given in ((tcompile, options), (other, None)):
            torch.compiler.reset()
            call = torch.compile(fn, backend=compiler, dynamic=dynamic, options=given)
            results.append(call(torch.arange(32.0).view(2, 4, 4) / 32))
        torch.testing.assert_close(*results)
        assert [y.stride() for y in results[0]] == [y.stride() for y in results[1]]


def test_norms_along_dimensions_of_size_one() -> None:
    """torch 2.11's decomposition does not skip a dimension with a negative index."""
    if torch.__version__.startswith("2.12"):
        pytest.skip("torch 2.12 traces a wrong shape for the gradient of such a norm, with any backend")

    def norms(x: Tensor) -> list[Tensor]:
        one, side = x[..., :1], x[:1, :, :1]
        found = [one.norm(dim=-1), one.norm(1, dim=-1), side.norm(dim=(0, -1)), side.norm(dim=(-1, 0), keepdim=True)]
        found += [torch.linalg.vector_norm(x[:, :1], 3, dim=-2), x[0, 0, :1].norm(dim=-1), x[0, 0, 0].norm(dim=-1)]
        return [*found, x.norm(dim=(-1, 0)), x.norm(), functional.normalize(one, dim=-1)]

    check(norms, torch.randn(2, 3, 4), {})


def test_wrong_fake_kernel_is_corrected_or_raises() -> None:
    def fn(x: Tensor, how: str) -> Tensor:
        return otherwise_laid_out(x.sin(), how).exp() + x

    x = torch.randn(4, 5)
    torch.testing.assert_close(torch.compile(fn, backend=tcompile)(x, "strides"), fn(x, "strides"))
    with pytest.raises(BackendError, match=r"laid_out.default gave float32\[2, 5\]; .* gives float32\[4, 5\]"):
        torch.compile(fn, backend=tcompile)(x, "shape")
    with pytest.raises(BackendError, match=r"gave float64\[4, 5\]; .* gives float32"):
        torch.compile(fn, backend=tcompile)(x, "dtype")


@pytest.mark.parametrize("options", [{}, {"code": "triton"}, {"interpret": True}])
def test_result_and_its_detach_are_two_tensors(options: dict[str, Any]) -> None:
    def halves(x: Tensor) -> tuple[Tensor, ...]:
        y = x.sin()
        return y[:4], y[4:], y.detach(), x * 2

    def gradient(parts: tuple[Tensor, ...]) -> Tensor:
        return torch.autograd.grad(torch.cat([part for part in parts if part.requires_grad]).sum(), x)[0]

    x = torch.randn(8, requires_grad=True)
    run = torch.compile(halves, backend="tcompile", options=options, fullgraph=True)
    for _ in range(3):
        found = run(x)
        assert [part.requires_grad for part in found] == [True, True, False, True]
        assert found[2].data_ptr() == found[0].data_ptr()
        torch.testing.assert_close(gradient(found), gradient(halves(x)))


@pytest.mark.parametrize("options", [{}, {"code": "triton"}, {"interpret": True}])
def test_resizing_an_output_view_leaves_its_base(options: dict[str, Any]) -> None:
    run = torch.compile(lambda x: (y := x * 2, y.view(y.shape)), backend="tcompile", options=options, fullgraph=True)
    y, seen = run(torch.ones(12))
    seen.resize_(1)
    assert y.shape == (12,)
    assert seen.data_ptr() == y.data_ptr()


@pytest.mark.parametrize("options", [{}, {"code": "triton"}, {"interpret": True}])
def test_forward_mode_derivatives_propagate(options: dict[str, Any]) -> None:
    """They are, whatever was compiled before: TorchDynamo has no guards for forward-mode derivatives."""
    run = torch.compile(lambda x: (x.sin() * 2, x.expand(2, 3)), backend="tcompile", options=options)
    for needs_grad in (False, True, False, True):
        x = torch.arange(3.0).requires_grad_(needs_grad)
        torch.testing.assert_close(run(x)[0], x.sin() * 2)
        with forward_ad.dual_level():
            found = forward_ad.unpack_dual(run(forward_ad.make_dual(x, torch.ones(3)))[0])
        torch.testing.assert_close(found.tangent, x.cos() * 2)


def test_roll_and_shuffle_have_the_strides_of_eager() -> None:
    def places(x: Tensor) -> tuple[Tensor, ...]:
        unpooled = functional.max_unpool2d(x, x.to(torch.int64) % 40, 2)
        made = x.roll(-1, 0), x.roll((1, 2), (3, 1)), x.roll(3), torch.channel_shuffle(x, 2), unpooled
        return tuple(y.as_strided((y.numel(),), (1,)) for y in made)

    x = torch.arange(80.0).view(2, 4, 2, 5)
    for given in (x.to(memory_format=torch.channels_last), x.transpose(2, 3), x):
        torch.testing.assert_close(torch.compile(places, backend="tcompile")(given), places(given))


def test_is_grads_batched_raises_a_clear_error() -> None:
    """In the first backward, through AOTAutograd's wrappers, and in later ones."""
    run = torch.compile(lambda x: x.sin() * 2, backend="tcompile")
    x = torch.arange(3.0, requires_grad=True)
    for _ in range(3):
        y = run(x)
        with pytest.raises(NotImplementedError, match=r"is_grads_batched=True.*one at a time"):
            torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True, retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], x.cos() * 2)


@MODES
def test_sum_of_a_buffer_mutated_by_its_kernel(options: dict[str, Any]) -> None:
    """A buffer's value is the kernel's result, but also its previous contents."""

    def doubled(x: Tensor) -> Tensor:
        x.mul_(2)
        return x.sum(1)

    def chosen(x: Tensor) -> Tensor:
        one = torch.where(torch.arange(x.shape[1]) == 3, x, 0.0)
        x.mul_(3)
        return one.sum(1)

    for fn in (doubled, chosen):
        x, y = torch.arange(1.0, 129.0).view(8, 16), torch.arange(1.0, 129.0).view(8, 16)
        torch.testing.assert_close(torch.compile(fn, backend="tcompile", options=options)(x), fn(y))
        torch.testing.assert_close(x, y)
