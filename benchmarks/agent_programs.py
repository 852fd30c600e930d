"""Sixty broken programs for `benchmarks.agents`: each a function `f`, the arguments of its calls, and what is wrong."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

X = "randn(6, 8)"
SIZES = ("randn(4, 8)", "randn(5, 8)", "randn(6, 8)", "randn(7, 8)")
HEAD = """\
import logging
import math
import random
import time
import warnings

import numpy as np
import torch

log = logging.getLogger("program")


"""


@dataclass(frozen=True)
class Broken:
    """One program. `kind` is "break", "recompilation", "slow", "wrong number" or "memory".

    `cause` is a part of the line that is at fault, where the fault is no break and no recompilation: such a program is
    compiled by Inductor and compared with eager mode. `has_fix` is whether a change exists that a program can make.
    """

    name: str
    kind: str
    body: str
    calls: tuple[str, ...] = (X,)
    before: str = ""
    parameters: str = "x"
    cause: str = ""
    has_fix: bool = False

    @property
    def text(self) -> str:
        """The file."""
        before = textwrap.dedent(self.before).strip()
        head = f"{HEAD}{before}\n\n\n" if before else HEAD
        return f"{head}def f({self.parameters}):\n{textwrap.indent(textwrap.dedent(self.body).strip(), '    ')}\n"


def _break(name: str, body: str, *calls: str, before: str = "", parameters: str = "x") -> Broken:
    return Broken(name, "break", body, calls or (X,), before, parameters)


def _slow(name: str, body: str, *calls: str, before: str = "") -> Broken:
    return Broken(name, "slow", body, calls or (X,), before)


def _again(name: str, body: str, *calls: str, before: str = "", parameters: str = "x") -> Broken:
    return Broken(name, "recompilation", body, calls or SIZES, before, parameters)


BREAKS = (
    _break("item_as_scale", "y = x / x.abs().max().item()\nreturn y + 1"),
    _break("float_of_tensor", "scale = float(x.std())\nreturn x * scale"),
    _break("int_of_tensor", "k = int(x.sum())\nreturn x * k + 1"),
    _break("branch_on_sum", "if x.sum() > 0:\n    y = x * 2\nelse:\n    y = x - 1\nreturn y.relu()"),
    _break("branch_without_else", "y = x.sin()\nif y.mean() > 0:\n    y = y * 3\nreturn y + x"),
    _break("branch_returns", "if x.max() > 1:\n    return x.tanh()\nreturn x.sigmoid()"),
    _break("conditional_expression", "y = x * 2 if x.sum() > 0 else x * 3\nreturn y.cos()"),
    _break("print_shape", "y = x.relu()\nprint('shape', y.shape)\nreturn y * 2"),
    _break("print_tensor", "y = x.relu()\nprint(y.sum())\nreturn y * 2"),
    _break("print_item", "y = x.relu()\nprint('sum', y.sum().item())\nreturn y * 2"),
    _break("log_info", "y = x.exp()\nlog.info('mean %s', y.mean())\nreturn y + 1"),
    _break("log_warning", "y = x.exp()\nlog.warning('seen')\nreturn y + 1"),
    _break("warn", "warnings.warn('old')\nreturn x.exp() + 1"),
    _break("graph_break_call", "y = x + 1\ntorch._dynamo.graph_break()\nreturn y.relu()"),
    _break("clock", "start = time.time()\ny = x.softmax(-1)\ntime.time() - start\nreturn y + 1"),
    _break("perf_counter", "start = time.perf_counter()\ny = x.softmax(-1)\ntime.perf_counter() - start\nreturn y"),
    _break("assert_on_data", "assert (x < 100).all(), 'large'\nreturn x.relu() + 1"),
    _break("raise_on_nan", "if torch.isnan(x).any():\n    raise ValueError('nan')\nreturn x.relu() + 1"),
    _break("while_on_data", "y = x\nwhile y.abs().sum() > 1:\n    y = y / 2\nreturn y + 1"),
    _break("numpy_round_trip", "y = x.relu()\nz = torch.from_numpy(y.detach().numpy())\nreturn z * 2"),
    _break("numpy_of_item", "y = x * np.sqrt(x.abs().sum().item())\nreturn y + 1"),
    _break("math_of_item", "y = x * math.exp(-x.abs().mean().item())\nreturn y + 1"),
    _break("tolist_sum", "total = sum(x.sum(-1).tolist())\nreturn x * total"),
    _break("mask_index", "y = x[x > 0]\nreturn y.sum() + x"),
    _break("masked_select", "y = torch.masked_select(x, x > 0)\nreturn y.sum() + x"),
    _break("nonzero_count", "k = torch.nonzero(x > 0).shape[0]\nreturn x * k"),
    _break("item_index", "i = x.sum(-1).argmax().item()\nreturn x[i] + x"),
    _break("clamp_by_item", "return x.clamp(max=x.mean().item()) + 1"),
    _break("full_of_item", "bias = torch.full((8,), x.sum().item())\nreturn x + bias"),
    _break("callback", "show(x.sum())\nreturn x.relu()", before="""
        @torch._dynamo.disable
        def show(value):
            return value
    """),
    _break("two_branches", """
        if x.sum() > 0:
            x = x + 1
        y = x.sin()
        if y.sum() > 0:
            y = y * 2
        return y
    """),
    _break("helper_item", "return scale(x) + 1", before="""
        def scale(x):
            return x / x.abs().sum().item()
    """),
)  # fmt: skip

RECOMPILATIONS = (
    _again("batch_sizes", "return x.relu() + 1"),
    _again("sequence_lengths", "return x.softmax(-1) * 2", "randn(2, 4)", "randn(2, 5)", "randn(2, 6)"),
    _again("both_sizes", "return (x @ x.T).relu()", "randn(4, 8)", "randn(5, 9)", "randn(6, 10)"),
    _again("int_argument", "return x * n + 1", f"{X}, 2", f"{X}, 3", f"{X}, 4", parameters="x, n"),
    _again("float_argument", "return x * lr", f"{X}, 0.1", f"{X}, 0.2", f"{X}, 0.3", parameters="x, lr"),
    _again("step_counter", "state['step'] += 1\nreturn x * state['step']", X, X, X, before="state = {'step': 1}"),
    _again("global_scale", "global SCALE\nSCALE = SCALE + 1\nreturn x * SCALE", X, X, X, before="SCALE = 2"),
    _again("step_modulo", "return x * (1 + step % 7)", f"{X}, 2", f"{X}, 3", f"{X}, 4", parameters="x, step"),
    _again("sizes_and_sum", "return x.sum(0) / x.shape[0]"),
    _again("positions", "p = torch.arange(x.shape[0])\nreturn x + p[:, None]"),
    _again("temperature", "return (x / t).softmax(-1)", f"{X}, 1.5", f"{X}, 1.25", f"{X}, 0.75", parameters="x, t"),
    _again("mixed", "return x[:n].sum() + x", "randn(6, 8), 2", "randn(6, 8), 3", "randn(6, 8), 4", parameters="x, n"),
)

SLOW = (
    _slow("norm_of_each_row", """
        total = 0.0
        for row in x:
            total = total + row.norm().item()
        return x / total
    """),
    _slow("running_mean_item", "mean = x.mean().item()\nvar = x.var().item()\nreturn (x - mean) / (var + 1e-5)"),
    Broken("float64_table", "slow", "y = x.sin()\nreturn (y * TABLE).tanh().sum(-1)", (X,),
           "TABLE = torch.from_numpy(np.linspace(0, 1, 8))", cause="y * TABLE"),
    Broken("float64_in_place", "slow", "p = torch.linspace(0, 1, 8, dtype=torch.float64)\nreturn (x.relu() + p).cos()",
           cause="x.relu() + p"),
    Broken("cast_weight", "slow", "return x.bfloat16() @ W.bfloat16()", ("randn(64, 512)",),
           "W = torch.randn(512, 512)", cause="W.bfloat16()"),
    Broken("permuted_twice", "slow", "y = x.t().contiguous()\nreturn (y @ y.t()).relu()", ("randn(1024, 256)",),
           cause="x.t().contiguous()"),
)  # fmt: skip

WRONG_NUMBERS = (
    Broken("trace_time_random", "wrong number", "return x * random.random()", (X, X)),
    Broken("is_compiling", "wrong number", "y = x.sin()\nif torch.compiler.is_compiling():\n    y = y * 2\nreturn y",
           cause="is_compiling()"),
    Broken("half_overflow", "wrong number", "h = (x.abs() + 1).half()\nh = h * 1000 * 1000\nreturn h / 1000", (X,),
           cause="h / 1000", has_fix=True),
    Broken("half_cancels", "wrong number", "h = x.bfloat16()\ng = h + 256\nreturn (g - 256).float()", (X,),
           cause="(g - 256)", has_fix=True),
    Broken("operator_writes", "wrong number", "y = x.cos()\nz = shift(y)\nreturn y + z", (X,), """
        @torch.library.custom_op("program::shift", mutates_args=())
        def shift(x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return x * 2


        shift.register_fake(lambda x: torch.empty_like(x))
    """, cause="shift(y)"),
)  # fmt: skip

MEMORY = (
    Broken("copy_to_numpy", "memory", "y = (x * 2).detach().cpu().numpy()\nreturn x + torch.from_numpy(y)", (X,)),
    Broken("scores", "memory", "s = x @ x.transpose(-1, -2)\np = (s * 0.5 + s.mean()).softmax(-1)\nreturn p @ x",
           ("randn(1, 768, 16)",), cause="x @ x.transpose"),
    Broken("one_hot_product", "memory", "h = torch.nn.functional.one_hot(x, 2048).float()\nreturn h @ E",
           ("randint(0, 2048, [600])",), "E = torch.randn(2048, 32)", cause="one_hot(x"),
    Broken("all_pairs", "memory", "d = (x[:, None] - x[None]).abs()\nreturn (d @ W).sum((0, 1))", ("randn(128, 64)",),
           "W = torch.randn(64, 64)", cause="x[None]"),
    Broken("repeated_batch", "memory", "b = x.repeat(64, 1, 1)\nreturn torch.bmm(b, b.mT).sum(0)", ("randn(96, 32)",),
           cause="torch.bmm(b"),
)  # fmt: skip

PROGRAMS = (*BREAKS, *RECOMPILATIONS, *SLOW, *WRONG_NUMBERS, *MEMORY)
