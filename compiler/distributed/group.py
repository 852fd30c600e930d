"""A job of many ranks, of which this process simulates one.

The process group has torch's fake backend: it knows the rank and the world size, and its collectives move nothing. So a
rank captures, compiles and keeps in memory what it would in the real job, and values are wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch.distributed as dist

from compiler.record import Problem, RankPlace
from compiler.record.distributed_facts import GPUS_A_NODE
from compiler.record.options import OptionError, Options
from compiler.targets import is_virtual, target
from compiler.targets.destination import DEFAULT_TARGET
from compiler.torch_api.dtensor import mesh_sizes
from compiler.torch_api.fake_tensors import FakeTensorMode
from compiler.torch_api.missing_gpus import has_gpu, keep_on_cpu, run_spawned_function
from compiler.torch_api.patching import Function, set_environment
from compiler.torch_api.pipelines import decide_without_other_stages, note_schedules
from compiler.torch_api.saving import discard_saved
from compiler.torch_api.unsent_weights import copy_own_parts
from compiler.virtual_gpu.gpu import functions_of


@dataclass
class SimulatedGroup:
    """One rank of a simulated job. `groups` is torch.distributed's state, kept while the job is not active.

    Without a GPU, the program finds GPUs of the kind `target`. `meshes` are the device meshes that were made in the
    job, in order, and `schedules` its pipelines' schedules.
    `left_out` has the functions of torch that write and read checkpoints, each with a path that the program gave to it;
    they do nothing.
    """

    world: int
    rank: int
    node_size: int = GPUS_A_NODE
    target: str = DEFAULT_TARGET
    meshes: list[Any] = field(default_factory=list)
    schedules: list[Any] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    groups: Any = None
    active: ClassVar[SimulatedGroup | None] = None
    """The rank that this process simulates now."""

    @contextmanager
    def enter(self) -> Iterator[SimulatedGroup]:
        """Simulate this rank in the block. Process groups and meshes are kept from one block to the next."""
        import torch.distributed.pipelining  # noqa: F401  its stages are answered, also if the program imports it

        from compiler.torch_api import process_groups

        if SimulatedGroup.active is self:
            yield self
            return
        functions = functions_of(target(self.target)) if is_virtual(self.target) else {}
        outer, before = SimulatedGroup.active, process_groups.ProcessGroups.current()
        with ExitStack() as stack:
            stack.callback(before.restore)
            stack.enter_context(set_environment(**self._environment()))
            stack.enter_context(keep_on_cpu(self.rank % self.local_size, self.local_size, functions))
            (self.groups or process_groups.NO_GROUPS).restore()
            if self.groups is None:
                process_groups.forget_meshes()
                process_groups.make_fake_group(self.world, self.rank)
            stack.enter_context(process_groups.answer_setup(self._initialize, _destroy))
            stack.enter_context(process_groups.note_meshes(self._note_mesh))
            stack.enter_context(process_groups.make_own_chunks())
            stack.enter_context(process_groups.refuse_objects(self._unsent_object))
            stack.enter_context(copy_own_parts())
            stack.enter_context(discard_saved(lambda *call: self.left_out.append(call)))
            stack.enter_context(run_spawned_function(self.rank, self.world, self.local_size))
            stack.enter_context(decide_without_other_stages())
            stack.enter_context(note_schedules(self.schedules.append))
            SimulatedGroup.active = self
            try:
                yield self
            except Exception as error:
                self._explain(error)
                raise
            finally:
                SimulatedGroup.active, self.groups = outer, process_groups.ProcessGroups.current()

    def _note_mesh(self, mesh: Any) -> None:
        """Note a device mesh. Raises OptionError if it has the first ranks, and this rank is none of them."""
        self.meshes.append(mesh)
        if mesh.get_coordinate() is None and mesh.mesh.flatten().tolist() == list(range(mesh.size())):
            raise OptionError(
                f"rank {self.rank} of {self.world} is not in the mesh, which has ranks 0 to {mesh.size() - 1}: make a "
                f"mesh of {self.world} ranks, or simulate {mesh.size()} (--ranks {mesh.size()})"
            )

    def problems(self) -> Iterator[Problem]:
        """What the job left out of the program."""
        for function in dict.fromkeys(name for name, _ in self.left_out):
            paths = ", ".join(dict.fromkeys(path for name, path in self.left_out if name == function))
            if function.endswith("load"):
                words, hint = (
                    f"{function} did not read {paths}",
                    "the state is as the program made it",
                )
            else:
                words, hint = f"{function} did not write {paths}", "other files that the program writes are there"
            yield Problem("captured", f"{words}: values of a simulated rank are wrong", hint)

    @property
    def local_size(self) -> int:
        """Number of ranks on one node."""
        return min(self.node_size, self.world)

    def place(self) -> RankPlace:
        """The rank's place in the job, and in the last device mesh that holds all ranks."""
        whole = [mesh for mesh in self.meshes if mesh.size() == self.world]
        if not whole:
            return RankPlace(self.rank, self.world, node_size=self.node_size)
        mesh = whole[-1]
        return RankPlace(self.rank, self.world, mesh_sizes(mesh), tuple(mesh.get_coordinate() or ()), self.node_size)

    def _environment(self) -> dict[str, str]:
        """The variables that torchrun sets, for nodes of `node_size` GPUs."""
        local = self.local_size
        nodes = -(-self.world // local)
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.rank % local),
            "GROUP_RANK": str(self.rank // local),
            "ROLE_RANK": str(self.rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_WORLD_SIZE": str(local),
            "GROUP_WORLD_SIZE": str(nodes),
            "ROLE_WORLD_SIZE": str(self.world),
            "ROLE_NAME": "default",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }

    def _initialize(self, world_size: int = -1, rank: int = -1, **_: Any) -> None:
        """Answer the user's init_process_group(…): the group is there. Raises OptionError for another job."""
        for name, given, known, option in (
            ("world_size", world_size, self.world, "ranks"), ("rank", rank, self.rank, "rank"),
        ):  # fmt: skip
            if given not in (-1, None, known):
                raise OptionError(
                    f"init_process_group({name}={given}), but {name} {known} is simulated (--{option} {known}): write "
                    f'init_process_group("nccl"), which reads RANK and WORLD_SIZE, or --{option} {given}'
                )

    def _unsent_object(self) -> OptionError:
        """The error of a call that waits for another rank's object."""
        sender = "Explore the rank that sends it (--rank 0), or leave" if self.rank else "Leave"
        return OptionError(
            f"rank {self.rank} is simulated, and gets no objects: what another rank sends with scatter_object_list, "
            f"send_object_list or the like is not known. {sender} out the call where "
            'torch.distributed.get_backend() is "fake". '
            "A PipelineStage with input_args= and output_args= asks no other rank for shapes"
        )

    def _explain(self, error: Exception) -> None:
        """Add to the message of an error, or of its `cause` if it wraps one, what it means in a simulated job."""
        error = getattr(error, "cause", error)
        words, why = str(error), ""
        if "Mesh should not be bigger than default world size" in words:
            why = f"{self.world} ranks are simulated (--ranks {self.world}): make a mesh of {self.world}."
        elif "cuda" in words.lower() and not has_gpu():
            why = (
                "This machine has no GPU. Simulated ranks keep on the CPU what .to, .cuda and functions that make "
                'tensors put on "cuda", except where a compiled function runs as Python after a graph break; there, '
                "and elsewhere, take the device of a tensor: device=x.device. The code is written for the GPU that "
                "--target names."
            )
        elif "materialized from meta device" in words:
            why = "With --fake (fake=True) weights need no memory: make the model without the meta device."
        elif "flash_attention_for_cpu" in words and "sharding strategy" in words:
            why = "torch can't split attention on a CPU over ranks: explore context_parallel where a GPU is."
        elif "is invalid for input of size" in words or "must have same reduction dim" in words:
            why = (
                "On a rank, a tensor has the size of its shard. Does each size that is split divide by the number of "
                f"ranks that it is split over? {self.world} are simulated."
            )
        elif "SymmetricMemory" in words or "symm_mem::" in words:
            why = (
                "Symmetric memory is there for GPUs alone. Leave the call out where torch.distributed.get_backend() is "
                '"fake"; run.overlap.compare("async TP") shows the operators that Inductor would call.'
            )
        elif "allocate memory" in words and "torch.distributed.pipelining.stage" in sys.modules:
            why = (
                "A simulated rank gets no messages, and a stage of a pipeline waits for its shapes: give PipelineStage "
                "input_args and output_args, which require gradients if a loss is trained, and none otherwise."
            )
        if why:
            error.args = (f"{words}\n{why}",)


@contextmanager
def simulate_group(
    world: int, rank: int, node_size: int = GPUS_A_NODE, target: str = DEFAULT_TARGET
) -> Iterator[SimulatedGroup | None]:
    """Simulate rank `rank` of `world` in the block: a fake process group, and the environment variables of torchrun.

    The user's `init_process_group(…)` finds this group, and `destroy_process_group()` leaves it until the block ends.
    Afterwards process groups, environment variables and torch.distributed's state are as before. If a fake group of
    this rank is initialized already, it is used, and None is returned. Raises OptionError for another one.
    """
    if not dist.is_available():
        raise OptionError("ranks=: this build of torch has no torch.distributed")
    if dist.is_initialized():
        _check_initialized(world, rank)
        yield None
        return
    with SimulatedGroup(world, rank, node_size, target).enter() as group:
        yield group


@contextmanager
def simulate_asked(options: Options, rank: int = 0) -> Iterator[SimulatedGroup | None]:
    """Simulate a rank in the block if the options ask for ranks, and make its tensors fake if they ask for that."""
    with ExitStack() as stack:
        group = None
        if options.ranks:
            group = stack.enter_context(
                simulate_group(options.ranks, rank, options.node, options.target or DEFAULT_TARGET)
            )
        if options.fake:
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield group


def _check_initialized(world: int, rank: int) -> None:
    """Check that the group which is initialized already is the one to simulate. Raises OptionError."""
    backend, there = dist.get_backend(), (dist.get_world_size(), dist.get_rank())
    if (backend, there) == ("fake", (world, rank)):
        return
    raise OptionError(
        f"a process group is initialized already: rank {there[1]} of {there[0]}, backend {backend!r}. To simulate rank "
        f"{rank} of {world}, call torch.distributed.destroy_process_group() first; to explore that group as it is, "
        "leave out ranks= and rank="
    )


def _destroy(destroy: Function, group: Any) -> None:
    """Answer destroy_process_group(group): the default group stays until the simulation ends."""
    if group is not None and group is not dist.group.WORLD:
        destroy(group)
