"""The figures of `build_tools.size`, on small source trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from build_tools.size import Tree, is_bare

FILES = {
    "compiler/__init__.py": "",
    "compiler/engine.py": '"""Docstring."""\n\nimport compiler.backend.fuse  # a comment\n\nX = """a\n\nb"""\n',
    "compiler/backend/__init__.py": "from compiler.torch_api import direct\n",
    "compiler/backend/fuse.py": (
        "def told(kernel):\n    from compiler import engine\n"
        "    return kernel.id.split(' '), kernel.artifact.strip(']')\n"
    ),
    "compiler/torch_api/__init__.py": "",
    "compiler/torch_api/direct.py": "X = 1\nY = 2\n",
    "compiler/torch_api/fx.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import compiler.engine\n"
        "import compiler.torch_api.direct\n"
    ),
    "explorer/a.py": "import explorer.b\n",
    "explorer/b.py": "import explorer.c\n",
    "explorer/c.py": "import explorer.a\n",
    "explorer/static/view.js": "// a comment\nlet x;\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(tmp_path)


def test_size_counts_lines_that_hold_code(tree: Tree) -> None:
    assert tree.code["compiler.engine"] == 4  # the import, and the three lines of the string that X is
    assert tree.code["compiler.torch_api.direct"] == 2
    assert tree.frontend_lines() == 2
    assert tree.rooms()["compiler.backend"] == 4


def test_size_counts_glue_that_backend_alone_imports(tree: Tree) -> None:
    assert tree.glue() == set()  # fx imports it too
    tree.graph.imports["compiler.torch_api.fx"] = frozenset()
    assert tree.glue() == {"compiler.torch_api.direct"}
    assert tree.backend_lines() == 6


def test_size_finds_import_cycles(tree: Tree) -> None:
    assert tree.graph.package_circles() == [["compiler", "compiler.backend"]]
    assert tree.graph.file_circles() == [["explorer.a", "explorer.b", "explorer.c"]]


def test_size_finds_bare_names_and_parsed_ids(tree: Tree) -> None:
    assert dict(tree.bare_names) == {"told": 1}
    assert tree.parsed_ids == [
        "compiler.backend.fuse: kernel.id.split(' ')",
        "compiler.backend.fuse: kernel.artifact.strip(']')",
    ]


@pytest.mark.parametrize("name", ["tried", "_apart", "looked_into", "as_told", "eagerly", "hearing"])
def test_bare_names_are_found(name: str) -> None:
    assert is_bare(name)


@pytest.mark.parametrize("name", ["read_again", "merge_kernels", "speed", "padding", "shape_of", "apply", "__del__"])
def test_verbs_and_nouns_are_not_bare_names(name: str) -> None:
    assert not is_bare(name)
