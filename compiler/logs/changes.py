"""Differences between two logged texts, such as graphs, guards, settings or kernels, and words for them."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise

from compiler.logs.compilations import INSTALLED
from compiler.logs.events import Event, read_object
from compiler.logs.fingerprints import (
    CHANGED,
    SETTING,
    TYPED,
    Compiled,
    Key,
    Line,
    Place,
    RankFacts,
    bytes_of,
    canonical,
    graph_lines,
    lines_of,
)

LINES_SHOWN = 3
CONFIGURATIONS = "kernel configurations"
_PER_PROCESS = {
    "job_id", "pgo_extra_read_key", "pgo_extra_write_key", "debug_dir_root", "cpp_cache_precompile_headers",
    "compile_threads", "worker_start_method",
}  # fmt: skip
"""Settings that may differ between processes and change no code."""
_NUMBER = re.compile(r"(\d+)")
_SLICE = re.compile(r"slice\((\d+), (\d+), None\)")
_TARGET = re.compile(r"(?:aten|prims|torch)\.(\w+)(?:\.\w+)?\(")
_KERNEL = re.compile(r"\b\w+(?= = async_compile\.(?!wait))|extern_kernels\.\w+(?=\()")


def merged_keys(a: list[Key], b: list[Key]) -> list[Key]:
    """The keys of both ranks in order of compilation."""
    merged: list[Key] = []
    for _, start, end, first, last in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        merged += (key for key in (*a[start:end], *b[first:last]) if key not in merged)
    return list(dict.fromkeys(merged))


def changed_values(one: Mapping[str, str], other: Mapping[str, str]) -> list[tuple[str, str, str]]:
    names = dict.fromkeys((*one, *other))
    return [(name, one.get(name, ""), other.get(name, "")) for name in names if one.get(name) != other.get(name)]


def shared_changes(one: Mapping[str, str], other: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Changes of values that both sides have: a log without a value says nothing about it."""
    return [change for change in changed_values(one, other) if change[1] and change[2]]


def settings_in(compiled: Compiled, sources: set[str]) -> dict[str, str]:
    """The settings of a compilation from these sources, with those that were changed for its graph alone."""
    logged = ((source, text) for source, text in compiled.configs.items() if source in sources)
    ordered = sorted(logged, key=lambda config: config[0] == CHANGED)
    return {name: value for prefix, text in ordered for name, value in _settings_of(prefix, text).items()}


@lru_cache(maxsize=64)
def _settings_of(prefix: str, text: str) -> Mapping[str, str]:
    """Settings by name from a configuration as it was logged, without those that may differ between processes."""
    if prefix == CHANGED:
        found = {f"{module}.{name}": _as_json(value) for module, name, value in SETTING.findall(text)}
    else:
        try:
            values = json.loads(text)
        except ValueError:
            return {}
        items = values.items() if isinstance(values, dict) else ()
        found = {f"{prefix}.{name}": _json_in_order(value) for name, value in items}
    return {name: canonical(value) for name, value in found.items() if name.partition(".")[2] not in _PER_PROCESS}


def _json_in_order(value: object) -> str:
    """A value in JSON; a list is sorted, as it may have been a set."""
    listed = sorted(map(str, value)) if isinstance(value, list | tuple | set) else value
    return json.dumps(listed, sort_keys=True)


def _as_json(value: str) -> str:
    """A Python literal in JSON, as other events have it; other expressions as they are."""
    try:
        return _json_in_order(ast.literal_eval(value))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return value


def value_lines(changed: Sequence[tuple[str, str, str]], which: int) -> tuple[str, ...]:
    return tuple(f"{change[0]} = {change[which] or 'unset'}" for change in changed)


def lines_of_all(events: Sequence[Event], kind: str) -> list[Line]:
    if kind == CONFIGURATIONS:
        return [line for event in events for line in _configurations(event)]
    return [line for event in events for line in lines_of(event, kind)]


