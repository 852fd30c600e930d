"""Guards in plain words, and the arguments that they check."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from compiler.record.plain_text import pluralize

_SIZES = r"(?:(?:\d{1,19}|None)(?:, (?:\d{1,19}|None))*)?"
_TENSOR = re.compile(
    r"check_tensor\(.*, (?P<type>\w+), DispatchKeySet\((?P<keys>[^)]*)\), torch\.(?P<dtype>\w+), "
    r"device=(?P<device>\w+), requires_grad=(?P<grad>\w+), "
    rf"size=\[(?P<size>{_SIZES})\], stride=\[(?P<stride>{_SIZES})\]\)"
)
_TYPE = re.compile(r"type=<(?:class|enum) '(?P<type>[\w.<>]+)'>")
_EQUALS = re.compile(r".*? == (?P<value>.*)$", re.DOTALL)
_DEVICES = ("CUDA", "XPU", "MPS", "HPU", "Meta")
_KEY = re.compile(r"___dict_contains\(('[^']*'|[^,]*),|set\.__contains__\(.*?, ('[^']*'|[^,]*)\)(?:\s+#|$)")
_OWN = re.compile(r"\._(?:parameters|buffers)\['[^']+'\]$")
_CALLED = re.compile(r"^(self|fn|mod|module|model)\.")
_PARAMETRIZED = re.compile(r"\.parametrizations\.(\w+)\.original\d*$")
_OBJECT_ID = re.compile(r", \d{6,}\)")
_GENERATED = re.compile(r"G\['__(?:builtins_dict__|import_)")
UNNAMED = "an intermediate value"
"""Name shown for an unnamed value on Python's stack at a graph break, part of a larger expression."""
_VALUES = ("EQUALS_MATCH", "TRUE_MATCH", "FALSE_MATCH", "NONE_MATCH")
_ATTRIBUTE = re.compile(r"\._modules\['\w+'\]\.[a-zA-Z]\w*$")
_OF_PYTHON = re.compile(r"^G\['torch'\]|\btype\(|\.__(?:mro|defaults|kwdefaults|class|getattribute)__|__dict__\)")
_SWITCHES = {
    "grad_mode": "grad mode",
    "autocast_state": "autocast",
    "default_dtype": "the default dtype",
    "num_threads": "the number of threads",
    "deterministic_algorithms": "deterministic algorithms",
}
# The guard does not say which dtype a number in GLOBAL_STATE means.
_ON = {True: "on", False: "off"}


@dataclass(frozen=True, slots=True)
class TensorMatch:
    """A TENSOR_MATCH guard's requirements on a tensor. A symbolic size or stride is None."""

    dtype: str
    device: str
    requires_grad: bool
    size: tuple[int | None, ...]
    stride: tuple[int | None, ...]
    type: str

    def words(self, names: Sequence[str] = ()) -> str:
        """Describe the requirements in one line; `names` are the dimensions' symbolic sizes, "" if unnamed."""
        shape = shape_words(self.size, names)
        parts = [self.dtype, layout(self.size, self.stride), shape, f"on {self.device}"]
        return ", ".join(part for part in parts if part) + (", requires grad" if self.requires_grad else "")


def tensor_match(code: str) -> TensorMatch | None:
    """Parse a TENSOR_MATCH guard's code; None if its format is unknown."""
    found = _TENSOR.search(code)
    if found is None:
        return None
    keys = found["keys"].replace(" ", "").split(",")
    device = next((name.lower() for name in _DEVICES if name in keys), "cpu")
    index = f":{found['device']}" if found["device"] != "None" else ""
    size, stride = _numbers(found["size"]), _numbers(found["stride"])
    return TensorMatch(found["dtype"], device + index, found["grad"] == "True", size, stride, found["type"])


def _numbers(text: str) -> tuple[int | None, ...]:
    return tuple(None if part.strip() == "None" else int(part) for part in text.split(",") if part.strip())


