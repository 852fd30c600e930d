"""Eager values of the nodes of a post-grad graph on the CPU, to compare kernels with.

Random numbers are those that the kernels draw from the same seeds. Operators that only GPUs have are computed by
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
from compiler.torch_api.decomposition_tables import is_mutable
from compiler.torch_api.pytrees import tree_map
from compiler.triton_interpreter import gpu_attention, philox

HALF = (torch.bfloat16, torch.float16)


class Unknown:
    """Stands for a value that could not be computed, with the reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __getitem__(self, _index: Any) -> Unknown:
        return self


class Reference(HookedInterpreter):
    """Runs a graph node by node. The value of a failing node, and of all its users, is an `Unknown`.

    `wanted` names the nodes to keep in `values`; `by_four` names the nodes that draw four random numbers at a time.
    `special` has functions to call instead of operators, by operator name. Hooks wrap all nodes but inputs and outputs.
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
        self._mutates = any(is_mutable(node.target) for node in module.graph.nodes)

    def run_node(self, n: Node) -> Any:
        value = self._value(n)
        if n.name in self._wanted:
            self.values[n.name] = value.clone() if self._mutates and isinstance(value, Tensor) else value
        return value

    def _value(self, node: Node) -> Any:
        if node.op == "output":
            return map_arg(node.args[0], lambda argument: self.env[argument])
        for source in node.all_input_nodes:
            if isinstance(unknown := self.env[source], Unknown):
                return unknown
        try:
            if node.op == "placeholder":
                return super(HookedInterpreter, self).run_node(node)
            args, kwargs = self.fetch_args_kwargs_from_env(node)
            return self.run_hooked(node, lambda: self.compute_node(node, args, kwargs))
        except Exception as error:  # noqa: BLE001 - ATen may raise anything, and other nodes can still run
            return Unknown(f"{node.target} can't be run on the CPU: {first_line(error)}")

    def compute_node(self, node: Node, args: Any, kwargs: Any) -> Any:
        """Compute a node for these arguments. Raises the operator's errors."""
        if (own := self._special.get(str(node.target))) is not None:
            return own(*args)
        if (special := _SPECIAL.get(str(node.target))) is not None:
            return special(node.target, args, kwargs, node.name in self._by_four)
        return getattr(self, node.op)(node.target, args, kwargs)


def evaluate(
    module: GraphModule, inputs: Sequence[Any], wanted: Collection[str], by_four: Collection[str]
) -> tuple[dict[str, Any], list[Any]]:
    """Run a graph, and return the values of the `wanted` nodes and the outputs. Inputs are not changed."""
    reference = Reference(module, wanted, by_four)
    with torch.no_grad():
        outputs = reference.run(*(copy_to_cpu(value) for value in inputs))
    return reference.values, list(outputs) if isinstance(outputs, tuple | list) else [outputs]


def first_line(error: Exception) -> str:
    """The first line of an error's message; the name of its type if the message is empty."""
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


def _wide_matmul(target: Any, args: Sequence[Any], kwargs: dict[str, Any], _by_four: bool) -> Tensor:
    """Compute mm, bmm, addmm or baddbmm with `out_dtype`, which ATen lacks on the CPU."""
    *tensors, out_dtype = args
    plain = getattr(torch.ops.aten, target.overloadpacket.__name__).default
    result: Tensor = plain(*(tensor.to(out_dtype) for tensor in tensors), **kwargs)
    return result


_SPECIAL: dict[str, Callable[..., Any]] = {
    "prims.inductor_random.default": _random,
    "prims.inductor_randint.default": _random_integers,
    **dict.fromkeys(gpu_attention.NAMES, gpu_attention.compute),
    **{f"aten.{name}.dtype": _wide_matmul for name in ("mm", "bmm", "addmm", "baddbmm")},
}


class Unrounded:
    """Recomputes a kernel's results from its inputs in float32, without eager's rounding to 16 bits.

    Eager PyTorch rounds every intermediate of a 16-bit model to 16 bits; a fused kernel rounds once, when it stores. So
    a comparison (`random > 0.1`) may have another result without the kernel being wrong. Inductor rounds before some of
    the graph's conversions to float32, and not before others: both variants are computed. `compute` runs a node on
    arguments.
    """

    def __init__(self, module: GraphModule, compute: Callable[[Node, Any, Any], Any]) -> None:
        self._nodes = {node.name: node for node in module.graph.nodes}
        self._compute = compute

    def values(self, name: str, known: Mapping[str, Any]) -> list[Tensor]:
        """The node's value computed from the `known` values, in both variants; [] if that fails."""
        found = (self._value_from(name, known, rounds) for rounds in (False, True))
        return [value for value in found if value is not None]

    def _value_from(self, name: str, known: Mapping[str, Any], rounds: bool) -> Tensor | None:
        node = self._nodes.get(name)
        if node is None:
            return None
        values = {key: _widen(value) for key, value in known.items() if key != name}
        try:
            computed = self._value(node, values, rounds)
        except (KeyError, RuntimeError, TypeError, NotImplementedError, RecursionError):
            return None
        return computed if isinstance(computed, Tensor) else None

    def _value(self, node: Node, values: dict[str, Any], rounds: bool) -> Any:
        if node.name not in values:
            if node.op == "placeholder":
                raise KeyError(node.name)
            for source in node.all_input_nodes:
                self._value(source, values, rounds)
            is_rounded = rounds and _widens(node)

            def given_value(source: Node) -> Any:
                value, dtype = values[source.name], source.meta.get("dtype")
                return value.to(dtype).float() if is_rounded and dtype in HALF and isinstance(value, Tensor) else value

            args, kwargs = tree_map(_wide_format, map_arg((node.args, node.kwargs), given_value))
            values[node.name] = _widen(self._compute(node, args, kwargs))
        return values[node.name]


def _widens(node: Node) -> bool:
    return node.target is torch.ops.prims.convert_element_type.default and node.args[1] not in HALF


def _widen(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value


def _wide_format(argument: Any) -> Any:
    """float32 for a 16-bit dtype, so that intermediates are not rounded; other arguments unchanged."""
    return torch.float32 if argument in HALF else argument
