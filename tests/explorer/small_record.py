"""A small hand-written record with every kind of fact: `softmax(x @ w)`, forward and backward."""

from __future__ import annotations

from dataclasses import replace

from compiler.record import (
    Artifact,
    Binary,
    Candidate,
    Check,
    Decision,
    Entity,
    Environment,
    Fix,
    Frame,
    GraphBreak,
    Guard,
    GuardFailure,
    Kernel,
    Measurement,
    Problem,
    ProgramCost,
    Recompile,
    Record,
    Site,
    Span,
    Suggestion,
    Symbol,
    Timing,
    ValueOrigin,
    XRay,
)
from compiler.record.options import Options

SOURCE = """\
def f(x, w):
    scores = x @ w  # <script>alert(1)</script>
    return torch.softmax(scores, -1)
"""


def tensor(*shape: int, **more: object) -> dict[str, object]:
    count = 1
    for size in shape:
        count *= size
    return {"dtype": "float32", "shape": list(shape), "bytes": 4 * count, **more}


def entity(artifact: str, name: str, kind: str, attrs: dict, inputs: str = "", origins: tuple = ()) -> Entity:
    used = tuple(f"{artifact}.{label}" for label in inputs.split())
    return Entity(f"{artifact}.{name}", kind, name, attrs, used, origins)


def lines_of(entities: tuple[Entity, ...], *numbers: int) -> dict[int, tuple[str, ...]]:
    return {number: (found.id,) for number, found in zip(numbers, entities, strict=True)}


def source() -> Artifact:
    found = tuple(Entity(f"source[cell].L{line}", "line", SOURCE.splitlines()[line - 1].strip()) for line in (2, 3))
    return Artifact("source[cell]", "source", "cell", "python", SOURCE, "", lines_of(found, 2, 3), found)


def captured() -> Artifact:
    name = "captured[0/0]"
    found = (
        entity(name, "l_x_", "placeholder", tensor(8, 16, source="L['x']")),
        entity(name, "l_w_", "placeholder", tensor(16, 4, source="L['w']")),
        entity(name, "scores", "call", tensor(8, 4, target="operator.matmul"), "l_x_ l_w_", ("source[cell].L2",)),
        entity(name, "softmax", "call", tensor(8, 4, target="torch.softmax"), "scores", ("source[cell].L3",)),
        entity(name, "output", "output", {}, "softmax"),
    )
    text = "def forward(self, l_x_, l_w_):\n    scores = l_x_ @ l_w_\n    softmax = torch.softmax(scores, -1)\n"
    text += "    return (softmax,)\n"
    return Artifact(name, "captured", "captured graph", "python", text, "0/0", lines_of(found[2:], 2, 3, 4), found)


def forward() -> Artifact:
    name, before = "forward[0/0]", "captured[0/0]"
    scores = (f"{before}.scores",)
    found = (
        entity(name, "primals_1", "placeholder", tensor(8, 16), origins=(f"{before}.l_x_",)),
        entity(name, "primals_2", "placeholder", tensor(16, 4), origins=(f"{before}.l_w_",)),
        entity(name, "mm", "call", tensor(8, 4, target="aten.mm.default"), "primals_1 primals_2", scores),
        entity(name, "div", "call", tensor(8, 4, target="aten.div.Tensor"), "mm", (f"{before}.softmax",)),
        entity(name, "output", "output", {}, "div primals_1 div"),
    )
    text = "def forward(self, primals_1, primals_2):\n    mm = aten.mm(primals_1, primals_2)\n    div = aten.div(mm)\n"
    text += "    return (div, primals_1, div)\n"
    return Artifact(name, "forward", "forward half", "python", text, "0/0", lines_of(found[2:], 2, 3, 4), found)


def backward() -> Artifact:
    name, before = "backward[0/0]", "captured[0/0]"
    found = (
        entity(name, "primals_1", "placeholder", tensor(8, 16)),
        entity(name, "div", "placeholder", tensor(8, 4)),
        entity(name, "tangents_1", "placeholder", tensor(8, 4)),
        entity(name, "mul", "call", tensor(8, 4, target="aten.mul.Tensor"), "tangents_1 div", (f"{before}.softmax",)),
        entity(name, "mm_1", "call", tensor(16, 4, target="aten.mm.default"), "primals_1 mul", (f"{before}.scores",)),
        entity(name, "output", "output", {}, "mm_1"),
    )
    text = "def forward(self, primals_1, div, tangents_1):\n    mul = aten.mul(tangents_1, div)\n"
    text += "    mm_1 = aten.mm(primals_1, mul)\n    return (None, mm_1)\n"
    return Artifact(name, "backward", "backward half", "python", text, "0/0", lines_of(found[3:], 2, 3, 4), found)


