"""Guards in words, by argument, with module internals marked as such; symbolic sizes."""

from __future__ import annotations

import pytest
import torch

from compiler.capture.guard_words import argument, layout, plain
from compiler.engine import explore
from compiler.record import Guard, Record
from compiler.record.options import Options
from tests.compiler.broken import captured, function

X = torch.ones(8, 64)
MODULE = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.drop, self.k = nn.Linear(64, 64), nn.Dropout(), 2
    def forward(self, x):
        x = self.linear(x) * self.k
        return self.drop(x) if self.training else x
f = M()
"""
CASES = [
    ("def f(x):\n    return x * 2\n", (X,), "x", "`x` is float32, contiguous, 8×64, on cpu"),
    ("def f(x):\n    return x * 2 \n", (X.t(),), "x", "`x` is float32, strides (1, 64), 64×8, on cpu"),
    (
        "def f(x): return x * 2\n",
        (X.clone().requires_grad_(),),
        "x",
        "`x` is float32, contiguous, 8×64, on cpu, requires grad",
    ),
    (
        "def f(x): return x + 1\n",
        (torch.tensor(1, dtype=torch.int64),),
        "x",
        "`x` is int64, contiguous, no dimensions, on cpu",
    ),
    ("SCALE = 3\ndef f(x):\n    return x * SCALE\n", (X,), "global SCALE", "global `SCALE` is the int 3"),
    ("def f(x, n):\n    return x * n\n", (X, 2.5), "n", "`n` is the float 2.5"),
    ("def f(x, s):\n    return x * 2 if s == 'a' else x\n", (X, "a"), "s", "`s` is the str 'a'"),
    ("def f(x, m):\n    return x * 2 if m is None else x\n", (X, None), "m", "`m` is None"),
    ("def f(x, on):\n    return x * 2 if on else x\n", (X, True), "on", "`on` is True"),
    ("def f(xs):\n    return xs[0] + len(xs)\n", ([X, X],), "xs", "`xs` has 2 items"),
    ("def f(d):\n    return d['a'] + len(d)\n", ({"a": X},), "d", "`d` has 1 item"),
    ("def f(x, g):\n    return g(x)\n", (X, torch.nn.functional.relu), "g", "`g` is the same function"),
    ("def f(x, t):\n    return x.to(t)\n", (X, torch.float16), "t", "`t` is torch.float16"),
    (MODULE, (X,), "self.training", "`self.training` is True"),
    (MODULE + "\n", (X,), "self.k", "`self.k` is the int 2"),
    (
        "def f(x):\n    return x + 2\n",
        (X,),
        "",
        "grad mode is on, autocast is off, and torch's other settings are the same",
    ),
]


@pytest.mark.parametrize(("code", "args", "name", "words"), CASES, ids=[words for *_, words in CASES])
def test_guards_say_in_words_what_they_check(code: str, args: tuple, name: str, words: str) -> None:
    record = captured(code, args)
    assert (name, words) in [(guard.argument, guard.words) for guard in record.guards if not guard.internal]


@pytest.fixture(scope="module")
def module_record() -> Record:
    return captured(MODULE, (X,))


def test_module_internal_guards_are_marked(module_record: Record) -> None:
    shown = {guard.argument for guard in module_record.guards if not guard.internal}
    assert shown == {"", "x", "self", "self.k", "self.training", "self.drop.training"}
    hidden = {guard.argument for guard in module_record.guards if guard.internal}
    assert {"self.linear.weight", "self.linear.bias"} <= hidden


NESTED = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.drop, self.scale = nn.Linear(64, 64), nn.Dropout(0.25), 3
    def forward(self, x):
        return self.drop(self.linear(x)) * self.scale
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.table, self.act = Block(), {"p": 0.5}, torch.relu
    def forward(self, x, *rest, **named):
        x = self.act(self.block(x)) * self.table["p"]
        return x * rest[0] if len(rest) > 1 else x + named.get("bias", 0)
f = M()
"""


def test_attributes_read_by_user_code_are_not_internal() -> None:
    record = captured(NESTED, (X,))
    shown = {guard.words for guard in record.guards if not guard.internal and guard.argument}
    assert shown == {
        "`x` is float32, contiguous, 8×64, on cpu",
        "`self` is of type M",
        "`self.act` is the same builtin",
        "`self.table` is of type dict",
        "`self.table['p']` is the float 0.5",
        "`self.block.scale` is the int 3",
        "`self.block.drop.training` is True",
        "`rest` is of type tuple",
        "`rest` is empty",
        "`named` is of type dict",
        "`named` has no 'bias'",
    }
    hidden = {guard.words for guard in record.guards if guard.internal}
    assert {"`self._modules` is of type dict", "`self.block.drop.p` is the float 0.25"} <= hidden


