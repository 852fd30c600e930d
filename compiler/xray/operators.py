"""Suggest to run code that breaks the graph as a custom operator, which calls plain Python when the graph runs.

An operator needs the types of its arguments and result, so the program is run once to record them. In its fake
implementation, each size of the result is a size of an argument, a constant, or data-dependent. Code that always
returns the same for the same arguments is instead run once, while the graph is captured.
"""

from __future__ import annotations

import ast
import copy
import linecache
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compiler.capture.sources import is_installed
from compiler.capture.suggestions import branches
from compiler.capture.suggestions.case import Case, nodes_around
from compiler.capture.suggestions.values import DYNAMIC_SHAPE, ITEM, SCALARS, SHAPES
from compiler.record import Site, Suggestion
from compiler.record.break_facts import Place
from compiler.torch_api.operators import EFFECT
from compiler.xray.library import is_upstream
from compiler.xray.outline import Argument, Outline, Outliner, Target
from compiler.xray.search import Search
from compiler.xray.substitution import Spot
from compiler.xray.value_kinds import ValueKind, ValueKinds, kinds_in_runs

MOST = 6
"""Maximum number of suggestions for a site."""
CLOCK = (
    "The clock is read when the graph runs. Operators that do not depend on this one may run before or after it, so "
    "the time between two readings is an estimate."
)
FLOATS = (
    "Inductor passes a float that is only known when the graph runs as float32: digits after the seventh may differ."
)
_WORDS = "Run {code} as an operator of the graph: it calls plain Python when the graph runs."
_CONSTANT = "Run {code} once for each set of arguments, while the graph is captured: the same arguments give the same."
_CLOCKS = {time.time: "time", time.perf_counter: "perf_counter", time.monotonic: "monotonic",
           time.process_time: "process_time"}  # fmt: skip
_REPEATABLE = {"hashlib", "json", "pickle", "base64", "binascii", "zlib", "struct", "math", "string", "textwrap", "re",
               "platform", "operator", "urllib", "html", "fractions", "decimal", "statistics", "colorsys"}  # fmt: skip