def kernels() -> Artifact:
    name = "kernels[0/0 forward]"
    found = (
        entity(name, "cpp_fused_div_0", "kernel", {"language": "cpp"}, origins=("forward[0/0].div",)),
        entity(name, "call_L2", "extern", {}, origins=("forward[0/0].mm",)),
        entity(name, "call_L3", "call", {}, origins=(f"{name}.cpp_fused_div_0",)),
    )
    text = "cpp_fused_div_0 = r'''void kernel(const float* in);'''\nextern_kernels.mm(x, w)\ncpp_fused_div_0(buf0)\n"
    return Artifact(name, "kernels", "generated code", "python", text, "0/0", lines_of(found, 1, 2, 3), found)


def checks() -> tuple[Check, ...]:
    """One result of the call, with eager's numbers at every stage."""
    words = "as close to float64 as eager is: 1.0e-7 from it, eager 9.0e-8"
    output = Check(
        "output", 1.2e-7, 3e-7, "close", words=words, dtype="float32", tolerance=1e-5, mean_absolute=2e-8, max_ulps=3.0,
        p99_ulps=2.0, max_absolute_float64=1e-7, eager_absolute_float64=9e-8,
    )  # fmt: skip
    stages = [Check("output 0, float32", 0.0, 0.0, "equal", "", stage, "0/0") for stage in ("captured", "inference")]
    return (replace(output, subject="the call"), output, *stages)


