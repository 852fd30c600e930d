"""Make a user's program smaller: leave out statements, and keep what is inside of others."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial

from compiler.repro.reduce import Effort, minimize

Shows = Callable[[str], bool]


def reduce_source(text: str, shows: Shows, effort: Effort) -> str:
    """The program without statements that `shows` can do without; comments are dropped.

    Statements are left out first, from the outside in. Then objects of a class become functions, compound statements
    their bodies, calls one of their arguments, and names the values that they have.
    """
    tree = ast.parse(text)
    while not effort.is_spent:
        before = ast.unparse(tree)
        tree = _without_statements(tree, shows, effort)
        tree = _simplify(tree, shows, effort)
        if ast.unparse(tree) == before:
            break
    return ast.unparse(tree) + "\n"


def count_statements(text: str) -> int:
    """The number of statements of a program, without docstrings."""
    return sum(isinstance(node, ast.stmt) and not _is_docstring(node) for node in ast.walk(ast.parse(text)))


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _blocks(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Each list of statements, outermost first, as its owner and the name of the field."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            value = getattr(node, name, None)
            if isinstance(value, list) and value:
                yield node, name


def _without_statements(tree: ast.Module, shows: Shows, effort: Effort) -> ast.Module:
    place = 0
    while place < len(blocks := list(_blocks(tree))) and not effort.is_spent:
        owner, name = blocks[place]
        statements = getattr(owner, name)

        def is_enough(some: Sequence[ast.stmt], owner: ast.AST = owner, name: str = name) -> bool:
            kept = getattr(owner, name)
            setattr(owner, name, _body(owner, name, some))
            try:
                return _is_shown(tree, shows, effort)
            finally:
                setattr(owner, name, kept)

        left = [] if is_enough([]) else minimize(statements, is_enough, effort)
        setattr(owner, name, _body(owner, name, left))
        place += 1
    return tree


def _body(owner: ast.AST, name: str, some: Sequence[ast.stmt]) -> list[ast.stmt]:
    needs_one = name == "body" and not isinstance(owner, ast.Module)
    return list(some) or ([ast.Pass()] if needs_one else [])


def _is_shown(tree: ast.Module, shows: Shows, effort: Effort) -> bool:
    effort.tried += 1
    return shows(ast.unparse(ast.fix_missing_locations(tree)) + "\n")


def _simplify(tree: ast.Module, shows: Shows, effort: Effort) -> ast.Module:
    """The program with simpler statements and expressions, each of which still shows the fault."""
    place = 0
    while not effort.is_spent:
        candidates = list(_simpler(tree))
        if place >= len(candidates):
            return tree
        changed = candidates[place](deepcopy(tree))
        if _is_shown(changed, shows, effort):
            tree = changed
        else:
            place += 1
    return tree


Change = Callable[[ast.Module], ast.Module]
"""Makes a copy of a program simpler, in place."""


def _simpler(tree: ast.Module) -> Iterator[Change]:
    """Changes that make a program simpler, those that leave out most first."""
    for name in _made_of_classes(tree):
        yield partial(_make_function, name)
    for number, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.Assign):
            yield from _simpler_assignment(tree, number, node)
        else:
            yield from (partial(_replace_at, number, form) for form in _forms_of(node))


def _simpler_assignment(tree: ast.Module, number: int, node: ast.Assign) -> Iterator[Change]:
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if len(names) == len(values):
            yield partial(_replace_at, number, "single")
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=other)) if name != other:
            yield partial(_rename, name, other)
        case ast.Assign(targets=[ast.Name(id=name)]) if _uses(tree, name) == 1 and not _uses(node.value, name):
            yield partial(_inline, number)


def _forms_of(node: ast.AST) -> tuple[str, ...]:
    """Names of simpler forms that a statement or an expression has."""
    match node:
        case ast.With() | ast.For() | ast.If() | ast.Try() | ast.While():
            return ("body",)
        case ast.BinOp():
            return ("left", "right")
        case ast.Call(args=[first, *_]) if not isinstance(first, ast.Starred | ast.Constant):
            return ("argument", "owner") if isinstance(node.func, ast.Attribute) else ("argument",)
        case ast.Call(func=ast.Attribute()):
            return ("owner",)
    return ()


def _made_of_classes(tree: ast.Module) -> Iterator[str]:
    """Global names of objects of a class in the program: `model = Model()`."""
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=made))) if made in classes:
                yield name


def _make_function(name: str, tree: ast.Module) -> ast.Module:
    """Make the object of this name the function that its class calls: without `self`, `__init__` and the class."""
    place = next(index for index, node in enumerate(tree.body) if _assigns(node, name))
    made = tree.body[place].value.func.id  # type: ignore[attr-defined]
    owner = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == made)
    calls = [each for each in owner.body if isinstance(each, ast.FunctionDef) and each.name in ("forward", "__call__")]
    if calls and calls[0].args.args:
        function = calls[0]
        function.name, function.args.args = name, function.args.args[1:]
        tree.body[place] = function
        tree.body.remove(owner)
    return tree


def _assigns(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name


def _uses(tree: ast.AST, name: str) -> int:
    return sum(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in ast.walk(tree))


def _rename(name: str, other: str, tree: ast.Module) -> ast.Module:
    """Use the other name in place of this one, which is a copy of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name:
            node.id = other
    for owner, field in _blocks(tree):
        kept = [each for each in getattr(owner, field) if not (_assigns(each, other) and _is_name(each.value, other))]
        setattr(owner, field, _body(owner, field, kept))
    return tree


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _inline(number: int, tree: ast.Module) -> ast.Module:
    """Write the value of an assignment in the place where its name is used."""
    chosen = list(ast.walk(tree))[number]
    assert isinstance(chosen, ast.Assign)
    assert isinstance(chosen.targets[0], ast.Name)
    name = chosen.targets[0].id
    use = next(node for node in ast.walk(tree) if _is_name(node, name) and isinstance(node.ctx, ast.Load))  # type: ignore[attr-defined]
    _replace_node(tree, use, chosen.value)
    for owner, field in _blocks(tree):
        kept = [each for each in getattr(owner, field) if each is not chosen]
        setattr(owner, field, _body(owner, field, kept))
    return tree


def _replace_at(number: int, form: str, tree: ast.Module) -> ast.Module:
    node = list(ast.walk(tree))[number]
    _replace_node(tree, node, _form_of(node, form))
    return tree


def _replace_node(tree: ast.AST, node: ast.AST, found: ast.AST | list[ast.stmt]) -> None:
    """Put another node, or statements, in the place of a node."""
    for owner in ast.walk(tree):
        for name, value in ast.iter_fields(owner):
            if value is node:
                setattr(owner, name, found)
            elif isinstance(value, list) and any(each is node for each in value):
                place = next(index for index, each in enumerate(value) if each is node)
                value[place : place + 1] = found if isinstance(found, list) else [found]


def _form_of(node: ast.AST, form: str) -> ast.AST | list[ast.stmt]:
    match node, form:
        case ast.Call(args=[first, *_]), "argument":
            return first
        case ast.Call(func=ast.Attribute(value=owner)), "owner":
            return owner
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)), "single":
            return [ast.Assign([name], value) for name, value in zip(names, values, strict=True)]
    found: ast.AST | list[ast.stmt] = getattr(node, form)
    return found
