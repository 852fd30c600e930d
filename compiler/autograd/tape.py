"""A call's ATen operations as a tape, which can be run again with other inputs.

The eager graph has what backward needs; the tape has all that forward computed, also what needs no gradient. Run again,
it calls the same kernels in the same order, so that values and gradients are those of torch to the last bit. It does
not run the user's Python: a branch keeps the side that it took, and what was random keeps its values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import Any, Generic, TypeVar

import torch

from compiler.autograd.recording import is_users
from compiler.autograd.variables import variable_of
from compiler.torch_api import aten_calls, autograd_nodes
from compiler.torch_api.pytrees import tree_leaves, tree_map

MOST_CALLS = 1_000
MOST_ELEMENTS = 20_000_000
"""A tape ends, unusable, after this many calls, or once its tensors have this many elements."""
OVERLAPS = 20_000
"""Maximum number of elements of two tensors whose places in memory are compared one by one."""
DERIVATIVES = 16
"""Maximum number of elements of a result whose local derivatives are computed."""

Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor of a tape: result `output` of call `call`; for a source, `call` is -1 and `output` its index."""

    call: int
    output: int


@dataclass(frozen=True, slots=True)
class TapeCall:
    """An ATen call, with `Ref`s for its tensors. `number` is that of its autograd node, `variable` names its result.

    `grad` says whether gradients were enabled. `inplace` names the operator that the user's code ran in place.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: int
    number: int | None
    grad: bool
    variable: str = ""
    inplace: str = ""

    @property
    def name(self) -> str:
        """The operator without namespace: `add.Tensor`."""
        return aten_calls.operator_name(self.op)

    @property
    def inputs(self) -> tuple[Ref, ...]:
        """The tensors among the arguments, in the order of autograd's inputs."""
        return tuple(leaf for leaf in tree_leaves((self.args, dict(self.kwargs))) if isinstance(leaf, Ref))

    def named_inputs(self) -> Iterator[tuple[str, Ref]]:
        """The tensors among the arguments with the operator's names for them: `self`, `tensors[0]`."""
        given = [*zip(aten_calls.argument_names(self.op), self.args, strict=False), *self.kwargs.items()]
        for name, value in given:
            if isinstance(value, Ref):
                yield name, value
            elif isinstance(value, list | tuple):
                yield from ((f"{name}[{at}]", each) for at, each in enumerate(value) if isinstance(each, Ref))


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor that no call of the tape made: an input, a parameter, a constant. `value` is a copy of its values."""

    value: torch.Tensor
    identity: int
    requires_grad: bool
    is_leaf: bool


@dataclass(frozen=True)
class Tape:
    """The calls that lead to `outputs`. `problem` says why it can't be run again; "" if it can."""

    sources: tuple[Source, ...]
    calls: tuple[TapeCall, ...]
    outputs: tuple[Ref, ...]
    problem: str = ""


@dataclass
class Evaluation(Generic[Kept]):
    """One run of a tape: values and gradients by `Ref`, what flows back by (call, input), local derivatives likewise.

    Each is what `keep` made of a tensor when it was there; `keep_flow` for flows and derivatives.
    """

    values: dict[Ref, Kept] = field(default_factory=dict)
    gradients: dict[Ref, Kept] = field(default_factory=dict)
    flows: dict[tuple[int, int], Kept] = field(default_factory=dict)
    derivatives: dict[tuple[int, int], Kept] = field(default_factory=dict)