CLOSURE = """
SCALE, TABLE, W = 3, {"a": 1}, torch.ones(64)
def make(k, steps):
    def inner(x, y):
        for step in steps:
            x = x * k + step
        return x * SCALE + y * TABLE["a"] + W
    return inner
f = make(2, [1, 2])
"""


def test_globals_and_closures_are_guarded_by_name() -> None:
    record = captured(CLOSURE, (X, X.clone()))
    shown = {guard.words for guard in record.guards if not guard.internal and guard.argument}
    assert shown == {
        "`x` is float32, contiguous, 8×64, on cpu",
        "`x` is not the same tensor as any other",
        "`y` is float32, contiguous, 8×64, on cpu",
        "`y` is not the same tensor as any other",
        "`k` is the int 2",
        "`steps` is of type list",
        "`steps` has 2 items",
        "`steps[0]` is the int 1",
        "`steps[1]` is the int 2",
        "global `SCALE` is the int 3",
        "global `TABLE` is of type dict",
        "global `TABLE['a']` is the int 1",
        "global `W` is float32, contiguous, 64, on cpu",
        "global `W` is not the same tensor as any other",
    }


def test_guard_names_the_line_that_required_it(module_record: Record) -> None:
    guard = next(guard for guard in module_record.guards if guard.argument == "self.training")
    source = module_record[f"source[{guard.file}]"]
    code = source.text.splitlines()[source.attrs["numbers"].index(guard.line)]
    assert code.strip().startswith("return self.drop(x) if self.training")


def test_words_hold_no_addresses(module_record: Record) -> None:
    assert not [guard.words for guard in module_record.guards if "0x" in guard.words or "___check" in guard.words]


def test_symbolic_size_has_a_hint_and_a_range() -> None:
    code = "def f(x):\n    torch._check(x.shape[0] <= 1024)\n    return x * 2\n"
    record = captured(code, (X,), dynamic=True)
    rows, columns = record.symbols
    assert (rows.source, rows.hint, rows.low, rows.high, rows.became) == ("x.size(0)", 8, 2, 1024, "")
    at_most = next(condition for condition in rows.conditions if not condition.default)
    assert (at_most.words, at_most.code) == (f"{rows.name} <= 1024", "torch._check(x.shape[0] <= 1024)")
    tensor = next(guard for guard in record.guards if guard.kind == "TENSOR_MATCH")
    assert tensor.words == f"`x` is float32, {rows.name}×{columns.name}, on cpu"
    assert tensor.symbols == (rows.name, columns.name)
    sizes = next(guard for guard in record.guards if guard.kind == "LAMBDA_GUARD" and guard.symbols)
    assert f"2 <= {rows.name} <= 1024" in sizes.words
    assert f"{rows.name} is x.size(0)" in sizes.words


SPECIALIZED = """
def inner(x):
    if x.shape[1] == 64:
        return x * 3
    return x
def f(x, scale):
    return inner(x) * scale
"""


def test_specialized_size_names_the_responsible_line() -> None:
    record = captured(SPECIALIZED, (X, 2.5), dynamic=True)
    columns = next(symbol for symbol in record.symbols if symbol.source == "x.size(1)")
    assert columns.became == "64"
    assert columns.specialized_by is not None
    assert (columns.specialized_by.function, columns.specialized_by.code) == ("inner", "if x.shape[1] == 64:")
    tensor = next(guard for guard in record.guards if guard.kind == "TENSOR_MATCH")
    rows = next(symbol for symbol in record.symbols if symbol.source == "x.size(0)")
    assert tensor.words == f"`x` is float32, contiguous, {rows.name}×64, on cpu"
    scale = next(symbol for symbol in record.symbols if symbol.source == "scale")
    assert (scale.hint, scale.low, scale.high) == (2.5, None, None)


def test_equal_sizes_share_one_symbol() -> None:
    record = captured("def f(x, y):\n    return x.sum() + y.sum()\n", (torch.ones(5), torch.ones(5)), dynamic=True)
    (size,) = record.symbols
    assert {size.source, *size.also} == {"x.size(0)", "y.size(0)"}


