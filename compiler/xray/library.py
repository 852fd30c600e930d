"""Sites in installed packages: override a package's function in the user's code, or write an issue for its authors.

A fix for a line of a package is tried on the package's own function, in memory. In the patch, the fix is an edited copy
of the function in the user's file, and a statement that replaces the package's function by the copy.
"""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import inspect
import itertools
import linecache
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from inspect import getattr_static
from types import FunctionType, ModuleType
from typing import Any

from compiler.calls.call import nested_codes
from compiler.capture.sources import imported_modules, is_installed, torch_folder
from compiler.capture.suggestions.case import nodes_around
from compiler.record import Environment, GraphBreak, Span, Suggestion
from compiler.record.break_facts import Place
from compiler.record.plain_text import one_line
from compiler.xray.substitution import Edit, edit_lines

MOST_HOLDERS = 4
"""Maximum number of modules in which a function is replaced."""
_DEFINED = re.compile(r"^def (\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to insert at the top of a file: imports, and statements after them."""

    imports: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()

    def __add__(self, other: Code) -> Code:
        gap = ("", "") if self.statements and other.statements else ()
        imports = tuple(dict.fromkeys((*self.imports, *other.imports)))
        return Code(imports, (*self.statements, *gap, *other.statements))


@dataclass(frozen=True)
class Override:
    """A package's function that the user's code can replace. `holders` are its places in packages, as `module:name`.

    If the package holds the function only inside a wrapper, `wrapper` is the place of the wrapper.
    """

    function: FunctionType
    definition: ast.FunctionDef
    holders: tuple[str, ...]
    wrapper: str = ""

    @property
    def name(self) -> str:
        """Name of the copy: `_norm_forward` for `Norm.forward`."""
        return "_" + self.function.__qualname__.replace(".", "_").lower().lstrip("_")

    def code(self, edits: Sequence[Edit], known: Mapping[str, Any], definitions: Sequence[str] = ()) -> Code | None:
        """Code that defines the edited copy and puts it in place; None if the copy would not mean the same.

        `known` are the globals of the user's module, `definitions` new functions that the copy calls. The copy replaces
        the function or, if that has a wrapper or too many holders, only the function's code object.
        """
        text, new = self._copy(edits), [found[1] for each in definitions if (found := _DEFINED.search(each))]
        is_held = bool(self.wrapper) or len(self.holders) > MOST_HOLDERS or self._is_held_elsewhere(known)
        whole = None if is_held else self._names_to_import([text, *definitions], new, known)
        names = self._names_to_import(definitions, new, known) if whole is None else whole
        defaults = self._names_to_import([text], new, known, _read_at_definition)
        if names is None or defaults is None:
            return None
        names = sorted({*names, *defaults})
        first, last = min(edit.line for edit in edits), max(edit.end_line for edit in edits)
        lines = f"line {first}" if first == last else f"lines {first} to {last}"
        module = self.function.__module__
        imports, put = self._put_code(new) if whole is None else self._put_function(known)
        modules = {name: value for name in names if isinstance(value := self._value(name), ModuleType)}
        imports += [f"import {value.__name__}" + ("" if value.__name__ == name else f" as {name}")
                    for name, value in modules.items()]  # fmt: skip
        own = [name for name in names if name not in modules]
        imports += [f"from {module} import {', '.join(own)}"] if own else []
        is_torch_missing = "torch" not in known and any("torch." in each for each in (text, *definitions))
        return Code(tuple(dict.fromkeys([*(["import torch"] if is_torch_missing else []), *imports])), (
            *(line for each in definitions for line in [*each.splitlines(), "", ""]),
            f"# {self.function.__qualname__} of {package_words(self.function)}, with {lines} changed for torch.compile",
            *text.splitlines(),
            "", "",
            *put,
        ))  # fmt: skip

    def _put_function(self, known: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """Imports, and statements that replace the function wherever it is held."""
        imports = dict.fromkeys(f"import {holder.partition(':')[0]}" for holder in self.holders)
        own = (f"{name} = {self.name}" for name, value in known.items() if value is self.function)
        return [*imports], [*(f"{holder.replace(':', '.')} = {self.name}" for holder in self.holders), *own]

    def _put_code(self, new: Sequence[str]) -> tuple[list[str], list[str]]:
        """Imports, and statements that replace the function's code, which uses the names of its own module."""
        module, where = self.function.__module__, (self.wrapper or self.holders[0]).replace(":", ".")
        imports = [*(["import inspect"] if self.wrapper else []), f"import {where.removesuffix(self._path)}"]
        owner = f"inspect.unwrap({where})" if self.wrapper else where
        added = [f"{module}.{name} = {name}" for name in new]
        return [*imports, *([f"import {module}"] if added else [])], [
            *added, f"{owner}.__code__ = {self.name}.__code__  # runs with the names of {module}"
        ]  # fmt: skip

    @property
    def _path(self) -> str:
        """The function's place in its module, after the module's name: `.Norm.forward`."""
        return "." + (self.wrapper or self.holders[0]).partition(":")[2]

    def _names_to_import(
        self, texts: Sequence[str], new: Sequence[str], known: Mapping[str, Any],
        names_of: Callable[[str], set[str] | None] | None = None,
    ) -> list[str] | None:  # fmt: skip
        """Globals of the package that functions need; None if a name means something else in the user's module."""
        found = [(names_of or _globals_of)(text) for text in texts]
        wanted = {name for names in found for name in names or ()} - {*new}
        if None in found or any(name in known and known[name] is not self._value(name) for name in wanted):
            return None
        names = sorted(name for name in wanted if name not in known and name != "torch" and not hasattr(builtins, name))
        return names if all(name in self.function.__globals__ for name in names) else None

    def _is_held_elsewhere(self, known: Mapping[str, Any]) -> bool:
        """Whether another module of the user has imported the function."""
        others = (vars(module) for module in _modules() if not is_installed(vars(module).get("__file__") or "<none>"))
        return any(value is self.function for own in others if own is not known for value in list(own.values()))

    def _value(self, name: str) -> Any:
        return self.function.__globals__.get(name, getattr(builtins, name, None))

    def _copy(self, edits: Sequence[Edit]) -> str:
        """The edited source of the function, under its new name."""
        file = self.function.__code__.co_filename
        text, origin = edit_lines(linecache.getlines(file), edits)
        first, last = self.definition.lineno, self.definition.end_lineno or self.definition.lineno
        own = [line for line, number in zip(text, origin, strict=True) if first <= number <= last]
        own[0] = own[0].replace(f"def {self.definition.name}", f"def {self.name}", 1)
        return without_annotations(textwrap.dedent("".join(own)))


def override_at(place: Place, functions: Iterable[FunctionType]) -> Override | None:
    """The package's function around a place, if a copy in the user's code can replace it; None if not.

    Functions with closure variables (`super()` needs one) or strings over several lines, whose indentation would
    change, can't be replaced.
    """
    around = nodes_around(place)
    defined = next((node for node in around if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)), None)
    if not isinstance(defined, ast.FunctionDef) or _is_bound_to_its_place(defined):
        return None
    key = (defined.name, min([defined.lineno, *(node.lineno for node in defined.decorator_list)]))
    function = next((each for each in functions if (each.__code__.co_name, each.__code__.co_firstlineno) == key), None)
    if function is None or function.__code__.co_freevars or "<locals>" in function.__qualname__:
        return None
    holders = tuple(_holders(function, lambda value: value is function))
    wrappers = [] if holders else list(_holders(function, lambda value: _is_wrapper_of(value, function)))
    found = Override(function, defined, holders, next(iter(wrappers), ""))
    return found if holders or wrappers else None


def _is_wrapper_of(value: Any, function: FunctionType) -> bool:
    return isinstance(value, FunctionType) and inspect.unwrap(value) is function


def _is_bound_to_its_place(defined: ast.FunctionDef) -> bool:
    """Whether a function declares globals, uses private names (`__x`), or has strings over several lines."""
    for node in ast.walk(defined):
        if isinstance(node, ast.Global):
            return True
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name.startswith("__") and not name.endswith("__"):
            return True
        if not isinstance(node, ast.JoinedStr | ast.Constant) or node is _doc_node(defined):
            continue
        if node.lineno != node.end_lineno:
            return True
    return False


def _doc_node(defined: ast.FunctionDef) -> ast.expr | None:
    first = defined.body[0]
    return first.value if isinstance(first, ast.Expr) else None


def _holders(function: FunctionType, is_held: Callable[[Any], bool]) -> Iterator[str]:
    """Yield the places that hold a function, as `module:name`: its class, or all installed modules that have it."""
    module, (*owners, name) = sys.modules.get(function.__module__), function.__qualname__.split(".")
    if owners:
        owner: Any = module
        for each in owners:
            owner = getattr(owner, each, None)
        if owner is not None and is_held(getattr_static(owner, name, None)):
            yield f"{function.__module__}:{function.__qualname__}"
        return
    for other in _modules():
        if is_installed(vars(other).get("__file__") or "<none>"):
            yield from (f"{other.__name__}:{key}" for key, value in list(vars(other).items()) if is_held(value))


def _modules() -> Iterator[ModuleType]:
    """Yield the imported modules that have a file, and `__main__`."""
    for name, module in imported_modules().items():
        if name == "__main__" or isinstance(vars(module).get("__file__"), str):
            yield module


def _globals_of(text: str) -> set[str] | None:
    """Names of the globals that a function reads; None if its source does not compile."""
    return _names_read(text, "LOAD_GLOBAL")


def _read_at_definition(text: str) -> set[str] | None:
    """Names that a function reads when it is defined, in its default values; None if its source does not compile."""
    return _names_read(text, "LOAD_NAME")


def _names_read(text: str, instruction: str) -> set[str] | None:
    try:
        codes = list(nested_codes(compile(text, "<tcompile copy>", "exec", dont_inherit=True)))
    except SyntaxError:
        return None
    return {str(each.argval) for code in codes for each in dis.get_instructions(code) if each.opname == instruction}


def without_annotations(text: str) -> str:
    """The source of a function without annotations of its parameters and its result, whose names may be unknown."""
    function = ast.parse(text).body[0]
    assert isinstance(function, ast.FunctionDef)
    data = text.encode()
    starts = [0, *itertools.accumulate(map(len, data.splitlines(keepends=True)))]

    def end_of(node: ast.expr) -> int:
        return starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    own = (each for each in ast.walk(function.args) if isinstance(each, ast.arg))
    cuts = [
        (starts[each.lineno - 1] + each.col_offset + len(each.arg.encode()), each.annotation)
        for each in own
        if each.annotation is not None
    ]
    if function.returns is not None:
        before = data[: starts[function.returns.lineno - 1] + function.returns.col_offset]
        cuts.append((len(before[: before.rindex(b"->")].rstrip()), function.returns))
    for start, annotation in sorted(cuts, key=lambda cut: -cut[0]):
        rest = data[end_of(annotation) :]
        is_default = rest.startswith(b" = ") and annotation is not function.returns
        data = data[:start] + (b"=" + rest[3:] if is_default else rest)
    return data.decode() if _names_read(data.decode(), "LOAD_NAME") is not None else text


def in_your_code(item: Suggestion, override: Override) -> Suggestion:
    """Add to a suggestion for a line of a package that the patch makes the change in a copy of the function."""
    name, package = override.function.__qualname__, package_words(override.function)
    how = f"The patch makes this change in a copy of `{name}` in your code, which takes the place of that of {package}."
    return replace(item, text=f"{item.text} {how}")


def package_words(function: FunctionType) -> str:
    """Name and version of a function's package: `timm 1.0.9`."""
    return _with_version(function.__module__.partition(".")[0])


@functools.lru_cache(maxsize=256)
def _with_version(package: str) -> str:
    names = metadata.packages_distributions().get(package, [package])
    try:
        return f"{package} {metadata.version(names[0])}"
    except metadata.PackageNotFoundError:
        return package


def is_upstream(file: str) -> bool:
    """Whether a file is of an installed package other than torch."""
    return is_installed(file) and not file.startswith(f"{torch_folder()}/")


def report_text(found: GraphBreak, span: Span, environment: Environment) -> str:
    """The text of an issue for the authors of a package that breaks the graph."""
    package = _with_version(span.file.partition("/")[0].removesuffix(".py"))
    chain = [f"  {each.file}:{each.line} in {each.function}" for each in found.chain]
    versions = filter(None, (f"torch {environment.torch}" if environment.torch else "", package,
                             f"Python {environment.python}" if environment.python else ""))  # fmt: skip
    return "\n".join([
        f"torch.compile breaks the graph in {span.function} ({span.file}:{span.line})", "",
        *(f"    {line}" for line in span.code.splitlines()), "",
        "torch says:", f"  {found.kind}", *([f"  {one_line(found.explanation)}"] if found.explanation else []), "",
        "Called through:", *chain, "",
        f"Versions: {', '.join(versions)}",
    ])  # fmt: skip
