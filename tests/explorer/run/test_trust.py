"""Code of a loaded run is executed only after the user agreed, and only if a code generator could have written it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import explorer
from compiler.kernel_lab.edit import source_of
from compiler.option_checks import parse_options
from compiler.record import Record, RecordError, UntrustedError
from compiler.triton_interpreter.kernel_inputs import kernel_inputs
from compiler.triton_interpreter.process import Interpreter
from compiler.triton_interpreter.program import ProgramError
from compiler.untrusted.host_code import executable_host_code
from compiler.untrusted.triton_source import RefusedSourceError, check_triton
from explorer import cli
from explorer.run.run import Run
from explorer.run.widget import Explorer
from tests.compiler.hand_written import DEVICE, HEADER, USERS, dot, pointwise, record_of, transpose
from tests.explorer.findings import fused_record as fused

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

NAME = "triton_poi_0"


def hostile(code: str, mark: Path) -> Record:
    """A record whose kernel has a line at module level that would create a file."""
    _, source = pointwise(NAME)
    return record_of((NAME, f"{source}\n{code.replace('MARK', repr(str(mark)))}\n"))


def loaded(record: Record, folder: Path) -> Run:
    path = folder / "run.json"
    Run(record).save(path)
    return explorer.load(path)


EVIL = "open(MARK, 'w').write('executed')"


def test_a_loaded_run_asks_before_it_compiles(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    run = loaded(hostile(EVIL, mark), tmp_path)
    asked: list[Callable[[], object]] = [
        lambda: run["ptx"], lambda: run["ttir"], lambda: run.binaries, run.compile_kernels,
        lambda: run.diff(run)["sass"], lambda: run.diff(run).kernels,
    ]  # fmt: skip
    for ask in asked:
        with pytest.raises(UntrustedError, match=rf"the source of {NAME}.*call run.trust\(\)"):
            ask()
    assert not mark.exists()


def test_trusted_run_refuses_non_generated_source(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    run = loaded(hostile(EVIL, mark), tmp_path)
    with pytest.raises(KeyError, match=r"its source is not what a code generator writes: line .* is no definition"):
        run.trust()["ptx"]
    assert not mark.exists()


def test_a_trusted_run_compiles_its_kernels(tmp_path: Path) -> None:
    run = loaded(record_of(pointwise(NAME)), tmp_path)
    assert ".visible .entry" in run.trust()["ptx"].text
    assert list(run.binaries["registers"] > 0) == [True]


def test_host_code_from_files_is_parsed_strictly(tmp_path: Path) -> None:
    """To make a kernel's inputs, the functions around it are called; no other line of its module is executed."""
    mark = tmp_path / "mark"
    host = "def get_args():\n    return []\n\ndef call(args):\n    return ()\n"
    evil = EVIL.replace("MARK", repr(str(mark)))
    record = loaded(record_of(pointwise(NAME), call=f"{host}{evil}\n"), tmp_path).trust().record
    with Interpreter() as interpreter, pytest.raises(ProgramError, match="is not launched"):
        kernel_inputs(record, record.kernels[0], {}, interpreter)
    assert not mark.exists()


GET_ARGS = "def get_args():\n    {}\n    return []\n"
HOSTILE_HOST_CODE = {
    "module_of_torch": GET_ARGS.format("torch.os.system(1)"),
    "value_of_torch": GET_ARGS.format("x = torch.hub"),
    "math": GET_ARGS.format("math = torch.float32"),
    "unpacked": GET_ARGS.format("x, extern_kernels = 1, 2"),
    "partition": GET_ARGS.format("partition_0 = 1"),
    "alias": GET_ARGS.format("aten = 1"),
    "with": GET_ARGS.format("with torch.cuda._DeviceGuard(0) as rand_strided:\n        pass"),
    "class_of_namespace": GET_ARGS.format("x = aten.__class__.mro()"),
    "dunder_of_module": GET_ARGS.format("math.__getattribute__(1)"),
    "annotation": "def call(args: exec('1'), /):\n    return ()\n",
    "argument": "def call(math):\n    return math.load(1)\n",
}


