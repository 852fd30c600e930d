"""A hand-written record with two Triton kernels, and machine code like that of `compiler.binary`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from compiler.record import Artifact, Binary, Entity, Kernel, Problem, Record
from compiler.record.builder import in_kernel_order
from compiler.record.options import Options

SOURCE = """\
def f(x):
    y = torch.sigmoid(x)
    z = y.sum(-1)
    return z * 2
"""
POST_GRAD = """\
def forward(self, arg0_1):
    sigmoid = torch.ops.aten.sigmoid.default(arg0_1)
    sum_1 = torch.ops.aten.sum.dim_IntList(sigmoid, [-1])
    mul = torch.ops.aten.mul.Tensor(sum_1, 2)
    return (mul,)
"""
SUM, DOUBLE = "triton_per_fused_sigmoid_sum_0", "triton_poi_fused_mul_1"
KERNELS = f"""\
import triton

{SUM} = async_compile.triton('{SUM}', '''
import triton
@triton.jit
def {SUM}(in_ptr0, out_ptr0, xnumel):
    tmp0 = tl.load(in_ptr0 + r0)
    tmp1 = tl.sigmoid(tmp0)
    tmp2 = tl.sum(tmp1, 1)
    tl.store(out_ptr0, tmp2)
''', device_str='cuda')
{DOUBLE} = async_compile.triton('{DOUBLE}', '''
import triton
@triton.jit
def {DOUBLE}(in_ptr0, out_ptr0, xnumel):
    tmp0 = tl.load(in_ptr0 + x0)
    tl.store(out_ptr0, tmp0 * 2)
''', device_str='cuda')
{SUM}.run(arg0_1, buf0)
{DOUBLE}.run(buf0, buf1)
"""
ARTIFACT = "kernels[0/0 inference]"
LINES = {SUM: {7: (5, "sigmoid"), 8: (6, "sigmoid"), 9: (7, "sum_1"), 10: (8, "sum_1")},
         DOUBLE: {16: (5, "mul"), 17: (6, "mul")}}  # fmt: skip
"""Kernel -> line of the artifact -> line of the Triton source, and the node that it computes."""
SPANS = {SUM: (3, 11), DOUBLE: (12, 18)}


def fused_record(target: str = "h100") -> Record:
    return Record(
        title="f",
        options=Options(target=target),
        target=target,
        artifacts=(source(), post_grad(), kernels()),
        kernels=tuple(
            Kernel(
                f"{ARTIFACT}.{name}", name, "0/0", ARTIFACT, "triton", kind, SPANS[name], calls=1, bytes=moved
            )
            for name, kind, moved in ((SUM, "reduction", 4096), (DOUBLE, "pointwise", 256))
        ),
    )  # fmt: skip


def source() -> Artifact:
    found = tuple(
        Entity(f"source[cell].L{line}", "line", SOURCE.splitlines()[line - 1].strip(), {"line": line})
        for line in (2, 3, 4)
    )
    lines = {line: (f"source[cell].L{line}",) for line in (2, 3, 4)}
    return Artifact("source[cell]", "source", "cell", "python", SOURCE, "", lines, found)


def post_grad() -> Artifact:
    name = "post_grad[0/0 inference]"
    found = (
        Entity(f"{name}.sigmoid", "call", "sigmoid", {"target": "aten.sigmoid.default"}, (), ("source[cell].L2",)),
        Entity(f"{name}.sum_1", "call", "sum_1", {"target": "aten.sum.dim_IntList"}, (f"{name}.sigmoid",),
               ("source[cell].L3",)),
        Entity(f"{name}.mul", "call", "mul", {"target": "aten.mul.Tensor"}, (f"{name}.sum_1",), ("source[cell].L4",)),
    )  # fmt: skip
    lines = {line: (entity.id,) for line, entity in zip((2, 3, 4), found, strict=True)}
    return Artifact(name, "post_grad", "post-grad", "python", POST_GRAD, "0/0", lines, found)


def kernels() -> Artifact:
    entities, lines = [], {}
    for name, (first, last) in SPANS.items():
        kernel = f"{ARTIFACT}.{name}"
        nodes = dict.fromkeys(node for _, node in LINES[name].values())
        origins = tuple(f"post_grad[0/0 inference].{node}" for node in nodes)
        entities.append(Entity(kernel, "kernel", name, {"language": "triton", "line": first}, (), origins))
        lines |= dict.fromkeys(range(first, last + 1), (kernel,))
        for line, (number, node) in LINES[name].items():
            label = KERNELS.splitlines()[line - 1].strip()
            origin = (f"post_grad[0/0 inference].{node}",)
            entities.append(Entity(f"{kernel}.L{number}", "triton", label, {"line": number}, (), origin))
            lines[line] = (kernel, f"{kernel}.L{number}")
    return Artifact(ARTIFACT, "kernels", "generated code", "python", KERNELS, "0/0", lines, tuple(entities))


def machine_code(kernel: Kernel, stage: str) -> Artifact:
    """Two instructions for each line of Triton, below a line marker."""
    name = f"{stage}[0/0 inference {kernel.name}]"
    rows = [f".visible .entry {kernel.name}("]
    entities = [Entity(f"{name}.kernel", "kernel", kernel.name, {"line": 1}, (), (kernel.id,))]
    lines = {1: (f"{name}.kernel",)}
    for number, _ in LINES[kernel.name].values():
        group = f"{name}.L{number}"
        attrs = {"line": number, "instructions": 2}
        entities.append(Entity(group, "instructions", f"line {number}", attrs, (), (f"{kernel.id}.L{number}",)))
        place = f"\t.loc\t1 {number} 0" if stage == "ptx" else f"\t//## {kernel.name}.py:{number}"
        code = "\tld.global.b32 \t%r1, [%rd1];" if stage == "ptx" else "    /*0010*/  LDG.E R1, [R2] ;"
        for text in (place, code, code):
            rows.append(text)
            lines[len(rows)] = (group,)
    return Artifact(
        name, stage, kernel.name, stage, "\n".join(rows) + "\n", "0/0", lines, tuple(entities), {"kernel": kernel.id}
    )


def binary(kernel: Kernel, target: str) -> Binary:
    registers = {"h100": 26, "a100": 31}[target]
    return Binary(
        kernel.id, target, {"XBLOCK": 1, "num_warps": 2}, ({"XBLOCK": 1}, {"XBLOCK": 8}), registers, 0, 512, 64, 16,
        0.5, "registers", {"global load": 2, "fma": 3}, 32, 32, kernel.bytes, 1000, 2e-6, "memory",
    )  # fmt: skip


def growing(record: Record, *, kernels: Collection[str] | None = None, config: int = 0) -> Iterator[Record]:
    """Stand for `compiler.binary.compile_incrementally`; the last kernel is compiled first."""
    wanted = [kernel for kernel in record.kernels if kernels is None or kernel.id in kernels]
    for kernel in reversed(wanted):
        made = tuple(machine_code(kernel, stage) for stage in ("ptx", "sass"))
        grown = replace(
            record,
            artifacts=(*record.artifacts, *made),
            binaries=(*record.binaries, replace(binary(kernel, record.target), config={"XBLOCK": 1 + 7 * config})),
        )
        record = in_kernel_order(grown)
        yield record


def failing(record: Record, **_: object) -> Iterator[Record]:
    """A compiler stub where ptxas refuses every kernel."""
    problem = Problem("ptx", f"{SUM}: ptxas: too much shared memory", "smaller blocks", "0/0")
    yield record.with_fields(problems=(*record.problems, problem))
