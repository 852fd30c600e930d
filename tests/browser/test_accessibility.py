"""axe-core finds nothing serious in any view, light and dark; and checks beyond axe: print, forced colours, motion."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Literal

import pytest
import torch
from playwright.sync_api import Browser, Locator, Page, expect
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import explorer
from compiler.record import Record
from explorer import explore
from explorer.run.both_sides import with_other_side
from explorer.run.page import page as page_of
from tests.browser.conftest import OpenPage
from tests.browser.explorer_view import TWO_FRAMES, ExplorerView
from tests.browser.jupyter_server import JupyterServer
from tests.browser.notebook_page import NotebookPage
from tests.browser.waiting import expect_equal, wait_until
from tests.conftest import AXE
from tests.explorer.explored import MLP
from tests.explorer.findings.timed_record import timed_record

Scheme = Literal["light", "dark"]
Scan = Callable[[Locator], set[str] | None]
Found = dict[str, set[str] | None]

SEVERE = ("critical", "serious")
#: The violations of an element and its insides, each as its impact and "rule: what is wrong, where".
SCAN = """async (root, rules) => {
    const { violations } = await axe.run(root, { resultTypes: ["violations"], ...(rules && { runOnly: rules }) });
    return violations.flatMap(({ id, impact, nodes }) => nodes.map((node) => {
        const check = [...node.any, ...node.all, ...node.none][0];
        return [impact, `${id}: ${check?.message} ${node.html.slice(0, 160)}`];
    }));
}"""
#: The kinds of an element's parts, each with its parent: tag, classes, and names of attributes.
KINDS = """root => {
    const kind = (part) => `${part.tagName}.${part.getAttribute("class")} ${part.getAttributeNames()}`;
    return [...new Set([...root.querySelectorAll("*")].map((part) => `${kind(part.parentElement)} > ${kind(part)}`))];
}"""
#: The rules that depend on colours; the others find the same in both themes.
COLOUR_RULES = ("color-contrast", "link-in-text-block")
VIEWS_MS = 60_000


class Tangled(torch.nn.Module):
    """Breaks, guards, recompilations and advice: the findings that an MLP does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.inner(x))
        torch._dynamo.graph_break()
        h = h / h.max().item()
        if h.mean() > 0.1:
            h = h * 2
        return h.sum()


def twice(model: torch.nn.Module) -> torch.Tensor:
    return model(torch.randn(8, 16)) + model(torch.randn(9, 16))


@cache
def whole_pipeline() -> Record:
    return explore(MLP(), torch.randn(32, 64), stages=("all",), step=True).record


def tangled() -> Record:
    return explore(twice, Tangled(), stages=("captured",)).record


def chain_rule() -> Record:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    return explorer.chain_rule(lambda: torch.sum(x * x.exp())).record


@cache
def two_backends() -> Record:
    return with_other_side(explore(MLP(), torch.randn(32, 64), vs="tcompile", stages=("forward", "kernels")).record)


def rank_of_a_mesh() -> Record:
    def make_model() -> torch.nn.Module:
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
        model = parallelize_module(MLP(), mesh["tp"], {"deeper.0": ColwiseParallel(), "head": RowwiseParallel()})
        return fully_shard(model, mesh=mesh["dp"])  # type: ignore[no-any-return]

    return explorer.explore(make_model, torch.randn(8, 64), ranks=8, target="h100", stages="captured,joint").record


RECORDS: dict[str, Callable[[], Record]] = {
    "pipeline": whole_pipeline,
    "breaks": tangled,
    "chain": chain_rule,
    "versus": two_backends,
    "timing": timed_record,
    "rank": rank_of_a_mesh,
}


def severe(root: Locator, rules: Sequence[str] = ()) -> set[str]:
    """The critical and serious violations inside an element, of these rules or of all."""
    return {violation for impact, violation in root.evaluate(SCAN, list(rules) or None) if impact in SEVERE}


def severe_in_both_themes(root: Locator) -> set[str]:
    """The violations of all rules in the light theme, and of those that depend on colours in the dark one."""
    found = set()
    schemes: dict[Scheme, Sequence[str]] = {"light": (), "dark": COLOUR_RULES}
    for scheme, rules in schemes.items():
        root.page.emulate_media(color_scheme=scheme)
        root.page.evaluate(TWO_FRAMES)
        found |= {f"{scheme}: {violation}" for violation in severe(root, rules)}
    return found


