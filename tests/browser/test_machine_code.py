"""From the Python line to the instruction and back, on a saved page: highlights, lists, explanations, comparisons."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from compiler.record import Record
from compiler.record.builder import in_kernel_order
from explorer.run.both_sides import both_sides
from explorer.run.page import page as page_of
from tests.browser.conftest import OpenPage
from tests.browser.explorer_view import ExplorerView
from tests.browser.notebook_page import ARTIFACTS
from tests.browser.waiting import expect_equal, wait_until
from tests.explorer.findings.fused_record import DOUBLE, SUM, fused_record, growing


def compiled(target: str = "h100") -> Record:
    *_, record = growing(fused_record(target))
    return in_kernel_order(record)


def open_two(view: ExplorerView, *stages: str) -> None:
    for stage in stages:
        view.chip(stage).click(modifiers=["Shift"] if stage != stages[0] else [])


def test_line_highlights_its_triton_and_dims_the_rest(
    open_page: OpenPage,
) -> None:
    view = open_page(compiled())
    view.open_stage("kernels")
    view.line(view.source, "torch.sigmoid").click()
    expect(view.line(view.stage, "tl.sigmoid(tmp0)")).to_contain_class("tc-linked")
    expect(view.line(view.stage, "tl.load(in_ptr0 + r0)")).to_contain_class("tc-linked")
    expect(view.line(view.stage, "tl.sum(tmp1, 1)")).to_contain_class("tc-weak")
    expect(view.line(view.stage, "tl.store(out_ptr0, tmp0 * 2)")).not_to_contain_class("tc-weak")
    expect(view.stage.locator(".tc-link-count")).to_contain_text("linked")


def test_line_and_its_instructions_highlight_each_other(open_page: OpenPage) -> None:
    view = open_page(compiled())
    open_two(view, "ptx", "sass")
    ptx, sass = view.two_panes()
    view.line(view.source, "y.sum(-1)").click()
    for pane in (ptx, sass):
        expect(pane.locator(".tc-linked")).not_to_have_count(0)
    rows = sass.locator(".tc-row")
    rows.nth(1).click()
    expect(view.line(view.source, "torch.sigmoid")).to_contain_class("tc-linked")
    expect(view.line(view.source, "y.sum(-1)")).not_to_contain_class("tc-linked")
    expect(ptx.locator(".tc-linked")).to_have_count(2)


def test_machine_code_pane_follows_the_selected_kernel(open_page: OpenPage) -> None:
    view = open_page(compiled())
    open_two(view, "kernels", "sass")
    kernels, sass = view.two_panes()
    expect(sass.locator(".tc-choose")).to_have_value(f"sass[0/0 inference {SUM}]")
    view.line(kernels, "tl.store(out_ptr0, tmp0 * 2)").click()
    expect(sass.locator(".tc-choose")).to_have_value(f"sass[0/0 inference {DOUBLE}]")
    view.line(view.source, "torch.sigmoid").click()
    expect(sass.locator(".tc-choose")).to_have_value(f"sass[0/0 inference {SUM}]")


def test_kernels_open_at_the_first_kernel(open_page: OpenPage, page: Page) -> None:
    page.set_viewport_size({"width": 1400, "height": 320})
    view = open_page(compiled())
    view.open_stage("kernels")
    expect(view.line(view.stage, f"{SUM} = async_compile")).to_be_visible()
    expect_equal(lambda: view.stage.locator(".tc-scroll").evaluate("scroller => scroller.scrollTop"), 2 * 19)


def test_kernel_list_sorts_and_shows_selected_code(open_page: OpenPage, page: Page) -> None:
    view = open_page(compiled())
    view.open_stage("kernels", "List")
    names = view.stage.locator("tbody td:first-child")
    expect(names).to_have_text([SUM, DOUBLE])
    sort = view.stage.get_by_role("button", name="Bytes")
    sort.click()
    expect(view.stage.locator("th[aria-sort]")).to_have_attribute("aria-sort", "descending")
    expect(names).to_have_text([SUM, DOUBLE])
    sort.click()
    expect(names).to_have_text([DOUBLE, SUM])
    expect(sort).to_be_focused()
    view.stage.locator("tbody tr").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(view.stage.locator("tbody tr.tc-primary")).to_contain_text(SUM)
    expect(view.line(view.stage, "tl.sigmoid(tmp0)")).to_contain_class("tc-primary")
    inspector = view.root.locator(".tc-inspector")
    expect(inspector).to_contain_text("4.00 KiB")
    expect(inspector).to_contain_text("50 %")


def test_hovering_an_instruction_explains_it(open_page: OpenPage) -> None:
    view = open_page(compiled())
    view.open_stage("ptx")
    view.line(view.stage, "ld.global.b32").locator(".tc-t-k").hover()
    tip = view.stage.locator(".tc-tip")
    expect(tip).to_contain_text("ld")
    link = tip.locator("a")
    expect(link).to_have_attribute("rel", "noopener noreferrer")
    assert (link.get_attribute("href") or "").startswith("https://docs.nvidia.com/")
    view.source.locator(".tc-row").first.hover()
    expect(tip).to_be_hidden()


def test_words_are_explained_from_the_keyboard(open_page: OpenPage, page: Page) -> None:
    view = open_page(compiled())
    view.open_stage("kernels")
    view.line(view.stage, "tl.sum(tmp1, 1)").click()
    view.stage.locator(".tc-scroll").focus()
    page.keyboard.press("e")
    expect(view.stage.locator(".tc-tip")).to_contain_text("tl.sum")
    page.keyboard.press("ArrowDown")
    expect(view.stage.locator(".tc-tip")).to_be_hidden()
    page.keyboard.press("e")
    expect(view.stage.locator(".tc-tip")).to_contain_text("tl.store")
    page.keyboard.press("e")
    expect(view.stage.locator(".tc-tip")).to_be_hidden()


def test_source_location_lines_are_hidden_by_default(open_page: OpenPage) -> None:
    view = open_page(compiled())
    view.open_stage("ptx")
    expect(view.line(view.stage, "ld.global.b32")).to_be_visible()
    expect(view.stage.locator(".tc-row", has_text=".loc")).to_have_count(0)
    view.stage.get_by_role("button", name="Show or hide lines that only name places").click()
    expect(view.stage.locator(".tc-row", has_text=".loc")).not_to_have_count(0)


def test_uncompiled_stage_says_how_to_compile_it(open_page: OpenPage) -> None:
    view = open_page(fused_record())
    chip = view.chip("sass")
    expect(chip).to_contain_text("not compiled")
    chip.click()
    expect(view.stage).to_contain_text("run.compile_kernels() before saving")
    expect(view.stage).to_contain_text("--stages all")


def test_partly_compiled_stage_counts_its_kernels(open_page: OpenPage) -> None:
    first, *_ = growing(fused_record())
    view = open_page(in_kernel_order(first))
    expect(view.root.locator("[data-stage=sass]")).to_contain_text("1 of 2 kernels")


def test_selected_instruction_names_its_stage_and_kernel(open_page: OpenPage) -> None:
    view = open_page(compiled())
    view.open_stage("sass")
    view.stage.locator(".tc-row").nth(1).click()
    expect(view.root.locator(".tc-inspector .tc-where")).to_have_text(f"instructions in SASS of {SUM}")
    expect(view.root.locator(".tc-inspector .tc-chain .tc-count").first).to_have_text(" × 2")


def test_two_runs_in_one_view(open_page: OpenPage) -> None:
    view = open_page(both_sides(compiled("h100"), compiled("a100"), ("h100", "a100")))
    expect(view.stage.locator(".tc-legend")).to_contain_text("h100")
    expect(view.stage.locator(".tc-legend")).to_contain_text("a100")
    view.chip("sass").click()
    choices = view.stage.locator(".tc-choose")
    expect(choices).to_have_count(2)
    expect(choices.first).to_have_value(f"sass[0/0 inference {SUM}]")
    expect(choices.last).to_have_value(f"a100: sass[0/0 inference {SUM}]")
    expect(view.stage.locator(".tc-legend")).to_contain_text("no difference")
    view.stage.get_by_role("button", name="Stop comparing").click()
    view.line(view.source, "torch.sigmoid").click()
    expect(view.root.locator("[data-stage=sass] .tc-chip-links")).to_have_text("6")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_machine_code_screenshots_fit_the_width(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, scheme: str
) -> None:
    """Screenshots for review; the ribbon fits in JupyterLab's width."""
    path = tmp_path_factory.mktemp("page") / "run.html"
    path.write_text(page_of(compiled()), encoding="utf-8")
    context = browser.new_context(viewport={"width": 950, "height": 640}, color_scheme=scheme)
    page = context.new_page()
    page.goto(path.as_uri())
    view = ExplorerView(page.locator("body"))
    view.open_stage("kernels", "List")
    view.chip("sass").click(modifiers=["Shift"])
    view.line(view.source, "torch.sigmoid").locator(".tc-number").click()
    overflow = "root => [...root.querySelectorAll('.tc-chip')].some(chip => chip.getBoundingClientRect().right > 950)"
    wait_until(lambda: not view.root.evaluate(overflow))
    page.screenshot(path=ARTIFACTS / f"machine-code-{scheme}.png")
    context.close()
