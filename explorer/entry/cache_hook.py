"""What `tcompile caches` adds to the programs that it runs; copied as `sitecustomize.py` into a folder of its own.

It loads the artifacts of a run before, and at exit saves those of this run and the time. Nothing else changes.
"""

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

FOLDER = Path(os.environ.get("TCOMPILE_CACHES_FOLDER", "."))
RANK = os.environ.get("RANK", "0")


class _LoadAfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports torch as usual, then loads the saved artifacts."""

    def __init__(self, artifacts: Sequence[Path]) -> None:
        self.artifacts = artifacts

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        started = time.time()
        for path in self.artifacts:
            module.compiler.load_cache_artifacts(path.read_bytes())
        _write("loaded", {"seconds": time.time() - started})


def _at_exit() -> None:
    _write("ended", {"at": time.time(), "cache": os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")})
    torch = sys.modules.get("torch")
    has_compiler = "_dynamo" in vars(torch or object)  # bound by its import, without which nothing was compiled
    if torch is None or not has_compiler or not os.environ.get("TCOMPILE_CACHES_SAVE"):
        return
    try:
        saved = torch.compiler.save_cache_artifacts()
    except Exception as error:  # noqa: BLE001  whatever the program registered with torch: the note of the run has it
        _write("not_saved", {"why": f"{type(error).__name__}: {error}"})
        return
    if saved is not None:
        _own_file("artifacts", "bin").write_bytes(saved[0])


def _write(name: str, values: dict[str, object]) -> None:
    _own_file(name, "json").write_text(json.dumps(values))


def _own_file(name: str, suffix: str) -> Path:
    """A file of this process alone: processes that a program starts itself have no RANK."""
    return FOLDER / f"{name}_{RANK}_{os.getpid()}.{suffix}"


def _import_hidden_customization() -> None:
    """Import the `sitecustomize` that this one hides, if there is one."""
    own = str(Path(__file__).parent)
    sys.path[:] = [path for path in sys.path if path != own]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if "TCOMPILE_CACHES_FOLDER" in os.environ and not any("compile_worker" in word for word in sys.orig_argv):
    saved_in = os.environ.get("TCOMPILE_CACHES_LOAD", "")
    if saved_in and (files := sorted(Path(saved_in).glob(f"artifacts_{RANK}_*.bin"))):
        sys.meta_path.insert(0, _LoadAfterTorch(files))
    atexit.register(_at_exit)
_import_hidden_customization()
