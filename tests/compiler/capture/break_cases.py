"""Graph breaks of every common kind, as users write them."""

from __future__ import annotations

import sys

import torch

from tests.compiler.broken import TORCH, Broken

BUILTIN = "Failed to trace builtin operator"
SKIPPED = "Attempted to call function marked as skipped"
ITEM = "Unsupported Tensor.item() call with capture_scalar_outputs=False"
BRANCH = "Data-dependent branching"
SHAPE = "Dynamic shape operator"
METHOD = "Unsupported method call"
LOGGER = "logging.Logger method not supported for non-export cases"
DISABLED = "Skip calling `torch.compiler.disable()`d function"
PARAMETER = "Attempted to use `torch.nn.Parameter()` constructor with Dynamo"
DATA = "Data dependent operator"
# Python 3.12 takes a slice in one instruction.
SLICED = "return y[«:n»]" if sys.version_info < (3, 12) else "return «y[:n]»"
FINE = "def f(x):\n    return (x + 1) * 2\n"


def body(*lines: str, before: str = "", parameters: str = "x") -> str:
    """A function `f` that computes `y`, runs these lines, and returns a value that depends on `y`."""
    inside = "".join(f"    {line}\n" for line in lines)
    return f"{before}def f({parameters}):\n    y = x + 1\n{inside}    return y * 2\n"


