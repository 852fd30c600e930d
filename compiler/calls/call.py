"""A repeatable call of the user's code; random state and buffers are restored afterwards."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.func import functional_call

from compiler.calls.graph_runs import copy_tensor
from compiler.torch_api import dynamo
from compiler.torch_api.fx import SourceFrame
from compiler.torch_api.module_calls import without_compiled_call
from compiler.torch_api.pytrees import tree_leaves, tree_map

if TYPE_CHECKING:
    from compiler.calls.state import StateBefore

DEVICES = ("cpu", "cuda")


class GroupOfCall(Protocol):
    """A simulated process group: the call is repeated inside of it."""

    def enter(self) -> AbstractContextManager[Any]:
        """Make the group that of the process in a block."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is around a call and affects its results: gradients, inference mode, autocast by device, and a simulated
    process group.
    """

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, torch.dtype], ...]
    group: GroupOfCall | None = None

    @classmethod
    def current(cls) -> Surroundings:
        devices = (device for device in DEVICES if torch.is_autocast_enabled(device))
        autocast = tuple((device, torch.get_autocast_dtype(device)) for device in devices)
        return cls(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)

    @contextmanager
    def restore(self) -> Iterator[None]:
        in_group = self.group.enter() if self.group is not None else nullcontext()
        with (
            in_group,
            torch.inference_mode(self.inference),
            torch.set_grad_enabled(self.grad),
            autocast(self.autocast),
        ):
            yield


@contextmanager
def autocast(dtypes: Iterable[tuple[str, torch.dtype]]) -> Iterator[None]:
    """Run a block under the given autocast dtypes, by device."""
    with ExitStack() as stack:
        for device, dtype in dtypes:
            stack.enter_context(torch.autocast(device, dtype))
        yield


def closure_of(function: FunctionType) -> dict[str, Any]:
    """Values of a function's closure variables by name; unset ones are left out."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if cell != CellType()}


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object, and the code objects of functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_codes(constant)


