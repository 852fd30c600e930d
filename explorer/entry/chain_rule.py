"""`tcompile.chain_rule`: the chain rule on a real graph, step by step, with numbers, formulas and checks.

print(tcompile.chain_rule(loss))       the steps of an existing graph, with the values that it saved
chain = tcompile.chain_rule(f, x, w)   calls f, so all values, lines and modules are known
chain                                  at a cell's end: a stepper through the steps; chain.save("c.html")
chain.steps                            a DataFrame, one row per step
chain.step(4)                          one step as text
chain.check()                          compares with autograd bitwise, and with finite differences in float64
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import CellType, FrameType
from typing import TYPE_CHECKING, Any

from explorer.entry.autograd import is_call, record_call, tensors_in
from explorer.findings.chain.finding import STAGE
from explorer.reading.columns import columns
from explorer.run.autograd_run import AutogradRun, first_lines

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from compiler.autograd.chain import ChainStep
    from compiler.autograd.differences import Difference
    from compiler.autograd.eager_graph import EagerGraph
    from compiler.record import Record
    from explorer.entry.living_graph import Recorded

STEPS = columns(
    ("category", "direction"),
    ("string", "node rule value comes_in goes_out formula"),
    ("Int64", "added"),
    ("boolean", "adds_exactly"),
    ("float64", "norm formula_error"),
    ("string", "jacobian op where module code note"),
)
CHECKS = columns(
    ("string", "leaf"),
    ("boolean", "equal"),
    ("float64", "difference rounding"),
    ("Int64", "calls directions"),
    ("category", "verdict"),
    ("string", "note"),
)
TOLERANCE = 1e-6


class ShownStep:
    """One step of the chain rule. It prints as text; `data` is the step as a dataclass."""

    def __init__(self, data: ChainStep) -> None:
        self.data = data

    def __str__(self) -> str:
        from explorer.findings.chain.text import step_text

        return step_text(self.data)

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        from explorer.findings.chain.parts import step_document
        from explorer.render.static import document_html

        return {"text/plain": str(self), "text/html": document_html(step_document(self.data))}


class ChainRule(AutogradRun):
    """The chain rule on an autograd graph: print it as steps, display it as a stepper, save it as a page.

    `data` has the steps as dataclasses. As an `AutogradRun` it also has the graph's `nodes`, `saved`, `leaves` and
    `health`.
    """

    def __init__(
        self,
        data: Sequence[ChainStep],
        graph: EagerGraph,
        outputs: Sequence[Tensor],
        record: Record,
        function: Callable[[], Any] | None = None,
        random: Tensor | None = None,
        gradients: Sequence[Tensor] | None = None,
    ) -> None:
        self.data = tuple(data)
        self._graph, self._outputs, self._function, self._random = graph, tuple(outputs), function, random
        self._gradients = gradients
        super().__init__(record, outputs[0] if len(outputs) == 1 else tuple(outputs))

    @property
    def title(self) -> str:
        """The name of the called function, or else of the tensor's variable; "the result" if neither is known."""
        return self.record.title

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[ShownStep]:
        return map(ShownStep, self.data)

    def step(self, index: int) -> ShownStep:
        """The step with this number, from 1; negative numbers count from the end. Raises IndexError."""
        if not 1 <= abs(index) <= len(self):
            raise IndexError(f"there is no step {index}: steps are numbered from 1 to {len(self)}")
        return ShownStep(self.data[index - 1 if index > 0 else index])

    @property
    def steps(self) -> pd.DataFrame:
        """Table of the steps by number, from 1: forward value, backward gradients, formula, norm, source line."""
        from explorer.reading.data_frames import frame_of

        table = frame_of([_row(step) for step in self.data], STEPS)
        return table.set_axis([step.index for step in self.data], axis="index").rename_axis("step")

    def check(self) -> pd.DataFrame:
        """Check each leaf's gradient against autograd and finite differences: one row per leaf.

        `equal`: the gradient equals that of `torch.autograd.grad` bitwise. `difference`: the float64 gradient against
        finite differences. `rounding`: this run's gradient against the float64 gradient. Both are divided by the
        largest gradient, or by 1 if that is larger. `note` gives the reason for a missing value.

        The function is called again for each element of a leaf, or along a few random directions of a large leaf. If
        the function has side effects, they happen again. Finite differences include the effect of detached values,
        which gradients leave out. Without a function, or with an initial `gradient`, only `equal` is checked.
        """
        from explorer.reading.data_frames import frame_of

        rows = _checks(self._graph, self._outputs, self.data, self._function, self._random, self._gradients)
        return frame_of(rows, CHECKS)

    def __str__(self) -> str:
        return self.record[STAGE].text

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Static output for saved notebooks: the first steps as text, and HTML without scripts."""
        from explorer.findings.chain.parts import chain_html

        return {"text/plain": first_lines(str(self)), "text/html": chain_html(self.record, self.data)}

    def __repr__(self) -> str:
        return f"<ChainRule on {self.title}: {len(self)} steps; print it to read them>"


def chain_rule(
    target: Any,
    /,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    gradient: Tensor | None = None,
) -> ChainRule:
    """Step through the chain rule of a tensor's graph, with your own numbers.

    >>> chain = tcompile.chain_rule(lambda x, y: (x * y + x.sin()).sum(), x, y)
    >>> print(chain)    # in a notebook, `chain` alone shows a stepper next to the graph

    `target` is a tensor, or a function or module to call with the arguments. A backward pass is run like
    that of `torch.autograd.grad`: your hooks and custom functions run, no `.grad` changes, and the graph is retained.
    It starts from `gradient`, by default ones. Small tensors are shown as numbers, large ones by shape, norm and range.

    Raises ValueError for a tensor that does not require grad or has a freed graph, TypeError if there is no tensor, and
    any exception of the function.
    """
    import torch

    frame = sys._getframe(1)
    if not is_call(target):
        if args or kwargs:
            raise TypeError("tcompile.chain_rule takes arguments only for a function or module to call")
        return _make_chain(tensors_in(target, "tcompile.chain_rule"), None, frame, gradient)
    from compiler.autograd.tape import TapeRecorder
    from explorer.entry.living_graph import Recorded

    function = partial(target, *args, **(kwargs or {}))
    random = torch.get_rng_state()
    tape = TapeRecorder(frame)
    value, recording, title = record_call(target, function, frame, values=True, tape=tape)
    outputs = tensors_in(value, title or "the function")
    recorded = Recorded(recording, tape, title, argument_names(target, args, kwargs or {}))
    called = _Called(recorded, function, random)
    return _make_chain(outputs, called, frame, gradient)


@dataclass(frozen=True)
class _Called:
    """How a function was called, to be called again."""

    recorded: Recorded
    function: Callable[[], Any]
    random: Tensor


def argument_names(target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int, str]:
    """The names that a function has for the tensors it is called with, and for those of its closure, by `id`."""
    import torch

    function = target.forward if isinstance(target, torch.nn.Module) else target
    try:
        bound = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {}
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    enclosed = {} if code is None else {
        name: cell.cell_contents for name, cell in zip(code.co_freevars, cells, strict=False) if cell != CellType()
    }  # fmt: skip
    return {id(each): name for name, each in {**enclosed, **bound}.items() if isinstance(each, torch.Tensor)}


def _make_chain(
    outputs: Sequence[Tensor], called: _Called | None, frame: FrameType, gradient: Tensor | None
) -> ChainRule:
    from compiler.autograd.eager_graph import without_inner
    from explorer.entry.living_graph import living_graph

    every = list(outputs)
    outputs = [output for output in without_inner(every) if output.requires_grad or len(every) == 1]
    gradients = None if gradient is None else [_check_gradient(gradient, outputs)]
    living = living_graph(outputs, called.recorded if called else None, frame, gradients)
    chosen = {id(output) for output in outputs}
    taken = [place for place, output in enumerate(every) if id(output) in chosen]
    again = partial(_call_again, called.function, taken) if called else None
    random = called.random if called else None
    chain = ChainRule(living.steps, living.graph, outputs, living.record, again, random, gradients)
    chain.compiler.evaluate = living.evaluate
    return chain


def _call_again(function: Callable[[], Any], places: Sequence[int]) -> list[Tensor]:
    """Call `function` again; return its result tensors at the indices `places`."""
    found = tensors_in(function(), "the function")
    return [found[place] for place in places]


def _check_gradient(gradient: Tensor, outputs: Sequence[Tensor]) -> Tensor:
    """Check and return the initial gradient. Raises ValueError unless there is one output, of the same shape."""
    if not hasattr(gradient, "shape"):
        raise ValueError(f"gradient is a {type(gradient).__name__}: pass a tensor of the result's shape")
    shapes = [tuple(output.shape) for output in outputs]
    if len(shapes) != 1 or tuple(gradient.shape) != shapes[0]:
        wanted = f"has the shape {shapes[0]}" if len(shapes) == 1 else f"are {len(shapes)} tensors"
        raise ValueError(f"gradient has the shape {tuple(gradient.shape)}, but the result {wanted}")
    return gradient


def _checks(
    graph: EagerGraph,
    outputs: Sequence[Tensor],
    steps: Sequence[ChainStep],
    function: Callable[[], Any] | None,
    random: Tensor | None,
    gradients: Sequence[Tensor] | None,
) -> list[dict[str, Any]]:
    from compiler.autograd.backward_run import differentiate
    from compiler.autograd.differences import Difference
    from compiler.autograd.values import Value

    leaves = {node.name: node.leaf for node in graph.nodes if node.leaf is not None}
    found = dict(zip(leaves, differentiate(outputs, list(leaves.values()), gradients), strict=True))
    known = {step.node: step.gradient for step in steps if step.direction == "leaf"}
    can_differ = function is not None and gradients is None
    again = _finite_differences(function, leaves, found, random) if can_differ and function else ()
    by_leaf = {each.leaf: each for each in again}
    rows = []
    for name, gradient in found.items():
        equal = repr(known[name]) == repr(None if gradient is None else Value.of_tensor(gradient))  # NaN is not == NaN
        each = by_leaf.get(name, Difference(name, None, None))
        differs = not equal or (each.error is not None and each.error > TOLERANCE)
        rows.append({
            "leaf": name, "equal": equal, "difference": each.error, "rounding": each.rounding,
            "calls": each.calls or None, "directions": each.directions, "note": each.note or None,
            "verdict": "differs" if differs else "equal",
        })  # fmt: skip
    return rows


def _finite_differences(
    function: Callable[[], Any], leaves: Mapping[str, Any], found: Mapping[str, Any], random: Tensor | None
) -> Sequence[Difference]:
    """Finite differences for each leaf, or notes with the reason why the function can't run in float64."""
    from compiler.autograd.differences import Difference, differences

    try:
        return differences(function, leaves, found, random)
    except RuntimeError as error:
        note = f"can't be repeated in float64: {type(error).__name__}: {str(error).splitlines()[0]}"
        return [Difference(name, None, None, note=note) for name in leaves]


