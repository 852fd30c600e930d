"""What torch's printed guards (`dynamo_cpp_guards_str`) tell without being parsed as a whole."""

from __future__ import annotations

import re
from collections.abc import Sequence

_WRAPPER = re.compile(r"[/\\]torch[/\\]_dynamo[/\\]external_utils\.py$")
_WRAPPED = re.compile(r"source=L\['fn'\](\._modules\['module'\])?, [^\n]*?type=<class '(?:[\w<>]+\.)+(\w+)'>")
_SUBJECT = re.compile(r"tensor '(.*?)' |(?:len\()?([\w.\[\]'\"]+?)\)? (?:==|is) |___check_\w+_id\((.*), \d+\)")
_ENTRY = re.compile(r"^\s*-?\s*!?[\d/]+: ")
"""The cache entry before a reason."""
_LOCAL = re.compile(r"L\['(\w+)'\]")
_TENSOR_CHECKS = ("dispatch key", "dtype", "device", "requires_grad", "rank", "size", "stride")
"""What a guard on a tensor checks, in torch's order."""
MOST_TEXT = 4 * 2**20
"""Maximum characters of guards that are searched."""


def is_wrapper(file: str) -> bool:
    """Whether a function of this file is torch's wrapper around a module or function of torch, as `wrap_inline` is."""
    return bool(_WRAPPER.search(file))


def wrapped_name(guards: str) -> str:
    """The class of the module in torch's wrapper: `Sequential`, `DistributedDataParallel(Net)`; "" if unknown."""
    outer = inner = ""
    for found in _WRAPPED.finditer(guards, 0, MOST_TEXT):
        if found[1]:
            inner = inner or found[2]
        else:
            outer = outer or found[2]
    return f"{outer}({inner})" if outer and inner else outer


def telling_reason(reasons: Sequence[str], guards: str) -> int:
    """The index of the reason that tells most: the one of the cache entry whose guards held longest.

    Torch gives the first failed guard of each entry, latest entry first, and checks the guards in the order in which
    they are printed. On a tie, it is the latest entry's.
    """
    if len(reasons) < 2:
        return 0
    text = _LOCAL.sub(r"\1", guards[:MOST_TEXT])
    places = [_place(_ENTRY.sub("", reason), text) for reason in reasons]
    return places.index(max(places))


def telling_first(reasons: Sequence[str], guards: str) -> tuple[str, ...]:
    """The reasons, the one that tells most first."""
    first = telling_reason(reasons, guards)
    return (*reasons[first : first + 1], *reasons[:first], *reasons[first + 1 :])


def _place(reason: str, guards: str) -> tuple[int, int]:
    """The place of a failed guard among all guards, and in the check of its tensor."""
    if reason.startswith(("GLOBAL_STATE", "___check_global_state")):
        return 0, 0
    found = _SUBJECT.match(reason)
    subject = _LOCAL.sub(r"\1", next(filter(None, found.groups()))) if found else ""
    place = guards.find(f"source={subject},") if subject else -1
    part = next((number for number, name in enumerate(_TENSOR_CHECKS) if f"' {name}" in reason), 0)
    return 1 + (place if place >= 0 else len(guards)), part
