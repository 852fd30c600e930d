"""The checkable rules of the code base: imports, private names, file sizes, names."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from build_tools.imports import ImportGraph, circles, imported_names

ROOT = Path(__file__).parents[1]
PACKAGES = ("compiler", "explorer", "tcompile")
PYTHON = sorted(path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py"))
SOURCES = sorted(
    path
    for folder in (*PACKAGES, "tests", "benchmarks")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".js")
)

LONGEST_FILE = 600
LONGEST_FUNCTION = 60
LAYERS = """
tcompile                        the public name of what is below
explorer                        functions of the same names, and the command line
explorer.agent_server           tools for coding agents, each a command in a child process
explorer.entry                  the ways in: magics, the cell that they run, functions of `import explorer`
explorer.budget                 what a call may cost: metrics, baselines, reports for CI
explorer.teach                exercises that check themselves: questions, grades, progress
explorer.run                    what a user holds after an exploration: Run, tables, pages, the live view, files
explorer.kernel_lab             a kernel in a cell, edited and tried
explorer.findings               facts of a record, told plainly: breaks, guards, recompilations, …
explorer.findings.advice        what would make a call faster
explorer.findings.sweep         times at other sizes
explorer.findings.timing        times of a call, of kernels and lines
explorer.findings.memory        bytes in use, step by step
explorer.findings.morph         one graph from eager mode to kernels
explorer.findings.fusion        which loops became one kernel
explorer.findings.chain         the chain rule, step by step
explorer.findings.decompose     an operator, level by level
explorer.render                 what a finding is, and how it is shown
explorer.reading                reading a record: places, causes, sizes, stages, source lines, kernels
explorer.glossary               what instructions and functions of torch mean
compiler                        engine, recorders, checks of options: what is called from outside
compiler.repro                  the smallest program that shows one fault of a call again
compiler.xray                   all breaks of a program, also behind others, and fixes that were tried
compiler.advise                 rules that read a record, and trials of what they claim
compiler.kernel_lab             a kernel of a record, edited
compiler.timing                 eager against compiled, and where the time goes
compiler.export                 torch.export
compiler.numerics.across        values of two runs: which operation is the first to diverge
compiler.numerics               stages, calls and kernels against eager and float64
compiler.backend_record         a program of our backend as artifacts
compiler.backend.inspect        a call opened: its programs pass by pass, passes replaced
compiler.backend                our own compiler
compiler.backend.runtime        from written code to calls
compiler.backend.triton         kernels in Triton
compiler.backend.cpp            kernels in C++
compiler.backend.passes         programs made faster
compiler.backend.lower          ATen operators as loops
compiler.backend.ir             the language of its programs, and what they mean
compiler.backend.torch_glue     AOTAutograd around it, decompositions, graphs before they are lowered
compiler.decompose              levels of decomposition
compiler.autograd               AOTAutograd's half of the pipeline
compiler.autograd.formulas      derivatives as text
compiler.triton_interpreter     Triton kernels run without a GPU
compiler.logs                   structured traces of jobs that ran elsewhere, as records
compiler.distributed            one rank of a job: its group, its collectives
compiler.calls                  a call of the user, made again without leaving a trace
compiler.inductor               TorchInductor's half
compiler.binary                 kernels to machine instructions, of GPUs and CPUs
compiler.capture                TorchDynamo's half
compiler.capture.suggestions    how to mend a graph break
compiler.untrusted              what code of a loaded record may do
compiler.numerics.policy        what is equal and what is close
compiler.virtual_gpu            a GPU that is not here
compiler.torch_api              private names of torch and triton
compiler.targets                GPUs as data
compiler.process                the user's process, left as it was found
compiler.record                 the data model: imports nothing of ours
"""
"""The packages, from the top down. A file imports from its own package and from packages on lower lines."""
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
OF_JUPYTER = re.compile(r"explorer|IPython|ipykernel|ipywidgets|anywidget|traitlets|comm|jupyter\w*|notebook|nb\w+")
PRIVATE = re.compile(r"(torch|triton)(\.\w+)*?\._(?!_\w+__)\w+(\.\w+)*")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def dotted(node: ast.AST) -> str:
    """`torch.nn.Module` for the expression that says so, "" for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def private_names(nodes: Sequence[ast.AST]) -> set[str]:
    """The private names of torch and triton that a file imports, reaches by attribute, or spells in a string."""
    spelled = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    reached = {dotted(node) for node in nodes if isinstance(node, ast.Attribute)}
    return {name for name in spelled | reached | set(imported_names(nodes)) if PRIVATE.fullmatch(name)}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import torch._dynamo.config", {"torch._dynamo.config"}),
        ("from torch._inductor import ir", {"torch._inductor.ir"}),
        ("from torch import _C", {"torch._C"}),
        ("import torch\ntorch.fx._lazy.f()", {"torch.fx._lazy", "torch.fx._lazy.f"}),
        ("import_module('torch._dynamo')", {"torch._dynamo"}),
        ("import torch\ntorch.__version__; torch.nn.Module", set()),
    ],
)
def test_private_names_are_found(code: str, expected: set[str]) -> None:
    assert private_names([*ast.walk(ast.parse(code))]) == expected


