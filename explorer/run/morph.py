"""`run.morph()`: one graph from eager mode to kernels, as text, as a page with a slider, and as SVG frames."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cached_property
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from compiler.record import Record
from compiler.record.plain_text import pluralize, size_text
from explorer.findings.morph.frames import PALETTES, Film, Palette, counts_of, look_of
from explorer.findings.morph.layout import Picture, pictures_of, short
from explorer.findings.morph.state import Node, State
from explorer.findings.morph.states import graph_names, states_of
from explorer.run import frontend
from explorer.run.files import replace_file
from explorer.run.page import policy
from explorer.run.payload_part import Part

PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="generator" content="tcompile">
<title>$title</title>
<style>$style</style>
</head>
<body>
<noscript><p>This page shows a graph from eager mode to kernels. It needs JavaScript, which is turned off here; \
it loads nothing from anywhere.</p></noscript>
<main id="morph"></main>
<script type="application/x-tcompile" data-part="film">$film</script>
<script type="module">$script</script>
</body>
</html>
""")
ENTRY, STYLE = "morph_page.js", "morph.css"
IN_NOTEBOOK = 620
"""Height of the page in a notebook, in pixels."""


class Morph:
    """One graph's states from eager mode to kernels: eager, joint, cut, decomposed, fused.

    print(morph)                    # what each state counts
    morph.states[2].nodes           # nodes with their origins in the state before
    morph.save("morph.html")        # a page with a slider
    morph.frames("slides", between=8)

    A state that the run does not have is left out; a graph without gradients has no joint one. `graphs` names the
    graphs of the run: `run.morph("1/0")` is another one.
    """

    def __init__(self, record: Record, graph: str = "") -> None:
        self.states: tuple[State, ...] = states_of(record, graph)
        self.graphs = graph_names(record)
        self.graph = graph or self.graphs[0]
        self.title = record.title or "tcompile"

    @cached_property
    def film(self) -> Film:
        """The states laid out, and the pictures between them."""
        return Film(self.title, pictures_of(self.states))

    def __str__(self) -> str:
        lines = [f"{self.title}, graph {self.graph}: from eager mode to kernels"]
        for state in self.states:
            lines += [
                "",
                f"{state.title}: {'; '.join(count.words for count in counts_of(state.counts))}",
                f"  {state.words}",
            ]
            lines += [f"  {_steps_in_words(state)}"] if state is not self.states[0] else []
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Morph of {self.title}: {pluralize(len(self.states), 'state')}; print it, or save it as a page>"

    def save(self, path: str | Path) -> Path:
        """Save as one page that needs no network. Returns the path; raises ValueError unless it ends in `.html`."""
        path = Path(path)
        if path.suffix.lower() != ".html":
            raise ValueError(f"{str(path)!r} does not end in '.html'; frames(directory) writes SVG")
        return replace_file(path, self.page().encode())

    def frames(self, directory: str | Path, between: int = 0, theme: str = "light") -> list[Path]:
        """Write each state as an SVG of 1280 by 720, and `between` frames from each state to the next.

        `theme` is "light" or "dark". The directory is made if needed. Returns the paths in order.
        """
        if between < 0:
            raise ValueError(f"between is a number of frames, not {between}")
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        steps = between + 1
        count = steps * (len(self.states) - 1) + 1
        digits = len(str(count - 1))
        return [
            replace_file(folder / f"frame_{number:0{digits}}.svg", self.film.svg(number / steps, theme).encode())
            for number in range(count)
        ]

    def page(self) -> str:
        """The HTML page. The same record gives the same page."""
        style = frontend.static_text(STYLE) + _variables()
        script = frontend.join_modules(ENTRY)
        return PAGE.substitute(
            policy=policy([script], style),
            title=escape(f"{self.title}: from eager mode to kernels"),
            style=style,
            film=base64.b64encode(Part.pack("", "film", self.film_data()).data).decode(),
            script=script,
        )

    def _repr_html_(self) -> str:
        """The page in an iframe, so that neither changes the look of the other."""
        return (
            f'<iframe title="{escape(repr(self), quote=True)}" srcdoc="{escape(self.page(), quote=True)}" '
            f'style="width: 100%; height: {IN_NOTEBOOK}px; border: 0"></iframe>'
        )

    def film_data(self) -> dict[str, Any]:
        """The data of the page: JSON values."""
        places = [{node.id: number for number, node in enumerate(state.nodes)} for state in self.states]
        return {
            "title": self.title,
            "graph": self.graph,
            "others": [name for name in self.graphs if name != self.graph],
            "dense": self.film.pictures[0].dense,
            "states": [_state(picture, place) for picture, place in zip(self.film.pictures, places, strict=True)],
            "moves": [
                [
                    (places[number].get(move.source, -1), places[number + 1].get(move.target, -1),
                     move.leads_source, move.leads_target)
                    for move in moves
                ]
                for number, moves in enumerate(self.film.moves)
            ],
            "looks": PALETTES,
        }  # fmt: skip


