"""Triton kernels on the CPU: eager's numbers, every error on its line, nothing left behind."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compiler.engine import Exploration
from compiler.kernel_lab.edit import with_configuration
from compiler.option_checks import parse_options
from compiler.record import Record
from compiler.record.options import OptionError
from compiler.triton_interpreter import bounds, launch, libdevice, philox
from compiler.triton_interpreter.kernel_inputs import own_copies
from compiler.triton_interpreter.process import Interpreter
from compiler.triton_interpreter.signature import signature
from tests.compiler.broken import MODERN
from tests.compiler.models import MLP, Block
from tests.compiler.virtual_gpu.test_virtual import FeedForward

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

ADD = """
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'x': 128},
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32), 'constants': {}, 'configs': [{}]},
    inductor_meta={'grid_type': 'Grid1D', 'kernel_name': 'kernel', 'mutated_arg_names': [], 'backend_hash': '', 'num_load': 1, 'num_reduction': 0},
    min_elem_per_thread=0
)
@triton.jit
def kernel(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    tmp1 = BODY
    tl.store(out_ptr0 + (x0), tmp1, xmask)
"""  # noqa: E501 - as Inductor writes it
LOAD = ADD.split("\n").index("    tmp0 = tl.load(in_ptr0 + (x0), xmask)") + 1


class Transformer(nn.Module):
    """One encoder layer on token embeddings, and the loss of predicting the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        self.head = nn.Linear(32, 50)

    def forward(self, words: Tensor) -> Tensor:
        scores = self.head(self.layer(self.embedding(words)))
        return nn.functional.cross_entropy(scores.flatten(0, 1), words.flatten())


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    with Interpreter() as started:
        yield started


def ran(interpreter: Interpreter, body: str, x: Tensor, **how: Any) -> tuple[Tensor, launch.Outcome]:
    """The result of `tmp1 = BODY` for x."""
    result = torch.full_like(x, torch.nan)
    outcome = interpreter.run(ADD.replace("BODY", body), "kernel", [x, result, x.numel()], **how)
    return result, outcome


FUNCTIONS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "arithmetic": ("tmp0 * 2.0 + 1.0", lambda x: x * 2 + 1),
    "tl.exp": ("tl_math.exp(tmp0)", torch.exp),
    "erf": ("libdevice.erf(tmp0)", torch.erf),
    "tanh": ("libdevice.tanh(tmp0)", torch.tanh),
    "pow": ("libdevice.pow(tmp0, 2.0)", torch.square),
    "lgamma": ("libdevice.lgamma(tmp0)", torch.lgamma),
    "signbit": ("libdevice.signbit(tmp0).to(tl.float32)", lambda x: torch.signbit(x).float()),
    "nextafter": ("libdevice.nextafter(tmp0, tmp0 + 1)", lambda x: torch.nextafter(x, x + 1)),
    "bessel": ("libdevice.j0(tmp0)", torch.special.bessel_j0),
    "maximum": ("triton_helpers.maximum(tmp0, 0.5)", lambda x: x.clamp(min=0.5)),
    "max": ("tl.max(tl.where(xmask, tmp0, float('-inf')), 0) + 0 * tmp0", lambda x: x.max() + 0 * x),
    "cumsum": ("tl.cumsum(tmp0, 0)", lambda x: x.cumsum(0)),
    "sort": ("tl.sort(tl.where(xmask, tmp0, float('inf')))", lambda x: x.sort().values),
    "bfloat16": ("(tmp0.to(tl.bfloat16) * tmp0.to(tl.bfloat16)).to(tl.float32)", lambda x: (x.bfloat16() ** 2).float()),
    "saturated": ("(tmp0 * 1e10).to(tl.int32).to(tl.float32)", lambda x: (x * 1e10).clamp(-(2.0**31), 2.0**31)),
    "assembly": (
        "tl.inline_asm_elementwise('fma.rn.f32 $0, $1, $1, $1;', '=f, f', [tmp0], tl.float32, True, 1)",
        lambda x: x * x + x,
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_match_torch(name: str, interpreter: Interpreter) -> None:
    body, expected = FUNCTIONS[name]
    x = torch.linspace(-3, 3, 128)
    result, outcome = ran(interpreter, body, x)
    assert outcome.error is None
    torch.testing.assert_close(result, expected(x))


def test_custom_reductions_follow_the_gpu_thread_order(interpreter: Interpreter) -> None:
    """Adjacent elements first; a value and its index stay together, and the first of equal values wins."""
    x = torch.tensor([1.0, 5.0, 5.0, 2.0] * 32)
    body = "tl.argmax(tmp0, 0).to(tl.float32) + 0 * tmp0"
    result, outcome = ran(interpreter, body, x)
    assert outcome.error is None
    assert result.unique().tolist() == [1.0]


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ("tmp0 + tmp7", "error", "NameError: name 'tmp7' is not defined"),
        ("tmp0 +", "syntax", "invalid syntax"),
        ("tmp0 + tl.arange(0, 4)", "error", "Cannot make_shape_compatible"),
        ("tl.load(in_ptr0 + (x0 + 1), xmask)", "bounds", "element 128 of in_ptr0, whose memory has 128"),
        ("tl.load(in_ptr0 + (x0 - 1), xmask)", "bounds", "element -1 of in_ptr0"),
        ("libdevice.jn(3, tmp0)", "missing", "libdevice's __nv_jnf has no equivalent in the interpreter"),
        ("libdevice.erf(x0)", "error", "libdevice.erf takes no (int32)"),
        (
            "tl.inline_asm_elementwise('bfi.b32 $0, $1;', '=f, f', [tmp0], dtype=tl.float32, is_pure=True, pack=1)",
            "missing",
            "'bfi.b32 $0, $1;'",
        ),
    ],
)
def test_error_is_reported_with_its_line(body: str, kind: str, message: str, interpreter: Interpreter) -> None:
    _, outcome = ran(interpreter, body, torch.ones(128))
    assert outcome.error is not None
    assert outcome.error.kind == kind
    assert message in outcome.error.message
    assert outcome.error.line == LOAD + 1