def offenders(paths: Iterable[Path], wrong: Callable[[Path], object]) -> dict[str, object]:
    """The errors of each file, without files that have none.

    One test checks all files, because reporting thousands of tests would take longer than running them.
    """
    return {name_of(path): found for path in paths if (found := wrong(path))}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return [*ast.walk(tree_of(path))]


def test_source_files_are_found() -> None:
    assert {ROOT / "compiler/record/__init__.py", ROOT / "explorer/entry/magics.py"} <= set(PYTHON) < set(SOURCES)
    assert Path(__file__) in SOURCES


def test_private_torch_and_triton_names_stay_in_adapter() -> None:
    others = (path for path in PYTHON if not name_of(path).startswith("compiler/torch_api"))
    assert not offenders(others, lambda path: private_names(nodes_of(path)))


@cache
def import_graph() -> ImportGraph:
    return ImportGraph.of(ROOT, PACKAGES)


def test_packages_import_only_lower_layers() -> None:
    layers = [line.split()[0] for line in LAYERS.strip().splitlines()]
    graph = import_graph()
    packages = set(map(graph.package, graph.files))
    assert packages == set(layers), "LAYERS names every package once"
    rank = {package: place for place, package in enumerate(layers)}
    upwards = [
        f"{module} imports {other}"
        for module, imported in graph.imports.items()
        for other in sorted(imported)
        if rank[graph.package(module)] > rank[graph.package(other)]
    ]
    assert not upwards, f"imports go down only:\n{LAYERS}\n" + "\n".join(upwards)


def test_packages_have_no_import_cycles() -> None:
    assert import_graph().package_circles() == []


def test_files_of_a_package_have_no_import_cycles() -> None:
    assert import_graph().file_circles() == []


def test_import_cycle_is_found() -> None:
    edges = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("ad"), "d": frozenset()}
    assert circles(edges) == [["a", "b", "c"]]


def test_compiler_does_not_import_jupyter_or_explorer() -> None:
    def wrong(path: Path) -> set[str]:
        packages = {name.split(".")[0] for name in imported_names(nodes_of(path))}
        return {package for package in packages if OF_JUPYTER.fullmatch(package)}

    assert not offenders((path for path in PYTHON if name_of(path).startswith("compiler/")), wrong)


def test_files_are_short() -> None:
    def lines(path: Path) -> int:
        count = len(path.read_text().splitlines())
        return count if count > LONGEST_FILE else 0

    assert not offenders(SOURCES, lines)
    assert not offenders(SOURCES, lambda path: path.stem in VAGUE_NAMES)


def test_no_function_is_long() -> None:
    def wrong(path: Path) -> dict[str, int]:
        functions = (node for node in nodes_of(path) if isinstance(node, ast.FunctionDef))
        lengths = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions}
        return {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION}

    assert not offenders(PYTHON, wrong)


def test_modules_and_public_classes_have_docstrings() -> None:
    def without(path: Path) -> list[str]:
        tree = tree_of(path)
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
        silent = [node.name for node in classes if not ast.get_docstring(node)]
        return silent if ast.get_docstring(tree) else ["the module", *silent]

    assert not offenders(PYTHON, without)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_public_names_are_sorted_documented_and_annotated(package: str) -> None:
    module = importlib.import_module(package)
    assert list(module.__all__) == sorted(module.__all__)
    for name, value in public(module):
        assert inspect.getdoc(value), f"{name} has no docstring"
        if inspect.isfunction(value):
            signature = inspect.signature(value)
            parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
            assert all(p.annotation is not p.empty for p in parameters), f"{name} has parameters without types"
            assert signature.return_annotation is not signature.empty, f"{name} does not say what it returns"


def public(module: ModuleType) -> Iterator[tuple[str, object]]:
    """The callables of `__all__`, and of its classes the methods and properties written in this repository."""
    for name in module.__all__:
        value = getattr(module, name)
        if not callable(value):
            continue
        yield name, value
        for attribute, member in vars(value).items() if inspect.isclass(value) else ():
            function = (
                member.fget if isinstance(member, property) else inspect.unwrap(getattr(member, "__func__", member))
            )
            if inspect.isfunction(function) and not attribute.startswith("_"):
                yield f"{name}.{attribute}", function
