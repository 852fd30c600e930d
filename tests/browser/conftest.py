"""Fixtures of the browser tests: Chromium, a page that keeps a screenshot of failures, JupyterLab and Notebook 7."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from compiler.record import Record
from explorer.run.page import page as page_of
from tests.browser.explorer_view import ExplorerView
from tests.browser.jupyter_server import JupyterServer, running_server
from tests.browser.notebook_page import ARTIFACTS, NotebookPage, write_notebook
from tests.conftest import chromium

OpenPage = Callable[[Record], ExplorerView]

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.needs("chromium"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.when == "call" and report.failed and (page := item.funcargs.get("page")):
        page.screenshot(path=ARTIFACTS / f"failed-{_file_name(item)}.png")
    return report


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for one module: while it runs, this thread has a running event loop, which breaks other tests."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page in its own context, 1400 by 900 points. If a test fails, a screenshot is kept in artifacts/."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    yield context.new_page()
    context.close()


@pytest.fixture
def console_errors(page: Page) -> list[str]:
    """The errors of the page so far: on its console, and uncaught exceptions."""
    errors: list[str] = []
    page.on(
        "console",
        lambda message: errors.append(f"{message.text} {message.location}") if message.type == "error" else None,
    )
    page.on("pageerror", lambda error: errors.append(f"{error}\n{error.stack}"))
    return errors


@pytest.fixture
def layouts(page: Page) -> Callable[[], int]:
    """The number of layouts of the page."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def count() -> int:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(int(metric["value"]) for metric in metrics if metric["name"] == "LayoutCount")

    return count


@pytest.fixture
def requests(page: Page) -> list[str]:
    """The addresses that the page requested; only files are answered."""
    asked: list[str] = []

    def block(route: Route) -> None:
        if route.request.url.startswith("file:"):
            route.continue_()
        else:
            asked.append(route.request.url)
            route.abort()

    page.route("**/*", block)
    return asked


@pytest.fixture
def open_page(page: Page, requests: list[str], console_errors: list[str], tmp_path: Path) -> Iterator[OpenPage]:
    """Save a record as a page and open it; fails at the end if the page used the network or had an error."""

    def open_record(record: Record) -> ExplorerView:
        path = tmp_path / "run.html"
        path.write_text(page_of(record), encoding="utf-8")
        page.goto(path.as_uri())
        view = ExplorerView(page.locator("body"))
        expect(view.root.locator(".tc-ribbon .tc-chip:visible").first).to_be_visible()
        return view

    yield open_record
    assert requests == []
    assert console_errors == []


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    with running_server("lab", tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.fixture(scope="session")
def notebook7(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    with running_server("notebook", tmp_path_factory.mktemp("notebook7")) as server:
        yield server


@pytest.fixture
def new_notebook(page: Page, request: pytest.FixtureRequest) -> Iterator[Callable[..., NotebookPage]]:
    """`new_notebook(server, *cells)`: a notebook with these cells, open, its kernel idle."""
    opened: list[NotebookPage] = []

    def new(server: JupyterServer, *cells: str) -> NotebookPage:
        notebook = NotebookPage(page, server, f"{_file_name(request.node)}-{len(opened)}.ipynb")
        write_notebook(notebook.path, *cells)
        opened.append(notebook)
        return notebook.open()

    yield new
    for notebook in opened:
        notebook.server.stop_kernel(notebook.name)


@pytest.fixture(scope="module")
def run_once(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """`run_once(server, cells, count)`: the name of a notebook whose first cells have run, once for all tests of a
    module. Its kernel lives on: a test that opens it finds what the cells have made.
    """
    made: dict[tuple[JupyterServer, tuple[str, ...]], str] = {}

    def run(server: JupyterServer, cells: Sequence[str], count: int) -> str:
        key = (server, tuple(cells))
        if key not in made:
            name = f"{request.path.stem}-{len(made)}.ipynb"
            write_notebook(server.folder / name, *cells)
            with browser.new_context() as context:
                notebook = NotebookPage(context.new_page(), server, name).open()
                for index in range(count):
                    notebook.run_cell(index)
                notebook.save()
            made[key] = name
        return made[key]

    yield run
    for (server, _), name in made.items():
        server.stop_kernel(name)


def _file_name(item: pytest.Item) -> str:
    return re.sub(r"\W+", "-", item.name).strip("-")
