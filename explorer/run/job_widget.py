"""The index of a job in a notebook: a table or a grid of ranks, and below it the record that was opened last."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets
from ipywidgets import HTML, VBox

from explorer.render.document import Document, payload
from explorer.render.html import note
from explorer.run import frontend
from explorer.run.job_page import index_of

if TYPE_CHECKING:
    from explorer.run.job import Job


class JobIndex(anywidget.AnyWidget):
    """The index of a job. `opened` is the name of the compilation that was opened last."""

    _esm = frontend.job_module()
    _css = frontend.job_css()

    data = traitlets.Dict().tag(sync=True)
    opened = traitlets.Unicode().tag(sync=True)

    def __init__(self, index: Document) -> None:
        super().__init__(data=payload(index))
        self.on_msg(self._on_message)

    def _on_message(self, _: object, message: Any, __: object) -> None:
        if isinstance(message, dict) and message.get("type") == "open":
            self.opened = str(message.get("name", ""))


def live_index(job: Job) -> VBox:
    """The index of a job above the record of the compilation that is opened."""
    return live_document(index_of(job), lambda name: job[name].widget())


def live_document(document: Document, widget_named: Callable[[str], Any]) -> VBox:
    """An index above the record that is opened by its name; earlier ones are closed, to bound memory."""
    index = JobIndex(document)
    box = VBox([index])

    def open_record(change: Any) -> None:
        before = box.children[1:]
        try:
            shown = widget_named(change["new"])
        except (KeyError, ValueError) as error:
            shown = HTML(note(str(error.args[0])))
        box.children = (index, shown)
        for widget in before:
            widget.close()

    index.observe(open_record, "opened")
    return box
