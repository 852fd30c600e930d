"""`%%predict`: a learner predicts what torch.compile does with a cell; then the cell runs, and the answers are graded.

In a notebook, the cell shows a form and runs when the learner compares. In a terminal, or with --no-widget, the
questions are asked one after the other. Where nobody can answer, as when a notebook is executed by a program, the cell
runs at once, and what it would have asked is shown with the answers folded.
"""
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import argparse
import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ipywidgets
from IPython.core.error import UsageError
from IPython.core.getipython import get_ipython
from IPython.core.magic import Magics, cell_magic, magics_class, no_var_expand
from IPython.display import DisplayHandle, display
from IPython.utils.process import arg_split  # type: ignore[attr-defined]

from compiler.engine import Event
from compiler.record import Record
from compiler.record.plain_text import pluralize
from explorer.entry.cell import Cell
from explorer.entry.interrupts import RepeatedInterrupts
from explorer.entry.listings import listing_of
from explorer.entry.options import strip_quotes
from explorer.entry.outputs import Output
from explorer.reading.stages import stage_title
from explorer.render.document import Tag, Text
from explorer.render.html import details
from explorer.render.static import document_html
from explorer.render.text import document_text
from explorer.run.files import replace_file
from explorer.run.run import Run
from explorer.teach.ask import questions_of
from explorer.teach.backward_questions import gradients_artifact
from explorer.teach.form import Form
from explorer.teach.gradients import gradients_of
from explorer.teach.page import predictions_page
from explorer.teach.prediction import Outcome, Prediction
from explorer.teach.progress import Progress
from explorer.teach.sheet import Sheet, grade_document, question_document

MOST_TRIES = 3
"""Times that a prompt is repeated for an answer that can't be read."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(f"%%predict: {message}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="%%predict", add_help=False, allow_abbrev=False)
    parser.add_argument("--ask", type=strip_quotes, default="breaks,graphs")
    parser.add_argument("--title", type=strip_quotes, default="")
    parser.add_argument("--page", type=strip_quotes, default="")
    return parser


class _Progressing(Output):
    """Output of a cell that a form runs: the form shows the current stage, and the run follows the grades."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def hear(self, event: Event, _: Callable[[], Record]) -> None:
        self._say(f"{stage_title(event.stage)} {event.words}".strip())

    def end(self, run: Run) -> None:
        pass


