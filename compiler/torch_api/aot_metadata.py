"""What AOTAutograd found about the inputs and outputs of the function that it traced.

It is in the tracing context while its graphs are compiled (`ViewAndMutationMeta` of
torch._functorch._aot_autograd.schemas).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch._guards import TracingContext


@dataclass(frozen=True, slots=True)
class InputFacts:
    """One input. `mutated` says where its new value is written: "in" the graph, "after" it, or "" for nowhere."""

    requires_grad: bool
    is_leaf: bool
    mutated: str
    metadata_mutated: bool


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """One output of the user's function. `kind` is the name of torch's `OutputType`; `base` is what it is a view of."""

    kind: str
    base: int | None
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class AotFacts:
    """Inputs and outputs in the user's order. `first_output` is the place of output 0 among the forward's outputs, of
    which the first `returned` are given to the caller, and the others to the backward.

    With `subclasses`, tensors of those types were taken apart: places in the graph are not those of the user.
    """

    inputs: tuple[InputFacts, ...]
    outputs: tuple[OutputFacts, ...]
    first_output: int
    returned: int
    subclasses: tuple[str, ...]


def aot_facts() -> AotFacts | None:
    """The facts about the graphs that are being compiled, or None outside of that."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return None
    return AotFacts(
        inputs=tuple(
            InputFacts(item.requires_grad, item.is_leaf, _place(item.mutation_type.name), item.mutates_metadata)
            for item in metadata.input_info
        ),
        outputs=tuple(
            OutputFacts(item.output_type.name, item.base_idx, item.requires_grad) for item in metadata.output_info
        ),
        first_output=metadata.num_mutated_inp_runtime_indices,
        returned=metadata.num_forward_returns,
        subclasses=_subclasses([*metadata.subclass_inp_meta, *metadata.subclass_fw_graph_out_meta]),
    )


def _place(mutation: str) -> str:
    return {"MUTATED_IN_GRAPH": "in", "MUTATED_OUT_GRAPH": "after"}.get(mutation, "")


def _subclasses(metas: list[object]) -> tuple[str, ...]:
    kinds = (getattr(meta, "original_subclass_type", None) for meta in metas)
    return tuple(dict.fromkeys(kind.__name__ for kind in kinds if kind is not None))
