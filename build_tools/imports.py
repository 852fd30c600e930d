"""The import graph of a source tree, and its import cycles."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import networkx

Edges = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class ImportGraph:
    """The modules of a source tree by dotted name, and the modules that each imports.

    Imports inside functions count. Imports under `if TYPE_CHECKING:` don't, because they never run.
    """

    files: Mapping[str, Path]
    imports: Edges

    @classmethod
    def of(cls, root: Path, packages: Iterable[str]) -> ImportGraph:
        """Read every Python file of some packages below `root`."""
        paths = sorted(path for package in packages for path in (root / package).rglob("*.py"))
        files = {module_name(path.relative_to(root)): path for path in paths}
        imports = {name: frozenset(modules_imported(path, files)) - {name} for name, path in files.items()}
        return cls(files, imports)

    def package(self, module: str) -> str:
        """Package of a module: its folder."""
        return module if self.files[module].name == "__init__.py" else module.rpartition(".")[0]

    def between_packages(self) -> dict[str, frozenset[str]]:
        """Package -> the packages it imports."""
        found: dict[str, set[str]] = {self.package(module): set() for module in self.files}
        for module, imported in self.imports.items():
            found[self.package(module)].update(map(self.package, imported))
        return {package: frozenset(imported - {package}) for package, imported in found.items()}

    def package_circles(self) -> list[list[str]]:
        """Import cycles among packages: groups that import each other, directly or indirectly."""
        return circles(self.between_packages())

    def file_circles(self, most: int = 2) -> list[list[str]]:
        """Import cycles of more than `most` modules inside one package."""
        inside = {
            module: frozenset(other for other in imported if self.package(other) == self.package(module))
            for module, imported in self.imports.items()
        }
        return [circle for circle in circles(inside) if len(circle) > most]


def circles(edges: Edges) -> list[list[str]]:
    """Strongly connected components with more than one node, largest first."""
    found = networkx.strongly_connected_components(networkx.DiGraph(edges))
    return sorted((sorted(group) for group in found if len(group) > 1), key=lambda group: (-len(group), group))


def module_name(path: Path) -> str:
    """Dotted name of a file: `compiler.backend` for compiler/backend/__init__.py."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_imported(path: Path, known: Iterable[str]) -> Iterator[str]:
    """Modules among `known` that a file imports; `from a import b` imports a.b if it is a module, else a."""
    for name in imported_names(executed(ast.parse(path.read_text()))):
        if name in known:
            yield name
        elif (owner := name.rpartition(".")[0]) in known:
            yield owner


def imported_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Dotted names of all imports: a module, or a name in a module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a module, except those under `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in node.orelse:
                yield other
                yield from executed(other)
        else:
            yield node
            yield from executed(node)
