"""The live view of a record in a notebook: an anywidget, thin. What it shows is made in `static/`."""

from __future__ import annotations

import time
from typing import Any, Final

import anywidget
import traitlets

from compiler.record import Record
from explorer import frontend
from explorer.payload import Part, Payload, stage_words

#: A text longer than this many bytes is sent when somebody opens it.
LARGE: Final = 64 * 1024
#: What is sent in the first seconds is sent again at the next update: the front end may not have been listening yet.
GRACE_SECONDS: Final = 3.0


class Explorer(anywidget.AnyWidget):
    """Explore a record; `update` gives it a longer one while a cell runs.

    `selection` holds the ids of the selected entities and goes both ways: `observe` it, or set it. `running` says which
    stage is being made.
    """

    _esm = frontend.widget_module()
    _css = frontend.css()

    manifest = traitlets.Dict().tag(sync=True)
    selection = traitlets.List(traitlets.Unicode()).tag(sync=True)
    running = traitlets.Dict().tag(sync=True)

    def __init__(self, record: Record, running: str = "") -> None:
        self._payload = Payload(record)
        self._sent: set[tuple[str, str, str]] = set()
        self._made = time.monotonic()
        self._running_since = self._made
        super().__init__(manifest=self._payload.manifest(), running=self._runs(running))
        self.on_msg(self._on_message)
        self._push()

    def update(self, record: Record, running: str = "") -> None:
        """Show a record that has grown. `running` is the stage being made now, or "" when all is done."""
        self._payload.update(record)
        with self.hold_sync():
            self.manifest = self._payload.manifest()
            self.running = self._runs(running)
        self._push()

    def _runs(self, stage: str) -> dict[str, Any]:
        """What `running` holds: the stage's name and title, and for how many seconds it has been running."""
        now = time.monotonic()
        if stage != self.running.get("stage"):
            self._running_since = now
        return (
            {"stage": stage, "title": stage_words(stage).title, "elapsed": now - self._running_since} if stage else {}
        )

    def _push(self) -> None:
        """Send what is new and not large: the kernel can't answer requests while a cell runs."""
        early = time.monotonic() - self._made < GRACE_SECONDS
        for part in self._payload.parts():
            key = (part.artifact, part.name, part.digest)
            if key in self._sent or (part.name == "text" and part.size > LARGE):
                continue
            self._send_part(part)
            if not early:
                self._sent.add(key)

    def _send_part(self, part: Part) -> None:
        message = {"type": "part", "artifact": part.artifact, "part": part.name, "digest": part.digest}
        self.send(message, buffers=[part.data])

    def _on_message(self, _: Any, message: dict[str, Any], __: list[Any]) -> None:
        if message.get("type") != "want":
            return
        part = self._payload.part(message["artifact"], message["part"])
        if part is not None:
            self._send_part(part)
