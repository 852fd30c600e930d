"""One operator, and whole models in training, at each level: the operators, the decomposing code, the numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor import lowering
from torch._inductor.decomposition import select_decomp_table
from torch.utils.checkpoint import checkpoint

from compiler.calls.kept_graphs import KeptFrame
from compiler.decompose.counts import totals
from compiler.decompose.graphs import LevelError, LevelGraphs
from compiler.decompose.levels import LEVELS, TABLES
from compiler.decompose.node_call import node_call
from compiler.decompose.one_op import Decomposition, decompose_call
from compiler.decompose.operators import OperatorError, operator_named
from compiler.decompose.tree import OpCall, ops_of
from compiler.engine import Exploration
from compiler.numerics.policy.by_dtype import worst_verdict
from compiler.record import Record
from compiler.record.options import Options
from compiler.torch_api.decomposition_tables import excluded_by_inductor
from tests.compiler.broken import TORCH
from tests.compiler.models import MLP, Block

aten = torch.ops.aten
MM = "mm: " if TORCH >= "2.15" else ""
"""How torch's error of a matmul begins."""


def taken_apart(what: str | Callable[..., Any], *args: Any, **kwargs: Any) -> Decomposition:
    name, function = operator_named(what)
    return decompose_call(name, function, args, kwargs)


def reasons(found: Decomposition, level: str) -> dict[str, str]:
    """The reason why each operator of a level's graph stays."""
    return {leaf.op: leaf.why for root in found.level(level).roots for leaf in root.leaves()}


def worst(found: Decomposition) -> str:
    return worst_verdict(item for level in found.levels for item in level.numbers)


NAMES_OF_GELU = ["aten.gelu", "gelu", "aten::gelu", "torch.nn.functional.gelu", "F.gelu"]


@pytest.mark.parametrize("what", [*NAMES_OF_GELU, nn.functional.gelu, aten.gelu, aten.gelu.default])
def test_operator_is_found_by_any_common_name(what: Any) -> None:
    found = taken_apart(what, torch.randn(4, 8), approximate="tanh")
    assert [level.name for level in found.levels] == list(LEVELS)
    assert found.level("core").ops() == ["aten.gelu.default"]
    assert "aten.tanh.default" in found.level("inductor").ops()
    assert all(op.startswith("prims.") for op in found.level("prims").ops())
    assert worst(found) in ("equal", "close")


def test_each_replacement_names_its_decomposition_source() -> None:
    found = taken_apart("aten.gelu", torch.randn(4, 8))
    source = found.sources()["Inductor"]["aten.gelu.default"]
    assert (source.file, source.function) == ("torch/_refs/nn/functional/__init__.py", "gelu")
    assert "def gelu(" in source.text
    lines = inspect.getsource(torch._refs.nn.functional).splitlines()
    assert lines[source.line - 1 : source.end_line] == source.text.splitlines()


def test_composite_function_decomposes_through_every_level() -> None:
    x, weight = torch.randn(4, 8), torch.randn(8)
    found = taken_apart(nn.functional.layer_norm, x, (8,), weight)
    assert found.source is not None
    assert found.source.file == "torch/nn/functional.py"
    assert found.level("torch").ops() == ["aten.layer_norm.default"]
    (composite,) = found.level("ATen").roots
    assert "CompositeImplicitAutograd" in str(composite.source)
    assert [call.op for call in composite.calls] == ["aten.native_layer_norm.default"]
    (inductor,) = found.level("Inductor").roots
    assert inductor.source is not None
    assert inductor.source.file == "torch/_inductor/decomposition.py"
    nested = next(call for call in inductor.calls if call.op == "aten.var_mean.dim")
    assert [call.op for call in nested.calls] == ["aten.var_mean.correction"]
    assert worst(found) in ("equal", "close")


def test_backward_operators_can_be_decomposed() -> None:
    x, mean, rstd = torch.randn(4, 8), torch.randn(4, 1), torch.rand(4, 1) + 1
    found = taken_apart("aten.native_layer_norm_backward", x, x + 1, [8], mean, rstd, None, None, [True, False, False])
    assert found.level("core ATen").ops().count("aten.sum.dim_IntList") == 2
    assert worst(found) in ("equal", "close")


def test_unused_decomposition_has_a_reason() -> None:
    x = torch.randn(8, 8)
    product = reasons(taken_apart(torch.mm, x, x), "Inductor")["aten.mm.default"]
    assert "returned NotImplemented for these arguments" in product
    assert "templates" in product
    assert "core ATen operator" in reasons(taken_apart(torch.mm, x, x), "core")["aten.mm.default"]
    kept = reasons(taken_apart("aten.sum.dim_IntList", x, [1]), "Inductor")["aten.sum.dim_IntList"]
    assert "on purpose" in kept
    assert excluded_by_inductor()[aten.sum.dim_IntList] in kept
    assert "falls back to ATen's kernel" in reasons(taken_apart("nonzero", x), "Inductor")["aten.nonzero.default"]
    assert "no reference in prims" in reasons(taken_apart("mm", x, x), "prims")["aten.mm.default"]
    filled = reasons(taken_apart("aten.full_like", torch.arange(3), 1.0), "prims")
    assert "raised ValueError" in filled["aten.full_like.default"]


