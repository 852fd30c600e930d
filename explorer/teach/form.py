"""The form of a prediction in a notebook: an anywidget with its own front end, `static/predict.js`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anywidget
import traitlets

from explorer.run import frontend
from explorer.teach.prediction import Prediction
from explorer.teach.sheet import form_data, grades_data


class Form(anywidget.AnyWidget):
    """The questions of a prediction, to be answered before anything is shown.

    `answers` are the learner's answers by question, as text. `state` is "asking", "running" or "graded". `notes` say
    which answers can't be read, and `progress` which stage is running.
    """

    _esm = frontend.predict_module()
    _css = frontend.predict_css()

    form = traitlets.Dict().tag(sync=True)
    answers = traitlets.Dict().tag(sync=True)
    state = traitlets.Unicode("asking").tag(sync=True)
    grades = traitlets.Dict().tag(sync=True)
    notes = traitlets.Dict().tag(sync=True)
    progress = traitlets.Unicode().tag(sync=True)

    def __init__(
        self,
        prediction: Prediction,
        run: Callable[[Mapping[str, str]], None],
        show: Callable[[str, tuple[str, ...]], None],
    ) -> None:
        self.prediction, self._run, self._show = prediction, run, show
        super().__init__(form=form_data(prediction.sheet), answers=dict(prediction.sheet.answers))
        self.on_msg(self._on_message)

    def _on_message(self, _: object, message: Any, __: object) -> None:
        kind = message.get("type") if isinstance(message, dict) else None
        if kind == "compare" and self.state != "running":
            self._compare({str(name): str(text) for name, text in dict(message.get("answers", {})).items()})
        elif kind == "show":
            self._show(str(message.get("stage", "")), tuple(map(str, message.get("ids", ()))))

    def _compare(self, answers: Mapping[str, str]) -> None:
        self.notes = self.prediction.unreadable(answers)
        if self.notes:
            return
        self.answers = dict(answers)
        self.state, self.progress = "running", ""
        try:
            self._run(answers)
        finally:
            with self.hold_sync():
                self.grades = grades_data(self.prediction.sheet) if self.prediction.sheet.grades else {}
                self.state, self.progress = "graded" if self.grades else "asking", ""
