"""Explain PyTorch's operators and functions by its own documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_PAGES = "https://docs.pytorch.org/docs/stable"
_ROLE = re.compile(r":[\w:]+:`~?([^`<]*?)(?:\s*<[^`>]*>)?`")
_FORMULA = re.compile(r":math:`[^`]*\\[^`]*`")
_QUOTED = re.compile(r"``([^`]*)``|`([^`<]+?)(?:\s*<[^`>]*>)?`_{0,2}")
_SIGNATURE = re.compile(r"^[\w.]+\(.*\)(\s*->.*)?$", re.DOTALL)


def from_torch(token: str) -> tuple[str, str, str] | None:
    """Name, first sentence and page for `aten.erfinv.default` or `torch.erfinv`; None if torch has no documentation.

    A trailing underscore of an operator's name, which marks an in-place operation, is ignored.
    """
    owner, _, rest = token.removeprefix("torch.ops.").partition(".")
    if owner in ("aten", "prims"):
        wanted = rest.partition(".")[0].rstrip("_")
    elif owner == "torch":
        wanted = rest.rpartition(".")[2]
    else:
        return None
    for name, function, page in _documented_functions(wanted) if wanted and not wanted.startswith("_") else ():
        if sentence := first_sentence(function.__doc__ or ""):
            return name, sentence, page
    return None


def _documented_functions(name: str) -> Iterator[tuple[str, Any, str]]:
    """Yield torch's public functions with this name, as (full name, function, documentation page)."""
    import torch

    for owner, place in (
        (torch, "torch"),
        (torch.nn.functional, "torch.nn.functional"),
        (torch.Tensor, "torch.Tensor"),
    ):
        function = getattr(owner, name, None)
        if callable(function) and not isinstance(function, type):
            yield f"{place}.{name}", function, f"{_PAGES}/generated/{place}.{name}.html"
    for owner, place in ((torch.special, "special"), (torch.linalg, "linalg"), (torch.fft, "fft")):
        bare = name.removeprefix(f"{place}_")
        function = getattr(owner, bare, None) if bare != name or place == "special" else None
        if callable(function):
            page = "special.html#torch.special" if place == "special" else f"generated/torch.{place}"
            yield f"torch.{place}.{bare}", function, f"{_PAGES}/{page}.{bare}{'' if place == 'special' else '.html'}"


def first_sentence(doc: str) -> str:
    """The first sentence of a docstring in reStructuredText, as plain text; "" if there is none."""
    for paragraph in re.split(r"\n\s*\n", doc.strip()):
        text = " ".join(paragraph.split())
        if text and not _SIGNATURE.match(text) and not text.startswith((".. ", "See ", "Alias", "Args")):
            plain = _QUOTED.sub(lambda found: found[1] or found[2] or "", _ROLE.sub(r"\1", _FORMULA.sub("…", text)))
            return re.split(r"(?<=[.:])\s", plain, maxsplit=1)[0].rstrip(".:")
    return ""
