"""A call that can be repeated without the user noticing: random state, gradients and buffers are put back."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from types import CellType, FunctionType
from typing import Any

import torch
from torch.func import functional_call

from compiler.torch_api.fx import SourceFrame
from compiler.torch_api.pytrees import tree_leaves, tree_map

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is on around a call and changes what it computes: gradients, inference mode, autocast by device."""

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, torch.dtype], ...]

    @classmethod
    def now(cls) -> Surroundings:
        devices = (device for device in DEVICES if torch.is_autocast_enabled(device))
        autocast = tuple((device, torch.get_autocast_dtype(device)) for device in devices)
        return cls(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)

    @contextmanager
    def again(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for device, dtype in self.autocast:
                stack.enter_context(torch.autocast(device, dtype))
            yield


@dataclass(frozen=True)
class Call:
    """What the user called, eager and compiled, with which arguments; and what is on around it, by default now.

    `later` are calls of the same after it that compiled something anew. `site` is the line that made it, where that is
    known.
    """

    fn: Callable[..., Any]
    compiled: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    surroundings: Surroundings = field(default_factory=Surroundings.now)
    later: tuple[Call, ...] = ()
    site: tuple[SourceFrame, ...] = ()

    def modules(self) -> dict[str, torch.nn.Module]:
        """The modules that the call runs, by the name that its code has for them; "" for what is called itself."""
        owner = getattr(self.fn, "__self__", self.fn)
        if isinstance(owner, torch.nn.Module):
            return {"": owner}
        return {name: value for name, value in self._outer().items() if isinstance(value, torch.nn.Module)}

    def _outer(self) -> Mapping[str, Any]:
        """What the function's code uses of the names around it."""
        function = inspect.unwrap(getattr(self.fn, "__func__", self.fn))
        if not inspect.isfunction(function):
            return {}
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        outer = {name: cell.cell_contents for name, cell in cells if cell != CellType()}
        names = (name for name in function.__code__.co_names if name in function.__globals__)
        return outer | {name: function.__globals__[name] for name in names}

    def parameters(self) -> dict[str, torch.Tensor]:
        """Leaves that want gradients and are not passed: parameters of modules and tensors from around, by name."""
        found: dict[str, torch.Tensor] = {}
        for name, module in self.modules().items():
            found |= {_dotted(name, own): value for own, value in module.named_parameters()}
        found |= {name: value for name, value in self._outer().items() if isinstance(value, torch.Tensor)}
        return {name: value for name, value in found.items() if value.requires_grad and value.is_leaf}

    def buffers(self) -> dict[str, torch.Tensor]:
        """The buffers of its modules, by name."""
        modules = self.modules().items()
        return {_dotted(name, own): value for name, module in modules for own, value in module.named_buffers()}

    def with_tensors(self, tensors: Mapping[str, torch.Tensor]) -> Callable[..., Any]:
        """The function with these in place of its parameters and buffers, by name; nothing of the user's is changed."""
        outer = {name: value for name, value in tensors.items() if name in self._outer()}
        inner = {name: value for name, value in tensors.items() if name not in outer}
        run = _with_outer(self.fn, outer) if outer else self.fn
        holder = _Holder(run, self.modules())
        held = {holder.name_of(name): value for name, value in inner.items()}
        return lambda *args, **kwargs: functional_call(holder, held, (args, kwargs))

    def tensors(self) -> list[torch.Tensor]:
        """Parameters and tensor arguments that want gradients, in a stable order."""
        found = [*self.parameters().values(), *tree_leaves((self.args, dict(self.kwargs)))]
        wanted = {id(leaf): leaf for leaf in found if isinstance(leaf, torch.Tensor) and leaf.requires_grad}
        return [leaf for leaf in wanted.values() if leaf.is_leaf]

    def copied_arguments(self) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Arguments that the call may change in place. Parameters and leaves that want gradients are shared; a tensor
        that is passed twice is one tensor in the copies too.
        """
        copies: dict[int, Any] = {}

        def copied(value: Any) -> Any:
            return copies.setdefault(id(value), copied_tensor(value)) if isinstance(value, torch.Tensor) else value

        return tree_map(copied, (tuple(self.args), dict(self.kwargs)))

    def devices(self) -> set[str]:
        modules = [parameter for module in self.modules().values() for parameter in module.parameters()]
        leaves = [*modules, *tree_leaves((self.args, dict(self.kwargs)))]
        return {leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)}


class _Holder(torch.nn.Module):
    """Modules under names of their own, around a call that runs them."""

    def __init__(self, run: Callable[..., Any], modules: Mapping[str, torch.nn.Module]) -> None:
        super().__init__()
        self._run = (run,)  # in a tuple a module is no child
        self._names = list(modules)
        self._held = torch.nn.ModuleList(modules.values())

    def name_of(self, name: str) -> str:
        """The name here of a parameter or buffer that the user's code knows by `name`."""
        owner = next((own for own in self._names if own and name.startswith(f"{own}.")), "")
        return f"_held.{self._names.index(owner)}.{name.removeprefix(f'{owner}.') if owner else name}"

    def forward(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self._run[0](*args, **kwargs)


def _with_outer(function: Any, values: Mapping[str, Any]) -> FunctionType:
    """A copy of a function that finds these values where it finds others."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closure = tuple(CellType(values[name]) if name in values else cell for name, cell in cells)
    copy = FunctionType(
        function.__code__, function.__globals__ | values, function.__name__, function.__defaults__, closure
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _dotted(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name


def copied_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A copy; a tensor that wants gradients is given back. Guards ask for the same strides, and whether it was made in
    inference mode.
    """
    if tensor.requires_grad:
        return tensor
    with torch.inference_mode(tensor.is_inference()):
        tensor = tensor.detach()
        if tensor.layout != torch.strided or 0 in tensor.stride():
            return tensor.clone()
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        return empty.copy_(tensor)


class _Nowhere(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


def nowhere() -> io.TextIOBase:
    """Takes text, and keeps none of it."""
    return _Nowhere()


@contextmanager
def unnoticed(call: Call) -> Iterator[None]:
    """The block runs as the call did: with its gradient mode and autocast. After it random state and the module's
    buffers are put back; what the call prints goes nowhere. `.data` leaves autograd's version counters alone.
    """
    buffers = list(call.buffers().values())
    saved = [buffer.detach().clone() for buffer in buffers]
    with torch.random.fork_rng(), redirect_stdout(_Nowhere()), call.surroundings.again():
        try:
            yield
        finally:
            for buffer, value in zip(buffers, saved, strict=True):
                buffer.data.copy_(value)