"""Modules with functions that return the same for the same arguments, within one process."""
_OF_THE_PROCESS = {"os": {"getpid", "getppid", "cpu_count"}, "socket": {"gethostname"}}
_IMPURE = {"random", "secrets", "time", "datetime", "uuid", "print", "open", "input", "warnings", "sys", "logging",
           "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "multinomial", "bernoulli"}  # fmt: skip
"""Modules, functions and methods that do more than compute a result from arguments."""
_OF_TORCHS_GENERATOR = {"get_rng_state", "set_rng_state", "seed", "initial_seed", "fork_rng"}
"""Functions that must keep their order relative to a graph's random operators, which compilers do not guarantee."""
_TYPES = {"tensor": "torch.Tensor", "array": "torch.Tensor", "tensors": "list[torch.Tensor]", "text": "str",
          "numbers": "list[torch.Tensor]"}  # fmt: skip
_FUNCTIONS = (ast.FunctionDef,)
_NEW_SIZE = "torch.library.get_ctx().new_dynamic_size()"


def operator_suggestions(search: Search, site: Site) -> Iterator[Suggestion]:
    """Yield suggestions to run the code of a site, or code around it, as an operator or as a constant."""
    seen = set[tuple[int, int, str]]()
    for code in _places_of(search, site):
        for target in code.targets():
            for made in filter(None, (code.suggestion(target), code.choice(target))):
                found = search.as_override(made, code.place) if is_upstream(code.file) else made
                if found is not None and (key := (found.line, found.end_line, found.rewrite)) not in seen:
                    seen.add(key)
                    yield found
                    if len(seen) == MOST:
                        return


def _places_of(search: Search, site: Site) -> Iterator[_Code]:
    """Yield the code at a site, and then at the calls that lead to it, innermost first."""
    places = [search.place_of(span) for span in site.chain if span.end_column]
    for depth, place in enumerate(reversed(places)):
        if is_installed(place.file) and not is_upstream(place.file):
            continue
        nodes = nodes_around(place)
        own = [node for node in nodes if isinstance(node, _FUNCTIONS)]
        functions = search.functions.get(place.file, ())
        if not own or not functions or not isinstance(nodes[-1], ast.expr):
            continue
        kinds = kinds_in_runs(search, (search.call, *search.call.later), place.file, own[-1].body)
        imports = dict(_imports_in(own[-1]))
        names = functions[0].__globals__ | {name: value for name, (value, _) in imports.items()}
        lines = {name: line for name, (_, line) in imports.items()}
        yield _Code(search, site, place, nodes, own[-1], names, kinds, depth, lines)


def _imports_in(function: ast.FunctionDef) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Yield the names that a function imports, each with its value and its import statement."""
    for node in ast.walk(function):
        for each in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            single = copy.copy(node)
            single.names = [each]  # type: ignore[attr-defined]
            name = each.asname or each.name.partition(".")[0]
            if isinstance(node, ast.ImportFrom):
                value = getattr(sys.modules.get(node.module or ""), each.name, None)
            else:
                value = sys.modules.get(each.name if each.asname else name)
            yield name, (value, ast.unparse(single))


@dataclass(frozen=True)
class _Code:
    """The code around a site, or around a call that leads to it (`depth` calls away)."""

    search: Search
    site: Site
    place: Place
    nodes: Sequence[ast.AST]
    function: ast.FunctionDef
    names: dict[str, Any]
    kinds: ValueKinds
    depth: int
    imports: dict[str, str]
    """Import statements in the function, by the name that they set."""

    @property
    def file(self) -> str:
        return self.kinds.file

    @property
    def statement(self) -> ast.stmt:
        return next(node for node in reversed(self.nodes) if isinstance(node, ast.stmt))

    def targets(self) -> Iterator[Target]:
        """Yield code that could be moved, in the order in which it is tried."""
        if self.depth:
            yield Target((self.nodes[-1],)) if isinstance(self.nodes[-1], ast.expr) else Target(())
            return
        inner = self.nodes[self.nodes.index(self.statement) + 1 :]
        if isinstance(self.statement, ast.Expr):
            yield Target((self.statement,))
        for node in reversed(inner):
            is_number = node is self.nodes[-1] and self.site.kind in ITEM
            if isinstance(node, ast.Call | ast.Subscript) and not is_number:
                yield Target((node,))
        for part in ast.walk(self.nodes[-1]) if isinstance(self.statement, ast.If) else ():
            if isinstance(part, ast.Call) and part is not self.nodes[-1] and self._is_impure([part]):
                yield Target((part,))
        if is_effect(branch := self._without_skip(self._branch())) and branch is not None:
            yield Target((branch,))
        yield from self._uses()

    def choice(self, target: Target) -> Suggestion | None:
        """Suggest to run a number in a condition as an operator, and to choose by it in the graph; else None."""
        found, node = self.suggestion(target), target.expression
        kind = self.kinds.one_of(node) if node is not None else None
        if found is None or node is None or kind is None or kind.form != "number" or self._clock(node):
            return None
        source = tuple(linecache.getlines(self.file))
        around = tuple(each for each in self.nodes if not isinstance(each, ast.expr))[:-1]
        case = Case(self.site.kind, "", self.site.span, source, node, self.statement, around)
        lines = branches.branch_to_where(case)
        code, call = ast.unparse(node), re.search(r"\w+_line_\w+\(.*?\)(?=\.item\(\))", found.rewrite)
        if lines is None or call is None or not found.definitions or lines[2].count(code) != 1:
            return None
        first, last, rewrite = lines
        text = f"{found.text} Compute both sides, and choose by its number inside the graph."
        return replace(found, text=text, line=first, end_line=last, rewrite=rewrite.replace(code, call[0]), settings=())

    def _branch(self) -> ast.If | None:
        """The innermost `if` around the site; None if there is none."""
        return next((node for node in reversed(self.nodes) if isinstance(node, ast.If)), None)

    def _without_skip(self, branch: ast.If | None) -> ast.If | None:
        """An `if` without a `continue` at its end, as code for no rows may do nothing."""
        if branch is None or len(branch.body) < 2 or not isinstance(branch.body[-1], ast.Continue) or branch.orelse:
            return branch
        shorter = copy.copy(branch)
        shorter.body = branch.body[:-1]
        return shorter

    def _uses(self) -> Iterator[Target]:
        """Yield code that uses the name that the statement assigns: calls, or all statements up to the last use."""
        match self.statement:
            case ast.Assign(targets=[ast.Name(id=name)]):
                pass
            case _:
                return
        block = next((body for body in _blocks(self.function) if self.statement in body), [])
        after = block[block.index(self.statement) + 1 :] if block else []
        users = [statement for statement in after if _reads(statement, name)]
        if len(users) == 1:
            calls = [node for node in ast.walk(users[0]) if isinstance(node, ast.Call) and _reads(node, name)]
            yield from (Target((node,)) for node in reversed(calls))
        if users:
            region = [self.statement, *after[: after.index(users[-1]) + 1]]
            if all(is_effect(statement) for statement in region[1:]):
                yield Target(tuple(region))

    def suggestion(self, target: Target) -> Suggestion | None:
        """The suggestion to move a target; None if it can't be moved."""
        if not target.nodes:
            return None
        sites = [node for node in ast.walk(self.function) if self._is_site(node)]
        if target.expression is not None and self._is_repeatable(target.expression):
            constant = self._outliner(sites, _accepts_constant, lambda name, _: _name(name)).outline(target)
            if constant is not None and constant.value is not None:
                return self._as_constant(target, constant)
        if any(_is_of_torchs_generator(part) for node in target.nodes for part in ast.walk(node)):
            return None
        found = self._outliner(sites, _accepts, _inner_code).outline(target)
        if found is None or (found.value is not None and not _can_be_returned(self.kinds.kinds_of(target.nodes[0]))):
            return None
        return self._as_operator(target, found)

    def _is_site(self, node: ast.AST) -> bool:
        return isinstance(node, ast.expr) and Spot.of_node(self.file, node, "value") in self._site_spots

    @property
    def _site_spots(self) -> set[Spot]:
        spots = {Spot(spot.file, spot.start, spot.end) for spot in self.search.spots}
        places = (self.search.place_of(site.span) for site in self.search.sites if site.span.end_column)
        return spots | {Spot.of_place(place) for place in places}

    def _outliner(self, sites: Sequence[ast.AST], accepts: Any, inner: Any) -> Outliner:
        return Outliner(self.function, self.names, self.kinds, sites, accepts, inner)

    def _is_repeatable(self, node: ast.expr) -> bool:
        """Whether an expression can be run once: it has a plain value, from repeatable functions and no impure ones."""
        kind = self.kinds.one_of(node)
        if kind is None or kind.form not in ("text", "constant", "number", "numbers"):
            return False
        roots = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
        modules = {name: getattr(self.names.get(name), "__name__", "") for name in roots}
        own = [name for name, module in modules.items() if module.partition(".")[0] in _REPEATABLE - {"math"}]
        process = [
            part
            for part in ast.walk(node)
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name)
            and part.attr in _OF_THE_PROCESS.get(modules.get(part.value.id, ""), ())
        ]  # fmt: skip
        return bool(own or process) and not roots & _IMPURE

    def _as_constant(self, target: Target, found: Outline) -> Suggestion:
        name = self._new_name(target)
        parameters = ", ".join(argument.name for argument in found.arguments)
        lines = [ast.unparse(ast.fix_missing_locations(statement)) for statement in found.body]
        lines = [*self._imports_for(target), *lines]
        body = [*lines, f"return {ast.unparse(found.value)}"] if found.value is not None else lines
        definition = "\n".join(
            ["@torch.compiler.assume_constant_result", f"def {name}({parameters}):", *_indent_lines(body)]
        )
        call = f"{name}({', '.join(argument.code for argument in found.arguments)})"
        return self._suggestion(target, found, call, definition, (), _CONSTANT, "")

    def _as_operator(self, target: Target, found: Outline) -> Suggestion:
        name, kinds = self._new_name(target), self.kinds.kinds_of(target.nodes[0])
        is_clock = target.expression is not None and self._clock(target.expression) != ""
        if is_clock:  # the operator returns whole nanoseconds
            kinds = [replace(kind, type=int) for kind in kinds]
        kinds = kinds if found.value is not None else ()
        is_site = not self.depth and target.expression is self.nodes[-1]
        writer = _Operator(
            name,
            self._namespace(),
            found,
            kinds,
            self._imports_for(target),
            is_site and self.site.kind in DYNAMIC_SHAPE,
        )
        call = f"{name}({', '.join(_outer_code(argument) for argument in found.arguments)})"
        settings: tuple[str, ...] = ()
        if is_clock and target.expression is not None:
            is_global = self.names.get("time") is time and "time" not in self.imports
            body = [] if is_global else ["import time"]
            body.append(f"return torch.tensor({self._clock(target.expression)})")
            definition = writer.definition(body, self._is_impure)
            return self._suggestion(target, found, f"({call}.item() * 1e-9)", definition, (SCALARS,), _WORDS, CLOCK)
        form = kinds[0].form if found.value is not None else ""
        if form == "number":
            call, settings = f"{call}.item()", (SCALARS,)
        if form == "array":
            call = f"{call}.numpy()"
        if writer.has_dynamic_size:
            settings = (SHAPES,)
        results = kinds[:1] if found.value is not None else ()
        kinds_used = (*results, *(each.kind for each in found.arguments))
        has_floats = any(kind.type is float or kind.form == "numbers" for kind in kinds_used)
        definition = writer.definition([], self._is_impure)
        return self._suggestion(target, found, call, definition, settings, _WORDS, FLOATS if has_floats else "")

    def _clock(self, node: ast.expr) -> str:
        """Code that reads the same clock in nanoseconds; "" if an expression is not the reading of a clock."""
        if not isinstance(node, ast.Call) or node.args or node.keywords:
            return ""
        match node.func:
            case ast.Attribute(value=ast.Name(id=module), attr=attribute):
                function = getattr(self.names.get(module), attribute, None)
            case ast.Name(id=name):
                function = self.names.get(name)
            case _:
                return ""
        return next((f"time.{name}_ns()" for clock, name in _CLOCKS.items() if function is clock), "")

    def _imports_for(self, target: Target) -> list[str]:
        """The function's own imports that a target needs."""
        names = {part.id for node in target.nodes for part in ast.walk(node) if isinstance(part, ast.Name)}
        return [line for name, line in self.imports.items() if name in names]

    def _is_impure(self, nodes: Sequence[ast.AST]) -> bool:
        """Whether moved code does more than compute a result from its arguments."""
        names = {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}
        attributes = {part.attr for node in nodes for part in ast.walk(node) if isinstance(part, ast.Attribute)}
        modules = {getattr(self.names.get(name), "__name__", name).partition(".")[0] for name in names}
        owners = {getattr(self.names.get(name), "__module__", None) for name in names}
        return bool((modules | owners | attributes) & _IMPURE)

    def _suggestion(
        self, target: Target, found: Outline, call: str, definition: str, settings: tuple[str, ...], words: str,
        caveat: str,
    ) -> Suggestion:  # fmt: skip
        first, last, rewrite = _rewrite_lines(linecache.getlines(self.file), target, found.absorbed, call)
        code = ast.unparse(target.nodes[0]).splitlines()[0]
        text = words.replace("{code}", f"`{code if len(code) <= 60 else code[:57] + '...'}`")
        return Suggestion(
            text, self.search.book.name(self.file), first, last, rewrite, settings,
            "maybe" if caveat else "machine-applicable", caveat, (definition,),
        )  # fmt: skip

    def _new_name(self, target: Target) -> str:
        """A name for the new function: the last word of the first call in the target, and the line number."""
        node = target.nodes[0]
        calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
        words = re.findall(r"\w+", ast.unparse(calls[0].func)) if calls else []
        word = next((word for word in reversed(words) if word.isidentifier()), self.function.name)
        name, text = f"{word}_line_{node.lineno}", "".join(linecache.getlines(self.file))
        same_line = [
            part for part in ast.walk(self.function)
            if isinstance(part, ast.Call) and part.lineno == node.lineno and part is not node
            and getattr(part.func, "attr", getattr(part.func, "id", "")) == word
        ]  # fmt: skip
        name = f"{name}_{node.col_offset}" if same_line and target.expression is not None else name
        while re.search(rf"\b{name}\b", text):
            name += "_"
        return name

    def _namespace(self) -> str:
        stem = re.sub(r"\W+", "_", Path(self.search.book.name(self.file)).stem).strip("_").lower()
        return stem if stem and not stem[0].isdigit() else f"cell_{stem}"


