"""Side-by-side bytecode and the stepper on a saved page."""

from __future__ import annotations

import functools

import torch
from playwright.sync_api import Locator, Page, expect

from compiler.engine import explore
from compiler.option_checks import parse_options
from compiler.record import Record
from explorer.findings.replay import Replay
from tests.browser.conftest import OpenPage
from tests.browser.explorer_view import ExplorerView
from tests.browser.waiting import expect_equal, wait_until
from tests.explorer.findings.test_findings_steps import reads_on_and_on


@functools.cache
def stepped() -> Record:
    options = parse_options(stages=("bytecode", "captured"), step=True)
    return explore(reads_on_and_on, (torch.ones(4),), options=options).record


def cell(view: ExplorerView, side: int, text: str) -> Locator:
    return view.stage.locator(f".tc-side-{side}", has_text=text).first


def chosen(view: ExplorerView) -> Locator:
    return view.source.locator(".tc-row.tc-primary, .tc-row.tc-linked")


def test_bytecode_chip_shows_both_sides_linked_to_source(open_page: OpenPage) -> None:
    view = open_page(stepped())
    view.chip("bytecode").click()
    heading = cell(view, 1, "call the compiled graph 0/0")
    expect(heading).to_contain_class("tc-inserted")
    cell(view, 0, "STORE_DEREF").click()
    expect(chosen(view)).to_have_count(1)
    expect(chosen(view)).to_contain_text("shift = 3")
    view.line(view.source, "def shifted(y").click()
    expect(cell(view, 0, "MAKE_FUNCTION")).to_contain_class("tc-linked")


def test_resume_functions_show_shared_rows_and_python(open_page: OpenPage, page: Page) -> None:
    view = open_page(stepped())
    view.chip("bytecode").click()
    view.stage.get_by_label("Frame").select_option(index=1)
    expect(view.stage.locator(".tc-bc-row").first).to_be_visible()
    view.stage.get_by_label("Bytecode").focus()
    page.keyboard.press("End")
    shared = view.stage.locator(".tc-bc-row", has=page.locator(".tc-side-0.tc-bc-code")).filter(
        has=page.locator(".tc-side-1.tc-bc-code")
    )
    expect(shared.first).to_be_attached()
    view.stage.get_by_role("button", name="As Python").click()
    python = view.stage.locator(".tc-bytecode-python")
    python.locator(".tc-row", has_text="__compiled_fn_").first.click()
    expect(cell(view, 1, "__compiled_fn_")).to_contain_class("tc-linked")


def test_single_bytecode_column_has_no_empty_rows(open_page: OpenPage) -> None:
    view = open_page(stepped())
    view.chip("bytecode").click()
    view.stage.get_by_role("button", name="As Dynamo rewrote it").click()
    written = view.stage.locator(".tc-side-0")
    expect(written.first).to_be_visible()
    expect(view.stage.locator(".tc-side-1").first).to_be_hidden()
    assert all(text.strip() for text in written.all_inner_texts())


def test_jump_arrow_leads_to_its_target(open_page: OpenPage, page: Page) -> None:
    view = open_page(stepped())
    view.chip("bytecode").click()
    view.stage.get_by_label("Bytecode").focus()
    page.keyboard.press("End")
    jump = view.stage.locator(".tc-side-0 .tc-bc-jump", has_text="to ").last
    target = jump.inner_text().removeprefix("to ")
    jump.hover()
    expect(view.stage.locator(".tc-jumps .tc-on").first).to_be_attached()
    jump.click()
    expect(view.stage.locator(".tc-bc-cell.tc-cursor .tc-bc-offset")).to_have_text(target)


def test_stepper_goes_to_the_break_and_back(open_page: OpenPage, page: Page) -> None:
    record = stepped()
    view = open_page(record)
    view.chip("steps").click()
    view.stage.get_by_label("Instructions").focus()
    page.keyboard.press("b")
    state = Replay(record).before_break(0)
    current = view.stage.locator(".tc-step.tc-primary")
    expect(current).to_contain_text(state.step.opcode)
    stack = view.stage.get_by_label("Stack, top first").locator("li")
    expect_equal(stack.all_inner_texts, list(reversed(state.stack)))
    expect(view.stage.locator(".tc-steps-notes")).to_contain_text("Graph break: ")
    expect(chosen(view)).to_contain_text('print("one")')
    page.keyboard.press("ArrowLeft")
    before = Replay(record).at(state.index - 1)
    expect(current).to_contain_text(before.step.opcode)
    expect_equal(stack.all_inner_texts, list(reversed(before.stack)))


def test_step_over_stays_in_function_path_leads_out(open_page: OpenPage, page: Page) -> None:
    view = open_page(stepped())
    view.chip("steps").click()
    view.stage.get_by_label("Instructions").focus()
    page.keyboard.press("/")
    page.keyboard.type("scaled")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    path = view.stage.locator(".tc-steps-call")
    wait_until(lambda: path.count() > 1)
    path.first.click()
    expect(path).to_have_count(1)
    page.keyboard.press("Shift+ArrowRight")
    expect(path).to_have_count(1)


def test_selecting_a_line_brings_the_stepper_to_it(open_page: OpenPage) -> None:
    view = open_page(stepped())
    view.chip("steps").click()
    view.line(view.source, "return y + shift").click()
    expect(view.stage.locator(".tc-steps-line code")).to_have_text("return y + shift")
    expect(view.stage.locator(".tc-steps-call").last).to_have_text("shifted")


def test_source_follows_into_package_files(open_page: OpenPage, page: Page) -> None:
    view = open_page(stepped())
    view.chip("steps").click()
    view.stage.get_by_label("Instructions").focus()
    page.keyboard.press("/")
    page.keyboard.type("forward")
    page.keyboard.press("Enter")
    expect(view.source.locator(".tc-choose")).to_have_value("source[torch/nn/modules/linear.py]")
    expect(chosen(view)).to_contain_text("return input")
