"""Fixtures of the browser tests: Chromium, a page that keeps a screenshot of failures, JupyterLab and Notebook 7."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, ViewportSize, expect, sync_playwright

from compiler.record import Record
from explorer.run.page import page as page_of
from tests.browser.explorer_view import ExplorerView
from tests.browser.jupyter_server import JupyterServer, running_server
from tests.browser.notebook_page import ARTIFACTS, NotebookPage, write_notebook
from tests.conftest import chromium

OpenPage = Callable[[Record], ExplorerView]

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
HERE = Path(__file__).parent
VIEWPORT: ViewportSize = {"width": 1400, "height": 900}
FAILED = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.needs("chromium"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.when == "call" and report.failed:
        item.stash[FAILED] = True
        if page := item.funcargs.get("page") or getattr(item.funcargs.get("notebook"), "page", None):
            page.screenshot(path=ARTIFACTS / f"failed-{_file_name(item)}.png")
    return report


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for one module: while it runs, this thread has a running event loop, which breaks other tests."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(browser: Browser) -> list[Page]:
    """The page that the module's tests share, unless a test failed on it: a new one takes longer than most tests."""
    return []


@pytest.fixture
def page(browser: Browser, pages: list[Page], request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of 1400 by 900 points. If a test fails, a screenshot is kept in artifacts/."""
    if not pages:
        pages.append(browser.new_context(viewport=VIEWPORT).new_page())
    elif "new_notebook" not in request.fixturenames:
        pages[0].goto("about:blank")  # JupyterLab reports errors when it is left
        pages[0].mouse.move(-1, -1)
    yield pages[0]
    if FAILED in request.node.stash:
        pages.pop().context.close()
        return
    pages[0].unroute_all()
    pages[0].set_viewport_size(VIEWPORT)
    pages[0].emulate_media(media="null", color_scheme="null", reduced_motion="null", forced_colors="null")


@pytest.fixture
def console_errors(page: Page) -> list[str]:
    return errors_of(page)


def errors_of(page: Page) -> list[str]:
    """The errors of the page from now on: on its console, and uncaught exceptions."""
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
def lab(tmp_path_factory: pytest.TempPathFactory, python: Path) -> Iterator[JupyterServer]:
    with running_server("lab", tmp_path_factory.mktemp("lab"), python) as server:
        yield server


@pytest.fixture(scope="session")
def notebook7(tmp_path_factory: pytest.TempPathFactory, python: Path) -> Iterator[JupyterServer]:
    with running_server("notebook", tmp_path_factory.mktemp("notebook7"), python) as server:
        yield server


@pytest.fixture(scope="module")
def kernels() -> Iterator[dict[JupyterServer, str]]:
    """The first notebook of `new_notebook` on each server: the module's other notebooks share its kernel.

    A new kernel would take seconds to import torch.
    """
    started: dict[JupyterServer, str] = {}
    yield started
    for server, name in started.items():
        server.stop_kernel(name)


@pytest.fixture
def new_notebook(
    page: Page, kernels: dict[JupyterServer, str], request: pytest.FixtureRequest
) -> Iterator[Callable[..., NotebookPage]]:
    """`new_notebook(server, *cells)`: a notebook with these cells, open, its kernel idle."""
    opened: list[NotebookPage] = []

    def new(server: JupyterServer, *cells: str) -> NotebookPage:
        notebook = NotebookPage(page, server, f"{_file_name(request.node)}-{len(opened)}.ipynb")
        write_notebook(notebook.path, *cells)
        if server in kernels:
            server.share_kernel(notebook.name, server.kernel_of(kernels[server]))
        kernels.setdefault(server, notebook.name)
        opened.append(notebook)
        return notebook.open_here() if page.url.startswith(server.url) else notebook.open()

    yield new
    for notebook in opened:
        if FAILED in request.node.stash:  # its kernel may be busy
            notebook.server.stop_kernel(kernels.pop(notebook.server, notebook.name))
        else:
            notebook.close_widgets()


def _file_name(item: pytest.Item) -> str:
    return re.sub(r"\W+", "-", item.name).strip("-")