@dataclass(frozen=True)
class Call:
    """A call: the function, eager and compiled, its arguments, and the modes around it (by default the current ones).

    `later` holds later calls of the same function that triggered a compilation, or that may trigger one once graph
    breaks are gone. `site` is the source line of the call, if known. `before` is the state of the user's objects before
    the call, if it was saved. `number` counts the calls of the function, from 1.
    """

    fn: Callable[..., Any]
    compiled: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    surroundings: Surroundings = field(default_factory=Surroundings.current)
    later: tuple[Call, ...] = ()
    site: tuple[SourceFrame, ...] = ()
    before: StateBefore | None = None
    number: int = 1

    def modules(self) -> dict[str, torch.nn.Module]:
        """Modules that the call runs, by their name in its code; "" for the called module itself."""
        owner = getattr(self.fn, "__self__", self.fn)
        if isinstance(owner, torch.nn.Module):
            return {"": owner}
        return {name: value for name, value in self._outer().items() if isinstance(value, torch.nn.Module)}

    def _outer(self) -> Mapping[str, Any]:
        """Globals and closure variables that the function's code uses, by name."""
        function = inspect.unwrap(getattr(self.fn, "__func__", self.fn))
        if not inspect.isfunction(function):
            return {}
        names = (name for name in function.__code__.co_names if name in function.__globals__)
        return closure_of(function) | {name: function.__globals__[name] for name in names}

    def parameters(self) -> dict[str, torch.Tensor]:
        """Leaf tensors that require grad, by name: parameters, globals and closure variables, but no arguments."""
        found: dict[str, torch.Tensor] = {}
        for name, module in self.modules().items():
            found |= {_dotted_name(name, own): value for own, value in module.named_parameters()}
        found |= {name: value for name, value in self._outer().items() if isinstance(value, torch.Tensor)}
        return {name: value for name, value in found.items() if value.requires_grad and value.is_leaf}

    def buffers(self) -> dict[str, torch.Tensor]:
        """Buffers of the modules, by name."""
        modules = self.modules().items()
        return {_dotted_name(name, own): value for name, module in modules for own, value in module.named_buffers()}

    def with_tensors(self, tensors: Mapping[str, torch.Tensor]) -> Callable[..., Any]:
        """The function with tensors replaced by name; the user's modules are not changed.

        Names are those of parameters, buffers, globals and closure variables.
        """
        outer = {name: value for name, value in tensors.items() if name in self._outer()}
        inner = {name: value for name, value in tensors.items() if name not in outer}
        run = _with_outer(self.fn, outer) if outer else self.fn
        holder = _Holder(run, self.modules())
        held = {holder.name_of(name): value for name, value in inner.items()}
        return lambda *args, **kwargs: functional_call(holder, held, (args, kwargs))

    def tensors(self) -> list[torch.Tensor]:
        """Parameters and tensor arguments that are leaves and require grad, in a stable order."""
        found = [*self.parameters().values(), *tree_leaves((self.args, dict(self.kwargs)))]
        wanted = {id(leaf): leaf for leaf in found if isinstance(leaf, torch.Tensor) and leaf.requires_grad}
        return [leaf for leaf in wanted.values() if leaf.is_leaf]

    def copied_arguments(self) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Copies of the arguments, as the call may change them in place.

        Tensors that require grad are shared. A tensor that is passed twice is copied once.
        """
        copies: dict[int, Any] = {}

        def copy_once(value: Any) -> Any:
            return copies.setdefault(id(value), copy_for_guards(value)) if isinstance(value, torch.Tensor) else value

        return tree_map(copy_once, (tuple(self.args), dict(self.kwargs)))

    def devices(self) -> set[str]:
        modules = [parameter for module in self.modules().values() for parameter in module.parameters()]
        leaves = [*modules, *tree_leaves((self.args, dict(self.kwargs)))]
        return {leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)}


class _Holder(torch.nn.Module):
    """A module that runs a call and holds its modules under new names."""

    def __init__(self, run: Callable[..., Any], modules: Mapping[str, torch.nn.Module]) -> None:
        super().__init__()
        self._run = (run,)  # in a tuple, a module is not registered as a submodule
        self._names = list(modules)
        self._held = torch.nn.ModuleList(modules.values())

    def name_of(self, name: str) -> str:
        """Name in this module of the parameter or buffer called `name` in the user's code."""
        owner = next((own for own in self._names if own and name.startswith(f"{own}.")), "")
        return f"_held.{self._names.index(owner)}.{name.removeprefix(f'{owner}.') if owner else name}"

    def forward(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self._run[0](*args, **kwargs)


def _with_outer(function: Any, values: Mapping[str, Any]) -> FunctionType:
    """A copy of a function with globals and closure variables replaced by name."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closure = tuple(CellType(values[name]) if name in values else cell for name, cell in cells)
    copy = FunctionType(
        function.__code__, function.__globals__ | values, function.__name__, function.__defaults__, closure
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _dotted_name(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name


def copy_for_guards(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor with the strides and inference mode that guards check; return it unchanged if it requires grad."""
    if tensor.requires_grad:
        return tensor
    with torch.inference_mode(tensor.is_inference()):
        return copy_tensor(tensor)


class _NullStream(io.TextIOBase):
    """A text stream that discards what is written."""

    def write(self, text: str) -> int:
        return len(text)


@contextmanager
def without_output() -> Iterator[None]:
    """Discard output to stdout and stderr in the block, as autotuning prints its results."""
    with redirect_stdout(_NullStream()), redirect_stderr(_NullStream()):
        yield


@contextmanager
def leave_no_trace(call: Call) -> Iterator[None]:
    """Run a block in the modes of the call without side effects: restore random state and buffers, discard stdout.

    Buffers are restored through `.data`, which does not change autograd's version counters.
    """
    buffers = list(call.buffers().values())
    saved = [buffer.detach().clone() for buffer in buffers]
    with torch.random.fork_rng(), redirect_stdout(_NullStream()), call.surroundings.restore():
        try:
            yield
        finally:
            for buffer, value in zip(buffers, saved, strict=True):
                buffer.data.copy_(value)


def call_again(call: Call, compile_one: Callable[[Any], Callable[..., Any]]) -> None:
    """Repeat a call on copies and without side effects, with `compile_one(function)` in place of its function.

    If torch.compile has wrapped the function, `compile_one` gets the original.
    """
    function = dynamo.inner_function(call.fn) or call.fn
    args, kwargs = call.copied_arguments()
    with leave_no_trace(call), without_compiled_call(function):
        compile_one(function)(*args, **kwargs)
