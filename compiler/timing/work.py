"""Define the timed step of a candidate: the user's call, its backward pass, and an optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from compiler.calls.call import Surroundings, autocast
from compiler.calls.copies import Copy
from compiler.record.measure_facts import What
from compiler.record.options import OptionError
from compiler.torch_api.pytrees import tree_leaves

MakeOptimizer = Callable[[Sequence[Tensor]], Optimizer]


@dataclass(frozen=True, slots=True)
class Job:
    """The parts of a timed step.

    `seeds` are the initial gradients of the backward, one for each output that requires grad. `surroundings` are the
    modes of the forward.
    """

    what: What
    seeds: tuple[Tensor, ...]
    surroundings: Surroundings
    optimizer: MakeOptimizer | None = None


def job(copy: Copy, surroundings: Surroundings, backward: bool | None, optimizer: MakeOptimizer | None) -> Job:
    """Run the call once to find the parts of its step; `backward=None` means to run a backward if there is one.

    Raises OptionError if a backward is requested but there is none, and any exception of the call.
    """
    before = [parameter._version for parameter in copy.parameters()]
    outputs = _differentiable(_forward(copy, copy.fn, surroundings)())
    if any(leaf.grad is not None for leaf in copy.leaves()):
        trained = before != [parameter._version for parameter in copy.parameters()]
        return Job("training step" if trained else "forward and backward", (), surroundings)
    if not outputs and (backward or optimizer is not None):
        raise OptionError("the call gives nothing that has a gradient: it can be timed forward alone")
    if not outputs or backward is False:
        return Job("forward", (), surroundings)
    seeds = tuple(torch.ones_like(output) for output in outputs)
    return Job("forward and backward" if optimizer is None else "training step", seeds, surroundings, optimizer)


@dataclass(frozen=True, slots=True)
class Work:
    """The timed step of a candidate."""

    step: Callable[[], None]
    leaves: Sequence[Tensor]

    def rest(self) -> None:
        """Release the gradients of the last call."""
        for leaf in self.leaves:
            leaf.grad = None


def mark_steps(inner: Work) -> Work:
    """Mark the start of each step for CUDA graphs, so that they may reuse memory of earlier results."""

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        inner.step()

    return Work(step, inner.leaves)


def work(copy: Copy, run: Callable[..., Any], job: Job) -> Work:
    """Build the timed step, with `run` in place of the copy's function. With `job.seeds`, it clears gradients first."""
    forward = _forward(copy, run, job.surroundings)
    leaves = copy.leaves()
    if not job.seeds:
        return Work(lambda: _drop(forward()), leaves)

    def forward_and_backward() -> None:
        for leaf in leaves:
            leaf.grad = None
        torch.autograd.backward(_differentiable(forward()), job.seeds)

    if job.optimizer is None:
        return Work(forward_and_backward, leaves)
    optimizer = job.optimizer(copy.parameters())

    def training_step() -> None:
        forward_and_backward()
        optimizer.step()

    return Work(training_step, leaves)


def _forward(copy: Copy, run: Callable[..., Any], surroundings: Surroundings) -> Callable[[], Any]:
    """A function that runs the forward. Each call enters autocast anew, as autocast caches casts until its end."""
    args, kwargs = copy.args, copy.kwargs
    if not surroundings.autocast:
        return lambda: run(*args, **kwargs)

    def run_with_autocast() -> Any:
        with autocast(surroundings.autocast):
            return run(*args, **kwargs)

    return run_with_autocast


def _differentiable(value: Any) -> list[Tensor]:
    leaves = [value] if isinstance(value, Tensor) else tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.grad_fn is not None]


def _drop(_value: Any) -> None:
    """Discard a result, so that it is freed after its call."""


def optimizer_named(asked: str | MakeOptimizer | None) -> MakeOptimizer | None:
    """An optimizer factory: a torch.optim class by name with default settings, or the user's own function.

    None if `asked` is None. Raises OptionError for an unknown name.
    """
    if asked is None or callable(asked):
        return asked
    known = {
        name: kind
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
    }
    if asked in known:
        return known[asked]
    near = get_close_matches(asked.lower(), [name.lower() for name in known], n=1)
    meant = next((f"did you mean {name!r}? " for name in known if near and name.lower() == near[0]), "")
    raise OptionError(
        f"optimizer={asked!r}: {meant}It is one of torch.optim ({', '.join(known)}) or a function of the parameters, "
        "for example lambda parameters: torch.optim.SGD(parameters, lr=0.1)."
    )
