"""Bytecode and the stepper on a saved page."""

from __future__ import annotations

import functools
import re

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


def chosen(view: ExplorerView) -> Locator:
    return view.source.locator(".tc-row.tc-primary, .tc-row.tc-linked")


def test_listings_of_a_frame_are_linked_and_compared(open_page: OpenPage) -> None:
    view = open_page(stepped())
    view.chip("bytecode").click()
    view.stage.locator(".tc-row", has_text="STORE_DEREF").first.click()
    expect(chosen(view)).to_have_count(1)
    expect(chosen(view)).to_contain_text("shift = 3")
    shown = view.stage.get_by_label("What this pane shows")
    shown.select_option("bytecode[0/0 modified]")
    view.stage.get_by_role("button", name="Compare with another artifact").click()
    expect(view.stage.locator(".tc-row.tc-added", has_text="__compiled_fn_").first).to_be_visible()
    same = view.stage.locator(".tc-row:not(.tc-added):not(.tc-removed)", has_text="PRECALL")
    expect(same.first).to_be_visible()
    shown.last.select_option("bytecode[0/0 as Python]")
    view.stage.get_by_role("button", name="Stop comparing").click()
    expect(view.stage).to_contain_text("__compiled_fn_0")


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
    for _ in range(3):
        page.keyboard.press("Enter")
    current = view.stage.locator(".tc-step.tc-primary")
    step = current.get_attribute("data-at")
    expect(page).to_have_url(re.compile(rf"steps@0\.{step}(&|$)"))
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    expect(current).to_have_attribute("data-at", str(step))
    page.goto("about:blank")
    page.goto(address.replace(f"@0.{step}", "@7.x"))
    expect(current).to_have_count(1)