def shape_words(size: tuple[int | None, ...], names: Sequence[str] = ()) -> str:
    called = [*names, *[""] * len(size)]
    shown = (called[n] or "?" if length is None else str(length) for n, length in enumerate(size))
    return "×".join(shown) or "no dimensions"


def layout(size: tuple[int | None, ...], stride: tuple[int | None, ...]) -> str:
    """Memory layout in words: "contiguous", or the strides; "" if it depends on symbolic sizes."""
    expected: int | None = 1
    same = True
    for length, step in zip(reversed(size), reversed(stride), strict=True):
        if step is None or expected is None:
            return "" if same else _strides(stride)
        same = same and (step == expected or length == 1)
        expected = None if length is None else expected * max(length, 1)
    return "contiguous" if same else _strides(stride)


def _strides(stride: tuple[int | None, ...]) -> str:
    return f"strides ({', '.join('?' if step is None else str(step) for step in stride)})"


def argument(source: str, owner: Any = None) -> str:
    """A guard's source as the user would write it: `x`, `self.drop.training`, `global SCALE`, `builtin len`.

    `owner` is the function with the closure, if the source is a closure variable.
    """
    name = _without_stores(source)
    if owner is not None and (found := re.search(r"\.__closure__\[(\d+)\]\.cell_contents", name)):
        name = name[: found.start()] + f"'s {owner.__code__.co_freevars[int(found[1])]}" + name[found.end() :]
    return _user_name(name)


@lru_cache(maxsize=4096)
def _without_stores(source: str) -> str:
    return re.sub(r"\.(?:_modules|_parameters|_buffers|__dict__)\['(\w+)'\]", r".\1", _without_dict(source))


@lru_cache(maxsize=4096)
def _user_name(name: str) -> str:
    name = re.sub(r"___from_numpy\(([^()]*)\)", r"\1", name)
    name = re.sub(r"^G\['__builtins_dict__\w*'\]\['(\w+)'\]", r"builtin \1", name)
    name = re.sub(r"^G\['__import_(\w+)'\]", lambda match: match[1].replace("_dot_", "."), name)
    name = re.sub(r"^G\['(\w+)'\]", r"global \1", name)
    name = re.sub(r"L\['___stack(\d+)'\]", UNNAMED, name)
    name = re.sub(r"L\['(\w+)'\]", r"\1", name)
    name = re.sub(r"list\(dict\.keys\((.*)\)\)\[(\d+)\]", r"key \2 of \1", name)
    name = re.sub(r"\.__closure__\[\d+\]\.cell_contents", "'s closure", name)
    return re.sub(r"\.(?:__code__|__func__|__wrapped__)\b", "", name)


def input_name(source: str) -> str:
    """Map `L['self']._modules['layer1']._parameters['weight']` to `layer1.weight`, `L['x']` to `x`.

    A parameter that torch.nn.utils.parametrize has replaced keeps its own name.
    """
    name = argument(source).removeprefix("global ")
    return _PARAMETRIZED.sub(r".\1", _CALLED.sub("", name)) if _OWN.search(source) else name


def quote(name: str) -> str:
    """An argument in backticks: `x`, global `SCALE`."""
    if name == UNNAMED:
        return name
    key, found, owner = name.partition(" of ")
    if found and key.startswith("key "):
        return f"{key} of {quote(owner)}"
    kind, found, rest = name.partition(" ")
    return f"{kind} `{rest}`" if found and kind in ("global", "builtin") else f"`{name}`"


def is_internal(kind: str, source: str, code: tuple[str, ...] = (), own: bool = False) -> bool:
    """Whether a guard checks internals of modules or of torch; there are many such guards, and few ever fail.

    `own` is whether a line of the user's code caused the guard.
    """
    if kind in ("TORCH_FUNCTION_MODE_STACK", "DEFAULT_DEVICE", "DIMENSION_DYNAMIC_MARKING_GUARD"):
        return True
    if kind == "LAMBDA_GUARD":
        return not any("L[" in part for part in code) or all(" is " in part for part in code)
    if source.endswith(".training") or (own and kind in _VALUES and _ATTRIBUTE.search(source)):
        return False
    if _GENERATED.search(source) or _OF_PYTHON.search(source):
        return True
    if kind == "ID_MATCH" and not source.startswith("L["):  # functions, modules and classes that code refers to
        return True
    return bool(re.search(r"\._modules\b|\._parameters\b|\._buffers\b|\.__dict__$|hooks", _without_dict(source)))


