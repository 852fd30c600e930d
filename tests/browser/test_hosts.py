"""The widget in pages that stand for VS Code's notebook renderer, Colab's output frame and marimo's cells.

The first two can't be run here. Each stand-in has that host's theme marks, colours and Content-Security-Policy, and
loads the widget's module as anywidget does there: from a blob. marimo puts a widget into a shadow root. Messages go to
a real widget in Python.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from explorer.run.widget import Explorer
from tests.browser.explorer_view import ExplorerView
from tests.browser.notebook_page import ARTIFACTS
from tests.explorer.explored import mlp_record

ADDRESS = "http://host.test/"


@dataclass(frozen=True)
class Host:
    """A place that shows widgets. `background` is the colour of its editor; `policy` is what its pages may load."""

    name: str
    html: str
    body: str
    style: str
    policy: str
    background: str
    dark: bool
    in_shadow: bool = False


# VS Code applies a policy to notebooks only with its experimental setting `notebook.experimental.enableCsp`; anywidget
# cannot load with that, as it allows no blob. This is that policy, with blobs.
VSCODE_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' https: http: data:; font-src 'self' https:; connect-src https:; child-src https: data:"
)
COLAB_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' blob: data: https:; "
    "style-src 'unsafe-inline' https:; img-src blob: data: https:; font-src data: https:; "
    "connect-src blob: data: https:"
)


def vscode(kind: str, background: str, ink: str, dark: bool) -> Host:
    style = f"--vscode-editor-background: {background}; --vscode-editor-foreground: {ink}; --jp-layout-color1: white"
    return Host(kind, "", f'class="{kind}" data-vscode-theme-kind="{kind}"', style, VSCODE_POLICY, background, dark)


HOSTS = [
    vscode("vscode-light", "#fffffe", "#3b3b3b", dark=False),
    vscode("vscode-dark", "#1f1f1f", "#cccccc", dark=True),
    vscode("vscode-high-contrast", "#000000", "#ffffff", dark=True),
    vscode("vscode-high-contrast-light", "#ffffff", "#292929", dark=False),
    Host("colab-light", "", "", "", COLAB_POLICY, "#ffffff", dark=False),
    Host("colab-dark", 'theme="dark"', "", "", COLAB_POLICY, "#16191e", dark=True),
    Host("marimo-light", "", 'class="light"', "", COLAB_POLICY, "#ffffff", dark=False, in_shadow=True),
    Host("marimo-dark", "", 'class="dark dark-theme"', "", COLAB_POLICY, "#16191e", dark=True, in_shadow=True),
]

PAGE = """<!DOCTYPE html>
<html lang="en" {html} style="{style}"><head><meta charset="utf-8"><title>{name}</title></head>
<body {body}><div id="output"></div>
<script type="application/json" id="state">{state}</script>
<script type="module">
const output = document.getElementById("output");
const tree = {in_shadow} ? output.attachShadow({{ mode: "open" }}) : output;
const style = document.createElement("style");
style.textContent = {css};
const el = document.createElement("div");
tree.append(style, el);
const bytes = (text) => new DataView(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
const state = JSON.parse(document.getElementById("state").textContent);
state.parts = state.parts.map(([data, ...key]) => [bytes(data), ...key]);
const listeners = [];
const model = {{
  get: (name) => state[name],
  set: (name, value) => {{ state[name] = value; }},
  save_changes: () => {{}},
  on: (event, listener) => listeners.push([event, listener]),
  off: () => {{}},
  send: async (message) => {{
    for (const [content, buffers] of await window.sendToKernel(message))
      for (const [event, listener] of listeners) if (event === "msg:custom") listener(content, buffers.map(bytes));
  }},
}};
const address = URL.createObjectURL(new Blob([{module}], {{ type: "text/javascript" }}));
const widget = (await import(address)).default();
await widget.initialize({{ model }});
await widget.render({{ model, el }});
</script></body></html>"""


@pytest.fixture
def pages() -> list[Page]:
    """No shared page, because a function that is exposed to a page stays there."""
    return []


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def in_script(value: object) -> str:
    return json.dumps(value).replace("<", "\\u003c")


class Kernel:
    """The widget of a record, whose messages are answered in this process."""

    def __init__(self) -> None:
        self.widget = Explorer(mlp_record())
        self.answers: list[tuple[dict[str, Any], list[str]]] = []
        self.widget.send = lambda content, buffers=(): self.answers.append((content, [*map(encoded, buffers)]))

    def answer(self, message: dict[str, Any]) -> list[tuple[dict[str, Any], list[str]]]:
        self.answers.clear()
        self.widget._on_message(None, message, [])
        return self.answers

    def page(self, host: Host) -> str:
        state = {
            name: getattr(self.widget, name) for name in ("manifest", "selection", "running", "compiling", "version")
        }
        parts = [[encoded(data), *key] for data, *key in self.widget.parts]
        return PAGE.format(
            html=host.html,
            body=host.body,
            style=host.style,
            name=host.name,
            in_shadow=in_script(host.in_shadow),
            css=in_script(self.widget._css),
            state=in_script(state | {"parts": parts}),
            module=in_script(self.widget._esm),
        )


def open_in(page: Page, host: Host) -> ExplorerView:
    kernel = Kernel()
    text = kernel.page(host)

    def serve(route: Route) -> None:
        headers = {"content-security-policy": host.policy, "content-type": "text/html; charset=utf-8"}
        route.fulfill(status=200, headers=headers, body=text)

    page.expose_function("sendToKernel", kernel.answer)
    page.route("**/*", serve)
    page.goto(ADDRESS)
    view = ExplorerView(page.locator("body"))
    expect(view.root.locator(".tc-ribbon .tc-chip:visible").first).to_be_visible()
    return view


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))})"


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
def test_widget_works_in_its_hosts(page: Page, console_errors: list[str], host: Host) -> None:
    view = open_in(page, host)
    expect(view.root).to_have_css("background-color", rgb(host.background))
    expect(view.root).to_have_css("color-scheme", "dark" if host.dark else "light")
    view.open_stage("forward")
    view.line(view.source, "x = self.hidden(x)").click()
    expect(view.stage.locator(".tc-linked")).not_to_have_count(0)
    view.open_stage("forward", "Graph")
    expect(view.stage.locator("canvas").first).to_be_visible()
    view.chip("fusion").click()
    expect(view.stage.locator(".tc-kernels tr").first).to_be_visible()
    open_from_folded_group(page, view)
    page.screenshot(path=ARTIFACTS / f"host-{host.name}.png")
    assert console_errors == []


def open_from_folded_group(page: Page, view: ExplorerView) -> None:
    """Fold the groups in a narrow page, and choose a stage from a group's list with the keyboard."""
    page.set_viewport_size({"width": 700, "height": 900})
    head = view.root.locator(".tc-group-folded:has([data-stage=post_grad]) > .tc-group-head")
    head.click()
    chip = view.root.locator(".tc-ribbon [data-stage=post_grad]")
    expect(chip).to_be_visible()
    page.keyboard.press("End")
    expect(chip).to_be_focused()
    chip.click()
    expect(chip).to_have_attribute("aria-pressed", "true")


def test_widget_follows_the_theme_of_vscode(page: Page) -> None:
    view = open_in(page, HOSTS[0])
    expect(view.root).to_have_css("color-scheme", "light")
    page.evaluate("document.body.dataset.vscodeThemeKind = 'vscode-dark'")
    expect(view.root).to_have_css("color-scheme", "dark")
