"""FSDP2 in a simulated group: copy this rank's parts of weights and gradients only, as nothing is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from compiler.torch_api.patching import Function, call_instead, replace_attribute


@contextmanager
def copy_own_parts() -> Iterator[None]:
    """In the block, FSDP2 fills gathered weights with this rank's shard and copies only its part of gradients.

    Values are as with the fake backend, which copies the shard to the places of all ranks first. In memory, that takes
    longer than all that tcompile does.
    """
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as groups

    reducing = _Reducing()
    with (
        replace_attribute(collectives.DefaultAllGather, "__call__", call_instead(_gather)),
        replace_attribute(collectives.DefaultReduceScatter, "__call__", call_instead(_reduce_own_part)),
        replace_attribute(groups, "foreach_all_gather", call_instead(_gather_own_shard)),
        replace_attribute(groups, "foreach_reduce", call_instead(reducing.reduce)),
        replace_attribute(collectives, "foreach_reduce_scatter_copy_in", call_instead(reducing.copy_own_part)),
    ):
        yield


def _is_real(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, FakeTensor) and not torch.compiler.is_compiling()


def _gather(
    original: Function, self: Any, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, *args: Any,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """Call the collective with an output of the same size, all of whose parts are the same small piece of memory."""
    if _is_real(input_tensor):
        output_tensor = torch.empty_like(input_tensor).expand(group.size(), -1)
    return original(self, output_tensor, input_tensor, group, *args, **kwargs)


def _gather_own_shard(original: Function, fsdp_params: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
    """Gather weights; what is copied out is the rank's own shard, repeated."""
    result = original(fsdp_params, group, *args, **kwargs)
    if result is None or not _is_real(result.all_gather_output):
        return result
    own = result.all_gather_output.chunk(group.size())[group.rank()]
    return result._replace(all_gather_output=own.expand(group.size(), -1))


def _reduce_own_part(
    original: Function, self: Any, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, *args: Any,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """Call the collective; its result is this rank's part, which the fake backend of torch 2.11 does not write."""
    work = original(self, output_tensor, input_tensor, group, *args, **kwargs)
    if _is_real(input_tensor) and torch.__version__ < "2.12":
        output_tensor.copy_(input_tensor.view(group.size(), -1)[group.rank()])
    return work


class _Reducing:
    """Copies gradients for the rank of the process group that reduces them."""

    def __init__(self) -> None:
        self._rank: int | None = None

    def reduce(self, original: Function, params: Any, gradients: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
        self._rank = None if group is None else group.rank()
        return original(params, gradients, group, *args, **kwargs)

    def copy_own_part(
        self, original: Function, gradients: Sequence[torch.Tensor], buffer: torch.Tensor, world: int
    ) -> None:
        """Copy the part of each gradient, padded with zeros, that the fake backend gives to this rank."""
        if self._rank is None or not _is_real(buffer):
            original(gradients, buffer, world)
            return
        own = buffer.view(world, -1)[self._rank].zero_()
        for gradient in gradients:
            rows = -(-len(gradient) // world)
            part = gradient[rows * self._rank : rows * (self._rank + 1)]
            own[: part.numel()].view(part.shape).copy_(part)
            own = own[rows * gradient[:1].numel() :]
