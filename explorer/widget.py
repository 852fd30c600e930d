"""The live view of a record in a notebook: an anywidget, thin. What it shows is made in `static/`."""

from __future__ import annotations

import time
from typing import Any, Final

import anywidget
import traitlets

from compiler.record import Record
from explorer import frontend
from explorer.payload import Part, Payload, stage_words

#: A part of more bytes than this, compressed, is sent when somebody opens it.
LARGE: Final = 64 * 1024
#: So long after it was made, a widget sends again all that it sent before: its front end may still be loading.
LOADING_SECONDS: Final = 3.0


class Explorer(anywidget.AnyWidget):
    """Explore a record; `update` gives it a longer one while a cell runs.

    `selection` holds the ids of the selected entities and goes both ways: `observe` it, or set it. `running` says which
    stage is being made. `parts` is what was sent last: the kernel can't answer requests while a cell runs, so what is
    new is sent unasked, and as state, which a front end that is still loading finds when it has loaded.
    """

    _esm = frontend.widget_module()
    _css = frontend.css()

    manifest = traitlets.Dict().tag(sync=True)
    selection = traitlets.List(traitlets.Unicode()).tag(sync=True)
    running = traitlets.Dict().tag(sync=True)
    parts: traitlets.List[Any] = traitlets.List().tag(sync=True)

    def __init__(self, record: Record, running: str = "") -> None:
        self._payload = Payload(record)
        self._sent: set[tuple[str, str, str]] = set()
        self._made = self._running_since = time.monotonic()
        super().__init__(manifest=self._payload.manifest(), running=self._runs(running), parts=self._unsent())
        self.on_msg(self._on_message)

    def update(self, record: Record, running: str = "") -> None:
        """Show a record that has grown. `running` is the stage being made now, or "" when all is done."""
        self._payload.update(record)
        with self.hold_sync():
            self.manifest = self._payload.manifest()
            self.running = self._runs(running)
            if unsent := self._unsent():
                self.parts = unsent

    def _runs(self, stage: str) -> dict[str, Any]:
        """What `running` holds: the stage's name and title, and for how many seconds it has been running."""
        now = time.monotonic()
        if stage != self.running.get("stage"):
            self._running_since = now
        return (
            {"stage": stage, "title": stage_words(stage).title, "elapsed": now - self._running_since} if stage else {}
        )

    def _unsent(self) -> list[tuple[bytes, str, str, str]]:
        """The parts that are new and not large."""
        unsent = [part for part in self._payload.parts() if len(part.data) <= LARGE and _key(part) not in self._sent]
        if time.monotonic() - self._made > LOADING_SECONDS:
            self._sent.update(map(_key, unsent))
        return [(part.data, *_key(part)) for part in unsent]

    def _on_message(self, _: Any, message: dict[str, Any], __: list[Any]) -> None:
        if message.get("type") != "want":
            return
        part = self._payload.part(message["artifact"], message["part"])
        if part is not None:
            self.send({"type": "part", "key": _key(part)}, buffers=[part.data])


def _key(part: Part) -> tuple[str, str, str]:
    return part.artifact, part.name, part.digest
