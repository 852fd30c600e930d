"""Functions on nested values (torch.utils._pytree)."""

from torch.utils._pytree import tree_leaves, tree_map, tree_structure

__all__ = ["tree_leaves", "tree_map", "tree_structure"]
