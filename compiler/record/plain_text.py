"""Plain-text helpers: counts, ranks, bytes, one line, file names, suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import pairwise


def pluralize(count: float, noun: str, plural: str = "") -> str:
    """A count with its noun: `1 kernel`, `3 kernels`, or `2 launches` if the plural is given."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def rank_words(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 2-7`."""
    ordered = sorted(ranks)
    starts = [ordered[0], *(after for before, after in pairwise(ordered) if after != before + 1)]
    ends = [*(before for before, after in pairwise(ordered) if after != before + 1), ordered[-1]]
    spans = (str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
    return f"rank{'s' if len(ordered) > 1 else ''} {', '.join(spans)}"


def first_and_last(names: Sequence[str]) -> str:
    """Names in one line: `a, b, c`; of more than three the first and the last, `layers.1 … layers.31`."""
    return f"{names[0]} … {names[-1]}" if len(names) > 3 else ", ".join(names)


def one_line(text: str) -> str:
    """The text with each run of whitespace replaced by one space."""
    return " ".join(text.split())


def file_name(path: str) -> str:
    """The last part of a path of any system: `model.py`."""
    return path.replace("\\", "/").rpartition("/")[2]


def size_text(count: float) -> str:
    """Format a number of bytes: `512 B`, `2.0 KiB`, `3.4 MiB`."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def did_you_mean(name: str, known: Iterable[str], before: str = "; ", after: str = "") -> str:
    """A suggestion of the known name nearest to a wrong one, `; did you mean 'x'?`; "" if none is near."""
    near = get_close_matches(name, list(known), n=1)
    return f"{before}did you mean {near[0]!r}?{after}" if near else ""
