"""The process groups of this process, as torch.distributed keeps them: read them, swap them, answer for their setup."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _register_process_group, _unregister_all_process_groups
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed import device_mesh, distributed_c10d

from compiler.torch_api.patching import Function, call_instead, replace_attribute

_TABLES = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg", "pg_to_tag", "pg_coalesce_state")
_GLOBALS = ("_backend", "_default_pg_init_method", "_group_count")
_RANDOM = "torch.distributed.tensor._random"


@dataclass(frozen=True, slots=True)
class ProcessGroups:
    """All process groups of a process, with the rest of torch.distributed's state."""

    tables: Mapping[str, dict[Any, Any]]
    globals: Mapping[str, Any]
    default: Any
    meshes: tuple[Any, ...]
    random: Any
    excepthook: Any

    @classmethod
    def current(cls) -> ProcessGroups:
        world = distributed_c10d._world
        return cls(
            {name: dict(getattr(world, name)) for name in _TABLES},
            {name: getattr(distributed_c10d, name) for name in _GLOBALS},
            world.default_pg,
            tuple(device_mesh._mesh_resources.mesh_stack),
            getattr(sys.modules.get(_RANDOM), "_rng_tracker", None),
            sys.excepthook,
        )

    def restore(self) -> None:
        """Make these groups the process's own again. No group is shut down: those of the fake backend hold nothing."""
        _unregister_all_process_groups()
        for name, table in self.tables.items():
            known = getattr(distributed_c10d._world, name)
            known.clear()
            known.update({key: list(value) if isinstance(value, list) else value for key, value in table.items()})
        for group, name in self.tables["pg_names"].items():
            _register_process_group(name, group)
        for name, value in self.globals.items():
            setattr(distributed_c10d, name, value)
        distributed_c10d._update_default_pg(self.default)
        device_mesh._mesh_resources.mesh_stack[:] = self.meshes
        if _RANDOM in sys.modules:
            sys.modules[_RANDOM]._rng_tracker = self.random  # type: ignore[attr-defined]
        sys.excepthook = self.excepthook or sys.excepthook


NO_GROUPS = ProcessGroups(
    {name: {} for name in _TABLES}, dict.fromkeys(_GLOBALS[:2]) | {"_group_count": 0}, None, (), None, None
)


def make_fake_group(world: int, rank: int) -> None:
    """Initialize the default process group with the fake backend, whose collectives move nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)


def default_store() -> Any:
    """The key-value store that the processes of the job share."""
    return distributed_c10d._get_default_store()


def group_names() -> tuple[str, ...]:
    """Names of the process groups that this rank belongs to, in the order in which they were made."""
    return tuple(distributed_c10d._world.pg_names.values())


def forget_meshes() -> None:
    """Empty DTensor's caches: they would give specs with the meshes of an earlier job to an equal one."""
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import debug

        debug._clear_python_sharding_prop_cache()
        debug._clear_fast_path_sharding_prop_cache()


Answer = Callable[..., Any]
_answers: dict[str, Answer] = {}


def _answer_initialization(*args: Any, **kwargs: Any) -> Any:
    return sys.modules["compiler.torch_api.process_groups"]._answers["init_process_group"](*args, **kwargs)


def _answer_destruction(*args: Any, **kwargs: Any) -> Any:
    return sys.modules["compiler.torch_api.process_groups"]._answers["destroy_process_group"](*args, **kwargs)


def _answer_monitored_barrier(*args: Any, **kwargs: Any) -> Any:
    return sys.modules["compiler.torch_api.process_groups"]._answers["monitored_barrier"](*args, **kwargs)


@contextmanager
def answer_setup(initialize: Answer, destroy: Callable[[Function, Any], Any]) -> Iterator[None]:
    """Answer the user's `init_process_group(…)` and `destroy_process_group(group)` in the block.

    `monitored_barrier(group)`, which only gloo has, is a barrier. Their code is swapped, as the user may have imported
    the functions before. `destroy` also gets the original.
    """
    initializing = inspect.unwrap(dist.init_process_group)
    destroying = inspect.unwrap(dist.destroy_process_group)
    monitoring = inspect.unwrap(dist.monitored_barrier)
    original = FunctionType(destroying.__code__, destroying.__globals__, destroying.__name__, destroying.__defaults__)
    before = dict(_answers)
    signature = inspect.signature(initializing)
    _answers["init_process_group"] = lambda *args, **kwargs: initialize(**signature.bind(*args, **kwargs).arguments)
    _answers["destroy_process_group"] = lambda group=None: destroy(original, group)
    _answers["monitored_barrier"] = lambda group=None, *_, **__: dist.barrier(group)
    swapped = {
        initializing: _answer_initialization, destroying: _answer_destruction, monitoring: _answer_monitored_barrier,
    }  # fmt: skip
    codes = {function: function.__code__ for function in swapped}
    for function, answer in swapped.items():
        function.__code__ = answer.__code__
    try:
        yield
    finally:
        for function, code in codes.items():
            function.__code__ = code
        _answers.clear()
        _answers.update(before)


