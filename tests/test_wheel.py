"""The built wheel: `tcompile` alone at its top level, and complete without the clone."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from build_tools.wheel import RewriteError, rewrite
from explorer.run.frontend import ADDED_STYLES, OWN_STYLES

ROOT = Path(__file__).parents[1]
MODULES = frozenset({"compiler", "compiler.engine", "explorer", "explorer.cli"})
PROGRAM = """
import torch


def smooth(x):
    return torch.softmax(x * 2, -1)
"""
IN_PYTHON = """
import sys

sys.modules["jupyterlab"] = sys.modules["notebook"] = None  # importing either is an error

import tcompile
import torch
from IPython.core.interactiveshell import InteractiveShell
from smooth import smooth

x = torch.randn(8, 64)
run = tcompile.explore(smooth, x)
run.save("from_python.html")
run.save("from_python.json")
assert "tt.func" in run["ttir"].text, run.tables.problems
assert str(tcompile.load("from_python.json")["post_grad"]) == str(run["post_grad"])

checked = tcompile.explore(smooth, x, check="kernels")
assert len(checked.tables.checks) == 1, checked.problems

shell = InteractiveShell.instance()
shell.user_ns.update(smooth=smooth, x=x)
shell.run_line_magic("load_ext", "tcompile")
shell.run_cell("%%tcompile -o cell\\ny = smooth(x)").raise_error()
assert len(shell.user_ns["cell"].kernels) == 1

print(tcompile.open(smooth, x).fused)
print(tcompile.__file__, tcompile.Run.__module__, sep="\\n")
"""
BACKEND = """
import sys
import torch
from smooth import smooth

x = torch.randn(8, 64)
torch.testing.assert_close(torch.compile(smooth, backend="tcompile")(x), smooth(x))
assert "tcompile.explorer" not in sys.modules
print(type(torch.compile(smooth, backend="tcompile")).__name__)
"""
LIGHT = """
import sys
import tcompile

names = dir(tcompile)
assert not {"torch", "IPython", "pandas", "tcompile.explorer"} & set(sys.modules)
print(*names)
"""
USER_FILE = """
import tcompile
import torch


def smooth(x: torch.Tensor) -> torch.Tensor:
    return x * 2


