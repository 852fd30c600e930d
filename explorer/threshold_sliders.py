"""Sliders for the thresholds of our backend's passes: the passes run again as they move, and what changed is shown."""

from __future__ import annotations

import difflib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from explorer.diff import diff_html
from explorer.shapes import seconds_text, size_text
from explorer.static_html import WARNING, muted, pre, safe, table_html
from explorer.thresholds import Threshold, thresholds_of

if TYPE_CHECKING:
    from compiler.backend.opened import Opened
    from explorer.thresholds import ThresholdControl

AT_ONCE_SECONDS = 0.1
"""Where the passes take longer, they run when a slider is let go, not while it moves."""

LINES_COMPARED = 3000
"""Texts of more lines are not compared: that would take longer than the passes."""

_STYLE = (
    "<style>.jp-OutputArea:has(.tcompile-thresholds) .jp-OutputArea-child:has(.tcompile-twin) { display: none; }"
    ".tcompile-thresholds .tcompile-words { font-size: 11px; line-height: 1.3; opacity: 0.75; }</style>"
)
CODE = "code"
"""What stands among the stages for the kernels' source."""


class Sliders:
    """The view of a control. `box` is the widget; `sliders` are its sliders by name."""

    def __init__(self, control: ThresholdControl) -> None:
        self.control = control
        opened = control.opened
        quick = sum(sum(graph.stages.seconds.values()) for graph in opened.graphs) < AT_ONCE_SECONDS
        self.sliders = {item.name: _slider(item, opened, quick) for item in thresholds_of(opened)}
        self.graph = widgets.Dropdown(options=[graph.name for graph in opened.graphs], description="graph")
        self.graph.value = opened.graph.name
        stages = [*opened.graph.programs, CODE]
        self.stage = widgets.Dropdown(options=stages, description="stage",
                                      value="fused")  # fmt: skip
        self.usual = widgets.Button(description="as at first", tooltip="every threshold as it was at first")
        self.measure = widgets.Checkbox(value=_is_on_gpu(opened), description="measure the time", indent=False)
        self.numbers, self.text, self.problem = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self._seconds: dict[Any, str] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="tcompile-thresholds")
        self._connect()
        self.box = self._laid_out()
        self.show()

    def _connect(self) -> None:
        for name, slider in self.sliders.items():
            slider.observe(lambda change, name=name: self._slide(name, change["new"]), "value")
        for widget in (self.graph, self.stage, self.measure):
            widget.observe(lambda _: self.show(), "value")
        self.usual.on_click(lambda _: self._move(_values(self.control.start)))

    def _laid_out(self) -> widgets.Widget:
        grid = widgets.Layout(grid_template_columns="repeat(auto-fill, minmax(380px, 1fr))", grid_gap="2px 16px")
        words = {item.name: item.words for item in thresholds_of(self.control.opened)}
        sliders = [_with_words(slider, words[name]) for name, slider in self.sliders.items()]
        chosen = widgets.HBox([self.graph, self.stage, self.usual, self.measure],
                              layout=widgets.Layout(flex_flow="row wrap", align_items="center"))  # fmt: skip
        parts = [
            widgets.HTML(_STYLE),
            widgets.GridBox(sliders, layout=grid),
            self.problem,
            self.numbers,
            chosen,
            self.text,
        ]
        box = widgets.VBox(parts)
        box.add_class("tcompile-thresholds")
        return box

    def _slide(self, name: str, value: int) -> None:
        if value != getattr(self.control.opened.thresholds, name):
            self._move({name: value})

    def _move(self, changes: dict[str, int]) -> None:
        """Run the passes again; an error is shown in place of nothing, and what was there stays."""
        try:
            self.control.move(**changes)
        except Exception as error:  # noqa: BLE001 a pass of the user's may raise anything: it is shown in place
            tried = ", ".join(f"{name}={value}" for name, value in changes.items())
            told = f"{safe(tried)}: <b>{type(error).__name__}</b> {safe(str(error))}<br>Below is as it was before."
            self.problem.value = f'<div style="{WARNING}">{told}</div>'

    def moved(self) -> None:
        """The control has other thresholds."""
        self.problem.value = ""
        for name, value in _values(self.control.opened).items():
            slider = self.sliders[name]
            if value not in slider.options:
                slider.options = sorted({*slider.options, value})
            slider.value = value
        self.show()

    def show(self) -> None:
        """Numbers and text as the thresholds stand."""
        now, start = (opened.of(self.graph.value) for opened in (self.control.opened, self.control.start))
        self.numbers.value = self._table(now, start)
        self.text.value = stage_html(start, now, self.stage.value)
        if self.measure.value and now.target is None:
            self._measure(now, start)

    def _table(self, now: Opened, start: Opened) -> str:
        rows: list[tuple[str, ...]] = [_row("at first", start, start), _row("now", now, start)]
        columns = ["", "kernels", "calls of PyTorch", "bytes moved", "change"]
        if self.measure.value:
            columns.append("time of the graph")
            rows = [(*row, self._time(opened)) for row, opened in zip(rows, (start, now), strict=True)]
        return table_html(columns, rows)

    def _time(self, opened: Opened) -> str:
        if opened.target is not None:
            return f"{opened.target.title} is not here"
        return self._seconds.get(_key(opened), "measuring…")

    def _measure(self, *wanted: Opened) -> None:
        """Measure on a thread: sliders can be moved on, and what they left behind is not measured any more."""
        for opened in wanted:
            if _key(opened) not in self._seconds:
                self._worker.submit(self._measured, opened)

    def _measured(self, opened: Opened) -> None:
        shown = (self.control.opened, self.control.start)
        if _key(opened) in self._seconds or opened.thresholds not in [other.thresholds for other in shown]:
            return
        try:
            seconds = opened.seconds_a_call()
            self._seconds[_key(opened)] = _call_time(seconds) if seconds else "the call did not run this graph"
        except Exception as error:  # noqa: BLE001 shown in place: a thread has nobody to raise it to
            self._seconds[_key(opened)] = f"{type(error).__name__}: {error}"
        self.numbers.value = self._table(*(found.of(self.graph.value) for found in shown))


