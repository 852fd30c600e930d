"""Records of logs: graphs as torch prints them, links between them, kernels, guards, recompilations."""

from __future__ import annotations

import json
import subprocess
import sys
from hashlib import md5
from pathlib import Path

import pytest

from compiler.logs.capture import failure_of
from compiler.logs.events import Log
from compiler.logs.graph_text import PrintedNode, parse_graph, type_attrs
from compiler.logs.job import Job
from compiler.logs.kernel_inference import may_compute
from compiler.logs.links import origins_by_name, origins_by_trace
from compiler.logs.output_code import allocations, kernels_of_code
from compiler.logs.phases import phase_times
from compiler.logs.records import record_of
from compiler.record import Record

CAPTURED = """
class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[4, 8][8, 1]cpu", L_w_: "f32[6, 8][8, 1]cpu", L_b_: "f32[6][1]cpu"):
        l_x_ = L_x_
        l_w_ = L_w_
        l_b_ = L_b_

        # File: /home/me/model.py:3 in f, code: return gelu(linear(x, w, b)).sum()
        linear: "f32[4, 6][6, 1]cpu" = torch._C._nn.linear(l_x_, l_w_, l_b_);  l_x_ = l_w_ = l_b_ = None
        gelu: "f32[4, 6][6, 1]cpu" = torch._C._nn.gelu(linear, approximate = 'none');  linear = None
        sum_1: "f32[][]cpu" = gelu.sum();  gelu = None
        return (sum_1,)
"""
TRACED = """
class GraphModule(torch.nn.Module):
    def forward(
        self,
        primals_1: "f32[4, 8][8, 1]cpu",  # PlainAOTInput(idx=0)
        primals_2: "f32[6, 8][8, 1]cpu",  # PlainAOTInput(idx=1)
        primals_3: "f32[6][1]cpu",  # PlainAOTInput(idx=2)
    ):
        # File: /home/me/model.py:3 in f, code: return gelu(linear(x, w, b)).sum()
        permute: "f32[8, 6][1, 8]cpu" = torch.ops.aten.permute.default(primals_2, [1, 0]);  primals_2 = None
        addmm: "f32[4, 6][6, 1]cpu" = torch.ops.aten.addmm.default(primals_3, primals_1, permute);  permute = None
        mul: "f32[4, 6][6, 1]cpu" = torch.ops.aten.mul.Tensor(addmm, 0.5)
        mul_1: "f32[4, 6][6, 1]cpu" = torch.ops.aten.mul.Tensor(addmm, 0.7071067811865476)
        erf: "f32[4, 6][6, 1]cpu" = torch.ops.aten.erf.default(mul_1);  mul_1 = None
        add: "f32[4, 6][6, 1]cpu" = torch.ops.aten.add.Tensor(erf, 1);  erf = None
        mul_2: "f32[4, 6][6, 1]cpu" = torch.ops.aten.mul.Tensor(mul, add);  mul = add = None
        sum_1: "f32[][]cpu" = torch.ops.aten.sum.default(mul_2);  mul_2 = None
        return (
            sum_1,  # PlainAOTOutput(idx=0)
            primals_1,  # SavedForBackwardsAOTOutput(idx=0)
        )
"""
COND = """
class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[4][1]cpu"):
        l_x_ = L_x_
        # File: /home/me/model.py:3 in f, code: return torch.cond(x.sum() > 0, g, h, (x,))
        gt: "b8[][]cpu" = l_x_ > 0
        cond_true_0 = self.cond_true_0
        cond_false_0 = self.cond_false_0
        cond = torch.ops.higher_order.cond(gt, cond_true_0, cond_false_0, (l_x_,));  gt = cond_true_0 = None
        getitem: "f32[4][1]cpu" = cond[0];  cond = None
        return (getitem,)

    class cond_true_0(torch.nn.Module):
        def forward(self, l_x_: "f32[4][1]cpu"):
            sin: "f32[4][1]cpu" = l_x_.sin()
            return (sin,)

    class cond_false_0(torch.nn.Module):
        def forward(self, l_x_: "f32[4][1]cpu"):
            cos: "f32[4][1]cpu" = l_x_.cos()
            return (cos,)
"""


