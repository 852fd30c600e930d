"""Mark each call in generated code for the profiler for the length of a block.

Functions of the generated module temporarily get code compiled from the same source with a profiler range around each
statement that calls a kernel. Kernels and everything else stay the module's own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import CodeType

from compiler.calls.versions import with_code
from compiler.inductor.kernels import WRAPPER_PARAMETERS, canonical
from compiler.record import Artifact
from compiler.timing.own_calls import own_calls
from compiler.torch_api import profiled
from compiler.torch_api.generated_modules import function_of, generated_modules

MARK = "tcompile call "
_OPERATION = profiled.__name__


@contextmanager
def mark_calls(artifacts: Iterable[Artifact]) -> Iterator[frozenset[str]]:
    """Put calls of the code of these artifacts (stage `kernels`) into profiler ranges for the length of a block.

    A range is named `MARK` and the id of the call's entity. Yields the ids of the artifacts whose code was found.
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
    """Code objects with marks of each function that calls kernels, by qualified name."""
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
    name = MARK + calls[statement.lineno]
    mark = ast.parse(f"__import__('{_OPERATION}', fromlist=['']).operation({name!r})", mode="eval")
    around = ast.With([ast.withitem(mark.body)], [statement])
    return ast.copy_location(around, statement)


def _all_codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _all_codes(constant)
