"""Load the function or module to explore from `path/to/file.py:name`."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from torch import nn

from compiler.capture.sources import is_installed
from compiler.record.plain_text import did_you_mean, pluralize
from compiler.torch_api.fx import SourceFrame
from explorer.entry.callee import OWN_FOLDERS


class LoadError(ValueError):
    """Raised for a file, name or inputs that can't be explored; the message gives the reason."""


class UserError(Exception):
    """Raised if the user's own code raises `cause`; `trace` is its traceback from the user's file on, or None."""

    def __init__(self, cause: Exception, trace: TracebackType | None) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.trace = trace


def load(target: str) -> tuple[Callable[..., Any], Path]:
    """Load the function or `nn.Module` named by `path.py:name`, and return it with its path.

    A module class is instantiated without arguments. Raises LoadError, and UserError for exceptions of the file itself.
    """
    path_text, colon, name = target.rpartition(":")
    if not colon or not name or not path_text:
        raise LoadError(f"{target!r} names no function or model; write path/to/file.py:name")
    path = Path(path_text)
    _check_file(path)
    module = run_user_code(path, lambda: _import_file(path))
    if module.__file__ is None or Path(module.__file__).resolve() != path.resolve():
        raise LoadError(f"import {module.__name__} finds {module.__file__}: another package has the name of {path}'s")
    return _callable(_lookup(module, name, path), name, path), path


def line_of_name(function: Callable[..., Any], target: str, path: Path) -> tuple[SourceFrame, ...]:
    """The line of `path` that binds the name in `path.py:name`, as a frame; () if the callee has code in the file.

    Needed for an `nn.Sequential` or an imported function, which have no code in the file.
    """
    called = inspect.unwrap(function.forward if isinstance(function, nn.Module) else function)
    code = getattr(called, "__code__", None)
    file = path.resolve()
    if code is not None and Path(code.co_filename).resolve() == file:
        return ()
    name = target.rpartition(":")[2].partition(".")[0]
    tree = ast.parse(file.read_bytes())
    return (SourceFrame(str(file), max(_lines_naming(tree, name), default=1), "<module>", ""),)


def _lines_naming(node: ast.AST, name: str) -> Iterator[int]:
    """The lines of module-level statements that bind a name."""
    for child in ast.iter_child_nodes(node):
        given = getattr(child, "asname", None) or getattr(child, "name", None) or getattr(child, "id", None)
        if given == name and not isinstance(getattr(child, "ctx", None), ast.Load):
            yield getattr(child, "lineno", 1)
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _lines_naming(child, name)


def check_call(function: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise LoadError if these inputs do not match the function's signature."""
    try:
        signature = inspect.signature(function.forward if isinstance(function, nn.Module) else function)
    except (TypeError, ValueError):  # some builtins have no signature
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        count = len(args) + len(kwargs)
        raise LoadError(
            f"{name}{signature} can't be called with {pluralize(count, 'input')}: {error}; each --input gives one"
        ) from None


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise LoadError(f"{str(path)!r} is a folder; name a Python file in it")
    if not path.exists():
        raise LoadError(f"there is no file {str(path)!r}")
    if path.suffix != ".py":
        raise LoadError(f"{str(path)!r} is not a Python file (.py)")


def _import_file(path: Path) -> ModuleType:
    """Run a file as a module, with its folder on `sys.path` as for `python file.py`.

    A file of a package is imported as its submodule, as for `python -m`, so that it can import the rest of the package.
    Imports that nothing else satisfies are looked for in the current folder.
    """
    file = path.resolve()
    name, root = _module_name(file)
    _add_to_path(root, first=True)
    _add_to_path(Path.cwd())
    linecache.checkcache(str(file))  # it may have changed since it was last loaded in this process
    if "." not in name:
        return _run_as_module(name, file)
    try:
        return _import_submodule(name)
    except ModuleNotFoundError as error:
        if not (file.parent / f"{error.name}.py").is_file():
            raise
    _add_to_path(file.parent, first=True)  # it imports files beside it as a script does
    return _run_as_module(file.stem, file)


def _run_as_module(stem: str, file: Path) -> ModuleType:
    name = stem if stem not in sys.modules else f"tcompile_user_{stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise LoadError(f"{str(file)!r} can't be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _import_submodule(name: str) -> ModuleType:
    sys.modules.pop(name, None)  # of an earlier exploration
    return importlib.import_module(name)


def _module_name(file: Path) -> tuple[str, Path]:
    """The name under which a file can be imported, and the folder to import it from.

    That is the folder above the outermost package, unless another module has the name of this package.
    """
    top = file.parent
    while (top / "__init__.py").is_file() and top.name.isidentifier():
        top = top.parent
    parts = file.relative_to(top).with_suffix("").parts
    parts = parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts
    loaded = sys.modules.get(parts[0])
    folders = [Path(each).resolve() for each in getattr(loaded, "__path__", ())]
    is_taken = loaded is not None and top / parts[0] not in folders
    if is_taken or not all(part.isidentifier() for part in parts):
        return file.stem, file.parent
    return ".".join(parts), top


def _add_to_path(folder: Path, *, first: bool = False) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0 if first else len(sys.path), str(folder))