def test_printed_graph_is_read_as_an_observed_one_is_shown() -> None:
    graph = parse_graph(CAPTURED)
    assert graph.text.splitlines() == [
        'def forward(self, l_x_: "f32[4, 8][8, 1]cpu", l_w_: "f32[6, 8][8, 1]cpu", l_b_: "f32[6][1]cpu"):',
        "    # File: /home/me/model.py:3 in f, code: return gelu(linear(x, w, b)).sum()",
        '    linear: "f32[4, 6][6, 1]cpu" = torch._C._nn.linear(l_x_, l_w_, l_b_)',
        "    gelu: \"f32[4, 6][6, 1]cpu\" = torch._C._nn.gelu(linear, approximate = 'none')",
        '    sum_1: "f32[][]cpu" = gelu.sum()',
        "    return (sum_1,)",
    ]
    assert graph.lines == {3: "linear", 4: "gelu", 5: "sum_1", 6: "output"}
    assert [(node.op, node.target) for node in graph.calls()] == [
        ("call_function", "torch.linear"), ("call_function", "torch.gelu"), ("call_method", "sum"),
    ]  # fmt: skip
    assert type_attrs("bf16[s0, 4][4, 1]cuda:0") == {
        "dtype": "bfloat16", "shape": ["s0", 4], "stride": [4, 1], "device": "cuda:0",
    }  # fmt: skip


def test_nodes_are_linked_to_the_operations_they_were_traced_from() -> None:
    traced = parse_graph(TRACED)
    origins = origins_by_trace(traced, parse_graph(CAPTURED))
    assert {name: found for name, (found,) in origins.items()} == {
        "primals_1": "l_x_", "primals_2": "l_w_", "primals_3": "l_b_", "permute": "linear", "addmm": "linear",
        "mul": "gelu", "mul_1": "gelu", "erf": "gelu", "add": "gelu", "mul_2": "gelu", "sum_1": "sum_1",
    }  # fmt: skip
    later = parse_graph(TRACED.replace("addmm", "mm_plus"))
    assert origins_by_name(later, traced)["mm_plus"] == ("mul", "mul_1"), "a new node takes its users' origins"


def test_bodies_stand_beneath_their_call() -> None:
    graph = parse_graph(COND)
    assert [line.strip() for line in graph.text.splitlines()[3:10]] == [
        "cond = torch.ops.higher_order.cond(gt, cond_true_0, cond_false_0, (l_x_,))",
        'def cond_true_0(l_x_: "f32[4][1]cpu"):',
        'sin: "f32[4][1]cpu" = l_x_.sin()',
        "return (sin,)",
        "",
        'def cond_false_0(l_x_: "f32[4][1]cpu"):',
        'cos: "f32[4][1]cpu" = l_x_.cos()',
    ]
    (cond,) = (node for node in graph.nodes if node.name == "cond")
    assert cond.inputs == ("gt", "l_x_", "cond_true_0.sin", "cond_false_0.cos")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("tensor 'x' size mismatch at index 0. expected 4, actual 8", ("shape", "x", "4", "8")),
        ("tensor 'x' dtype mismatch. expected Float, actual Double", ("dtype", "x", "float32", "float64")),
        ("tensor 'x' requires_grad mismatch. expected requires_grad=0", ("requires_grad", "x", "False", "True")),
        ("L['k'] == 1   # def f(x, k)  # model.py:3 in f", ("number", "k", "the int 1", "")),
        ("L['self'].training == True", ("training mode", "self.training", "True", "")),
        ("___check_type_id(L['k'], 140), type=<class 'int'>", ("type", "k", "int", "")),
        ("GLOBAL_STATE changed: grad_mode ", ("grad mode", "grad mode", "", "")),
        ("something of a later torch", ("condition", "", "something of a later torch", "no longer so")),
    ],
)
def test_recompile_reasons_have_causes(reason: str, expected: tuple[str, ...]) -> None:
    found = failure_of("0/0", reason, ())
    assert (found.cause, found.argument, found.old, found.new) == expected