CASES = (
    # Code that leaves the graph.
    Broken(BUILTIN, body('«print("mean", y.mean())»'), word="terminal"),
    Broken(BUILTIN, body('«print(f"mean {y.mean()} of {x.shape[0]}")»'), word="terminal"),
    Broken(BUILTIN, body('«print("{}", y, sep=",")»'), FINE, "terminal"),
    Broken(LOGGER, body('«log.info("mean %s", 3)»'), word="log"),
    Broken(LOGGER, body('«log.warning("hm")»'), word="log"),
    Broken(LOGGER, body('«log.warning_once("hm")»', before="import transformers\n"), word="log"),
    Broken("Unsupported python_type() call", body('«logging.warning("hm")»'), word="log"),
    Broken(SKIPPED, body('«warnings.warn("hm")»'), word="warning"),
    Broken(SKIPPED, body("start = «time.perf_counter()»"), FINE, "clock"),
    Broken(SKIPPED, body("«time.sleep(0)»"), FINE, "clock"),
    Broken(METHOD, body("now = «datetime.datetime.now()»"), FINE, "clock"),
    Broken(SKIPPED, body("«torch.save(y, stream)»", before="stream = io.BytesIO()\n"), FINE, "files"),
    Broken(BUILTIN, body("stream = «open(os.devnull)»"), FINE, "outside"),
    Broken(
        SKIPPED,
        body('there = «os.path.exists("/")»'),
        body(
            "there = exists()",
            before="@torch.compiler.assume_constant_result\ndef exists():\n    return os.path.exists('/')\n",
        ),
        "operating system",
    ),
    Broken(
        METHOD,
        body('text = «json.dumps({"a": 1})»'),
        body(
            "text = dumped()",
            before="@torch.compiler.assume_constant_result\ndef dumped():\n    return json.dumps({'a': 1})\n",
        ),
        "written in C",
    ),
    Broken(SKIPPED, body('name = «hashlib.md5(b"a")»'), FINE, "written in C"),
    Broken(SKIPPED, body("data = «pickle.dumps([1])»"), FINE, "outside"),
    Broken(SKIPPED, body("name = «uuid.uuid4()»"), FINE, "another name"),
    Broken(SKIPPED, body("frame = «sys._getframe()»"), FINE, "stack"),
    Broken(SKIPPED, body("«torch.set_num_threads(2)»"), FINE, "process"),
    Broken(SKIPPED, body("thread = «threading.get_ident()»"), FINE, "can't read"),
    # Random numbers.
    Broken(SKIPPED, body("y = y * «random.random()»"), word="tensor"),
    Broken(SKIPPED, body("y = y * «random.choice([1, 2])»"), body("y = y * torch.randint(1, 3, ())"), "random number"),
    Broken(SKIPPED, body("«torch.manual_seed(0)»"), FINE, "Seed before"),
    Broken(SKIPPED, body("state = «torch.get_rng_state()»"), FINE, "outside"),
    Broken(
        "Failed to convert args/kwargs to proxy",
        body("y = y + «torch.rand(4, generator=own)»", before="own = torch.Generator()\n"),
        body("y = y + torch.rand(4)"),
        "default generator",
    ),
    Broken(DATA, body("y = y * «np.random.uniform()»"), body("y = y * torch.rand(())"), "NumPy"),
    Broken(DATA, body("n = «np.random.rand(1).item()»", "y = y * n"), body("y = y * torch.rand(1)"), "NumPy"),
    # Numbers in tensors.
    Broken(ITEM, body("s = «y.sum().item()»", "y = y * s"), word="Stay in tensors"),
    Broken(ITEM, body("s = «float(y.sum())»", "y = y * s"), word="Stay in tensors"),
    Broken(ITEM, body("n = «int(y.sum())»", "y = y * n"), word="symbol"),
    Broken(ITEM, body("n = «x.long().sum().item()»", "y = y[:n]"), word="symbol"),
    Broken(
        ITEM,
        body("y = y * numbers[«y.long().sum().item()»]", before="numbers = list(range(99))\n"),
        body(
            "y = y * numbers.index_select(0, y.long().sum().unsqueeze(0))",
            before="numbers = torch.tensor(list(range(99)))\n",
        ),
        "index_select",
    ),
    Broken(
        "Tensor.tolist() with non-integer tensor", body("numbers = «y.tolist()»", "y = y * numbers[0]"), word="apart"
    ),
    Broken(DATA, body("numbers = «y.long().tolist()»", "y = y * numbers[0]"), word="symbols"),
    Broken(BRANCH, body("if «y.sum() > 0»:", "    y = y * 3", "else:", "    y = y - 1"), word="torch.where"),
    Broken(BRANCH, body("if «y.mean() > 0»:", "    y = y * 3"), word="torch.where"),
    Broken(BRANCH, body("if «0 < y.sum() < 99»:", "    y = y * 3"), word="torch.where"),
    Broken(BRANCH, body("if x is not None and «(y > 0).any()»:", "    y = y * 3"), word="torch.where"),
    Broken(BRANCH, body("if y is not None and «(y > 99).any()»:", "    raise ValueError"), word="Check it"),
    Broken(
        BRANCH,
        body("if (", "    len(x) > 2", "    and not («(y > 9).all()» or len(x) > 8)", "):", "    y = y * 3"),
        word="torch.where",
    ),
    Broken(BRANCH, body("y = y * 2 if «y.sum() > 0» else y * 3"), word="torch.where"),
    Broken(BRANCH, body("on = «(y.sum() > 0) and (y.mean() > 0)»", "y = y * on"), word="and"),
    Broken(
        BRANCH,
        body("leap = «calendar.isleap(y.sum())»", before="import calendar\n"),
        body("s = y.sum()", "leap = (s % 4 == 0) & ((s % 100 != 0) | (s % 400 == 0))"),
        "leads to this",
    ),
    Broken(BRANCH, body('assert «y.sum() > 0», f"{len(x)} numbers"'), word="inside the graph"),
    Broken(
        BRANCH,
        body("while «y.sum() < 100»:", "    y = y * 2"),
        body(
            "from torch._higher_order_ops import while_loop",
            "y, = while_loop(lambda v: v.sum() < 100, lambda v: (v * 2,), (y,))",
        ),
        "while_loop",
    ),
    Broken(
        BRANCH,
        body("if «y.sum() > 0»:", "    return y * 3"),
        "def f(x):\n    y = x + 1\n    return torch.cond(y.sum() > 0, lambda v: v * 3, lambda v: v * 2, (y,))\n",
        "torch.cond",
    ),
    Broken(DATA, body("off = «not (y.sum() > 0)»", "y = y * off"), word="truth", outcome="skipped"),
    Broken(DATA, body("same = «torch.equal(y, x)»", "y = y * same"), word="Compare inside"),
    Broken(DATA, body("same = «torch.allclose(y, x)»", "y = y * same"), word="Compare inside"),
    Broken(SHAPE, body("where = «torch.nonzero(y)»", "y = y * where.sum()"), word="symbol"),
    Broken(SHAPE, body("y = «y[y > 0]»"), word="symbol"),
    Broken(SHAPE, body("y = «torch.masked_select(y, y > 0)»"), word="Keep the size"),
    Broken(SHAPE, body("y = «torch.unique(y)»"), word="symbol"),
    Broken(
        BUILTIN,
        body("for _ in «range(y.long().sum())»:", "    y = y + 1"),
        body("for i in range(8):", "    y = torch.where(i < y.long().sum(), y + 1, y)"),
        "as often as a tensor says",
    ),
    Broken("sort with non-constant keys", body("low, high = «sorted([y[0], y[1]])»", "y = y * low"), word="Sort"),
    Broken("repr() on tensor", body("text = «repr(y)»"), FINE, "text"),
    # Gradients, parameters, modules.
    Broken(
        "Unsupported Tensor.backward() call",
        body("«(w * y).sum().backward()»", before="w = torch.ones(4, requires_grad=True)\n"),
        word="outside",
    ),
    Broken(
        "using `torch.autograd.grad` with `torch._dynamo.config.trace_autograd_ops=False`",
        body("slope = «torch.autograd.grad((w * y).sum(), w)»[0]", before="w = torch.ones(4, requires_grad=True)\n"),
        word="graph",
    ),
    Broken("setattr() on Tensor.requires_grad", body("«y.requires_grad» = True"), FINE, "leave it out"),
    Broken("requires_grad_() intermediate leaked as output", body("«y.requires_grad_()»"), FINE, "returns"),
    Broken("Failed to mutate tensor data attribute", body("«y.data» = x * 3"), word="Copy"),
    Broken("Unsupported Tensor.resize_() call", body("«y.resize_(2)»"), body("y = y[:2]"), "slice"),
    Broken(PARAMETER, body("p = «nn.Parameter(torch.ones(4))»", "y = y * p"), word="__init__"),
    Broken(
        PARAMETER,
        body("y = «nn.Linear(4, 4)»(y)"),
        body("y = layer(y)", before="layer = nn.Linear(4, 4)\n"),
        "on every call",
    ),
    Broken(
        "Attempted to wrap RNN, GRU, or LSTM",
        body("y = «layer(y)»[0]", before="layer = nn.LSTM(4, 4)\n"),
        word="recurrent",
        args=(torch.ones(2, 1, 4),),
        outcome="resumed" if TORCH >= "2.15" else "skipped",
    ),
    Broken(
        "Attempted to wrap sparse Tensor with VariableTracker",
        body("sparse = «y.to_sparse()»"),
        FINE,
        "dense",
    ),
    Broken("Attempted to copy.deepcopy a tensor", body("y = «copy.deepcopy(y)»"), word="clone"),
    Broken(
        "Attempted to copy.deepcopy a tensor",
        body("y = «copy.deepcopy(layer)»(y)", before="layer = nn.Linear(4, 4)\n"),
        body("y = layer(y)", before="layer = copy.deepcopy(nn.Linear(4, 4))\n"),
        "outside",
    ),
    Broken(
        "torch.* op returned non-Tensor",
        body("«layer.load_state_dict(layer.state_dict())»", before="layer = nn.Linear(4, 4)\n"),
        FINE,
        "outside",
    ),
    Broken("Unhandled args for method", body("«y.share_memory_()»"), FINE, "memory"),
    # Functions and libraries.
    Broken(
        "Attempted to inline function marked as skipped",
        body("y = «scaler.scale(y)»", before="scaler = torch.amp.GradScaler('cpu')\n"),
        FINE,
        "training loop",
    ),
    Broken(
        "Attempted to inline function marked as skipped",
        "optimizer = torch.optim.SGD([torch.ones(4, requires_grad=True)])\n"
        "schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, float)\n" + body("«schedule.step()»"),
        FINE,
        "schedule",
    ),
    Broken(
        "torch.* op returned non-Tensor",
        body("with «torch.backends.cudnn.flags(enabled=False)»:", "    y = y + 1"),
        FINE,
        "whole library",
    ),
    Broken("Call to `torch._dynamo.graph_break()`", body("«torch._dynamo.graph_break()»"), word="out"),
    Broken(
        "Call to `torch._dynamo.graph_break()`",
        "w = torch.ones(4, requires_grad=True)\noptimizer = torch.optim.SGD([w])\n" + body("«optimizer.step()»"),
        FINE,
        "optimizer.step",
    ),
    Broken(
        DISABLED,
        body("y = «twice(y)»", before="@torch.compiler.disable\ndef twice(v):\n    return v * 2\n"),
        body("y = twice(y)", before="def twice(v):\n    return v * 2\n"),
        "decorator",
    ),
    Broken(DISABLED, body("g = «torch.jit.trace(lambda v: v * 2, y)»", "y = g(y)"), FINE, "another compiler"),
    Broken(
        "attempted to trace numpy function unsupported by PyTorch",
        body("y = torch.from_numpy(«np.interp(y.numpy(), [0, 9], [0, 1])»)"),
        "@torch.library.custom_op('broken::interp', mutates_args=())\n"
        "def interp(v: torch.Tensor) -> torch.Tensor:\n"
        "    return torch.from_numpy(np.interp(v.numpy(), [0, 9], [0, 1]))\n"
        "@interp.register_fake\n"
        "def _(v):\n"
        "    return torch.empty_like(v, dtype=torch.float64)\n" + body("y = interp(y)"),
        "custom_op",
    ),
    Broken(
        "Unsupported ndarray method call",
        body("data = «a.tobytes()»", before="a = np.ones(3)\n"),
        FINE,
        "NumPy",
    ),
    Broken(
        "Attempted to inline function marked as skipped",
        body("loader = «torch.utils.data.DataLoader([1, 2])»"),
        FINE,
        "told not to read",
    ),
    Broken(
        "RuntimeError when making fake tensor call",
        "@torch.library.custom_op('broken::unknown', mutates_args=())\n"
        "def unknown(v: torch.Tensor) -> torch.Tensor:\n    return v * 2\n" + body("y = «unknown(y)»"),
        "@torch.library.custom_op('broken::known', mutates_args=())\n"
        "def known(v: torch.Tensor) -> torch.Tensor:\n    return v * 2\n"
        "@known.register_fake\ndef _(v):\n    return torch.empty_like(v)\n" + body("y = known(y)"),
        "register_fake",
        outcome="error",
    ),
    Broken(
        "TypeError when making fake tensor call",
        body("try:", "    y = «torch.sin(y, y)»", "except TypeError:", "    pass"),
        body("y = torch.sin(y)"),
        "fix that",
        outcome="skipped",
    ),
    # Python itself.
    Broken(BUILTIN, body("names = «globals()»"), FINE, "names"),
    Broken(BUILTIN, body('«exec("z = 1")»'), FINE, "ahead"),
    Broken(BUILTIN, body("mark = «object()»"), body("m = mark", before="mark = object()\n"), "once"),
    Broken(BUILTIN, body("data = «bytearray(3)»"), FINE, "does not follow"),
    Broken(
        "Invalid call to __build_class__", body("«class Own:", "    pass»"), "class Own:\n    pass\n" + FINE, "outside"
    ),
    Broken(
        "Unsupported context manager",
        body("with «lock»:", "    y = y * 2", before="lock = threading.Lock()\n"),
        FINE,
        "around the call",
        outcome="skipped",
    ),
    Broken(
        "unsupported contextlib.* API",
        body("manager = «contextlib.redirect_stdout(stream)»", before="stream = io.StringIO()\n"),
        FINE,
        "around the call",
    ),
    Broken(
        "Missing tp_iternext",
        body("y = y * «next(numbers)»", before="numbers = iter([1, 2, 3])\n"),
        body("y = y * numbers[0]", before="numbers = [1, 2, 3]\n"),
        "iterator",
    ),
    Broken(
        "missing tp_iter",
        body("for line in «lines»:", "    y = y + 1", before="lines = io.StringIO('a')\n"),
        body("for line in lines:", "    y = y + 1", before="lines = list(io.StringIO('a'))\n"),
        "list",
        outcome="skipped",
    ),
    Broken(
        "missing_mp_subscript",
        body("y = y * «numbers[0]»", before="numbers = array.array('i', [1, 2])\n"),
        body("y = y * numbers[0]", before="numbers = [1, 2]\n"),
        "indexes",
    ),
    Broken(
        "missing_mp_ass_subscript",
        body("«numbers[0]» = 3", before="numbers = array.array('i', [1, 2])\n"),
        body("numbers[0] = 3", before="numbers = [1, 2]\n"),
        "indexes",
    ),
    Broken("Unsupported hasattr call", body('there = «hasattr(log, "level")»'), FINE, "object"),
    Broken(
        "invalid call to builtin op handler",
        body("y = «min([x, y], key=lambda v: v.sum())»"),
        body("y = torch.minimum(x, y)"),
        "torch.minimum",
    ),
    Broken(
        "vectorcall_maybe on C method descriptor",
        body("later = «day + hour»", before="day, hour = datetime.datetime(2020, 1, 1), datetime.timedelta(hours=1)\n"),
        FINE,
        "written in C",
        outcome="skipped",
    ),
    Broken(
        "Unsupported function call",
        body("hour = «datetime.timedelta(hours=1)»"),
        FINE,
        "can't read",
    ),
    Broken("Observed exception", body('y = y * «len(f"{y}")»'), FINE, "fix that", outcome="skipped"),
    # The outcome depends on where the break is.
    Broken(
        BUILTIN,
        body("for i in range(3):", "    y = y * 2", "    «print(i)»"),
        word="terminal",
        outcome="skipped",
        consequence="graph break in loop",
    ),
    Broken(
        BUILTIN,
        body("try:", "    «print(1)»", "except ValueError:", "    y = y - 1"),
        word="terminal",
        outcome="skipped",
    ),
    Broken(BUILTIN, body("with torch.no_grad():", "    «print(1)»"), word="terminal"),
    Broken(
        BUILTIN,
        "@contextlib.contextmanager\ndef own():\n    yield\n" + body("with own():", "    «print(1)»"),
        word="terminal",
        outcome="skipped",
        consequence="Graph break under GenericContextWrappingVariable",
    ),
    Broken(ITEM, body("n = torch.tensor(2)", SLICED), word="symbol", outcome="plain"),
    # Through calls.
    Broken(
        BUILTIN,
        "def inner(v):\n    w = v * 3\n    «print(1)»\n    return w\n" + body("y = inner(y)"),
        word="terminal",
        calls=("inner(y)", "print(1)"),
    ),
    Broken(
        ITEM,
        "class Layer(nn.Module):\n    def forward(self, v):\n        return v * «v.max().item()»\n"
        "layer = Layer()\n" + body("y = layer(y)"),
        word="tensors",
        calls=("layer(y)", "v.max().item()"),
    ),
    # Columns count characters, not bytes; an expression may take more than one line.
    Broken(ITEM, body('text = "äöü→"; y = y * «y.sum().item()»'), word="tensors"),
    Broken(SHAPE, body("where = «torch.nonzero(", "        y,", "    )»", "y = y * where.sum()"), word="symbol"),
)