@pytest.mark.parametrize("code", HOSTILE_HOST_CODE.values(), ids=HOSTILE_HOST_CODE)
def test_hostile_host_code_is_refused(code: str) -> None:
    with pytest.raises(RefusedSourceError, match="in the host code"):
        executable_host_code(code)


@pytest.mark.parametrize("evil", ["x[{}] = y", "x.y = z[{}]", "x = y", "x"])
def test_kernel_definitions_are_plain_assignments(evil: str) -> None:
    """All targets of an assignment are evaluated, not only the first."""
    code = f"{evil.format('exec(1)')} = k = async_compile.triton('name', 'source')\n"
    assert "async_compile" not in executable_host_code(code)
    assert "async_compile" not in executable_host_code("torch = async_compile.triton('name', 'source')\n")
    assert "async_compile" in executable_host_code("k = async_compile.triton('name', 'source')\n")


def test_launch_types_must_be_types(tmp_path: Path) -> None:
    """Triton evaluates the layout of a tensor descriptor's type."""
    kernel = {"line": 1, "launch": LAUNCH | {"types": {"x_ptr": "tensordesc<fp32[64],exec('1')>"}}}
    plain = json.loads(record_of(pointwise(NAME)).to_json())
    entities = plain["artifacts"][0]["entities"]
    entities.append({"id": "k", "kind": "kernel", "label": "k", "attrs": kernel})
    with pytest.raises(RecordError, match=r"attrs\.launch\.types"):
        Record.from_json(json.dumps(plain))
    kernel["launch"] = LAUNCH
    Record.from_json(json.dumps(plain))


LAUNCH: dict[str, Any] = {
    "arguments": [["float32", [64], [1]], 64], "written": [0],
    "types": {"x_ptr": "*fp32", "s0": "i32", "X": "constexpr"},
    "aligned": ["x_ptr"], "configs": [{"X": 64, "num_warps": 1, "num_stages": 1}], "grid": [[64, "X"]],
    "is_folded": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"types": {"x y": "*fp32"}}, r"launch\.types"),
        ({"types": {"x": "fp32", "X": "constexpr"}}, r"launch\.aligned"),
        ({"configs": []}, r"launch\.configs"), ({"configs": [{"X": 64}]}, r"launch\.configs"),
        ({"configs": [{"X": "64"}]}, r"launch\.configs"), ({"grid": [[64, "Y"]]}, r"launch\.grid"),
        ({"arguments": [["float32 x", [64], [1]]]}, r"launch\.arguments"), ({"written": [-1]}, r"launch\.written"),
    ],
)  # fmt: skip
def test_a_damaged_launch_is_refused_by_field(change: dict[str, Any], field: str) -> None:
    plain = json.loads(record_of(pointwise(NAME)).to_json())
    kernel = {"line": 1, "launch": LAUNCH | change}
    plain["artifacts"][0]["entities"].append({"id": "k", "kind": "kernel", "label": "k", "attrs": kernel})
    with pytest.raises(RecordError, match=field):
        Record.from_json(json.dumps(plain))
    del kernel["launch"]["grid"], kernel["line"]  # type: ignore[attr-defined]
    with pytest.raises(RecordError, match=r"attrs\.(launch|line)"):
        Record.from_json(json.dumps(plain))


def test_trust_is_not_saved(tmp_path: Path) -> None:
    trusted = loaded(fused.fused_record(), tmp_path).trust()
    for name in ("again.json", "again.html"):
        again = explorer.load(trusted.save(tmp_path / name))
        assert again.record == trusted.record
        with pytest.raises(UntrustedError):
            again["ptx"]


