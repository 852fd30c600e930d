"""`explorer.thresholds(p)`: the numbers that our backend's passes decide by, as sliders, and what moving them does."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from explorer.shapes import size_text
from explorer.static_html import muted, note, safe, table_html
from explorer.text import columns

if TYPE_CHECKING:
    import pandas as pd

    from compiler.backend.opened import Opened
    from compiler.backend.traffic import Totals

MOST_SECONDS = 2.0
"""So long at most are other values tried for what a saved notebook shows."""


WITH_GRAPHS_ONLY = ("replayed", "replayed_in_training")
"""They change nothing of what `compiler.open` gives, which no CUDA graph replays."""


def thresholds(opened: Opened) -> ThresholdControl:
    """The thresholds of what `compiler.open` gave, as sliders: kernels, calls, bytes and the text of a stage follow. In
    a notebook without a kernel, and in a terminal, it is a table of what other values would change.

    Raises TypeError for something else.
    """
    if not hasattr(opened, "with_thresholds"):
        raise TypeError(f"explorer.thresholds takes what compiler.open gives; got {type(opened).__name__}")
    return ThresholdControl(opened)


@dataclass(frozen=True, slots=True)
class Threshold:
    """One number that passes decide by: its name, what it means, and the values to choose from."""

    name: str
    words: str
    usual: int
    choices: tuple[int, ...]


def thresholds_of(opened: Opened) -> tuple[Threshold, ...]:
    """Those that count for the code of a call, with their words from the docstring that declares them."""
    elsewhere = "on the CPU" if opened.graph.processors else "on a GPU"
    every = (item for item in all_thresholds() if item.name not in WITH_GRAPHS_ONLY)
    return tuple(item for item in every if not item.words.startswith(elsewhere))


def all_thresholds() -> tuple[Threshold, ...]:
    """All of them."""
    from compiler.backend.context import Thresholds

    words = described(inspect.getdoc(Thresholds) or "", [item.name for item in fields(Thresholds)])
    usual = Thresholds()
    return tuple(
        Threshold(name, words[name], value, _choices(value))
        for name, value in ((item.name, getattr(usual, item.name)) for item in fields(Thresholds))
    )


def described(doc: str, names: list[str]) -> Mapping[str, str]:
    """What a docstring says of each name: from the line that begins with it to that of the next."""
    pattern = rf"^({'|'.join(map(re.escape, names))})[ ]{{2,}}(.*(?:\n[ ]{{2,}}.*)*)"
    found = {name: " ".join(text.split()) for name, text in re.findall(pattern, doc, re.MULTILINE)}
    return {name: found.get(name, "") for name in names}


def _choices(usual: int) -> tuple[int, ...]:
    """The powers of two around the usual value, and that."""
    most = max(256, 16 * usual)
    powers = (1 << exponent for exponent in range(most.bit_length()))
    return tuple(sorted({usual, *powers}))


class ThresholdControl:
    """The thresholds of an opened call. `opened` is the call with thresholds as the sliders stand, `start` as it was
    given; `effects` is a table of what other values would change. Set a value from Python by `move(fused_loops=4)`.
    """

    def __init__(self, opened: Opened) -> None:
        self.start = self.opened = opened
        self._view: Any = None

    def move(self, **changes: int) -> None:
        """Change thresholds: the passes run again, and so does what shows them. Raises OptionError for a name or value
        that there is not, and what a pass raises.
        """
        self.opened = self.opened.with_thresholds(**changes)
        if self._view is not None:
            self._view.moved()

    @property
    def effects(self) -> pd.DataFrame:
        """One row a threshold and value, of those that would change the kernels of this call, from the values that the
        sliders offer. The first row is how it stands now.
        """
        import pandas as pd

        rows = [("as it is", None, *_numbers(self.opened.totals)), *self._effects(float("inf"))]
        return pd.DataFrame(rows, columns=["threshold", "value", "kernels", "calls", "bytes"]).astype(
            {"value": "Int64"}
        )

    def _effects(self, seconds: float) -> Iterator[tuple[Any, ...]]:
        """Of neighbouring values that give the same, the first alone, going out from the value as it is. Where the
        outermost one changes nothing, those before it are not tried. After so many seconds no more are tried, and the
        last row says so.
        """
        end = time.monotonic() + seconds
        for item in thresholds_of(self.opened):
            usual = getattr(self.opened.thresholds, item.name)
            lower = [choice for choice in reversed(item.choices) if choice < usual]
            for values in (lower, [choice for choice in item.choices if choice > usual]):
                before = self.opened.totals
                for value in values if values and self._with(item.name, values[-1]) != before else ():
                    if time.monotonic() > end:
                        yield "… trying more takes long: see effects", None, *_numbers(self.opened.totals)
                        return
                    found = self._with(item.name, value)
                    if found != before:
                        yield item.name, value, *_numbers(found)
                    before = found

    def _with(self, name: str, value: int) -> Totals:
        return self.opened.with_thresholds(**{name: value}).totals

    def widget(self) -> Any:
        """The sliders, with what they change; made once."""
        if self._view is None:
            from explorer.threshold_sliders import Sliders

            self._view = Sliders(self)
        return self._view.box

    def __str__(self) -> str:
        now = self.opened.thresholds
        head = [("threshold", "value", "what it is")]
        rows = [(item.name, str(getattr(now, item.name)), item.words) for item in thresholds_of(self.opened)]
        shown = [("with", "kernels", "calls", "bytes"), *self._shown_effects()]
        return "\n".join([*columns(head + rows, right=(1,)), "", *columns(shown, right=(1, 2, 3))])

    __repr__ = __str__

    def _shown_effects(self) -> list[tuple[str, str, str, str]]:
        found = [("as it is", None, *_numbers(self.opened.totals)), *self._effects(MOST_SECONDS)]
        return [
            (name if value is None else f"{name}={value}", f"{kernels:,}", f"{calls:,}", size_text(moved))
            for name, value, kernels, calls, moved in found
        ]

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Text, and HTML that needs no script. The sliders are an output of their own."""
        return {"text/plain": str(self), "text/html": self._html()}

    def _html(self) -> str:
        now = self.opened.thresholds
        rows = [(item.name, str(getattr(now, item.name)), item.words) for item in thresholds_of(self.opened)]
        changes = table_html(["with", "kernels", "calls", "bytes"], self._shown_effects())
        about = muted("thresholds of the passes, and what other values would change")
        head = f"<div><b>{safe(self.opened.asked.title)}</b> {about}</div>"
        how = note("With a kernel these are sliders. In Python: p.with_thresholds(fused_loops=4).")
        inside = f"{head}{table_html(['threshold', 'value', 'what it is'], rows)}{changes}{how}"
        return f'<div class="tcompile-twin" title="tcompile-static">{inside}</div>'

    def _ipython_display_(self) -> None:
        """Static HTML first, then the sliders, whose style hides it: a saved notebook shows the first without them."""
        from IPython.core.getipython import get_ipython
        from IPython.display import display

        display(self._repr_mimebundle_(), raw=True)
        if getattr(get_ipython(), "kernel", None) is not None:
            display(self.widget())


def _numbers(found: Totals) -> tuple[int, int, int]:
    return found.kernels, found.calls, found.bytes
