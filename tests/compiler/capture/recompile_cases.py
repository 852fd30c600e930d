"""Calls that recompile a function, the changes between them, and calls or code that don't recompile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DOUBLE = "def f(x):\n    return x * 2\n"
SCALED = "def f(x, n):\n    return x * n\n"
DROPS = (
    "class M(nn.Module):\n    p = 0.0\n"
    "    def forward(self, x):\n        return x * torch.empty_like(x).bernoulli_(1 - self.p)\nf = M()\n"
)
OPTIMIZES = "w = torch.ones(4, requires_grad=True)\nw.grad = torch.ones(4)\nf = torch.optim.SGD([w], lr=0.1).step\n"
LINEAR = (
    "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(8, 8)\n"
    "    def forward(self, x):\n        return self.layer(x)\nf = M()\n"
)
SCALES = (
    "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.scales = nn.ParameterList([nn.Parameter(torch.ones(8))])\n"
    "    def forward(self, x):\n        for scale in self.scales:\n            x = x * scale\n        return x\n"
    "f = M()\n"
)
A, B = "torch.ones(4, 8)", "torch.ones(6, 8)"


@dataclass(frozen=True)
class Again:
    """A recompilation: `code` defines `f`, and `calls` calls it.

    `fixed`, `fixed_calls` and the exploration's `options` follow the advice (`start` are the options before).
    `settings` are the advice's settings.
    """

    cause: str
    argument: str
    code: str
    calls: str
    old: str
    new: str
    fixed: str = ""
    fixed_calls: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    start: dict[str, Any] = field(default_factory=dict)
    settings: bool = False
    word: str = ""


def each(*calls: str) -> str:
    return "\n".join(f"f({call})" for call in calls)


KEEPS = """
import collections
last = collections.deque(maxlen=0)
def f(x):
    y = x * 2
    last.append(y.sum().item())
    return y + 1
