"""The part of an LLVM module that belongs to one source file: its functions, and the metadata that they need."""

from __future__ import annotations

import re

_FUNCTION = re.compile(r"^define .*?\n}\n", re.MULTILINE | re.DOTALL)
_METADATA = re.compile(r"^(!\d+) = (.*)$", re.MULTILINE)
_REFERENCE = re.compile(r"!\d+\b")
_NAME = re.compile(r"@([\w.$]+|\"[^\"]*\")")
_DECLARATION = re.compile(r"^(?:declare .*?@([\w.$]+)\(|@([\w.$]+|\"[^\"]*\") = ).*$", re.MULTILINE)


def of_file(module: str, file: str) -> str:
    """The functions that debug information puts into `file`, with declarations and metadata; "" if there are none."""
    metadata = dict(_METADATA.findall(module))
    own_files = {name for name, text in metadata.items() if "!DIFile(" in text and f'filename: "{file}"' in text}
    functions = [text for text in _FUNCTION.findall(module) if _is_in(text, own_files, metadata)]
    if not functions:
        return ""
    body = "\n".join(functions)
    names = {name.strip('"') for name in _NAME.findall(body)}
    declared = [found[0] for found in _DECLARATION.finditer(module) if (found[1] or found[2]).strip('"') in names]
    needed = _metadata_names(body, metadata)
    kept = [f"{name} = {text}" for name, text in metadata.items() if name in needed]
    return "\n\n".join([body.strip(), "\n".join(declared), "\n".join(kept)]) + "\n"


def _is_in(function: str, files: set[str], metadata: dict[str, str]) -> bool:
    found = re.search(r"!dbg (!\d+) \{", function.partition("\n")[0])
    scope = metadata.get(found[1], "") if found else ""
    file = re.search(r"\bfile: (!\d+)", scope)
    return bool(file and file[1] in files)


def _metadata_names(text: str, metadata: dict[str, str]) -> set[str]:
    """Names of the metadata that a text refers to, directly or through others."""
    todo, seen = _REFERENCE.findall(text), set[str]()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        fields = re.sub(r"\b(?:globals|retainedNodes|imports|enums|unit): !\d+", "", metadata.get(name, ""))
        todo += _REFERENCE.findall(fields)
    return seen
