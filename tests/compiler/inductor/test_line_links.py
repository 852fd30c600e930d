"""Lines of Triton linked to the FX nodes they compute, on kernels with known answers.

There are two kinds of answers. For whole models, the value of each line in a run says which node it belongs to. For
single kernels, the lines and their nodes are written down.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from compiler.engine import Exploration
from compiler.graph_recorder import GraphRecorder
from compiler.record import Artifact, Entity, Kernel, Record
from compiler.record.options import Options
from compiler.torch_api import fx
from compiler.torch_api.line_origins import LineOrigins
from tests.compiler.models import Block
from tests.compiler.triton_interpreter.triton_values import example_inputs, run_code, run_graph, tensors

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

COMPUTES = re.compile(r"(_?tmp\w*(, )?)+,? = |tl\.store\(|tl\.atomic_\w+\(|accum\d+ = ")
NAME = re.compile(r"\b_?tmp\w+")


class FeedForward(nn.Module):
    """LayerNorm and GELU fuse into kernels with reductions and pointwise lines of both."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(64)
        self.up = nn.Linear(64, 128)
        self.after = nn.LayerNorm(128)
        self.down = nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.gelu(self.up(self.before(x)))
        return x + self.down(self.after(hidden))


class Attention(nn.Module):
    """Softmax written out, with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        scores = (q @ k.transpose(-2, -1) * 0.25).masked_fill(~mask, -1e9)
        return torch.softmax(scores, -1) @ v


class Classifier(nn.Module):
    """Embeddings, a linear layer, and cross-entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 32)
        self.head = nn.Linear(32, 128)

    def forward(self, words: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.embedding(words) * 3), targets)


def pieces(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x.sin(), y.cos() * 2], 1).sqrt().sum(1) + x.amax(1)


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], tuple[Tensor, ...]]]] = {
    "feed-forward": (FeedForward, lambda: (torch.randn(2, 8, 64),)),
    "attention": (Attention, lambda: (torch.randn(2, 16, 32),)),
    "convolutions and batch norm": (lambda: Block(4, 8, 2).train(), lambda: (torch.randn(2, 4, 8, 8),)),
    "embedding and cross-entropy": (Classifier, lambda: (torch.randint(0, 100, (32,)), torch.randint(0, 100, (32,)))),
    "pieces": (lambda: pieces, lambda: (torch.rand(8, 32), torch.rand(8, 32))),
}


def explored(fn: Callable[..., Any], *args: Any, **options: Any) -> Record:
    """The record for an H100 of one call and, where there are gradients, its backward."""
    with Exploration(Options(**({"target": "h100"} | options))) as exploration:
        value = exploration.compile(fn)(*args)
        if isinstance(value, Tensor) and value.requires_grad:
            value.sum().backward()
    assert exploration.record.problems == (), exploration.record.problems
    return exploration.record


@dataclass(frozen=True)
class Line:
    """One statement of a kernel that computes something."""

    text: str
    owners: tuple[str, ...]

    @cached_property
    def assigned(self) -> str:
        return self.text.partition(" = ")[0] if COMPUTES.match(self.text) and " = " in self.text else ""

    @cached_property
    def used(self) -> set[str]:
        return set(NAME.findall(self.text.removeprefix(self.assigned)))

    @property
    def loads(self) -> bool:
        return "tl.load(" in self.text


def lines_of(record: Record, kernel: Kernel) -> list[Line]:
    """A kernel's computing lines, with the names of the post-grad nodes they are linked to."""
    labels = {entity.id: entity.label for artifact in record.of_stage("post_grad") for entity in artifact.entities}
    return [
        Line(entity.label, tuple(labels[origin] for origin in entity.origins if origin in labels))
        for entity in entities_of(record, kernel)
        if COMPUTES.match(entity.label)
    ]


def entities_of(record: Record, kernel: Kernel) -> list[Entity]:
    return [
        entity
        for entity in record[kernel.artifact].entities
        if re.fullmatch(rf"{re.escape(kernel.id)}\.L\d+", entity.id)
    ]


