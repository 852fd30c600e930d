"""Put kernel calls of generated code, and eager torch calls with their Python lines, in profiler ranges.

The functions of a generated module temporarily get code objects compiled from the same source, with a profiler range
around each statement that calls a kernel. Nothing else in the module changes. The generated functions of our
backend are identified by the calls that they make.
"""

from __future__ import annotations

import ast
import gc
import linecache
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from compiler.calls.versions import with_code
from compiler.inductor.kernels import WRAPPER_PARAMETERS, canonical
from compiler.record import Artifact
from compiler.timing.line_chains import Chain
from compiler.torch_api import profiled
from compiler.torch_api.generated_code import function_of, generated_modules

CALL_MARK = "tcompile call "
_OPERATION = profiled.__name__
_FILE = re.compile(r"<tcompile (\w+) (\d+)>")
_MADE = re.compile(r"(?:[\w\[\], ]+ = )?(launch\(\w+|\w+)")
Found = tuple[FunctionType, Sequence[str], Mapping[int, str]]
"""A function, its source lines, and the ids of its calls by line number."""
LINE_MARK = "tcompile line "


@contextmanager
def mark_calls(artifacts: Iterable[Artifact]) -> Iterator[frozenset[str]]:
    """Put kernel calls of these artifacts (stage `kernels`) into profiler ranges within a block.

    A range is named `CALL_MARK` plus the id of the call's entity. Yields ids of artifacts whose code is loaded.
    """
    wanted = {artifact.id: artifact for artifact in artifacts}
    found = set()
    with ExitStack() as stack:
        for module, source in generated_modules():
            for artifact in wanted.values():
                if canonical(source, artifact.graph).strip() == artifact.text.strip():
                    for name, code in _codes(artifact).items():
                        if (function := function_of(module, name)) is not None:
                            stack.enter_context(with_code(function, code))
                            found.add(artifact.id)
        for artifact, (function, lines, calls) in own_calls([*wanted.values()]):
            code = next(iter(_mark_source("\n".join(lines), calls, artifact.id).values()))
            stack.enter_context(with_code(function, code))
            found.add(artifact.id)
        yield frozenset(found)


def _codes(artifact: Artifact) -> Mapping[str, CodeType]:
    """Marked code objects of the functions that call kernels, by qualified name."""
    calls = {int(each.attrs["line"]): each.id for each in artifact.entities if each.kind in ("call", "extern")}
    return _mark_source(artifact.text, calls, artifact.id)


def _mark_source(source: str, calls: Mapping[int, str], name: str) -> Mapping[str, CodeType]:
    tree = ast.parse(source)
    names = dict(_marked_functions(tree, "", calls))
    module = compile(ast.fix_missing_locations(tree), f"<{name}, with marks>", "exec", dont_inherit=True)
    return {code.co_qualname: code for code in _all_codes(module) if code.co_qualname in names}


def _marked_functions(
    tree: ast.Module | ast.ClassDef, prefix: str, calls: Mapping[int, str]
) -> Iterator[tuple[str, ast.FunctionDef]]:
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef):
            yield from _marked_functions(statement, f"{statement.name}.", calls)
        elif isinstance(statement, ast.FunctionDef) and _is_wrapper(statement):
            statement.body = [_with_marks(each, calls) for each in statement.body]
            yield prefix + statement.name, statement


def _is_wrapper(function: ast.FunctionDef) -> bool:
    return [argument.arg for argument in function.args.args] in WRAPPER_PARAMETERS


def _with_marks(statement: ast.stmt, calls: Mapping[int, str]) -> ast.stmt:
    if isinstance(statement, ast.With | ast.If | ast.For):
        statement.body = [_with_marks(each, calls) for each in statement.body]
        if not isinstance(statement, ast.With):
            statement.orelse = [_with_marks(each, calls) for each in statement.orelse]
        return statement
    if statement.lineno not in calls:
        return statement
    name = CALL_MARK + calls[statement.lineno]
    mark = ast.parse(f"__import__('{_OPERATION}', fromlist=['']).operation({name!r})", mode="eval")
    around = ast.With([ast.withitem(mark.body)], [statement])
    return ast.copy_location(around, statement)


