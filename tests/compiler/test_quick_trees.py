"""torch's trees are walked in less time, and mapped and listed as torch does it."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch.fx.immutable_collections import immutable_dict, immutable_list

from compiler.torch_api.quick_trees import quick_trees

Point = namedtuple("Point", ["x", "y"])
TREES = (
    3,
    None,
    (),
    [],
    {},
    (1, [2, {"b": 3, "a": (None, 4.0)}], "text"),
    Point(1, (2, [3])),
    (torch.Size((2, 3)), slice(1, 2), torch.return_types.max((torch.ones(1), torch.zeros(1, dtype=torch.int64)))),
    OrderedDict([("z", 1), ("y", [2])]),
    defaultdict(list, {"k": [1, (2,)]}),
    (immutable_list([1, (2, 3)]), immutable_dict({"dim": 1, "of": [2]})),
    [(Point(1, 2), {"p": Point((3,), immutable_list([4]))})],
)


def shown(tree: Any) -> str:
    """Values and types."""
    if isinstance(tree, dict):
        return f"{type(tree)}{[(name, shown(part)) for name, part in tree.items()]}"
    inside = [shown(part) for part in tree] if isinstance(tree, tuple | list) else repr(tree)
    return f"{type(tree)}{inside}"


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_trees_are_mapped_and_listed_as_torch_does_it(tree: Any) -> None:
    def change(leaf: Any) -> Any:
        return (leaf, "changed")

    expected = shown(pytree.tree_map(change, tree)), shown(pytree.tree_leaves(tree))
    only = shown(pytree.tree_map_only(int, lambda leaf: -leaf, tree))
    with quick_trees():
        assert (shown(pytree.tree_map(change, tree)), shown(pytree.tree_leaves(tree))) == expected
        assert shown(pytree.tree_map_only(int, lambda leaf: -leaf, tree)) == only


def test_further_trees_and_leaves_of_the_callers_are_torchs() -> None:
    with quick_trees():
        assert pytree.tree_map(lambda a, b: a + b, (1, [2]), (10, [20])) == (11, [22])
        assert pytree.tree_map(len, ([1, 2], [3]), is_leaf=lambda part: isinstance(part, list)) == (2, 1)
        assert list(pytree.tree_iter(([1, 2], 3), is_leaf=lambda part: isinstance(part, list))) == [[1, 2], 3]
        with pytest.raises(ValueError, match="Node arity mismatch"):
            pytree.tree_map(lambda a, b: a + b, (1, 2), (1, 2, 3))


def test_torchs_own_functions_come_back() -> None:
    before = pytree.tree_map, pytree.tree_iter
    with quick_trees():
        assert pytree.tree_map is not before[0]
        assert pytree.tree_iter is not before[1]
    assert (pytree.tree_map, pytree.tree_iter) == before