def _call_time(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} µs" if seconds < 0.01 else seconds_text(seconds)


def _slider(item: Threshold, opened: Opened, quick: bool) -> Any:
    value = getattr(opened.thresholds, item.name)
    return widgets.SelectionSlider(
        options=sorted({*item.choices, value}), value=value, description=item.name, tooltip=item.words,
        continuous_update=quick, style={"description_width": "130px"}, layout=widgets.Layout(width="380px"),
    )  # fmt: skip


def _with_words(slider: Any, words: str) -> widgets.Widget:
    return widgets.VBox([slider, widgets.HTML(f'<div class="tcompile-words">{safe(words)}</div>')])


def _values(opened: Opened) -> dict[str, int]:
    return {item.name: getattr(opened.thresholds, item.name) for item in thresholds_of(opened)}


def _key(opened: Opened) -> Any:
    return opened.graph.name, opened.thresholds


def _is_on_gpu(opened: Opened) -> bool:
    return opened.target is None and opened.graph.processors > 0


def _row(name: str, now: Opened, start: Opened) -> tuple[str, str, str, str, str]:
    found, usual = (opened.totals_of(opened.graph, opened.graph.stages.last) for opened in (now, start))
    more = found.bytes - usual.bytes
    change = f"{'+' if more > 0 else '-'}{size_text(abs(more))}" if more else ""
    return name, str(found.kernels), str(found.calls), size_text(found.bytes), change


def stage_html(start: Opened, now: Opened, stage: str) -> str:
    """A stage as it is now, the lines that are not as they were at first tinted."""
    before, after = (_text(opened, stage).splitlines() for opened in (start, now))
    if before == after:
        only_code = stage != CODE and now.thresholds != start.thresholds and start.code != now.code
        same = "as at first; the code has changed: choose it as the stage" if only_code else "as at first"
        return muted(same) + pre([safe(line) for line in after[:LINES_COMPARED]])
    if max(len(before), len(after)) > LINES_COMPARED:
        return muted("changed; too long to compare here") + pre([safe(line) for line in after[:LINES_COMPARED]])
    lines = [*difflib.unified_diff(before, after, n=len(before), lineterm="")][3:]
    return muted("- at first, + now") + diff_html(tuple(lines))


def _text(opened: Opened, stage: str) -> str:
    return opened.code if stage == CODE else str(opened.stage(stage))
