"""Notes on a node of autograd's graph: views, in-place operations, accumulation, custom functions."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.autograd.eager_graph import GraphNode, GraphStop, base_name
from compiler.record import Saved
from compiler.torch_api import autograd_nodes

_VIEWS = frozenset({
    "view", "unsafe_view", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "slice", "select", "split",
    "split_with_sizes", "chunk", "unbind", "as_strided", "diagonal", "alias", "detach", "narrow", "unfold", "real",
    "imag", "view_as_real", "view_as_complex", "reshape_alias", "movedim",
})  # fmt: skip
_SPECIAL = {
    "AccumulateGrad": "a leaf: the gradient is added to its .grad, which is what the optimizer reads",
    "CopySlices": (
        "a view was written to in place, which changes part of the tensor that it is a view of. This node takes over "
        "as the history of the whole tensor: the part that was written sends its gradient through the rule of the "
        "write, the rest passes on unchanged"
    ),
    "AsStridedBackward0": (
        "a view whose base was written to in place: autograd has made its history anew, as a window on the base"
    ),
    "UndefinedGrad": "no gradient comes this way",
    "CompiledFunctionBackward": (
        "one node for all that torch.compile made of the forward pass: its backward is the compiled backward graph"
    ),
    "CheckpointFunctionBackward": (
        "activation checkpointing: the forward of this part is run again in the backward, in place of saving it"
    ),
}


def notes(node: GraphNode, saved: tuple[Saved, ...] = ()) -> tuple[str, ...]:
    """Notes on a node, each a sentence without its full stop. `saved` are the node's saved tensors."""
    return tuple(dict.fromkeys([*_own(node), *_of_leaf(node), *_of_results(node), *_saved_problems(saved)]))


def _own(node: GraphNode) -> Iterator[str]:
    base = node.op.rstrip("0123456789").removesuffix("Backward")
    if node.op in _SPECIAL:
        yield _SPECIAL[node.op]
    elif told := second_order(node):
        yield told
    elif node.kind == "custom":
        yield f"a custom torch.autograd.Function ({base}): its backward is the user's own code"
    elif node.kind == "outer":
        yield "the gradient leaves this graph here"
    elif is_view(node.op):
        yield "a view: no numbers are computed or copied, so only the shape of the gradient changes"
    if node.call is not None and node.call.in_place and node.op != "CopySlices":
        yield (
            f"{node.call.op.rsplit('.', 1)[-1]} writes in place: the tensor keeps its memory, its version goes up by "
            "one, and its history goes on with this node"
        )


def second_order(node: GraphNode) -> str:
    """A note on a node made by a backward pass, "" for other nodes."""
    if node.derivative_of:
        return (
            "made by a backward pass that was recorded itself (create_graph=True): a part of the derivative of "
            f"{node.derivative_of}, which is differentiated once more here (double backward)"
        )
    if node.op.rstrip("0123456789").endswith("BackwardBackward"):
        return (
            "what ran forward here was a backward formula, recorded with create_graph=True: a derivative is "
            "differentiated once more (double backward)"
        )
    return ""


def stop_words(found: GraphStop) -> str:
    """The reason why the gradient stops, without a full stop."""
    stop = found.stop
    if stop.kind == "frozen":
        return "frozen: its requires_grad is False, so no gradient is computed for it, and what only it led to is cut"
    origin = f" from {found.source}" if found.source else ""
    if stop.kind == "detached":
        call = f"{stop.op.rsplit('.', 1)[-1]}()" if stop.op and "__get__" not in stop.op else ".data"
        return f"cut off{origin} by {call}: to the backward pass it is a constant, and no gradient goes further back"
    return (
        f"computed under torch.no_grad(){origin}: nothing was recorded there, so to the backward pass it is a constant"
    )


def is_view(op: str) -> bool:
    """Whether the forward operation of this node, such as `ViewBackward0`, returns a view."""
    return base_name(op) in _VIEWS


def _of_leaf(node: GraphNode) -> Iterator[str]:
    leaf = node.leaf
    if leaf is None:
        return
    terms = sum(len(flows) for flows in node.takes)
    if terms > 1:
        yield f"{terms} gradients come together here and are added"
    if leaf.grad is not None:
        yield "it has a .grad already: what comes is added to that (zero_grad() makes it None)"
    if writes := autograd_nodes.version(leaf):
        times = "once" if writes == 1 else f"{writes} times"
        yield f"it was written to in place {times} (version {writes}), as an optimizer's step or an init function does"


def _of_results(node: GraphNode) -> Iterator[str]:
    if node.kind == "accumulate":
        return
    terms = max((len(flows) for flows in node.takes), default=0)
    if terms > 1:
        yield f"its result is used {terms} times, so {terms} gradients are added before this node runs"
    if node.hooks:
        yield f"hooks see the gradient here: {', '.join(node.hooks)}"


def _saved_problems(saved: tuple[Saved, ...]) -> Iterator[str]:
    for fact in saved:
        if "modified by an inplace operation" in fact.problem:
            yield (
                f"{fact.name} was written to in place after it was saved (it is at version {fact.version}): backward "
                "will raise an error here; write to a copy, or use the operation that is not in place"
            )
        elif fact.problem:
            yield f"{fact.name}: {fact.problem}"
