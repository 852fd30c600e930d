"""`AutogradRun`: display, print and save a tensor's autograd graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explorer.run.run import Run

if TYPE_CHECKING:
    import pandas as pd


LINES_SHOWN = 60


class AutogradRun(Run):
    """An autograd graph. Prints as the program of the backward pass, displays as a graph, and saves as a page.

    `nodes`, `saved` and `leaves` are DataFrames; `value` is the result of the call.
    """

    @property
    def nodes(self) -> pd.DataFrame:
        """One row per node, in backward order: op, rule, line, module, saved tensors."""
        return _tables().nodes(self.record)

    @property
    def saved(self) -> pd.DataFrame:
        """One row per saved tensor: shape, bytes, origin, and tensors that share its memory."""
        return _tables().saved_table(self.record)

    @property
    def leaves(self) -> pd.DataFrame:
        """One row per leaf: name, number and sources of its gradients, hooks, version."""
        return _tables().leaves(self.record)

    @property
    def stops(self) -> pd.DataFrame:
        """One row per gradient stop: detached, under `torch.no_grad()`, or a frozen parameter.

        Autograd does not record these, so they are known only if tcompile recorded how the graph was built.
        """
        return _tables().stops(self.record)

    @property
    def health(self) -> pd.DataFrame:
        """One row per node: norm, share of zeros, NaN and infinities of its result and gradient.

        `first` marks the first non-finite result and gradient. Raises ValueError without `health=True`.
        """
        if not any("health" in artifact.attrs for artifact in self.record.of_stage("autograd")):
            raise ValueError(
                "health was not measured, as it takes a backward pass: tcompile.autograd(..., health=True)"
            )
        return _tables().health(self.record)

    def __str__(self) -> str:
        graphs = self.record.of_stage("autograd")
        told = [line for artifact in graphs for line in artifact.attrs.get("health", ())]
        return "\n".join([artifact.text for artifact in graphs] + told)

    def _repr_mimebundle_(self, **options: object) -> dict[str, str]:
        """Text and static HTML. The text is truncated, because a saved notebook stores both."""
        return super()._repr_mimebundle_(**options) | {"text/plain": first_lines(str(self))}

    def __repr__(self) -> str:
        count = sum(
            entity.kind not in ("placeholder", "stop")
            for each in self.record.of_stage("autograd")
            for entity in each.entities
        )
        return f"<AutogradRun {self.record.title}: {count:,} nodes; print it to read the backward pass>"


def first_lines(text: str) -> str:
    """The first lines of a text, with the number of lines left out."""
    lines = text.splitlines()
    more = [f"… and {len(lines) - LINES_SHOWN:,} more lines: print it"] if len(lines) > LINES_SHOWN else []
    return "\n".join([*lines[:LINES_SHOWN], *more])


def _tables() -> Any:
    from explorer.run import autograd_tables

    return autograd_tables
