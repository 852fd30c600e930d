"""The page of a job: index, filter, a compilation and back, by keyboard; also for axe-core."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from compiler.logs.events import Log
from compiler.logs.job import Job
from explorer.run.job_page import page_of

HEAD = "V0101 00:00:{:02}.000000 1 torch/_dynamo/convert_frame.py:1] "
GRAPH = "class GraphModule(torch.nn.Module):\n\t    def forward(self, L_x_: 'f32[2][1]cpu'):\n\t        return (L_x_,)"


def log() -> Log:
    """A log of 200 compilations of 40 functions, each with a graph."""
    lines = [HEAD.format(0) + '{"str": ["/code/train.py", 1]}']
    for number in range(200):
        at, own = HEAD.format(number % 60), f'"frame_id": {number}, "frame_compile_id": 0, "attempt": 0'
        stack = f'[{{"line": {number % 40}, "name": "step_{number % 40}", "filename": 1}}]'
        lines += [
            f'{at}{{"dynamo_start": {{"stack": {stack}}}, {own}}}',
            f'{at}{{"dynamo_output_graph": {{}}, {own}}}\n\t{GRAPH}',
            f'{at}{{"compilation_metrics": {{"co_name": "step_{number % 40}", "co_filename": "/code/train.py", '
            f'"co_firstlineno": {number % 40}, "duration_us": {1000 * (number + 1)}}}, {own}}}',
        ]
    return Log(("train.log",), ("\n".join(lines).encode() + b"\n",))


def test_index_opens_compilations_by_keyboard(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "job.html"
    path.write_text(page_of(Job.of_logs("train", (log(),))).html)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    expect(page.get_by_role("row")).to_have_count(61)
    expect(page.get_by_role("button", name="140 more")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("step_39")
    expect(page.get_by_role("status").get_by_text("5 compilations of 200")).to_be_visible()
    first = page.get_by_role("button", name="199/0", exact=True)
    first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("navigation", name="Job")).to_contain_text("compilation 199/0")
    expect(page.get_by_role("grid").get_by_text("L_x_").first).to_be_visible()
    page.go_back()
    expect(first).to_be_focused()
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="By code location").click()
    expect(page.get_by_text("/code/train.py")).to_be_visible()
    page.evaluate("location.hash = '0/0'")
    expect(page.get_by_text("tcompile report train --only 0/0 -o one.html")).to_be_visible()
    assert errors == []
