"""The FX node that each line of a generated kernel computes, observed during TorchInductor's code generation.

Lowering an FX node creates loops (torch._inductor.ir.Loops), whose inner function calls the inner functions of inlined
loops. Loops are marked with the node being lowered. While the inner function of marked loops runs, their node is the
active one; the innermost loops win. The traced nodes (torch._inductor.loop_body.LoopBody) carry the active node in
their `meta`, and copies for reordered or merged loops keep it. During code generation, a line belongs to the node of
the body's current operation: a load to the node that reads, a store to the node whose value is stored, and a common
subexpression to all nodes that use it.

The marks do not affect Inductor, so the generated code is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
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

from compiler.record.printed_code import line_key
from compiler.torch_api import fx
from compiler.torch_api.patching import Function, Wrapper, call_after, call_before, call_inside, call_instead

_MARK = "tcompile_node"
_COPY = "tcompile_copied_for"
_ACCUMULATOR = "accum"  # accumulators of a reduction in TritonKernel.codegen_body: `accum0`, `accum1` …

FxOrigins = tuple[str, ...]
"""Names of post-grad FX nodes; nodes in a body have qualified names (`true_graph_0.mul`)."""


@dataclass(frozen=True, slots=True)
class KernelLines:
    """FX origins of a kernel's lines.

    `lines` maps a line's `line_key` to its origins. `names` maps a name to its origins, for variables that Inductor
    writes late and for the functions passed to `tl.associative_scan`. `rows` are C++ lines with origins, in order: a
    C++ kernel has several loop nests, each of which restarts the numbers of temporaries.
    """

    lines: dict[str, FxOrigins] = field(default_factory=dict)
    names: dict[str, FxOrigins] = field(default_factory=dict)
    rows: tuple[tuple[str, FxOrigins], ...] = ()


Nodes = dict[Node, None]
"""An insertion-ordered set of nodes."""


class LineOrigins:
    """Collects line origins during successive `compile_fx` calls. Call `of_kernel` once a kernel is generated."""

    def __init__(self) -> None:
        self.active: Node | None = None
        self.copied_for: Node | None = None
        self.copying = False
        self.running: InterpreterShim | None = None
        self.written: WeakKeyDictionary[Any, dict[str, Nodes]] = WeakKeyDictionary()
        self.named: WeakKeyDictionary[Any, dict[str, Nodes]] = WeakKeyDictionary()
        self.nest: dict[str, Nodes] = {}
        self.rows: WeakKeyDictionary[Any, list[tuple[str, Nodes]]] = WeakKeyDictionary()
        self.paths: WeakKeyDictionary[Graph, str] = WeakKeyDictionary()
        self.inlined: Node | None = None
        self.writes_template = False
        self.template_rows: list[tuple[str, Nodes]] = []

    def wrappers(self) -> list[Wrapper]:
        storing: list[tuple[Any, str]] = [(owner, "store_output") for owner in (Pointwise, Scatter)]
        storing += [(owner, "store_reduction") for owner in (Reduction, MultiOutputReduction, Scan, Sort)]
        return [
            (Loops, "__post_init__", call_after(self.mark_loops)),
            # A copy into the layout that an ATen call requires belongs to the node of the copied value.
            (ExternKernel, "copy_input", call_inside(lambda *_: self._set(copying=True))),
            (ComputedBuffer, "with_original_inner_fn", call_instead(self.mark_merged_reduction)),
            (Pointwise, "make_loader", call_instead(self.mark_loader)),
            *((owner, name, call_instead(self.store)) for owner, name in storing),
            # A constant or an index (aten.full, prims.iota) is traced by its first user.
            (IndexPropVar, "new_symbolic", call_after(lambda made, *_: setattr(made, _MARK, self.active))),
            (IndexPropagation, "unwrap", call_instead(self.unwrap)),
            (LightTracer, "create_node", call_after(self.mark_node)),
            (LoopBodyBlock, "extract_pw_from_reduction", call_instead(self.extract_pointwise)),
            (InterpreterShim, "run", call_inside(lambda shim, *_, **__: self._set(running=shim))),
            (IndentedBuffer, "writeline", call_after(self.note_line)),
            (CSE, "generate", call_after(self.note_user)),
            # The first user writes the index arithmetic for all users.
            (TritonKernel, "codegen_iteration_ranges_entry", call_inside(lambda *_: self._set(running=None))),
            (TritonKernel, "partial_accumulate", call_before(self.name_accumulator)),
            (TritonKernel, "_lift_helper", call_instead(self.write_helper)),
            (KernelGroup, "finalize_kernel", call_instead(self.finalize_kernel)),
            # A template's subgraph (FlexAttention's score_mod) is lowered along with the operator.
            (PointwiseSubgraphLowering, "run_node", call_inside(lambda _, node: self._set(inlined=node))),
            (TritonTemplateKernel, "modification", call_instead(self.write_modification)),
            (CppFlexAttentionTemplate, "modification", call_instead(self.write_modification)),
        ]

    @contextmanager
    def _set(self, **state: Any) -> Iterator[None]:
        """Set attributes of this object in the block."""
        before = {name: getattr(self, name) for name in state}
        vars(self).update(state)
        try:
            yield
        finally:
            vars(self).update(before)

    def mark_loops(self, _: None, loops: Any) -> None:
        node = self.inlined or V.current_node
        if isinstance(node, Node) and node.op != "output":
            loops._post_init_setattr(_COPY if self.copying else _MARK, node)

    def write_modification(self, write: Function, template: Any, *args: Any, **options: Any) -> str:
        """Generate the code of a template's subgraph, given as a buffer or (in Triton) by its index."""
        subgraph = args[0] if args else options["subgraph_number"]
        buffer = template.subgraphs[subgraph] if isinstance(subgraph, int) else subgraph
        node = getattr(getattr(buffer, "data", None), _MARK, None)
        with self._set(writes_template=True):
            return str(self._compute_for(node, write, template, *args, **options))

    @contextmanager
    def mark_merged_reduction(self, original: Function, buffer: ComputedBuffer) -> Iterator[None]:
        """Mark the new loops of a split reduction that is merged again after lowering."""
        node = getattr(buffer.data, _MARK, None)
        with original(buffer):
            if node is not None:
                buffer.data._post_init_setattr(_MARK, node)
            yield

    def mark_loader(self, make: Function, loops: Any) -> Function:
        loader, node = make(loops), getattr(loops, _MARK, None)
        return loader if node is None else partial(self._compute_for, node, loader)

    def store(self, store: Function, loops: Any, *args: Any) -> Any:
        self.copied_for = getattr(loops, _COPY, None)
        return self._compute_for(getattr(loops, _MARK, None), store, loops, *args)

    def _compute_for(self, node: Node | None, compute: Function, *args: Any, **options: Any) -> Any:
        """Run `compute` with `node` as the active node. Called for every inlined operation."""
        before, self.active = self.active, node
        try:
            return compute(*args, **options)
        finally:
            self.active = before

    def unwrap(self, unwrap: Function, handler: Any, value: Any) -> Any:
        node = getattr(value, _MARK, None)
        return unwrap(handler, value) if node is None else self._compute_for(node, unwrap, handler, value)

    def mark_node(self, made: Node, *_: Any, **__: Any) -> None:
        node = self._at_hand() or self.active or _of_arguments(made) or self.copied_for
        if node is not None:
            made.meta[_MARK] = node

    def extract_pointwise(self, extract: Function, block: LoopBodyBlock) -> Any:
        """Mark the node that replaces a reduction and its store, which the tracer does not see."""
        reduced = block.graph.find_nodes(op="call_method", target="reduction")
        node = reduced[0].meta.get(_MARK) if reduced else None
        changed = extract(block)
        for accumulate in changed.graph.find_nodes(op="call_method", target="partial_accumulate"):
            accumulate.meta.setdefault(_MARK, node)
        return changed

    def _at_hand(self) -> Node | None:
        """The FX node of the loop-body operation being generated; in a template, the active node."""
        if self.running is None:
            return self.active if self.writes_template else None
        current = self.running.current_node
        return current.meta.get(_MARK) if current is not None else None

    def note_line(self, _: None, _buffer: IndentedBuffer, line: Any) -> None:
        """Record a line's origin. The first write counts: buffers are spliced into others later."""
        if (node := self._at_hand()) is None:
            return
        rows = _text(line).split("\n")
        if isinstance(V.kernel, TritonKernel):
            lines = self.written.setdefault(V.kernel, {})
            for row in rows:
                lines.setdefault(line_key(row), {node: None})
        elif isinstance(V.kernel, CppKernel):
            for row in rows:
                self.nest.setdefault(row.strip(), {node: None})

    def note_user(self, variable: Any, cse: Any, _buffer: Any, expression: Any, **_options: Any) -> None:
        """Add an origin to a common subexpression that was written before."""
        if not isinstance(expression, CSEVariable) and (node := self._at_hand()) is not None:
            nodes = self.written.get(V.kernel, {}).get(f"{variable} = ")
            nodes = nodes or self.nest.get(f"{cse.prefix}{variable} = {expression}{cse.suffix}")
            if nodes is not None:
                nodes[node] = None

    def name_accumulator(self, kernel: TritonKernel, *_: Any) -> None:
        self._name(kernel, f"{_ACCUMULATOR}{len(kernel.saved_partial_accumulate)}")

    def write_helper(self, write: Function, kernel: TritonKernel, *args: Any) -> str:
        """Write a kernel's helper function and return its name. Equal helpers are written once.

        No node is current meanwhile: a helper numbers its temporaries from 0, as the kernel does.
        """
        with self._set(running=None):
            name: str = write(kernel, *args)
        self._name(kernel, name)
        return name

    def _name(self, kernel: TritonKernel, name: str) -> None:
        if (node := self._at_hand()) is not None:
            self.named.setdefault(kernel, {}).setdefault(name, {})[node] = None

    def finalize_kernel(self, finalize: Function, group: KernelGroup, *args: Any) -> None:
        """Add the lines of a finished C++ loop nest to its kernel."""
        before = len(group.loops_code._lines)
        finalize(group, *args)
        new = [_text(line).strip() for line in group.loops_code._lines[before:]]
        found = [(row, self.nest[row]) for row in new if row in self.nest and row.strip("{}();")]
        rows = self.template_rows if self.writes_template else self.rows.setdefault(group, [])
        rows.extend(found)
        self.nest = {}

    def add_graph(self, module: GraphModule) -> None:
        """Record the qualified names of a post-grad graph's nodes before it is lowered."""
        self.paths.update(fx.graph_paths(module))

    def of_kernel(self, kernel: Any) -> KernelLines:
        """The line origins of a kernel, including all parts of a combo kernel or C++ kernel group."""
        if isinstance(kernel, KernelGroup):
            rows, self.template_rows = [*self.template_rows, *self.rows.get(kernel, ())], []
            return KernelLines(rows=tuple((row, self.origins(tuple(nodes))) for row, nodes in rows))
        parts = [part for part in (kernel, *getattr(kernel, "sub_kernels", ())) if isinstance(part, TritonKernel)]
        return KernelLines(self._of_parts(self.written, parts), self._of_parts(self.named, parts))

    def _of_parts(self, known: Mapping[Any, Mapping[str, Nodes]], parts: Sequence[Any]) -> dict[str, FxOrigins]:
        merged: dict[str, Nodes] = {}
        for part in parts:
            for key, nodes in known.get(part, {}).items():
                merged.setdefault(key, {}).update(nodes)
        return {key: self.origins(tuple(nodes)) for key, nodes in merged.items()}

    def origins(self, nodes: Sequence[Node]) -> FxOrigins:
        """The qualified names of FX nodes, without duplicates."""
        return tuple(dict.fromkeys(fx.qualified_name(self.paths.get(node.graph, ""), node.name) for node in nodes))


def _text(line: Any) -> str:
    """The text of an IndentedBuffer's line; "" for a line context."""
    text = line.line if isinstance(line, DeferredLineBase) else line
    return text if isinstance(text, str) else ""


def _of_arguments(made: Node) -> Node | None:
    """The origin of the last argument that has one, or None; used for operations without an FX node (output copies).

    The last argument of a store is the stored value.
    """
    found = (source.meta.get(_MARK) for source in reversed(made.all_input_nodes))
    return next((node for node in found if node is not None), None)