def test_inference_decomposition_is_skipped_if_backward_needs_results() -> None:
    q = torch.randn(1, 2, 4, 8)
    used = taken_apart("aten._scaled_dot_product_flash_attention_for_cpu", q, q, q)
    assert "gives float32[1, 2, 4, 4] as result 1" in next(iter(reasons(used, "core").values()))
    assert worst(used) == "equal"
    unused = taken_apart(lambda q: aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)[0], q)
    assert "aten._softmax.default" in unused.level("core").ops()
    assert worst(unused) in ("equal", "close")


def test_random_operators_are_compared_by_seed_if_possible() -> None:
    x = torch.randn(4, 8)
    before = torch.get_rng_state()
    assert worst(taken_apart("F.dropout", x, 0.5)) == "equal"
    (check, mask) = taken_apart("aten.native_dropout", x, 0.5, True).level("Inductor").numbers
    assert (check.verdict, mask.verdict) == ("not comparable", "not comparable")
    assert "from the same seed aten.rand.default draws other numbers" in check.note
    assert torch.equal(before, torch.get_rng_state())


def test_mutating_operator_changes_only_copies() -> None:
    x = torch.randn(4)
    before = x.clone()
    found = taken_apart("aten.mul_", x, 2.0)
    assert torch.equal(x, before)
    assert "functionalization" in str(found.level("ATen").roots[0].source)
    assert [item.count for item in found.level("prims").numbers] == [2]
    assert worst(found) == "equal"


def test_views_are_stable_when_traced_again() -> None:
    for _ in range(2):
        assert worst(taken_apart("aten.constant_pad_nd", torch.randn(1, 1, 4, 4), [1, 1, 1, 1], 1.0)) == "equal"


@pytest.mark.parametrize(
    ("what", "arguments", "message"),
    [
        ("aten.gellu", (), "there is no operator aten.gellu: did you mean 'gelu'?"),
        ("aten.add.Tensr", (), "aten.add has no overload 'Tensr'; it has: Tensor, Scalar"),
        ("torch.nn.functional.gellu", (), "there is no 'torch.nn.functional.gellu': did you mean 'gelu'?"),
        ("aten.gelu", (), "aten.gelu can't be called with these arguments: .*missing value for argument 'self'"),
        ("aten.mm", (torch.ones(2, 3), torch.ones(2, 3)), f"can't be called with these arguments: {MM}mat1 and mat2"),
        (nn.Linear(4, 4), (torch.ones(2, 4),), "it takes tensors from elsewhere, as a module its parameters"),
        ("aten.relu", (torch.ones(2, device="meta"),), "tensors of device meta have no values"),
    ],
)
def test_wrong_name_or_arguments_raise_in_user_terms(what: Any, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        taken_apart(what, *arguments)


def test_unknown_level_error_lists_the_levels() -> None:
    with pytest.raises(ValueError, match="the levels are: torch, ATen, core ATen, Inductor, prims"):
        taken_apart("relu", torch.randn(3)).level("assembler")


class Convolutions(nn.Module):
    """Two residual blocks with batch norms, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(3, 8, 2), Block(8, 8, 1))
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x).mean((2, 3)))


def transformer() -> tuple[nn.Module, dict[str, Any]]:
    """GPT-2 of one layer, in train mode."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=11, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config).train(), {"input_ids": torch.randint(0, 11, (2, 5))}


MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "mlp": lambda: (MLP().train(), {"x": torch.randn(8, 64)}),
    "convolutions": lambda: (Convolutions().train(), {"x": torch.randn(8, 3, 16, 16)}),
    "gpt2": transformer,
}
Trained = tuple[Record, list[LevelGraphs]]


@pytest.fixture(scope="module", params=MODELS)
def trained(request: pytest.FixtureRequest) -> Trained:
    """Capture a training step of a model; return each captured graph at every level."""
    torch.manual_seed(0)
    model, arguments = MODELS[request.param]()
    with Exploration(Options(stages=("captured",))) as exploration:
        output = exploration.compile(model)(**arguments)
        (output if isinstance(output, torch.Tensor) else output.logits).sum().backward()
    record = exploration.record
    return record, [LevelGraphs(item.graph, exploration.kept[item.graph], item) for item in record.of_stage("captured")]


def test_every_level_of_training_matches_eager(trained: Trained) -> None:
    for graphs in trained[1]:
        checks = graphs.numbers()
        assert list(checks) == ["ATen", *TABLES]
        assert all(item.verdict in ("equal", "close") for found in checks.values() for item in found), checks


def test_every_operator_and_node_belongs_to_a_tree(trained: Trained) -> None:
    for graphs in trained[1]:
        assert set(graphs.aot.graphs) == {"forward", "backward"}
        for tree in graphs.trees.values():
            roots = tree.roots()
            assert [root.op for root in roots] == [str(node.target) for node in ops_of(tree.before)]
            leaves = [leaf for root in roots for leaf in root.leaves()]
            assert {leaf.node for leaf in leaves} == {node.name for node in ops_of(tree.traced.module)}
            assert all(leaf.why for leaf in leaves)
            assert all(root.source or root.node for root in roots)


