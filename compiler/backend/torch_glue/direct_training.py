"""Call a training graph's forward and backward without AOTAutograd's wrappers.

AOTAutograd wraps the whole graph, and runs forward and backward in a `torch.autograd.Function`. If the wrappers do
nothing (see `direct`), later calls use a subclass of that function, whose forward and backward do the same in fewer
steps. The subclass saves the same values in the same attributes of the context, so that torch's own method can run an
uncommon backward, and compiled autograd works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import new_class
from typing import Any

import torch
from torch.fx import GraphModule, Node

from compiler.backend.torch_glue.direct import Observation, Watched, are_the_same, without_autocast
from compiler.torch_api.aot import Call, coerce_to_expected_memory_format, never_trace
from compiler.torch_api.bindings import (
    has_thread_value,
    is_batched,
    is_deterministic,
    is_transformed,
    thread_value,
    transforms,
)

_aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Convention:
    """The calling convention between forward and backward.

    The forward's results are, in order: outputs, up to the index `returned`; saved tensors with version checks, up to
    `checked`; saved tensors without version checks, up to `loose`; symbolic sizes.

    views     indices of outputs to pass through `_unsafe_view`
    constant  indices of outputs without a gradient
    tangents  index of each output with a gradient, and the layout that the gradient must have
    """

    returned: int
    checked: int
    loose: int
    views: Sequence[int]
    constant: Sequence[int]
    tangents: Sequence[tuple[int, Any]]


def convention(function: type[Any], results: Sequence[str], inputs: Sequence[str]) -> Convention | None:
    """The calling convention of AOTAutograd's function, from its metadata.

    None if it needs a feature that direct calls do not support, or if the names of the forward's results and the
    backward's inputs disagree.
    """
    facts = function.metadata
    if function.maybe_subclass_metadata is not None or any(getattr(facts, name) for name in _MORE):
        return None
    loose = len(results) - facts.num_symints_saved_for_bw
    checked = loose - facts.num_tensors_saved_with_no_vc_check
    returned = facts.num_forward_returns
    tensors = [(place, o) for place, o in enumerate(facts.output_info) if issubclass(o.raw_type, torch.Tensor)]
    tangents = [place for place, o in tensors if getattr(o, "requires_grad_for_backward", o.requires_grad)]
    saved = [*results[loose:], *results[returned:loose]]
    given, rest = inputs[: len(saved)], inputs[len(saved) :]
    if [*given] != saved or [name.startswith("tangents_") for name in rest] != [True] * len(tangents):
        return None
    formats = [meta.memory_format for meta in facts.subclass_tangent_meta]
    if len(formats) != len(tangents) or None in formats or returned != len(facts.output_info):
        return None
    constant = [place for place, o in tensors if not o.requires_grad]
    pairs = tuple(zip(tangents, formats, strict=True))
    return Convention(returned, checked, loose, (*facts.unsafe_view_out_indices,), (*constant,), pairs)


_MORE = (
    "num_intermediate_bases", "dynamic_saved_tensors_idxs", "num_backward_tokens", "num_graphsafe_rng_states",
    "num_opaque_objects_saved_for_bw", "indices_of_inputs_that_requires_grad_with_mutations_in_bw",
    "mutated_inp_stream_indices", "bw_donated_idxs",
)  # fmt: skip
"""Metadata of features that direct calls do not support."""


class WatchedTraining(Watched):
    """The code of a training graph's forward and backward, observed in the first call through the wrappers."""

    def __init__(self, forward: GraphModule, call: Call, autocast: bool, written: Sequence[int] = ()) -> None:
        super().__init__(call, autocast, written)
        [output] = forward.graph.find_nodes(op="output")
        self.results = [result.name if isinstance(result, Node) else "" for result in output.args[0]]
        self.autocast = autocast
        self.backward: Call | None = None
        self.inputs: Sequence[str] = ()
        self.apply: Callable[..., Sequence[Any]] | None = None

    def has_backward(self, graph: GraphModule, call: Call) -> None:
        """Set the backward's compiled call."""
        self.backward = without_autocast(call) if self.autocast else call
        self.inputs = [node.name for node in graph.graph.find_nodes(op="placeholder")]

    def may_skip(self, found: Observation, outputs: Sequence[Any]) -> bool:
        function = _function_of(outputs)
        if function is None or self.backward is None:
            return False
        how = convention(function, self.results, self.inputs)
        if how is None or len(outputs) != how.returned:
            return False
        inner = [*found.outputs[: how.returned]]
        for place in how.views:
            inner[place] = outputs[place] if _is_alike(inner[place], outputs[place]) else None
        if is_same := are_the_same(inner, outputs):
            self.apply = direct_function(function, self.call, self.backward, how)
        return is_same

    def applies(self) -> bool:
        return torch.is_grad_enabled() and not is_transformed()

    def call_directly(self, args: Sequence[Any]) -> Sequence[Any]:
        assert self.apply is not None
        return self.apply(*args)