def scan_new(scan: Scan, seen: set[str]) -> Scan:
    """Scan an element only if it has parts of a kind that was not seen before, else give None: axe takes long."""

    def scan_if_new(root: Locator) -> set[str] | None:
        kinds = set(root.evaluate(KINDS))
        if kinds <= seen:
            return None
        seen.update(kinds)
        return scan(root)

    return scan_if_new


@pytest.fixture(scope="module")
def scan_page() -> Scan:
    """Scans what no other page of this module has."""
    return scan_new(severe_in_both_themes, set())


def violations_text(found: Mapping[str, set[str] | None]) -> str:
    return "\n".join(f"{name}: {violation}" for name, violations in found.items() for violation in violations or ())


def severe_by_view(view: ExplorerView, scan: Scan, stages: Iterable[str]) -> Found:
    """The violations on the whole as opened, in each stage's pane in each of its modes, and with a line selected."""
    found = {"as opened": scan(view.root)}
    for stage in stages:
        view.chip(stage).click()
        modes = view.stage.locator(".tc-pane-header .tc-modes[aria-label=View] button")
        for mode in modes.all_inner_texts() or [""]:
            if mode:
                modes.get_by_text(mode, exact=True).click()
            view.root.page.wait_for_timeout(150)
            found[f"{stage} {mode}"] = scan(view.stage)
    view.open_stage("source")
    view.source.locator(".tc-row .tc-number").nth(1).click()
    return found | {"a selected line": scan(view.root)}


def chips_of(view: ExplorerView) -> list[str]:
    return view.root.locator(".tc-ribbon [data-stage]").evaluate_all("chips => chips.map(c => c.dataset.stage)")


def saved(browser: Browser, record: Record, path: Path) -> Page:
    """A page whose Content-Security-Policy allows axe to run."""
    path.write_text(page_of(record), encoding="utf-8")
    page = browser.new_context(viewport={"width": 1280, "height": 800}, bypass_csp=True).new_page()
    page.goto(path.as_uri())
    return page


@pytest.mark.needs("axe")
@pytest.mark.parametrize("name", RECORDS)
def test_axe_finds_nothing_serious_on_pages(browser: Browser, tmp_path: Path, scan_page: Scan, name: str) -> None:
    page = saved(browser, RECORDS[name](), tmp_path / "run.html")
    page.add_script_tag(path=AXE)
    whole = page.locator("html")
    view = ExplorerView(page.locator("body"))
    expect(view.root.locator(".tc-ribbon .tc-chip:visible").first).to_be_visible()
    found = severe_by_view(view, scan_page, chips_of(view))
    compare = view.stage.get_by_role("button", name="Compare with another artifact")
    if compare.count():
        compare.click()
        found["compared"] = scan_page(whole)
        view.stage.get_by_role("button", name="Side by side").click()
        found["side by side"] = scan_page(whole)
    page.keyboard.press("/")
    page.keyboard.type("re")
    expect(view.root.locator(".tc-result").first).to_be_visible()
    page.keyboard.press("ArrowDown")
    found["search"] = scan_page(whole)
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(view.root.locator("dialog")).to_be_visible()
    found["help"] = scan_page(whole)
    page.context.close()
    assert not any(found.values()), violations_text(found)


@pytest.mark.needs("axe")
def test_axe_finds_nothing_serious_in_jupyterlab(lab: JupyterServer, new_notebook: Callable[..., NotebookPage]) -> None:
    notebook = new_notebook(
        lab,
        "%load_ext tcompile\nimport torch\nfrom torch import nn\nmodel = nn.Sequential(nn.Linear(8, 8), nn.GELU())",
        "%%tcompile --stages all\nmodel(torch.randn(4, 8)).sum().backward()",
    )
    for cell in range(2):
        notebook.run_cell(cell)
    view = ExplorerView(notebook.output(1))
    expect(view.source.locator(".tc-row").first).to_be_visible(timeout=VIEWS_MS)
    notebook.page.add_script_tag(path=AXE)
    found: Found = {"as opened, all rules": severe(view.root)}
    stages = chips_of(view)
    for theme in ("Light", "Dark"):
        notebook.use_theme(theme)
        notebook.show(view.root)
        by_view = severe_by_view(view, scan_new(partial(severe, rules=COLOUR_RULES), set()), stages)
        found |= {f"{theme} {name}": violations for name, violations in by_view.items()}
        scanned = {name.split()[0] for name, violations in by_view.items() if violations is not None}
        stages = [stage for stage in stages if stage in scanned]
    assert not any(found.values()), violations_text(found)


