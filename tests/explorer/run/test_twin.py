"""The static view: only HTML that GitHub, nbviewer and JupyterLab keep, no HTML from user code, a bounded size."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from compiler.record import Artifact, Entity, Measurement, Problem, Record, Suggestion
from compiler.record.options import Options
from explorer.run import static_view as twin_module
from explorer.run.static_view import twin
from tests.explorer.explored import broken_record, mlp_record
from tests.explorer.findings import fused_record
from tests.explorer.findings.timed_record import candidates
from tests.explorer.golden import assert_golden
from tests.explorer.small_record import small_record

KEPT_TAGS = {
    "b",
    "br",
    "code",
    "details",
    "div",
    "i",
    "img",
    "pre",
    "span",
    "summary",
    "table",
    "tbody",
    "td",
    "th",
    "thead",
    "tr",
}
KEPT_ATTRIBUTES = {"class", "style", "title"}
KEPT_MORE = {"details": {"open"}, "img": {"src", "alt"}}
KEPT_PROPERTIES = {
    "background",
    "background-color",
    "border",
    "border-bottom",
    "border-collapse",
    "border-left",
    "border-radius",
    "box-sizing",
    "cursor",
    "display",
    "font-size",
    "line-height",
    "margin",
    "max-height",
    "max-width",
    "opacity",
    "overflow",
    "padding",
    "text-align",
    "vertical-align",
    "white-space",
}
HOSTILE = "</pre></details><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;"


class Reader(HTMLParser):
    """The tags, attributes and text of some HTML; raises if tags do not close in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.styles: list[str] = []
        self.images: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        names = {name for name, _ in attrs}
        assert names <= KEPT_ATTRIBUTES | KEPT_MORE.get(tag, set()), (tag, names)
        found = dict(attrs)
        self.styles += [found["style"] or ""] if "style" in found else []
        self.images += [found["src"] or ""] if "src" in found else []
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def hostile_record() -> Record:
    """Every string that user code can influence tries to be HTML."""
    record = small_record()
    code = f'def f(x):\n    """{HOSTILE}"""\n    return x  # {HOSTILE}\n'
    found = Entity("source[cell].L3", "line", HOSTILE)
    source = Artifact("source[cell]", "source", HOSTILE, "python", code, "", {3: (found.id,)}, (found,))
    stage = replace(record["forward"], text=HOSTILE, title=HOSTILE, graph=HOSTILE, stage=HOSTILE)
    captured = replace(record["captured"], title=HOSTILE, graph=HOSTILE)
    span = replace(record.breaks[0].chain[1], file=HOSTILE, code=HOSTILE, function=HOSTILE)
    helps = Suggestion(HOSTILE, HOSTILE, 1, 1, HOSTILE, (HOSTILE,))
    broken = replace(
        record.breaks[0],
        file=HOSTILE,
        code=HOSTILE,
        what=HOSTILE,
        chain=(span,),
        explanation=HOSTILE,
        hints=(HOSTILE,),
        link=HOSTILE,
        suggestions=(helps,),
    )
    kernel = replace(record.kernels[0], name=HOSTILE, category=HOSTILE)
    failure = replace(record.recompiles[0].failures[0], words=HOSTILE)
    again = replace(record.recompiles[0], function=HOSTILE, reasons=(HOSTILE,), failures=(failure,), advice=HOSTILE)
    return record.with_fields(
        title=HOSTILE,
        options=Options(backend=HOSTILE),
        artifacts=(source, captured, stage),
        breaks=(broken,),
        kernels=(kernel,),
        recompiles=(again,),
        measurement=Measurement("cpu", HOSTILE, 1, HOSTILE, (HOSTILE,), HOSTILE),
        candidates=tuple(replace(found, name=HOSTILE, notes=(HOSTILE,)) for found in candidates()),
        problems=(Problem(HOSTILE, HOSTILE, HOSTILE, HOSTILE),),
    )


@pytest.mark.parametrize(
    "make", [small_record, mlp_record, broken_record, hostile_record, lambda: Record("", Options())]
)
def test_only_sanitizer_safe_html_is_used(make: object) -> None:
    read = Reader(twin(make()))  # type: ignore[operator]
    assert set(read.tags) <= KEPT_TAGS
    properties = {declaration.split(":")[0].strip() for style in read.styles for declaration in style.split(";")}
    assert properties <= KEPT_PROPERTIES
    assert all(source.startswith("data:image/svg+xml;base64,") for source in read.images)


def test_static_view_is_one_marked_element() -> None:
    html = twin(small_record())
    assert html.startswith('<div class="tcompile-twin" title="tcompile-static"')
    assert html.endswith("</div>")


def test_user_strings_are_escaped() -> None:
    html = twin(hostile_record())
    assert "<script" not in html
    assert "onerror" not in re.sub(r"&lt;.*?&gt;", "", html)
    assert Reader(html).text.count("<script>alert(1)</script>") >= 10


def test_golden_static_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # without `dot`: its drawing depends on its version
    without_picture = small_record().with_fields(candidates=())  # matplotlib's drawing depends on its version
    assert_golden("twin.html", twin(without_picture))


def test_missing_graphviz_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    read = Reader(twin(mlp_record()))
    assert read.images == []
    assert "where Graphviz (`dot`) is installed" in read.text


@pytest.mark.needs("dot")
def test_the_captured_graph_is_drawn() -> None:
    (image,) = Reader(twin(mlp_record())).images
    svg = base64.b64decode(image.partition(",")[2]).decode()
    words = "".join(ElementTree.fromstring(svg).itertext())
    assert words.count("linear") == 3
    assert words.count("dropout") == 2