def write_out_tangents(call: Call) -> Call:
    """Wrap a backward's call to materialize its tangents.

    A tangent may be a lazy negative, a lazy conjugate, or a zero tensor without memory; TorchDynamo guards against
    these for inputs only. The call raises NotImplementedError for batched tangents (`is_grads_batched`).
    """

    def call_written_out(args: list[Any]) -> Sequence[Any]:
        for place, arg in enumerate(args):
            if isinstance(arg, torch.Tensor) and _stands_for_others(arg):
                args[place] = _in_memory(arg)
        arg = None  # don't keep a reference
        return call(args)

    return call_written_out


def _stands_for_others(tensor: torch.Tensor) -> bool:
    """Whether a tensor is lazy or batched, so that its memory does not hold its elements."""
    return tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor() or is_batched(tensor)


def _in_memory(tensor: torch.Tensor) -> torch.Tensor:
    if is_batched(tensor):
        raise NotImplementedError(
            "gradients come in a batch (is_grads_batched=True), and compiled code takes one at a time: loop over "
            "them, or compile with backend='aot_eager'"
        )
    return tensor.clone() if tensor._is_zerotensor() else tensor.resolve_neg().resolve_conj()


def _function_of(outputs: Sequence[Any]) -> type[Any] | None:
    """The AOTAutograd function that made all outputs with a grad_fn; None if there is no such function."""
    nodes = [output.grad_fn for output in outputs if isinstance(output, torch.Tensor) and output.grad_fn is not None]
    found = {getattr(node, "_forward_cls", None) for node in nodes}
    function = found.pop() if len(found) == 1 else None
    return function if hasattr(function, "_aot_id") else None


def _is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same view of the same memory."""
    return (one.data_ptr(), one.shape, one.stride()) == (other.data_ptr(), other.shape, other.stride())


def direct_function(function: type[Any], forward: Call, backward: Call, how: Convention) -> Callable[..., Any]:
    """`apply` of a subclass of AOTAutograd's function that calls the compiled forward and backward directly."""
    backwards = _backward(function, backward, how)
    methods = {"forward": staticmethod(_forward(forward, how)), "backward": staticmethod(backwards)}
    derived: Any = new_class(function.__name__, (function,), exec_body=lambda body: body.update(methods))
    setattr(derived._backward_cls, "apply_boxed" if _is_boxed(function) else "apply", backwards)  # autograd calls this
    apply: Callable[..., Any] = super(torch.autograd.Function, derived).apply
    return apply


def _is_boxed(function: type[Any]) -> bool:
    """Whether a function's backward takes its gradients in one list, as in torch 2.13 and later."""
    return getattr(function, "boxed_grads_call", False)


def _forward(call: Call, how: Convention) -> Callable[..., Any]:
    """A shorter version of `_compiled_forward` in torch._functorch._aot_autograd.runtime_wrappers."""
    returned, checked, loose, views, constant = how.returned, how.checked, how.loose, how.views, how.constant
    view = _aten._unsafe_view.default

    def forward(ctx: Any, *args: Any) -> tuple[Any, ...]:
        results = call([*args])
        saved = [value.detach() if value._is_view() else value for value in results[returned:loose]]
        ctx.save_for_backward(*saved[: checked - returned])
        ctx._tensors_no_vc_check = saved[checked - returned :]
        ctx.symints = results[loose:]
        ctx.opaque_objects = ()
        outputs = [*results[:returned]]
        for place in views:
            outputs[place] = view(outputs[place], outputs[place].shape)
        ctx.mark_non_differentiable(*[outputs[place] for place in constant])
        ctx._materialize_non_diff_grads = False
        return tuple(outputs)

    return forward


def _backward(function: type[Any], call: Call, how: Convention) -> Callable[..., Any]:
    """A shorter version of torch's `_compiled_backward` (same module), for plain tensors and first derivatives.

    It keeps no references to the tensors that it passes on, so that the code can free them as early as possible.
    """
    original = function.backward
    tangents = [(place, layout.size, layout.stride, layout) for place, layout in how.tangents]
    is_boxed, is_grad_enabled, plain = _is_boxed(function), torch.is_grad_enabled, torch.Tensor

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        given: Any = grads[0] if is_boxed else grads
        if is_grad_enabled() or is_deterministic() or transforms() is not None:
            return original(ctx, *grads)
        found, tangent = [], None
        for place, size, stride, layout in tangents:
            tangent = given[place]
            if type(tangent) is not plain or _stands_for_others(tangent):
                return original(ctx, *grads)
            if tangent.stride() != stride or tangent.shape != size:
                tangent = coerce_to_expected_memory_format(tangent, layout)
            found.append(tangent)
        args = [*ctx.symints, *ctx.saved_tensors, *ctx._tensors_no_vc_check, *found]
        del found, tangent
        if is_boxed:
            given.clear()
        ctx.maybe_clear_saved_tensors()
        if has_thread_value("context") and (context := thread_value("context")) is not None:
            return tuple(context.run(call, args))
        return tuple(call(args))

    never_trace(backward)
    return backward
