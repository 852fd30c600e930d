"""`--check`, a flag that may be followed by one word: `--check kernels`. Any other word is the next argument."""

from __future__ import annotations

from collections.abc import Sequence

KERNELS = "kernels"
_YES = "--check=yes"
_SPELLINGS = {"--check": _YES, "--check=true": _YES, "--check=1": _YES}
_NO = ("--check=false", "--check=0", "--check=no", "--check=none")


def joined(words: Sequence[str]) -> list[str]:
    """The words of a command, with the flag and its value in one: `--check=kernels`, `--check=yes`."""
    found: list[str] = []
    for word in words:
        if word == KERNELS and found and found[-1] == _YES:
            found[-1] = f"--check={KERNELS}"
        elif word.lower() not in _NO:
            found.append(_SPELLINGS.get(word.lower(), word))
    return found


def value(text: str) -> bool | str:
    """What the flag's value stands for; a wrong one is left for `parse_options` to tell."""
    return True if text == "yes" else text