def test_printed_page_shows_all_lines_black_on_white(open_page: OpenPage, page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    view = open_page(whole_pipeline())
    view.open_stage("kernels")
    lines = len(whole_pipeline()["kernels"].text.splitlines())
    expect(view.line(view.stage, "import")).to_be_visible()
    page.emulate_media(media="print", color_scheme="dark")
    expect(view.stage.locator(".tc-row")).to_have_count(lines)
    colours = "root => [getComputedStyle(root).backgroundColor, getComputedStyle(root).color]"
    expect_equal(lambda: view.root.evaluate(colours), ["rgb(255, 255, 255)", "rgb(0, 0, 0)"])
    clipped = """root => [...root.querySelectorAll(".tc-pane, .tc-pane *, .tc-inspector, .tc-inspector *")].filter(
        (part) => ["auto", "scroll", "hidden"].includes(getComputedStyle(part).overflowY)
            && part.clientHeight && part.scrollHeight > part.clientHeight + 1).map((part) => part.className)"""
    expect_equal(lambda: view.root.evaluate(clipped), [])
    page.emulate_media(media="screen", color_scheme="dark")
    expect(view.stage.locator(".tc-row").nth(150)).to_have_count(0)


def test_forced_colours_still_show_selection_and_focus(open_page: OpenPage, page: Page) -> None:
    page.emulate_media(forced_colors="active")
    view = open_page(whole_pipeline())
    view.open_stage("forward")
    view.line(view.source, "x = self.hidden(x)").locator(".tc-number").click()
    background = "line => getComputedStyle(line).backgroundColor"
    chosen = view.source.locator(".tc-primary .tc-line")
    other = view.line(view.source, "return self.head(x)").locator(".tc-line")
    wait_until(lambda: chosen.evaluate(background) != other.evaluate(background))
    linked = view.stage.locator(".tc-linked .tc-line").first
    expect(linked).to_have_css("border-left-width", "4px")
    page.keyboard.press("Tab")
    outline = "document.activeElement && getComputedStyle(document.activeElement).outlineStyle"
    expect_equal(lambda: page.evaluate(outline), "solid")


def test_reduced_motion_disables_animations(open_page: OpenPage, page: Page) -> None:
    page.emulate_media(reduced_motion="reduce")
    view = open_page(whole_pipeline())
    moving = """root => [...root.querySelectorAll("*")].filter((part) =>
        [null, "::before", "::after"].some((pseudo) => {
            const { animationName, transitionDuration, scrollBehavior } = getComputedStyle(part, pseudo);
            return animationName !== "none" || parseFloat(transitionDuration) > 0 || scrollBehavior === "smooth";
        }))"""
    view.chip("forward").evaluate("chip => chip.classList.add('tc-running')")
    expect_equal(lambda: view.root.evaluate(f"root => ({moving})(root).length"), 0)
    page.emulate_media(reduced_motion="no-preference")
    expect_equal(lambda: view.root.evaluate(f"root => ({moving})(root).length"), 1)


def test_kernel_numbers_carry_units(open_page: OpenPage) -> None:
    view = open_page(whole_pipeline())
    expect(view.chip("fusion")).to_contain_text("launches")
    expect(view.chip("kernels")).to_contain_text("kernels")
    view.open_stage("kernels", "List")
    expect(view.stage.locator(".tc-table tr").filter(has_text="triton_poi").first).to_be_visible()
    titles = view.stage.locator(".tc-table th").all_inner_texts()
    cells = view.stage.locator(".tc-table tr").filter(has_text="triton_poi").first.locator("td").all_inner_texts()
    row = dict(zip(titles, cells, strict=True))
    assert re.fullmatch(r"\d+ bits", row["Widest load"])
    assert re.fullmatch(r"[\d.]+ (ns|µs)", row["Least time"])
    assert row["Least time"].split()[0] != "0"