run: tcompile.Run = tcompile.explore(smooth, torch.randn(8))
tcompile.check(smooth, torch.randn(8), breaks=0)
shown: str = run["forward"].text
torch.compile(smooth, backend=tcompile.backend)
run.no_such_name
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist, and the wheel that was built from that sdist."""
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [path] = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts folder of a new environment with the wheel and this environment's packages."""
    home = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", home)
    bin_folder = home / "bin"
    installer = [sys.executable, "-m", "pip", "--python", bin_folder / "python", "install"]
    run(*installer, "--no-deps", "--no-index", wheel)
    # A .pth file adds its folders to the path, but .pth files in them are ignored: an editable clone stays hidden.
    [packages] = home.glob("lib/python*/site-packages")
    (packages / "present.pth").write_text(sysconfig.get_path("purelib"))
    return bin_folder


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "smooth.py").write_text(PROGRAM)
    return folder


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a program without the clone on Python's path. Returns its output."""
    done = start(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def start(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from compiler.record import Record", "from tcompile.compiler.record import Record"),
        ("from explorer import cli", "from tcompile.explorer import cli"),
        ("def f():\n    from   compiler import engine", "def f():\n    from   tcompile.compiler import engine"),
        ("import compiler", "import tcompile.compiler as compiler"),
        ("import compiler.engine as e, os", "import tcompile.compiler.engine as e, os"),
        ("import os, compiler.engine", "import os, tcompile.compiler.engine"),
        ("é = 'compiler.engine'", "é = 'tcompile.compiler.engine'"),
        ("import compilers, explorer_of", "import compilers, explorer_of"),
        ("from torch import compiler", "from torch import compiler"),
        ("from .compiler import a", "from .compiler import a"),
        ("x = 'compiler'  # a word", "x = 'compiler'  # a word"),
        ("x = 'torch.compiler.engine'", "x = 'torch.compiler.engine'"),
        ('"""from compiler import this, as text."""', '"""from compiler import this, as text."""'),
    ],
)
def test_imports_move_below_tcompile(source: str, expected: str) -> None:
    assert rewrite(source.encode(), MODULES).decode() == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import compiler.engine\nprint(compiler)", "a.py:1: write `from compiler import"),
        ("\nx = 'import sys; from compiler.engine import f'", "a.py:2: a program in a string"),
        ("from \\\n  compiler import engine", "a.py:1: the module's name is not on the line"),
        ("x = ('compiler'\n '.engine')", "a.py:1: 'compiler.engine' is no plain string"),
    ],
)
def test_import_that_cannot_move_is_an_error(source: str, message: str) -> None:
    with pytest.raises(RewriteError, match="^" + message.replace(".", r"\.")):
        rewrite(source.encode(), MODULES, "a.py")


def test_wheel_contains_every_package_file(wheel: Path) -> None:
    tracked = run("git", "ls-files", "compiler", "explorer", "tcompile", cwd=ROOT).split()
    expected = {path if path.startswith("tcompile/") else f"tcompile/{path}" for path in tracked}
    with zipfile.ZipFile(wheel) as archive:
        assert expected <= set(archive.namelist())


def test_only_tcompile_is_at_the_top_of_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        folders = {name.split("/")[0] for name in archive.namelist()}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {"tcompile"}


def test_wheel_needs_no_jupyterlab(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(metadata).decode().splitlines()
    needed = {line for line in lines if line.startswith("Requires-Dist") and "extra ==" not in line}
    assert "Requires-Dist: torch>=2.11" in needed
    assert not {line for line in needed if "lab" in line or "notebook" in line}
    assert {"Provides-Extra: lab", "Provides-Extra: docs", "Provides-Extra: test"} <= set(lines)


def test_sdist_has_sources_and_no_leftovers(built: Path) -> None:
    [path] = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"compiler/engine.py", "tcompile/py.typed", "build_tools/wheel.py", "README.md", "Makefile"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", "node_modules"))]


def test_import_of_tcompile_imports_no_torch(scripts: Path, elsewhere: Path) -> None:
    (elsewhere / "light.py").write_text(LIGHT)
    assert {"explore", "check", "Run"} <= set(run(scripts / "python", "light.py", cwd=elsewhere).split())


def test_command_prints_its_help(scripts: Path, elsewhere: Path) -> None:
    text = run(scripts / "tcompile", "--help", cwd=elsewhere)
    assert "explore" in text
    assert "show" in text
    assert run(scripts / "python", "-m", "tcompile", "--help", cwd=elsewhere) == text


def test_the_command_explores_and_shows(scripts: Path, elsewhere: Path) -> None:
    target = ("smooth.py:smooth", "--input", "randn(8,64)", "--html", "out.html", "--json", "out.json")
    run(scripts / "tcompile", "explore", *target, cwd=elsewhere)
    assert "triton_per_fused" in run(scripts / "tcompile", "show", "out.json", cwd=elsewhere)
    assert_is_a_page(elsewhere / "out.html")


def test_python_explores_and_saves(scripts: Path, elsewhere: Path) -> None:
    (elsewhere / "in_python.py").write_text(IN_PYTHON)
    *_, file, module = run(scripts / "python", "in_python.py", cwd=elsewhere).split()
    assert Path(file).is_relative_to(scripts.parent)
    assert module == "tcompile.explorer.run.run"
    assert_is_a_page(elsewhere / "from_python.html")


@pytest.mark.needs("g++")
def test_backend_works_by_name(scripts: Path, elsewhere: Path) -> None:
    (elsewhere / "backend.py").write_text(BACKEND)
    assert run(scripts / "python", "backend.py", cwd=elsewhere).strip() == "function"


def test_mypy_reads_the_types(scripts: Path, elsewhere: Path) -> None:
    """Types of other packages are left out, which take mypy half a minute to read: Pyright reads them below."""
    (elsewhere / "typed.py").write_text(USER_FILE)
    others = "[mypy-torch.*,numpy.*,pandas.*,IPython.*,matplotlib.*,sympy.*]"
    (elsewhere / "mypy.ini").write_text(f"[mypy]\nstrict = True\n{others}\nfollow_imports = skip\n")
    done = start(sys.executable, "-m", "mypy", "--python-executable", scripts / "python", "typed.py", cwd=elsewhere)
    assert 'typed.py:14: error: "Run" has no attribute "no_such_name"' in done.stdout, done.stdout + done.stderr
    assert "Found 1 error in 1 file" in done.stdout, done.stdout


@pytest.mark.needs("pyright")
def test_pyright_reads_the_types(scripts: Path, elsewhere: Path) -> None:
    (elsewhere / "typed.py").write_text(USER_FILE)
    done = start(ROOT / "node_modules/.bin/pyright", "--pythonpath", scripts / "python", "typed.py", cwd=elsewhere)
    [error] = [line for line in done.stdout.splitlines() if " - error: " in line]
    assert 'Cannot access attribute "no_such_name" for class "Run"' in error, done.stdout


def assert_is_a_page(path: Path) -> None:
    """Check that the front end is in the page; tests/browser checks that it works."""
    page = path.read_text()
    assert "Content-Security-Policy" in page
    others = {ROOT / "explorer/static" / name for name in (*OWN_STYLES, *ADDED_STYLES.values())}
    for style in {*(ROOT / "explorer/static").glob("*.css")} - others:
        assert style.read_text().split("{")[0].split("*/")[-1].strip() in page