class TapeRecorder:
    """Context manager that records a tape of its block. Inside, the user's code runs as without it.

    Variables of `stop` and of its callers are not looked at.
    """

    def __init__(self, stop: FrameType | None = None) -> None:
        self._stop_frame = stop
        self._mode = aten_calls.AtenCalls(self._note)
        self._calls: list[TapeCall] = []
        self._places: list[tuple[int, int]] = []
        self._sources: list[Source] = []
        self._known: dict[int, tuple[torch.Tensor, Ref]] = {}
        self._by_memory: dict[tuple[Any, ...], Ref] = {}
        self._stale: set[Ref] = set()
        self._elements = 0
        self.problem = ""

    def __enter__(self) -> TapeRecorder:
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)
        self._stop_frame = None

    def _note(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], number: int | None
    ) -> Callable[[Any], None]:
        """Note what a call reads, before it may write it; the function returned notes its result."""
        if self.problem:
            return _ignore
        is_random = aten_calls.draws_random_numbers(func, args, kwargs)
        written = aten_calls.written_arguments(func)
        plain = aten_calls.without_mutation(func) if written else func
        takes = [leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, torch.Tensor)]
        if not takes:
            return _ignore  # the result of a factory is a source when it is used
        if len(self._calls) >= MOST_CALLS:
            return self._stop(f"the call made more than {MOST_CALLS:,} operations")
        if plain is None and not is_random:
            return self._stop(f"{func} writes in place")
        if is_random:
            return self._forget
        refs = self._refs(args), self._refs(dict(kwargs))
        frame = sys._getframe(2)
        call = TapeCall(
            plain, tuple(refs[0]), refs[1], 1, number, torch.is_grad_enabled(), variable_of(frame, self._stop_frame),
            aten_calls.operator_name(func) if written else "",
        )  # fmt: skip
        return partial(self._add, call, _place_of(frame))

    def _stop(self, problem: str) -> Callable[[Any], None]:
        self.problem = problem
        for kept in (self._calls, self._sources, self._known, self._by_memory):
            kept.clear()
        return _ignore

    def _forget(self, result: Any) -> None:
        """What is random is a constant: a source, when it is used."""
        for each in _tensors(result):
            self._forget_memory(each)
            self._known.pop(id(each), None)

    def _add(self, call: TapeCall, place: tuple[int, int], result: Any) -> None:
        outputs = _tensors(result)
        if self.problem:
            return
        if odd := next((each for each in outputs if type(each) not in (torch.Tensor, torch.nn.Parameter)), None):
            self._stop(f"a {type(odd).__name__} is no plain tensor")
            return
        if call.inplace:
            self._forget_memory(outputs[0])
        self._count(outputs)
        at = len(self._calls)
        self._calls.append(replace(call, results=len(outputs)))
        self._places.append(place)
        for output, tensor in enumerate(outputs):
            self._known[id(tensor)] = (tensor, Ref(at, output))
            if not call.name.startswith("detach"):
                self._by_memory[_memory(tensor)] = Ref(at, output)

    def _forget_memory(self, tensor: torch.Tensor) -> None:
        """Views of memory that was written are no longer what their call returned."""
        memory = tensor.untyped_storage().data_ptr()
        for other, ref in self._known.values():
            shares = other is not tensor and memory and other.untyped_storage().data_ptr() == memory
            if shares and _overlap(other, tensor):
                self._stale.add(ref)
        self._by_memory = {key: ref for key, ref in self._by_memory.items() if key[0] != memory}

    def _count(self, tensors: Sequence[torch.Tensor]) -> None:
        self._elements += sum(each.numel() for each in tensors)
        if self._elements > MOST_ELEMENTS and not self.problem:
            self._stop(f"its tensors have more than {MOST_ELEMENTS:,} elements")

    def _refs(self, value: Any) -> Any:
        return tree_map(lambda leaf: self._ref(leaf) if isinstance(leaf, torch.Tensor) else leaf, value)

    def _ref(self, tensor: torch.Tensor) -> Ref:
        known = self._known.get(id(tensor))
        found = known[1] if known else self._by_memory.get(_memory(tensor))
        if found is None:
            found = Ref(-1, len(self._sources))
            self._count([tensor])
            if self.problem:
                return found
            value = tensor.detach().clone() if tensor.layout == torch.strided else tensor.detach()
            self._sources.append(Source(value, id(tensor), tensor.requires_grad, tensor.is_leaf))
            self._known[id(tensor)] = (tensor, found)
        if found in self._stale and not self.problem:
            self._stop("a view is read after its memory was written in place")
        return found

    def tape(self, outputs: Sequence[torch.Tensor]) -> Tape:
        """The tape of what leads to these tensors."""
        refs = [self._known[id(each)][1] for each in outputs if id(each) in self._known]
        if self.problem or len(refs) != len(outputs):
            return Tape((), (), (), self.problem or "a result was made by no operation of this call")
        calls = _name_last_calls(self._calls, self._places)
        needed = _find_needed_refs(calls, refs)
        order = {at: place for place, at in enumerate(sorted({ref.call for ref in needed if ref.call >= 0}))}
        kept = {ref.output: place for place, ref in enumerate(sorted(_sources_of(needed), key=lambda ref: ref.output))}
        moved = lambda ref: (  # noqa: E731
            Ref(-1, kept[ref.output]) if ref.call < 0 else Ref(order[ref.call], ref.output)
        )
        move = lambda value: tree_map(lambda leaf: moved(leaf) if isinstance(leaf, Ref) else leaf, value)  # noqa: E731
        return Tape(
            tuple(self._sources[at] for at in kept),
            tuple(replace(calls[at], args=move(calls[at].args), kwargs=move(dict(calls[at].kwargs))) for at in order),
            tuple(map(moved, refs)),
        )


