"""The front end's modules in Chromium, served from the checkout without a server, under a strict policy."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Browser, Page, Route, sync_playwright

from explorer.run import frontend
from tests.conftest import chromium

if TYPE_CHECKING:
    from tests.frontend.graph_page import GraphPage

HERE = Path(__file__).parent
STATIC = Path(frontend.__file__).parents[1] / "static"
ORIGIN = "http://front-end.invalid"
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'"
STYLE = "all.css"
EMPTY_PAGE = f'<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="/{STYLE}"><body></body>'


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.needs("chromium"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture
def view(modules: Page) -> Iterator[GraphPage]:
    """A graph view; the page that the module's tests share is reloaded."""
    from tests.frontend.graph_page import GraphPage

    modules.mouse.move(-1, -1)
    modules.goto(f"{ORIGIN}/")
    page = GraphPage.start(modules)
    yield page
    assert page.errors == []


@pytest.fixture(scope="module")
def modules(browser: Browser) -> Iterator[Page]:
    """A page of the module, as for calling functions that do not use the DOM."""
    page = open_page(browser)
    yield page
    page.context.close()


def open_page(browser: Browser, **options: object) -> Page:
    """An empty page where `import("/layout.js")` and similar imports work."""
    page = browser.new_context(viewport={"width": 1000, "height": 700}, **options).new_page()
    page.route(f"{ORIGIN}/**", _serve)
    page.goto(f"{ORIGIN}/")
    return page


def _serve(route: Route) -> None:
    name = route.request.url.removeprefix(ORIGIN).lstrip("/")
    headers = {"content-security-policy": POLICY}
    if not name:
        route.fulfill(body=EMPTY_PAGE, content_type="text/html", headers=headers)
    elif name == STYLE:
        route.fulfill(body=frontend.css(), content_type="text/css", headers=headers)
    elif (path := STATIC / name).is_file():
        kind = "text/javascript" if path.suffix == ".js" else mimetypes.guess_type(name)[0]
        route.fulfill(body=path.read_bytes(), content_type=kind, headers=headers)
    else:
        route.fulfill(status=204)
