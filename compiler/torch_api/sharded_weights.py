"""Weights that torch.distributed shards in hooks: FSDP's units, when they are gathered and freed, and DDP's buckets.

FSDP gathers outside of graphs. FSDP2's `FSDPParamGroup` does it in three calls, which are observed here: `unshard`
allocates a flat buffer and gathers into it, `wait_for_unshard` copies it out into the parameters, and `reshard` frees
the parameters. The `FlatParamHandle` of FullyShardedDataParallel gathers into the flat parameter itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from compiler.torch_api.dtensor import inner_tensor
from compiler.torch_api.patching import Wrapper, observe_hidden, replace_attributes

if TYPE_CHECKING:  # it imports torch's FSDP, which takes long, and is not in all builds
    from compiler.torch_api.fsdp_units import FsdpUnit

Moment = Literal["gather", "copy out", "free"]
Note = Callable[[Moment, "FsdpUnit"], None]


@contextmanager
def observe_units(note: Note) -> Iterator[None]:
    """Report when FSDP gathers, copies out and frees the weights of a unit during a forward."""
    with replace_attributes((*_group_hooks(note), *_handle_hooks(note))):
        yield


def _group_hooks(note: Note) -> Iterator[Wrapper]:
    """Wrappers of the methods with which FSDP2 gathers and frees the weights of a unit."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    from compiler.torch_api.fsdp_units import unit_of_group

    def tell_if(happened: bool, moment: Moment, group: Any) -> None:
        if happened and "BACKWARD" not in group._training_state.name:
            note(moment, unit_of_group(group))

    def is_pending(group: Any, *_args: Any, **_kwargs: Any) -> bool:
        return group._all_gather_result is not None

    def gather(was_pending: bool, group: Any, *_args: Any, **_kwargs: Any) -> None:
        tell_if(not was_pending and is_pending(group), "gather", group)

    def copy_out(was_pending: bool, group: Any, *_args: Any, **_kwargs: Any) -> None:
        tell_if(was_pending, "copy out", group)

    def is_unsharded(group: Any, *_args: Any, **_kwargs: Any) -> bool:
        return bool(group.is_unsharded)

    def free(was_unsharded: bool, group: Any, *_args: Any, **_kwargs: Any) -> None:
        tell_if(was_unsharded and not group.is_unsharded, "free", group)

    yield FSDPParamGroup, "unshard", observe_hidden(is_pending, gather)
    yield FSDPParamGroup, "wait_for_unshard", observe_hidden(is_pending, copy_out)
    yield FSDPParamGroup, "reshard", observe_hidden(is_unsharded, free)


def _handle_hooks(note: Note) -> Iterator[Wrapper]:
    """Wrappers of the methods with which FullyShardedDataParallel gathers and frees a flat parameter."""
    from torch.distributed.fsdp._flat_param import FlatParamHandle

    from compiler.torch_api.fsdp_units import running_unit

    def tell_if(happened: bool, moment: Moment, handle: Any) -> None:
        if happened and "BACKWARD" not in handle._training_state.name and (unit := running_unit()):
            note(moment, unit)

    def is_due(handle: Any) -> bool:
        return bool(handle.needs_unshard())

    def gather(was_due: bool, handle: Any) -> None:
        tell_if(was_due, "copy out", handle)

    def frees(_handle: Any, free_unsharded_flat_param: bool) -> bool:
        return free_unsharded_flat_param

    def free(was_asked: bool, handle: Any, *_args: Any, **_kwargs: Any) -> None:
        tell_if(was_asked, "free", handle)

    yield FlatParamHandle, "unshard", observe_hidden(is_due, gather)
    yield FlatParamHandle, "reshard", observe_hidden(frees, free)


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor that a graph takes or returns. `memory` identifies its storage, which has `bytes` on this rank.

    `own_bytes` is the size of the tensor's values on this rank, `whole_bytes` on all ranks together.
    """

    memory: int
    bytes: int
    own_bytes: int
    whole_bytes: int
    is_weight: bool
    trains: bool


def argument_of(value: Any) -> Argument | None:
    """The facts of an argument or result of a graph; None if it is no tensor of known size."""
    if not isinstance(value, torch.Tensor):
        return None
    local = inner_tensor(value)
    storage = local.untyped_storage()
    sizes = storage.nbytes(), local.numel() * local.element_size(), value.numel() * value.element_size()
    if not all(isinstance(size, int) for size in sizes):
        return None
    return Argument(storage._cdata, *sizes, isinstance(value, torch.nn.Parameter), value.requires_grad)


@dataclass(frozen=True, slots=True)
class Buckets:
    """DistributedDataParallel's buckets: bytes, and whether gradients are views of them."""

    bytes: int
    holds_gradients: bool


def active_buckets() -> Buckets | None:
    """The buckets of the DistributedDataParallel model whose forward is running; None if there is none."""
    from torch.nn.parallel.distributed import DistributedDataParallel

    model = DistributedDataParallel._get_active_ddp_module()
    return buckets_of(model) if model is not None else None


def buckets_of(model: Any) -> Buckets | None:
    """The buckets of a DistributedDataParallel model; None for any other module."""
    from torch.nn.parallel.distributed import DistributedDataParallel

    if not isinstance(model, DistributedDataParallel):
        return None
    trained: Sequence[torch.nn.Parameter] = [each for each in model.parameters() if each.requires_grad]
    return Buckets(sum(each.numel() * each.element_size() for each in trained), model.gradient_as_bucket_view)


def parameters_without_gradient(model: Any) -> list[str]:
    """Parameters that the backward of a DistributedDataParallel model waits for and did not reach; [] without one."""
    if model.find_unused_parameters or model.static_graph:
        return []
    trained = {name: each.grad is None for name, each in model.module.named_parameters() if each.requires_grad}
    missing = [name for name, is_missing in trained.items() if is_missing]
    return missing if len(missing) < len(trained) else []
