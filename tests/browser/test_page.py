"""The saved page, opened from disk with the network blocked, as its reader uses it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from compiler.record import Artifact, Entity, Record
from compiler.record.options import Options
from explorer.run.page import page as page_of
from tests.browser.conftest import OpenPage
from tests.browser.explorer_view import ExplorerView
from tests.browser.notebook_page import ARTIFACTS
from tests.browser.waiting import expect_equal, wait_until
from tests.explorer.explored import broken_record, mlp_record
from tests.explorer.small_record import small_record

HOSTILE = "</script><script>window.attacked = 1</script><img src=x onerror='window.attacked = 1'>"
LONG = 50_000
STEPS, LAYOUTS_PER_STEP = 60, 3
#: A pane of this window shows about fifty lines.
MOST_ROWS = 200


def long_record(lines: int) -> Record:
    text = "".join(
        f"    buf{number} = triton_poi_fused_{number % 97}(arg{number}, {number})\n" for number in range(lines)
    )
    return Record("long", Options(), artifacts=(Artifact("kernels[0/0]", "kernels", "generated code", "python", text),))


def rows(view: ExplorerView, pane: str = ".tc-pane:not(.tc-home)") -> list[int]:
    """The visible lines of a pane, by number."""
    inside = """scroller => {
        const frame = scroller.getBoundingClientRect();
        return [...scroller.querySelectorAll(".tc-row")].flatMap(row => {
            const { top, bottom } = row.getBoundingClientRect();
            return bottom > frame.top && top < frame.bottom ? [Number(row.dataset.row)] : [];
        }).sort((a, b) => a - b);
    }"""
    return view.root.locator(f"{pane} .tc-scroll").first.evaluate(inside)


def test_line_highlights_its_nodes_in_every_pane(open_page: OpenPage) -> None:
    view = open_page(mlp_record())
    view.open_stage("forward")
    view.chip("kernels").click(modifiers=["Shift"])
    view.line(view.source, "x = self.hidden(x)").click()
    forward, kernels = view.two_panes()
    expect(view.line(view.source, "x = self.hidden(x)")).to_contain_class("tc-primary")
    wait_until(lambda: any("addmm" in line for line in view.marked(forward)))
    assert not any("self.head" in line for line in view.marked(forward))
    wait_until(lambda: view.marked(kernels))


def test_breaks_open_first_with_source_at_the_break(open_page: OpenPage, page: Page) -> None:
    page.set_viewport_size({"width": 1400, "height": 420})
    view = open_page(broken_record())
    expect(view.chip("breaks")).to_have_attribute("aria-pressed", "true")
    expect(view.stage.locator(".tc-break-card")).to_contain_text("asks for a graph break")
    expect(view.line(view.source, "torch._dynamo.graph_break()")).to_be_in_viewport()
    expect(view.line(view.source, "import functools")).not_to_be_in_viewport()


def test_captured_graph_opens_first_without_breaks(open_page: OpenPage) -> None:
    view = open_page(mlp_record())
    expect(view.chip("captured")).to_have_attribute("aria-pressed", "true")
    expect(view.stage.locator(".tc-folded")).to_have_text(re.compile("7 lines"))
    expect(view.line(view.stage, "torch.nn.functional.dropout")).to_be_visible()
    steps = view.root.locator(".tc-next button")
    expect(steps).to_have_count(3)
    steps.filter(has_text="Read the generated kernels").click()
    expect(view.chip("kernels")).to_have_attribute("aria-pressed", "true")


def test_large_graph_opens_as_a_drawing(open_page: OpenPage) -> None:
    calls = tuple(
        Entity(
            f"captured[0/0].n{number}", "call", f"n{number}", inputs=(f"captured[0/0].n{number - 1}",) * (number > 0)
        )
        for number in range(30)
    )
    graph = Artifact("captured[0/0]", "captured", "captured", "fx", "graph\n", entities=calls, graph="0/0")
    view = open_page(Record("large", Options(), artifacts=(graph,)))
    expect(view.stage.locator("canvas").first).to_be_visible()


def test_node_list_attributes_link_to_nodes(open_page: OpenPage) -> None:
    view = open_page(mlp_record())
    view.open_stage("backward")
    view.line(view.stage, "aten.mm").click()
    derivative_of = view.root.locator(".tc-inspector section").filter(has_text="Derivative of")
    link = derivative_of.locator(".tc-link").first
    name = link.get_attribute("title")
    link.click()
    expect(view.root.locator(".tc-inspector h3")).to_have_attribute("title", str(name))


def test_selection_scrolls_into_view_in_other_panes(open_page: OpenPage) -> None:
    view = open_page(mlp_record())
    view.open_stage("kernels")
    view.line(view.source, "return self.head(x)").click()
    numbers = "rows => rows.map(row => Number(row.dataset.row))"
    wait_until(lambda: set(view.stage.locator(".tc-linked").evaluate_all(numbers)) & set(rows(view)))


def test_inspector_links_a_node_to_its_related_entities(open_page: OpenPage, page: Page) -> None:
    view = open_page(mlp_record())
    view.open_stage("forward")
    view.line(view.stage, "aten.addmm").locator(".tc-number").click()
    inspector = view.root.locator(".tc-inspector")
    expect(inspector.locator("h3")).to_have_text("addmm")
    expect(inspector).to_contain_text("float32 [32, 128]")
    expect(inspector).to_contain_text("16.0 KiB")
    expect(inspector).to_contain_text("hidden.0 · Linear")
    inspector.locator(".tc-stack .tc-link").last.click()
    expect(inspector.locator("h3")).to_have_text("x = self.hidden(x)")
    expect(view.line(view.source, "x = self.hidden(x)")).to_contain_class("tc-primary")


def test_pointing_at_a_line_previews_its_links(open_page: OpenPage) -> None:
    view = open_page(mlp_record())
    view.open_stage("forward")
    view.line(view.source, "return self.head(x)").hover()
    expect(view.stage.locator(".tc-previewed")).not_to_have_count(0)
    expect(view.stage.locator(".tc-linked")).to_have_count(0)


def test_graph_break_is_marked_in_place_and_explained(open_page: OpenPage) -> None:
    view = open_page(broken_record())
    mark = view.line(view.source, "graph_break()").locator(".tc-break")
    expect(mark).to_have_attribute("title", re.compile("^Graph break: "))
    mark.click()
    expect(view.root.locator(".tc-inspector h3")).to_have_text("Graph break 1 of 1")
    (item,) = broken_record().breaks
    expect(view.root.locator(".tc-inspector")).to_contain_text(item.hints[0])


def test_lines_are_tinted_by_their_graph(open_page: OpenPage) -> None:
    view = open_page(broken_record())
    tint = "row => row.querySelector('.tc-tints i')?.className"
    first = view.line(view.source, "y = x.relu()").evaluate(tint)
    second = view.line(view.source, "return y.sin() + 1").evaluate(tint)
    assert first
    assert second
    assert first != second
    expect(view.source.locator(".tc-legend-graph")).to_have_count(2)


def test_user_text_is_escaped(open_page: OpenPage, page: Page) -> None:
    source = Artifact("source[cell]", "source", HOSTILE, "python", f"# {HOSTILE}\n")
    record = replace(small_record(), title=HOSTILE)
    view = open_page(replace(record, artifacts=(source, *record.artifacts[1:])))
    expect(view.source.locator(".tc-line").first).to_have_text(f"# {HOSTILE}")
    expect(view.root.locator(".tc-title")).to_have_text(HOSTILE)
    assert page.evaluate("window.attacked") is None
    assert view.root.locator("img").count() == 0


def test_unavailable_stage_says_why(open_page: OpenPage) -> None:
    view = open_page(small_record())
    view.chip("ttir").click()
    expect(view.stage).to_contain_text("this machine has no Triton")
    expect(view.stage).to_contain_text("install triton")


def test_everything_can_be_reached_with_the_keyboard(open_page: OpenPage, page: Page) -> None:
    view = open_page(mlp_record())
    view.source.locator(".tc-scroll").focus()
    page.keyboard.press("Home")
    line = view.line(view.source, "x = self.deeper(x)")
    for _ in range(int(line.get_attribute("data-row") or 0)):
        page.keyboard.press("ArrowDown")
    expect(view.stage.locator(".tc-previewed")).not_to_have_count(0)
    page.keyboard.press("Enter")
    expect(line).to_contain_class("tc-primary")
    page.keyboard.press("o")
    shown = view.stage.locator(".tc-choose")
    before = shown.input_value()
    page.keyboard.press("]")
    expect(shown).not_to_have_value(before)
    page.keyboard.press("[")
    expect(shown).to_have_value(before)
    page.keyboard.press("Escape")
    expect(view.root.locator(".tc-primary")).to_have_count(0)
    page.keyboard.press("?")
    expect(view.root.locator("dialog")).to_contain_text("previous and next stage")
    page.keyboard.press("Escape")
    expect(view.root.locator("dialog")).to_have_count(0)


def test_search_counts_and_steps_through_matches(open_page: OpenPage, page: Page) -> None:
    view = open_page(long_record(2000))
    view.stage.locator(".tc-scroll").focus()
    page.keyboard.press("/")
    page.keyboard.type("fused_96(")
    count = view.root.locator(".tc-search-count").first
    expect(count).to_have_text("1 of 20")
    page.keyboard.press("Enter")
    expect(count).to_have_text("2 of 20")
    wait_until(lambda: 96 + 97 in rows(view))
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")
    expect(count).to_have_text("20 of 20")
    page.keyboard.press("Escape")
    expect(view.stage.locator(".tc-hit")).to_have_count(0)
    expect(view.root.locator(".tc-search")).to_be_hidden()


def test_scrolling_50000_lines_renders_only_visible_lines(
    open_page: OpenPage, page: Page, layouts: Callable[[], int]
) -> None:
    view = open_page(long_record(LONG))
    expect(view.stage.locator(".tc-row").first).to_be_visible()
    before = layouts()
    most = page.evaluate(
        """async (steps) => {
        const scroller = document.querySelector(".tc-pane:not(.tc-home) .tc-scroll");
        const frame = () => new Promise(requestAnimationFrame);
        const most = { rows: 0, elements: 0, added: 0 };
        let added = 0;
        new MutationObserver((changes) => { for (const change of changes) added += change.addedNodes.length; })
            .observe(document.body, { childList: true, subtree: true });
        for (let step = 0; step < steps; step++) {
            scroller.scrollTop = step === steps - 1 ? scroller.scrollHeight : scroller.scrollTop + 15000;
            added = 0;
            await frame();
            await frame();
            most.rows = Math.max(most.rows, scroller.querySelectorAll(".tc-row").length);
            most.elements = Math.max(most.elements, document.querySelectorAll("*").length);
            most.added = Math.max(most.added, added);
        }
        return most;
    }""",
        STEPS,
    )
    wait_until(lambda: rows(view)[-1:] == [LONG - 1])
    assert most["rows"] < MOST_ROWS
    assert most["added"] < MOST_ROWS, "what a step puts into the page"
    assert most["elements"] < LONG / 10, "no list of all lines elsewhere"
    assert layouts() - before <= LAYOUTS_PER_STEP * STEPS


def test_detached_pane_keeps_its_scroll_position(open_page: OpenPage, page: Page) -> None:
    view = open_page(long_record(2000))
    view.stage.locator(".tc-scroll").evaluate("scroller => { scroller.scrollTop = 19000 }")
    wait_until(lambda: min(rows(view), default=0) > 900)
    before = rows(view)
    page.evaluate("""async () => {
        const root = document.querySelector(".tcompile");
        const frame = () => new Promise(requestAnimationFrame);
        const home = root.parentNode;
        root.remove();
        for (let wait = 0; wait < 3; wait++) await frame();
        home.append(root);
        for (let wait = 0; wait < 3; wait++) await frame();
    }""")
    expect_equal(lambda: rows(view), before)


def test_copying_a_text_copies_all_of_it(open_page: OpenPage, page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    view = open_page(mlp_record())
    view.open_stage("kernels")
    view.stage.get_by_role("button", name="Copy the text").click()
    expect(view.stage.locator(".tc-done")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == mlp_record()["kernels"].text.rstrip("\n") + "\n"


def test_blocks_fold_and_selecting_inside_unfolds(open_page: OpenPage) -> None:
    view = open_page(mlp_record())
    view.open_stage("kernels")
    lines = view.stage.locator(".tc-rows").evaluate("rows => rows.clientHeight")
    view.stage.get_by_role("button", name="Fold or unfold long blocks").click()
    wait_until(lambda: view.stage.locator(".tc-rows").evaluate("rows => rows.clientHeight") < lines)
    expect(view.stage.locator(".tc-folded").first).to_contain_text("lines")
    folded = view.stage.locator(".tc-folded").count()
    view.line(view.source, "x = self.deeper(x)").click()
    wait_until(lambda: view.marked(view.stage))
    assert view.stage.locator(".tc-folded").count() <= folded


def test_two_artifacts_are_compared_with_both_sides_named(open_page: OpenPage) -> None:
    view = open_page(mlp_record())
    view.open_stage("forward")
    view.stage.get_by_role("button", name="Compare with another artifact").click()
    choices = view.stage.locator(".tc-choose")
    expect(choices).to_have_count(2)
    other, shown = choices.first, choices.last
    other.select_option("joint[0/0]")
    heading = view.stage.locator(".tc-legend")
    expect(heading).to_contain_text("joint[0/0]")
    expect(heading).to_contain_text("forward[0/0]")
    expect(heading).to_contain_text("differ")
    expect(shown).to_have_value("forward[0/0]")
    expect(view.stage.locator(".tc-removed").first).to_be_visible()
    other.select_option("post_grad[0/0 forward]")
    expect(heading).to_contain_text("post_grad[0/0 forward]")


def test_graph_node_highlights_its_links(open_page: OpenPage, page: Page) -> None:
    view = open_page(mlp_record())
    view.open_stage("forward", "Graph")
    view.click_a_node()
    expect(view.source.locator(".tc-linked")).not_to_have_count(0)
    page.keyboard.press("g")
    expect(view.stage.locator(".tc-row.tc-primary")).not_to_have_count(0)


def test_graph_is_searchable_and_its_groups_toggle(open_page: OpenPage, page: Page) -> None:
    view = open_page(mlp_record())
    view.open_stage("forward", "Graph")
    canvas = view.stage.locator("canvas").first
    view.stage.get_by_role("button", name="close all").click()
    page.wait_for_timeout(500)
    closed = canvas.screenshot()
    view.stage.get_by_role("button", name="open all").click()
    wait_until(lambda: canvas.screenshot() != closed)
    canvas.focus()
    page.keyboard.press("/")
    page.keyboard.type("addmm")
    count = view.root.locator(".tc-search-count").first
    expect(count).to_have_text("1 of 3")
    page.keyboard.press("Enter")
    expect(count).to_have_text("2 of 3")


def test_second_stage_opens_to_the_side_and_closes(open_page: OpenPage) -> None:
    view = open_page(mlp_record())
    view.chip("backward").click(modifiers=["Shift"])
    panes = view.root.locator(".tc-pane:not(.tc-home)")
    expect(panes).to_have_count(2)
    expect(view.root.locator(".tc-chip[aria-pressed=true]")).to_have_count(3)
    panes.last.get_by_role("button", name="Close this pane").click()
    expect(panes).to_have_count(1)


@pytest.mark.parametrize(
    ("scheme", "width", "name"),
    [("light", 1440, "wide"), ("dark", 1440, "wide"), ("light", 1000, "medium"), ("dark", 600, "narrow")],
)
def test_page_screenshots_have_no_overflow(
    open_page: OpenPage, page: Page, scheme: Literal["light", "dark"], width: int, name: str
) -> None:
    """Screenshots for review; and nothing overflows at any width."""
    page.set_viewport_size({"width": width, "height": 860})
    page.emulate_media(color_scheme=scheme)
    view = open_page(mlp_record())
    view.open_stage("kernels")
    view.open_stage("forward", "Graph")
    view.chip("backward").click(modifiers=["Shift"] if name == "wide" else [])
    view.line(view.source, "x = self.hidden(x)").locator(".tc-number").click()
    wait_until(lambda: page.evaluate("document.documentElement.scrollWidth") <= width)
    background = view.root.evaluate("root => getComputedStyle(root).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 384) == (scheme == "dark")
    page.screenshot(path=ARTIFACTS / f"page-{scheme}-{name}.png")


def test_the_reader_can_choose_light_or_dark(open_page: OpenPage, page: Page) -> None:
    view = open_page(small_record())
    colour = "root => getComputedStyle(root).backgroundColor"
    before = view.root.evaluate(colour)
    view.root.get_by_role("button", name="Light or dark").click()
    wait_until(lambda: view.root.evaluate(colour) != before)
    wait_until(lambda: page.evaluate("location.hash"))
    page.reload()
    wait_until(lambda: view.root.evaluate(colour) != before)
    view.root.get_by_role("button", name="Light or dark").click()
    expect_equal(lambda: view.root.evaluate(colour), before)


def test_page_without_javascript_says_so(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    path.write_text(page_of(small_record()), encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.locator("noscript p").is_visible()
    assert "needs JavaScript" in page.locator("noscript").inner_html()
    context.close()
