"""The front end's modules are bundled into one valid script, small enough to ship with each widget."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from explorer.run import frontend

STATIC = Path(frontend.__file__).parents[1] / "static"


def test_every_module_comes_after_those_it_imports() -> None:
    order = frontend.in_order("widget.js")
    for index, name in enumerate(order):
        needed = re.findall(r'from "\./([\w.]+)"', frontend.static_text(name).split("\n\n/**")[0])
        assert {file for file in needed if file != name} <= set(order[:index])


def test_every_module_is_in_the_widget_or_page() -> None:
    joined = {*frontend.in_order("widget.js"), *frontend.in_order("page.js", *frontend.ADDED.values())}
    joined |= {*frontend.in_order("predict_widget.js", "predict_page.js"), *frontend.in_order("morph_page.js")}
    joined |= {*frontend.in_order("job_page.js", "job_widget.js")}
    assert joined == {path.name for path in STATIC.glob("*.js")}


@pytest.mark.parametrize("entry", ["widget.js", "page.js", "predict_widget.js"])
def test_bundling_removes_imports_and_comment_blocks(entry: str) -> None:
    text = frontend.join_modules(entry)
    assert not re.search(r"^\s*import\s", text, re.MULTILINE)
    assert "/**" not in text
    assert len(re.findall(r"^export ", text, re.MULTILINE)) == (entry != "page.js")


@pytest.mark.needs("node")
@pytest.mark.parametrize(
    "script",
    [
        frontend.widget_module,
        frontend.page_loader,
        frontend.predict_module,
        frontend.predict_page_script,
        partial(frontend.late_module, tuple(frontend.ADDED.values())),
        partial(frontend.page_script, tuple(frontend.ADDED.values())),
    ],
)
def test_bundle_is_valid_javascript(script: Callable[[], str], tmp_path: Path) -> None:
    path = tmp_path / "script.mjs"
    path.write_text(script())
    subprocess.run(["node", "--check", path], check=True)


@pytest.mark.needs("node")
@pytest.mark.parametrize(
    ("packed", "script"), [(frontend.widget_module, "widget.js"), (frontend.page_loader, "page.js")]
)
def test_packed_script_unpacks_to_the_bundle(packed: Callable[[], str], script: str, tmp_path: Path) -> None:
    """Node runs the script up to its start line, which needs a browser."""
    reading, _, _ = packed().partition("const code = ")
    path = tmp_path / "read.mjs"
    path.write_text(f"{reading}process.stdout.write(await new Response(stream).text());")
    read = subprocess.run(["node", path], check=True, capture_output=True, text=True).stdout
    assert read == frontend.join_modules(script)


def test_lazy_modules_import_only_shared_core_names() -> None:
    """A late module imports only other late modules, or names that the core exports to them."""
    core = frontend.in_order("widget.js")
    given = re.search(r"Object\.assign\(CORE, \{ (.*?) \}\)", frontend.join_modules("widget.js"))
    assert given is not None
    for name in set(frontend.in_order(frontend.LATE, *frontend.ADDED.values())).difference(core):
        for names, module in re.findall(
            r'^import \{([^}]*)\} from "\./([\w.]+)"', frontend.static_text(name), re.MULTILINE
        ):
            wanted = set(re.findall(r"\w+", names))
            assert module not in core or wanted <= set(given[1].split(", "))


def test_widget_module_is_small() -> None:
    assert len(frontend.widget_module()) < 100_000


def test_duplicate_exports_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "a.js": 'import { twice } from "./b.js";\n\nexport const size = twice(1);\n',
        "b.js": "export const size = 2;\nexport function twice(n) {\n  return n * size;\n}\n",
    }
    monkeypatch.setattr(frontend, "static_text", files.__getitem__)
    with pytest.raises(frontend.FrontendError, match=r"'size' is exported by both b\.js and a\.js"):
        frontend.join_modules("a.js")


def test_bundling_keeps_unexported_names_private(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "a.js": '// Uses b.\n\nimport {\n  one,\n  two,\n} from "./b.js";\n\nexport default () => one + two;\n',
        "b.js": "/**\n * Text.\n */\nexport const one = 1; // stays\nexport async function two() {\n  return 2;\n}\n",
    }
    monkeypatch.setattr(frontend, "static_text", files.__getitem__)
    assert frontend.join_modules("a.js") == (
        "const { one, two } = (() => {\nconst one = 1; // stays\nasync function two() {\nreturn 2;\n}\n"
        "return { one, two };\n})();\nexport default () => one + two;\n"
    )


NODE_TESTS = STATIC.parents[1] / "tests" / "explorer" / "static"


@pytest.mark.needs("node")
def test_javascript_unit_tests() -> None:
    """The tests of single modules, in JavaScript."""
    files = sorted(NODE_TESTS.glob("*.test.mjs"))
    assert files
    done = subprocess.run(["node", "--test", *files], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