def _row(step: ChainStep) -> dict[str, Any]:
    from explorer.findings.chain.text import value_text
    from explorer.reading.provenance import place_text
    from explorer.reading.shapes import number_text

    shown = step.value if step.direction == "forward" else step.gradient
    errors = [each.error for each in step.departures if each.error is not None]
    formulas = [f"d {each.name} = {each.formula}" for each in step.departures if each.formula]
    jacobians = [
        f"{each.name}: {' × '.join(map(str, each.jacobian.shape))}" for each in step.departures if each.jacobian
    ]
    leaving = [f"{each.target}: {value_text(each.value)}" for each in step.departures]
    return {
        "direction": step.direction,
        "node": step.node,
        "rule": step.rule or None,
        "value": value_text(step.value) if step.value else None,
        "comes_in": value_text(step.gradient) if step.gradient else None,
        "goes_out": "; ".join(leaving) or None,
        "formula": (f"out = {step.forward}" if step.direction == "forward" else "; ".join(formulas)) or None,
        "added": len(step.arrivals) or None,
        "adds_exactly": step.adds_exactly,
        "norm": float(number_text(shown.norm)) if shown else None,
        "formula_error": max(errors) if errors else None,
        "jacobian": "; ".join(jacobians) or None,
        "op": step.op,
        "where": place_text(step.place["file"], step.place["line"]) if "line" in step.place else None,
        "module": step.place.get("module"),
        "code": step.place.get("code"),
        "note": step.note or None,
    }