@pytest.mark.needs("dot")
def test_oversized_picture_is_omitted_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twin_module, "PICTURE_BYTES", 100)
    read = Reader(twin(mlp_record()))
    assert read.images == []
    assert "run.drawing('captured[0/0]') draws it" in read.text


def test_every_stage_has_its_text() -> None:
    record = mlp_record()
    read = Reader(twin(record))
    for artifact in record.artifacts:
        assert artifact.title in read.text
    for line in record["forward"].text.splitlines()[1:]:
        assert line in read.text


def test_lines_are_marked_with_their_graph() -> None:
    text = Reader(twin(mlp_record())).text
    assert re.search(r"\d+ 0/0 +x = self\.hidden\(x\)", text)
    assert re.search(r"\d+ +def forward\(self", text)


def test_calling_line_is_in_no_graph() -> None:
    text = Reader(twin(mlp_record())).text
    assert re.search(r"\d+ 0/0 +return self.head\(x\)", text)
    assert not re.search(r"\d+ 0/0[^\n]*exploration.compile", text)


@pytest.mark.needs("dot")
def test_drawing_has_no_background_and_a_dark_style() -> None:
    (image,) = Reader(twin(mlp_record())).images
    svg = base64.b64decode(image.partition(",")[2]).decode()
    assert 'fill="white"' not in svg
    assert "prefers-color-scheme:dark" in svg
    assert "background:#ffffff" not in twin(mlp_record())


def test_graph_break_line_is_marked_and_explained() -> None:
    record = broken_record()
    text = Reader(twin(record)).text
    assert re.search(r"\d+ break +torch\._dynamo\.graph_break\(\)", text)
    assert " ".join(record.breaks[0].explanation.split()) in text
    assert re.search(r"\d+ 0/0 +y = x\.relu\(\)", text)
    assert re.search(r"\d+ 1/0 +return y\.sin\(\) \+ 1", text)


def test_break_card_has_cost_and_advice() -> None:
    html = twin(small_record())
    card = html[html.index("<b>graph breaks</b>") :]
    for words in (
        "<b>cell:2</b> <code>print(x)</code> writes to the terminal, which a graph can't.",
        "called in cell:9  show(x)",
        "2 ops in the graph before, 3 ops after; 1 tensor (128 B) handed back to Python.",
        "<b>Change</b> (machine-applicable): Print from inside the graph.",
        "cell, line 2",
        ">torch._higher_order_ops.print(x)</pre>",
        "<b>Or</b> (maybe): Print &lt;later&gt;. It comes &lt;late&gt;.",
        "Dynamo does not know how to trace builtin operator <code>print</code>",
        "GB0059 https://example.org/gb0059",
    ):
        assert words in card, words


def test_recompile_card_lists_every_failed_guard() -> None:
    text = Reader(twin(small_record())).text
    assert "0/1 f: size of x in dimension 0 was 8, is now 9" in text
    assert "`n` was the int 1, is now the int 2" in text
    assert "call 2, in cell:12  f(y)" in text
    assert "torch._dynamo.mark_dynamic(x, 0)" in text


def test_a_break_that_repeats_has_one_card() -> None:
    record = small_record()
    text = Reader(twin(record.with_fields(breaks=record.breaks * 3))).text
    assert "3 graph breaks" in text
    assert text.count("which a graph can't. (3 times)") == 1


def test_problems_say_what_to_do() -> None:
    text = Reader(twin(small_record())).text
    assert "this machine has no Triton" in text
    assert "install triton" in text


def test_long_texts_are_truncated_with_a_hint() -> None:
    record = small_record()
    long = replace(record["forward"], text="x = 1\n" * 100_000)
    text = Reader(twin(record.with_fields(artifacts=(*record.artifacts[:2], long)))).text
    assert re.search(r"[\d,]+ of 100,000 lines shown; all of them: print\(run\['forward\[0/0\]'\]\)", text)


def test_long_source_shows_the_computing_lines() -> None:
    text = "".join(f"x{number} = 1\n" for number in range(1, 2001))
    found = Entity("source[m.py].L1500", "line", "x1500 = 1")
    source = Artifact("source[m.py]", "source", "m.py", "python", text, "", {1500: (found.id,)}, (found,))
    read = Reader(twin(small_record().with_fields(artifacts=(source,))))
    assert "x1500 = 1" in read.text
    assert "x1 = 1" not in read.text
    assert "of 2,000 lines shown" in read.text


def test_static_view_of_an_mlp_is_small() -> None:
    assert len(twin(mlp_record()).encode()) <= 150_000


def test_size_stays_bounded_for_a_very_big_record() -> None:
    """Uses as many graphs and as much text as a big model with graph breaks."""
    record = mlp_record()
    copies = tuple(
        replace(artifact, id=f"{artifact.stage}[{copy}/0]", graph=f"{copy}/0", text=artifact.text * 20)
        for copy in range(60)
        for artifact in record.artifacts
    )
    big = record.with_fields(artifacts=copies, breaks=small_record().breaks * 500, kernels=record.kernels * 100)
    assert len(twin(big).encode()) <= 400_000


def test_machine_code_is_named_and_left_out() -> None:
    *_, record = fused_record.growing(fused_record.fused_record())
    html = twin(record)
    assert "2 kernels compiled to machine code: print(run['ptx']), print(run['sass'])" in html
    assert "ld.global" not in html