def test_out_of_bounds_access_is_stopped_first(interpreter: Interpreter) -> None:
    x, right = torch.ones(128), ADD.replace("BODY", "tmp0")
    wild = right.replace("tl.store(out_ptr0 + (x0)", "tl.store(out_ptr0 + (x0 * 10**9)")
    outcome = interpreter.run(wild, "kernel", [x, torch.zeros(128), 128])
    assert outcome.error is not None
    assert "tl.store writes out of bounds" in outcome.error.message
    assert ran(interpreter, "tmp0 + 1", x)[0].unique().tolist() == [2.0]  # the process is still alive


def test_kernel_prints_are_returned(interpreter: Interpreter) -> None:
    _, outcome = ran(interpreter, "tmp0\n    tl.device_print('value', tl.sum(tmp0, 0))", torch.ones(128))
    assert "value" in outcome.printed
    assert "128." in outcome.printed


def test_number_of_programs_is_limited(interpreter: Interpreter) -> None:
    source = with_configuration("kernel", ADD.replace("BODY", "tmp0"), {"XBLOCK": 16, "num_warps": 1, "num_stages": 1})
    result = torch.full((128,), torch.nan)
    outcome = interpreter.run(source, "kernel", [torch.ones(128), result, 128], config=0, most=3)
    assert (outcome.ran, outcome.programs, outcome.is_whole) == (3, 8, False)
    assert int(result.isfinite().sum()) == 48


def test_endless_kernel_is_stopped() -> None:
    with Interpreter(seconds=2) as started:
        _, endless = ran(started, "tmp0\n    while xnumel > 0:\n        tmp1 = tmp1", torch.ones(128))
        assert endless.error is not None
        assert "longer than 2 s" in endless.error.message
        assert ran(started, "tmp0 + 1", torch.ones(128))[0].unique().tolist() == [2.0]


