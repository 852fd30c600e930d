"""torch's trees of arguments (pytrees), walked in less time: AOTAutograd maps and lists those of each operator.

torch asks of each part whether its type is registered, or a named tuple's, and to map a tree it first makes a
description of it. Here that is asked once of each type, and tuples, lists and dicts are made anew as they are met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.utils._pytree as pytree

from compiler.torch_api.patching import replaced


@contextmanager
def quick_trees() -> Iterator[None]:
    """In the block `tree_map` and `tree_iter` take less time. Not for a block in which TorchDynamo traces."""
    kinds = _Kinds()
    with (
        replaced(pytree, "tree_map", lambda of_torch: _mapping(of_torch, kinds)),
        replaced(pytree, "tree_iter", lambda of_torch: _listing(of_torch, kinds)),
    ):
        yield


class _Kinds(dict[type, Any]):
    """How a node of a type is taken apart; None for leaves. It is known of types that were asked for."""

    def of(self, tree: Any) -> Any:
        """As pytree.tree_flatten takes it apart."""
        kind = type(tree)
        if kind not in self:
            known = pytree.SUPPORTED_NODES.get(pytree._get_node_type(tree))
            self[kind] = None if known is None else known.flatten_fn
        return self[kind]


def _mapping(of_torch: Callable[..., Any], kinds: _Kinds) -> Callable[..., Any]:
    def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
        kind = type(tree)
        if kind is tuple:
            return tuple([mapped(function, part) for part in tree])
        if kind is list:
            return [mapped(function, part) for part in tree]
        if kind is dict:
            return {name: mapped(function, part) for name, part in tree.items()}
        return function(tree) if kinds.of(tree) is None else of_torch(function, tree)

    def tree_map(function: Callable[..., Any], tree: Any, *others: Any, is_leaf: Any = None) -> Any:
        if others or is_leaf is not None:
            return of_torch(function, tree, *others, is_leaf=is_leaf)
        return mapped(function, tree)

    return tree_map


def _listing(of_torch: Callable[..., Any], kinds: _Kinds) -> Callable[..., Any]:
    def gather(tree: Any, found: list[Any]) -> None:
        kind = type(tree)
        parts_of = kinds[kind] if kind in kinds else kinds.of(tree)
        if parts_of is None:
            found.append(tree)
            return
        for part in tree if kind is tuple or kind is list else parts_of(tree)[0]:
            gather(part, found)

    def tree_iter(tree: Any, is_leaf: Any = None) -> Iterator[Any]:
        if is_leaf is not None:
            return of_torch(tree, is_leaf=is_leaf)
        found: list[Any] = []
        gather(tree, found)
        return iter(found)

    return tree_iter