@magics_class
class PredictMagics(Magics):
    """The magic `%%predict`. `exploring` has the magic that it runs cells with."""

    shell: Any

    def __init__(self, shell: Any, exploring: Any) -> None:
        super().__init__(shell)
        self._exploring = exploring
        self._forms: dict[str, Form] = {}

    @no_var_expand
    @cell_magic
    def predict(self, line: str, cell: str) -> None:
        """Ask what torch.compile will do with this cell; then run it, and compare.

        %%predict --ask breaks,graphs,shape:h

        The learner answers before anything runs. Then the cell runs as under %%tcompile, and each answer is compared
        with what torch.compile did. Nobody writes a solution. Questions, NAME being a variable of the cell:

        breaks, plain             lines that break the graph, or that run as plain Python
        graphs, recompiles        how many graphs, how many recompilations; changed: by which arguments
        inputs, ops[:STAGE]       how many inputs or operations a graph has
        shape[:NAME], dtype[:NAME]
        leaves, gradient[:NAME]   which tensors get a gradient, and its numbers
        saved[:bytes], recomputed what is kept for the backward, and what is computed again
        becomes:OP                the ATen operations that an operation becomes
        fusion                    lines that share a kernel
        kernels[:KIND], bytes     how many kernels there are, and what they read and write

        --title TEXT is shown above. --page FILE.html runs the cell, and writes its questions as a page that grades
        answers in any browser, without Python. All other options are those of %%tcompile. Answers and grades are kept
        in tcompile_progress.json beside the notebook; nothing is sent anywhere.
        """
        args, rest = _parser().parse_known_args(arg_split(line, strict=False))
        explored = self._exploring.parse_line(" ".join(rest), cell)
        if explored.help:
            display({"text/plain": inspect.getdoc(type(self).predict)}, raw=True)
            return
        self._exploring.options_of(explored)  # a mistake is told before anything is asked
        parsed = self._exploring.parse_cell(explored, cell)
        if parsed.awaits:
            raise UsageError("%%predict can't run a cell with a top-level await: put the await into a function")
        try:
            questions = questions_of(args.ask)
        except ValueError as error:
            raise UsageError(str(error)) from None
        listing = listing_of(parsed)
        sheet = Sheet(args.title, listing, questions, shows_code=not parsed.source.endswith(listing.text))
        key = args.title or f"cell {hashlib.sha256(f'{args.ask}{cell}'.encode()).hexdigest()[:12]}"
        asked = _AskedCell(self.shell, self._exploring, explored, parsed)
        prediction = Prediction(sheet, asked.explore, key, Progress())
        kernel = getattr(self.shell, "kernel", None)
        if args.page:
            save_page(prediction, args.page)
            asked.finish(prediction.run)
        elif kernel is None or (explored.no_widget and _can_answer(kernel)):
            ask_in_text(prediction)
            asked.finish(prediction.run)
        elif _can_answer(kernel):
            self._show_form(prediction, asked)
        else:
            run_unasked(prediction)
            asked.finish(None)

    def _show_form(self, prediction: Prediction, asked: _AskedCell) -> None:
        result = getattr(self.shell.displayhook, "exec_result", None)
        cell_id = (result.info.cell_id if result else None) or ""
        if cell_id in self._forms:
            self._forms.pop(cell_id).close()
        form = show_form(prediction, asked.hear_with, asked.display_value)
        if cell_id:
            self._forms[cell_id] = form


class _AskedCell:
    """The cell of a prediction, run when the answers are compared."""

    def __init__(self, shell: Any, exploring: Any, args: argparse.Namespace, cell: Cell) -> None:
        self._shell, self._exploring, self._args, self._cell = shell, exploring, args, cell
        self._value: Any = None
        self._error: BaseException | None = None
        self._output: Output = Output()

    def hear_with(self, say: Callable[[str], None]) -> None:
        """Report the stages while the cell runs to a form."""
        self._output = _Progressing(say)

    def explore(self) -> Outcome:
        """Run the cell. Its own exception is kept for `finish`, because the learner gets the grades first."""
        self._value = self._error = None
        quiet = self._output if isinstance(self._output, _Progressing) else _Progressing(lambda _: None)
        try:
            with RepeatedInterrupts(), self._exploring.open_session(self._args, self._cell, quiet) as session:
                self._value = session.run_cell()
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever the user's cell raises
            self._error = error
        run = self._shell.user_ns.get(self._args.output)
        failure = "" if self._error is None else f"{type(self._error).__name__}: {self._error}"
        return Outcome(run, self._with_gradients(run) if run is not None and not failure else None, failure)

    def _with_gradients(self, run: Run) -> Record:
        """The run's record with the gradients of the cell's variables, which no stage holds as numbers."""
        found = gradients_of(self._shell.user_ns, self._cell.source)
        return run.record.with_fields(artifacts=(*run.record.artifacts, gradients_artifact(found)))

    def display_value(self) -> None:
        """Show the cell's value, or its exception."""
        if self._error is not None:
            error, self._error = self._error, None
            self._shell.showtraceback((type(error), error, error.__traceback__))
        elif self._value is not None and not self._cell.is_silenced:
            display(self._value)

    def finish(self, run: Run | None) -> None:
        """Show a run below the grades, and the cell's value, or raise the cell's exception."""
        if self._error is not None:
            raise self._error
        if run is not None and run.record.artifacts:
            display(run)
        self.display_value()


def _can_answer(kernel: Any) -> bool:
    """Whether a person may be there: programs that execute notebooks allow no input."""
    return bool(getattr(kernel, "_allow_stdin", False))