def test_level_nodes_link_to_the_python_line(trained: Trained) -> None:
    record, (graphs, *_) = trained
    found = graphs.artifacts()
    whole = record.with_fields(artifacts=(*record.artifacts, *found))
    lines = {entity.id for artifact in record.of_stage("source") for entity in artifact.entities}
    up = {entity.id: entity.origins for entity in whole.entities()}
    assert all(origin in up for artifact in found for entity in artifact.entities for origin in entity.origins)
    for entity in whole[f"decomposed[{graphs.frame} backward prims]"].entities:
        if entity.kind == "call":
            assert whole.linked_ids(entity.id) & lines, entity


def test_inference_has_one_graph_per_level() -> None:
    with Exploration(Options(stages=("captured", "decomposed"), grad=False)) as exploration:
        exploration.compile(nn.functional.gelu)(torch.randn(4))
    levels = [artifact.id for artifact in exploration.record.of_stage("decomposed")]
    assert levels == [f"decomposed[0/0 inference {level}]" for level in ("ATen", *TABLES)]
    assert Record.from_json(exploration.record.to_json()) == exploration.record


def test_node_is_decomposed_with_its_actual_inputs() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 3, -1)

    x = torch.randn(4, 8)
    with Exploration(Options(stages=("captured",))) as exploration:
        exploration.compile(scaled)(x)
    captured, kept = exploration.record["captured"], exploration.kept["0/0"]
    call = node_call(captured.entity("softmax"), captured, kept)
    assert torch.equal(call.args[0], x * 3)
    assert not call.note
    with pytest.raises(LevelError, match="calls no operator: it is placeholder"):
        node_call(next(entity for entity in captured.entities if entity.kind == "placeholder"), captured, kept)


def test_unkept_graph_cannot_be_decomposed() -> None:
    with Exploration(Options(stages=("captured",))) as exploration:
        exploration.compile(nn.functional.gelu)(torch.randn(4))
    with pytest.raises(LevelError, match="a saved record has text, and no graph to trace"):
        LevelGraphs("0/0", KeptFrame(), exploration.record["captured"])


def test_operators_are_counted_from_the_registries() -> None:
    found = {total.what: total for total in totals()}
    names = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    aten_names = {name for name in names if name.startswith("aten::")}
    assert found["registered in aten"].names == len(aten_names) > 1200
    assert found["registered in aten"].overloads > 2000
    tagged = [op for name in dir(aten) for op in _overloads(getattr(aten, name)) if torch.Tag.core in op.tags]
    assert found["core ATen"].overloads == len(set(tagged))
    assert found["prims, published"].names == len(torch._prims.__all__)
    assert 0 < found["Inductor only calls ATen's kernel"].overloads < found["Inductor lowers"].overloads
    lowered = {op for op in lowering.lowerings if isinstance(op, torch._ops.OpOverload)}
    apart = lowered - select_decomp_table().keys()
    assert found["Inductor lowers, without decomposition"].overloads == len(apart)
    assert all(total.names <= total.overloads and total.method for total in found.values())


def _overloads(packet: Any) -> list[Any]:
    names = packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ()
    return [getattr(packet, name) for name in names]


def test_op_tree_lists_its_leaves() -> None:
    leaf = OpCall("aten.mul.Tensor", node="mul", why="a core ATen operator")
    assert list(OpCall("aten.gelu.default", calls=(leaf, leaf)).leaves()) == [leaf, leaf]


def changed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return torch.softmax(x * y * x.shape[0], -1).view(-1)


def checkpointed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda z: torch.dropout(torch.sin(z), 0.5, True), x * y, use_reentrant=False)


@pytest.mark.parametrize(
    ("function", "options", "autocast", "verdicts"),
    [
        (changed, {"dynamic": True}, False, {"equal", "close"}),
        (changed, {"grad": False}, False, {"equal", "close"}),
        (lambda x, y: torch.relu(x @ y.t()), {}, True, {"equal", "close"}),
        (checkpointed, {}, False, {"equal", "close"}),
    ],
)
def test_dynamic_mutating_autocast_and_checkpointed_graphs_decompose(
    function: Callable[..., Any], options: dict[str, Any], autocast: bool, verdicts: set[str]
) -> None:
    with Exploration(Options(stages=("captured",), **options)) as exploration, torch.autocast("cpu", enabled=autocast):
        exploration.compile(function)(torch.randn(3, 4), torch.randn(3, 4, requires_grad=True)).sum().detach()
    graphs = LevelGraphs("0/0", exploration.kept["0/0"], exploration.record["captured"])
    found = graphs.numbers()
    assert {item.verdict for checks in found.values() for item in checks} <= verdicts
    formats = {result.dtype for tree in graphs.trees.values() for root in tree.roots() for result in root.results}
    assert ("bfloat16" in formats) == autocast