def _all_codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _all_codes(constant)


def own_calls(artifacts: Sequence[Artifact]) -> Iterator[tuple[Artifact, Found]]:
    """Match each artifact (stage `kernels`) to the newest of our backend's functions that makes its calls in order.

    On a GPU, a function's text may differ from the record's, which has each kernel's first configuration.
    """
    functions = _functions()
    for artifact in artifacts:
        wanted = _calls(artifact)
        for function, lines in functions:
            places = _places(lines, [made for _, made in wanted])
            if places and lines[1:2] == artifact.text.split("\n")[1:2]:
                functions.remove((function, lines))
                identities = (identity for identity, _ in wanted)
                yield artifact, (function, lines, dict(zip(places, identities, strict=True)))
                break


def _functions() -> list[tuple[FunctionType, Sequence[str]]]:
    found = [each for each in gc.get_objects() if type(each) is FunctionType and each.__name__ == "call"]
    named = [(each, match) for each in found if (match := _FILE.fullmatch(each.__code__.co_filename))]
    named.sort(key=lambda pair: -int(pair[1][2]))
    return [(each, [line.rstrip("\n") for line in linecache.getlines(match[0])]) for each, match in named]


def _calls(artifact: Artifact) -> list[tuple[str, str]]:
    """(entity id, callee) of each call, in order."""
    rows = artifact.text.split("\n")
    places = {int(each.attrs["line"]): each.id for each in artifact.entities if each.kind in ("call", "extern")}
    return [(places[line], _call_pattern(rows[line - 1])) for line in sorted(places)]


def _call_pattern(row: str) -> str:
    """The callee as text: `launch(kernel_sum` for a launch, `call_aten_mm_default` for an extern call."""
    match = _MADE.match(row.strip())
    return match[1] if match else ""


def _places(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Line numbers, from 1, of these calls in order; empty if they are not found."""
    asked = set(wanted)
    found = [(number, made) for number, row in enumerate(lines, 1) if (made := _call_pattern(row)) in asked]
    return [number for number, _ in found] if [made for _, made in found] == list(wanted) else []


class MarkedLines(TorchFunctionMode):
    """Puts each torch call into a profiler range named `LINE_MARK` plus an index into `chains`.

    A chain has lines of `files` (names in the record by path), up to the frame of `outermost`.
    """

    def __init__(self, files: Mapping[str, str], outermost: CodeType) -> None:
        super().__init__()
        self.chains: list[Chain] = []
        self._files = files
        self._outermost = outermost
        self._known: dict[Chain, int] = {}

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_getter(function):
            return function(*args, **(kwargs or {}))
        number = self._number(self._chain(sys._getframe(1)))
        with torch.profiler.record_function(f"{LINE_MARK}{number}"):
            return function(*args, **(kwargs or {}))

    def _number(self, chain: Chain) -> int:
        if chain not in self._known:
            self._known[chain] = len(self.chains)
            self.chains.append(chain)
        return self._known[chain]

    def _chain(self, frame: FrameType | None) -> Chain:
        lines: list[str] = []
        while frame is not None and frame.f_code is not self._outermost:
            if (name := self._files.get(frame.f_code.co_filename)) is not None:
                lines.append(line_id(name, frame.f_lineno))
            frame = frame.f_back
        return tuple(reversed(lines))


def line_id(name: str, number: int) -> str:
    """The id of a line's entity; `name` is the file's name in the record."""
    return f"source[{name}].L{number}"


def _is_getter(function: Callable[..., Any]) -> bool:
    """Whether a torch function only reads an attribute, such as `x.shape`, which takes no time."""
    return getattr(function, "__name__", "") == "__get__"
