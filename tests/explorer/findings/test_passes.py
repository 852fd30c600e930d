"""Views of Triton's passes and layouts: a list with diffs, and grids of the recorded bases."""

from __future__ import annotations

from compiler.record import Artifact, Entity, Record
from compiler.record.options import Options
from explorer.findings import views
from explorer.run.frontend import added_modules

PASS = {
    "pipeline": "ttgir", "argument": "cse", "part": "", "removed": 3, "added": 1, "operations": "tt.load -2",
    "words": "computes equal values once", "line": 4, "last": 6, "failed": False,
}  # fmt: skip
LAYOUT = {
    "layout": "#ttg.blocked<{}>", "shape": [4], "bases": {"register": [[1]], "lane": [[2]], "warp": [], "block": []},
    "bits": 32, "types": ["tensor<4xf32>"], "values": ["x (line 1)"], "tensors": 1, "words": ["1 warp"], "problem": "",
    "line": 1,
}  # fmt: skip


def record() -> Record:
    passes = Artifact("passes[k]", "passes", "k", "mlir", "a\n" * 8, entities=(Entity("p.P1", "pass", "CSE", PASS),),
                      attrs={"notes": ["2 passes ran"], "idle": ["sccp"]})  # fmt: skip
    layouts = Artifact("layouts[k]", "layouts", "k", "text", "a\n", entities=(Entity("l.T1", "layout", "#b", LAYOUT),))
    return Record("f", Options(), artifacts=(passes, layouts))


def test_views_show_each_pass_and_each_layout() -> None:
    passes, layouts = views(record())
    kinds = [part["part"] for part in passes.data["parts"]]
    assert kinds == ["items", "table", "fold", "fold"]
    assert passes.data["parts"][-1]["parts"][0]["source"] == ("passes[k]", 5, 6)
    chart = layouts.data["parts"][0]["parts"][-1]
    assert (chart["kind"], chart["data"]["bases"]) == ("layout", LAYOUT["bases"])


def test_the_widget_gets_views_of_stages_made_later() -> None:
    assert added_modules(record()) == ("passes_view.js",)
    assert added_modules(Record("f", Options())) == ()
    assert added_modules(Record("f", Options()), ("passes",)) == ("passes_view.js",)
