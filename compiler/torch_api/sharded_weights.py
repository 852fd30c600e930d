"""Weights that torch.distributed shards in hooks: FSDP's units, when they are gathered and freed, and DDP's buckets.

FSDP gathers outside of graphs. FSDP2's `FSDPParamGroup` does it in three calls, which are observed here: `unshard`
allocates a flat buffer and gathers into it, `wait_for_unshard` copies it out into the parameters, and `reshard` frees
the parameters. The `FlatParamHandle` of FullyShardedDataParallel gathers into the flat parameter itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from compiler.torch_api.patching import Wrapper, observe_hidden, replace_attributes

Moment = Literal["gather", "copy out", "free"]


@dataclass(frozen=True, slots=True)
class UnitWeight:
    """A parameter of an FSDP unit. Bytes of: this rank's shard, the gathered weight (padded) and its whole gradient.

    `memory` identifies the storage that the weight is gathered into, 0 before the first gather.
    """

    name: str
    shard_bytes: int
    gathered_bytes: int
    gradient_bytes: int
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Unit:
    """The parameters that FSDP2 gathers in one all-gather. `frees` says whether they are freed after the forward.

    `reduce_bytes` is the size of the flat buffer of gradients that the reduce-scatter reads. `shares` is the number of
    ranks that share the weights. With `is_flat`, all weights are one flat parameter, gathered in place.
    """

    name: str
    weights: tuple[UnitWeight, ...]
    shares: int
    frees: bool
    reduce_bytes: int
    is_flat: bool = False

    @property
    def gathered_bytes(self) -> int:
        return sum(weight.gathered_bytes for weight in self.weights)

    @property
    def gradient_bytes(self) -> int:
        return sum(weight.gradient_bytes for weight in self.weights)


Note = Callable[[Moment, Unit], None]


@contextmanager
def observe_units(note: Note) -> Iterator[None]:
    """Report when FSDP gathers, copies out and frees the weights of a unit during a forward."""
    with replace_attributes((*_group_hooks(note), *_handle_hooks(note))):
        yield


def _group_hooks(note: Note) -> Iterator[Wrapper]:
    """Wrappers of the methods with which FSDP2 gathers and frees the weights of a unit."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    def tell_if(happened: bool, moment: Moment, group: Any) -> None:
        if happened and "BACKWARD" not in group._training_state.name:
            note(moment, _unit(group))

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

    names: dict[int, str] = {}

    def tell_if(happened: bool, moment: Moment, handle: Any) -> None:
        if happened and "BACKWARD" not in handle._training_state.name:
            name = names.setdefault(id(handle), f"flat parameter {len(names) + 1}")
            note(moment, _flat_unit(handle, name))

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


def _flat_unit(handle: Any, name: str) -> Unit:
    """The unit of a flat parameter of FullyShardedDataParallel."""
    flat = handle.flat_param
    dtype = handle._fwd_bwd_param_dtype or handle._orig_param_dtype
    gathered = flat._padded_unsharded_size.numel()
    whole = flat._unpadded_unsharded_size.numel() if flat.requires_grad else 0
    shard_bytes = flat._sharded_size.numel() * handle._orig_param_dtype.itemsize
    memory = flat._full_param_padded.untyped_storage()._cdata
    weight = UnitWeight(name, shard_bytes, gathered * dtype.itemsize, whole * dtype.itemsize, memory)
    frees = handle._sharding_strategy.name in ("FULL_SHARD", "HYBRID_SHARD")
    reduces = gathered * (handle._reduce_dtype or dtype).itemsize if flat.requires_grad else 0
    return Unit(name, (weight,), handle.world_size, frees, reduces, is_flat=True)


def _unit(group: Any) -> Unit:
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo

    shares = group._all_gather_process_group.size() if isinstance(group.mesh_info, FSDPMeshInfo) else 1
    weights = tuple(_unit_weight(each, shares) for each in group.fsdp_params)
    reduces = sum(_reduced_bytes(each, shares, group) for each in group.fsdp_params if each.sharded_param.requires_grad)
    name = group._module_fqn or "the root module"
    return Unit(name, weights, shares, bool(group._reshard_after_forward), reduces)


def _unit_weight(each: Any, shares: int) -> UnitWeight:
    dtype = each.param_dtype or each.orig_dtype
    shard = each._sharded_param_data
    whole = math.prod(each._orig_size) if each.sharded_param.requires_grad else 0
    name = each._param_fqn or each._module_info.param_name
    gathered = shard.numel() * shares * dtype.itemsize
    unsharded = getattr(each, "_unsharded_param", None)
    memory = 0 if unsharded is None else _local(unsharded).untyped_storage()._cdata
    return UnitWeight(name, shard.numel() * shard.element_size(), gathered, whole * dtype.itemsize, memory)


def _reduced_bytes(each: Any, shares: int, group: Any) -> int:
    dtype = each.reduce_dtype or group.mp_policy.reduce_dtype or each.param_dtype or each.orig_dtype
    return int(each._sharded_param_data.numel() * shares * dtype.itemsize)


def _local(value: torch.Tensor) -> torch.Tensor:
    """The part of a DTensor on this rank; any other tensor unchanged."""
    part = getattr(value, "_local_tensor", value)
    return part if isinstance(part, torch.Tensor) else value


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
    local = _local(value)
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