def _configurations(event: Event) -> Iterator[Line]:
    """The configuration that each Triton kernel was compiled with; a kernel that is yet to be tuned has none."""
    for name, info in sorted(read_object(event.payload).items()):
        config = (info.get("best_config") or info.get("only_config")) if isinstance(info, dict) else None
        if isinstance(config, dict):
            values = ", ".join(f"{key}={config[key]}" for key in sorted(config) if not key.startswith("found_by"))
            yield Line(f"{name}: {values}", f"{name}: {values}")


def shared_configurations(left: Sequence[Line], right: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """The configurations of the kernels that both ranks have, where they differ."""
    one, other = ({line.same.partition(":")[0]: line for line in side} for side in (left, right))
    names = [name for name in one if name in other and one[name].same != other[name].same]
    return [one[name] for name in names], [other[name] for name in names]


def without_common(lines: Sequence[Line], others: Sequence[Line]) -> list[Line]:
    counts = Counter(line.same for line in others)
    left: list[Line] = []
    for line in lines:
        if counts[line.same]:
            counts[line.same] -= 1
        else:
            left.append(line)
    return left


def first_change(left: Sequence[Line], right: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """The first lines that differ, of both sides: an input that both have, then operations, then other inputs."""
    inputs = {line.text.partition(":")[0]: line for line in left if declares_input(line)}
    for line in right:
        same = inputs.get(line.text.partition(":")[0]) if declares_input(line) else None
        if same is not None and same.same != line.same:
            return [same], [line]
    operations = [[line for line in side if not declares_input(line)] for side in (left, right)]
    for one, other in (operations, (left, right)):
        matcher = SequenceMatcher(None, [line.same for line in one], [line.same for line in other], autojunk=False)
        for tag, start, end, first, last in matcher.get_opcodes():
            if tag != "equal":
                return list(one[start:end]), list(other[first:last])
    return [], []


def kernel_words(left: Sequence[Line], right: Sequence[Line], names: tuple[str, str]) -> str:
    """Which kernels only one of two ranks has; "" if their names are equal."""
    ours, theirs = ([found[0] for line in side for found in _KERNEL.finditer(line.text)] for side in (left, right))
    one = list(dict.fromkeys(name for name in ours if name not in theirs))
    other = list(dict.fromkeys(name for name in theirs if name not in ours))
    if not (one or other):
        return ""
    words = ", ".join(
        f"`{' '.join(side)}` on {name} alone" for side, name in zip((one, other), names, strict=True) if side
    )
    tuned = any(name.startswith(("triton_tem", "extern_kernels", "cpp_gemm")) for name in (*one, *other))
    return f"{words} (autotuning chose otherwise)" if tuned else words


def kernel_around(lines: Sequence[Line], changed: Sequence[Line]) -> str:
    """The name of the kernel that the first changed line belongs to, or else of the first kernel; "" without one."""
    place = lines.index(changed[0]) + 1 if changed else 0
    names = [(at, found[0]) for at, line in enumerate(lines) if (found := re.search(r"\w+_fused_\w+", line.text))]
    return next((name for at, name in reversed(names) if at < place), names[0][1] if names else "")


def place_of_kernel(name: str, compiled: Compiled) -> Place:
    """The line of the first operation of a fused kernel, by the operations in its name; unknown if none is found."""
    words = set(name.partition("fused_")[2].split("_")) - {"", "0"}
    for kind in ("inference graph", "forward graph", "backward graph", "graph"):
        for event in compiled.facts.get(kind, ()):
            for line in graph_lines(event.payload):
                target = _TARGET.search(line.text)
                if target is not None and line.place.line and words & set(target[1].split("_")):
                    return line.place
    return Place()


def declares_input(line: Line) -> bool:
    return not line.place.line and bool(re.match(r"\w+: \S", line.text)) and " = " not in line.text


def declare_input(was: Sequence[Line], now: Sequence[Line]) -> bool:
    return bool(was and now) and declares_input(was[0]) and declares_input(now[0])


def place_of_change(was: Sequence[Line], now: Sequence[Line], all_lines: Sequence[Line]) -> Place | None:
    """The code of the first changed line, of the user's code if one is; of an input, the first line that uses it."""
    changed = [line.place for line in (*now, *was) if line.place.line]
    if changed:
        users = (place for place in (*_first_place(now), *_first_place(was)) if not INSTALLED.search(place.file))
        return next(users, changed[0])
    name = next((line.text.partition(":")[0].lower() for line in (*was, *now)), "")
    uses = (
        line.place for line in all_lines if line.place.line and name and re.search(rf"\b{re.escape(name)}\b", line.text)
    )
    return next(uses, None)


def _first_place(lines: Sequence[Line]) -> tuple[Place, ...]:
    return tuple(line.place for line in lines[:1] if line.place.line)


def type_words(lines: Sequence[Line]) -> str:
    return f"`{lines[0].text.partition(': ')[2]}`"


def first_texts(lines: Sequence[Line]) -> tuple[str, ...]:
    return tuple(line.text.strip() for line in lines[:LINES_SHOWN])


def change_words(was: Sequence[Line], now: Sequence[Line], names: tuple[str, str]) -> str:
    if was and now:
        return f"`{was[0].text.strip()}` on {names[0]}, `{now[0].text.strip()}` on {names[1]}"
    line, name = (now[0], names[1]) if now else (was[0], names[0]) if was else (Line("", ""), "")
    return f"`{line.text.strip()}` on {name} alone"


def saved_bytes(compiled: Compiled) -> int:
    """Estimated bytes that the forward keeps for the backward: all inputs of the backward graph but gradients."""
    total = 0
    for event in compiled.facts.get("backward graph", ()):
        head = event.payload.partition("):\n")[0]
        total += sum(bytes_of(tensor) for name, tensor in TYPED.findall(head) if not name.startswith("tangents"))
    return total


def memory_words(a: Compiled, b: Compiled, names: tuple[str, str]) -> str:
    one, other = saved_bytes(a), saved_bytes(b)
    if one == other or not (one and other):
        return ""
    return f"memory kept for the backward (estimate: {one:,} bytes on {names[0]}, {other:,} on {names[1]})"


def count_group_names(ranks: Mapping[int, RankFacts]) -> Counter[tuple[int, str]]:
    """The number of ranks that use each group name at each place in their sequence of collectives."""
    return Counter((place, each.group) for facts in ranks.values() for place, each in enumerate(facts.collectives))


def have_same_order(keys: Mapping[Key, object], other: Mapping[Key, object]) -> bool:
    """Whether the keys that two ranks share come in the same order."""
    places = {key: place for place, key in enumerate(other)}
    return all(a < b for a, b in pairwise(places[key] for key in keys if key in places))


def lines_are_equal(one: Line, other: Line, rank: int, other_rank: int) -> bool:
    """Whether two lines are equal, or differ only by each rank's own number (`x.chunk(2)[rank]`)."""
    if one.same == other.same:
        return True
    left, right = _NUMBER.split(_part(one.same, rank)), _NUMBER.split(_part(other.same, other_rank))
    if left[::2] != right[::2]:
        return False
    pairs = zip(left[1::2], right[1::2], left[::2], strict=False)
    return all(
        a == b
        or (a == str(rank) and b == str(other_rank) and before.endswith(("[", "== ", "rank=", "rank ")))
        or (before.endswith((" - ", " + ", "== ")) and _is_own_offset(a, b, rank, other_rank))
        for a, b, before in pairs
    )


def _is_own_offset(one: str, other: str, rank: int, other_rank: int) -> bool:
    """Whether two numbers are the ranks' numbers times the same size, such as the first row of a rank's part."""
    if max(len(one), len(other)) > 18:
        return False
    return int(one) * other_rank == int(other) * rank and max(int(one), int(other)) > max(rank, other_rank)


def _part(text: str, rank: int) -> str:
    """A text in which the rank's own slice of a dimension is named by its size."""

    def own(found: re.Match[str]) -> str:
        start, stop = int(found[1]), int(found[2])
        return f"part of {stop - start}" if start == (stop - start) * rank else found[0]

    return _SLICE.sub(own, text)
