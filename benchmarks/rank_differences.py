"""Programs in which one rank differs from the others, in one thing each. `benchmarks/ranks.py` runs and counts them.

A line at which the difference is rightly found has the comment `# differs`.
"""

# ruff: noqa: ARG001 (all programs have the same parameters)
from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fun
from torch import Tensor, nn

from benchmarks.rank_programs import DIFFERENT, StartAgainError, differs, net, rand, train, train_in_one_graph, world

FLAG = 3
__all__ = ["DIFFERENT"]


@differs("graph")
def another_operator(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        y = x * 2
        return (torch.sin if odd else torch.cos)(y)  # differs

    step(rand(8, 4))


@differs("graph")
def rank_in_model(rank: int, odd: bool) -> None:
    class Ranked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.sin()
            if dist.get_rank() == 1:
                y = y + 1  # differs
            return y.cos()

    torch.compile(Ranked())(rand(4))


@differs("graph")
def other_constant(rank: int, odd: bool) -> None:
    factor = 2.5 if odd else 1.5

    @torch.compile
    def step(x: Tensor) -> Tensor:
        y = x.sin()
        return y * factor  # differs

    step(rand(8, 4))


@differs("input", "graph")
def dtype(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        return x.sin() + 1  # differs

    step(rand(8, 4, dtype=torch.float64 if odd else torch.float32))


@differs("input", "graph")
def shape(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        return x.sin() + 1  # differs

    step(rand(12 if odd else 8, 4))


@differs("input", "graph")
def strides(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        return x.sin() + 1  # differs

    step(rand(4, 8).t() if odd else rand(8, 4))


@differs("input", "graph", "dynamic shape")
def dynamic_dimension(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        return x.sin() + 1  # differs

    x = rand(8, 4)
    if odd:
        torch._dynamo.mark_dynamic(x, 0)
    step(x)


@differs("graph break")
def extra_break(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        y = x.sin()
        if odd:
            torch._dynamo.graph_break()  # differs
        return y.cos()

    step(rand(8, 4))


@differs("recompilation")
def recompiles_alone(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor, flag: bool) -> Tensor:  # differs
        return x.sin() if flag else x.cos()  # differs

    step(rand(8, 4), True)
    step(rand(8, 4), not odd)


@differs("recompilation", "configuration")
def other_recompile_limit(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor, number: str) -> Tensor:  # differs
        return x.sin() if number else x  # differs

    with torch._dynamo.config.patch(recompile_limit=2 if odd else 8):
        for number in "abcd":
            step(rand(8, 4), number)


@differs("configuration")
def inductor_config(rank: int, odd: bool) -> None:
    with torch._inductor.config.patch(max_fusion_size=1 if odd else 64):
        torch.compile(lambda x: x.sin().cos())(rand(8, 4))


@differs("cache", caches="own")
def cache_hit_on_one(rank: int, odd: bool) -> None:
    if odd:
        torch.compile(net().eval())(rand(8, 16))
        torch.compiler.reset()
        raise StartAgainError
    torch.compile(net().eval())(rand(8, 16))


@differs("kernels")
def other_kernels(rank: int, odd: bool) -> None:
    torch.set_num_threads(2 if odd else 1)

    @torch.compile
    def step(x: Tensor) -> Tensor:
        return x.sin() + 1  # differs

    step(rand(512, 1024))


@differs("collectives")
def collective_missing(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        y = x * 2
        if not odd:
            y = fun.all_reduce(y, "sum", world())  # differs
        return y + 1

    step(rand(8, 4))


@differs("collectives")
def collectives_in_other_order(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if odd:
            b = fun.all_gather_tensor(y, 0, world())
            return fun.all_reduce(x, "sum", world()) + 1, b + 1
        a = fun.all_reduce(x, "sum", world())  # differs
        return a + 1, fun.all_gather_tensor(y, 0, world()) + 1

    step(rand(8, 4), rand(8, 4))


@differs("collectives")
def collective_of_other_size(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        part = x[:4] if odd else x
        return fun.all_reduce(part * 2, "sum", world()) + 1  # differs

    step(rand(8, 4))


@differs("collectives")
def collective_with_other_operation(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        return fun.all_reduce(x * 2, "max" if odd else "sum", world()) + 1  # differs

    step(rand(8, 4))


@differs("collectives")
def collective_in_other_group(rank: int, odd: bool) -> None:
    pair: Any = dist.new_group([0, 1])

    @torch.compile
    def step(x: Tensor) -> Tensor:
        return fun.all_reduce(x * 2, "sum", pair if odd else world()) + 1  # differs

    step(rand(8, 4))


@differs("end of the log", "compilations")
def exception(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        return x.sin()

    @torch.compile  # differs
    def later(x: Tensor) -> Tensor:  # differs
        return x.cos()

    step(rand(8, 4))
    if odd:
        raise ValueError("the data of this rank are damaged")
    later(rand(8, 4))


@differs("end of the log")
def stops_while_it_compiles(rank: int, odd: bool) -> None:
    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        if odd:
            os.kill(os.getpid(), signal.SIGKILL)
        return graph

    def step(x: Tensor) -> Tensor:  # differs
        return fun.all_reduce(x.sin(), "sum", world())

    torch.compile(step, backend=backend)(rand(8, 4))


@differs("guards")
def guards(rank: int, odd: bool) -> None:
    globals()["FLAG"] = 5 if odd else 3

    @torch.compile
    def step(x: Tensor) -> Tensor:
        if FLAG > 2:  # differs
            return x.sin()
        return x.cos()

    step(rand(8, 4))


@differs("compilations")
def one_more_function(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        return x.sin()

    @torch.compile  # differs
    def extra(x: Tensor) -> Tensor:  # differs
        return x.cos()

    if odd:
        extra(rand(8, 4))
    step(rand(8, 4))


@differs("compiled autograd", "configuration")
def compiled_autograd_on_one(rank: int, odd: bool) -> None:
    train_in_one_graph(compiled_autograd=odd)


@differs("torch version")
def torch_version(rank: int, odd: bool) -> None:
    if odd:
        torch.__version__ = type(torch.__version__)("2.12.1")
    torch.compile(lambda x: x.sin())(rand(8, 4))


@differs("configuration")
def reduce_overhead(rank: int, odd: bool) -> None:
    torch.compile(net(), mode="reduce-overhead" if odd else None)(rand(8, 16))


@differs("graph")
def training_and_eval(rank: int, odd: bool) -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            y = x.sin()
            return self.drop(y).cos()  # differs

    torch.compile(Dropped().train(not odd))(rand(8, 4))


@differs("grad mode", "autograd", "graph")
def grad_mode(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        return x.sin() + 1  # differs

    with torch.set_grad_enabled(not odd):
        step(rand(8, 4, requires_grad=True))


@differs("compilations")
def skipped_frame(rank: int, odd: bool) -> None:
    def step(x: Tensor) -> Tensor:  # differs
        return x.sin()

    with torch.compiler.set_stance("force_eager" if odd else "default"):
        torch.compile(step)(rand(8, 4))
    torch.compile(net())(rand(8, 16))


@differs("failure", "graph break")
def fullgraph_error(rank: int, odd: bool) -> None:
    def step(x: Tensor) -> Tensor:
        y = x.sin()
        if odd:
            print("here")  # differs
        return y.cos()

    torch.compile(step, fullgraph=True)(rand(8, 4))


@differs("environment")
def environment(rank: int, odd: bool) -> None:
    if odd:
        os.environ["TORCHINDUCTOR_COORDINATE_DESCENT_TUNING"] = "1"
    torch.compile(lambda x: x.sin())(rand(8, 4))


@differs("source", "graph", "compilations")
def other_line_of_same_code(rank: int, odd: bool) -> None:
    source = "def step(x):\n    y = x.sin()\n    return y.cos()\n"
    namespace: dict[str, Callable[[Tensor], Tensor]] = {}
    exec(compile("\n" * odd + source, "step_of_a_rank.py", "exec"), namespace)
    torch.compile(namespace["step"])(rand(8, 4))


@differs("autograd", "graph", "memory")
def other_saved_tensors(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        for _ in range(4):
            x = (x @ x).sin().cos()
        return x

    with torch._functorch.config.patch(activation_memory_budget=0.3 if odd else 1.0):
        step(rand(16, 16, requires_grad=True)).sum().backward()


@differs("graph", "autograd", "input", ranks=4)
def frozen_parameter_on_one_of_four(rank: int, odd: bool) -> None:
    model = net()
    if odd:
        model.a.weight.requires_grad_(False)
    train(torch.compile(model, backend="aot_eager"), steps=1)


@differs("graph")
def autocast_on_one(rank: int, odd: bool) -> None:
    layer = nn.Linear(16, 4)

    @torch.compile
    def step(x: Tensor) -> Tensor:
        return layer(x.sin())  # differs

    with torch.autocast("cpu", torch.bfloat16, enabled=odd):
        step(rand(8, 16))


@differs("graph")
def other_dropout(rank: int, odd: bool) -> None:
    chance = 0.5 if odd else 0.1

    @torch.compile
    def step(x: Tensor) -> Tensor:
        y = x.sin()
        return nn.functional.dropout(y, chance) + 1  # differs

    step(rand(8, 4))


@differs("collectives", "graph")
def gathered_along_another_dimension(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        y = x * 2
        return fun.all_gather_tensor(y, 1 if odd else 0, world()).sum()  # differs

    step(rand(8, 4))


@differs("collectives")
def another_collective(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        given = x * 2
        collective: Any = fun.reduce_scatter_tensor if odd else fun.all_reduce  # differs
        scatter = (0,) if odd else ()
        return collective(given, "sum", *scatter, world()).relu()  # differs

    step(rand(8, 4))


@differs("graph", "input")
def one_more_layer(rank: int, odd: bool) -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3 if odd else 2))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:  # differs
                x = torch.relu(layer(x))  # differs
            return x.sum()  # differs

    torch.compile(Stack())(rand(8, 16))


@differs("graph")
def input_changed_in_place(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        y = x.sin()
        x.add_(1) if odd else x.add(1)  # differs
        return y * x  # differs

    step(rand(8, 4))


@differs("graph", "autograd")
def checkpoint_on_one(rank: int, odd: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    model = net()

    @torch.compile
    def step(x: Tensor) -> Tensor:
        y: Tensor = checkpoint(model, x, use_reentrant=False) if odd else model(x)  # differs
        return y.pow(2).mean()

    step(rand(8, 16)).backward()


@differs("graph break")
def break_in_a_helper(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        return scaled(x.sin(), odd).cos()

    step(rand(8, 4))


def scaled(x: Tensor, by_value: bool) -> Tensor:
    if by_value:
        return x * x.max().item()  # differs by a break here
    return x * x.max()


@differs("graph", "input")
def other_momentum(rank: int, odd: bool) -> None:
    weight, momentum = rand(16, 4), 0.8 if odd else 0.9

    @torch.compile
    def update(gradient: Tensor, velocity: Tensor) -> Tensor:
        velocity = velocity * momentum + gradient  # differs
        return weight - 0.01 * velocity

    update(rand(16, 4), rand(16, 4))


@differs("graph")
def branch_of_cond(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        def positive(y: Tensor) -> Tensor:
            return y.exp() if odd else y.sin()  # differs

        return torch.cond(x.sum() > 0, positive, torch.cos, (x,))  # differs

    step(rand(8, 4))


@differs("graph")
def other_bound_of_a_slice(rank: int, odd: bool) -> None:
    last = 7 if odd else 5

    @torch.compile
    def step(x: Tensor) -> Tensor:
        y = x.sin()
        return y[:last].sum()  # differs

    step(rand(16, 4))


@differs("graph", "autograd")
def other_backward(rank: int, odd: bool) -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Tensor) -> Tensor:
            return x.sin()

        @staticmethod
        def backward(_: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return gradient * (3 if odd else 2)  # differs

    @torch.compile
    def step(x: Tensor) -> Tensor:
        apply: Any = Scaled.apply
        return apply(x * 2).sum()  # differs

    step(rand(8, 4, requires_grad=True)).backward()


@differs("graph")
def one_more_result(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> tuple[Tensor, ...]:
        y = x.sin()  # differs
        return (y.cos(), y) if odd else (y.cos(),)  # differs

    step(rand(8, 4))