def _ignore(_: Any) -> None:
    pass


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _place_of(frame: FrameType | None) -> tuple[int, int]:
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return (id(frame), frame.f_lasti) if frame is not None else (0, 0)


def _name_last_calls(calls: Sequence[TapeCall], places: Sequence[tuple[int, int]]) -> list[TapeCall]:
    """Keep the variable's name only on the last call of an expression, ignoring detached values that it saves."""
    start, last = 0, {}
    for at, (call, place) in enumerate(zip(calls, places, strict=True)):
        if at == 0 or place != places[at - 1] or place == (0, 0):
            start = at
        if at == start or not call.name.startswith("detach"):
            last[start] = at
    named = set(last.values())
    return [call if at in named else replace(call, variable="") for at, call in enumerate(calls)]


def _find_needed_refs(calls: Sequence[TapeCall], outputs: Sequence[Ref]) -> set[Ref]:
    found, todo = set(outputs), list(outputs)
    while todo:
        ref = todo.pop()
        new = set(calls[ref.call].inputs) - found if ref.call >= 0 else set()
        found |= new
        todo.extend(new)
    return found


def _sources_of(refs: set[Ref]) -> Iterator[Ref]:
    return (ref for ref in refs if ref.call < 0)


def _overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors have an element of the same storage in common; assumed of tensors with many elements."""
    if first.numel() + second.numel() > OVERLAPS or first.dtype != second.dtype:
        return True
    return not _places_in_memory(first).isdisjoint(_places_in_memory(second))


def _places_in_memory(tensor: torch.Tensor) -> set[int]:
    """The places of a tensor's elements in its storage."""
    places = {int(tensor.storage_offset())}
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = {place + step * stride for place in places for step in range(size)}
    return places


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.layout != torch.strided:
        return (0, id(tensor))
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def evaluate(
    tape: Tape,
    keep: Callable[[torch.Tensor], Kept],
    keep_flow: Callable[[torch.Tensor], Kept] | None = None,
    changed: Mapping[int, torch.Tensor] | None = None,
    gradients: Sequence[torch.Tensor] | None = None,
    elementwise: frozenset[int] = frozenset(),
) -> Evaluation[Kept]:
    """Run a tape with `changed` sources, by index, forward and backward. No tensor of the user's changes.

    `gradients` are the gradients of the outputs, ones by default. `elementwise` are the calls whose local derivatives
    are wanted. Raises what an operation raises.
    """
    found: Evaluation[Kept] = Evaluation()
    tensors = run_forward(tape, changed)
    with torch.no_grad():
        found.values = {ref: keep(tensor) for ref, tensor in tensors.items()}
    outputs = [tensors[ref] for ref in tape.outputs]
    start = list(gradients) if gradients is not None else [torch.ones_like(each) for each in outputs]
    _differentiate(tape, tensors, start, (keep, keep_flow or keep), found, elementwise)
    return found