def fused_in(record: Record, kernel: Kernel) -> set[str]:
    """Names of the post-grad nodes in a kernel, according to Inductor."""
    linked = record.linked_ids(kernel.id)
    return {
        entity.label for artifact in record.of_stage("post_grad") for entity in artifact.entities if entity.id in linked
    }


class Answers:
    """The nodes that each line of one launch may be linked to, found by value."""

    def __init__(
        self, lines: list[Line], values: dict[str, Any], graph: GraphModule, results: dict[str, Any], fused: set[str]
    ) -> None:
        self.lines, self.values, self.fused = lines, values, fused
        self.nodes: dict[str, Node] = {node.name: node for node in graph.graph.nodes if node.op == "call_function"}
        self.results = {name: [_sorted(found) for found in tensors(results[name])] for name in self.nodes}
        self.inputs = {
            name: [_sorted(found) for source in node.all_input_nodes for found in tensors(results[source.name])]
            for name, node in self.nodes.items()
        }
        self.assigned_once = [sum(other.assigned == line.assigned for other in lines) == 1 for line in lines]

    def right(self, number: int) -> bool:
        """Whether the line serves each node it is linked to, and is linked to the nodes that it alone makes."""
        owners = set(self.lines[number].owners)
        missing = [] if owners & self.made_at(number) else self.made_at(number)
        return (
            bool(owners)
            and all(self.leads_to(number, owner) for owner in owners)
            and all(any(self.holds(place, node) for place in self.linked(node)) for node in missing)
        )

    def linked(self, node: str) -> list[int]:
        return [number for number, line in enumerate(self.lines) if node in line.owners]

    def users(self, number: int) -> set[int]:
        name = self.lines[number].assigned.rpartition(", ")[2].strip(",")
        return {place for place, line in enumerate(self.lines) if name in line.used}

    def live(self, number: int) -> bool:
        """Whether the line's value is used: Inductor leaves dead code to Triton."""
        todo, seen = [number], {number}
        while todo:
            current = todo.pop()
            if self.lines[current].text.startswith(("tl.store(", "tl.atomic_")):
                return True
            new = self.users(current) - seen
            todo += new
            seen |= new
        return False

    def value(self, number: int) -> Tensor | None:
        """The values that a line assigns or stores, in the kernel's order."""
        line = self.lines[number]
        if line.text.startswith("tl.atomic_"):
            return self.values[line.text.partition("(")[2].partition(" ")[0]].memory
        stored = [word for word in NAME.findall(line.text) if word in self.values]
        value = self.values.get(line.assigned or stored[-1])
        return value if isinstance(value, Tensor) else None

    @cached_property
    def by_size(self) -> list[Tensor | None]:
        values = map(self.value, range(len(self.lines)))
        return [None if value is None else _sorted(value) for value in values]

    def made_at(self, number: int) -> set[str]:
        """The nodes whose value first appears in this line, and is not the node's input."""
        value = self.by_size[number]
        line = self.lines[number]
        if value is None or line.loads or not line.assigned or not self.assigned_once[number]:
            return set()
        if any(_equal(value, earlier) for earlier in self.by_size[:number] if earlier is not None):
            return set()
        made = {name for name in self.fused & set(self.nodes) if any(_equal(value, one) for one in self.results[name])}
        return {name for name in made if not any(_equal(value, one) for one in self.inputs[name])}

    def leads_to(self, number: int, node: str) -> bool:
        """Whether the line computes the node's value (or a part of its sum), or feeds a line that does.

        No other node's value may be in between.
        """
        todo, seen = [number], {number}
        while todo:
            current = todo.pop()
            if self.holds(current, node):
                return True
            if current != number and self.made_at(current):
                continue
            new = self.users(current) - seen
            todo += new
            seen |= new
        return False

    def holds(self, number: int, node: str) -> bool:
        value, ordered = self.value(number), self.by_size[number]
        return value is not None and ordered is not None and any(
            _equal(ordered, found) or _is_part(value, found) or _is_within(ordered, found) or _is_within(found, ordered)
            for found in self.results[node]
        )  # fmt: skip