@pytest.fixture(scope="module")
def record() -> Record:
    return Job.load(Path(__file__).with_name("two_gpus.tar.gz")).record


def test_calls_and_kernels_of_a_gpu_job_are_linked(record: Record) -> None:
    of_kernels = record["kernels"]
    calls = [entity for entity in record.entities() if entity.kind in ("call", "extern", "kernel")]
    assert [entity.id for entity in calls if not entity.origins] == []
    linked = {entity.label: entity.origins for entity in of_kernels.entities if entity.kind == "extern"}
    assert linked["_c10d_functional.all_gather_into_tensor.default"] == (
        "post_grad[0/0 inference].all_gather_into_tensor",
    )
    sources = [entity for entity in record.entities() if entity.kind == "line"]
    reached = {name for line in sources for name in record.linked_ids(line.id)}
    assert {kernel.id for kernel in record.kernels if kernel.language == "triton"} <= reached
    assert {"ir", "fused_ir", "autograd", "timing"} <= {problem.stage for problem in record.problems}
    assert Record.from_json(record.to_json()) == record


def test_collectives_of_a_log_have_bytes_and_lines(record: Record) -> None:
    found = [(each.kind, each.group, each.group_size, each.reduction, each.output_bytes) for each in record.collectives]
    assert found == [("all_reduce", "0", 2, "sum", 16384), ("all_gather", "0", 2, "", 32768)]
    assert [each.lines[0].line for each in record.collectives] == [21, 22]
    assert record.collectives[0].entities == (
        "post_grad[0/0 inference].all_reduce", "kernels[0/0 inference].call_L176",
    )  # fmt: skip
    assert record.collectives[0].wait == "post_grad[0/0 inference].wait_tensor"


def test_times_of_phases_are_those_of_stages() -> None:
    head = "V0102 03:04:05.500000 7 torch/_dynamo/utils.py:12] "
    spans = [("dynamo", 0, "B"), ("compile_attempt_0", 1, "B"), ("create_aot_dispatcher_function", 2, "B"),
             ("inductor_compile", 3, "B"), ("inductor_compile", 7, "E"), ("create_aot_dispatcher_function", 8, "E"),
             ("dynamo", 10, "E")]  # fmt: skip
    events = "".join(
        f'{head}{{"chromium_event": {{}}, "frame_id": 0, "frame_compile_id": 0, "has_payload": ""}}\n'
        f'\t{{"name": "{name}", "ts": {at * 1e6}, "ph": "{kind}"}}\n'
        for name, at, kind in spans
    )
    times = phase_times(Log(("a.log",), (events.encode(),)).events_of("chromium_event"))
    assert {phase.name: phase.seconds for phase in times.phases_of("0/0")} == {
        "inductor_compile": 4, "create_aot_dispatcher_function": 6, "dynamo": 10,
    }  # fmt: skip
    assert times.by_stage(("captured", "joint", "kernels")) == {"kernels": 4, "joint": 2, "captured": 4}


def test_ddp_buckets_of_other_backends_have_their_own_graphs() -> None:
    head = "V0102 03:04:05.500000 7 torch/_dynamo/output_graph.py:12] "
    children = [f'"optimize_ddp_split_child": {{"name": "submod_{bucket}"}}' for bucket in range(3)]
    events = ['"dynamo_output_graph": {}', *children, *['"aot_joint_graph": {}', '"aot_forward_graph": {}'] * 3]
    payload = "".join(f"\t{line}\n" for line in CAPTURED.strip().split("\n"))
    ids = '"frame_id": 0, "frame_compile_id": 0, "has_payload": ""'
    text = "".join(f"{head}{{{event}, {ids}}}\n{payload}" for event in events)
    record = record_of(Log(("a.log",), (text.encode(),)))
    buckets = [f"0/0 submod_{bucket}" for bucket in range(3)]
    assert [artifact.graph for artifact in record.of_stage("joint")] == buckets
    assert [artifact.graph for artifact in record.of_stage("forward")] == buckets