def _without_dict(source: str) -> str:
    """A source with `._modules` in place of `.__dict__['_modules']`, and likewise for parameters and buffers.

    Torch uses `__dict__` for modules that set attributes in forward.
    """
    return re.sub(r"\.__dict__\['(_modules|_parameters|_buffers)'\]", r".\1", source)


@dataclass(frozen=True, slots=True)
class SymbolNames:
    """Names of symbolic sizes and numbers, by source (`L['x'].size()[0]`).

    `all` maps a source to its symbol, or to the number that it was specialized to. `own` has only the first source of
    each symbol, and no specialized symbols.
    """

    all: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)

    def sizes(self, source: str, count: int) -> list[str]:
        return [self.all.get(f"{source}.size()[{n}]", "") for n in range(count)]

    def symbols(self, kind: str, source: str, code: Sequence[str]) -> tuple[str, ...]:
        """Symbols that occur in a guard."""
        match = tensor_match(code[0]) if kind == "TENSOR_MATCH" and code else None
        open_sizes = {f"{source}.size()[{n}]" for n, length in enumerate(match.size) if length is None} if match else ()
        shown = [self.all[size] for size in sorted(open_sizes) if size in self.all]
        used = [self.own[size] for size in self.used_sources(code)]
        return tuple(dict.fromkeys(name for name in (*shown, *used) if name in self.own.values()))

    def used_sources(self, code: Sequence[str]) -> tuple[str, ...]:
        """Sources of symbols that occur in a guard's code."""
        return tuple(source for source in self.own if any(_whole_source(source).search(part) for part in code))


NO_SYMBOLS = SymbolNames()


def words(kind: str, source: str, code: tuple[str, ...], names: SymbolNames = NO_SYMBOLS) -> str:
    """Describe a guard in one sentence: '`x` is float32, contiguous, 8×64, on cpu'."""
    first = code[0] if code else ""
    if kind == "LAMBDA_GUARD":
        return _conditions(code, names)
    if kind == "GLOBAL_STATE":
        return _state_words(first)
    if kind in _FIXED:
        return _FIXED[kind]
    subject = quote(argument(source))
    if kind == "TENSOR_MATCH" and (match := tensor_match(first)):
        return f"{subject} is {match.words(names.sizes(source, len(match.size)))}"
    return f"{subject} {_PREDICATES.get(kind) or _predicate(kind, first)}"


def _conditions(code: Sequence[str], names: SymbolNames) -> str:
    """Describe conditions: '2 <= s77 <= 1024, where s77 is x.size(0)'; each symbol is defined once."""
    used = names.used_sources(code)
    found: dict[str, None] = {}
    for part in code:
        condition = part.split("  #", 1)[0]
        for source in used:
            condition = _whole_source(source).sub(names.own[source], condition)
        found[strip_brackets(plain(condition))] = None
    where = " and ".join(f"{names.own[source]} is {plain(source)}" for source in used)
    return " and ".join(found) + (f", where {where}" if where else "")


def strip_brackets(condition: str) -> str:
    """Remove torch's brackets around the left side of a comparison."""
    return re.sub(r"^\(([^()]*)\) (==|!=|<|<=|>|>=) ", r"\1 \2 ", condition)


def _whole_source(source: str) -> re.Pattern[str]:
    """Pattern for a source that is not the prefix of a longer one."""
    return re.compile(re.escape(source) + r"(?![\[.\w])")


