"""Drive our front end on a page like a user: choose a stage, click a line or a node, read the marked lines."""

from __future__ import annotations

from playwright.sync_api import Locator, expect

#: Resolves when what a click changed has been drawn.
TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


class ExplorerView:
    """One explorer, inside `around`: the output of a notebook's cell, or the body of a saved page."""

    def __init__(self, around: Locator) -> None:
        self.root = around.locator(".tcompile")

    @property
    def stages(self) -> list[str]:
        """The stages on the ribbon that can be opened, in order."""
        chips = self.root.locator(".tc-ribbon [data-stage]:not(.tc-absent)")
        return chips.evaluate_all("chips => chips.map(chip => chip.dataset.stage)")

    @property
    def source(self) -> Locator:
        """The pane of the user's own code."""
        return self.root.locator(".tc-pane.tc-home")

    @property
    def stage(self) -> Locator:
        """The pane of the stage that was opened first."""
        return self.root.locator(".tc-pane:not(.tc-home)").first

    def two_panes(self) -> tuple[Locator, Locator]:
        """The stage panes, once there are two."""
        panes = self.root.locator(".tc-pane:not(.tc-home)")
        expect(panes).to_have_count(2)
        return panes.first, panes.last

    def chip(self, name: str) -> Locator:
        """A stage's chip on the ribbon, made visible: its group is opened if it is folded."""
        chip = self.root.locator(f".tc-ribbon [data-stage={name}]")
        chip.wait_for(state="attached")
        if not chip.is_visible():
            self.root.locator(f".tc-group:has([data-stage={name}]) > .tc-group-head").click()
        return chip

    def open_stage(self, name: str, view: str = "Text") -> None:
        self.chip(name).click()
        expect(self.root.locator(f".tc-ribbon [data-stage={name}]")).to_have_attribute("aria-pressed", "true")
        choice = self.stage.locator(".tc-modes").get_by_text(view, exact=True)
        if choice.count():
            choice.click()

    def line(self, pane: Locator, text: str) -> Locator:
        """The first line of a pane that contains a text."""
        return pane.locator(".tc-row").filter(has_text=text).first

    def marked(self, pane: Locator) -> list[str]:
        """The visible lines of a pane that are selected, or linked to the selection."""
        rows = pane.locator(".tc-row.tc-primary .tc-line, .tc-row.tc-linked .tc-line")
        return [text.strip() for text in rows.all_inner_texts()]

    def click_a_node(self) -> None:
        """Click down the middle of the graph in the stage pane until something is selected."""
        canvas = self.stage.locator("canvas").first
        area = canvas.bounding_box()
        assert area is not None
        chosen = self.root.locator(".tc-inspector .tc-chain")
        canvas.click(position={"x": 16, "y": area["height"] - 16})
        expect(chosen).to_have_count(0)
        for step in range(1, 40):
            canvas.click(position={"x": area["width"] / 2, "y": area["height"] * step / 40})
            self.root.page.evaluate(TWO_FRAMES)
            if chosen.count():
                return
        raise AssertionError("no node in the middle of the graph")