def test_no_process_or_file_remains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found: list[int] = []

    def interrupted() -> None:
        with Interpreter() as started:
            ran(started, "tmp0", torch.ones(128))
            assert started._process is not None
            found.append(started._process.pid)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    (process,) = found
    assert not list(tmp_path.iterdir())
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


# Every kernel of a run

BF16 = torch.bfloat16

CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp with dropout": (lambda: MLP().train(), lambda: torch.randn(8, 64)),
    "layer norm and gelu in bfloat16": (lambda: FeedForward().to(BF16), lambda: torch.randn(4, 16, 64, dtype=BF16)),
    "batch norm": (lambda: Block(4, 8, 2).train(), lambda: torch.randn(2, 4, 16, 16)),
    "transformer, embedding, cross entropy in bfloat16": (
        lambda: Transformer().train().to(BF16), lambda: torch.randint(0, 50, (2, 16))
    ),
}  # fmt: skip


def checked(model: Any, *args: Any, **options: Any) -> Record:
    with Exploration(parse_options(**({"target": "h100", "check": "kernels"} | options))) as exploration:
        value = exploration.compile(model)(*args)
        if value.requires_grad:
            value.float().square().mean().backward()
    return exploration.record


@pytest.mark.parametrize("case", CASES)
def test_all_kernels_match_eager(case: str) -> None:
    torch.manual_seed(0)
    make, inputs = CASES[case]
    record = checked(make(), inputs())
    kernels = {kernel.id for kernel in record.kernels if kernel.language == "triton"}
    assert record.problems == ()
    assert {check.subject for check in record.checks} == kernels
    assert {"forward]", "backward]"} <= {kernel.rpartition(" ")[2].partition(".")[0] for kernel in kernels}
    verdicts = Counter(check.verdict for check in record.checks)
    assert verdicts["differs"] == verdicts["not comparable"] == 0, [str(check) for check in record.checks]
    assert Record.from_json(record.to_json()) == record


def test_only_the_wrong_kernel_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """GELU's kernel computes something else; its readers are not blamed."""
    from compiler.numerics import kernel_check as module

    run = Interpreter.run

    def wrong(self: Interpreter, source: str, name: str, *args: Any, **kwargs: Any) -> Any:
        return run(self, source.replace("libdevice.erf(", "libdevice.tanh("), name, *args, **kwargs)

    monkeypatch.setattr(module.Interpreter, "run", wrong)
    torch.manual_seed(0)
    record = checked(FeedForward(), torch.randn(4, 16, 64), grad=False)
    blamed = [check.subject for check in record.checks if check.verdict == "differs"]
    assert [bool(re.search("gelu", name)) for name in blamed] == [True]
    assert len(record.checks) > 1


def test_kernels_with_dynamic_shapes_on_other_gpus() -> None:
    torch.manual_seed(0)
    record = checked(FeedForward(), torch.randn(4, 16, 64), dynamic=True, target="mi300x", grad=False)
    assert {check.verdict for check in record.checks} <= {"equal", "close"}
    assert record.checks


