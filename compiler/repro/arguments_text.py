"""The arguments of torch.compile as text of a file: functions, such as a user's backend, are imported by name."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any


class CannotWriteError(ValueError):
    """Raised if no code makes an argument of torch.compile; the message is one line."""


def arguments_text(arguments: Mapping[str, Any], beside: Path | None = None) -> str:
    """Code that defines COMPILE. Raises CannotWriteError.

    `beside` is the folder of the file that gets the code, which then goes from there to folders above and below it.
    """
    folders: dict[str, None] = {}
    made = _code_of("torch.compile's arguments", dict(arguments), folders)
    start = ["import pkgutil", "from pathlib import Path\n"] if folders else []
    return "\n".join([*start, *(_import_from(Path(each), beside) for each in folders), f"COMPILE = {made}"])


def _import_from(folder: Path, beside: Path | None) -> str:
    if beside is None or not (folder.is_relative_to(beside) or beside.is_relative_to(folder)):
        return f"sys.path.insert(0, {str(folder)!r})  # a folder of this machine"
    way = os.path.relpath(folder, beside)
    return f"sys.path.insert(0, str(Path(__file__).resolve().parent / {way!r}))"


def _code_of(name: str, value: Any, folders: dict[str, None]) -> str:
    """Code that makes a value; the folders that it imports from are added to `folders`."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_code_of(key, each, folders)}" for key, each in value.items()) + "}"
    if callable(value):
        module, attribute = next(_global_names_of(value), ("", ""))
        if not module:
            raise CannotWriteError(
                f"{name} is {getattr(value, '__name__', repr(value))}, which another process can't import: "
                "make it a global name of a file of its own, and import it from there"
            )
        folders[_folder_of(module)] = None
        return f"pkgutil.resolve_name({f'{module}:{attribute}'!r})"
    try:
        ast.literal_eval(repr(value))
    except (SyntaxError, ValueError):
        raise CannotWriteError(f"{name} is an object that no code makes again: {value!r}") from None
    return repr(value)


def _global_names_of(value: Any) -> Iterator[tuple[str, str]]:
    """Modules with a file, and the names that they have for a value. A script itself would run again if imported."""
    for module_name, module in list(sys.modules.items()):
        is_importable = isinstance(module, ModuleType) and getattr(module, "__file__", None)
        if is_importable and getattr(module.__spec__, "name", "") == module_name:
            yield from ((module_name, name) for name, each in list(vars(module).items()) if each is value)


def _folder_of(module: str) -> str:
    """The folder from which a module is imported by its whole name."""
    file = Path(str(sys.modules[module].__file__)).resolve()
    return str(file.parents[module.count(".") + (file.name == "__init__.py")])
