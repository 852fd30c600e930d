"""`run.patch()`: fixes that were tried together, as a unified diff of the user's files or cells."""

from __future__ import annotations

import difflib
import linecache
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compiler.capture.sources import is_cell

if TYPE_CHECKING:
    from compiler.calls.call import Call
    from compiler.xray.patch import EditedFile
    from compiler.xray.substitution import Edit

_LINE = re.compile(r"[^\n]*\n|[^\n]+")


class Patch(str):
    """A unified diff of your files or cells, for `git apply` or `patch -p1`.

    `promise` are the lines above the diff, which begin with `#` and say what the fixes achieve and what is left; if no
    fix works, there are only these. `files` have the whole texts before and after. `is_verified` says whether the fixes
    were tried together, with the same results.
    """

    __slots__ = ("files", "is_verified", "promise")
    files: tuple[EditedFile, ...]
    promise: tuple[str, ...]
    is_verified: bool

    def __new__(
        cls, text: str, files: tuple[EditedFile, ...] = (), promise: tuple[str, ...] = (), is_verified: bool = True
    ) -> Patch:
        made = super().__new__(cls, text)
        made.files, made.promise, made.is_verified = files, promise, is_verified
        return made

    def encoded(self) -> bytes:
        """The patch as bytes to save, with each file's lines in the file's encoding."""
        return "".join(self.promise).encode() + b"".join(diff_of(file).encode(file.encoding) for file in self.files)

    def cell(self) -> str:
        """The patched text of the user's cell, ready to run. Raises ValueError if no cell is edited."""
        texts = [file.after for file in self.files if file.is_cell]
        if not texts:
            names = ", ".join(file.name for file in self.files) or "nothing"
            raise ValueError(
                f"the fixes edit no cell, but {names}: apply the diff, or use tcompile xray FILE:NAME --write"
            )
        return "\n\n".join(text.rstrip("\n") for text in texts) + "\n"


def patch_of(files: Sequence[EditedFile], promise: Sequence[str], is_verified: bool = True) -> Patch:
    """The patch for edited files; `promise` are sentences that say what the fixes achieve and what is left."""
    lines = tuple(f"# {sentence}\n" for sentence in promise)
    return Patch("".join((*lines, *map(diff_of, files))), tuple(files), lines, is_verified)


def diff_of(file: EditedFile) -> str:
    """The unified diff of one file. Only a newline ends a line, as in git."""
    before, after = (_LINE.findall(text) for text in (file.before, file.after))
    tab = "\t" if " " in file.name else ""  # where a name with spaces ends, for git and patch
    lines = difflib.unified_diff(before, after, f"a/{file.name}{tab}", f"b/{file.name}{tab}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def cell_texts() -> dict[str, str]:
    """The notebook's cells as the user wrote them, by the file name of their code; {} outside of IPython."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    history: Any = getattr(shell, "history_manager", None)
    written = [] if history is None else [str(text) for text in reversed(history.input_hist_raw)]
    found = {path: _text_that_ran(path, written) for path in tuple(linecache.cache) if is_cell(path)}
    return {path: text for path, text in found.items() if text}


def _text_that_ran(path: str, written: Sequence[str]) -> str:
    """The newest cell text that matches the code run under this file name, apart from magics; "" if none matches."""
    ran = [line.rstrip("\n") for line in linecache.getlines(path)]
    while ran and not ran[-1].strip():
        ran.pop()
    return next((text for text in written if _is_same(text.rstrip().split("\n"), ran)), "")


def _is_same(written: Sequence[str], ran: Sequence[str]) -> bool:
    return len(written) == len(ran) and all(
        own.rstrip() == line.rstrip() or own.lstrip().startswith(("%", "!"))
        for own, line in zip(written, ran, strict=True)
    )


def dynamic_magics(call: Call, cells: Mapping[str, str]) -> list[Edit]:
    """An edit that adds `--dynamic` to the `%%tcompile` above the cell with a call; [] if there is none."""
    from compiler.xray.substitution import Edit

    for frame in call.site:
        magic, _, _ = cells.get(frame.file, "").partition("\n")
        if magic.startswith("%%tcompile") and "--dynamic" not in magic:
            return [Edit(frame.file, 1, 1, magic.replace("%%tcompile", "%%tcompile --dynamic", 1))]
    return []