"""
CASES = (
    Again(
        "identity", "an intermediate value", KEEPS, each(A, A, A), "an object that is gone",
        "another object",
        fixed=KEEPS.replace("last.append(y.sum().item())", "value = y.sum().item()\n    last.append(value)"),
        word="`value = x.item()`",
    ),
    Again("shape", "x", DOUBLE, each(A, B), "4", "6", options={"dynamic": True}, word="mark_dynamic(x, 0)"),
    Again(
        "shape", "x", DOUBLE, each(A, B), "4", "6",
        fixed_calls=f"x = {A}\ntorch._dynamo.mark_dynamic(x, 0)\nf(x)\nf({B})", word="dynamic=True",
    ),
    Again("shape", "x", DOUBLE, each(A, "torch.ones(4, 5)"), "8", "5", options={"dynamic": True}, word="(x, 1)"),
    Again(
        "shape", "y", "def f(x, y):\n    return x.sum() + y.sum()\n", each(f"{A}, torch.ones(5, 8)", f"{A}, {B}"),
        "5", "6", options={"dynamic": True}, word="mark_dynamic(y, 0)",
    ),
    Again(
        "condition on sizes", "x", DOUBLE, each(A, B, "torch.ones(1, 8)"), "2 <= x.size(0)", "no longer so",
        fixed_calls=f"x = {A}\ntorch._dynamo.decorators.mark_unbacked(x, 0)\nf(x)\nf({B})\nf(torch.ones(1, 8))",
        word="mark_unbacked(x",
    ),
    Again(
        "number of dimensions", "x", DOUBLE, each(A, "torch.ones(8)"), "4×8", "8",
        fixed_calls=each(A, "torch.ones(8).expand(4, 8).contiguous()"), word="unsqueeze",
    ),
    Again(
        "dtype", "x", DOUBLE, each(A, f"{A}.double()"), "float32", "float64",
        fixed_calls=each(A, f"{A}.double().to(torch.float32)"), word="x.to(torch.float32)",
    ),
    Again(
        "stride", "x", DOUBLE, each(A, "torch.ones(8, 4).t()"), "contiguous", "strides (1, 4)",
        fixed_calls=each(A, "torch.ones(8, 4).t().contiguous()"), word="contiguous()",
    ),
    Again(
        "device", "x", DOUBLE, each(A, f"{A}.to('meta')"), "cpu", "meta",
        fixed_calls=each(A, A), word="x.to('cpu')",
    ),
    Again(
        "requires_grad", "x", DOUBLE, each(A, "torch.ones(4, 8, requires_grad=True)"), "False", "True",
        fixed_calls=each(A, "torch.ones(4, 8, requires_grad=True).detach()"), word="x.detach()",
    ),
    Again(
        "type", "x", DOUBLE, each(A, f"nn.Parameter({A})"), "Tensor", "Parameter",
        fixed_calls=each(A, f"nn.Parameter({A}).detach()"), word="same type",
    ),
    Again(
        "grad mode", "grad mode", DOUBLE, f"f({A})\nwith torch.no_grad():\n    f({A})", "on", "off",
        fixed_calls=f"with torch.no_grad():\n    f({A})\n    f({A})", word="same grad mode",
    ),
    Again(
        "autocast", "autocast", DOUBLE, f"f({A})\nwith torch.autocast('cpu'):\n    f({A})", "off", "on",
        fixed_calls=f"with torch.autocast('cpu'):\n    f({A})\n    f({A})", word="same autocast",
    ),
    Again(
        "default dtype", "the default dtype", DOUBLE,
        f"x = {A}\nf(x)\ntorch.set_default_dtype(torch.float64)\ntry:\n    f(x)\n"
        "finally:\n    torch.set_default_dtype(torch.float32)",
        "6", "7", fixed_calls=each(A, A), word="once",
    ),
    Again(
        "torch setting", "deterministic algorithms", DOUBLE,
        f"f({A})\ntorch.use_deterministic_algorithms(True)\ntry:\n    f({A})\n"
        "finally:\n    torch.use_deterministic_algorithms(False)",
        "off", "on", fixed_calls=each(A, A), word="once",
    ),
    Again(
        "number", "n", SCALED, each(f"{A}, 3", f"{A}, 4"), "the int 3", "the int 4",
        fixed_calls=each(f"{A}, torch.tensor(3)", f"{A}, torch.tensor(4)"), options={"dynamic": True},
        word="torch.tensor(n)",
    ),
    Again(
        "number", "n", SCALED, each(f"{A}, 3.5", f"{A}, 4.5"), "the float 3.5", "the float 4.5",
        fixed_calls=each(f"{A}, torch.tensor(3.5)", f"{A}, torch.tensor(4.5)"), options={"dynamic": True},
        word="tensor",
    ),
    Again(
        "flag", "on", "def f(x, on):\n    return x * 2 if on else x * 3\n", each(f"{A}, True", f"{A}, False"),
        "True", "False", fixed="def f(x, on):\n    return torch.where(on, x * 2, x * 3)\n",
        fixed_calls=each(f"{A}, torch.tensor(True)", f"{A}, torch.tensor(False)"), word="torch.where",
    ),
    Again(
        "flag", "mask", "def f(x, mask=None):\n    return x * 2 if mask is None else x * mask\n",
        each(A, f"{A}, {A}"), "None", "a Tensor of float32, 4×8",
        fixed_calls=each(f"{A}, torch.ones(4, 8)", f"{A}, {A}"), word="`mask`",
    ),
    Again(
        "string", "kind", "def f(x, kind):\n    return x * 2 if kind == 'a' else x * 3\n",
        each(f"{A}, 'a'", f"{A}, 'b'"), "the str 'a'", "the str 'b'",
        fixed="def f(x, kind):\n    return x * kind\n",
        fixed_calls=each(f"{A}, torch.tensor(2)", f"{A}, torch.tensor(3)"), word="number",
    ),
    Again(
        "value", "dtype", "def f(x, dtype):\n    return x.to(dtype)\n",
        each(f"{A}, torch.float64", f"{A}, torch.float16"), "torch.float64", "torch.float16",
        fixed_calls=each(f"{A}, torch.float64", f"{A}, torch.float64"), word="same value",
    ),
    Again(
        "length", "xs", "def f(xs):\n    return sum(xs)\n", each(f"[{A}] * 2", f"[{A}] * 3"),
        "2 items", "3 items",
        fixed="def f(xs):\n    return xs.sum(0)\n",
        fixed_calls=each(f"torch.stack([{A}] * 2 + [{A} * 0])", f"torch.stack([{A}] * 3)"), word="torch.stack",
    ),
    Again(
        "length", "d", "def f(d):\n    return sum(d.values())\n", each(f"{{'a': {A}}}", f"{{'a': {A}, 'b': {A}}}"),
        "1 item", "2 items", fixed_calls=each(f"{{'a': {A}}}", f"{{'a': {A}}}"), word="number of items",
    ),
    Again(
        "type", "n", SCALED, each(f"{A}, 3", f"{A}, 4", f"{A}, 4.5"), "a int", "the float 4.5",
        fixed_calls=each(f"{A}, 3.0", f"{A}, 3.0", f"{A}, 3.0"), word="same type",
    ),
    Again(
        "type", "xs", "def f(xs):\n    return xs[0] + xs[1]\n", each(f"[{A}, {A}]", f"({A}, {A})"),
        "a list", "a tuple of 2",
        fixed_calls=each(f"[{A}, {A}]", f"[{A}, {A}]"), word="same type",
    ),
    Again(
        "type", "n", SCALED, each(f"{A}, torch.tensor(3)", f"{A}, 3"), "a Tensor", "the int 3",
        fixed_calls=each(f"{A}, torch.tensor(3)", f"{A}, torch.tensor(3)"), word="same type",
    ),
    Again(
        "function", "g", "def f(x, g):\n    return g(x)\n", each(f"{A}, lambda v: v * 2", f"{A}, lambda v: v * 3"),
        "a function", "a function", fixed_calls=f"g = lambda v: v * 2\nf({A}, g)\nf({A}, g)", word="Make it once",
    ),
    Again(
        "closure", "g's k", "def f(x, g):\n    return g(x)\ndef make(k):\n    return lambda v: v * k\n",
        each(f"{A}, make(2)", f"{A}, make(3)"), "the int 2", "the int 3",
        fixed="def f(x, g):\n    return g(x)\ndef make(k):\n    return lambda v: v * k\n",
        fixed_calls=each(f"{A}, make(torch.tensor(2))", f"{A}, make(torch.tensor(3))"), word="tensor",
    ),
    Again(
        "global", "global SCALE", "SCALE = 2\ndef f(x):\n    return x * SCALE\n",
        f"f({A})\nnames['SCALE'] = 3\nf({A})", "the int 2", "the int 3",
        fixed="def f(x, scale):\n    return x * scale\n",
        fixed_calls=each(f"{A}, torch.tensor(2)", f"{A}, torch.tensor(3)"), word="`SCALE`",
    ),
    Again(
        "module attribute", "self.steps",
        "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.steps = 2\n"
        "    def forward(self, x):\n        self.steps += 1\n        return x * self.steps\nf = M()\n",
        each(A, A), "the int 2", "the int 3", options={"dynamic": True}, settings=True, word="register_buffer",
        fixed="class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('steps', torch.tensor(2))\n"
        "    def forward(self, x):\n        self.steps += 1\n        return x * self.steps\nf = M()\n",
    ),
    Again(
        "module attribute", "s.steps",
        "class M(nn.Module):\n    def __init__(s):\n        super().__init__()\n        s.steps = 2\n"
        "    def forward(s, x):\n        s.steps += 1\n        return x * s.steps\nf = M()\n",
        each(A, A), "the int 2", "the int 3", options={"dynamic": True}, settings=True, word="ints of modules",
    ),
    Again(
        "module attribute", "m.own['end']",
        "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.own = {'end': 2}\n"
        "    def forward(m, x):\n        m.own['end'] += 1\n        return x * m.own['end']\nf = M()\n",
        each(A, A), "the int 2", "the int 3", options={"dynamic": True}, settings=True, word="ints of modules",
    ),
    Again(
        "module attribute", "self.end",
        "class Cut:\n    def __init__(self):\n        self.end = 2\n"
        "    def cut(self, x):\n        self.end += 1\n        return x[:, :self.end] * 2\nf = Cut().cut\n",
        each(A, A), "the int 2", "the int 3", options={"dynamic": True}, word="end of a slice",
    ),
    Again(
        "equal sizes", "y and x", "def f(x, y):\n    return x.sum() + y.sum()\n", each(f"{A}, {A}", f"{A}, {B}"),
        "y.size(0) == x.size(0)", "no longer so", fixed_calls=each(f"{A}, {B}", f"{B}, {A}"),
        start={"dynamic": True}, settings=True, word="first call",
    ),
    Again(
        "aliasing", "", "def f(x, y):\n    x.add_(1)\n    return x + y\n",
        f"a, b = {A}, {A}\nf(a, b)\nf(a, a)", "different tensors", "the same tensor",
        fixed_calls=f"a, b = {A}, {A}\nf(a, b)\nf(a, a.clone())", word="clone",
    ),
    Again(
        "aliasing", "x and y", "def f(x, y):\n    x.add_(1)\n    return x + y\n",
        f"a, b = {A}, {A}\nf(a, a)\nf(a, b)", "the same object", "different ones",
        fixed_calls=f"a, b = {A}, {A}\nf(a, a.clone())\nf(a, b)", word="clone",
    ),
    Again(
        "length", "d['a']", "def f(d):\n    return sum(v for k, v in d.items() if k != 'z')\n",
        each(f"{{'a': {A}}}", f"{{'b': {A}}}"), "there", "gone",
        fixed_calls=each(f"{{'a': {A}}}", f"{{'a': {A}}}"), word="keys",
    ),
    Again(
        "training mode", "self.training",
        "class M(nn.Module):\n    def forward(self, x):\n        return x * 2 if self.training else x * 3\nf = M()\n",
        f"f({A})\nmodule.eval()\nf({A})", "True", "False",
        fixed_calls=f"module.eval()\nf({A})\nf({A})", word="model.eval()",
    ),
    Again(
        "module structure", "self.layers",
        "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layers = nn.ModuleList([nn.Linear(8, 8)])\n"
        "    def forward(self, x):\n        for layer in self.layers:\n            x = layer(x)\n        return x\n"
        "f = M()\n",
        f"f({A})\nmodule.layers.append(nn.Linear(8, 8))\nf({A})", "1 item", "2 items",
        fixed_calls=f"module.layers.append(nn.Linear(8, 8))\nf({A})\nf({A})", word="Build the module whole",
    ),
    Again(
        "shape", "x", DOUBLE, each(A, "torch.ones(1, 8)"), "4", "1",
        fixed_calls=f"x = {A}\ntorch._dynamo.decorators.mark_unbacked(x, 0)\nf(x)\nf(torch.ones(1, 8))",
        word="mark_unbacked(x, 0)",
    ),
    Again(
        "shape", "kwargs['x']", "def f(**kwargs):\n    return kwargs['x'] * 2\n", each(f"x={A}", f"x={B}"), "4", "6",
        options={"dynamic": True}, word="mark_dynamic(kwargs['x'], 0)",
    ),
    Again(
        "condition on sizes", "kwargs['x']", "def f(**kwargs):\n    return kwargs['x'] * 2\n",
        each(f"x={A}", f"x={B}", "x=torch.ones(1, 8)"), "2 <= kwargs['x'].size(0)", "no longer so",
        fixed_calls=f"x = {A}\ntorch._dynamo.decorators.mark_unbacked(x, 0)\nf(x=x)\nf(x={B})\nf(x=torch.ones(1, 8))",
        word="mark_unbacked(kwargs['x'], 0)",
    ),
    Again(
        "condition", "self.p", DROPS, f"for p in (0.1, 0.2, 0.3):\n    module.p = p\n    f({A})",
        "(1.0 + ((-1)*self.p)) == 0.8", "no longer so",
        fixed=DROPS.replace("torch.empty_like(x).bernoulli_(1 - self.p)", "(torch.rand_like(x) >= self.p)").replace(
            "    p = 0.0\n",
            "    def __init__(self):\n        super().__init__()\n        self.register_buffer('p', torch.ones(()))\n",
        ),
        fixed_calls=f"for p in (0.1, 0.2, 0.3):\n    module.p.fill_(p)\n    f({A})",
        word="as a tensor",
    ),
    Again(
        "flag", "cache.ready",
        "class Cache:\n    def __init__(self):\n        self.ready = False\ndef make():\n    return Cache()\n"
        "def f(x, cache):\n    return x * 2 if cache.ready else x * 3\n",
        f"cache = make()\nf({A}, cache)\ncache.ready = True\nf({A}, cache)", "False", "True",
        fixed_calls=f"cache = make()\ncache.ready = True\nf({A}, cache)\nf({A}, cache)", word="two compilations",
    ),
    Again(
        "global", "global config.kind",
        "class Config:\n    def __init__(self):\n        self.kind = None\nconfig = Config()\n"
        "def f(x):\n    return x * 2 if config.kind is None else x * 3\n",
        f"f({A})\nnames['config'].kind = 'b'\nf({A})", "None", "the str 'b'",
        fixed_calls=f"names['config'].kind = 'b'\nf({A})\nf({A})", word="before the first call",
    ),
    Again(
        "module attribute", "self.param_groups[0]['lr']", OPTIMIZES,
        "f()\nmodule.__self__.param_groups[0]['lr'] = 0.2\nf()", "the float 0.1", "the float 0.2",
        fixed=OPTIMIZES.replace("0.1", "torch.tensor(0.1)"),
        fixed_calls="f()\nmodule.__self__.param_groups[0]['lr'].fill_(0.2)\nf()", word="lr=torch.tensor",
    ),
    Again(
        "module structure", "self.scales", SCALES,
        f"f({A})\nmodule.scales.append(nn.Parameter(torch.ones(8)))\nf({A})", "1 item", "2 items",
        fixed_calls=f"module.scales.append(nn.Parameter(torch.ones(8)))\nf({A})\nf({A})", word="Build the module whole",
    ),
    Again(
        "requires_grad", "self.layer.bias", LINEAR, f"f({A})\nmodule.requires_grad_(False)\nf({A})", "True", "False",
        fixed_calls=f"module.requires_grad_(False)\nf({A})\nf({A})", word="freeze",
    ),
    Again(
        "shape", "self.layer.bias", LINEAR, f"f({A})\nmodule.layer = nn.Linear(8, 5)\nf({A})", "8", "5",
        fixed_calls=f"module.layer = nn.Linear(8, 5)\nf({A})\nf({A})", word="replace what a module holds",
    ),
    Again(
        "tensor", "x", DOUBLE, f"f({A})\nwith torch.inference_mode():\n    x = {A}\nf(x)",
        "not made in inference mode", "made in inference mode",
        fixed_calls=f"f({A})\nwith torch.inference_mode():\n    x = {A}\nf(x.clone())", word="clone",
    ),
    Again(
        "number of dimensions", "x", DOUBLE, f"n = {A}.numpy()\nf(n)\nf(n[0])", "4×8", "8",
        fixed_calls=f"n = {A}.numpy()\nf(n)\nf(n[:4])", word="unsqueeze",
    ),
    Again(
        "value", "names", "def f(x, names):\n    return x * 2 if 'a' in names else x * 3\n",
        each(f"{A}, {{'a'}}", f"{A}, {{'b'}}"), "with 'a'", "without 'a'",
        fixed="def f(x, doubled):\n    return torch.where(doubled, x * 2, x * 3)\n",
        fixed_calls=each(f"{A}, torch.tensor(True)", f"{A}, torch.tensor(False)"), word="tensor",
    ),
)  # fmt: skip
