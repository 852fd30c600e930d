"""The glossary explains every instruction, operation and function in a kernel, and links to documentation."""

from __future__ import annotations

import importlib
import re
import subprocess
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from compiler.binary import compile_record
from compiler.binary.listing import NVDISASM_OPTIONS, instructions
from compiler.engine import Exploration
from compiler.option_checks import parse_options
from compiler.record import Record
from explorer.glossary import Meaning, explain, for_text
from explorer.glossary.torch_docs import first_sentence, from_torch
from tests.compiler.broken import MODERN, TORCH

HELPERS_SINCE_2_13 = {
    "fp8e4m3fn_to_float32", "inline_asm_pack", "inline_asm_unpack", "online_softmax_combine_with_sum", "pow_integer",
    "rand4x", "randn4x", "rand_eager_kernel",
}  # fmt: skip
HELPERS_SINCE_2_15 = {
    "fmax2", "fmaximum", "max2_strict", "max_with_first_index", "min2_strict", "min_with_first_index", "nextafter",
    "online_softmax_reduce_scalar_combine", "prod_inner_tree",
}  # fmt: skip
"""Functions of Inductor's triton_helpers.py."""
FILES = ("aarch64", "amdgcn", "aten", "llvm", "mlir", "ptx", "sass", "triton", "x86")
HOSTS = {
    "developer.arm.com",
    "docs.nvidia.com",
    "docs.pytorch.org",
    "docs.python.org",
    "github.com",
    "llvm.org",
    "mlir.llvm.org",
    "triton-lang.org",
    "www.amd.com",
    "www.felixcloutier.com",
}
ISA = "https://docs.nvidia.com/cuda/parallel-thread-execution/index.html"


def groups(name: str) -> list[dict[str, Any]]:
    return tomllib.loads(files("explorer.glossary").joinpath(f"{name}.toml").read_text("utf-8"))["group"]


