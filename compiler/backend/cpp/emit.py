"""C++ code generation for the CPU: one translation unit for a program, one function for each kernel.

OpenMP parallelizes large loops and vectorizes the innermost one. A kernel without a reduction is one loop nest. A
reduction runs by rows if the reduced elements are contiguous, else by columns, with `thresholds.tile` adjacent results
at once. Sums of float32 are accumulated in double.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import torch

from compiler.backend.cpp.text import PRELUDE, TYPES, CppText, identifier
from compiler.backend.ir import SCANS, Kernel, Loop, Program, philox
from compiler.backend.ir.expr import Const, Load, Put, Shape, cost
from compiler.backend.ir.index import Index, Var, factor_of, position, product
from compiler.backend.ir.scalar import OPERATIONS, neutral
from compiler.backend.ir.sweeps import Sweep, sweeps
from compiler.backend.ir.symbols import symbols_and_checks
from compiler.backend.passes.context import Context
from compiler.backend.passes.cost import offsets

_MATH = {name: operation for name, operation in OPERATIONS.items() if operation.cpp.startswith(f"::{name}{{f}}")}
"""Operations that call C math functions, by the name of the function for doubles."""
_RANDOM = {name: ["logf", "cosf"] for name, operation in OPERATIONS.items() if operation.kind == "random"}
"""Math functions that the code of each random function calls."""
RANDOM_TEXT = philox.CPP
"""Code of the functions that draw random numbers."""
_CLAUSES = {"sum": "+", "prod": "*", "any": "|", "all": "&", "max": "most", "min": "least"}
_VECTOR = '__attribute__((simd("notinbranch"))) '


@dataclass(frozen=True, slots=True)
class Function:
    """C++ function of a kernel. Its arguments are pointers to `buffers`, the ints `symbols`, and the number of threads.

    checks  whether it checks indices loaded from tensors; it then returns 1 if an index is out of range, else 0
    lines   its first and last line in the text, counted from 1
    """

    name: str
    kernel: str
    buffers: tuple[str, ...]
    symbols: tuple[str, ...]
    checks: bool
    lines: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Code:
    """A translation unit. `lines` maps a line number (from 1) to the target of the loop that the line computes."""

    text: str
    functions: tuple[Function, ...]
    lines: Mapping[int, str] = field(default_factory=dict)


def emit(program: Program, ctx: Context, vector_math: bool) -> Code:
    """Generate C++ for a program's kernels. `vector_math` enables vector math functions (glibc's libmvec)."""
    writers = [_Writer(kernel, program, ctx) for kernel in program.kernels]
    for writer in writers:
        writer.write()
    body = "\n\n".join("\n".join(writer.lines) for writer in writers)
    text = shared_text(program.name, {name for writer in writers for name in writer.called}, vector_math)
    number, lines, made = text.count("\n") + 1, {}, []
    for writer in writers:
        lines.update({number + line: target for line, target in writer.targets.items()})
        made.append(replace(writer.function, lines=(number, number + len(writer.lines) - 1)))
        number += len(writer.lines) + 1
    return Code(text + body + "\n", tuple(made), lines)


def shared_text(name: str, called: Set[str], vector_math: bool) -> str:
    """Head of a translation unit: the prelude, and the declarations and OpenMP reductions that `called` requires."""
    random = RANDOM_TEXT if called & _RANDOM.keys() else ""
    needed = set(called).union(*(_RANDOM[function] for function in called & _RANDOM.keys()))
    return "\n".join([f"// {name}", PRELUDE, *_reductions(called), *_declarations(needed, vector_math), random, ""])


def _reductions(called: Set[str]) -> Iterator[str]:
    """OpenMP declarations of max and min reductions that propagate NaN, unlike OpenMP's built-in reductions."""
    for name, function in (("most", "maximum"), ("least", "minimum")):
        if name in called:
            types = ", ".join(sorted(set(TYPES.values()) - {"_Float16"}))
            combined = f"omp_out = {function}(omp_out, omp_in)"
            yield f"#pragma omp declare reduction({name}: {types}: {combined}) initializer(omp_priv = omp_orig)"


def _declarations(called: Set[str], vector_math: bool) -> Iterator[str]:
    """Declarations of the math functions that the code calls."""
    for name, operation in _MATH.items():
        for suffix, kind in (("f", "float"), ("", "double")):
            if name + suffix in called:
                arguments = ", ".join([kind] * operation.arity)
                vector = _VECTOR if vector_math and name not in ("lgamma", "fmod") else ""
                yield f'extern "C" {vector}{kind} {name}{suffix}({arguments}) noexcept;'