@dataclass(frozen=True)
class _Operator:
    """Writes the definition of an operator. `kinds` are the kinds of its recorded results, () if it returns None.

    `has_dynamic_rows`: the results' first size depends on data, although it may have been the same in all runs.
    """

    name: str
    namespace: str
    outline: Outline
    kinds: Sequence[ValueKind]
    imports: Sequence[str] = ()
    has_dynamic_rows: bool = False

    def definition(self, body: Sequence[str], is_impure: Any) -> str:
        """Code of the operator and its fake implementation, and its registration as an effect if it may have one.

        `body` replaces the moved code, unless it is empty.
        """
        parameters = ", ".join(f"{each.name}: {_type(each.kind)}" for each in self.outline.arguments)
        signature = f"({parameters}) -> {self._returns()}:"
        nodes = [*self.outline.body, *([self.outline.value] if self.outline.value is not None else [])]
        lines = [
            f'@torch.library.custom_op("{self.namespace}::{self.name}", mutates_args=())',
            f"def {self.name}{signature}",
            *_indent_lines(body or self._body()),
            "",
            "",
            f"@{self.name}.register_fake",
            f"def {self.name}_fake{signature}",
            *_indent_lines(self._fake()),
        ]
        if not self.kinds or not self.outline.arguments or is_impure(nodes):
            lines += ["", "", f"{self.name}.register_effect({EFFECT})"]
        return "\n".join(lines)

    @property
    def has_dynamic_size(self) -> bool:
        return "new_dynamic_size" in "\n".join(self._fake())

    def _returns(self) -> str:
        if not self.kinds:
            return "None"
        if self.kinds[0].form == "tensors":
            return f"tuple[{', '.join(['torch.Tensor'] * len(self.kinds[0].parts))}]"
        return "torch.Tensor"

    def _body(self) -> list[str]:
        statements = [ast.unparse(ast.fix_missing_locations(statement)) for statement in self.outline.body]
        lines = [*self.imports, *statements]
        if self.outline.value is None:
            return lines
        value, kind = ast.unparse(self.outline.value), self.kinds[0]
        if kind.form == "tensor":
            return [*lines, f"return ({value}).clone(memory_format=torch.contiguous_format)"]
        if kind.form == "tensors":
            return [*lines, f"return tuple(part.clone(memory_format=torch.contiguous_format) for part in {value})"]
        dtype = {float: ", dtype=torch.float64", int: ", dtype=torch.int64"}.get(kind.type, "")
        dtype = ", dtype=torch.int64" if kind.form == "integers" else dtype
        return [*lines, f"return torch.tensor({value}{dtype})"]

    def _fake(self) -> list[str]:
        if not self.kinds:
            return ["return None"]
        kind = self.kinds[0]
        if kind.form == "number":
            return [f"return torch.empty((), dtype={'torch.float64' if kind.type is float else 'torch.int64'})"]
        if kind.form == "integers":
            return [f"size = {_NEW_SIZE}", "return torch.empty(size, dtype=torch.int64)"]
        rows = [f"size = {_NEW_SIZE}"] if self.has_dynamic_rows else []
        if kind.form != "tensors":
            return [*rows, f"return {self._empty(list(self.kinds))}"]
        parts = [self._empty([each.parts[n] for each in self.kinds]) for n in range(len(kind.parts))]
        return [*rows, f"return {', '.join(parts)},"]

    def _empty(self, kinds: Sequence[ValueKind]) -> str:
        """Code for an empty tensor like the results."""
        sizes = [self._size([kind.shape[n] for kind in kinds], n) for n in range(len(kinds[0].shape))]
        own = next((each for each in self.outline.arguments if each.kind.form in ("tensor", "array")), None)
        device = f"{own.name}.device" if own and own.kind.device == kinds[0].device else repr(kinds[0].device or "cpu")
        shape = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
        return f"torch.empty({shape}, dtype={kinds[0].dtype}, device={device})"

    def _size(self, sizes: Sequence[int], dimension: int) -> str:
        """Code for one size of a result: a size of an argument, a number that is always the same, or data-dependent."""
        if self.has_dynamic_rows and dimension == 0:
            parts = self.kinds[0].parts
            return "size" if sizes[0] == (parts[0] if parts else self.kinds[0]).shape[0] else _NEW_SIZE
        tensors = [each for each in self.outline.arguments if each.kind.form in ("tensor", "array")]
        places = [(each, n) for each in tensors for n in range(len(each.kind.shape)) if _has_sizes(each, n, sizes)]
        rank = len(self.kinds[0].shape)
        alike = [place for place in places if len(place[0].kind.shape) == rank and place[1] == dimension]
        for each, n in alike or (places if max(sizes) > 1 else []):
            return f"{each.name}.shape[{n}]"
        return str(sizes[0]) if len(set(sizes)) == 1 else _NEW_SIZE


