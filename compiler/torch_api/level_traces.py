"""Trace graphs with a decomposition table, and record the decompositions that produced each node.

`make_fx` (torch.fx.experimental.proxy_tensor) passes an operator to its decomposition, and the operators called there
go through the table again. Decompositions are wrapped to record which ones are active when a node is created.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, Literal

import torch
import torch._functorch.config as functorch_config
import torch._inductor.lowering  # Inductor's decompositions ask it without importing it
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import default_partition
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import disable_fake_tensor_cache
from torch.func import functionalize
from torch.fx import GraphModule, Interpreter, Node
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import get_proxy_slot, make_fx

from compiler.torch_api import fx
from compiler.torch_api.decomposition_tables import Table
from compiler.torch_api.pytrees import tree_leaves

Kind = Literal["forward", "backward", "inference"]
_MARK = "tcompile_decomposition"
_aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Applied:
    """One use of the decomposition `function` on the operator `op`.

    `node` names the decomposed node. `parent` is the index of the enclosing use, or None.
    `declined` says why the operator stays: the function "returned NotImplemented", "raised …", or "gives …" a result of
    the wrong type. It is "" if the function replaces the operator.
    `results` are the `fx.tensor_attrs` of the result tensors. The tensors are not kept, as torch would trace a `detach`
    of each.
    """

    op: OpOverload
    function: Callable[..., Any]
    node: str
    parent: int | None
    declined: str = ""
    results: tuple[dict[str, Any], ...] = ()


@dataclass(slots=True)
class Expanded:
    """A graph traced with a decomposition table.

    `applied` are the decompositions used. `makers` maps a node to the index of the innermost decomposition that
    created it. `values` maps a node of the original graph to the traced node of each of its results, or None.
    """

    module: GraphModule
    applied: list[Applied] = field(default_factory=list)
    makers: dict[str, int] = field(default_factory=dict)
    values: dict[str, tuple[str | None, ...]] = field(default_factory=dict)


class _Uses:
    """Wraps the decompositions of a table to record when they run."""

    def __init__(self) -> None:
        self.applied: list[Applied] = []
        self.node: Node | None = None
        self._open: list[int] = []

    def wrap(self, table: Table) -> dict[OpOverload, Callable[..., Any]]:
        return {op: partial(self._run, op, function) for op, function in table.items()}

    def _run(self, op: OpOverload, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        index, name = len(self.applied), self.node.name if self.node is not None else ""
        use = Applied(op, function, name, self._open[-1] if self._open else None)
        self.applied.append(use)
        self._open.append(index)
        try:
            with fx_traceback.annotate({_MARK: index}):
                result = function(*args, **kwargs)
            declined = self._fault(use, result)
        except Exception as error:  # noqa: BLE001 - the arguments are valid: the error is the reason why the operator stays
            result, declined = NotImplemented, f"raised {type(error).__name__}: {first_line(error)}"
        finally:
            self._open.pop()
        results = () if declined else tensor_types(result)
        self.applied[index] = replace(use, declined=declined, results=results)
        return NotImplemented if declined else result

    def _fault(self, use: Applied, result: Any) -> str:
        """Why a decomposition's result can't replace the operator's; "" if it can.

        Some decompositions are for inference only, and return placeholders for results that a backward needs.
        """
        if result is NotImplemented:
            return "returned NotImplemented"
        if use.parent is not None or self.node is None or self.node.target is not use.op:
            return ""
        wanted, given = _used_results(self.node), result if isinstance(result, tuple | list) else (result,)
        wrong = (place for place, value in wanted.items() if _key(given[place]) != _key(value))
        return next((f"gives {_type_text(given[place])} as result {place}, which is used and should be "
                     f"{_type_text(wanted[place])}" for place in wrong), "")  # fmt: skip


def _used_results(node: Node) -> dict[int, torch.Tensor]:
    """The tensors of a node's value that other nodes use, by index."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return {0: value}
    places = {user.args[1] for user in node.users if user.users and fx.target_name(user) == "operator.getitem"}
    values = value if isinstance(value, tuple | list) else ()
    return {place: item for place, item in enumerate(values) if place in places and isinstance(item, torch.Tensor)}


def _key(value: Any) -> tuple[Any, ...]:
    """The dtype and shape of a tensor, with None for symbolic sizes; () for other values."""
    if not isinstance(value, torch.Tensor):
        return ()
    return value.dtype, *(size if isinstance(size, int) else None for size in value.shape)


