"""The front end's figures, measured in headless Chromium on the page that `run.save` writes."""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCRIPT = Path(__file__).parent / "frontend.js"
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
LOADS, SELECTIONS, OPENINGS, NODES, SECONDS = 5, 30, 60, 10_000, 3
LINES, STEPS = 50_000, 60
MAKES, HOLDS = "new Explorer(root, store,", "(window.tcompile = {}).explorer = new Explorer(root, store,"


class NoBrowserError(RuntimeError):
    """There is no Chromium here, or no playwright to drive it."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Headless Chromium. Raises NoBrowserError, which says what to install."""
    path = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    if path is None:
        raise NoBrowserError("chromium is not installed (apt install chromium; the variable CHROMIUM names another)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise NoBrowserError("playwright is not installed (pip install playwright)") from None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def frontend_figures(saved: Path) -> list[Figure]:
    """Figures of a page saved from a record of a training step (its joint graph is the biggest)."""
    with chromium() as browser:
        first = [loaded(browser, saved).evaluate("bench.firstPaint()") for _ in range(LOADS)]
        page = loaded(browser, observable(saved))
        page.evaluate("bench.firstPaint()")
        big = biggest(page)
        figures = [timed("first paint after the data is there", first, 1000)]
        for stage in ("forward", "backward", "joint"):
            figures += interaction_figures(page, stage, big)
        return [*figures, *panning_figures(page), scrolling_figure(page, big["joint"])]


def loaded(browser: Browser, path: Path) -> Page:
    page = browser.new_context(viewport={"width": 1600, "height": 1000}).new_page()
    page.add_init_script(path=SCRIPT)
    page.goto(path.resolve().as_uri())
    return page


def observable(saved: Path) -> Path:
    """The same page with its explorer accessible to a script; its security policy has to allow that."""
    from explorer.run.frontend import page_loader, page_script

    html, script = saved.read_text(encoding="utf-8"), page_script()
    assert html.count(page_loader()) == 1, "the page was saved by another version, or has its script elsewhere"
    assert script.count(MAKES) == 1, f"{MAKES!r} is not in the page's script (see explorer/static/page.js)"
    policy = '<meta http-equiv="Content-Security-Policy"'
    assert html.count(policy) == 1, "the page has no security policy (see explorer/run/page.py)"
    html = html.replace(page_loader(), script.replace(MAKES, HOLDS)).replace(policy, "<meta")
    path = saved.with_name(f"observable-{saved.name}")
    path.write_text(html, encoding="utf-8")
    return path


def biggest(page: Page) -> dict[str, str]:
    """The id of each stage's biggest artifact."""
    return dict(page.evaluate("bench.biggest()"))


def interaction_figures(page: Page, stage: str, big: dict[str, str]) -> list[Figure]:
    graph, text = big[stage], big["kernels"]
    selections = page.evaluate(
        "([graph, text, count]) => bench.selections(graph, text, count)", [graph, text, SELECTIONS]
    )
    openings = page.evaluate("([graph, text, most]) => bench.openings(graph, text, most)", [graph, text, OPENINGS])
    all_open = page.evaluate("([graph, text]) => bench.openingAll(graph, text)", [graph, text])
    return [
        timed(f"selection shown in source, {stage} graph, kernels", selections, 50),
        timed(f"opening a module group, {stage}", openings, 100),
        Figure(f"opening all module groups at once, {stage}", all_open, "ms"),
    ]


def panning_figures(page: Page) -> list[Figure]:
    found = []
    for where, whole in (("at a legible size", False), ("all of it in sight", True)):
        entities, seconds = synthetic(NODES), SECONDS
        fps = [page.evaluate("(given) => bench.panning(...given)", [entities, seconds, whole]) for _ in range(3)]
        found.append(
            Figure(f"panning {NODES:,} nodes, {where}", statistics.median(fps), "fps", 50, True, runs=tuple(fps))
        )
    return found


def scrolling_figure(page: Page, text: str) -> Figure:
    lines = [f"    buf{number} = triton_poi_fused_{number % 97}(arg{number}, {number})" for number in range(LINES)]
    times = page.evaluate("(given) => bench.scrolling(...given)", [text, lines, STEPS, LINES // (STEPS + 1)])
    return timed(f"scrolling through {LINES:,} lines, a step painted", times, 50)


def timed(name: str, times: list[float], bar: float) -> Figure:
    """The median of some times in milliseconds; a note says the worst."""
    note = f"median of {len(times)}, worst {max(times):.0f} ms"
    return Figure(name, statistics.median(times), "ms", bar, note=note, runs=tuple(times))


def synthetic(count: int) -> list[dict[str, Any]]:
    """A graph with `count` nodes, similar to those of models: most inputs near, one in twenty far."""
    from benchmarks.layout import ten_thousand

    graph = ten_thousand()
    assert len(graph.sizes) == count
    inputs: dict[int, list[str]] = {}
    for source, target in graph.edges:
        inputs.setdefault(target, []).append(f"big.n{source}")
    attrs = {
        "op": "call_function",
        "target": "aten.add.Tensor",
        "dtype": "float32",
        "shape": [128, 768],
        "bytes": 393216,
    }
    return [
        {
            "id": f"big.n{i}",
            "kind": "call",
            "label": f"add_{i}",
            "attrs": attrs,
            "inputs": inputs.get(i, []),
            "origins": [],
        }
        for i in range(count)
    ]