def _has_sizes(argument: Argument, dimension: int, sizes: Sequence[int]) -> bool:
    """Whether a dimension of an argument had these sizes in the recorded runs, in this order."""
    if any(len(kind.shape) <= dimension for kind in argument.kinds):
        return False
    own = [kind.shape[dimension] for kind in argument.kinds]
    return own == list(sizes) if len(own) == len(sizes) else own[:1] == list(sizes[:1])


def is_effect(statement: ast.stmt | None) -> bool:
    """Whether a statement is a call for its side effects, an assignment to a name, or an `if` with such statements."""
    if isinstance(statement, ast.If):
        return all(map(is_effect, [*statement.body, *statement.orelse]))
    match statement:
        case ast.Expr(value=ast.Call()) | ast.Assign(targets=[ast.Name()]) | ast.Pass():
            return not any(isinstance(part, ast.Yield | ast.YieldFrom | ast.Await) for part in ast.walk(statement))
    return False


def _is_of_torchs_generator(node: ast.AST) -> bool:
    """Whether a node is a function that reads or sets the state of torch's default generators."""
    if not isinstance(node, ast.Attribute):
        return False
    return node.attr in _OF_TORCHS_GENERATOR or (
        node.attr.startswith("manual_seed") and ast.unparse(node.value) in ("torch", "torch.random", "torch.cuda")
    )