class Varied(nn.Module):
    """A bit of everything: reductions, scans, sorting, random numbers, gathers, scatters, special functions."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(32, 64), nn.LayerNorm(64)

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(self.norm(self.table(ids) + x.half().float()), 0.1)
        x = (
            torch.sort(nn.functional.gelu(x[:, :8])).values.sum(-1, keepdim=True)
            + torch.cumsum(x, -1)
            + torch.sin(x) * torch.log1p(x.abs())
        )
        y = x.softmax(-1) + torch.tanh(x) + (ids[:, None] // 3 % 5) * torch.rsqrt(x * x + 1)
        return y.to(torch.bfloat16).argmax(-1) + y.pow(1.5).amax(-1) + y.scatter_add(-1, ids[:, None], y[:, :1]).sum(-1)


def varied(gpu: str, *, backward: bool) -> Record:
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    torch.manual_seed(0)
    with Exploration(parse_options(target=gpu)) as exploration, torch.set_grad_enabled(backward):
        value = exploration.compile(Varied())(torch.randint(32, (256,)), torch.randn(256, 64))
        if backward:
            value.sum().backward()
    return exploration.record


@pytest.fixture(scope="module")
def h100() -> Record:
    return varied("h100", backward=True)


@pytest.fixture(scope="module")
def mi300x() -> Record:
    return varied("mi300x", backward=False)


@pytest.mark.parametrize("gpu", ["h100", "mi300x"])
def test_every_instruction_of_compiled_kernels_is_explained(gpu: str, request: pytest.FixtureRequest) -> None:
    record = compile_record(request.getfixturevalue(gpu))
    binaries = [artifact for artifact in record.artifacts if "kernel" in artifact.attrs]
    assert len({artifact.stage for artifact in binaries}) >= 4
    for artifact in binaries:
        mnemonics = {mnemonic for _line, mnemonic in instructions(artifact.language, artifact.text)}
        assert not [mnemonic for mnemonic in mnemonics if explain(artifact.language, mnemonic) is None]


def test_every_operation_of_the_graphs_is_explained(h100: Record) -> None:
    targets = {
        entity.attrs["target"]
        for stage in ("joint", "forward", "backward", "post_grad")
        for artifact in h100.of_stage(stage)
        for entity in artifact.entities
        if entity.attrs.get("op") == "call_function"
    }
    assert len(targets) > 30
    assert not [target for target in targets if explain("python", target) is None]
    text = "".join(artifact.text for artifact in h100.of_stage("kernels"))
    used = set(re.findall(r"\b(?:tl|libdevice|triton_helpers)\.\w+", text))
    assert len(used) > 15
    assert not [word for word in used if explain("python", word) is None]


@pytest.mark.parametrize(("backend", "architecture"), [("cuda", 80), ("cuda", 90), ("cuda", 100), ("hip", "gfx942")])
def test_every_instruction_of_tensor_cores_is_explained(
    backend: str, architecture: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from tests.explorer.kernel_lab import dot_kernel

    texts, cubin = dot_kernel.texts(backend, architecture, 64 if backend == "hip" else 32)
    found = [(dot_kernel.LANGUAGES[stage], text) for stage, text in texts.items()]
    if cubin:
        found.append(("sass", disassembled(cubin, tmp_path)))
    for language, text in found:
        mnemonics = {mnemonic for _line, mnemonic in instructions(language, text)}
        assert len(mnemonics) > 10
        assert not [mnemonic for mnemonic in mnemonics if explain(language, mnemonic) is None]


def disassembled(cubin: bytes, folder: Path) -> str:
    triton = importlib.import_module("triton")
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    (folder / "kernel.cubin").write_bytes(cubin)
    command = [program, *NVDISASM_OPTIONS, folder / "kernel.cubin"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("language", "token", "name", "words", "link"),
    [
        ("ptx", "add.s32", "add", "adds two integers", f"{ISA}#integer-arithmetic-instructions-add"),
        ("ptx", "add.rn.f32", "add", "adds two floats (rn: ", f"{ISA}#floating-point-instructions-add"),
        ("ptx", "add.bf16x2", "add", "adds two halves", f"{ISA}#half-precision-floating-point-instructions-add"),
        (
            "ptx",
            "ld.global.L1::evict_first.v4.b32",
            "ld.global",
            "reads global memory (v4: four values at once)",
            f"{ISA}#data-movement-and-conversion-instructions-ld",
        ),
        (
            "ptx",
            "tcgen05.wait::ld.sync.aligned",
            "tcgen05.wait",
            "waits for reads",
            f"{ISA}#tcgen05-instructions-tcgen05-wait",
        ),
        ("sass", "LDG.E.128", "LDG", "reads global memory (128: 128 bits at once)", "https://docs.nvidia.com/"),
        ("sass", "MUFU.RSQ", "MUFU", "special function unit", "https://docs.nvidia.com/"),
        ("amdgcn", "v_add_f32_dpp", "v_add_f32", "adds floats (dpp: ", "https://www.amd.com/"),
        ("amdgcn", "s_load_dwordx8", "s_load_dword", "reads constants", "https://www.amd.com/"),
        ("amdgcn", "v_mfma_f32_32x32x8_f16", "v_mfma", "multiplies small matrices", "https://www.amd.com/"),
        ("amdgcn", "global_load_lds_dwordx4", "global_load_lds", "copies from global", "https://www.amd.com/"),
        (
            "mlir",
            "tt.make_range",
            "tt.make_range",
            "the numbers from start to end",
            "https://triton-lang.org/main/dialects/TritonOps.html#tt-make-range-triton-makerangeop",
        ),
        (
            "mlir",
            "ttg.convert_layout",
            "ttg.convert_layout",
            "moves elements between threads",
            "https://triton-lang.org/main/dialects/TritonGPUOps.html#ttg-convert-layout-triton-gpu-convertlayoutop",
        ),
        (
            "mlir",
            "arith.cmpi",
            "arith.cmpi",
            "compares integers",
            "https://mlir.llvm.org/docs/Dialects/ArithOps/#arithcmpi-arithcmpiop",
        ),
        (
            "llvm",
            "getelementptr",
            "getelementptr",
            "computes an address",
            "https://llvm.org/docs/LangRef.html#getelementptr-instruction",
        ),
        ("llvm", "sext", "sext", "widens an integer", "https://llvm.org/docs/LangRef.html#sext-to-instruction"),
        (
            "mlir",
            "llvm.intr.assume",
            "llvm.intr.assume",
            "tells the optimizer",
            "https://mlir.llvm.org/docs/Dialects/LLVM/",
        ),
        ("llvm", "@llvm.fma.f32", "@llvm.fma", "multiplies two floats", "https://llvm.org/docs/LangRef.html"),
        (
            "llvm",
            "@__nv_erff",
            "libdevice.erf",
            "error function",
            "https://docs.nvidia.com/cuda/libdevice-users-guide/__nv_erf.html",
        ),
        (
            "python",
            "tl.load",
            "tl.load",
            "reads a tensor of pointers",
            "https://triton-lang.org/main/python-api/generated/triton.language.load.html",
        ),
        (
            "python",
            "aten.native_layer_norm.default",
            "aten.native_layer_norm",
            "normalizes each row",
            "https://docs.pytorch.org/docs/stable/user_guide/torch_compiler/torch.compiler_ir.html",
        ),
        (
            "python",
            "aten.add_.Tensor",
            "aten.add",
            "adds",
            "https://docs.pytorch.org/docs/stable/generated/torch.add.html",
        ),
        (
            "python",
            "torch.nn.functional.gelu",
            "aten.gelu",
            "x times",
            "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.gelu.html",
        ),
        (
            "python",
            "aten.cdist.default",
            "torch.cdist",
            "Computes the batched p-norm distance" if TORCH >= "2.14" else "Computes batched the p-norm distance",
            "https://docs.pytorch.org/docs/stable/generated/torch.cdist.html",
        ),
    ],
)
def test_known_terms_are_explained(language: str, token: str, name: str, words: str, link: str) -> None:
    found = explain(language, token)
    assert found is not None
    assert found.name == name
    assert found.words.startswith(words)
    assert found.link.startswith(link)


def test_unknown_terms_are_not_explained() -> None:
    assert explain("ptx", "frobnicate.b32") is None
    assert explain("python", "aten.no_such_operator.default") is None
    assert explain("python", "torch.float32") is None
    assert explain("bytecode", "LOAD_FAST") is None
    assert for_text("bytecode", "LOAD_FAST 0 (x)") == {}


def test_only_terms_in_the_text_are_explained() -> None:
    ptx = "{\n\tld.global.L1::evict_first.b32 %r1, [%rd1];\n\t@%p1 bra $L__BB0_2;\n\tret;\n}"
    assert {token: meaning.name for token, meaning in for_text("ptx", ptx).items()} == {
        "bra": "bra",
        "ld.global.L1": "ld.global",
        "ret": "ret",
    }
    python = "mul: f32 = torch.ops.aten.mul.Tensor(x, 2)\ntmp0 = tl.load(p)\nx = mytl.load(q)\ny = self.aten.add(z)"
    assert list(for_text("python", python)) == ["aten.mul.Tensor", "tl.load"]
    mlir = "#blocked = #ttg.blocked<{}>\n%0 = arith.addf %a, %b : tensor<4xf32> loc(#loc)"
    assert list(for_text("mlir", mlir)) == ["#ttg.blocked", "arith.addf"]
    llvm = "define void @k() {\n  %1 = call float @llvm.fma.f32(float %0)\n  ret void\n}"
    assert list(for_text("llvm", llvm)) == ["@llvm.fma.f32", "call", "ret"]


@pytest.mark.parametrize("name", FILES)
def test_each_entry_is_short_and_links_to_documentation(name: str) -> None:
    for group in groups(name):
        host = re.match(r"https://([\w.-]+)/\S+$", group["link"])
        assert host
        assert host[1] in HOSTS
        for words in group["words"].values():
            assert 0 < len(words) <= 120
            assert not words.endswith(".")
            assert words == words.strip()


def test_glossary_has_enough_entries() -> None:
    counts = {name: sum(len(group["words"]) for group in groups(name)) for name in FILES}
    assert counts["ptx"] >= 120
    assert counts["sass"] >= 150
    assert counts["amdgcn"] >= 100
    assert counts["mlir"] >= 120
    assert counts["llvm"] >= 60
    assert counts["aten"] >= 100


@pytest.mark.parametrize("group", groups("triton"), ids=lambda group: group["module"])
def test_functions_of_triton_and_its_helpers_exist(group: dict[str, Any]) -> None:
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    modules = {
        "tl": "triton.language",
        "triton": "triton",
        "libdevice": "triton.language.extra.libdevice",
        "tl_math": "triton.language.math",
        "triton_helpers": "torch._inductor.runtime.triton_helpers",
        "triton_heuristics": "torch._inductor.runtime.triton_heuristics",
    }
    module = importlib.import_module(modules[group["module"]])
    later = (set() if MODERN else HELPERS_SINCE_2_13) | (set() if TORCH >= "2.15" else HELPERS_SINCE_2_15)
    words = set(group["words"]) - later
    missing = [name for name in words if not hasattr(module, name)]
    assert len(missing) <= 0.1 * len(group["words"]), f"{module.__name__} has no {missing}"


@pytest.mark.parametrize(
    "group", [g for g in groups("aten") if g["namespace"] == "aten"], ids=lambda g: g["link"].rsplit("/", 1)[1]
)
def test_operators_and_their_documentation_pages_exist(group: dict[str, Any]) -> None:
    place = group["link"].partition("generated/")[2].removesuffix(".{name}.html")
    owner = {"torch": torch, "torch.Tensor": torch.Tensor, "torch.nn.functional": nn.functional}.get(place)
    for name in group["words"]:
        if owner is None:
            assert hasattr(torch.ops.aten, name)
        else:
            assert getattr(owner, name).__doc__


@pytest.mark.parametrize(
    ("doc", "sentence"),
    [
        ("abs(input) -> Tensor\n\nTakes the magnitude of :attr:`input`. More.", "Takes the magnitude of input"),
        (
            "f(x)\n\n.. warning:: no\n\nTakes ``x`` to :class:`~torch.Tensor` `here <a>`__.",
            "Takes x to torch.Tensor here",
        ),
        ("f(x)\n\nA product, :math:`a \\otimes b`, of two:\n\n.. math:: x", "A product, …, of two"),
        ("See :func:`torch.add`", ""),
        ("", ""),
    ],
)
def test_torch_documentation_in_one_sentence(doc: str, sentence: str) -> None:
    assert first_sentence(doc) == sentence


def test_every_core_operator_is_explained() -> None:
    names = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
    packets = {name: getattr(torch.ops.aten, name.removeprefix("aten::"), None) for name in names}
    core = {
        f"aten.{name.removeprefix('aten::')}"
        for name, packet in packets.items()
        if packet and any(torch.Tag.core in getattr(packet, overload).tags for overload in packet.overloads())
    }
    assert len(core) > 150
    assert not [name for name in core if explain("python", name) is None]


def test_meanings_are_plain_data() -> None:
    assert explain("ptx", "ret") == Meaning(
        "ret", "returns from a function; in a kernel it ends the thread", f"{ISA}#control-flow-instructions-ret"
    )


def test_inplace_operator_shares_the_documentation_page() -> None:
    found = from_torch("aten.digamma_.default")
    assert found is not None
    assert found == from_torch("aten.digamma.default")
