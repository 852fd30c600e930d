"""Read the units of FSDP: the parameters that one collective gathers, and what FSDP does with them.

`fully_shard` has an `FSDPParamGroup` for each unit, `FullyShardedDataParallel` a `FlatParamHandle`. Their methods are
on the stack when they call a collective, so units are read from frames of torch's own files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal

import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.fsdp._flat_param import FlatParamHandle, HandleShardingStrategy
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from compiler.torch_api.dtensor import inner_tensor
from compiler.torch_api.fx import dtype_name

_FOLDER = f"{torch.__path__[0]}/distributed/fsdp/"
_OWNERS = ("FSDPParamGroup", "FlatParamHandle")
_MOST_FRAMES = 200
_KEPT = ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
Wrapper = Literal["fully_shard", "FullyShardedDataParallel"]


@dataclass(frozen=True, slots=True)
class UnitWeight:
    """A tensor that FSDP gathers: a parameter, or the flat parameter of FullyShardedDataParallel.

    Bytes of: this rank's shard, the gathered weight (padded), and its whole gradient (0 if it is not trained).
    `memory` identifies the storage that the weight is gathered into, 0 before the first gather.
    """

    name: str
    shard_bytes: int
    gathered_bytes: int
    gradient_bytes: int
    memory: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class FsdpUnit:
    """Parameters that FSDP gathers together. `bytes` is their size, `reduce_bytes` that of their gradients, padded.

    `name` is the module's path from the root, "" for the root. `gathered_as` and `reduced_as` are dtypes. `policy` is
    what happens after the forward: "freed", "kept", or "resharded to N ranks", with N in `kept_by`, else 0. `modules`
    are ids of objects. `is_offloaded` is whether shards, gradients and optimizer states are on the CPU.
    """

    wrapper: Wrapper
    name: str
    parameters: tuple[str, ...]
    weights: tuple[UnitWeight, ...]
    bytes: int
    reduce_bytes: int
    dtype: str
    gathered_as: str
    reduced_as: str
    policy: str
    shards: int
    replicas: int
    modules: tuple[int, ...]
    kept_by: int = 0
    is_offloaded: bool = False

    @property
    def title(self) -> str:
        """The name, also of the root."""
        return self.name or "the root module"

    @property
    def is_flat(self) -> bool:
        """Whether all parameters are one flat parameter, gathered in place."""
        return self.wrapper == "FullyShardedDataParallel"

    @property
    def shard_bytes(self) -> int:
        """Size of this rank's shard, padded."""
        return sum(weight.shard_bytes for weight in self.weights)

    @property
    def gathered_bytes(self) -> int:
        """Size of the gathered weights, padded."""
        return sum(weight.gathered_bytes for weight in self.weights)

    @property
    def gradient_bytes(self) -> int:
        return sum(weight.gradient_bytes for weight in self.weights)


def is_of_fsdp(frame: FrameType) -> bool:
    """Whether a frame runs code of FSDP. Only of such frames may locals be read: Python keeps what was read alive."""
    return frame.f_code.co_filename.startswith(_FOLDER)


def unit_of_frames(frames: Sequence[FrameType]) -> FsdpUnit | None:
    """The unit that frames of FSDP work on, innermost first; None if they work on none."""
    found = list(_locals(frames, "self", "handle"))
    if group := next((each for each in found if isinstance(each, FSDPParamGroup)), None):
        return unit_of_group(group)
    handle = next((each for each in found if isinstance(each, FlatParamHandle)), None)
    return None if handle is None else _unit_of_handle(handle, list(_locals(frames, "state")))


def running_unit() -> FsdpUnit | None:
    """The unit that FSDP works on now; None if it works on none."""
    return unit_of_frames([frame for frame in outer_frames(sys._getframe(1)) if is_of_fsdp(frame)])


def outer_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and its callers, innermost first; at most 200."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _locals(frames: Sequence[FrameType], *names: str) -> Iterator[Any]:
    """Arguments with these names of functions that work on one unit."""
    for frame in frames:
        owner = frame.f_code.co_qualname.partition(".")[0]
        if owner in _OWNERS or owner.startswith("_"):
            yield from (frame.f_locals[name] for name in names if name in frame.f_code.co_varnames[:2])


def wrapped_module(frame: FrameType) -> Any:
    """The module that FSDP wraps and whose call this frame of torch.nn is; None for other frames."""
    code = frame.f_code
    if code.co_name not in ("_call_impl", "forward") or not code.co_filename.startswith(torch.__path__[0]):
        return None
    module = frame.f_locals.get("self")
    if isinstance(module, FullyShardedDataParallel):
        handle = getattr(module, "_handle", None)
        return None if handle is None else handle._fully_sharded_module
    return module if isinstance(module, FSDPModule) else None


