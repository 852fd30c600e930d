"""FX graphs and kernels as torch prints them: made easier to read, and read back. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

RESUME_PREFIX = "torch_dynamo_resume_in_"
"""Start of the name of a function that TorchDynamo generates for the rest of a function after a graph break."""
SIGNATURE_WIDTH = 120
_PARAMETER = re.compile(r"\w+")
_PARTS = re.compile(r'(?:[^,"]|"[^"]*")+')
"""Matches the parts between commas; commas in a parameter's type ("f32[4, 16][16, 1]cpu") do not separate parts."""
_UNKNOWN_PLACE = "# No stacktrace found for following nodes"
_RELEASES = re.compile(r";  (?:\w+ = )+None\b")
_TEMPORARY = re.compile(r"tmp\d+ = ")
_INDEX = re.compile(r"\[['\"]?([^'\"\]]+)['\"]?\]")
ASSIGNED = re.compile(r'(?:^\s+|;  )(\w+)(?:(?:: "[^"]*")? = |: "[^"]*",$)')
"""Matches the names that a line of a printed graph assigns or declares."""


def readable_lines(lines: list[str], renamed: Mapping[str, str], opening: str) -> Iterator[str]:
    """Lines of a printed graph without the deletion of values; long signatures have one parameter per line.

    `renamed` maps parameters to the names that the code uses. `opening` replaces the start of the signature.
    """
    aliases = {f"{name} = {target}" for target, name in renamed.items()}
    in_body = False
    for line in lines:
        bare = _RELEASES.sub("", line).rstrip()
        if line.startswith("def "):
            yield from _signature(bare, renamed, opening)
        elif bare.strip() not in aliases and _UNKNOWN_PLACE not in bare and (bare or in_body):
            in_body = True
            yield bare


def _signature(line: str, renamed: Mapping[str, str], opening: str) -> list[str]:
    """The signature of the graph's function, one parameter per line if it is long."""
    _, *parameters = (part.lstrip() for part in _PARTS.findall(line.removesuffix("):")))
    named = [_PARAMETER.sub(lambda match: renamed.get(match[0], match[0]), one, count=1) for one in parameters]
    first = [] if opening.endswith("(") else [opening]
    if len(line) <= SIGNATURE_WIDTH or not named:
        return [f"def {'' if first else opening}{', '.join([*first, *named])}):"]
    return [f"def {opening}{',' if first else ''}", *(f"    {parameter}," for parameter in named), "):"]


def dotted_path(path: str) -> str:
    """Turn `L['self'].transformer.h[0]` into `transformer.h.0`."""
    path = re.sub(r"^(L\['\w+'\]|G\['\w+'\]|L__\w+?___)\.?", "", path)
    path = _INDEX.sub(r".\1", path).replace("._modules.", ".").replace("_modules.", "")
    return path.strip(".")


def short_name(target: str) -> str:
    """The operation's name without namespace and overload: `mul` for `aten.mul.Tensor` and `operator.mul`."""
    parts = target.split(".")
    return parts[1] if len(parts) == 3 and parts[0] in ("aten", "prims") else parts[-1]


def line_key(text: str) -> str:
    """The key of a kernel's line: the temporary that it assigns, else its text.

    A temporary is assigned once; the text of its value may still change (torch._inductor.utils.DelayReplaceLine).
    """
    text = text.strip()
    temporary = _TEMPORARY.match(text)
    return temporary[0] if temporary else text


def first_block(path: str) -> str:
    """A module's path up to the first number: `h.3` of `h.3.attn.c_proj`; "" without a number."""
    found = re.match(r"(?:[^.]*[^.\d][^.]*\.)*\d+(?=\.|$)", path)
    return found[0] if found else ""
