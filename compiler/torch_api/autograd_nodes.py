"""Read autograd's graph: nodes (torch.autograd.graph.Node), their saved tensors and their hooks.

Nothing here runs a backward pass or a user's hook: a tensor packed by a hook
(`torch.autograd.graph.saved_tensors_hooks`, checkpointing) is not unpacked, as that may run the forward again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any, Generic, TypeVar

import torch
from torch.autograd import _get_sequence_nr  # type: ignore[attr-defined]
from torch.autograd.function import BackwardCFunction

from compiler.torch_api.patching import Function, call_hidden, hide_frame, replace_attribute

Maker = TypeVar("Maker")
_RAW, _SAVED = "_raw_saved_", "_saved_"
_NO_NUMBER = 2**64 - 1  # AccumulateGrad: it runs as soon as it can
_APPLY: Any = vars(torch.autograd.Function)["apply"]  # written in C from torch 2.15 on
FREED = "freed: a backward pass ran without retain_graph=True"


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Shape, dtype and device of one output of a node's forward operation."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class SavedSlot:
    """A tensor that a node saved for backward.

    `tensor` is None if it can't be read; `problem` says why. `packed` is the name of the hook that packed it, or "".
    """

    name: str
    tensor: torch.Tensor | None
    problem: str = ""
    packed: str = ""


def next_number() -> int:
    """The sequence number that the next node of this thread will get."""
    return int(_get_sequence_nr())


def number_of(node: Any) -> int | None:
    """A node's sequence number in its thread; None for AccumulateGrad, which has none."""
    return None if (number := int(node._sequence_nr())) == _NO_NUMBER else number


def running_number() -> int | None:
    """The sequence number of the node that the backward runs now; None outside of a backward."""
    node = torch._C._current_autograd_node()
    return number_of(node) if node is not None else None


def edges_of(node: Any) -> tuple[tuple[Any, int], ...]:
    """For each input of the forward operation: the next node (or None), and the index among that node's inputs."""
    return tuple(node.next_functions)


def outputs_of(node: Any) -> tuple[TensorFacts, ...]:
    """Shape, dtype and device of each output of the forward operation; the node takes one gradient for each."""
    return tuple(TensorFacts(tuple(each.shape), each.dtype, each.device) for each in node._input_metadata)


def inputs_of(node: Any) -> tuple[tuple[tuple[int, ...], torch.dtype] | None, ...]:
    """Shape and dtype of the forward operation's inputs; None for inputs without a gradient."""
    found = (outputs_of(target)[slot] if target else None for target, slot in edges_of(node))
    return tuple((facts.shape, facts.dtype) if facts else None for facts in found)


def nodes_behind(roots: Iterable[Any]) -> Iterator[Any]:
    """The roots and all nodes reachable from them, each once; roots that are None are skipped."""
    todo = [root for root in roots if root is not None]
    seen = set(todo)
    while todo:
        node = todo.pop()
        yield node
        new = {target for target, _ in edges_of(node) if target is not None} - seen
        seen |= new
        todo.extend(new)


class Spans(Generic[Maker]):
    """Maps ranges of sequence numbers to the maker of their nodes: `add` a range, and look up a number with `find`."""

    def __init__(self) -> None:
        self._makers: dict[tuple[int, int], Maker] = {}
        self._starts: list[tuple[int, int]] = []

    def __bool__(self) -> bool:
        return bool(self._makers)

    def add(self, first: int, end: int, maker: Maker) -> None:
        """Record the maker of the nodes with sequence numbers from `first` to `end` (exclusive)."""
        if end > first:
            self._makers[first, -end] = maker

    def find(self, number: int | None) -> Maker | None:
        """The maker of a node, from the innermost range; None if no range has the number."""
        if number is None:
            return None
        if len(self._starts) != len(self._makers):
            self._starts = sorted(self._makers)
        place = bisect_right(self._starts, (number, 0)) - 1
        first, end = self._starts[place] if place >= 0 else (0, 0)
        return self._makers[first, end] if first <= number < -end else None


def untraced_backwards(spans: Spans[Any]) -> AbstractContextManager[None]:
    """Let TorchDynamo trace no Python code of the nodes in `spans`, also in a backward inside of a compiled function.

    They are nodes of a captured graph that runs uncompiled, such as those of cond, flex_attention or a DTensor: torch
    runs compiled code in their place.
    """

    def make(apply: Function) -> Function:
        @hide_frame
        def wrapper(node: Any, *gradients: Any) -> Any:
            if call_hidden(_maker_of, spans, node) is None:
                return apply(node, *gradients)
            return call_hidden(apply, node, *gradients)

        return wrapper

    return replace_attribute(BackwardCFunction, "apply", make)


def _maker_of(spans: Spans[Any], node: Any) -> Any:
    return spans.find(number_of(node))


def leaf_of(node: Any) -> torch.Tensor | None:
    """The leaf tensor of an AccumulateGrad node; None for other nodes."""
    variable = getattr(node, "variable", None)
    return variable if isinstance(variable, torch.Tensor) else None


def custom_function(node: Any) -> type | None:
    """The user's `torch.autograd.Function` class of a node; None for torch's own nodes."""
    return getattr(type(node), "_forward_cls", None)


def around_custom_functions(
    call: Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any],
) -> AbstractContextManager[None]:
    """Make `Function.apply` of custom functions call `call(apply, args, kwargs)` in the block."""

    def apply_by_call(cls: type, *args: Any, **kwargs: Any) -> Any:
        return call(_APPLY.__get__(None, cls), args, kwargs)

    return replace_attribute(torch.autograd.Function, "apply", lambda _: classmethod(apply_by_call))