def _sorted(value: Tensor) -> Tensor:
    """Sorted values, because kernels iterate over tensors in any order."""
    return value.detach().double().flatten().sort().values


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether `a` is `b`, or `b` broadcast."""
    times, rest = divmod(a.numel(), max(b.numel(), 1))
    if rest or not times:
        return False
    return torch.allclose(a, b.repeat_interleave(times), rtol=1e-3, atol=1e-6 + 1e-5 * float(b.abs().max()))


def _is_part(value: Tensor, whole: Tensor) -> bool:
    """Whether these are partial sums of `whole`: Inductor splits long reductions."""
    count, rest = divmod(value.numel(), max(whole.numel(), 1))
    if rest or count < 2:
        return False
    flat = value.detach().double().flatten()
    sums = (flat.view(count, -1).sum(0), flat.view(-1, count).sum(1))
    return any(_equal(_sorted(found), whole) for found in sums)


def _is_within(some: Tensor, more: Tensor) -> bool:
    """Whether all of `some` is in `more`.

    Inductor computes only the part of a tensor that is read later; for a part of a concatenation it computes more,
    masked.
    """
    if some.numel() >= more.numel() or len(some.unique()) < 8:
        return False
    found = torch.searchsorted(more, some).clamp(1, more.numel() - 1)
    nearest = torch.minimum((more[found] - some).abs(), (more[found - 1] - some).abs())
    return bool((nearest <= 1e-5).all())


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> dict[str, GraphModule]:
    """The explored post-grad graphs: "forward", "backward" or "inference"."""
    found: dict[str, GraphModule] = {}
    record_graph = GraphRecorder.on_graph

    def kept(recorder: GraphRecorder, stage: str, half: Any, module: GraphModule) -> None:
        if stage == "post_grad":
            found[half] = fx.detached_copy(module)
        record_graph(recorder, stage, half, module)

    monkeypatch.setattr(GraphRecorder, "on_graph", kept)
    return found


def answered(record: Record, graphs: dict[str, GraphModule]) -> Iterator[tuple[str, Line, bool]]:
    """Each computing line of the record's Triton kernels, and whether its links are right."""
    for artifact in record.of_stage("kernels"):
        graph = graphs[_half(artifact)]
        inputs = example_inputs(graph)
        results = run_graph(graph, [value.clone() if isinstance(value, Tensor) else value for value in inputs])
        kernels = {kernel.name: kernel for kernel in record.kernels if kernel.artifact == artifact.id}
        launches = {run.kernel: run.values for run in run_code(artifact.text, inputs)}
        for name, values in launches.items():
            lines = lines_of(record, kernels[name])
            answers = Answers(lines, values, graph, results, fused_in(record, kernels[name]))
            yield from (
                (name, line, answers.right(number)) for number, line in enumerate(lines) if answers.live(number)
            )


def _half(artifact: Artifact) -> str:
    return artifact.id.rstrip("]").split()[-1]


@pytest.mark.parametrize("model", MODELS)
def test_lines_link_to_the_nodes_they_compute(model: str, graphs: dict[str, GraphModule]) -> None:
    torch.manual_seed(0)
    make, inputs = MODELS[model]
    found = list(answered(explored(make(), *inputs()), graphs))
    wrong = [f"{kernel}: {line.text} <- {line.owners}" for kernel, line, right in found if not right]
    assert len(found) > 10
    assert len(wrong) <= 0.05 * len(found), "\n".join(wrong)


def looped(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.softmax(x, -1), x.var(-1), x.argmax(-1)


def ordered(x: Tensor) -> Tensor:
    return x.exp().cumsum(-1) + x.sin().sort(-1).values


def counted(x: Tensor, rows: Tensor) -> Tensor:
    return torch.zeros(10, 32).index_add(0, rows, x.sin())


def dropped(x: Tensor) -> Tensor:
    return functional.dropout(x.cos(), 0.25)


def rooted(xs: list[Tensor], ys: list[Tensor]) -> Any:
    return torch._foreach_sqrt(torch._foreach_add(torch._foreach_mul(xs, 2.0), ys))


def product(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x @ w) + 1


def normalised(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, (256,), weight, bias)


def in_half(x: Tensor) -> Tensor:
    return torch.tanh(x.float()).to(torch.bfloat16)


Case = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], dict[str, Any], dict[str, str]]

