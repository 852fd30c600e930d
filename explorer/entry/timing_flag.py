"""`--time`, a flag that may be followed by names of candidates: `--time=all`, `--time default,reduce-overhead`.

A word after it that names other things is the next argument.
"""

from __future__ import annotations

from collections.abc import Sequence

_YES = "--time=yes"
_SPELLINGS = {"--time": _YES, "--time=true": _YES, "--time=1": _YES}
_NO = ("--time=false", "--time=0", "--time=no", "--time=none")


def joined(words: Sequence[str]) -> list[str]:
    """The words of a command, with the flag and its value in one: `--time=all`, `--time=yes`."""
    found: list[str] = []
    for word in words:
        if found and found[-1] == _YES and _are_candidates(word):
            found[-1] = f"--time={word}"
        elif word.lower() not in _NO:
            found.append(_SPELLINGS.get(word.lower(), word))
    return found


def value(text: str) -> bool | str:
    """What the flag's value stands for; a wrong one is left for `parse_options` to tell."""
    return True if text == "yes" else text.strip("\"'")


def _are_candidates(word: str) -> bool:
    if word.startswith("-"):
        return False
    # It imports torch, which a command line that only shows a file does without.
    from compiler.torch_api import settings

    known = {"all", "inductor", *settings.modes(), *settings.backends()}
    return all(part in known for part in word.split(","))
