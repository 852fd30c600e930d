"""Join the front end's modules in `static/` into one script.

The modules have a form that needs no bundler: an import is `import { a, b } from "./file.js";` from a line's start to
its semicolon, an export is the word `export` (or `export default`, in the last module) at a line's start, no two
modules export the same name, and no string contains a line end. Each module follows its imports, and becomes a function
that returns its exports. Imports, the word `export`, JSDoc, whole-line comments, indentation and blank lines are
removed.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Collection
from functools import cache
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compiler.record import Record

_IMPORT = re.compile(r'^import\s[^;]*?from "\./(?P<name>[\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?!default)", re.MULTILINE)
_NAME = re.compile(r"\w+")
_COMMENT = re.compile(r"^[ \t]*//[^\n]*\n|/\*\*.*?\*/[ \t]?", re.MULTILINE | re.DOTALL)
_STYLE_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_INDENT_OR_BLANK = re.compile(r"(?<=\n)\s+")
_AFTER_MARK = re.compile(r"\s*([{};])\n")
_EXPORTED = re.compile(r"^export (?:async )?(?:function|class|const) (\w+)", re.MULTILINE)


STATIC = Path(__file__).parents[1] / "static"

#: The module of lazily loaded views, and the module that passes the core's names to it.
LATE = "late_views.js"
CORE = "core.js"
#: Modules that add a view to the lazily loaded ones, by its name: only widgets and pages that show it carry it.
ADDED = {"chain_rule": "living_view.js", "passes": "passes_view.js", "layouts": "passes_view.js"}


class FrontendError(RuntimeError):
    """Raised if two modules of the front end export the same name."""


#: Digits of base 85, which is 25 % larger than the bytes (base 64: 33 %). They need no escape in a quoted string, and
#: do not include `<`, which could start a tag in a page.
DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~"
UNPACK = Template("""\
const digits = "$digits";
const text = "$packed";
const packed = new DataView(new ArrayBuffer((text.length / 5) * 4));
for (let at = 0; at < text.length / 5; at++) {
  const group = [...text.slice(5 * at, 5 * at + 5)];
  packed.setUint32(4 * at, group.reduce((sum, digit) => 85 * sum + digits.indexOf(digit), 0));
}
const stream = new Blob([packed.buffer.slice(0, $size)]).stream().pipeThrough(new DecompressionStream("deflate"));
const code = await new Response(stream).text();
""")
AS_MODULE = """\
const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
const { default: made } = await import(address);
URL.revokeObjectURL(address);
export default made;
"""
#: A script element, because the page's policy allows this script by its hash, but no URL.
AS_ELEMENT = """\
document.head.append(Object.assign(document.createElement("script"), { type: "module", textContent: code }));
"""


@cache
def widget_module() -> str:
    """The front end as the ES module for anywidget; its default export makes `initialize` and `render`.

    It is sent with every widget, so it is compressed, and starts with a few lines that unpack it.
    """
    return _unpacking_script(join_modules("widget.js")) + AS_MODULE


@cache
def predict_module() -> str:
    """The form of predictions as the ES module for its anywidget."""
    return join_modules("predict_widget.js")


@cache
def predict_page_script() -> str:
    """The script of a saved page of predictions."""
    return join_modules("predict_page.js")


@cache
def predict_css() -> str:
    """The style sheets of the form of predictions: the theme's colours, and its own rules."""
    return "\n".join(map(static_text, [*BASE_STYLES[:2], "predict.css", LAST_STYLE]))


@cache
def job_module() -> str:
    """The index of a job as the ES module for its anywidget."""
    return join_modules("job_widget.js")


@cache
def job_css() -> str:
    """The explorer's style sheets, and that of the index of a job."""
    return f"{css()}\n{static_text('job.css')}"


@cache
def page_script(added: tuple[str, ...] = (), entry: str = "page.js") -> str:
    """The front end's script for a saved page, with the `added` modules; `entry` opens the page."""
    return join_modules(*added, entry)


@cache
def page_loader(added: tuple[str, ...] = (), entry: str = "page.js") -> str:
    """The script in a saved page, which unpacks `page_script` and runs it."""
    return _unpacking_script(page_script(added, entry)) + AS_ELEMENT


