"""The source pane shows the result of each line, and the frame map the compiled functions."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage
from tests.browser.waiting import expect_equal, wait_until
from tests.explorer.findings.test_frame_map import looping
from tests.explorer.reading.test_landed import record

CALL = "x = doubled(x)"


def test_called_function_expands_inline_by_keyboard(open_page: OpenPage, page: Page) -> None:
    view = open_page(record())
    view.open_stage("captured")
    line = view.line(view.source, CALL)
    expect(line.locator(".tc-call")).to_have_text("doubled")
    line.locator(".tc-number").click()
    page.keyboard.press("ArrowRight")
    opened = view.source.locator(".tc-inlined")
    expect(opened.first).to_have_text("# doubled, in tests/explorer/reading/test_landed.py")
    inner = opened.filter(has_text="torch.ones_like(x)")
    body = view.line(view.source, "torch.ones_like(x)")
    expect(inner.locator(".tc-number")).to_have_text(body.locator(".tc-number").inner_text())
    expect(inner.locator(".tc-tints i")).to_have_count(1)
    expect(body.locator(".tc-tints i")).to_have_count(2)
    inner.locator(".tc-number").click()
    expect(body).to_contain_class("tc-primary")
    expect(inner).to_contain_class("tc-primary")
    wait_until(lambda: view.marked(view.stage))
    line.locator(".tc-number").click()
    page.keyboard.press("ArrowLeft")
    expect(opened).to_have_count(0)


def test_breaking_code_is_underlined_as_plain_python(open_page: OpenPage) -> None:
    view = open_page(record())
    line = view.line(view.source, "torch._dynamo.graph_break()")
    expect_equal(lambda: "".join(line.locator(".tc-broken").all_inner_texts()), "torch._dynamo.graph_break()")
    expect(line.locator(".tc-tints .tc-plain")).to_have_count(1)
    expect(line.locator(".tc-tints")).to_have_attribute("title", "Ran as plain Python")


def test_a_graph_is_selected_in_the_legend(open_page: OpenPage) -> None:
    view = open_page(record())
    view.open_stage("captured")
    view.source.get_by_role("button", name="graph 1/0").click()
    wait_until(lambda: any(CALL in line for line in view.marked(view.source)))
    assert not any("self.layers" in line for line in view.marked(view.source))
    expect(view.stage.locator(".tc-choose option:checked")).to_have_text("Captured 1/0")


def test_frame_map_as_graph_is_linked_to_lines(open_page: OpenPage, page: Page) -> None:
    view = open_page(looping())
    view.open_stage("frame_map", "Graph")
    view.stage.locator("canvas").first.focus()
    page.keyboard.press("l")
    view.stage.get_by_role("option", name="plain Python: loops").click()
    wait_until(lambda: any("x = scaled(x, float(k))" in line for line in view.marked(view.source)))
