"""The files that tools may name: those below one folder, copies of it to edit, and records of earlier calls."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from explorer.agent_server.child import ToolError
from explorer.run.files import replace_file

MOST_FILES: Final = 20_000
MOST_COPIED: Final = 200_000_000
LONGEST_PATH: Final = 1_000
LINKED_FROM: Final = 10_000_000
"""Files from this size on are links in a copy."""
_LEFT_OUT = {"__pycache__", "node_modules", "site-packages"}
_LINK_MODE = re.compile(r"^(new file mode|new mode|deleted file mode|index \S+) 1[26]0000\s*$", re.MULTILINE)
_RUN, _COPY = re.compile(r"run-\d+"), re.compile(r"copy-\d+")


class Workspace:
    """A folder, its edited copies (`copy-1`, …) and records of calls (`run-1`, …), which are in a temporary folder."""

    def __init__(self, root: Path, *, can_write: bool = False) -> None:
        self.root = root.resolve()
        self.can_write = can_write
        self._holder = tempfile.TemporaryDirectory(prefix="tcompile-mcp-", ignore_cleanup_errors=True)
        self.held = Path(self._holder.name).resolve()
        self._runs = 0
        self._copies = 0

    def close(self) -> None:
        """Remove the copies and the records."""
        self._holder.cleanup()

    def folder(self, copy: str = "") -> Path:
        """The folder itself, or one of its copies. Raises ToolError."""
        if not copy:
            return self.root
        found = self.held / copy
        if not _COPY.fullmatch(copy) or not found.is_dir():
            raise ToolError(f"there is no copy {copy!r}; apply_edit makes one")
        return found

    def path(self, name: str, copy: str = "") -> Path:
        """The path of a file, links resolved. Raises ToolError for one outside of the folder."""
        folder = self.folder(copy)
        if not name or "\0" in name or len(name) > LONGEST_PATH:
            raise ToolError(f"{name[:100]!r} is no path")
        try:
            found = (folder / name).resolve()
        except (OSError, RuntimeError) as error:  # a circle of links; a name that is too long
            raise ToolError(f"{name!r} is no path that can be read: {error}") from None
        if name.startswith("~") or not found.is_relative_to(folder):
            raise ToolError(f"{name!r} is outside of the folder that the server works in, {self.root}")
        return found

    def word(self, name: str, copy: str = "") -> str:
        """A file as a word of a command that runs in its folder."""
        found = self.path(name, copy).relative_to(self.folder(copy)).as_posix()
        return f"./{found}" if found.startswith("-") else found

    def code(self, target: str, copy: str = "") -> str:
        """`FILE.py:NAME` as a word of a command. Raises ToolError."""
        file, colon, name = target.rpartition(":")
        if not colon or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
            raise ToolError(f"{target!r} names no function or model; write path/to/file.py:name")
        return f"{self.word(file, copy)}:{name}"

    def new_run(self) -> tuple[str, Path]:
        """A name for a record, and where to save it."""
        self._runs += 1
        return f"run-{self._runs}", self.held / f"run-{self._runs}.json"

    def record(self, source: str) -> str:
        """The record of an earlier call, or a saved one in the folder, as a word of a command. Raises ToolError."""
        if not _RUN.fullmatch(source):
            return self.word(source)
        path = self.held / f"{source}.json"
        if not path.is_file():
            raise ToolError(f"there is no {source!r}; explore and diagnose say the name of theirs as `run`")
        return str(path)

    def is_own(self, source: str) -> bool:
        """Whether a record was made by this server."""
        return _RUN.fullmatch(source) is not None

    def note(self, text: str, suffix: str) -> Path:
        """Write a text to a file of its own, for a command to read."""
        descriptor, name = tempfile.mkstemp(suffix=suffix, dir=self.held)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        return Path(name)

    def without_paths(self, text: str) -> str:
        """The text without the path of the temporary folder."""
        return text.replace(f"{self.held}{os.sep}", "")

    # Edits

    def target_of_edit(self, copy: str, *, in_place: bool) -> tuple[str, Path]:
        """Name and folder of what is edited: a copy, a new one without a name, or the folder itself.

        Raises ToolError if that may not be written.
        """
        if not in_place:
            name = copy or self._make_copy()
            return name, self.folder(name)
        if copy:
            raise ToolError("a copy is not in place: leave one of them out")
        if not self.can_write:
            raise ToolError("The server is read-only: edit a copy, or start it with `tcompile mcp --write`.")
        return "", self.root

    def _make_copy(self) -> str:
        files = list(self._files_to_copy())
        sizes = [size for _, size in files if size < LINKED_FROM]
        if len(files) > MOST_FILES or sum(sizes) > MOST_COPIED:
            raise ToolError(
                f"{self.root} has {len(files):,} files with {sum(sizes) / 1e6:,.0f} MB, too many to copy (at most "
                f"{MOST_FILES:,} and {MOST_COPIED / 1e6:,.0f} MB); start the server in the program's own folder"
            )
        self._copies += 1
        name = f"copy-{self._copies}"
        for file, size in files:
            target = self.held / name / file.relative_to(self.root)
            target.parent.mkdir(parents=True, exist_ok=True)
            if size < LINKED_FROM:
                shutil.copy2(file, target)
            else:
                target.symlink_to(file)
        (self.held / name).mkdir(exist_ok=True)
        return name

    def _files_to_copy(self) -> Iterator[tuple[Path, int]]:
        """Regular files below the folder and their sizes, without hidden folders, environments and what links out."""
        for folder, folders, names in os.walk(self.root):
            folders[:] = [each for each in folders if self._is_copied(Path(folder, each))]
            for name in names:
                path = Path(folder, name)
                if path.is_file() and path.resolve().is_relative_to(self.root):
                    yield path, path.stat().st_size

    def _is_copied(self, folder: Path) -> bool:
        is_hidden = folder.name.startswith(".") or folder.name in _LEFT_OUT
        return not (is_hidden or folder.is_symlink() or (folder / "pyvenv.cfg").exists() or self.held == folder)


def apply_patch(folder: Path, patch: str) -> list[str]:
    """Apply a unified diff with git; return the files that it changes. Raises ToolError, and then nothing changed."""
    if _LINK_MODE.search(patch):
        raise ToolError("a patch of links or submodules is not applied")
    text = patch if patch.endswith("\n") else f"{patch}\n"
    changed = [line.split("\t")[-1] for line in _git_apply(folder, text, "--numstat").splitlines()]
    _git_apply(folder, text)
    return changed


def _git_apply(folder: Path, patch: str, *words: str) -> str:
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent), "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ("git", "apply", *words, "-"), input=patch.encode(), cwd=folder, env=environment, capture_output=True,
            check=False,
        )  # fmt: skip
    except OSError:
        raise ToolError("a patch is applied by git, which is not installed; give file, old and new") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()[:1] or ["git did not say why"]
        raise ToolError(f"the patch does not apply: {said[0].removeprefix('error: ')}")
    return done.stdout.decode(errors="replace")


def replace_text(path: Path, name: str, old: str, new: str) -> str:
    """Replace a text that a file has once; return the change as a diff. Raises ToolError."""
    if not path.is_file():
        raise ToolError(f"there is no file {name!r}")
    if ".git" in path.parts:
        raise ToolError("files of git are not edited")
    try:
        before = path.read_bytes().decode()
    except UnicodeDecodeError:
        raise ToolError(f"{name!r} is no text in UTF-8") from None
    count = before.count(old) if old else 0
    if count != 1:
        raise ToolError(f"`old` is to be found once in {name!r}, and is there {count} times")
    after = before.replace(old, new)
    replace_file(path, after.encode())
    sides = (before.splitlines(keepends=True), after.splitlines(keepends=True))
    return "".join(difflib.unified_diff(*sides, f"a/{name}", f"b/{name}"))