def added_modules(record: Record, later: Collection[str] = ()) -> tuple[str, ...]:
    """The modules of `ADDED` that a record's views need, and those of stages that may be made `later`."""
    needed = (module for stage, module in ADDED.items() if stage in later or record.of_stage(stage))
    return tuple(dict.fromkeys(needed))


def _unpacking_script(script: str) -> str:
    """JavaScript that unpacks a script into the variable `code`."""
    data = zlib.compress(script.encode(), 9)
    packed = base64.b85encode(data, pad=True).decode().replace("<", ",")
    return UNPACK.substitute(digits=DIGITS, packed=packed, size=len(data))


#: The base style sheets, in cascade order; style sheets of single views follow.
BASE_STYLES = ("shared.css", "style.css", "panes.css", "text.css", "inspector.css", "surroundings.css")
#: Style sheets of other widgets and pages than the explorer's.
OWN_STYLES = ("job.css", "morph.css", "predict.css")
#: The style sheet for print and forced colours, which overrides all others.
LAST_STYLE = "media.css"


#: The style sheets of `ADDED`'s modules.
ADDED_STYLES = {"living_view.js": "chain.css", "passes_view.js": "passes.css"}


@cache
def css(added: tuple[str, ...] = tuple(ADDED_STYLES)) -> str:
    """The explorer's style sheets without comments and white space: the base ones first, the one for print last.

    Of the modules of `ADDED`, those of the `added` ones.
    """
    names = {path.name for path in STATIC.iterdir() if path.name.endswith(".css")}
    absent = [sheet for module, sheet in ADDED_STYLES.items() if module not in added]
    views = sorted(names.difference(BASE_STYLES, OWN_STYLES, absent, [LAST_STYLE]))
    joined = "\n".join(map(static_text, [*BASE_STYLES, *views, LAST_STYLE]))
    return _AFTER_MARK.sub(r"\1", _INDENT_OR_BLANK.sub("", _STYLE_COMMENT.sub("", joined)))


def static_text(name: str) -> str:
    return STATIC.joinpath(name).read_text(encoding="utf-8")


def join_modules(*entries: str) -> str:
    """Join modules and their imports into one script. Raises FrontendError if two export the same name."""
    *needed, entry = in_order(*entries)
    sources = {name: static_text(name) for name in (*needed, entry)}
    _check_names(sources)
    shared = f"Object.assign(CORE, {{ {', '.join(_of_core())} }});\n" if CORE in needed else ""
    return "".join(_as_function(sources[name]) for name in needed) + shared + _strip_module(sources[entry])


@cache
def late_module(added: tuple[str, ...] = ()) -> str:
    """The lazily loaded views as one module; its default export takes the core's names and returns the views."""
    late = [name for name in in_order(LATE, *added) if name not in in_order("widget.js")]
    body = "".join(_as_function(static_text(name)) for name in late)
    return f"export default ({{ {', '.join(_of_core())} }}) => {{\n{body}return LATE_VIEWS;\n}};\n"


def _of_core() -> list[str]:
    """The names that lazily loaded modules import from the core."""
    core = set(in_order("widget.js"))
    late = [static_text(name) for name in in_order(LATE, *ADDED.values()) if name not in core]
    found = (match for text in late for match in _IMPORT.finditer(text) if match["name"] in core)
    return sorted({name for match in found for name in _NAME.findall(match[0].partition("{")[2].partition("}")[0])})


def in_order(*entries: str) -> list[str]:
    """The files of modules and all their imports, in dependency order."""
    order: list[str] = []

    def visit(name: str) -> None:
        if name in order:
            return
        for match in _IMPORT.finditer(static_text(name)):
            visit(match["name"])
        order.append(name)

    for entry in entries:
        visit(entry)
    return order


def _strip_module(text: str) -> str:
    return _INDENT_OR_BLANK.sub("", _EXPORT.sub("", _COMMENT.sub("", _IMPORT.sub("", text)))).lstrip()


def _as_function(text: str) -> str:
    exported = ", ".join(_EXPORTED.findall(text))
    return f"const {{ {exported} }} = (() => {{\n{_strip_module(text)}return {{ {exported} }};\n}})();\n"


def _check_names(sources: dict[str, str]) -> None:
    owner: dict[str, str] = {}
    for module, text in sources.items():
        for name in _EXPORTED.findall(text):
            if name in owner:
                raise FrontendError(f"{name!r} is exported by both {owner[name]} and {module}: rename one")
            owner[name] = module