def _lookup(module: ModuleType, name: str, path: Path) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise LoadError(f"{path} has no {name!r}{_what_there_is(module, name)}")
        found = getattr(found, part)
    return found


def _what_there_is(module: ModuleType, name: str) -> str:
    own = [
        key
        for key, value in vars(module).items()
        if not key.startswith("_") and callable(value) and (isinstance(value, nn.Module) or _is_own(value, module))
    ]
    there = f"; it has: {', '.join(own)}" if own else "; it defines no function or model"
    return did_you_mean(name, own) or there


def _is_own(value: Any, module: ModuleType) -> bool:
    return getattr(value, "__module__", None) == module.__name__


def _callable(found: Any, name: str, path: Path) -> Callable[..., Any]:
    if isinstance(found, type):
        return _make_module(found, name, path)
    if not callable(found):
        raise LoadError(f"{name!r} in {path} is of type {type(found).__name__}, not a function or a model")
    return found


def _make_module(cls: type, name: str, path: Path) -> Callable[..., Any]:
    if not issubclass(cls, nn.Module):
        raise LoadError(f"{name!r} in {path} is a class, but no nn.Module; name a function or a model")
    signature = inspect.signature(cls)
    try:
        signature.bind()
    except TypeError:
        raise LoadError(
            f"{name}{signature} can't be made without arguments; make one in {path} (model = {name}(…)) and name that"
        ) from None
    return run_user_code(path, cls)


class ProgramEndError(Exception):
    """Raised in place of SystemExit: a command that ended with the code's own exit code would have checked nothing."""


def run_user_code(path: Path, call: Callable[[], Any]) -> Any:
    """Run `call`; convert its exception, also SystemExit, to UserError."""
    try:
        return call()
    except SystemExit as error:
        raise UserError(ProgramEndError(_end_words(error, path)).with_traceback(error.__traceback__), None) from error
    except Exception as error:
        unread = isinstance(error, SyntaxError) and error.filename == str(path.resolve())
        raise UserError(error, None if unread else _from_file(error.__traceback__, path)) from error


def print_error(error: UserError) -> None:
    """Print the traceback of the user's code, or only the message if the code ended the program."""
    if isinstance(error.cause, ProgramEndError):
        sys.stderr.write(f"{error.cause}\n")
    else:
        traceback.print_exception(type(error.cause), error.cause, error.trace)


def _end_words(error: SystemExit, path: Path) -> str:
    """Where the user's code ended the program, and what to do: while a file was imported, or in the call."""
    own = tuple(f"{folder}/" for folder in OWN_FOLDERS)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not is_installed(frame.filename) and not frame.filename.startswith(own)
    ]
    imported = [frame for frame in frames if frame.name == "<module>"]
    found = (imported or frames)[-1:]
    place = f"{Path(found[0].filename).name}:{found[0].lineno}" if found else path.name
    if imported:
        words = 'when imported: a script\'s last lines belong behind `if __name__ == "__main__":`'
    else:
        words = "in the call: explore a call that returns"
    return f"{place} ended the program by SystemExit({error.code!r}) {words}"


def _from_file(trace: TracebackType | None, path: Path) -> TracebackType | None:
    """The traceback from its first frame in this file on; the whole traceback if it has none."""
    step = trace
    while step is not None:
        if Path(step.tb_frame.f_code.co_filename).resolve() == path.resolve():
            return step
        step = step.tb_next
    return trace
