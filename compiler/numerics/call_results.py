"""Results of a call: outputs, gradients, and buffers and arguments changed in place, under the user's names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compiler.calls.call import Call, leave_no_trace
from compiler.torch_api.dtensor import differentiable_part, is_dtensor
from compiler.torch_api.pytrees import tree_map
from compiler.torch_api.widened import Drawn, Recording, Widened, random_state, wide_leaf

SEED = 0


@dataclass(frozen=True, slots=True)
class CallResults:
    """Tensors that a call returns or changes, by name.

    `state` holds buffers and arguments after the call, `before` their values before the call. Gradients are those of a
    weighted sum of the outputs, with fixed normal random weights (1 for a single number): gradients of a plain sum
    would vanish behind a softmax or a normalization. Those of FSDP's parameters are left out, as its hooks reduce them.
    `draws` is whether the call drew random numbers.
    """

    outputs: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor | None]
    state: Mapping[str, Tensor]
    before: Mapping[str, Tensor]
    draws: bool = False

    def parts(self, changed: Sequence[str]) -> tuple[dict[str, Tensor | None], ...]:
        """Outputs, gradients, and the `changed` part of the state, each as a dict from name to tensor."""
        return (
            dict(self.outputs),
            {f"gradient of {name}": value for name, value in self.gradients.items()},
            {f"{name}, changed in place": self.state[name] for name in changed},
        )

    def with_names(self, changed: Sequence[str]) -> list[tuple[str, Tensor | None]]:
        """Pairs (name, tensor) of all parts."""
        return [item for part in self.parts(changed) for item in part.items()]

    def changed_names(self) -> set[str]:
        """Names of buffers and arguments whose values changed."""
        return {name for name, value in self.state.items() if not torch.equal(value, self.before[name])}

    def has_same_results(self, other: CallResults) -> bool:
        """Whether another call has outputs and gradients with the same names, and the same gradients are None."""
        ours = {name: value is None for name, value in self.gradients.items()}
        theirs = {name: value is None for name, value in other.gradients.items()}
        return self.outputs.keys() == other.outputs.keys() and ours == theirs


def results(call: Call, run: Callable[..., Any]) -> CallResults:
    """Repeat the call without side effects, with `run` in place of its function. Raises any exception of `run`."""
    with leave_no_trace(call):
        return _repeat(call, run, call.copied_arguments(), call.parameters(), call.buffers())


def record_draws(call: Call) -> list[Drawn]:
    """Run the call in eager mode, and return the random numbers that it draws, in order."""
    with Recording() as recording:
        results(call, call.fn)
    return recording.drawn


def exact(call: Call, draws: Sequence[Drawn]) -> CallResults:
    """Results of the call in float64, with the given random numbers.

    Raises any exception of the call: not all code supports float64.
    """
    with leave_no_trace(call):
        arguments, parameters, buffers = tree_map(
            wide_leaf, (call.copied_arguments(), call.parameters(), call.buffers())
        )
        with Widened(draws):
            return _repeat(call, call.with_tensors(parameters | buffers), arguments, parameters, buffers)


def _repeat(
    call: Call,
    run: Callable[..., Any],
    arguments: tuple[Sequence[Any], Mapping[str, Any]],
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
) -> CallResults:
    args, kwargs = arguments
    names = _argument_names(call)
    leaves = {**parameters, **_tensors(names, arguments, wants=True)}
    state = {**buffers, **_tensors(names, arguments, wants=False)}
    before, random = _copies(state), random_state()
    outputs = {name: differentiable_part(value) for name, value in outputs_of(run(*args, **kwargs))}
    found = zip(leaves.items(), _gradients(list(outputs.values()), list(leaves.values())), strict=False)
    gradients = {name: value for (name, leaf), value in found if value is not None or not is_dtensor(leaf)}
    kept, after = _copies(outputs), _copies(state)
    return CallResults(kept, gradients, after, before, random_state() != random)


def _copies(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors; of a DTensor, its part on this rank."""
    return {name: differentiable_part(value.detach()).clone() for name, value in found.items()}


def _gradients(outputs: Sequence[Tensor], leaves: Sequence[Tensor]) -> Sequence[Tensor | None]:
    roots = [output for output in outputs if output.requires_grad]
    if not roots or not leaves:
        return ()
    generator = np.random.default_rng(SEED)  # NumPy's, as torch's random operators are being recorded
    weights = [_weights(root, generator) for root in roots]
    return [differentiable_part(value) for value in torch.autograd.grad(roots, leaves, weights, allow_unused=True)]


def _weights(output: Tensor, generator: np.random.Generator) -> Tensor:
    """Weights for an output: the same on every run and device, and exact in every dtype of at least 16 bits."""
    if output.numel() == 1:
        return torch.ones_like(output)
    weights = np.round(32 * generator.standard_normal(tuple(output.shape))).clip(-128, 128) / 32
    return torch.from_numpy(weights).to(output.device, output.dtype)


def outputs_of(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors in a call's return value, named `output`, `output 1`, `logits`, `past_key_values[0][1]`."""
    if isinstance(value, Tensor):
        yield "output", value
    elif isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        for index, item in enumerate(value):
            yield from _tensors_in(f"output {index}", item)
    else:
        for name, item in _parts(value):
            yield from _tensors_in(name.removeprefix("."), item)


def _tensors_in(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
        return
    for part, item in _parts(value):
        yield from _tensors_in(f"{name}{part}", item)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the elements of a container, each with the Python expression to access it.

    A ModelOutput of transformers is both a dict and a dataclass.
    """
    if isinstance(value, Mapping):
        plain = all(isinstance(key, str) and key.isidentifier() for key in value)
        yield from ((f".{key}" if plain else f"[{key!r}]", item) for key, item in value.items())
    elif hasattr(value, "_fields"):
        yield from ((f".{name}", getattr(value, name)) for name in value._fields)
    elif isinstance(value, tuple | list):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{item.name}", getattr(value, item.name)) for item in fields(value))


def _argument_names(call: Call) -> list[str]:
    """Parameter names of the positional arguments; `argument 0` for an argument taken by `*args`."""
    function = call.fn.forward if isinstance(call.fn, torch.nn.Module) else call.fn
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = [parameter.name for parameter in parameters if parameter.kind in kinds]
    return [known[place] if place < len(known) else f"argument {place}" for place in range(len(call.args))]


def _tensors(names: Sequence[str], arguments: Any, *, wants: bool) -> dict[str, Tensor]:
    """Distinct tensors passed to a call: leaves that require grad if `wants`, else tensors that don't."""
    args, kwargs = arguments
    every = [found for name, value in [*zip(names, args, strict=True), *kwargs.items()]
             for found in _tensors_in(name, value)]  # fmt: skip
    known = {id(value): (name, value) for name, value in reversed(every)}
    pairs = reversed(known.values())
    return {name: value for name, value in pairs if (value.requires_grad and value.is_leaf if wants else
                                                     not value.requires_grad)}  # fmt: skip