def run_forward(tape: Tape, changed: Mapping[int, torch.Tensor] | None = None) -> dict[Ref, torch.Tensor]:
    """The sources and results of a tape, by `Ref`, run with `changed` sources, by index."""
    tensors: dict[Ref, torch.Tensor] = {}
    for at, source in enumerate(tape.sources):
        value = (changed or {}).get(at, source.value).detach()
        tensors[Ref(-1, at)] = value.clone().requires_grad_(source.requires_grad)  # batch norm writes its statistics
    for at, call in enumerate(tape.calls):
        _run(at, call, tensors)
    return tensors


def _run(at: int, call: TapeCall, tensors: dict[Ref, torch.Tensor]) -> None:
    args = [_read(each, tensors) for each in call.args]
    kwargs = {name: _read(each, tensors) for name, each in call.kwargs.items()}
    with torch.set_grad_enabled(call.grad):
        result = call.op(*args, **kwargs)
    for output, tensor in enumerate([result] if isinstance(result, torch.Tensor) else _tensors(result)):
        tensors[Ref(at, output)] = tensor


def _read(value: Any, tensors: Mapping[Ref, torch.Tensor]) -> Any:
    """An argument with tensors for its `Ref`s; written out, as torch's pytrees take longer than most operations."""
    if isinstance(value, Ref):
        return tensors[value]
    return [_read(each, tensors) for each in value] if isinstance(value, list | tuple) else value


def _differentiate(
    tape: Tape,
    tensors: Mapping[Ref, torch.Tensor],
    start: Sequence[torch.Tensor],
    keeps: tuple[Callable[[torch.Tensor], Kept], Callable[[torch.Tensor], Kept]],
    found: Evaluation[Kept],
    elementwise: frozenset[int],
) -> None:
    sources = {ref: each for ref, each in tensors.items() if ref.call < 0 and each.requires_grad}
    outputs = [tensors[ref] for ref in tape.outputs]
    wanted = [(each, grad) for each, grad in zip(outputs, start, strict=True) if each.requires_grad]
    if not wanted:
        return
    with ExitStack() as stack:
        for at, call in enumerate(tape.calls):
            results = (tensors[Ref(at, output)].grad_fn for output in range(call.results))
            node = next((each for each in results if each is not None), None)
            if node is not None:
                watch = _Watch(at, node, *keeps, found, at in elementwise)
                stack.callback(node.register_prehook(watch.arrive).remove)
                stack.callback(node.register_hook(watch.leave).remove)
        grads = torch.autograd.grad(
            [each for each, _ in wanted], list(sources.values()), [grad for _, grad in wanted], allow_unused=True
        )
    with torch.no_grad():
        found.gradients |= {ref: keeps[0](grad) for ref, grad in zip(sources, grads, strict=True) if grad is not None}


@dataclass
class _Watch(Generic[Kept]):
    """Keeps what a node takes and gives."""

    at: int
    node: Any
    keep: Callable[[torch.Tensor], Kept]
    keep_flow: Callable[[torch.Tensor], Kept]
    found: Evaluation[Kept]
    is_elementwise: bool

    def arrive(self, grads: Sequence[torch.Tensor | None]) -> None:
        with torch.no_grad():
            for output, grad in enumerate(grads):
                if grad is not None:
                    self.found.gradients[Ref(self.at, output)] = self.keep(grad)

    def leave(self, given: Sequence[torch.Tensor | None], taken: Sequence[torch.Tensor | None]) -> None:
        with torch.no_grad():
            for place, grad in enumerate(given):
                if grad is not None:
                    self.found.flows[self.at, place] = self.keep_flow(grad)
            first = next((grad for grad in taken if grad is not None), None)
            if self.is_elementwise and first is not None and first.numel() <= DERIVATIVES:
                factors = autograd_nodes.apply(
                    self.node, [None if each is None else torch.ones_like(each) for each in taken]
                )
                for place, factor in enumerate(factors):
                    if factor is not None:
                        self.found.derivatives[self.at, place] = self.keep_flow(factor)
