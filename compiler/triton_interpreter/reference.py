"""Eager values of every node of a post-grad graph on the CPU, to compare kernels with.

Random numbers are those that the kernels draw from the same seeds; operators that only GPUs have are computed by their
definition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from compiler.calls.graph_runs import Hook, HookedInterpreter, copy_to_cpu
from compiler.triton_interpreter import gpu_attention, philox


class Unknown:
    """A value that could not be had, and why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __getitem__(self, _index: Any) -> Unknown:
        return self


class Reference(HookedInterpreter):
    """Runs a graph node by node; a failing node's value, and what uses it, is an `Unknown`.

    `wanted` are the names of nodes whose values are kept in `values`; `by_four` are those that draw four random
    numbers at a time. `special` has functions to call in place of operators, by the operator's name. Hooks are around
    the nodes that compute.
    """

    def __init__(
        self,
        module: GraphModule,
        wanted: Collection[str],
        by_four: Collection[str] = (),
        special: Mapping[str, Callable[..., Any]] | None = None,
        hooks: Sequence[Hook] = (),
    ) -> None:
        super().__init__(module, *hooks)
        self._special = special or {}
        self.values: dict[str, Any] = {}
        self._wanted = frozenset(wanted)
        self._by_four = frozenset(by_four)
        self._changes_in_place = any(_is_mutable(node.target) for node in module.graph.nodes)

    def run_node(self, n: Node) -> Any:
        value = self._value(n)
        if n.name in self._wanted:
            self.values[n.name] = self._keep(value)
        return value

    def _value(self, node: Node) -> Any:
        if node.op == "output":
            return map_arg(node.args[0], lambda argument: self.env[argument])
        unknown = next((self.env[source] for source in node.all_input_nodes if _is_unknown(self.env[source])), None)
        if unknown is not None:
            return unknown
        try:
            return self._run(node)
        except Exception as error:  # noqa: BLE001 - ATen fails in many ways, and the other nodes don't care
            return Unknown(f"{node.target} can't be run on the CPU: {_first_line(error)}")

    def _run(self, node: Node) -> Any:
        if node.op == "placeholder":
            return super(HookedInterpreter, self).run_node(node)
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        return self.run_hooked(node, lambda: self.compute_node(node, args, kwargs))

    def compute_node(self, node: Node, args: Any, kwargs: Any) -> Any:
        """The result of a node for these arguments. Raises what the operator does."""
        if (own := self._special.get(str(node.target))) is not None:
            return own(*args)
        special = _SPECIAL.get(str(node.target))
        if special is None:
            return getattr(self, node.op)(node.target, args, kwargs)
        return special(node.target, args, kwargs, node.name in self._by_four)

    def _keep(self, value: Any) -> Any:
        if self._changes_in_place and isinstance(value, Tensor):
            return value.clone()
        return value


def evaluate(
    module: GraphModule, inputs: Sequence[Any], wanted: Collection[str], by_four: Collection[str]
) -> tuple[dict[str, Any], list[Any]]:
    """The values of the `wanted` nodes, and the graph's outputs. Inputs stay as they are."""
    reference = Reference(module, wanted, by_four)
    with torch.no_grad():
        outputs = reference.run(*(copy_to_cpu(value) for value in inputs))
    return reference.values, list(outputs) if isinstance(outputs, tuple | list) else [outputs]


def _is_unknown(value: Any) -> bool:
    return isinstance(value, Unknown)


def _is_mutable(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _random(_target: Any, args: Sequence[Any], _kwargs: Any, by_four: bool) -> Tensor:
    size, seed, mode = args[:3]
    draw = philox.uniform if mode == "rand" else philox.normal
    count = torch.Size(size).numel()
    # A block of fewer than four elements draws them one by one (triton_helpers.rand4x).
    return draw(int(seed), count, by_four=by_four and count > 2).reshape(size)


def _random_integers(_target: Any, args: Sequence[Any], _kwargs: Any, _by_four: bool) -> Tensor:
    low, high, size, seed = args
    return philox.integers(int(seed), torch.Size(size).numel(), low, high).reshape(size)


def _attention(target: Any, args: Sequence[Any], kwargs: dict[str, Any], _by_four: bool) -> Any:
    return gpu_attention.compute(target, args, kwargs)


def _wide_product(target: Any, args: Sequence[Any], kwargs: dict[str, Any], _by_four: bool) -> Tensor:
    """mm, bmm, addmm and baddbmm with a format of their own for the result, which CPUs lack."""
    *tensors, out_dtype = args
    plain = getattr(torch.ops.aten, target.overloadpacket.__name__).default
    result: Tensor = plain(*(tensor.to(out_dtype) for tensor in tensors), **kwargs)
    return result


_SPECIAL: dict[str, Callable[..., Any]] = {
    "prims.inductor_random.default": _random,
    "prims.inductor_randint.default": _random_integers,
    **dict.fromkeys(gpu_attention.NAMES, _attention),
    **{f"aten.{name}.dtype": _wide_product for name in ("mm", "bmm", "addmm", "baddbmm")},
}