# A pattern of a line -> ATen operations; the line has to be linked to one of them.
KERNELS: dict[str, Case] = {
    "a reduction in a loop": (looped, lambda: (torch.randn(1024, 4096),), {}, {
        r"_tmp\d+_max = tl\.full": "prims.prepare_softmax_online",
        r"triton_helpers\.online_softmax_(combine|reduce)": "prims.prepare_softmax_online",
        r"tmp\d+_(mean|m2|weight) = tl\.zeros": "aten.var",
        r"triton_helpers\.welford": "aten.var",
        r"tmp\d+_mean, tmp\d+_m2": "aten.var",
        r"maximum_with_index|max_with_index": "aten.argmax",
        r"libdevice\.exp": "aten.exp",
        r"= \(tmp\d+ / tmp\d+\)": "aten.div|aten.var",
    }),
    "a scan and a sort": (ordered, lambda: (torch.randn(8, 128),), {}, {
        r"^def _triton_helper_fn": "aten.cumsum",
        r"^tmp0 = arg0_0 \+ arg1_0": "aten.cumsum",
        r"^return ": "aten.cumsum",
        r"tl\.associative_scan": "aten.cumsum",
        r"sort_with_index": "aten.sort",
        r"exp\(": "aten.exp",
        r"sin\(": "aten.sin",
        r"tl\.store": "aten.add",
    }),
    "atomic additions": (counted, lambda: (torch.randn(64, 32), torch.randint(0, 10, (64,))), {}, {
        r"tl\.load\(in_ptr0": "aten.index_put_?",
        r"tl\.load\(in_ptr1": "aten.sin",
        r"sin\(": "aten.sin",
        r"tl\.device_assert": "aten.index_put_?",
        r"tl\.atomic_add": "aten.index_put_?",
        r"tl\.store": "aten.full",
    }),
    "dropout": (dropped, lambda: (torch.randn(64, 32),), {}, {
        r"load_seed_offset\)": "prims.inductor_lookup_seed",
        r"(triton_helpers|tl)\.rand": "prims.inductor_random",
        r"cos\(": "aten.cos",
        r"tmp\d+ > tmp\d+": "aten.gt",
        r"tl\.store": "aten.mul",
    }),
    "a kernel for each of several tensors": (
        rooted, lambda: ([torch.rand(8, 8), torch.rand(40)], [torch.rand(8, 8), torch.rand(40)]), {}, {
        r"tl\.load\((in_ptr[02]|foreach_arg0)": "aten._foreach_mul",
        r"tl\.load\((in_ptr[13]|foreach_arg1)": "aten._foreach_add",
        r"tmp\d+ \* tmp\d+": "aten._foreach_mul",
        r"sqrt": "aten._foreach_sqrt",
        r"tl\.store": "aten._foreach_sqrt",
    }),
    "a matrix product's template": (
        product, lambda: (torch.randn(512, 256), torch.randn(256, 512)), {"mode": "max-autotune-no-cudagraphs"}, {
        r"tl\.dot\(": "aten.mm",
        r"^pid = ": "aten.mm",
        r"^for k_idx": "aten.mm",
        r"(triton_helpers|tl)\.maximum": "aten.relu",
        r"^tmp\d+ = tmp\d+ \+ tmp\d+": "aten.add",
        r"tl\.store": "aten.add",
    }),
    "reductions over both axes at once": (
        normalised,
        lambda: (torch.randn(32_768, 256, requires_grad=True), torch.ones(256, requires_grad=True),
                 torch.zeros(256, requires_grad=True)), {}, {
        r"^accum\d+ = ": "aten.sum",
        r"accum\d+, r0_mask\)": "aten.sum",
        r"= tl\.sum\(tmp\d+, 0\)": "aten.sum",
        r"rsqrt": "aten.rsqrt",
    }),
    "bfloat16": (in_half, lambda: (torch.randn(64, 64).bfloat16(),), {}, {
        r"tl\.load.*\.to\(tl\.float32\)": "prims.convert_element_type",
        r"tanh\(": "aten.tanh",
        r"tl\.store": "prims.convert_element_type",
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_lines_with_known_answers(name: str) -> None:
    fn, inputs, options, answers = KERNELS[name]
    record = explored(fn, *inputs(), **options)
    target = {e.id: e.attrs["target"] for a in record.of_stage("post_grad") for e in a.entities}
    lines = [e for kernel in record.kernels if kernel.language == "triton" for e in entities_of(record, kernel)]
    for pattern, operation in answers.items():
        found = [line for line in lines if re.search(pattern, line.label)]
        assert found, f"no line like {pattern}"
        for line in found:
            linked = {target[origin] for origin in line.origins}
            assert any(re.match(rf"({operation})\b", one) for one in linked), f"{line.label} <- {linked}"


def test_cpp_lines_with_known_answers() -> None:
    def f(x: Tensor, weight: Tensor) -> Tensor:
        hidden = functional.gelu(x)
        return functional.rms_norm(hidden, (100,), weight)

    torch.manual_seed(0)
    record = explored(f, torch.randn(64, 100), torch.ones(100), target="cpu")
    (kernel,) = record.kernels
    target = {e.id: e.attrs["target"] for a in record.of_stage("post_grad") for e in a.entities}
    answers = {
        r"\.erf\(\)|std::erf": "aten.erf",
        r"sqrt": "aten.rsqrt",
        r"tmp_acc0(_vec)? \+ tmp": "aten.mean|aten.sum",
        r"tmp\d+ \* tmp\d+": "aten.mul|aten.pow",
        r"0\.7071067811865476": "aten.mul",
    }
    for pattern, operation in answers.items():
        found = [entity for entity in entities_of(record, kernel) if re.search(pattern, entity.label)]
        assert found, f"no line like {pattern}"
        assert {e.kind for e in found} == {"cpp"}
        for entity in found:
            linked = {target[origin] for origin in entity.origins}
            assert any(re.match(rf"({operation})\b", one) for one in linked), f"{entity.label} <- {linked}"
    computing = [e for e in entities_of(record, kernel) if re.match(r"auto tmp\d+ = |tmp\d+\.store\(", e.label)]
    assert sum(bool(entity.origins) for entity in computing) >= 0.95 * len(computing)
    assert all(e.origins == () for e in entities_of(record, kernel) if re.match(r"for ?\(|[{}]", e.label))


def test_index_arithmetic_is_linked_to_no_node() -> None:
    record = explored(normalised, torch.randn(64, 256), torch.ones(256), torch.zeros(256))
    (kernel,) = record.kernels
    found = [
        e
        for e in entities_of(record, kernel)
        if re.match(r"(x|r0_|r)(index|numel|offset|mask|base)? =|x\d+ =", e.label)
    ]
    assert len(found) >= 5
    assert all(entity.origins == () for entity in found)


def test_kernel_lines_are_entities_by_line_number() -> None:
    record = explored(ordered, torch.randn(8, 128))
    (kernel,) = record.kernels
    artifact = record[kernel.artifact]
    rows = artifact.text.split("\n")
    first, last = kernel.lines
    source = "\n".join(rows[first - 1 : last]).split("'''")[1].split("\n")
    for number, entity in ((int(e.id.rpartition(".L")[2]), e) for e in entities_of(record, kernel)):
        assert entity.kind == "triton"
        assert entity.label == source[number - 1].strip() == rows[first + number - 2].strip()
        assert artifact.lines[first + number - 1] == (kernel.id, entity.id)
    functions = [node for node in ast.parse("\n".join(source)).body if isinstance(node, ast.FunctionDef)]
    assert len(functions) == 2
    numbers = {n for f in functions for n in range(f.lineno, (f.end_lineno or 0) + 1) if source[n - 1].strip()}
    assert {n for n in range(1, len(source) + 1) if len(artifact.lines[first + n - 1]) == 2} == numbers
    assert artifact.lines[first] == artifact.lines[last] == (kernel.id,)


def test_python_line_highlights_only_its_triton_lines() -> None:
    def gelu_then_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        hidden = functional.gelu(x)
        return functional.layer_norm(hidden, (256,), weight, bias)

    record = explored(gelu_then_norm, torch.randn(64, 256), torch.ones(256), torch.zeros(256))
    (kernel,) = record.kernels
    lines = {e.attrs["code"]: e.id for a in record.of_stage("source") for e in a.entities}
    lit = {code: {e.label for e in entities_of(record, kernel) if e.id in record.linked_ids(lines[code])}
           for code in lines if code.startswith(("hidden =", "return functional"))}  # fmt: skip
    gelu, norm = lit["hidden = functional.gelu(x)"], lit["return functional.layer_norm(hidden, (256,), weight, bias)"]
    assert any("libdevice.erf" in line for line in gelu)
    assert any("libdevice.rsqrt" in line for line in norm)
    assert any("tl.sum" in line for line in norm)
    assert not any("rsqrt" in line or "tl.sum" in line or "tl.store" in line for line in gelu)
    assert not any("erf" in line or "0.5," in line for line in norm)


def test_kernel_shared_by_several_calls_links_to_all() -> None:
    def twice(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(torch.tanh(x @ w) @ w)

    record = explored(twice, torch.randn(16, 16), torch.randn(16, 16))
    (kernel,) = [kernel for kernel in record.kernels if kernel.language == "triton"]
    (line,) = [entity for entity in entities_of(record, kernel) if "tanh" in entity.label and "tmp" in entity.label]
    assert {origin.rpartition(".")[2] for origin in line.origins} == {"tanh", "tanh_1"}


def test_links_cross_omitted_stages() -> None:
    record = explored(ordered, torch.randn(8, 128), stages=("captured", "kernels"))
    (kernel,) = record.kernels
    (line,) = [entity for entity in entities_of(record, kernel) if "sort_with_index" in entity.label]
    assert line.origins == ("captured[0/0].sort",)


def test_kernels_of_branches_link_to_their_branch_lines() -> None:
    def branches(x: Tensor) -> Tensor:
        def above(t: Tensor) -> Tensor:
            return t.sin() + t.sum(-1, keepdim=True)

        def below(t: Tensor) -> Tensor:
            return t.cos() - 1

        return torch.relu(torch.cond(x.sum() > 0, above, below, (x * 2,)))

    record = explored(branches, torch.randn(64, 32))
    names = [kernel.name for kernel in record.kernels]
    assert len(names) == len(set(names))
    assert {kernel.calls for kernel in record.kernels} == {1}
    code = {e.id: e.attrs["code"] for a in record.of_stage("source") for e in a.entities}
    for kernel in record.kernels:
        reached = {code[linked] for linked in record.linked_ids(kernel.id) if linked in code}
        assert ("return t.cos() - 1" in reached) == ("cos" in kernel.name)
        assert ("return t.sin() + t.sum(-1, keepdim=True)" in reached) == ("sin" in kernel.name)
    labels = [entity.label for entity in record["fused_ir"].entities]
    assert sum(label.startswith("true_graph_0_") for label in labels) == 1
    assert sum(label.startswith("false_graph_0_") for label in labels) == 1
    assert any(label.startswith("op") for label in labels)


@pytest.mark.parametrize("model", ["feed-forward", "embedding and cross-entropy"])
def test_recording_does_not_change_the_code(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, inputs = MODELS[model]
    torch.manual_seed(0)
    module, args = make(), inputs()
    seen = [artifact.text for artifact in explored(module, *args).of_stage("kernels")]
    monkeypatch.setattr(LineOrigins, "wrappers", lambda _origins: [])
    assert [artifact.text for artifact in explored(module, *args).of_stage("kernels")] == seen
