"""Sphinx's configuration: `make docs` builds the pages into docs/_build/html."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS)]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

project = "tcompile"
author = PROJECT["authors"][0]["name"]
copyright = author  # noqa: A001
release = version = PROJECT["version"]
html_title = f"tcompile {version}"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx_design"]
exclude_patterns = ["_build", "_generated", "examples", "skills"]
suppress_warnings = ["mystnb.unknown_mime_type", "config.cache"]

nb_execution_mode = "off"  # notebooks are shown with the outputs that they are stored with
nb_merge_streams = True
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

default_role = "code"  # docstrings have Markdown's single backquotes
add_module_names = False
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
copybutton_prompt_text = ">>> "

html_theme = "pydata_sphinx_theme"
html_theme_options = {
    "github_url": PROJECT["urls"]["Source"],
    "show_prev_next": False,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_static_path = ["_static"]
html_css_files = ["explore.css"]
html_extra_path = ["_generated"]
html_show_sourcelink = False


def _copy_notebooks() -> None:
    """Sphinx reads only what is below docs/. Equal files keep their time, so that a second build is quick."""
    for path in sorted((ROOT / "notebooks").rglob("*")):
        copy = DOCS / "notebooks" / path.relative_to(ROOT / "notebooks")
        is_source = path.is_file() and (path.suffix == ".ipynb" or ROOT / "notebooks/data" in path.parents)
        if is_source and not (copy.exists() and copy.stat().st_mtime >= path.stat().st_mtime):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)


def _fix_links(_app: Any, name: str, content: list[str]) -> None:
    """Links to the notebooks are right in the repository; among these pages the notebooks lie in docs/."""
    to_docs = "../" * name.count("/")
    content[0] = content[0].replace(f"]({to_docs}../notebooks/", f"]({to_docs}notebooks/")
    if name.startswith("notebooks/"):
        content[0] = content[0].replace("](../docs/", "](../")


def setup(app: Any) -> None:
    """Called by Sphinx: explore the examples, whose pages the concept pages show."""
    import explored_pages

    app.connect("source-read", _fix_links)
    app.connect("builder-inited", lambda _: explored_pages.write_pages(DOCS / "_generated/explored"))


_copy_notebooks()
(DOCS / "_generated").mkdir(exist_ok=True)
