"""Explain why two values are not computed by one kernel. Any name that the graph or a stage shows is accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from torch.fx import GraphModule, Node

from compiler.backend.ir import Extern, Kernel, Loop, Program
from compiler.backend.passes.context import Context
from compiler.backend.passes.fit import Refusal
from compiler.backend.passes.fuse import Pair, Steps, legal
from compiler.record import Decision
from compiler.torch_api.fx import operator_of, source_names

Found = tuple[tuple[str, ...], tuple[int, ...]]
"""Notes on a name, and the numbers of the steps that compute it."""


MOST_LISTED = 12


class Lookup:
    """Finds values of a graph by name, in the graph's stages (`programs`) and the decisions of its passes."""

    def __init__(self, module: GraphModule, programs: Mapping[str, Program], decisions: Sequence[Decision]) -> None:
        self.nodes: Mapping[str, Node] = {node.name: node for node in module.graph.nodes if node.op != "output"}
        self.programs, self.decisions = programs, decisions
        self.fused = programs["one_hot"]

    @cached_property
    def steps(self) -> Steps:
        """The steps after fusion, in the form that the fusion pass uses."""
        return Steps.from_program(self.fused)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All names that `explain` accepts."""
        kernels = (kernel.name for kernel in self.fused.kernels)
        buffers = (buffer.name for program in self.programs.values() for buffer in program.buffers)
        return tuple(dict.fromkeys((*buffers, *self.nodes, *kernels, *self.fused.inputs, *self.before)))

    @cached_property
    def before(self) -> Mapping[str, Sequence[str]]:
        """Names of nodes, by names of the earlier nodes, functions and operators that they were decomposed from."""
        found: dict[str, list[str]] = {}
        steps = self.programs["lowered"].steps
        computed = {origin for step in steps for part in _parts(step) for origin in part.origins}
        for node in self.nodes.values():
            for name in dict.fromkeys((*source_names(node), operator_of(node))) if node.name in computed else ():
                if name not in self.nodes:
                    found.setdefault(name, []).append(node.name)
        return found

    def knows(self, name: str) -> bool:
        """Whether `explain` accepts the name."""
        return name in self.names

    def explain(self, first: str, second: str, ctx: Context) -> str:
        """Explain whether one kernel computes both values, and if not, why not; then what the names refer to."""
        (notes, one), (more, two) = self.find(first), self.find(second)
        told = _list_words([*dict.fromkeys((*notes, *more))], "; ")
        if first == second:
            return ". ".join(filter(None, (f"{first} is one and the same value", told)))
        answer = self._explain_pair(first, second, one, two, ctx) if one and two else ""
        return ". ".join(filter(None, (answer, told)))

    def find(self, name: str) -> Found:
        """Notes on a name, and the numbers of the steps that compute its value after fusion."""
        if made := tuple(number for number, step in self.steps.steps.items() if name in step.targets):
            step = self.steps.steps[made[0]]
            return (self._call(step),) if isinstance(step, Extern) else (), made
        if name in self.fused.inputs or name in self.fused.constants:
            what = "a constant that the graph holds" if name in self.fused.constants else "an input of the graph"
            return (f"{name} is {what}: no kernel computes it",), ()
        if parts := self.before.get(name, ()):
            return self._of_all(parts, (f"{name} is {_list_words(parts)}",))
        return self._removed_loop(name) or self._node(name) or self._kernel(name)

    def _call(self, step: Extern) -> str:
        whys = (found.why for found in self.decisions if found.verdict == "extern" and found.subjects == step.origins)
        return f"{step.targets[0] if step.targets else step.name} is a call of PyTorch ({next(whys, step.name)})"

    def _removed_loop(self, name: str) -> Found | None:
        """Find a loop that a pass before fusion removed; None for other names."""
        taken = [d for d in self.decisions if d.subjects[0] == name and d.verdict in ("inlined", "merged", "left out")]
        if not taken or not any(name in program.by_name for program in self.programs.values()):
            return None
        last = taken[-1]
        if last.verdict == "left out" and not (inlined := [d for d in taken if d.verdict == "inlined"]):
            return (f"{name} was left out by the pass {last.pass_name}: {last.why}",), ()
        last = inlined[-1] if last.verdict == "left out" else last
        others = last.subjects[1:]
        how = "computes the same as" if last.verdict == "merged" else "is computed where it is read, in the loops of"
        notes = (f"{name} {how} {', '.join(others)} ({last.pass_name}: {last.why})",)
        return self._of_all(others, notes)

    def _of_all(self, names: Sequence[str], notes: tuple[str, ...]) -> Found:
        """Find several names, and join their steps and notes."""
        every = [self.find(name) for name in names]
        told = tuple(dict.fromkeys((*notes, *(note for found, _ in every for note in found))))
        return told, tuple(dict.fromkeys(number for _, numbers in every for number in numbers))

    def _node(self, name: str) -> Found | None:
        """Find a node without a loop of the same name: it became other loops, or is a view. None for other names."""
        if name not in self.nodes:
            return None
        if made := self._results_of_node(name):
            return self._of_all(made, (f"{name} is computed by {_list_words(made)}",))
        base = next((arg for arg in self.nodes[name].args if isinstance(arg, Node)), None)
        if base is None:
            return (f"{name} is no value of a loop ({self.nodes[name].target})",), ()
        return self._of_all([base.name], (f"{name} is a view of {base.name}, which costs nothing",))

    def _results_of_node(self, name: str) -> list[str]:
        """Targets of the loops and calls after fusion that compute a node."""
        parts = (part for step in self.steps.steps.values() for part in _parts(step) if name in part.origins)
        return [target for part in parts for target in (part.targets if isinstance(part, Extern) else (part.target,))]

    def _kernel(self, name: str) -> Found:
        """Find a kernel by its name; for any other name, note that it is in no kernel."""
        steps = self.steps.steps.items()
        made = tuple(number for number, step in steps if isinstance(step, Kernel) and step.name == name)
        return () if made else (f"{name} is in no kernel after fusion",), made

    def _explain_pair(self, first: str, second: str, one: Sequence[int], two: Sequence[int], ctx: Context) -> str:
        steps = self.steps.steps
        if both := [number for number in one if number in two]:
            step = steps[both[0]]
            made = "are computed by one kernel" if isinstance(step, Kernel) else "come from one call of PyTorch"
            rest = [steps[number].name for number in (*one, *two) if number not in both]
            partly = f"; parts of them by {_list_words([*dict.fromkeys(rest)])}" if rest else ""
            return f"{first} and {second} {made}, {step.name}{partly}"
        pairs = [(a, b) for a in one for b in two]
        kernels = [(a, b) for a, b in pairs if isinstance(steps[a], Kernel) and isinstance(steps[b], Kernel)]
        if not kernels:
            return self._matmul_decision(one, two) or "kernels are not merged with calls of PyTorch"
        return self._explain_refusal(min(kernels[0]), max(kernels[0]), ctx)

    def _matmul_decision(self, one: Sequence[int], two: Sequence[int]) -> str:
        """Recorded reasons why a matmul and a kernel that reads it were fused or not; "" without such a decision."""
        made = [{target for number in numbers for target in self.steps.steps[number].targets} for numbers in (one, two)]
        found = [d for d in self.decisions if d.pass_name in ("matmuls", "tune") and len(d.subjects) == 2]
        told = [d.why for d in found if any(d.subjects[0] in a and d.subjects[1] in b for a, b in (made, made[::-1]))]
        return "; ".join(told)

    def _explain_refusal(self, first: int, second: int, ctx: Context) -> str:
        head = f"not in one kernel, but in {self.steps.steps[first].name} and {self.steps.steps[second].name}"
        saved = self.steps.saved_bytes(first, second, ctx)
        found = legal(self.steps, Pair(first, second, saved), ctx)
        if isinstance(found, Refusal):
            gain = f"one would save {saved:,} bytes" if saved else "one would save no bytes"
            return f"{head} ({gain}): {found.why}{self._steps_between(first, second)}"
        if not saved:
            return f"{head}: one would be legal, but {self._why_no_saving(first, second, ctx)}"
        return f"{head}: one would be legal, and save {saved:,} bytes; {self._reported_reason(first, second)}"

    def _reported_reason(self, first: int, second: int) -> str:
        """The reason that the fusion pass reported for not merging two steps, as text."""
        targets = [{*self.steps.steps[number].targets} for number in (first, second)]
        for found in self.decisions:
            told = found.pass_name == "fuse" and found.verdict == "refused" and len(found.subjects) > 1
            if told and all(targets[side] & {found.subjects[side]} for side in (0, 1)):
                return f"the pass that ran as fuse refused: {found.why}"
        return "the pass that ran as fuse did not merge them"

    def _steps_between(self, first: int, second: int) -> str:
        """Names of the steps that must run after the first and before the second, as text; "" if there are none."""
        steps, before, needs = self.steps.steps, self.steps.before, self.steps.needs
        names = [steps[other].name for other in sorted(needs[second]) if other != first and before[other] >> first & 1]
        return f" ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})" if names else ""

    def _why_no_saving(self, first: int, second: int, ctx: Context) -> str:
        """Why fusing two steps would save nothing, as text."""
        one, two = self.steps.steps[first], self.steps.steps[second]
        shared = sorted({*one.reads, *one.targets} & {*two.reads, *two.targets})
        if not shared:
            return "they share nothing that would save bytes"
        most = f"fusion_distance ({ctx.thresholds.fusion_distance})"
        return f"they only share {', '.join(shared)}, and {second - first} steps lie between them, more than {most}"


def _list_words(told: Sequence[str], between: str = ", ") -> str:
    """Join the first names of a list, and add their total number if the list is long."""
    more = f"{between}… {len(told)} in all" if len(told) > MOST_LISTED else ""
    return between.join(told[:MOST_LISTED]) + more


def _parts(step: Kernel | Extern) -> Sequence[Loop | Extern]:
    """The loops of a kernel, or an extern call itself."""
    return step.loops if isinstance(step, Kernel) else (step,)
