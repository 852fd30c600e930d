"""The graph that autograd built behind a tensor, as a run that shows, prints and saves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explorer.run.run import Run

if TYPE_CHECKING:
    import pandas as pd


LINES_SHOWN = 60


class AutogradRun(Run):
    """The graph that autograd built: prints as the program that backward runs, shows as a graph, saves as a page.

    `nodes`, `saved` and `leaves` are DataFrames; `value` is what was called returned.
    """

    @property
    def nodes(self) -> pd.DataFrame:
        """One row per node, in the order in which backward runs them: op, rule, line, module, what it saves."""
        return _tables().nodes(self.record)

    @property
    def saved(self) -> pd.DataFrame:
        """One row per tensor that a node keeps: shape, bytes, what it is, which others share its memory."""
        return _tables().saved(self.record)

    @property
    def leaves(self) -> pd.DataFrame:
        """One row per leaf: its name, how many gradients are added there and where they come from, hooks, version."""
        return _tables().leaves(self.record)

    @property
    def stops(self) -> pd.DataFrame:
        """One row per place where gradients stop: detached, under `torch.no_grad()`, or a frozen parameter.

        Autograd keeps no trace of these: they are known where the graph was built here.
        """
        return _tables().stops(self.record)

    @property
    def health(self) -> pd.DataFrame:
        """One row per node: norm, share of zeros, NaN and infinities of its result and its gradient.

        `first` marks where what is not finite appears first. Raises ValueError without `health=True`.
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
        """As for any run, with the text cut: a saved notebook holds it beside the HTML."""
        return super()._repr_mimebundle_(**options) | {"text/plain": first_lines(str(self))}

    def __repr__(self) -> str:
        count = sum(
            entity.kind not in ("placeholder", "stop")
            for each in self.record.of_stage("autograd")
            for entity in each.entities
        )
        return f"<AutogradRun {self.record.title}: {count:,} nodes; print it to read the backward pass>"


def first_lines(text: str) -> str:
    """The first lines of a text, and how many more there are."""
    lines = text.splitlines()
    more = [f"… and {len(lines) - LINES_SHOWN:,} more lines: print it"] if len(lines) > LINES_SHOWN else []
    return "\n".join([*lines[:LINES_SHOWN], *more])


def _tables() -> Any:
    from explorer.run import autograd_tables

    return autograd_tables
