"""The programs of the exercises. Several exercises ask about one program, so that it is explored once."""

from __future__ import annotations

from typing import Final

from explorer.teach.exercise import Program

_PROGRAMS: dict[tuple[str, ...], dict[str, str]] = {
    ("captured",): {
        "linear": """\
def f(x, w, b):
    h = x @ w + b
    h = torch.relu(h)
    return h.sum(dim=0)

f(torch.randn(4, 8), torch.randn(8, 3), torch.randn(3))
""",
        "python": """\
def f(x, n):
    y = x
    for i in range(n):
        if i % 2 == 0:
            y = y * 3
    sizes = {"rows": len(x)}
    return y + sizes["rows"]

f(torch.randn(5, 2), 4)
""",
        "prints": """\
def f(x):
    y = x.sin()
    print("y has", y.ndim, "dimensions")
    z = y.cos()
    return z + 1

f(torch.randn(3, 7))
""",
        "branch": """\
def f(x):
    total = x.sum()
    if total > 0:
        return x * 2
    return x - 1

f(torch.ones(4))
""",
        "nested": """\
def largest(x):
    top = x.max()
    return top.item()

def f(x):
    y = x.relu()
    y = y / largest(y)
    if y.ndim == 2:
        y = y.t()
    return y + 1

f(torch.ones(4, 2))
""",
        "sizes": """\
def f(x, scale):
    return (x * scale).relu()

for size in (4, 6, 8, 9):
    f(torch.randn(size, 2), 2.0)
""",
        "flag": """\
def f(x, keep):
    y = x.exp()
    return y if keep else y * 0.5

for keep in (True, False, True, False):
    f(torch.randn(4), keep)
""",
        "dtypes": """\
def f(x, y):
    return x + y

y = torch.ones(3)
f(torch.ones(3), y)
f(torch.ones(3, dtype=torch.float64), y)
f(torch.zeros(3), y)
""",
        "numbers": """\
def f(x, n):
    whole = n // 2
    half = n / 2
    small = x < 0.5
    mixed = x + n
    return whole, half, small, mixed

f(torch.rand(3, dtype=torch.float64), torch.tensor([3, 4, 5]))
""",
        "autocast": """\
def f(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = x @ w
        y = h + x
    return h, y

f(torch.randn(4, 4), torch.randn(4, 4))
""",
    },
    ("captured", "autograd", "joint", "forward", "backward", "inference"): {
        "square": """\
def f(x):
    return x * x + 3 * x

x = torch.tensor(2.0, requires_grad=True)
f(x).backward()
""",
        "paths": """\
def f(a, b, c):
    s = a + b
    return (s * a).sum() + c.sum()

a = torch.tensor([1.0, 2.0], requires_grad=True)
b = torch.tensor([3.0, 4.0], requires_grad=True)
c = torch.tensor([5.0, 6.0])
f(a, b, c).backward()
""",
        "detached": """\
def f(w, v):
    h = torch.relu(w) * 2
    return (h.detach() * v + w).sum()

w = torch.tensor([-1.0, 2.0], requires_grad=True)
v = torch.tensor([1.0, 3.0], requires_grad=True)
f(w, v).backward()
""",
    },
    (): {
        "mlp": """\
def f(x, w, v):
    h = torch.tanh(x @ w)
    return (h @ v).sum()

x = torch.randn(4, 8)
w = torch.randn(8, 16, requires_grad=True)
v = torch.randn(16, 2, requires_grad=True)
f(x, w, v).backward()
""",
        "softmax": """\
def f(x):
    return torch.softmax(x, dim=-1)

f(torch.randn(8, 256))
""",
        "chain": """\
def f(x, w):
    a = x * 2
    b = a.sin()
    c = b @ w
    d = c + 1
    e = d.relu()
    return e

f(torch.randn(32, 32), torch.randn(32, 32))
""",
        "normalize": """\
def f(x, y):
    a = x.exp()
    s = a.sum(dim=-1, keepdim=True)
    n = a / s
    m = y * 3
    return n, m

f(torch.randn(8, 64), torch.randn(5))
""",
        "broadcast": """\
def f(x, row):
    y = x + row
    z = y * y
    return z

f(torch.randn(64, 32), torch.randn(32))
""",
    },
    ("captured", "joint", "forward", "inference", "post_grad"): {
        "gelu": """\
def f(x):
    y = torch.nn.functional.gelu(x)
    z = torch.nn.functional.silu(x)
    return y + z

f(torch.randn(16, 16))
""",
        "passes": """\
def f(x):
    unused = x.cos()
    a = (x + 1).sin()
    b = (x + 1).sin()
    return a * b

f(torch.randn(6))
""",
    },
}
"""The code of each program, by the stages that its exercises need: fewer are faster, () is all."""

PROGRAMS: Final[dict[str, Program]] = {
    name: Program(name, code, stages) for stages, programs in _PROGRAMS.items() for name, code in programs.items()
}
