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
    """The modules of a tree by dotted name, and the modules of the same tree that each imports.

    Imports inside functions count. Those under `if TYPE_CHECKING:` don't: they are never executed.
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
        """The package that a module's file lies in: every folder is one."""
        return module if self.files[module].name == "__init__.py" else module.rpartition(".")[0]

    def between_packages(self) -> dict[str, frozenset[str]]:
        """The packages that each package imports."""
        found: dict[str, set[str]] = {self.package(module): set() for module in self.files}
        for module, imported in self.imports.items():
            found[self.package(module)].update(map(self.package, imported))
        return {package: frozenset(imported - {package}) for package, imported in found.items()}

    def package_circles(self) -> list[list[str]]:
        """Groups of packages that import each other, directly or through others of the group."""
        return circles(self.between_packages())

    def file_circles(self, most: int = 2) -> list[list[str]]:
        """Groups of more than `most` modules of one package that import each other."""
        inside = {
            module: frozenset(other for other in imported if self.package(other) == self.package(module))
            for module, imported in self.imports.items()
        }
        return [circle for circle in circles(inside) if len(circle) > most]


def circles(edges: Edges) -> list[list[str]]:
    """The strongly connected components of more than one node, largest first."""
    found = networkx.strongly_connected_components(networkx.DiGraph(edges))
    return sorted((sorted(group) for group in found if len(group) > 1), key=lambda group: (-len(group), group))


def module_name(path: Path) -> str:
    """`compiler.backend` for compiler/backend/__init__.py."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_imported(path: Path, known: Iterable[str]) -> Iterator[str]:
    """The modules among `known` that a file imports: for `from a import b`, a.b if that is a module, else a."""
    for name in imported_names(executed(ast.parse(path.read_text()))):
        if name in known:
            yield name
        elif (owner := name.rpartition(".")[0]) in known:
            yield owner


def imported_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The dotted names of all imports: a module, or a name from one."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def executed(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module outside `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in node.orelse:
                yield other
                yield from executed(other)
        else:
            yield node
            yield from executed(node)
