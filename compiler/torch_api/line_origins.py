"""Which FX node each line of a generated kernel computes, observed while TorchInductor writes it.

Lowering an FX node makes loops (torch._inductor.ir.Loops), whose inner function calls those of the loops it inlines.
Loops are marked with the node being lowered; while the inner function of marked loops runs, their node is the active
one, the innermost of them first. What is traced from it (torch._inductor.loop_body.LoopBody) carries the node in its
`meta`, also into the copies that reordered and merged loops are. When a body is turned into code, what is written
belongs to the body's node at hand: a load to the node that reads, a store to the node whose value is stored, and a
common subexpression to all that use it.

Nothing that Inductor looks at is changed, so neither is the code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from torch._inductor.codegen.common import CSE, CSEVariable
from torch._inductor.codegen.cpp import CppKernel, KernelGroup
from torch._inductor.codegen.cpp_flex_attention_template import CppFlexAttentionTemplate
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.index_propagation import IndexPropagation, IndexPropVar
from torch._inductor.ir import (
    ComputedBuffer,
    ExternKernel,
    Loops,
    MultiOutputReduction,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Sort,
)
from torch._inductor.loop_body import InterpreterShim, LightTracer, LoopBodyBlock
from torch._inductor.select_algorithm import TritonTemplateKernel
from torch._inductor.subgraph_lowering import PointwiseSubgraphLowering
from torch._inductor.utils import DeferredLineBase, IndentedBuffer
from torch._inductor.virtualized import V
from torch.fx import Graph, GraphModule, Node

from compiler.torch_api import fx

_MARK = "tcompile_node"
_COPY = "tcompile_copied_for"
_TEMPORARY = re.compile(r"tmp\d+ = ")
_ACCUMULATOR = "accum"  # of a reduction that TritonKernel.codegen_body writes: `accum0`, `accum1` …

Wrapper = tuple[Any, str, Callable[[Any], Any]]


FxOrigins = tuple[str, ...]
"""Where something was computed: names of nodes of the post-grad graph; in a body they are qualified
(`true_graph_0.mul`).
"""


@dataclass(frozen=True, slots=True)
class KernelLines:
    """Origins of a kernel's lines by their `line_key`.

    Also of variables that Inductor writes late, and of the functions that a kernel hands to `tl.associative_scan`,
    by name. Of C++, where loops follow each other and number temporaries anew, `rows` are the lines that have
    origins, in order.
    """

    lines: dict[str, FxOrigins] = field(default_factory=dict)
    names: dict[str, FxOrigins] = field(default_factory=dict)
    rows: tuple[tuple[str, FxOrigins], ...] = ()


def line_key(text: str) -> str:
    """The key of a kernel's line: the temporary that it assigns, else its text.

    A temporary is assigned once, and its value may change after it was written
    (torch._inductor.utils.DelayReplaceLine).
    """
    text = text.strip()
    temporary = _TEMPORARY.match(text)
    return temporary[0] if temporary else text


class LineOrigins:
    """Observes `compile_fx` calls, one after another; ask `of` when a kernel has been written."""

    def __init__(self) -> None:
        self.active: Node | None = None
        self.copied_for: Node | None = None
        self.copying = False
        self.running: InterpreterShim | None = None
        self.written: WeakKeyDictionary[Any, dict[str, dict[Node, None]]] = WeakKeyDictionary()
        self.named: WeakKeyDictionary[Any, dict[str, dict[Node, None]]] = WeakKeyDictionary()
        self.nest: dict[str, dict[Node, None]] = {}
        self.rows: WeakKeyDictionary[Any, list[tuple[str, dict[Node, None]]]] = WeakKeyDictionary()
        self.paths: WeakKeyDictionary[Graph, str] = WeakKeyDictionary()
        self.inlined: Node | None = None
        self.writes_template = False
        self.template_rows: list[tuple[str, dict[Node, None]]] = []

    def wrappers(self) -> list[Wrapper]:
        storing: list[tuple[Any, str]] = [(owner, "store_output") for owner in (Pointwise, Scatter)]
        storing += [(owner, "store_reduction") for owner in (Reduction, MultiOutputReduction, Scan, Sort)]
        return [
            (Loops, "__post_init__", self.wrap_made),
            (ExternKernel, "copy_input", self.wrap_copy_input),
            (ComputedBuffer, "with_original_inner_fn", self.wrap_original),
            (Pointwise, "make_loader", self.wrap_make_loader),
            *((owner, name, self.wrap_store) for owner, name in storing),
            (IndexPropVar, "new_symbolic", self.wrap_symbolic),
            (IndexPropagation, "unwrap", self.wrap_unwrap),
            (LightTracer, "create_node", self.wrap_create_node),
            (LoopBodyBlock, "extract_pw_from_reduction", self.wrap_extract),
            (InterpreterShim, "run", self.wrap_interpret),
            (IndentedBuffer, "writeline", self.wrap_writeline),
            (CSE, "generate", self.wrap_generate),
            (TritonKernel, "codegen_iteration_ranges_entry", self.wrap_index),
            (TritonKernel, "partial_accumulate", self.wrap_accumulate),
            (TritonKernel, "_lift_helper", self.wrap_helper),
            (KernelGroup, "finalize_kernel", self.wrap_finalize),
            (PointwiseSubgraphLowering, "run_node", self.wrap_inlined),
            (TritonTemplateKernel, "modification", self.wrap_modification),
            (CppFlexAttentionTemplate, "modification", self.wrap_modification),
        ]

    def wrap_made(self, initialize: Callable[..., None]) -> Callable[..., None]:
        def wrapper(loops: Any) -> None:
            initialize(loops)
            node = self.inlined or V.current_node
            if isinstance(node, Node) and node.op != "output":
                loops._post_init_setattr(_COPY if self.copying else _MARK, node)

        return wrapper

    def wrap_inlined(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """A template's subgraph (FlexAttention's score_mod) is lowered along with the operator."""

        def wrapper(lowering: PointwiseSubgraphLowering, node: Node) -> Any:
            before, self.inlined = self.inlined, node
            try:
                return run(lowering, node)
            finally:
                self.inlined = before

        return wrapper

    def wrap_modification(self, write: Callable[..., str]) -> Callable[..., str]:
        """A template asks for the code of a subgraph, of a buffer or (in Triton) by its number."""

        @wraps(write)  # the template names it
        def wrapper(template: Any, *args: Any, **options: Any) -> str:
            subgraph = args[0] if args else options["subgraph_number"]
            buffer = template.subgraphs[subgraph] if isinstance(subgraph, int) else subgraph
            node = getattr(getattr(buffer, "data", None), _MARK, None)
            before, self.writes_template = self.writes_template, True
            try:
                return str(self._for(node, write)(template, *args, **options))
            finally:
                self.writes_template = before

        return wrapper

    def wrap_copy_input(self, copy: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A copy into the layout that an ATen call needs belongs to the node of the value."""

        def wrapper(value: Any) -> Any:
            self.copying = True
            try:
                return copy(value)
            finally:
                self.copying = False

        return staticmethod(wrapper)

    def wrap_original(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Mark the new loops of a split reduction that is merged again after lowering."""

        @contextmanager
        def whole(buffer: ComputedBuffer) -> Iterator[None]:
            node = getattr(buffer.data, _MARK, None)
            with original(buffer):
                if node is not None:
                    buffer.data._post_init_setattr(_MARK, node)
                yield

        return whole

    def wrap_make_loader(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(loops: Any) -> Any:
            loader, node = make(loops), getattr(loops, _MARK, None)
            if node is None:
                return loader

            return self._for(node, loader)

        return wrapper

    def wrap_store(self, store: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(loops: Any, *args: Any) -> Any:
            self.copied_for = getattr(loops, _COPY, None)
            return self._for(getattr(loops, _MARK, None), store)(loops, *args)

        return wrapper

    def _for(self, node: Node | None, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Run `compute` with a node as the active one; it runs for every inlined operation."""

        def wrapper(*args: Any, **options: Any) -> Any:
            before, self.active = self.active, node
            try:
                return compute(*args, **options)
            finally:
                self.active = before

        return wrapper

    def wrap_symbolic(self, new: Callable[[Any], Any]) -> Any:
        """A constant or an index (aten.full, prims.iota) is traced by its first user."""

        def symbolic(expression: Any) -> Any:
            made = new(expression)
            setattr(made, _MARK, self.active)
            return made

        return staticmethod(symbolic)

    def wrap_unwrap(self, unwrap: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def wrapper(handler: Any, value: Any) -> Any:
            node = getattr(value, _MARK, None)
            return unwrap(handler, value) if node is None else self._for(node, unwrap)(handler, value)

        return wrapper

    def wrap_create_node(self, create: Callable[..., Node]) -> Callable[..., Node]:
        def wrapper(tracer: Any, kind: str, target: Any, args: Any, *more: Any, **named: Any) -> Node:
            made = create(tracer, kind, target, args, *more, **named)
            node = self._at_hand() or self.active or _of_arguments(made) or self.copied_for
            if node is not None:
                made.meta[_MARK] = node
            return made

        return wrapper

    def wrap_extract(self, extract: Callable[..., Any]) -> Callable[..., Any]:
        """A reduction and its store are replaced by one node, past the tracer."""

        def wrapper(block: LoopBodyBlock) -> Any:
            reduced = block.graph.find_nodes(op="call_method", target="reduction")
            node = reduced[0].meta.get(_MARK) if reduced else None
            changed = extract(block)
            for accumulate in changed.graph.find_nodes(op="call_method", target="partial_accumulate"):
                accumulate.meta.setdefault(_MARK, node)
            return changed

        return wrapper

    def wrap_interpret(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(shim: InterpreterShim, *args: Any, **kwargs: Any) -> Any:
            before, self.running = self.running, shim
            try:
                return run(shim, *args, **kwargs)
            finally:
                self.running = before

        return wrapper

    def _at_hand(self) -> Node | None:
        """The FX node behind the interpreted node of the body. Templates run subgraphs unchanged."""
        if self.running is None:
            return self.active if self.writes_template else None
        current = self.running.current_node
        return current.meta.get(_MARK) if current is not None else None

    def wrap_writeline(self, write: Callable[..., None]) -> Callable[..., None]:
        def wrapper(buffer: IndentedBuffer, line: Any) -> None:
            write(buffer, line)
            if (node := self._at_hand()) is not None:
                self._note(line, node)

        return wrapper

    def _note(self, line: Any, node: Node) -> None:
        """Note a line's origin. The first writer counts: buffers are spliced into others later."""
        rows = _text(line).split("\n")
        if isinstance(V.kernel, TritonKernel):
            lines = self.written.setdefault(V.kernel, {})
            for row in rows:
                lines.setdefault(line_key(row), {node: None})
        elif isinstance(V.kernel, CppKernel):
            for row in rows:
                self.nest.setdefault(row.strip(), {node: None})

    def wrap_generate(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        """A common subexpression that is there already is written no more, but serves one node more."""

        def wrapper(cse: Any, buffer: Any, expression: Any, **options: Any) -> Any:
            variable = generate(cse, buffer, expression, **options)
            if not isinstance(expression, CSEVariable) and (node := self._at_hand()) is not None:
                nodes = self.written.get(V.kernel, {}).get(f"{variable} = ")
                nodes = nodes or self.nest.get(f"{cse.prefix}{variable} = {expression}{cse.suffix}")
                if nodes is not None:
                    nodes[node] = None
            return variable

        return wrapper

    def wrap_index(self, write: Callable[..., Any]) -> Callable[..., Any]:
        """Index arithmetic is written by the first that needs it, for all."""

        def wrapper(*args: Any) -> Any:
            with self._unobserved():
                return write(*args)

        return wrapper

    @contextmanager
    def _unobserved(self) -> Iterator[None]:
        before, self.running = self.running, None
        try:
            yield
        finally:
            self.running = before

    def wrap_accumulate(self, accumulate: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(kernel: TritonKernel, *args: Any) -> Any:
            self._name(kernel, f"{_ACCUMULATOR}{len(kernel.saved_partial_accumulate)}")
            return accumulate(kernel, *args)

        return wrapper

    def wrap_helper(self, write: Callable[..., str]) -> Callable[..., str]:
        """A function beside the kernel numbers temporaries anew; those of equal bodies are one."""

        def wrapper(kernel: TritonKernel, *args: Any) -> str:
            with self._unobserved():
                name = write(kernel, *args)
            self._name(kernel, name)
            return name

        return wrapper

    def _name(self, kernel: TritonKernel, name: str) -> None:
        if (node := self._at_hand()) is not None:
            self.named.setdefault(kernel, {}).setdefault(name, {})[node] = None

    def wrap_finalize(self, finalize: Callable[..., None]) -> Callable[..., None]:
        """A loop nest of C++ joins those that are in the same kernel."""

        def wrapper(group: KernelGroup, *args: Any) -> None:
            before = len(group.loops_code._lines)
            finalize(group, *args)
            new = [_text(line).strip() for line in group.loops_code._lines[before:]]
            found = [(row, self.nest[row]) for row in new if row in self.nest and row.strip("{}();")]
            rows = self.template_rows if self.writes_template else self.rows.setdefault(group, [])
            rows.extend(found)
            self.nest = {}

        return wrapper

    def lowers(self, module: GraphModule) -> None:
        """Hear of a graph that is lowered, as the post-grad graph has its nodes."""
        self.paths.update(fx.graph_paths(module))

    def of(self, kernel: Any) -> KernelLines:
        """The known origins of a kernel, or of each part of a combo kernel or group of C++ loops."""
        if isinstance(kernel, KernelGroup):
            rows, self.template_rows = [*self.template_rows, *self.rows.get(kernel, ())], []
            return KernelLines(rows=tuple((row, self.origins(tuple(nodes))) for row, nodes in rows))
        parts = [part for part in (kernel, *getattr(kernel, "sub_kernels", ())) if isinstance(part, TritonKernel)]
        return KernelLines(self._of_parts(self.written, parts), self._of_parts(self.named, parts))

    def _of_parts(
        self, known: Mapping[Any, Mapping[str, Mapping[Node, None]]], parts: Sequence[Any]
    ) -> dict[str, FxOrigins]:
        merged: dict[str, dict[Node, None]] = {}
        for part in parts:
            for key, nodes in known.get(part, {}).items():
                merged.setdefault(key, {}).update(nodes)
        return {key: self.origins(tuple(nodes)) for key, nodes in merged.items()}

    def origins(self, nodes: Sequence[Node]) -> FxOrigins:
        """FX nodes as plain data."""
        return tuple(dict.fromkeys(fx.qualified_name(self.paths.get(node.graph, ""), node.name) for node in nodes))


def _text(line: Any) -> str:
    """A line of an IndentedBuffer; "" for a mark between lines."""
    text = line.line if isinstance(line, DeferredLineBase) else line
    return text if isinstance(text, str) else ""


def _of_arguments(made: Node) -> Node | None:
    """The origins of a line without an FX node (a copy for the graph's output).

    They are its last argument's: of a store's arguments, the value is the last.
    """
    found = (source.meta.get(_MARK) for source in reversed(made.all_input_nodes))
    return next((node for node in found if node is not None), None)