_FIXED = {
    "TORCH_FUNCTION_MODE_STACK": "the same torch function modes are active",
    "DEFAULT_DEVICE": "the default device is the same",
}
_PREDICATES = {
    "TRUE_MATCH": "is True",
    "FALSE_MATCH": "is False",
    "NONE_MATCH": "is None",
    "NOT_NONE": "is not None",
    "DIMENSION_DYNAMIC_MARKING_GUARD": "has the same dimensions marked as dynamic or static",
    "WEAKREF_ALIVE": "still exists",
    "ABSENT": "is there",
    "NOT_PRESENT_IN_GENERIC_DICT": "is not set on the object itself",
}


def _predicate(kind: str, code: str) -> str:
    if kind in ("LENGTH_CHECK", "DICT_LENGTH", "MAPPING_KEYS_CHECK") and (length := re.search(r"== (\d+)", code)):
        return f"has {pluralize(int(length[1]), 'item')}" if int(length[1]) else "is empty"
    if kind == "LENGTH_CHECK":
        return "is empty" if code.startswith("not ") else "is not empty"
    if kind in ("DICT_CONTAINS", "SET_CONTAINS") and (key := _KEY.search(code)):
        return f"has {'no ' if code.startswith('not ') else ''}{key[1] or key[2]}"
    if "HASATTR" in kind and (name := re.search(r", '([^']*)'\)", code)):
        return f"has {'no ' if kind == 'NO_HASATTR' or code.startswith('not ') else ''}attribute {name[1]}"
    if kind == "TYPE_MATCH" and (found := _TYPE.search(code)):
        return f"is of type {short_type(found['type'])}"
    if kind == "ID_MATCH":
        found = _TYPE.search(code)
        return f"is the same {short_type(found['type'])}" if found else "is the same object"
    if kind == "NO_TENSOR_ALIASING":
        return "is not the same tensor as any other"
    if code.startswith(("not L[", "not G[")):
        return "is empty"
    if found := _EQUALS.match(code):
        return f"is {value_words(found['value'])}"
    return f"satisfies {plain(code)}"


def short_type(name: str) -> str:
    last = name.rpartition(".")[2]
    return {"code": "function", "builtin_function_or_method": "builtin", "NoneType": "None"}.get(last, last)


def value_words(text: str) -> str:
    """Describe a literal: `3` is "the int 3"; return any other text unchanged."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return f"the {type(value).__name__} {value!r}" if isinstance(value, int | float | str) else repr(value)


def plain(condition: str) -> str:
    """A condition with the user's names, without comments and addresses."""
    text = _OBJECT_ID.sub(")", condition.split("  #", 1)[0].strip())
    text = re.sub(r"___as_tensor\(([^()]*)\)\.item\(\)", r"\1", text)  # torch 2.11 writes a float like this
    text = re.sub(r"\.(size|stride)\(\)\[(\d+)\]", r".\1(\2)", text)
    return re.sub(r"[LG]\['(\w+)'\](?:\.\w+(?:\['\w+'\])?)*", lambda match: argument(match[0]), text)


def state_of(code: str) -> dict[str, Any]:
    """Torch's global state that a GLOBAL_STATE guard requires; {} if it does not say, or is damaged in a log."""
    start = code.find("{")
    try:
        state = json.loads(code[start:]) if start >= 0 else {}
    except (ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) else {}


def switch_words(name: str, value: Any) -> str:
    """Describe the value of one entry of the global state."""
    if isinstance(value, bool):
        return _ON[value]
    if name == "autocast_state" and isinstance(value, dict):
        enabled = value.get("enabled", ())
        return _ON[any(enabled) if isinstance(enabled, list) else bool(enabled)]
    return str(value)


def switch_name(name: str) -> str:
    return _SWITCHES.get(name, name.replace("_", " "))


def _state_words(code: str) -> str:
    state = state_of(code)
    shown = [name for name in ("grad_mode", "autocast_state") if name in state]
    if not shown:
        return "torch's own settings are the same"
    told = (f"{switch_name(name)} is {switch_words(name, state[name])}" for name in shown)
    return ", ".join(told) + ", and torch's other settings are the same"