def give_frames_to_custom_functions() -> AbstractContextManager[None]:
    """Give `Function.apply` a Python frame in the block, for `is_frame_of_apply` to recognize."""
    return nullcontext() if isinstance(_APPLY, classmethod) else around_custom_functions(_call_apply)


def is_frame_of_apply(frame: FrameType) -> bool:
    """Whether a frame runs `Function.apply` or its replacement."""
    code = frame.f_code
    return code is _call_apply.__code__ or (code.co_name, code.co_filename) == (
        "apply",
        torch.autograd.function.__file__,
    )


def _call_apply(apply: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return apply(*args, **kwargs)


def anomaly_traceback(node: Any) -> tuple[str, ...]:
    """The traceback of the forward call; empty unless anomaly detection was on."""
    return tuple(node.metadata.get("traceback_", ()))


def saved_slots(node: Any) -> Iterator[SavedSlot]:
    """The tensors that a node saved for its backward."""
    kind: Any = type(node)
    for name in _slot_names(kind):
        raw = getattr(node, _RAW + name)
        many = isinstance(raw, Sequence)
        for index, each in enumerate(raw if many else [raw]):
            yield from _slot(node, name, each, index if many else None)


def saved_values(node: Any) -> dict[str, Any]:
    """All tensors and numbers that a node saved, by name. Raises RuntimeError for freed tensors."""
    names = [name for name in dir(type(node)) if name.startswith(_SAVED)]
    return {name.removeprefix(_SAVED): getattr(node, name) for name in names}


@cache
def _slot_names(kind: Any) -> tuple[str, ...]:
    return tuple(name.removeprefix(_RAW) for name in dir(kind) if name.startswith(_RAW))


def _slot(node: Any, name: str, raw: Any, index: int | None) -> Iterator[SavedSlot]:
    label = name if index is None else f"{name}[{index}]"
    if raw.unpack_hook is not None:
        hook = getattr(raw.unpack_hook, "__qualname__", type(raw.unpack_hook).__name__)
        yield SavedSlot(label, None, "packed by a hook; not unpacked, as that would run the hook", hook)
        return
    try:
        value = getattr(node, "saved_tensors" if custom_function(node) else _SAVED + name)
    except RuntimeError as error:
        if "backward through the graph a second time" not in str(error):
            yield SavedSlot(label, raw.data, str(error).split(" Hint:")[0])
        elif raw.data is not None or index in (None, 0):
            yield SavedSlot(label, None, FREED)
        return
    tensor = value if index is None else value[index]
    if tensor is not None:
        yield SavedSlot(label, tensor)


def context_tensors(node: Any) -> dict[str, torch.Tensor]:
    """Tensors that a custom function set as attributes of `ctx`; autograd does not check their versions."""
    own = vars(node) if custom_function(node) is not None else {}
    return {name: value for name, value in own.items() if isinstance(value, torch.Tensor)}


def tensor_hooks(tensor: torch.Tensor) -> tuple[str, ...]:
    """Names of a tensor's hooks and of its post-accumulate-grad hooks."""
    before = tensor._backward_hooks or {}
    after = getattr(tensor, "_post_accumulate_grad_hooks", None) or {}
    names = [hook_name(hook) for hook in before.values()]
    return (*names, *(f"{hook_name(hook)} (post-accumulate)" for hook in after.values()))


def node_hooks(node: Any) -> tuple[str, ...]:
    """Names of the hooks on a node.

    torch does not list them, but the handle of a temporary hook refers to the table of all hooks. Afterwards an
    empty table may remain on the node.
    """
    before = _other_hooks(node.register_prehook(lambda _: None))
    after = _other_hooks(node.register_hook(lambda *_: None))
    return (*(f"{name} (pre)" for name in before), *after)


def _other_hooks(handle: Any) -> tuple[str, ...]:
    """Remove a handle's hook, and return the names of the node's other hooks."""
    table = handle.hooks_dict_ref()
    handle.remove()
    return tuple(hook_name(hook) for hook in table.values())


def hook_name(hook: Any) -> str:
    return getattr(hook, "__qualname__", type(hook).__name__).replace("<locals>.", "")


def apply(
    node: Any, gradients: Sequence[torch.Tensor | None], factors: Collection[int] = ()
) -> tuple[torch.Tensor | None, ...]:
    """Run a node's derivative on gradients, outside of a backward pass and without hooks.

    Like the engine (validate_outputs), sum each gradient to the shape of its input and cast it to the input's dtype;
    None for inputs that need no gradient. Raises RuntimeError if the saved tensors are freed.

    `factors` are positions of inputs for which the node multiplies a gradient by a factor, element by element. There, a
    gradient that is not negative passes its zeros on, also through an infinite factor.
    """
    result = node(*gradients)
    found = [*result] if isinstance(result, tuple) else [result]
    for position in factors:
        found[position] = _with_zeros_of(gradients, found[position])
    return tuple(map(_validate, found, inputs_of(node)))


def _with_zeros_of(gradients: Sequence[torch.Tensor | None], result: torch.Tensor | None) -> torch.Tensor | None:
    given = next(each for each in gradients if each is not None)
    if result is None or result.layout != torch.strided:
        return result
    return result.where(given.sum_to_size(result.shape) != 0, 0)


def _validate(gradient: torch.Tensor | None, wanted: tuple[tuple[int, ...], torch.dtype] | None) -> torch.Tensor | None:
    if gradient is None or wanted is None:
        return None
    shape, dtype = wanted
    return (gradient if gradient.shape == shape else gradient.sum_to_size(shape)).to(dtype)


def version(tensor: torch.Tensor) -> int:
    """Version counter of a tensor: counts in-place writes to the tensor and its views; 0 for inference tensors."""
    return int(tensor._version) if not tensor.is_inference() else 0


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The base of a view, according to autograd; None if the tensor is not a view."""
    return tensor._base
