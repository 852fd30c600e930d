"""README and documentation: every code block runs, every link leads somewhere, the pages build."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import tcompile
from tests.test_public_names import OF_IPYTHON

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OWN_FOLDERS = ("_build", "_generated", "notebooks")
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if page.relative_to(DOCS).parts[0] not in OWN_FOLDERS),
]
BLOCK = re.compile(
    r"^```(?P<language>[\w{}-]*)[^\n]*\n(?P<code>.*?)^```$|^<!-- run first:\n(?P<first>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s]+)\)")
FILE = re.compile(r"# (\w+\.py)\n")
MAKES_ITS_OWN = ("git", "make", "pip")
"""Programs of shell blocks that install things or run every test: these lines are not run."""
RUN_CELLS = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for cell in json.load(sys.stdin):
    if not shell.run_cell(cell).success:
        sys.exit(f"in the block:\\n{cell}")
"""


@dataclass(frozen=True)
class Block:
    """A code block of a page. `language` is "first" for code in a comment, which runs before the others."""

    language: str
    code: str

    @property
    def file(self) -> str:
        """The file that the block is, if its first line names one."""
        match = FILE.match(self.code)
        return match[1] if match else ""


def blocks(page: Path) -> list[Block]:
    found = [
        Block("first", match["first"]) if match["first"] else Block(match["language"], match["code"])
        for match in BLOCK.finditer(page.read_text())
    ]
    return sorted(found, key=lambda block: block.language != "first")


def with_code() -> list[Path]:
    """Pages with code to run. Those in docs/benchmarks quote the cells of real_model_cells.py, which take minutes."""
    pages = [page for page in PAGES if page.parent.name != "benchmarks"]
    return [page for page in pages if any(block.language in ("python", "shell") for block in blocks(page))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run(folder: Path, python: Path, command: list[str], given: str = "") -> None:
    """Run a command in a folder, with `python` and `tcompile` from the folder of that one."""
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "MPLBACKEND": "agg", "PYTEST_PLUGINS": "tcompile.pytest_plugin"}
    done = subprocess.run(
        command, cwd=folder, env=environment, input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


@pytest.mark.needs("dot", "g++")
@pytest.mark.parametrize("page", with_code(), ids=name_of)
def test_code_blocks_run(page: Path, tmp_path: Path, python: Path) -> None:
    """Python blocks run as cells of one session, shell blocks after them; blocks that are files are written first."""
    found = [block for block in blocks(page) if block.language in ("first", "python", "shell")]
    for block in found:
        if block.file:
            (tmp_path / block.file).write_text(block.code)
    cells = [block.code for block in found if block.language != "shell" and not block.file]
    commands = [line for block in found if block.language == "shell" for line in block.code.splitlines()]
    tests = [block.file for block in found if block.file.startswith("test_")]
    commands += [f"python -m pytest -q {file}" for file in tests if not any(file in command for command in commands)]
    if cells:
        run(tmp_path, python, [str(python), "-c", RUN_CELLS], json.dumps(cells))
    for command in commands:
        if command.split()[0] not in MAKES_ITS_OWN:
            run(tmp_path, python, ["bash", "-c", command])


def test_quoted_cells_are_python() -> None:
    quoted = [
        block for page in (DOCS / "benchmarks").glob("*.md") for block in blocks(page) if block.language == "python"
    ]
    assert quoted
    for block in quoted:
        ast.parse(block.code)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_name_their_language(page: Path) -> None:
    """A block is code that the test above runs, output, or a directive of the documentation."""
    known = re.compile(r"first|python|shell|text|yaml|\{[\w-]+\}")
    assert not [block.code for block in blocks(page) if not known.fullmatch(block.language)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = BLOCK.sub("", page.read_text())
    missing = [link for link in LINK.findall(text) if not (page.parent / link.partition("#")[0]).exists()]
    assert not missing


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_numbers_in_readme_stand_in_the_benchmarks() -> None:
    section = (ROOT / "README.md").read_text().split("## Two numbers")[1].split("##")[0]
    measured = "".join(page.read_text() for page in (DOCS / "benchmarks").glob("*.md"))
    numbers = re.findall(r"\d+\.\d+", section)
    assert len(numbers) == 4
    assert not [number for number in numbers if f"| {number} |" not in measured]


def test_repository_address_is_a_placeholder_in_few_places() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert urls == {"Source": "https://github.com/OWNER/tcompile"}
    assert [name_of(page) for page in PAGES if "OWNER" in page.read_text()] == ["README.md"]
    assert (ROOT / "README.md").read_text().count("OWNER") == 1


def test_reference_lists_every_public_name() -> None:
    text = (DOCS / "reference/index.md").read_text()
    listed = set(re.findall(r"auto(?:function|exception|data|class):: (\w+)", text))
    assert listed | {"Run"} == set(tcompile.__all__) | OF_IPYTHON


def test_run_page_names_what_run_has() -> None:
    """The first level of the documentation: with the public functions at most 40 names."""
    text = (DOCS / "reference/run.md").read_text()
    named = set(re.findall(r"`run\.(\w+)", text))
    assert not {name for name in named if not hasattr(tcompile.Run, name)} - {"value"}
    assert len(named | set(tcompile.__all__)) <= 40


def test_issue_templates_ask_for_a_saved_page() -> None:
    templates = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    assert templates
    for template in templates:
        fields = {field["id"]: field for field in yaml.safe_load(template.read_text())["body"]}
        assert 'run.save("run.html")' in fields["page"]["attributes"]["description"]
        assert fields["page"]["validations"]["required"]


def test_versions_agree() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
