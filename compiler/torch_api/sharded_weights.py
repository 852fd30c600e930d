"""Weights that torch.distributed shards in hooks: FSDP2's units, when they are gathered and freed, and DDP's buckets.

FSDP2 gathers outside of graphs. `torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup` does it in three
calls, which are observed here: `unshard` allocates a flat buffer and gathers into it, `wait_for_unshard` copies it out
into the parameters, and `reshard` frees the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import distributed

from compiler.torch_api.patching import Function, call_instead, replace_attributes

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
    ranks that share the weights.
    """

    name: str
    weights: tuple[UnitWeight, ...]
    shares: int
    frees: bool
    reduce_bytes: int

    @property
    def gathered_bytes(self) -> int:
        return sum(weight.gathered_bytes for weight in self.weights)

    @property
    def gradient_bytes(self) -> int:
        return sum(weight.gradient_bytes for weight in self.weights)


def is_distributed() -> bool:
    """Whether a process group is there."""
    return distributed.is_available() and distributed.is_initialized()


@contextmanager
def observe_units(note: Callable[[Moment, Unit], None]) -> Iterator[None]:
    """Report when FSDP2 gathers, copies out and frees the weights of a unit during a forward."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    def gather(original: Function, group: Any, *args: Any, **kwargs: Any) -> Any:
        was_pending = group._all_gather_result is not None
        result = original(group, *args, **kwargs)
        if not was_pending and group._all_gather_result is not None:
            tell("gather", group)
        return result

    def copy_out(original: Function, group: Any, *args: Any, **kwargs: Any) -> Any:
        is_pending = group._all_gather_result is not None
        result = original(group, *args, **kwargs)
        if is_pending:
            tell("copy out", group)
        return result

    def free(original: Function, group: Any, *args: Any, **kwargs: Any) -> Any:
        was_unsharded = group.is_unsharded
        result = original(group, *args, **kwargs)
        if was_unsharded and not group.is_unsharded:
            tell("free", group)
        return result

    def tell(moment: Moment, group: Any) -> None:
        if "BACKWARD" not in group._training_state.name:
            note(moment, _unit(group))

    hooks = {"unshard": gather, "wait_for_unshard": copy_out, "reshard": free}
    with replace_attributes((FSDPParamGroup, name, call_instead(hook)) for name, hook in hooks.items()):
        yield


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