def test_file_cannot_declare_itself_trusted(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    plain = json.loads(fused.fused_record().to_json())
    path.write_text(json.dumps(plain | {"trust": "trusted", "versus": plain | {"trust": "trusted"}}))
    run = explorer.load(path)
    for side in (run.record, run.record.versus):
        assert side is not None
        with pytest.raises(UntrustedError):
            side.require_trust()


def test_a_run_of_this_process_is_trusted() -> None:
    Run(fused.fused_record()).record.require_trust()


def test_widget_asks_before_executing_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = loaded(fused.fused_record(), tmp_path)
    widget = run.widget()
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(widget, "send", lambda message, **_: sent.append(message))
    widget._on_message(widget, {"type": "compile"}, [])
    run.compiler.join(30)
    assert sent == [{"type": "confirm", "kernels": [fused.SUM, fused.DOUBLE], "count": 2}]
    assert widget.compiling == {}
    assert not run.record.binaries


def test_the_widget_compiles_after_a_click(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.binary.compile_incrementally", fused.growing, raising=False)
    run = loaded(fused.fused_record(), tmp_path)
    widget = run.widget()
    widget._on_message(widget, {"type": "trust"}, [])
    run.compiler.join(30)
    assert len(run.record.binaries) == 2


def test_comparison_with_a_loaded_side_requires_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.binary.compile_incrementally", fused.growing, raising=False)
    mine, theirs = Run(fused.fused_record()), loaded(fused.fused_record("a100"), tmp_path)
    widget = mine.diff(theirs).widget()
    assert isinstance(widget, Explorer)
    widget._on_message(widget, {"type": "compile"}, [])
    widget.compiler.join(30)
    assert not mine.record.binaries
    assert not theirs.record.binaries
    widget._on_message(widget, {"type": "trust"}, [])
    widget.compiler.join(30)
    assert theirs.record.binaries


def test_the_command_line_asks_for_trust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded(record_of(pointwise(NAME)), tmp_path)
    path = str(tmp_path / "run.json")
    assert cli.main(["show", path, "ptx"]) == 2
    assert "on the command line, add --trust" in capsys.readouterr().err
    assert cli.main(["show", path, "ptx", "--trust"]) == 0
    assert ".visible .entry" in capsys.readouterr().out


HELPER = "@triton.jit\ndef helper(x):\n    return {}\n"
"""A function that Triton reads, and its interpreter executes."""

HOSTILE = {
    "call": "open('/tmp/x', 'w')",
    "import": "import os",
    "import_from": "from os import system",
    "import_inside": HELPER.format("x") + "    import os",
    "relative": "from . import os",
    "submodule": "from triton.language import core\nfrom triton.language.core import inspect",
    "runtime": "from triton import runtime",
    "builtin": "from triton.language.core import builtins",
    "torch": "import torch\nx = torch.load('x.pt')",
    "default": "@triton.jit\ndef helper(x=exec('1')):\n    pass\n",
    "decorator": "@exec\n@triton.jit\ndef helper(x):\n    pass\n",
    "decorator_call": "@triton_heuristics.pointwise(size_hints=exec('1'))\n@triton.jit\ndef helper(x):\n    pass\n",
    "decorator_other": "@triton_heuristics.cached_autotune\n@triton.jit\ndef helper(x):\n    pass\n",
    "decorator_lambda": "@(lambda f: f)\ndef helper(x):\n    pass\n",
    "plain_function": "def helper(x):\n    pass\n",
    "annotation": "@triton.jit\ndef helper(x: exec('1')):\n    pass\n",
    "return_annotation": "@triton.jit\ndef helper(x) -> exec('1'):\n    pass\n",
    "global_annotation": "X: exec('1') = 3",
    "class": "class A:\n    x = open('/tmp/x', 'w')\n",
    "metaclass": "class A(metaclass=exec):\n    pass\n",
    "f_string": "X = f\"{exec('1')}\"",
    "walrus": "X = (y := 3)",
    "lambda": "X = lambda: 0",
    "comprehension": "X = [exec('1') for _ in (1,)]",
    "if": "if True:\n    X = 1\n",
    "try": "try:\n    X = 1\nexcept Exception:\n    pass\n",
    "with": "with open('/tmp/x') as X:\n    pass\n",
    "global_call": "X = tl.constexpr(exec('1'))",
    "rebound": "tl = 3",
    "dunder": "__builtins__ = 3",
    "module_attribute": HELPER.format("triton.runtime.os.system('id')"),
    "core_attribute": HELPER.format("tl.core.inspect.sys.exit()"),
    "helpers_attribute": HELPER.format("triton_helpers.warnings.sys.exit()"),
    "tensor_handle": HELPER.format("x.handle.data.tofile('/tmp/x')"),
    "class_of": HELPER.format("x.__class__.__base__.__subclasses__()"),
    "getattr": HELPER.format("getattr(x, 'y')"),
    "eval": HELPER.format("eval('1')"),
    "f_string_inside": HELPER.format('f"{x.__class__}"'),
    "format": HELPER.format("'{0.__class__}'.format(x)"),
    "nested": "@triton.jit\ndef helper(x):\n    def inner():\n        pass\n    return x\n",
    "global_statement": "@triton.jit\ndef helper(x):\n    global tl\n    return x\n",
    "lambda_inside": HELPER.format("(lambda: x)()"),
    "extern_library": HELPER.format("tl.core.extern_elementwise('', '/etc/passwd', [x], {}, True)"),
    "incbin": HELPER.format("tl.inline_asm_elementwise('.incbin \"/etc/passwd\"', '=r', [x], tl.int32, True, 1)"),
    "incbin_sum": HELPER.format("tl.inline_asm_elementwise('.in' + 'cbin', '=r', [x], tl.int32, True, 1)"),
    "incbin_f_string": HELPER.format("tl.inline_asm_elementwise(f\"{'.in'}cbin\", '=r', [x], tl.int32, True, 1)"),
    "incbin_keyword": HELPER.format("tl.inline_asm_elementwise(asm='.in' + 'cbin', args=[x])"),
    "incbin_macro": HELPER.format(
        "tl.inline_asm_elementwise('.macro m a\\n.\\\\a .endm', '=r', [x], tl.int32, True, 1)"
    ),
    "incbin_alternative": HELPER.format("tl.inline_asm_elementwise('.i$(nc$|x$)bin', '=r', [x], tl.int32, True, 1)"),
    "assembly_renamed": "f = tl.inline_asm_elementwise",
    "assembly_renamed_inside": HELPER.format("x") + "    f = tl.inline_asm_elementwise\n",
    "assembly_imported": "from triton.language import inline_asm_elementwise as f\n" + HELPER.format("(f, x)"),
    "filename": "@triton_heuristics.pointwise(size_hints={'x': 64}, filename='/tmp/x.py')\n" + HELPER.format("x"),
    "shadowed_builtin": "@triton.jit\ndef range(x):\n    return x\n",
    "stars": "X = [*exec('1')]",
    "surrogates": "X = '\\ud800'\nexec(X)",
    "nul": "X = 1\0",
    "deep": "X = " + "(" * 5000 + ")" * 5000,
    "broken": "def",
}


@pytest.mark.parametrize("code", HOSTILE.values(), ids=HOSTILE)
def test_hostile_source_is_refused(code: str) -> None:
    _, source = pointwise(NAME)
    check_triton(source)
    with pytest.raises(RefusedSourceError):
        check_triton(f"{source}\n{code}\n")


@pytest.mark.parametrize(
    ("genuine", "evil"),
    [
        ("'python': ['8', '2', '1']", "'python': ['exit()', '2', '1']"),
        ("'python': ['8', '2', '1']", "'python': ['9**9**9**9', '2', '1']"),
        ("'python': ['8', '2', '1']", "'python': ['1 << 99999999999', '2', '1']"),
        ("'python': ['8', '2', '1']", "'python': ['(lambda: 1)()', '2', '1']"),
        ("'signature': {'x_ptr': '*fp32'", "'signature': {'x_ptr': 'tensordesc<fp32[64],exec(1)>'"),
        ("'constants': {'DTYPE': tl.float16}", "'constants': {'DTYPE': tl.core.inspect}"),
        ("custom_kernel=True", "custom_kernel=exec('1')"),
        ("custom_kernel=True", "**exec('1')"),
    ],
)
def test_hostile_metadata_is_refused(genuine: str, evil: str) -> None:
    """Inductor evaluates strings in a kernel's metadata: the launch grid's."""
    check_triton(USERS)
    assert genuine in USERS
    with pytest.raises(RefusedSourceError):
        check_triton(USERS.replace(genuine, evil))


def test_assembly_of_a_generator_is_not_refused() -> None:
    """Inductor packs values with assembly."""
    _, source = pointwise(NAME)
    call = "tl.inline_asm_elementwise('mov.b32 $0, ${1};', '=r,r', [x], tl.int32, True, 1)"
    check_triton(f"{source}\n{HELPER.format(call)}")


@pytest.mark.parametrize("source", [pointwise()[1], dot(3)[1], transpose()[1], USERS])
def test_genuine_source_is_not_refused(source: str) -> None:
    assert DEVICE.partition("(")[0] in HEADER
    check_triton(source)


CPP = """\
extern "C" int kernel_x(const float* __restrict in_x, float* __restrict out_y, long s0, int threads) {
    #pragma omp parallel for simd num_threads(threads) if(s0 >= 1000)
    for (long i0 = 0; i0 < s0; i0++) {
        // f.py:3 return x.exp()  [system("id")]
        const float y = ::maximum<float>(::expf(in_x[i0]), -__builtin_inff());
        out_y[i0] = (float)(y * 2.0f);
    }
    return 0;
}
"""
LINE = "out_y[i0] = (float)(y * 2.0f);"


@pytest.mark.parametrize(
    "evil",
    [
        'system("id");', "::system(0);", 'asm("nop");', "__asm__(\"\");", "abort();", "((void (*)())0)();",
        "(&expf)[0](y);", "int system(const char*); ", "struct A { A() { } } a;", "auto f = [] { return 1; };",
        "__builtin_trap();", "throw 1;", "new int;", '#include "/etc/passwd"\n', "#define x y\n",
        "#pragma GCC poison x\n",
        "/* */", "\\\n", '"text";', "goto x;", "reinterpret_cast<long>(in_x);", "} int other() {",
        "__attribute__((x)) int z;", "int z = '//'; ::system(0);", "%:define expf system", "%:include </dev/zero>",
        "// x \\\n}\n{ float q = 1.0f;", "// x \r::system(0);", "/* // */ ::system(0);", "int system\n(const char*);",
        "::system\n(0);", "long q{(long)&system};", "[[gnu::noinline]] int q = 1;", "<% int x = 1; %>",
        "extern int other;", "float q = ::expf(1.0f) (2);", "#pragma omp simd if(::system(0))\n",
        "#pragma omp simd declare\n", "int asm(1);", "comparison_fn_t expf = (comparison_fn_t) system;",
    ],
)  # fmt: skip
def test_hostile_cpp_is_refused(evil: str) -> None:
    from compiler.kernel_lab.cpp_source import check_cpp

    check_cpp(CPP)
    with pytest.raises(RefusedSourceError):
        check_cpp(CPP.replace(LINE, f"{LINE}\n{evil}"))


def test_kernels_of_both_backends_are_not_refused() -> None:
    """Forward and backward of a model by each backend; no generated code is rejected."""
    import torch

    from compiler.engine import Exploration
    from compiler.kernel_lab.edit import check_executable
    from tests.compiler.models import MLP

    count = 0
    for options in ({"target": "h100"}, {"backend": "tcompile", "target": "h100"}, {"backend": "tcompile"}):
        given = {"target": "cpu"} | options
        with Exploration(parse_options(**given)) as exploration:
            exploration.compile(MLP())(torch.randn(64, 64)).sum().backward()
        record = exploration.record.with_trust("trusted")
        for kernel in record.kernels:
            if kernel.language in ("triton", "cpp"):
                check_executable(record, kernel, source_of(record, kernel))
                count += 1
    assert count > 10