def display_prediction(prediction: Prediction) -> None:
    """Display a prediction that belongs to no cell: as a form in a notebook, else as text."""
    shell = get_ipython()
    if shell is not None and _can_answer(getattr(shell, "kernel", None)):
        show_form(prediction, lambda _: None, lambda: None)
    else:
        document = question_document(prediction.sheet)
        display({"text/plain": document_text(document), "text/html": document_html(document)}, raw=True)


def ask_in_text(prediction: Prediction, read: Callable[[str], str] | None = None) -> Sheet:
    """Ask the questions one after the other in a terminal, then compare and print the grades."""
    _say(document_text(question_document(prediction.sheet)))
    answers: dict[str, str] = {}
    for question in prediction.sheet.questions:
        answers[question.name] = _prompt(prediction, question.name, f"{question.ask()} ", read or input)
    sheet = prediction.compare(answers)
    _say(document_text(grade_document(sheet)))
    return sheet


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _prompt(prediction: Prediction, name: str, words: str, read: Callable[[str], str]) -> str:
    """An answer that can be read; after a few attempts, as it is."""
    text = ""
    for _ in range(MOST_TRIES):
        try:
            text = read(words)
        except EOFError:
            return text
        problem = prediction.unreadable({name: text}).get(name)
        if not problem:
            break
        _say(f"  This can't be read: {problem}.")
    return text


def run_unasked(prediction: Prediction) -> None:
    """Run the code where nobody can answer; the page shows the questions, with what was found folded."""
    asked = document_text(question_document(prediction.sheet))
    sheet = prediction.compare({})
    note = "Not answered: nobody could answer here, so the code ran without predictions."
    html = document_html([*grade_document(sheet), Text((Tag(note, "muted"),))])
    stages = details("<b>The stages of this run</b>", _run_html(prediction))
    display({"text/plain": f"{asked}\n{note}", "text/html": html + stages}, raw=True)


def save_page(prediction: Prediction, path: str) -> None:
    """Run the code, and write its questions as a page that grades answers without Python."""
    sheet = prediction.compare({})
    title = sheet.title or "Predict"
    written = replace_file(Path(path), predictions_page(title, [sheet]).encode())
    _say(f"{written}: {pluralize(len(sheet.questions), 'question')} that any browser can grade")


def show_form(
    prediction: Prediction, hear_with: Callable[[Callable[[str], None]], None], display_value: Callable[[], None]
) -> Form:
    """Display the form, and below it the output of the code once the answers are compared."""
    below = ipywidgets.Output()

    def run(answers: Mapping[str, str]) -> None:
        is_first = prediction.has_to_run
        with below:
            if is_first:
                below.clear_output()
                hear_with(lambda words: setattr(form, "progress", words))
            prediction.compare(answers)
            if is_first:
                _display_live(prediction)
                display_value()
        handle.update(_bundle(form, prediction), raw=True)

    def show(stage: str, ids: tuple[str, ...]) -> None:
        if prediction.run is not None:
            prediction.run.widget().open_stage(stage, ids)

    form = Form(prediction, run, show)
    handle = DisplayHandle()
    handle.display(_bundle(form, prediction), raw=True)
    display(below)
    return form


def _display_live(prediction: Prediction) -> None:
    run = prediction.run
    if run is not None and run.record.artifacts:
        display(run.widget())


def _bundle(form: Form, prediction: Prediction) -> dict[str, Any]:
    """The form as a live widget, and as text and HTML for a saved notebook."""
    sheet = prediction.sheet
    document = grade_document(sheet) if sheet.grades else question_document(sheet)
    made = form._repr_mimebundle_()
    bundle = dict(made[0] if isinstance(made, tuple) else made or {})
    html = document_html(document) + _run_html(prediction)
    return {**bundle, "text/plain": document_text(document), "text/html": html}


def _run_html(prediction: Prediction) -> str:
    run = prediction.run
    found: dict[str, Any] = run._repr_mimebundle_() if run is not None and run.record.artifacts else {}
    return str(found.get("text/html", ""))