def small_record() -> Record:
    return Record(
        title="f",
        options=Options(mode="max-autotune", stages=("source", "forward")),
        environment=Environment(python="3.11", torch="2.13.0", triton="3.7.1"),
        artifacts=(source(), captured(), forward(), backward(), kernels()),
        frames=(Frame("0/0", "f", "cell", 1, "compiled", graphs=("captured[0/0]",), code=0),),
        breaks=(
            GraphBreak(
                id="break[0/0].0",
                frame="0/0",
                kind="Failed to trace builtin operator",
                reason="Encountered graph break:\n\n  a long message\n",
                file="cell",
                line=2,
                function="f",
                code="print(x)",
                explanation="Dynamo does not know how to trace builtin operator `print`",
                hints=("Avoid calling builtin `print`.", "Log <after> the call."),
                gb_id="GB0059",
                stack=("cell:9 in <module>", "cell:2 in f"),
                what="`print(x)` writes to the terminal, which a graph can't.",
                chain=(Span("cell", 9, 9, 0, 7, "f", "show(x)"), Span("cell", 2, 2, 4, 12, "show", "print(x)")),
                link="https://example.org/gb0059",
                ended="captured[0/0]",
                resumed_by=("1/0",),
                nodes=(2, 3),
                crossing=1,
                crossing_bytes=128,
                suggestions=(
                    Suggestion(
                        "Print from inside the graph.",
                        "cell",
                        2,
                        2,
                        "    torch._higher_order_ops.print(x)",
                        applicability="machine-applicable",
                    ),
                    Suggestion(
                        "Or print <later>.",
                        settings=("torch._dynamo.config.x.add(print)",),
                        applicability="maybe",
                        caveat="It comes <late>.",
                    ),
                ),
            ),
        ),
        guards=(
            Guard(
                "guard[0/0].1",
                "0/0",
                "ID_MATCH",
                "G['sin']",
                ("id(sin) == 1",),
                "cell",
                2,
                "`sin` is same",
                "sin",
                True,
            ),
            Guard(
                "guard[0/0].0",
                "0/0",
                "TENSOR_MATCH",
                "L['x']",
                ("check(x)", "x.dim() == 2"),
                "cell",
                2,
                "`x` is float32, contiguous, 8×16, on cpu",
                "x",
                seconds=3.4e-8,
                failed=1,
            ),
        ),
        symbols=(Symbol("s77", "0/1", "x.size(0)", 9, 2, None),),
        recompiles=(
            Recompile(
                "recompile[0/1]",
                "0/1",
                "f",
                "cell",
                1,
                ("expected 8, actual 9",),
                failures=(
                    GuardFailure("0/0", "number", "n", "the int 1", "the int 2", "`n` was the int 1, is now the int 2"),
                    GuardFailure("0/0", "shape", "x", "8", "9", "size of `x` in dimension 0 was 8, is now 9", "L['x']"),
                ),
                cause="shape",
                argument="x",
                advice="Say so before the first call.",
                settings=("torch._dynamo.mark_dynamic(x, 0)",),
                call=Span("cell", 12, 12, 0, 4, "<module>", "f(y)"),
                call_number=2,
            ),
        ),
        decisions=(
            Decision("fusion", "0/0", ("ir.op0", "ir.op1"), "fused", "same loops", {"bytes": 128.0}),
            Decision("fusion", "0/0", ("ir.op1", "ir.op2"), "refused", "intermediate nodes"),
        ),
        kernels=(
            Kernel(
                id="kernels[0/0 forward].call_L2",
                name="extern_kernels.mm",
                graph="0/0",
                artifact="kernels[0/0 forward]",
                language="aten",
                category="extern",
                lines=(2, 2),
                bytes=896,
            ),
            Kernel(
                id="kernels[0/0 forward].cpp_fused_div_0",
                name="cpp_fused_div_0",
                graph="0/0",
                artifact="kernels[0/0 forward]",
                language="cpp",
                category="reduction",
                lines=(1, 1),
                nodes=("ir.op1",),
                calls=2,
                bytes=256,
            ),
        ),
        binaries=(
            Binary(
                kernel="kernels[0/0 forward].cpp_fused_div_0",
                target="h100",
                config={"num_warps": 4},
                registers=24,
                spill_bytes=0,
                occupancy=0.75,
                limiter="registers",
                mix={"fma": 3},
                bytes=256,
                flops=64,
                bound_seconds=1e-6,
                bound="memory",
            ),
        ),
        timings=(
            Timing("captured[0/0]", "compile", 0.121),
            Timing("forward[0/0]", "compile", 0.0042),
            Timing("forward[0/0]", "run", 5.0),
        ),
        measurement=Measurement("cpu", threads=2),
        candidates=(
            Candidate("eager", what="forward", device="cpu", seconds=3e-5, low=2.9e-5, high=3.2e-5),
            Candidate("aot_eager", "aot_eager", "", "forward", "cpu", 4e-5, 3.9e-5, 4.2e-5, compile_seconds=0.5),
        ),
        checks=checks(),
        problems=(Problem("ttir", "this machine has no Triton", "install triton", "0/0"),),
    )


def xrayed_record() -> Record:
    """The small record after an x-ray: two sites, the second only behind the first, and fixes that were tried."""
    matmul = Span("cell", 2, 2, 13, 18, "f", "x @ w")
    softmax = Span("cell", 3, 3, 11, 36, "f", "torch.softmax(scores, -1)")
    mended = Suggestion("Write it out.", "cell", 3, 3, "    return scores.softmax(-1)", (), "machine-applicable")
    first = Site("site[0]", "cell", 2, matmul, "a break", "`x @ w` breaks.", "torch's words", (matmul,))
    second = Site(
        "site[1]", "cell", 3, softmax, "a break", "`torch.softmax` breaks.", "torch's words", (softmax,),
        ("if scores",), (ValueOrigin("scores", Span("cell", 2, 2, 4, 18, "f", "scores = x @ w")),), as_it_is=False,
        behind="site[0]", suggestions=(mended,),
    )  # fmt: skip
    fixes = (
        Fix("site[0]", None, "no fix known", "nothing is known that mends it"),
        Fix("site[1]", mended, "verified", "the break is gone", together=True, cost=ProgramCost(1, 0, 3, 9)),
    )
    patch = (
        "--- a/cell\n+++ b/cell\n@@ -3 +3 @@\n-    return torch.softmax(scores, -1)\n+    return scores.softmax(-1)\n"
    )
    return small_record().with_fields(
        xray=XRay(
            (first, second),
            fixes=fixes,
            patch=patch,
            left=(first,),
            cost=ProgramCost(2, 1, 3, 12),
            cost_after=ProgramCost(1, 0, 3, 9),
        )
    )