def _accepts(kind: ValueKind) -> bool:
    if kind.form == "tensors":
        return kind.type is list
    return kind.form in ("tensor", "array", "number", "numbers", "text")


def _accepts_constant(kind: ValueKind) -> bool:
    return kind.form in ("number", "numbers", "text", "constant", "integers")


def _can_be_returned(kinds: Sequence[ValueKind]) -> bool:
    """Whether an operator can return values of these kinds: of one dtype and rank, and without gradients."""
    if not kinds or len({(kind.form, kind.type, kind.dtype, len(kind.shape), len(kind.parts)) for kind in kinds}) > 1:
        return False
    parts = [part for kind in kinds for part in (kind, *kind.parts)]
    if any(part.requires_grad for part in parts) or kinds[0].type is bool:
        return False
    return kinds[0].form in ("tensor", "array", "number", "integers") or (
        kinds[0].form == "tensors" and kinds[0].type is tuple
    )


def _type(kind: ValueKind) -> str:
    if kind.form == "number":
        return "torch.Tensor" if kind.type is float else kind.type.__name__
    return _TYPES[kind.form]


def _inner_code(name: str, kind: ValueKind) -> ast.expr:
    """Code that reads an argument inside the operator. A float is passed as a tensor, as it may be symbolic."""
    if kind.form == "numbers":
        numbers = f"[number.item() for number in {name}]"
        codes: dict[type, str] = {
            list: numbers,
            tuple: f"tuple({numbers})",
            dict: f"dict(zip({kind.keys!r}, {numbers}))",
        }
        return ast.parse(codes[kind.type], mode="eval").body
    method = "item" if kind.type is float else "numpy" if kind.form == "array" else ""
    return ast.Call(ast.Attribute(_name(name), method, ast.Load()), [], []) if method else _name(name)