def _type_text(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{fx.dtype_name(value.dtype)}[{', '.join(map(str, value.shape))}]"


class _Retracing(Interpreter):
    """Runs a graph while it is retraced; `view` becomes `reshape`, as strides may change."""

    def __init__(self, module: GraphModule, uses: _Uses) -> None:
        super().__init__(module)
        self._uses = uses
        self.values: dict[str, tuple[Any, ...]] = {}

    def run_node(self, n: Node) -> Any:
        self._uses.node = n
        value = super().run_node(n)
        if n.op == "call_function":
            self.values[n.name] = tuple(_node_of_proxy(leaf) for leaf in tree_leaves(value))
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is _aten.view.default:
            target = _aten.reshape.default
        return super().call_function(target, args, kwargs)


def _node_of_proxy(leaf: Any) -> Any:
    """The FX node of a traced tensor, or None."""
    mode = torch.fx.experimental.proxy_tensor.get_proxy_mode()
    if not isinstance(leaf, torch.Tensor) or mode is None:
        return None
    slot = get_proxy_slot(leaf, mode.tracer, None)
    return getattr(getattr(slot, "proxy", None), "node", None)


def expand_node(module: GraphModule, table: Table, *, functional: bool = False) -> Expanded:
    """Trace a graph on fake tensors (`meta["val"]` of its placeholders) with a decomposition table.

    The graph itself is not changed. With `functional`, mutating operators become functional ones.
    """
    uses = _Uses()
    inputs = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    retracing = _Retracing(module, uses)

    def run(*args: Any) -> Any:
        return retracing.run(*args)

    traced = functionalize(run, remove="mutations") if functional else run
    with warnings.catch_warnings(), fx_traceback.preserve_node_meta(), _fake_mode(inputs), torch.no_grad():
        warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # torch's own prims.as_strided
        made = make_fx(traced, decomposition_table=uses.wrap(table), tracing_mode="real")(*inputs)
    _name_inputs(made, module)
    _drop_declined(made, uses.applied)
    known = {node.name for node in made.graph.nodes}
    makers = {node.name: mark for node in made.graph.nodes if (mark := _mark(node)) is not None}
    values = {
        name: tuple(node.name if node is not None and node.name in known else None for node in nodes)
        for name, nodes in retracing.values.items()
    }
    _unmark(made)
    return Expanded(made, uses.applied, makers, values)


@contextmanager
def _fake_mode(inputs: Sequence[Any]) -> Iterator[None]:
    """Enter the fake tensor mode of the inputs, with its cache off.

    The cache loses the storage offset of views made by prims (seen in torch 2.13); graphs traced from such views read
    the wrong elements.
    """
    mode = detect_fake_mode(inputs)
    with nullcontext() if mode is None else disable_fake_tensor_cache(mode), mode or nullcontext():
        yield


def _name_inputs(made: GraphModule, before: GraphModule) -> None:
    """Give a traced graph's inputs their original names; other nodes with these names are renamed."""
    names = [node.name for node in before.graph.nodes if node.op == "placeholder"]
    inputs = [node for node in made.graph.nodes if node.op == "placeholder"]
    used = {node.name for node in made.graph.nodes} | set(names)
    for node in made.graph.nodes:
        if node.op != "placeholder" and node.name in names:
            base = re.sub(r"_\d+$", "", node.name)
            node.name = next(free for number in count(1) if (free := f"{base}_{number}") not in used)
            used.add(node.name)
    for node, name in zip(inputs, names, strict=True):
        node.name = node.target = name
    made.recompile()


def tensor_types(value: Any) -> tuple[dict[str, Any], ...]:
    """`fx.tensor_attrs` of each tensor in a nested value."""
    return tuple(fx.tensor_attrs(leaf) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def first_line(error: BaseException) -> str:
    """The first line of an error's message, with the next line if the first ends in a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def _mark(node: Node) -> int | None:
    mark = (node.meta.get("custom") or {}).get(_MARK)
    return mark if isinstance(mark, int) else None


def _drop_declined(module: GraphModule, applied: Sequence[Applied]) -> None:
    """Remove the nodes of declined decompositions, and other dead code."""
    declined = {index for index, use in enumerate(applied) if use.declined}
    for index, use in enumerate(applied):  # an inner use comes after its parent
        if use.parent in declined:
            declined.add(index)
    for node in reversed(module.graph.nodes):
        if _mark(node) in declined and not node.users:
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _unmark(module: GraphModule) -> None:
    """Remove our marks: torch would print them above the code."""
    for node in fx.qualified_names(module):
        custom = {key: value for key, value in (node.meta.get("custom") or {}).items() if key != _MARK}
        if "custom" in node.meta:
            node.meta["custom"] = custom
        if not custom:
            node.meta.pop("custom", None)


def traced_call(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> GraphModule:
    """Trace the operators that a function of tensors calls, above autograd, composite ones included."""
    return make_fx(function, tracing_mode="fake", pre_dispatch=True)(*tensors)


@dataclass(slots=True)
class AotGraphs:
    """AOTAutograd's graphs of a captured graph, traced without decompositions, and a way to run them.

    `graphs` has "forward" and "backward", or "inference". `call` is AOTAutograd's runtime wrapper; it calls
    `run(kind, inputs)` for the outputs of each graph.
    """

    call: Callable[..., Any]
    joint: GraphModule | None
    graphs: dict[Kind, GraphModule]
    run: Callable[[Kind, Sequence[Any]], Any]


def aot_graphs(module: GraphModule, arguments: Sequence[Any]) -> AotGraphs:
    """Trace a captured graph, and its backward if any, through AOTAutograd without decompositions.

    `arguments` are the example inputs; they are not changed.
    """
    found = AotGraphs(_raise_untraced, None, {}, _raise_untraced)

    def compile_graph(kind: Kind, graph: GraphModule, inputs: Sequence[Any]) -> Any:
        for node, value in zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True):
            node.meta.setdefault("val", value)  # number inputs have no `val`
        graph.graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
        graph.recompile()
        found.graphs[kind] = graph
        return make_boxed_func(lambda *args: found.run(kind, args))

    def partition(joint: GraphModule, inputs: Any, **kwargs: Any) -> Any:
        found.joint = joint
        return default_partition(joint, inputs, **kwargs)

    with functorch_config.patch(force_non_lazy_backward_lowering=True, enable_autograd_cache=False):
        found.call = aot_module_simplified(
            module, arguments, fw_compiler=partial(compile_graph, "forward"),
            bw_compiler=partial(compile_graph, "backward"), inference_compiler=partial(compile_graph, "inference"),
            partition_fn=partition, decompositions={},
        )  # fmt: skip
    return found


def _raise_untraced(*_: Any) -> Any:
    raise RuntimeError("these graphs can't be run while they are traced")


def name_before(node: Node, known: Container[str]) -> str:
    """The nearest source of a traced node (`meta["from_node"]`) that is in `known`; "" if there is none."""
    return next((name for name, _ in fx.sources(node) if name in known), "")
