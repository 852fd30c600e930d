"""`tcompile.lessons`: exercises that check themselves.

tcompile.lessons                        the exercises by topic, and what is done
tcompile.lessons["print_line"]          one exercise: a form in a notebook, text in a terminal
tcompile.lessons["print_line"].ask()    answer it in a terminal
tcompile.lessons.export("me.csv")       your progress, as a table
tcompile.lessons.save("exercises.html") exercises as a page that grades answers without Python
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.record.plain_text import did_you_mean, pluralize
from explorer.reading.plain_text import columns

if TYPE_CHECKING:
    import pandas as pd

    from explorer.run.run import Run
    from explorer.teach.exercise import Exercise
    from explorer.teach.prediction import Prediction
    from explorer.teach.progress import Progress
    from explorer.teach.sheet import Sheet


class ShownExercise:
    """One exercise: in a notebook it displays as a form, `ask()` asks in the terminal, `grade` grades an answer.

    The program runs when an answer is compared, and its exploration is then `run`.
    """

    def __init__(self, exercise: Exercise) -> None:
        self._exercise = exercise
        self._prediction: Prediction | None = None

    @property
    def code(self) -> str:
        """The program that the exercise asks about."""
        return self._exercise.program.code

    @property
    def hints(self) -> tuple[str, ...]:
        """Hints, the first before the second."""
        return self._exercise.hints

    @property
    def run(self) -> Run | None:
        """The program's exploration; None before an answer was compared."""
        return self._get_prediction().run

    def ask(self) -> None:
        """Ask in the terminal, then run the program, and print the grade."""
        from explorer.entry.predict import ask_in_text

        ask_in_text(self._get_prediction())

    def grade(self, *answers: str) -> Sheet:
        """Run the program, and grade answers, in the order of the questions. Returns the graded sheet, which prints."""
        prediction = self._get_prediction()
        names = (question.name for question in prediction.sheet.questions)
        return prediction.compare(dict(zip(names, map(str, answers), strict=False)))

    def __str__(self) -> str:
        from explorer.render.text import document_text
        from explorer.teach.sheet import question_document

        return document_text(question_document(self._get_prediction().sheet))

    def __repr__(self) -> str:
        return f"<exercise {self._exercise.name}: {self._exercise.title}; print it, or call its ask()>"

    def _ipython_display_(self) -> None:
        from explorer.entry.predict import display_prediction

        display_prediction(self._get_prediction())

    def _get_prediction(self) -> Prediction:
        from explorer.teach.exercise import explore_program
        from explorer.teach.prediction import Prediction

        if self._prediction is None:
            exercise = self._exercise
            self._prediction = Prediction(
                exercise.sheet(), lambda: explore_program(exercise.program), exercise.name, _progress()
            )
        return self._prediction


class Lessons(Mapping[str, ShownExercise]):
    """The exercises, by name. Prints as a list by topic with what is done.

    `table` is a DataFrame of all exercises, and `export` writes your progress to a file. Answers are kept in
    tcompile_progress.json in the current folder, and sent nowhere.
    """

    def __getitem__(self, name: str) -> ShownExercise:
        """The exercise with this name. Raises KeyError."""
        exercises = _exercises()
        if name not in exercises:
            raise KeyError(f"there is no exercise {name!r}{did_you_mean(name, exercises)}")
        return ShownExercise(exercises[name])

    def __iter__(self) -> Iterator[str]:
        return iter(_exercises())

    def __len__(self) -> int:
        return len(_exercises())

    @property
    def topics(self) -> dict[str, list[str]]:
        """Names of the exercises of each topic."""
        found: dict[str, list[str]] = {}
        for name, exercise in _exercises().items():
            found.setdefault(exercise.topic, []).append(name)
        return found

    @property
    def table(self) -> pd.DataFrame:
        """One row per exercise: topic, title, questions, whether it is done, tries."""
        import pandas as pd

        entries = _progress().entries()
        rows = [
            {"exercise": name, "topic": each.topic, "title": each.title, "ask": each.ask,
             "done": name in entries and entries[name].is_done, "tries": entries[name].tries if name in entries else 0}
            for name, each in _exercises().items()
        ]  # fmt: skip
        return pd.DataFrame(rows)

    def export(self, path: str | Path) -> Path:
        """Write your progress as a `.csv` table or as `.json`; returns the path. Raises ValueError for others."""
        return _progress().export(path)

    def save(self, path: str | Path, *names: str) -> Path:
        """Write exercises, or those of topics, as a page that grades answers in any browser; returns the path.

        All are written if none is named. Each program runs once, which takes a few seconds. Raises KeyError for an
        unknown name.
        """
        from explorer.run.files import replace_file
        from explorer.teach.exercise import solved_sheets
        from explorer.teach.page import predictions_page

        chosen = [each for name in names or self.topics for each in self.topics.get(name, [name])]
        sheets = solved_sheets([self[name]._exercise for name in chosen])
        return replace_file(Path(path), predictions_page("Exercises on torch.compile", sheets).encode())

    def __str__(self) -> str:
        entries, exercises = _progress().entries(), _exercises()
        lines = []
        for topic, names in self.topics.items():
            done = sum(name in entries and entries[name].is_done for name in names)
            lines.append(f"{topic}: {done} of {pluralize(len(names), 'exercise')} done")
            marks = [("x" if name in entries and entries[name].is_done else " ") for name in names]
            rows = [(f"  [{mark}] {name}", exercises[name].title) for mark, name in zip(marks, names, strict=True)]
            lines += columns(rows)
        return "\n".join([*lines, 'tcompile.lessons["print_line"] is one of them.'])

    __repr__ = __str__


def _exercises() -> Mapping[str, Exercise]:
    from explorer.teach.catalogue import EXERCISES

    return EXERCISES


def _progress() -> Progress:
    from explorer.teach.progress import Progress

    return Progress()


lessons = Lessons()