@pytest.mark.parametrize(
    ("optimize_ddp", "why"),
    [("true", "the graph is one bucket"), ('"python_reducer"', "optimize_ddp is 'python_reducer'")],
)
def test_ddp_graph_without_split_says_why(optimize_ddp: str, why: str) -> None:
    head = "V0102 03:04:05.500000 7 torch/_dynamo/output_graph.py:12] "
    stack = '[{"line": 1679, "name": "_run_ddp_forward", "filename": "/x/torch/nn/parallel/distributed.py"}]'
    config = json.dumps(f'{{"optimize_ddp": {optimize_ddp}}}')
    events = [f'"dynamo_start": {{"stack": {stack}}}', '"dynamo_output_graph": {}',
              f'"compilation_metrics": {{"dynamo_config": {config}}}']  # fmt: skip
    payload = "".join(f"\t{line}\n" for line in CAPTURED.strip().split("\n"))
    ids = '"frame_id": 0, "frame_compile_id": 0, "has_payload": ""'
    text = "".join(f"{head}{{{event}, {ids}}}\n{payload}" for event in events)
    record = record_of(Log(("a.log",), (text.encode(),)))
    with pytest.raises(KeyError, match="this log has no code of Inductor"):
        record["ptx"]
    assert "not split into buckets" in record["captured"].title
    assert [(found.verdict, why in found.why) for found in record.decisions] == [("not split", True)]


def test_pieces_of_vllm_have_their_own_graphs_and_other_texts_are_shown() -> None:
    head = "V0102 03:04:05.500000 7 torch/_dynamo/output_graph.py:12] "
    ids = '"frame_id": 0, "frame_compile_id": 0, "has_payload": ""'
    payload = "".join(f"\t{line}\n" for line in CAPTURED.strip().split("\n"))
    config = '"artifact": {"name": "vllm_compilation_config", "encoding": "json"}'
    text = f'{head}{{{config}, {ids}}}\n\t{{"mode": 3}}\n{head}{{"dynamo_output_graph": {{}}, {ids}}}\n{payload}'
    for first, last in ((1, 2048), (8, 8)):
        values = f'{{"submod_name": "submod_0", "compile_range_start": {first}, "compile_range_end": {last}}}'
        text += f'{head}{{"artifact": {{"name": "vllm_piecewise_compile_start"}}, {ids}}}\n\t{values}\n'
        if first == 1:
            text += f'{head}{{"graph_dump": {{"name": "vllm_submod_0"}}, {ids}}}\n{payload}'
        text += f'{head}{{"aot_inference_graph": {{}}, {ids}}}\n{payload}'
    log = Log(("a.log",), (text.encode(),))
    record = record_of(log)
    names = ["0/0 submod_0 sizes 1-2048", "0/0 submod_0 size 8"]
    assert [artifact.graph for artifact in record.of_stage("inference")] == names
    assert record["inference[0/0 submod_0 size 8]"].entity("gelu").origins == ("captured[0/0 submod_0].gelu",)
    assert record["captured[0/0 submod_0]"].entity("gelu").origins == ("captured[0/0].gelu",)
    assert record["other[0/0 vllm_compilation_config]"].text == '{\n  "mode": 3\n}'
    assert Job.of_logs("a", (log,)).unknown == {"vllm_compilation_config": 1}


def test_wrong_checksum_is_a_problem() -> None:
    head = b"V0102 03:04:05.500000 7 torch/_dynamo/output_graph.py:12] "
    text = CAPTURED.strip()
    for checksum, count in ((md5(text.encode(), usedforsecurity=False).hexdigest(), 0), ("0" * 32, 1)):
        fields = f'{{"dynamo_output_graph": {{}}, "frame_id": 0, "frame_compile_id": 0, "has_payload": "{checksum}"}}'
        payload = b"".join(b"\t" + line + b"\n" for line in text.encode().split(b"\n"))
        log = Log(("a.log",), (head + fields.encode() + b"\n" + payload,))
        found = record_of(log)
        assert found["captured[0/0]"].entity("gelu").attrs["line"] == 3
        assert sum("checksum" in problem.reason for problem in found.problems) == count


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("cpp_fused_add_0", False),
        ("cpp_fused_add_gelu_view_12", True),
        ("triton_per_fused__softmax_3", False),
        ("cpp_fused_add_embedding_dense_backward_1", True),  # its parts are not known
    ],
)
def test_operators_that_a_kernel_has_not_in_its_name_are_no_links(kernel: str, expected: bool) -> None:
    erf = PrintedNode("erf", "call", "call_function", "aten.erf.default")
    assert may_compute(kernel, erf) is expected


