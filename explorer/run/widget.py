"""The live view of a record in a notebook: a thin anywidget, with its front end in `static/`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import anywidget
import traitlets
from IPython.core.getipython import get_ipython

from compiler.record import MACHINE_STAGES, Problem, Record
from explorer.findings.xray import promise_in
from explorer.kernel_lab.cell import NoSuchKernelError, cell_text
from explorer.reading.stages import stage_words
from explorer.run import frontend
from explorer.run.compiling import KernelCompiler, RecordHolder
from explorer.run.patch import Patch
from explorer.run.payload import Payload
from explorer.run.payload_part import Part

if TYPE_CHECKING:
    from explorer.run.run import Run

#: Parts larger than this, in compressed bytes, are sent only when they are opened.
LARGE: Final = 64 * 1024
#: For this time after its creation, a widget sends parts repeatedly, because its front end may still be loading.
LOADING_SECONDS: Final = 3.0
#: Maximum number of kernels named when the user is asked whether to execute their code; the rest are only counted.
NAMES_SHOWN: Final = 20


#: Calls in graphs of these stages can be decomposed level by level.
STAGES_OF_CALLS: Final = (
    "captured", "pre_grad", "joint", "forward", "backward", "inference", "decomposed", "post_grad",
)  # fmt: skip


class Explorer(anywidget.AnyWidget):
    """Widget to explore a record; `update` replaces the record by a longer one while a cell runs.

    `selection` has the ids of the selected entities. You can observe it, and set it to select from Python.
    `running` is the current stage, and `compiling` the progress of compiling kernels.
    `parts` are the parts sent last. The kernel can't answer requests while a cell runs, so new parts are sent without a
    request, as state that a front end finds after loading.
    `version` counts the messages. Jupyter drops messages of a cell that prints much; a front end that missed a message
    requests the state.
    `place` is what the view shows, to restore it after the browser's page is reloaded.
    `compiler` holds the record, and compiles its kernels when a stage that needs them is opened.
    """

    _esm = frontend.widget_module()
    _css = frontend.css()

    manifest = traitlets.Dict().tag(sync=True)
    selection = traitlets.List(traitlets.Unicode()).tag(sync=True)
    running = traitlets.Dict().tag(sync=True)
    compiling = traitlets.Dict().tag(sync=True)
    parts: traitlets.List[Any] = traitlets.List().tag(sync=True)
    version = traitlets.Int().tag(sync=True)
    place = traitlets.Dict().tag(sync=True)

    def __init__(self, record: Record | KernelCompiler, running: str = "") -> None:
        self.compiler = record if isinstance(record, KernelCompiler) else KernelCompiler(record)
        self._payload = Payload(self.compiler.record, self.compiler.known)
        self._offer_stages(running)
        self._sent: set[tuple[str, str, str]] = set()
        self._sending = threading.RLock()  # senders are the cell, the compiling thread, and Jupyter's message thread
        self._made = self._running_since = time.monotonic()
        super().__init__(manifest=self._payload.manifest(), running=self._runs(running), parts=self._unsent())
        self.on_msg(self._on_message)
        self.compiler.listen(self._on_progress)

    def update(self, record: Record, running: str = "", words: str = "") -> None:
        """Show a record that has grown.

        `running` is the current stage, "" when all are done; `words` describe the current step.
        """
        self.compiler.replace(record)
        self._show(record, {}, running, words)

    def open_stage(self, stage: str, ids: Sequence[str] = ()) -> None:
        """Open a stage, and select those of the entities that are known."""
        known = {entity.id for entity in self.compiler.known.look_up(self.compiler.record)[1].entities()}
        self.selection = [name for name in ids if name in known] or self.selection
        self.send({"type": "open", "stage": stage})

    def hear_progress(self, progress: object, stage: str = "timing") -> None:
        """Show the progress of a measurement, or of another stage; "" ends the display."""
        words = str(progress)
        with self._one_message():
            self.running = self._runs(stage if words else "", words)

    def _on_progress(self, record: Record, progress: dict[str, Any]) -> None:
        if record is self._payload.record:
            with self._one_message():
                self.compiling = progress
        else:
            self._show(record, progress)

    def _show(self, record: Record, compiling: dict[str, Any], running: str = "", words: str = "") -> None:
        with self._one_message():
            self._offer_stages(running)
            self._payload.update(record)
            self.manifest = self._payload.manifest()
            self.running = self._runs(running, words)
            self.compiling = compiling
            if unsent := self._unsent():
                self.parts = unsent

    def _offer_stages(self, running: str) -> None:
        """Tell the front end which stages can be made on request: none while a cell runs."""
        self._payload.pending = {} if running else self.compiler.pending_stages()
        self._payload.makes = {} if running else self.compiler.makes()
        self._payload.trees = () if running or self.compiler.tree is None else STAGES_OF_CALLS

    @contextmanager
    def _one_message(self) -> Iterator[None]:
        """Send all traits set in the block as one message, with the next version."""
        with self._sending, self.hold_sync():
            self.version += 1
            yield

    def _runs(self, stage: str, words: str = "") -> dict[str, Any]:
        """The value of `running`: the stage's name, its title, and the seconds since it started; {} for no stage."""
        now = time.monotonic()
        if stage != self.running.get("stage"):
            self._running_since = now
        title = f"{stage_words(stage).title}: {words}" if words else stage_words(stage).title
        return {"stage": stage, "title": title, "elapsed": now - self._running_since} if stage else {}

    def _unsent(self) -> list[tuple[bytes, str, str, str]]:
        """New parts that are not large, without texts of machine code, which are sent only when opened."""
        machine = {artifact.id for artifact in self.compiler.record.artifacts if artifact.stage in MACHINE_STAGES}
        wanted = [part for part in self._payload.parts() if part.name != "text" or part.artifact not in machine]
        unsent = [part for part in wanted if len(part.data) <= LARGE and _key(part) not in self._sent]
        if time.monotonic() - self._made > LOADING_SECONDS:
            self._sent.update(map(_key, unsent))
        return [(part.data, *_key(part)) for part in unsent]

    def _on_message(self, _: Any, message: dict[str, Any], __: list[Any]) -> None:
        answer = {
            "want": lambda: self._send_part(message["artifact"], message["part"]),
            "compile": lambda: self._compile(agreed=False),
            "trust": lambda: self._compile(agreed=True),
            "make": lambda: self.compiler.make(message["stage"]),
            "tree": lambda: self._send_tree(message["id"]),
            "views": self._send_views,
            "evaluate": lambda: self._send_evaluation(message["request"]),
            "morph": lambda: self._send_morph(message["graph"]),
            "cancel": self.compiler.cancel,
            "switch": lambda: self._switch(message["callee"]),
            "lab": lambda: self._send_lab_cell(message["kernel"]),
            "patch": lambda: self._send_patch(message["fixes"]),
            "new_cell": lambda: self._send_patched_cell(message["fixes"]),
            "version": self._send_version,
            "state": self._send_again,
        }.get(message.get("type", ""))
        if answer is not None:
            answer()

    def _send_views(self) -> None:
        added = frontend.added_modules(self.compiler.record, self.compiler.makers)
        self.send({"type": "views", "module": frontend.late_module(added)})

    def _send_evaluation(self, request: dict[str, Any]) -> None:
        evaluate = self.compiler.evaluate
        data: dict[str, Any] | None
        try:
            data, numbers = (None, b"") if evaluate is None else evaluate(request)
        except (RuntimeError, ValueError) as error:  # an operation may refuse the changed numbers
            data, numbers = {"error": str(error).partition("\n")[0]}, b""
        self.send({"type": "evaluated", "data": data}, [numbers])

    def _send_morph(self, graph: str) -> None:
        from explorer.run.morph import Morph

        try:
            html, problem = Morph(self.compiler.record, graph).page(), ""
        except ValueError as error:
            html, problem = "", str(error)
        self.send({"type": "morph", "html": html, "problem": problem})

    def _send_tree(self, entity: str) -> None:
        if self.compiler.tree is not None:
            self.send({"type": "tree", "id": entity, "text": self.compiler.tree(entity)})

    def _send_version(self) -> None:
        with self._sending:
            self.send({"type": "version", "version": self.version})

    def _send_again(self) -> None:
        with self._sending:
            self.send_state(("manifest", "running", "compiling", "version"))

    def _compile(self, agreed: bool) -> None:
        """Compile the remaining kernels; for an untrusted run, ask the user first.

        `agreed` says that the user has agreed, which has the same effect as `run.trust()`.
        """
        if agreed:
            self.compiler.trust()
        if self.compiler.is_trusted:
            self.compiler.start()
        else:
            left = self.compiler.left
            names = [kernel.name for kernel in left[:NAMES_SHOWN]]
            self.send({"type": "confirm", "kernels": names, "count": len(left)})

    def _send_part(self, artifact: str, name: str) -> None:
        part = self._payload.part(artifact, name)
        if part is not None:
            self.send({"type": "part", "key": _key(part)}, buffers=[part.data])

    def _send_lab_cell(self, kernel: str) -> None:
        """Send the text of a cell to edit the kernel in, with the variable that holds the run."""
        shown = self._runs_shown()
        name = min(shown, key=lambda name: name.startswith("_"), default="_tc")
        record = shown[name].record if shown else self.compiler.record
        try:
            self._send_cell(cell_text(record, kernel, name), "edit the kernel, and run it")
        except NoSuchKernelError as error:
            self._send_cell(problem=str(error))

    def _send_cell(self, text: str = "", words: str = "", problem: str = "") -> None:
        """Send the text of a new cell and what to do with it, or the reason why there is none."""
        self.send({"type": "cell", "text": text, "words": words, "problem": problem})

    def _send_patch(self, fixes: Sequence[str]) -> None:
        """Try fixes together, and send their patch, or the reason why there is none."""
        answer: dict[str, Any] = {"text": "", "promise": [], "problem": ""}
        try:
            patch = self._patch_of(fixes)
            answer |= {"text": str(patch), "promise": promise_in(patch)}
        except ValueError as error:
            answer["problem"] = str(error)
        self.send({"type": "patch", "fixes": fixes, **answer})

    def _send_patched_cell(self, fixes: Sequence[str]) -> None:
        try:
            self._send_cell(self._patch_of(fixes).cell(), "the patched code; run it")
        except ValueError as error:
            self._send_cell(problem=str(error))

    def _patch_of(self, fixes: Sequence[str]) -> Patch:
        if self.compiler.patch is None:
            raise ValueError("this run has no call to try fixes on: it was loaded from a file")
        return self.compiler.patch(fixes)

    def _switch(self, callee: str) -> None:
        """Explore another call of the cell, and assign the new run to the variables that hold this one."""
        shown = self._runs_shown()
        try:
            if not shown:
                raise LookupError(f"no variable holds this run any more; run the cell again with --fn {callee}")
            run = next(iter(shown.values())).switch(callee, lambda event: self._show_running(event.stage))
            _user_names().update(dict.fromkeys(shown, run))
        except Exception as error:  # noqa: BLE001 - whatever the user's call raises when it is made again
            record = self.compiler.record
            problem = Problem(
                "captured", f"{callee} could not be explored: {error}", f"run the cell with --fn {callee}"
            )
            self.update(record.with_fields(problems=(*record.problems, problem)))

    def _show_running(self, stage: str) -> None:
        with self._one_message():
            self.running = self._runs(stage)

    def _runs_shown(self) -> dict[str, Run]:
        """The runs shown by this view, by the names of the user's variables."""
        return {name: run for name, run in _user_names().items() if self._shows(run)}

    def _shows(self, value: object) -> TypeGuard[Run]:
        """Whether a value is a run that this view shows.

        A view of two backends has its own record, so its run is recognized by its widget.
        """
        return isinstance(value, RecordHolder) and (value.compiler is self.compiler or value._widget is self)

    def close(self) -> None:
        """Remove the view from the page, and release the record."""
        self.compiler.forget(self._on_progress)
        super().close()

    def __repr__(self) -> str:
        """Text for front ends without widgets; written when the cell begins, so it has few facts."""
        return f"tcompile: the live view of {self.compiler.record.title or 'an exploration'}; it needs a running kernel"


def _user_names() -> dict[str, Any]:
    shell = get_ipython()
    return {} if shell is None else shell.user_ns


def _key(part: Part) -> tuple[str, str, str]:
    return part.artifact, part.name, part.digest