def _state(picture: Picture, place: Mapping[str, int]) -> dict[str, Any]:
    state = picture.state
    return {
        "title": state.title,
        "words": state.words,
        "counts": [asdict(count) for count in counts_of(state.counts)],
        "width": round(picture.width, 1),
        "height": round(picture.height, 1),
        "cut": picture.cut,
        "nodes": [_node(node, picture) for node in state.nodes],
        "edges": [
            (*(place[name] for name in route.edge), route.sideways, [round(at, 1) for at in _flat(route.points)])
            for route in picture.routes
        ],
    }


def _node(node: Node, picture: Picture) -> dict[str, Any]:
    box = picture.boxes[node.id]
    says = [
        node.kind,
        node.detail,
        size_text(node.bytes) if node.bytes and node.kind not in ("kernel", "extern") else "",
    ]
    return {
        "title": short(node.title, "title"),
        "detail": short(node.detail, "detail"),
        "kind": node.kind,
        "look": look_of(node),
        "says": ", ".join(filter(None, says)),
        "inferred": node.inferred,
        **{side: round(getattr(box, side), 1) for side in ("x", "y", "w", "h")},
    }


def _flat(points: Iterable[tuple[float, float]]) -> Iterable[float]:
    return (at for point in points for at in point)


def _steps_in_words(state: State) -> str:
    """How a state came from the one before: how many nodes split, merged, are new, and are gone."""
    successors: dict[str, int] = {}
    for node in state.nodes:
        for origin in node.origins:
            successors[origin] = successors.get(origin, 0) + 1
    split = sum(count > 1 for count in successors.values())
    merged = sum(len(node.origins) > 1 for node in state.nodes)
    inferred = sum(node.inferred for node in state.nodes)
    words = [f"{split} split", f"{merged} merged from several", f"{len(state.new)} new", f"{len(state.gone)} gone"]
    return "nodes: " + ", ".join(words) + (f"; the origins of {inferred} are inferred" if inferred else "")


def _variables() -> str:
    """The palettes as CSS variables, and a class for each look."""

    def block(selector: str, palette: Palette) -> str:
        lines = []
        for name, (fill, line, ink) in palette.items():
            key = name.replace(" ", "-")
            lines.append(f"--{key}:{fill};--{key}-line:{line};--{key}-ink:{ink};")
        return f"{selector}{{color-scheme:{'dark' if 'dark' in selector else 'light'};{''.join(lines)}}}\n"

    looks = (name.replace(" ", "-") for name in PALETTES["light"])
    classes = "".join(f".tm-{name}{{background:var(--{name});border-color:var(--{name}-line)}}\n" for name in looks)
    return block(":root", PALETTES["light"]) + block('[data-theme="dark"]', PALETTES["dark"]) + classes
