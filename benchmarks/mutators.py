"""Damage for untrusted files: bytes changed, and values of JSON replaced by others, all from one random seed."""

from __future__ import annotations

import copy
import random
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

ODD = (
    None, True, -1, 0, 1, 2**31, 2**62, 10**25, -(2**63), 1.5, -0.0, 1e308, float("nan"), "", "x", "\x00", "\n", "0/0",
    "-1", "9" * 30, "\U0001d518", "$\\frac{", "<b>", "javascript:alert(1)", "../../x", [], [[]], {}, {"x": []},
    "source[cell].L2",
)  # fmt: skip
#: Replacements for a value.


class TooSlowError(Exception):
    """A mutant took longer than the time limit."""


def outcome_of(
    show: Callable[[], None], refusal: type[Exception], is_clear: Callable[[Exception], bool], seconds: int
) -> str:
    """`refused`, `shown`, or the error of a mutant that should be one of these, within `seconds` of CPU time.

    `show` reads and shows the mutant. A `refusal` must be clear.
    """

    def stop(*_: object) -> None:
        raise TooSlowError(f"over {seconds} s")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        show()
    except refusal as error:
        return "refused" if is_clear(error) else f"{type(error).__name__} that is not clear: {error}"
    except Exception:  # noqa: BLE001 any error is what is looked for
        return traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "shown"


def print_outcomes(outcomes: Iterable[tuple[str, str]]) -> None:
    """Print each error once, with the name of its first mutant, then how many were refused, shown and wrong."""
    counts, errors = Counter[str](), Counter[str]()
    for name, found in outcomes:
        counts[found if found in ("refused", "shown") else "error"] += 1
        if found not in ("refused", "shown"):
            last = [line for line in found.splitlines() if line.startswith("  File")][-1:]
            key = "\n".join([*last, found.splitlines()[-1][:200]])
            errors[key] += 1
            if errors[key] == 1:
                print(f"{name}:\n{found}", flush=True)
    print(dict(counts))
    for key, count in errors.most_common():
        print(count, key)


def damage_bytes(data: bytearray, chance: random.Random) -> None:
    """Change the bytes of a file in one place."""
    place = chance.randrange(len(data))
    kind = chance.choice(("flip", "flip", "flip", "cut", "insert", "delete", "copy"))
    if kind == "flip":
        data[place] ^= 1 << chance.randrange(8)
    elif kind == "cut" and chance.random() < 0.2:
        del data[place:]
    elif kind == "insert":
        data[place:place] = chance.choice((b'"', b",", b"{", b"}", b"-", b"0", b"\x00", b"9" * 20, b"\xff", b"null"))
    elif kind == "delete":
        del data[place : place + chance.choice((1, 2, 10))]
    elif kind == "copy":
        data[place:place] = data[place : place + chance.choice((1, 20, 200))]
    if not data:
        data += b"{"


def damage_structure(plain: Any, chance: random.Random) -> None:
    """Replace, remove, repeat or nest one value of decoded JSON."""
    parent, key = chance.choice(_places(plain, chance))
    value = parent[key]
    kind = chance.choice(("odd", "odd", "odd", "delete", "twice", "other", "deep", "many"))
    if kind == "odd":
        parent[key] = copy.deepcopy(chance.choice(ODD))
    elif kind == "delete":
        del parent[key]
    elif kind == "twice" and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(value))
    elif kind == "deep":
        for _ in range(chance.choice((3, 50, 400))):
            value = [value]
        parent[key] = value
    elif kind == "many" and isinstance(value, list) and len(value) < 100:
        parent[key] = value * 50
    else:
        other, name = chance.choice(_places(plain, chance))
        if isinstance(parent, dict) and name in other if isinstance(other, dict) else name < len(other):
            parent[key] = copy.deepcopy(other[name])


def _places(plain: Any, chance: random.Random) -> list[tuple[Any, Any]]:
    """Containers and keys along a random path down, so that rare fields are as likely as those of each entity."""
    found: list[tuple[Any, Any]] = []
    node = plain
    while isinstance(node, dict | list) and node:
        key = chance.choice(list(node)) if isinstance(node, dict) else chance.randrange(len(node))
        if node is plain and chance.random() < 0.5:
            key = "artifacts" if "artifacts" in plain else key  # most of a record is in its artifacts
        found.append((node, key))
        node = node[key]
    return found