class _Writer(CppText):
    """Writes the C++ function of one kernel."""

    def __init__(self, kernel: Kernel, program: Program, ctx: Context) -> None:
        super().__init__(kernel, program)
        self.ctx = ctx
        self.started: set[str] = set()
        symbols, checks = symbols_and_checks(program, kernel)
        self.function = Function(identifier(f"kernel_{kernel.name}"), kernel.name, kernel.buffers, symbols, checks)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(f"{head} {{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    def write(self) -> None:
        arguments = [self.parameter(name) for name in self.function.buffers]
        arguments += [f"long {name}" for name in self.function.symbols]
        with self.block(f'extern "C" int {self.function.name}({", ".join([*arguments, "int threads"])})'):
            if self.function.checks:
                self.line("bool failed = false;")
            if not self.kernel.reduced and not any(loop.reduction for loop in self.kernel.loops):
                self.pointwise()
            elif self.is_by_columns():
                self.by_columns()
            else:
                self.by_rows()
            self.line("return failed;" if self.function.checks else "return 0;")

    def parameter(self, name: str) -> str:
        return f"{'' if name in self.kernel.writes else 'const '}{self.kind(name)}* __restrict {self.pointer(name)}"

    def kind(self, name: str) -> str:
        """C++ type of a buffer's elements."""
        return TYPES[self.program.by_name[name].dtype]

    def pointer(self, name: str) -> str:
        return f"out_{name}" if name in self.kernel.writes else f"in_{name}"

    def write_load(self, load: Load) -> str:
        return self.known.get(load.buffer) or self.element(load.buffer, load.index)

    def element(self, name: str, index: Shape) -> str:
        """C++ text of a buffer's element, `in_x[…]`."""
        return f"{self.pointer(name)}[{self.index(self.offset(name, index))}]"

    def size(self, var: Var) -> str:
        return self.index(var.size)

    def parallel(self, count: int, work: Iterable[Var], more: str = "") -> None:
        """Write the OpenMP pragma for the next `count` loops. Small loops and scatters run on one thread."""
        if self.kernel.taken:
            return
        points = product(var.size for var in work)
        known, least = points.constant, self.ctx.thresholds.parallel_work
        if known is not None and known < least:
            if "simd" in more:
                self.line("#pragma omp simd")
            return
        condition = "" if known is not None else f" if({self.index(points)} >= {least})"
        shared = " reduction(|:failed)" if self.function.checks else ""
        collapse = f" collapse({count})" if count > 1 else ""
        self.line(f"#pragma omp parallel for{more}{collapse} num_threads(threads){condition}{shared}")

    @contextmanager
    def nest(self, variables: Sequence[Var]) -> Iterator[None]:
        with ExitStack() as loops:
            for var in variables:
                loops.enter_context(self.block(f"for (long {var} = 0; {var} < {self.size(var)}; {var}++)"))
            yield

    def pointwise(self) -> None:
        ranges = self.kernel.ranges
        if len(ranges) < 2:
            simd = "" if self.function.checks else " simd"
            if ranges:
                self.parallel(1, ranges, simd)
            with self.nest(ranges):
                self.values(self.kernel.loops)
            return
        self.parallel(len(ranges) - 1, ranges)
        with self.nest(ranges[:-1]):
            self.simd()
            with self.nest(ranges[-1:]):
                self.values(self.kernel.loops)

    def simd(self) -> None:
        if not self.function.checks and not self.kernel.taken:
            self.line("#pragma omp simd")

    def values(self, loops: Iterable[Loop], lane: str = "") -> None:
        """Write the value of each loop, and its store unless it is local."""
        for loop in loops:
            self.value(loop, lane)

    def value(self, loop: Loop, lane: str = "", again: bool = False) -> None:
        """Write one loop: a scatter, or its value as a new variable (with `lane`, as an element of an array)."""
        self.comment(loop)
        if isinstance(put := loop.value, Put):
            place = self.element(loop.target, put.index)
            self.line(f"{place} {put.sign} {self.text(put.value)};", loop.target)
        else:
            self.define(loop, self.text(loop.value), lane, again)

    def define(self, loop: Loop, text: str, lane: str = "", again: bool = False) -> None:
        """Write a loop's value to a variable, and store the value unless it is local or recomputed (`again`)."""
        name = self.known[loop.target] = identifier(loop.target) + lane
        self.line(f"{'' if lane else f'const {self.kind(loop.target)} '}{name} = {text};", loop.target)
        if not again and loop.target not in self.kernel.local:
            self.line(f"{self.element(loop.target, loop.index)} = {name};", loop.target)

    def is_by_columns(self) -> bool:
        """Whether more memory accesses are contiguous across adjacent results than along the reduced dimension."""
        if not self.kernel.ranges or not self.kernel.reduced:
            return False
        places = [*offsets(self.kernel, self.program)]
        across, along = (
            sum(self.ctx.number(factor_of(place, var)) == 1 for place in places)
            for var in (self.kernel.ranges[-1], self.kernel.reduced[-1])
        )
        return across > along

    def by_rows(self) -> None:
        """Write a reduction by rows, parallel over the rows, or within each row if there are few long rows."""
        kernel = self.kernel
        rows, row = self.ctx.points(kernel.ranges), self.ctx.points(kernel.reduced)
        is_shared = rows < 8 and row >= self.ctx.thresholds.parallel_work
        if kernel.ranges and not is_shared:
            self.parallel(len(kernel.ranges), (*kernel.ranges, *kernel.reduced))
        with self.nest(kernel.ranges):
            for sweep in sweeps(kernel):
                self.values(sweep.scalars)
                self.sweep(sweep, is_shared)

    def sweep(self, sweep: Sweep, is_shared: bool) -> None:
        reductions = [loop for loop in sweep.body if loop.reduction]
        if not sweep.body:
            return
        self.rows(sweep)
        for loop in reductions:
            self.start(loop)
        outer, last = self.kernel.reduced[:-1], self.kernel.reduced[-1:]
        is_ordered = any(loop.reduction.startswith("arg") or loop.is_scan for loop in reductions)
        plain = bool(last) and not is_ordered and not self.function.checks
        clauses = ""
        for loop in reductions if plain else ():
            self.called.add(clause := _CLAUSES[loop.reduction])
            clauses += f" reduction({clause}:{self.total(loop)})"
        if plain and is_shared:
            self.parallel(1, self.kernel.reduced, clauses if outer else f" simd{clauses}")
        with self.nest(outer):
            if plain and (outer or not is_shared):
                self.line(f"#pragma omp simd{clauses}")
            with self.nest(last):
                self.points(sweep)
        for loop in reductions:
            if not loop.is_scan:
                self.finish(loop)

    def points(self, sweep: Sweep, lane: str = "") -> None:
        """Write the body of a sweep's innermost loop."""
        before = dict(self.known)
        for loop in sweep.body:
            if loop.reduction:
                self.comment(loop)
                self.take(loop, self.text(loop.value), lane)
                if loop.is_scan:  # the running result is a new variable
                    found = f"({self.kind(loop.target)}){self.total(loop)}{lane}"
                    self.define(loop, found, again=loop.target in sweep.again)
            elif loop.target not in before:
                self.value(loop, again=loop.target in sweep.again)
                if self.is_kept(loop):
                    self.line(f"{self.row_element(loop)} = {self.known[loop.target]};")
        kept = {o.target: self.row_element(o) for o in sweep.body if not o.reduction and self.is_kept(o)}
        self.known = {**before, **kept}

    def rows(self, sweep: Sweep) -> None:
        """Declare row buffers for values that a later sweep reads again."""
        for loop in sweep.body:
            if not loop.reduction and loop.target not in self.known and self.is_kept(loop):
                self.line(f"{self.kind(loop.target)} row_{loop.target}[{self.size(self.kernel.reduced[-1])}];")

    def is_kept(self, loop: Loop) -> bool:
        """Whether a value is kept in a row buffer: it is expensive, a later sweep needs it, and its row is short."""
        again = {name for sweep in sweeps(self.kernel) for name in sweep.again}
        if loop.target not in again or len(self.kernel.reduced) != 1 or cost(loop.value) < 10:
            return False
        length = self.kernel.reduced[0].size.constant
        return length is not None and length <= self.ctx.thresholds.row_buffer and not self.is_by_columns()

    def row_element(self, loop: Loop) -> str:
        return f"row_{loop.target}[{self.kernel.reduced[-1]}]"

    def total(self, loop: Loop) -> str:
        return f"{identifier(loop.target)}_{loop.reduction}"

    def total_type(self, loop: Loop) -> str:
        is_sum = loop.reduction in ("sum", "prod", *SCANS) and loop.value.dtype == torch.float32
        return "double" if is_sum else TYPES[loop.value.dtype]

    def start(self, loop: Loop, lane: str = "") -> None:
        """Write the initialization of a reduction; a scan may be initialized again for a later sweep."""
        kind = "" if lane or loop.target in self.started else f"{self.total_type(loop)} "
        self.started.add(loop.target)
        dtype = torch.float64 if self.total_type(loop) == "double" else loop.value.dtype
        self.line(f"{kind}{self.total(loop)}{lane} = {self.text(Const(neutral(loop.reduction, dtype), dtype))};")
        if loop.reduction.startswith("arg"):
            self.line(f"{'' if lane else 'long '}{self.total(loop)}_at{lane} = -1;")

    def take(self, loop: Loop, value: str, lane: str = "") -> None:
        """Write the accumulation of one value in a reduction."""
        total = self.total(loop) + lane
        if loop.reduction.startswith("arg"):
            better, place = "above" if loop.reduction == "argmax" else "below", f"{self.total(loop)}_at{lane}"
            at = position([*map(Index.of, loop.reduced)], [var.size for var in loop.reduced])
            kind = self.total_type(loop)
            test = f"{place} < 0 || ::{better}<{kind}>({value}, {total})"
            self.line(f"if ({test}) {{ {total} = {value}; {place} = {self.index(at)}; }}", loop.target)
            return
        sign = {"sum": "+=", "prod": "*=", "any": "|=", "all": "&="}.get(loop.reduction.removeprefix("cum"))
        if sign is None:
            name = "maximum" if loop.reduction == "max" else "minimum"
            self.line(f"{total} = ::{name}<{self.total_type(loop)}>({total}, {value});", loop.target)
        else:
            self.line(f"{total} {sign} {value};", loop.target)

    def finish(self, loop: Loop, lane: str = "") -> None:
        """Write the result of a reduction, converted to its dtype."""
        found = f"{self.total(loop)}{'_at' if loop.reduction.startswith('arg') else ''}{lane}"
        self.define(loop, f"({self.kind(loop.target)}){found}", lane)

    def by_columns(self) -> None:
        """Write a reduction by columns, which computes a tile of adjacent results at once, one in each lane."""
        *outer, last = self.kernel.ranges
        tile = self.ctx.thresholds.tile
        self.parallel(len(outer) + 1, (*self.kernel.ranges, *self.kernel.reduced))
        with self.nest(outer), self.block(f"for (long tile = 0; tile < {self.size(last)}; tile += {tile})"):
            self.line(f"const long lanes = ::minimum<long>({tile}, {self.size(last)} - tile);")
            for loop in self.kernel.loops:
                self.room(loop, tile)
            for sweep in sweeps(self.kernel):
                self.column_sweep(sweep, last)

    def room(self, loop: Loop, tile: int) -> None:
        """Declare a loop's arrays, with one element per lane."""
        if len(loop.ranges) > len(self.kernel.ranges):
            return
        if not loop.is_scan:
            self.line(f"{self.kind(loop.target)} {identifier(loop.target)}[{tile}];")
        if loop.reduction:
            self.line(f"{self.total_type(loop)} {self.total(loop)}[{tile}];")
        if loop.reduction.startswith("arg"):
            self.line(f"long {self.total(loop)}_at[{tile}];")

    def column_sweep(self, sweep: Sweep, last: Var) -> None:
        reductions = [loop for loop in sweep.body if loop.reduction]
        if sweep.scalars or reductions:
            with self.lanes(last):
                self.values(sweep.scalars, "[lane]")
                for loop in reductions:
                    self.start(loop, "[lane]")
        if not sweep.body:
            return
        with self.nest(self.kernel.reduced), self.lanes(last):
            self.points(sweep, "[lane]")
        if finished := [loop for loop in reductions if not loop.is_scan]:
            with self.lanes(last):
                for loop in finished:
                    self.finish(loop, "[lane]")

    @contextmanager
    def lanes(self, last: Var) -> Iterator[None]:
        self.simd()
        with self.block("for (long lane = 0; lane < lanes; lane++)"):
            self.line(f"const long {last} = tile + lane;")
            yield