def test_each_guard_and_compilation_has_its_cost(module_record: Record) -> None:
    (frame,) = module_record.frames
    costs = {guard.kind: guard.seconds for guard in module_record.guards}
    assert costs.pop("NO_TENSOR_ALIASING", None) is None  # it remembers its input: it can't be called alone
    timed = {kind: seconds for kind, seconds in costs.items() if seconds is not None}
    assert {"TENSOR_MATCH", "TYPE_MATCH", "GLOBAL_STATE", "EQUALS_MATCH"} <= set(timed)
    assert all(seconds >= 0 for seconds in timed.values())
    assert frame.guard_seconds is not None
    assert frame.guard_seconds > 0


def test_guard_counts_the_calls_it_rejected() -> None:
    """The third call compiles nothing: the first call's code fits, and the second's is tried before it."""
    double, single = torch.ones(4, dtype=torch.float64), torch.ones(4)
    calls = [(single,), (double,), (single,)]
    with_calls = explore(function("def f(x):\n    return x * 2\n"), options=Options(stages=("captured",)), calls=calls)
    failed = {guard.words: guard.failed for guard in with_calls.record.guards if guard.failed}
    assert failed == {"`x` is float32, contiguous, 4, on cpu": 1, "`x` is float64, contiguous, 4, on cpu": 1}


def test_dict_length_guard_fails_together_with_others() -> None:
    code = "def f(d, x):\n    for v in d.values():\n        x = x + v\n    return x\n"
    a, b, single, double = torch.ones(4), torch.ones(4), torch.ones(4), torch.ones(4, dtype=torch.float64)
    calls = [({"a": a}, single), ({"a": a, "b": b}, double)]
    record = explore(function(code), options=Options(stages=("captured",)), calls=calls).record
    failed = {guard.words for guard in record.guards if guard.failed}
    assert failed == {"`d` has 1 item", "`x` is float32, contiguous, 4, on cpu"}
    assert {failure.cause for failure in record.recompiles[0].failures} == {"length", "dtype"}


def test_static_shapes_have_no_symbols(module_record: Record) -> None:
    assert module_record.symbols == ()


def test_assumptions_about_symbolic_sizes_are_listed() -> None:
    record = captured("def f(x):\n    return x.view(-1, 4) * 2\n", (X,), dynamic=True)
    conditions = [guard.words for guard in record.guards if guard.kind == "LAMBDA_GUARD" and not guard.internal]
    assert any("x.size(" in words for words in conditions)


def test_a_condition_on_two_arguments_is_of_neither() -> None:
    code = "def f(x, y):\n    return x * 2 if x.shape[0] > y.shape[0] else y * 3\n"
    record = captured(code, (torch.ones(8, 3), torch.ones(5, 3)), dynamic=True)
    conditions = {guard.argument: guard.words for guard in record.guards if guard.kind == "LAMBDA_GUARD"}
    assert "x.size(0)" in conditions[""]
    assert "y.size(0)" in conditions[""]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("L['x']", "x"),
        ("L['self']._modules['block']._parameters['weight']", "self.block.weight"),
        ("L['self'].__dict__['k']", "self.k"),
        ("G['__builtins_dict___3']['len']", "builtin len"),
        ("G['__import_torch_dot_nn_dot_functional'].relu", "torch.nn.functional.relu"),
        ("L['cache']['a'][0]", "cache['a'][0]"),
        ("L['fn'].__code__", "fn"),
        ("list(dict.keys(L['d']))[1]", "key 1 of d"),
    ],
)
def test_sources_are_named_as_the_user_wrote_them(source: str, name: str) -> None:
    assert argument(source) == name


def test_layouts_in_words() -> None:
    assert layout((2, 3), (3, 1)) == "contiguous"
    assert layout((2, 3), (1, 2)) == "strides (1, 2)"
    assert layout((1, 3), (99, 1)) == "contiguous"
    assert layout((None, 3), (3, 1)) == "contiguous"
    assert layout((2, None), (None, 1)) == ""


def test_conditions_are_shown_without_comments() -> None:
    assert plain("2 <= L['x'].size()[0]  # line 3 in f") == "2 <= x.size(0)"


def test_guard_round_trips_through_json() -> None:
    record = captured("def f(x):\n    return x * 2\n", (X,))
    assert Record.from_json(record.to_json()).guards == record.guards
    assert all(isinstance(guard, Guard) for guard in record.guards)