WRAPPER = """
        buf0 = empty_strided_cpu((2, 3, 4), (12, 4, 1), torch.bool)
        buf1 = reinterpret_tensor(buf0, (2, 6), (6, 1), 12)  # alias
        buf2 = buf1; del buf1  # reuse
        buf3 = empty_strided_cuda((s0, 3), (3, 1), torch.int64)
"""


def test_buffers_have_the_types_that_the_wrapper_allocates() -> None:
    assert allocations(WRAPPER) == {"buf0": (24, "bool"), "buf1": (12, "bool"), "buf2": (12, "bool")}


CAT = """\
def forward(self, primals_1: "f32[2, 3][3, 1]cpu", primals_2: "f32[3, 3][3, 1]cpu", primals_3: "f32[3, 3][3, 1]cpu"):
    mm: "f32[2, 3][3, 1]cpu" = torch.ops.aten.mm.default(primals_1, primals_2);  primals_2 = None
    mm_1: "f32[2, 3][3, 1]cpu" = torch.ops.aten.mm.default(primals_1, primals_3);  primals_1 = primals_3 = None
    cat: "f32[2, 6][6, 1]cpu" = torch.ops.aten.cat.default([mm, mm_1], 1);  mm = mm_1 = None
    return (cat,)
"""
CAT_CODE = """\
cpp_fused_0 = async_compile.cpp_pybinding(['const float*', 'float*'], \'\'\'
extern "C" void kernel(const float* in_ptr0, float* out_ptr0)\'\'\')
cpp_fused_cat_1 = async_compile.cpp_pybinding(['const float*', 'float*'], \'\'\'
extern "C" void kernel(const float* in_ptr0, float* out_ptr0)\'\'\')
def call(args):
    primals_1, primals_2, primals_3 = args
    buf0 = empty_strided_cpu((2, 3), (1, 2), torch.float32)
    cpp_fused_0(primals_1, buf0)
    buf1 = empty_strided_cpu((2, 3), (3, 1), torch.float32)
    extern_kernels.mm(buf0, primals_3, out=buf1)
    buf2 = empty_strided_cpu((2, 3), (3, 1), torch.float32)
    extern_kernels.mm(primals_1, primals_2, out=buf2)
    buf5 = empty_strided_cpu((2, 6), (6, 1), torch.float32)
    buf3 = reinterpret_tensor(buf5, (2, 3), (6, 1), 0)  # alias
    cpp_fused_cat_1(buf2, buf3)
    buf4 = reinterpret_tensor(buf5, (2, 3), (6, 1), 3)  # alias
    cpp_fused_cat_1(buf1, buf4)
    return (buf5, )
"""


def test_copies_slices_and_reordered_calls_are_linked() -> None:
    made, _ = kernels_of_code(
        CAT_CODE, graph="0/0", half="forward", title="", post_grad=None, printed=parse_graph(CAT), logged={}
    )
    links = {
        (entity.label, entity.attrs["line"]): [origin.rpartition(".")[2] for origin in entity.origins]
        for entity in made.entities if entity.kind in ("call", "extern")
    }  # fmt: skip
    assert links == {
        ("cpp_fused_0", 8): ["primals_1"],
        ("extern_kernels.mm", 10): ["mm_1"],
        ("extern_kernels.mm", 12): ["mm"],
        ("cpp_fused_cat_1", 15): ["cat"],
        ("cpp_fused_cat_1", 17): ["cat"],
    }


def test_page_of_a_job_imports_no_torch() -> None:
    code = (
        "import sys; from compiler.logs.job import Job; from explorer.run.job_page import page_of;"
        f"page_of(Job.load({str(Path(__file__).with_name('two_gpus.tar.gz'))!r})); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
