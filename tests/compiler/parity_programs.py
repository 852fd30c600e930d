"""Programs of many kinds, each a function to compile and its calls."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Program:
    """`fn` is called with each of `calls`; `around` is entered for all of them."""

    fn: Callable[..., Any]
    calls: Sequence[Sequence[Any]]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    fullgraph: bool = False


def x(*sizes: int) -> Tensor:
    return torch.randn(sizes or (4, 4))


def trained(*sizes: int) -> Tensor:
    return x(*sizes).requires_grad_()


def mlp(size: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(size, 8), nn.ReLU(), nn.Linear(8, size))


def module() -> Program:
    return Program(mlp(), [(x(),)])


def sizes_that_recompile() -> Program:
    def f(a: Tensor) -> Tensor:
        return (a * 2).sum(0) + a.shape[0]

    return Program(f, [(x(size, 4),) for size in (2, 3, 5, 1)])


def numbers_that_recompile() -> Program:
    def f(a: Tensor, factor: float, flag: bool) -> Tensor:
        return a * factor if flag else a + factor

    return Program(f, [(x(), 1.0, True), (x(), 2.0, True), (x(), 3, True), (x(), 3.0, False)])


def recompile_limit() -> Program:
    def f(a: Tensor, word: str) -> Tensor:
        return a + len(word)

    config = torch._dynamo.config
    return Program(f, [(x(), "a" * n) for n in range(6)], around=lambda: config.patch(recompile_limit=3))


def breaks() -> Program:
    def f(a: Tensor) -> Tensor:
        b = a.sin()
        print(end="")  # noqa: T201
        if b.sum() > 0:
            b = b + 1
        torch._dynamo.graph_break()
        return b * b.sum().item()

    return Program(f, [(torch.ones(3),), (-torch.ones(3),)])


def break_in_a_callee() -> Program:
    def inner(a: Tensor) -> Tensor:
        a = a + 1
        print(end="")  # noqa: T201
        return a * 2

    def f(a: Tensor) -> Tensor:
        return inner(inner(a)) - 1

    return Program(f, [(x(),)])


def break_in_a_loop() -> Program:
    def f(a: Tensor) -> Tensor:
        for _ in range(3):
            a = a + 1
            print(end="")  # noqa: T201
        return a

    return Program(f, [(x(),)])


def generator() -> Program:
    def parts(a: Tensor) -> Iterator[Tensor]:
        for row in a:
            yield row * 2

    def f(a: Tensor) -> Tensor:
        return torch.stack(list(parts(a)))

    return Program(f, [(x(),)])


def generator_itself() -> Program:
    def f(a: Tensor) -> Iterator[Tensor]:
        yield a + 1
        yield a * 2

    return Program(lambda a: sum(f(a)), [(x(),)])


def closures() -> Program:
    scale = torch.tensor(2.0)
    seen = []

    def make(shift: int) -> Callable[[Tensor], Tensor]:
        def inner(a: Tensor) -> Tensor:
            seen.append(shift)
            return a * scale + shift

        return inner

    def f(a: Tensor) -> Tensor:
        return make(1)(a) + make(2)(a)

    return Program(f, [(x(),), (x(),)])


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return a * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        return gradient * 2 + a * 0


def autograd_function() -> Program:
    def f(a: Tensor) -> Tensor:
        return Doubled.apply(a.sin()).cos()  # type: ignore[no-untyped-call]

    return Program(f, [(trained(),)])


def module_hooks() -> Program:
    model = mlp()
    model[0].register_forward_pre_hook(lambda _module, args: (args[0] + 1,))
    model[1].register_forward_hook(lambda _module, _args, result: result * 2)
    model[2].register_full_backward_hook(lambda _module, gradients, _: gradients)
    return Program(model, [(trained(),)])


def tensor_hooks() -> Program:
    def f(a: Tensor) -> Tensor:
        b = a * 2
        b.register_hook(lambda gradient: gradient + 1)
        return b.sum()

    return Program(f, [(trained(),)])


def backward_inside() -> Program:
    model = mlp()

    def step(a: Tensor) -> Tensor:
        loss = model(a).square().mean()
        loss.backward()
        return loss.detach()

    return Program(step, [(x(),), (x(),)])


def optimizer() -> Program:
    model = mlp()
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    model(x()).sum().backward()

    def step() -> None:
        adam.step()

    return Program(step, [(), (), ()])


def training_step() -> Program:
    model = mlp()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(a: Tensor) -> Tensor:
        sgd.zero_grad()
        loss = nn.functional.mse_loss(model(a), a)
        loss.backward()
        sgd.step()
        return loss.detach()

    return Program(step, [(x(),), (x(),)])


def with_compiled_autograd() -> Program:
    program = backward_inside()
    return Program(program.fn, program.calls, around=lambda: torch._dynamo.config.patch(compiled_autograd=True))


def with_compiled_autograd_enabled() -> Program:
    model = mlp()

    def step(a: Tensor) -> Tensor:
        with compiled_autograd._enable(torch.compile(backend="eager")):
            model(a).sum().backward()
        return a

    return Program(torch._dynamo.disable(step, recursive=False), [(x(),)])


def add_one(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.add_(1)


def compiled_autograd_of_hooks() -> Program:
    model = mlp()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 2)
        parameter.register_post_accumulate_grad_hook(add_one)

    def step(a: Tensor) -> None:
        model(a).sum().backward()

    return Program(step, [(x(),), (x(3, 4),)], around=lambda: torch._dynamo.config.patch(compiled_autograd=True))


def checkpointed() -> Program:
    model = mlp()

    def f(a: Tensor) -> Tensor:
        return checkpoint(model, a, use_reentrant=False).sum()

    return Program(f, [(trained(),)])


def branch_of_cond() -> Program:
    def f(a: Tensor) -> Tensor:
        return torch.cond(a.sum() > 0, lambda b: b.sin(), lambda b: b.cos(), (a,))

    return Program(f, [(x(),)])


@torch.library.custom_op("parity::shifted", mutates_args=())
def shifted(a: Tensor, by: float) -> Tensor:
    return a + by


@shifted.register_fake
def _(a: Tensor, by: float) -> Tensor:
    return torch.empty_like(a)


def custom_operator() -> Program:
    return Program(lambda a: shifted(a * 2, 1.0) * 3, [(x(),)])


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.linear = nn.Linear(4, 4)

    def forward(self, a: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(a) * self.calls


def module_with_state() -> Program:
    return Program(Counting(), [(x(),) for _ in range(4)])


@dataclass
class Batch:
    ids: Tensor
    mask: Tensor | None = None


def dataclass_input() -> Program:
    def f(batch: Batch) -> Batch:
        return Batch(batch.ids * 2 if batch.mask is None else batch.ids * batch.mask)

    return Program(f, [(Batch(x()),), (Batch(x(), x()),)])


def dict_inputs() -> Program:
    def f(batch: dict[str, Tensor], *, scale: float = 1.0) -> dict[str, Tensor]:
        return {name: value * scale for name, value in batch.items()}

    return Program(f, [({"a": x(), "b": x()},), ({"a": x()},)], {"scale": 2.0})


def modes() -> Program:
    def f(a: Tensor) -> Tensor:
        with torch.no_grad():
            b = a * 2
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return b @ a

    return Program(f, [(trained(),)])


def inference_mode() -> Program:
    return Program(mlp(), [(x(),), (x(),)], around=torch.inference_mode)


def functorch() -> Program:
    def f(a: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.vmap(lambda row: row.sin().sum())(a), torch.func.grad(lambda b: (b * b).sum())(a)

    return Program(f, [(x(),)])


def in_threads() -> Program:
    def f(a: Tensor) -> Tensor:
        found = []
        thread = threading.Thread(target=lambda: found.append(a.sin() + 1))
        thread.start()
        thread.join()
        return found[0] + a

    return Program(f, [(x(),)])


def stance() -> Program:
    def f(a: Tensor) -> Tensor:
        return a * a.shape[0]

    calls = [(x(2, 4),), (x(3, 4),), (x(5, 4),)]
    return Program(f, calls, around=lambda: torch.compiler.set_stance("eager_on_recompile"))


def disabled_callee() -> Program:
    @torch.compiler.disable
    def eager(a: Tensor) -> Tensor:
        return a + 1

    def compiled(a: Tensor) -> Tensor:
        return a.sin() * 2

    @torch.compiler.disable(recursive=False)
    def eager_alone(a: Tensor) -> Tensor:
        return compiled(a) + 1

    def f(a: Tensor) -> Tensor:
        return eager_alone(eager(a * 2) * 3)

    return Program(f, [(x(),), (x(),)])


@torch.compiler.allow_in_graph
def opaque(a: Tensor) -> Tensor:
    return a.sin()


def allowed_in_graph() -> Program:
    return Program(lambda a: opaque(a) + 1, [(x(),)])


@contextlib.contextmanager
def doubled_default() -> Iterator[float]:
    yield 2.0


def context_managers() -> Program:
    def f(a: Tensor) -> Tensor:
        with doubled_default() as factor, torch.set_grad_enabled(False):
            a = a * factor
            print(end="")  # noqa: T201
        return a + 1

    return Program(f, [(x(),)])


class Named(Tensor):
    pass


def tensor_subclass() -> Program:
    return Program(lambda a: (a + 1).sum() * 2, [(x().as_subclass(Named),), (x(),)])


def random_numbers() -> Program:
    def f(a: Tensor) -> Tensor:
        return nn.functional.dropout(a, 0.5) + torch.rand(4) + random.random()

    return Program(f, [(x(),), (x(),)])


def numpy_operations() -> Program:
    def f(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.sum(a * 2, axis=0) + np.arange(3)

    return Program(f, [(np.ones((2, 3), dtype=np.float32),), (np.ones((4, 3), dtype=np.float32),)])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 8, batch_first=True)

    def forward(self, a: Tensor) -> Tensor:
        return self.lstm(a)[0].sum()


def lstm() -> Program:
    return Program(Recurrent(), [(x(2, 3, 4),)])


def nested_compile() -> Program:
    inner = torch.compile(lambda a: a.sin() + 1, backend="eager")

    def f(a: Tensor) -> Tensor:
        return inner(a) * 2

    return Program(f, [(x(),)])


def regional_compilation() -> Program:
    blocks = nn.ModuleList(mlp() for _ in range(3))
    for block in blocks:
        block.compile(backend="eager")

    def f(a: Tensor) -> Tensor:
        for block in blocks:
            a = block(a)
            print(end="")  # noqa: T201
        return a

    return Program(torch._dynamo.disable(f, recursive=False), [(x(),)])


def compiled_module() -> Program:
    model = mlp()
    model.compile(backend="eager")
    return Program(model, [(x(),), (x(2, 4),)])


def deep_recursion() -> Program:
    def f(a: Tensor, depth: int) -> Tensor:
        return a if depth == 0 else f(a + 1, depth - 1) * 2

    return Program(f, [(x(), 3), (x(), 4)])


def raised_and_caught() -> Program:
    def f(a: Tensor) -> Tensor:
        try:
            raise ValueError("a")
        except ValueError:
            return a + 1

    return Program(f, [(x(),)])


def one_graph() -> Program:
    return Program(mlp(), [(x(),), (x(2, 4),)], fullgraph=True)


@contextlib.contextmanager
def leaving_group(hook: Any) -> Iterator[None]:
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


def in_fake_group(wrap: Callable[[nn.Module], Any]) -> Program:
    leaving = partial(leaving_group, sys.excepthook)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    return Program(wrap(mlp()), [(x(),), (x(),)], around=leaving)


def data_parallel() -> Program:
    return in_fake_group(DistributedDataParallel)


def fully_sharded() -> Program:
    return in_fake_group(lambda model: fully_shard(model, mesh=init_device_mesh("cpu", (2,))))


PROGRAMS: dict[str, Callable[[], Program]] = {
    make.__name__: make
    for make in (
        module, sizes_that_recompile, numbers_that_recompile, recompile_limit, breaks, break_in_a_callee,
        break_in_a_loop, generator, generator_itself, closures, autograd_function, module_hooks, tensor_hooks,
        backward_inside, optimizer, training_step, with_compiled_autograd, with_compiled_autograd_enabled,
        compiled_autograd_of_hooks, checkpointed, branch_of_cond, custom_operator, module_with_state, dataclass_input,
        dict_inputs, modes, inference_mode, functorch, in_threads, stance, disabled_callee, allowed_in_graph,
        context_managers, tensor_subclass, random_numbers, numpy_operations, lstm, nested_compile,
        regional_compilation, compiled_module, deep_recursion, raised_and_caught, one_graph, data_parallel,
        fully_sharded,
    )
}  # fmt: skip