@contextmanager
def note_meshes(note: Callable[[Any], None]) -> Iterator[None]:
    """Call `note` for each DeviceMesh that is made in the block, without those sliced from another.

    Without a GPU, a mesh of GPUs is one of CPUs, as are the tensors of the user's program; DTensor calls all-to-all on
    it, which gloo lacks, as on GPUs. Under a FakeTensorMode, a mesh has real tensors, as torch reads their values.
    """
    from torch.distributed.tensor import _collective_utils, placement_types

    mesh_type = device_mesh.DeviceMesh
    of_gpus: list[Any] = []

    def initialize(original: Function, self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        is_missing = device_type == "cuda" and not torch.cuda.is_available()
        if is_missing:
            of_gpus.append(self)
        if isinstance(ranks := kwargs.get("_rank_map"), FakeTensor):  # init_device_mesh numbers the ranks in order
            kwargs["_rank_map"] = torch.Size(ranks.shape).numel()
        with unset_fake_temporarily():
            if isinstance(count := kwargs.get("_rank_map"), int):
                kwargs["_rank_map"] = torch.arange(count, dtype=torch.int)
            original(self, "cpu" if is_missing else device_type, *args, **kwargs)
            if getattr(self, "_root_mesh", None) is None:
                note(self)

    def read_real(original: property) -> property:
        def ranks_of(self: Any) -> Any:
            with unset_fake_temporarily():
                return original.fget(self)  # type: ignore[misc]

        return property(ranks_of, doc=original.__doc__)

    def exchange(original: Function, tensor: Any, gather_dim: int, shard_dim: int, mesh: Any, mesh_dim: int) -> Any:
        root = getattr(mesh, "_root_mesh", None) or mesh
        if not any(root == known for known in of_gpus):
            return original(tensor, gather_dim, shard_dim, mesh, mesh_dim)
        with replace_attribute(_collective_utils, "local_tensor_mode", lambda _: lambda: True):
            return original(tensor, gather_dim, shard_dim, mesh, mesh_dim)  # with this mode, it takes no CPU path

    with (
        replace_attribute(placement_types, "shard_dim_alltoall", call_instead(exchange)),
        replace_attribute(mesh_type, "__init__", call_instead(initialize)),
        replace_attribute(mesh_type, "mesh", read_real),
    ):
        yield


@contextmanager
def refuse_objects(make_error: Callable[[], Exception]) -> Iterator[None]:
    """In the block, raise `make_error()` where torch receives an object that another rank has not sent."""

    def check(original: Function, *args: Any) -> Any:
        if sys._getframe(2).f_code.co_name == "recv_object_list":
            raise make_error()
        return original(*args)

    def read(original: Function, tensor: torch.Tensor, tensor_size: Any, *args: Any, **options: Any) -> Any:
        if not int(tensor_size):
            raise make_error()
        return original(tensor, tensor_size, *args, **options)

    with (
        replace_attribute(distributed_c10d, "_tensor_to_object", call_instead(read)),
        replace_attribute(distributed_c10d, "_check_not_self_rank", call_instead(check)),
    ):
        yield


@contextmanager
def make_own_chunks() -> Iterator[None]:
    """In the block, FSDP2 makes only those chunks of a parameter that it reads, not one for each rank."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    with replace_attribute(_fsdp_param, "_chunk_with_empty", lambda _: _Chunks):
        yield


class _Chunks:
    """The chunks of a tensor, as `torch.chunk` splits it, with empty ones behind; each is made when it is read."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._dim = tensor, dim
        self._size = -(-tensor.size(dim) // num_chunks)

    def __getitem__(self, index: int) -> torch.Tensor:
        start = index * self._size
        length = min(self._size, self._tensor.size(self._dim) - start)
        return self._tensor.narrow(self._dim, start, length) if length > 0 or not index else self._tensor.new_empty(0)