def test_user_tensors_and_random_state_are_unchanged() -> None:
    torch.manual_seed(0)
    model, x = Block(4, 8, 2).train(), torch.randn(2, 4, 16, 16)
    expected = Block(4, 8, 2).train()
    expected.load_state_dict(model.state_dict())
    expected(x)
    before = torch.random.get_rng_state()
    checked(model, x)
    assert torch.equal(before, torch.random.get_rng_state())
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "cpu", "check": "kernels"}, "code for the CPU is C++"),
        ({"backend": "eager", "check": "kernels"}, "backend 'eager' writes none"),
        ({"stages": "captured", "check": "kernels"}, "add that to stages"),
        ({"check": "kernel"}, "it is True"),
        ({"time": True, "check": "kernels"}, "Name the GPU as target"),
    ],
)
def test_impossible_kernel_check_has_a_reason(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options(**options)


# The parts


def test_philox_matches_triton(interpreter: Interpreter) -> None:
    x = torch.zeros(128)
    uniform, _ = ran(interpreter, "tl.rand(1234567890123, x0) + tmp0", x)
    assert np.array_equal(philox.uniform(1234567890123, 128, by_four=False), uniform.numpy())
    if not MODERN:  # Inductor's code draws one number at a time
        return
    by_four, _ = ran(interpreter, "triton_helpers.rand4x(tmp0.to(tl.int64) + 99, x0, XBLOCK) + tmp0", x)
    normal, _ = ran(interpreter, "triton_helpers.randn4x(tmp0.to(tl.int64) + 99, x0, XBLOCK) + tmp0", x)
    assert np.array_equal(philox.uniform(99, 128, by_four=True), by_four.numpy())
    np.testing.assert_allclose(philox.normal(99, 128, by_four=True), normal.numpy(), rtol=1e-5, atol=1e-6)


def test_blocks_are_as_large_as_possible() -> None:
    largest = {"XBLOCK": 4096, "R0_BLOCK": 65536}
    assert launch.tile({"XBLOCK": 128}, {"XBLOCK": 1000}, largest) == {"XBLOCK": 1024}
    assert launch.tile({"XBLOCK": 128}, {"XBLOCK": 10**6}, largest) == {"XBLOCK": 4096}
    both = launch.tile({"XBLOCK": 1, "R0_BLOCK": 64}, {"XBLOCK": 10**6, "R0_BLOCK": 500}, largest)
    assert both == {"XBLOCK": launch.TILE // 512, "R0_BLOCK": 512}
    persistent = launch.tile({"XBLOCK": 1}, {"XBLOCK": 10**6, "R0_BLOCK": 1000}, largest)
    assert persistent == {"XBLOCK": launch.TILE // 1024}


def test_out_of_bounds_lanes_must_be_masked() -> None:
    memory = bounds.Bounds([bounds.Memory("a", 100, 200), bounds.Memory("b", 300, 400)])
    inside = np.array([100, 196, 300], dtype=np.uint64)
    memory.check("it reads", inside, np.ones(3, dtype=bool), 4)
    memory.check("it reads", inside + np.uint64(4), np.array([True, False, True]), 4)
    with pytest.raises(bounds.OutOfBoundsError, match=r"element 25 of a, whose memory has 25$"):
        memory.check("it reads", inside + np.uint64(4), np.ones(3, dtype=bool), 4)
    with pytest.raises(bounds.OutOfBoundsError):  # half of it is inside
        memory.check("it reads", inside + np.uint64(2), np.ones(3, dtype=bool), 4)


def test_every_inductor_triton_function_has_an_equivalent() -> None:
    """All functions in Inductor's Triton code generation, except fast_tanhf, which this Triton's libdevice lacks."""
    import torch._inductor.codegen.triton as generated
    import triton.language.extra.cuda.libdevice as device

    called = set(re.findall(r"libdevice\.([a-z]\w*)\(", Path(str(generated.__file__)).read_text()))
    assert len(called) > 30
    symbols = Path(str(device.__file__)).read_text()
    for name in called & set(vars(device)):
        body = symbols.partition(f"def {name}(")[2].partition("\n@")[0]
        for symbol in re.findall(r'"__nv_(\w+)"', body):
            known = {*libdevice.FUNCTIONS, *libdevice.OF_FORMAT}
            assert {symbol, symbol.removesuffix("f")} & known, symbol


def test_written_arguments_are_read_from_the_source() -> None:
    own = signature("kernel", ADD.replace("BODY", "tmp0"))
    assert own.arguments == ("in_ptr0", "out_ptr0", "xnumel")
    assert own.written == {"out_ptr0"}


def test_copies_of_arguments_share_the_memory_that_they_shared() -> None:
    """A kernel that works in place has one tensor under two names."""
    x = torch.arange(6.0)
    whole, number, part = own_copies([x, 3, x.view(2, 3)[1:]])
    whole += 1
    assert number == 3
    assert part.tolist() == [[4.0, 5.0, 6.0]]
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