def _outer_code(argument: Argument) -> str:
    """Code that passes an argument where the operator is called."""
    if argument.kind.type is float:
        return f"torch.scalar_tensor({argument.code}, dtype=torch.float64)"
    if argument.kind.form == "numbers":
        values = f"{argument.code}.values()" if argument.kind.type is dict else argument.code
        return f"[torch.scalar_tensor(number, dtype=torch.float64) for number in {values}]"
    if argument.kind.form == "array":
        return f"torch.as_tensor({argument.code})"
    if argument.kind.form == "tensors" and any(part.requires_grad for part in argument.kind.parts):
        return f"[each.detach() for each in {argument.code}]"
    is_path = re.fullmatch(r"[\w.\[\]]+", argument.code)
    code = argument.code if is_path else f"({argument.code})"
    return f"{code}.detach()" if argument.kind.requires_grad else argument.code


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _indent_lines(lines: Sequence[str]) -> list[str]:
    return [f"    {part}" if part else "" for line in lines for part in line.split("\n")]


def _blocks(function: ast.AST) -> Iterator[list[ast.stmt]]:
    for owner in ast.walk(function):
        for name in ("body", "orelse", "finalbody"):
            if isinstance(body := getattr(owner, name, None), list):
                yield body


def _reads(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(part, ast.Name) and part.id == name and isinstance(part.ctx, ast.Load) for part in ast.walk(node)
    )


def _rewrite_lines(
    lines: Sequence[str], target: Target, absorbed: Sequence[ast.stmt], call: str
) -> tuple[int, int, str]:
    """First line, last line and new text: the target is replaced by a call, and absorbed assignments are left out."""
    start, end = target.nodes[0], target.nodes[-1]
    first, last = min([start.lineno, *(each.lineno for each in absorbed)]), end.end_lineno or end.lineno
    before = lines[start.lineno - 1].encode()[: start.col_offset].decode()
    after = lines[last - 1].encode()[end.end_col_offset or 0 :].decode().rstrip("\n")
    left_out = {n for each in absorbed for n in range(each.lineno, (each.end_lineno or each.lineno) + 1)}
    kept = [lines[n - 1].rstrip("\n") for n in range(first, start.lineno) if n not in left_out]
    return first, last, "\n".join([*kept, f"{before}{call}{after}"])