def unit_of_group(group: FSDPParamGroup) -> FsdpUnit:
    """The unit of `fully_shard` that a group of parameters is."""
    parameters = group.fsdp_params
    mesh = group.mesh_info
    gathered = [each.param_dtype or each.orig_dtype for each in parameters]
    reduced = [each.reduce_dtype or dtype for each, dtype in zip(parameters, gathered, strict=True)]
    shards = getattr(mesh, "shard_mesh_size", 1)
    return FsdpUnit(
        wrapper="fully_shard",
        name=group._module_fqn or "",
        parameters=tuple(each._param_fqn or each._module_info.param_name for each in parameters),
        weights=tuple(_weight(each, shards) for each in parameters),
        bytes=sum(each._orig_size.numel() * each.orig_dtype.itemsize for each in parameters),
        reduce_bytes=sum(
            each._sharded_param_data.numel() * shards * dtype.itemsize
            for each, dtype in zip(parameters, reduced, strict=True)
            if each.sharded_param.requires_grad
        ),
        dtype=_dtypes(each.orig_dtype for each in parameters),
        gathered_as=_dtypes(gathered),
        reduced_as=_dtypes(reduced),
        policy=_policy_of_group(group),
        shards=shards,
        replicas=getattr(mesh, "replicate_mesh_size", 1),
        modules=tuple(map(id, group.modules)),
        kept_by=_ranks_after_forward(group),
        is_offloaded=any(each.offload_to_cpu for each in parameters),
    )


def _weight(each: Any, shards: int) -> UnitWeight:
    dtype = each.param_dtype or each.orig_dtype
    shard = each._sharded_param_data
    whole = each._orig_size.numel() if each.sharded_param.requires_grad else 0
    unsharded = getattr(each, "_unsharded_param", None)
    return UnitWeight(
        each._param_fqn or each._module_info.param_name,
        shard.numel() * each.orig_dtype.itemsize,
        shard.numel() * shards * dtype.itemsize,
        whole * dtype.itemsize,
        0 if unsharded is None else inner_tensor(unsharded).untyped_storage()._cdata,
    )


def _policy_of_group(group: Any) -> str:
    if group.post_forward_mesh_info is None:
        return "kept"
    ranks = _ranks_after_forward(group)
    return f"resharded to {ranks} ranks" if ranks else "freed"


def _ranks_after_forward(group: Any) -> int:
    """Over how many ranks weights are split from the forward to the backward, if over fewer than before; else 0."""
    after = group.post_forward_mesh_info
    return 0 if after is None or after == group.mesh_info else int(after.shard_mesh_size)


def _unit_of_handle(handle: Any, states: Sequence[Any]) -> FsdpUnit:
    flat, strategy = handle.flat_param, handle._sharding_strategy
    paths: dict[Any, list[str]] = {}
    for state in states:
        paths |= getattr(getattr(state, "_exec_order_data", None), "param_to_fqn", {})
    names = tuple(path for parameter in flat._params or () for path in paths.get(parameter, ())[:1]) or flat._fqns
    replicas = next((group for state in states if (group := getattr(state, "_inter_node_pg", None))), None)
    is_sharded = strategy != HandleShardingStrategy.NO_SHARD
    gathered = handle._fwd_bwd_param_dtype or handle._orig_param_dtype
    name = _common_module(names)
    whole = flat._unpadded_unsharded_size.numel()
    padded = flat._padded_unsharded_size.numel() if is_sharded else whole
    weight = UnitWeight(
        f"flat parameter of {name or 'the root module'}",
        flat._sharded_size.numel() * handle._orig_param_dtype.itemsize,
        padded * gathered.itemsize,
        whole * gathered.itemsize if flat.requires_grad else 0,
        flat._full_param_padded.untyped_storage()._cdata if is_sharded else 0,
    )
    return FsdpUnit(
        wrapper="FullyShardedDataParallel",
        name=name,
        parameters=names,
        weights=(weight,),
        bytes=whole * handle._orig_param_dtype.itemsize,
        reduce_bytes=padded * (handle._reduce_dtype or gathered).itemsize if flat.requires_grad else 0,
        dtype=dtype_name(handle._orig_param_dtype),
        gathered_as=dtype_name(gathered),
        reduced_as=dtype_name(handle._reduce_dtype or gathered),
        policy="freed" if is_sharded and strategy.name not in _KEPT else "kept",
        shards=handle.world_size if is_sharded else 1,
        replicas=1 if replicas is None or not is_sharded else replicas.size(),
        modules=(id(handle._fully_sharded_module),),
    )


def _dtypes(found: Iterable[torch.dtype]) -> str:
    return ", ".join(dict.fromkeys(map(dtype_name, found)))


def _common_module(names: Sequence[str]) -> str:
    """The path of the innermost module that has all these parameters."""
    paths = [name.split(".")[:-1] for name in names]
    shared = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)
