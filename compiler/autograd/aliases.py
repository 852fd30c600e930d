"""Mutations and aliases of a function's inputs and outputs: what AOTAutograd did about them, as decisions."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import GraphModule, Node

from compiler.record import Decision
from compiler.torch_api.aot_metadata import AotFacts, OutputFacts

PASS = "functionalization"

_MUTATED = {
    "in": "the function changes this input in place; the graph is free of mutation but for one copy_ at its end",
    "after": "the function changes this input in place; the graph returns the new value, and it is copied over the "
    "input after the graph has run",
}
_VIEWS = {
    "alias_of_input": "output {output} is a view of input {base}: it is made anew from that after the graph has run",
    "is_input": "output {output} is input {base} itself: the input is given back",
    "alias_of_intermediate": "output {output} is a view of an intermediate value that is an output too",
    "alias_of_intermediate_save_as_output": "output {output} is a view of an intermediate value: the graph returns "
    "that value, and the view is made anew from it",
    "alias_of_intermediate_base_is_user_output": "output {output} is a view of output {base}",
    "unsafe_view_alias": "output {output} is an unsafe view: nothing else sees the memory, so it is returned as it is",
    "custom_function_view": "output {output} is a view that a custom autograd Function made: it is returned as it is",
}


def alias_decisions(facts: AotFacts, module: GraphModule, artifact: str, frame: str) -> list[Decision]:
    """What is mutated or aliased, said of the nodes of the forward or inference graph `artifact`."""
    if facts.subclasses:
        kinds = ", ".join(facts.subclasses)
        why = f"tensors of {kinds} are taken apart: the graph works on the plain tensors inside of them"
        return [Decision(PASS, frame, (), "subclass", why)]
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    return [*_mutations(facts, inputs, artifact, frame), *_views(facts, module, artifact, frame)]


def requires_grad(facts: AotFacts, module: GraphModule) -> dict[str, dict[str, bool]]:
    """By the name of an input of the graph, whether autograd wants a gradient for it."""
    if facts.subclasses:
        return {}
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    return {node.name: {"requires_grad": fact.requires_grad} for node, fact in zip(inputs, facts.inputs, strict=False)}


def _mutations(facts: AotFacts, inputs: list[Node], artifact: str, frame: str) -> Iterator[Decision]:
    for node, fact in zip(inputs, facts.inputs, strict=False):
        subjects = (f"{artifact}.{node.name}",)
        if fact.mutated:
            yield Decision(PASS, frame, subjects, "mutated input", _MUTATED[fact.mutated])
        if fact.metadata_mutated:
            why = "the function changes the shape or strides of this input: that is done again after the graph has run"
            yield Decision(PASS, frame, subjects, "mutated layout", why)


def _views(facts: AotFacts, module: GraphModule, artifact: str, frame: str) -> Iterator[Decision]:
    returned = next(iter(module.graph.find_nodes(op="output"))).args[0]
    for number, fact in enumerate(facts.outputs):
        why = _words(fact, number)
        place = facts.first_output + number
        source = returned[place] if isinstance(returned, tuple | list) and place < len(returned) else None
        if why:
            subjects = (f"{artifact}.{source.name}",) if isinstance(source, Node) else ()
            yield Decision(PASS, frame, subjects, "aliased output", why)


def _words(fact: OutputFacts, number: int) -> str:
    return _VIEWS.get(fact.kind, "").format(output=number, base=fact.base)
