"""The code that our own backend writes, as artifacts: kernels in C++ or Triton, and the function that calls them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.backend.cpp.emit import Code, Function
from compiler.backend.ir import Extern, Kernel
from compiler.backend.triton.emit import TritonCode, TritonFunction
from compiler.backend_record.program import Made, category_of
from compiler.record import Artifact, Entity
from compiler.record import Kernel as KernelFacts

_OPENING = re.compile(r'(?:extern "C" int |def )(\w+)\(')
_COMMENT = re.compile(r"\s*(?://|#(?!pragma|include|define))")
_ASSIGNED = re.compile(r"\s*(\w+) = ")
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Written:
    """The artifact of one text, and its kernels or calls as facts."""

    artifact: Artifact
    kernels: tuple[KernelFacts, ...]


def kernels_artifact(
    code: Code | TritonCode,
    launches: Mapping[str, Mapping[str, Any]],
    made: Made,
    *,
    artifact_id: str,
    title: str,
    graph: str,
) -> Written:
    """Kernels as an artifact, linked to the loops of the last pass. `launches` has by function what it takes to compile
    and launch one (see `compiler.backend_record.launch`).
    """
    language = "cpp" if isinstance(code, Code) else "triton"
    text = code.text.rstrip("\n") + "\n"
    rows = text.split("\n")
    spans = dict(_spans(code, rows))
    kernels = {kernel.name: kernel for kernel in made.program.kernels}
    entities: list[Entity] = []
    lines: dict[int, tuple[str, ...]] = {}
    facts: list[KernelFacts] = []
    functions: tuple[Function | TritonFunction, ...] = code.functions
    for function, kernel in zip(functions, _kernels(code, made), strict=True):
        identity, span = f"{artifact_id}.{function.name}", spans[function.name]
        node = made.steps[kernels[kernel].targets[-1]]  # its name may be another's: that of what a product computes
        moved = _bytes(made, node)
        category = category_of(kernels[kernel])
        attrs = {"language": language, "category": category, "line": span[0], "bytes": moved}
        attrs |= {"launch": dict(launches[function.name])} if function.name in launches else {}
        entities.append(Entity(identity, "kernel", function.name, attrs, (), (node,)))
        before = min(first for first, _ in spans.values()) - 1 if language == "triton" else 0
        inner = _line_entities(identity, language, rows, span, before, _targets(code, rows, span), made.loops)
        entities += inner.values()
        lines |= dict.fromkeys(range(span[0], span[1] + 1), (identity,))
        body = _body(rows, span)
        # A line of the signature is about the kernel, not about itself.
        lines |= {number: (identity, entity.id) for number, entity in inner.items() if number >= body}
        facts.append(
            KernelFacts(identity, function.name, graph, artifact_id, language, category, span, (node,), 1, moved)
        )
    shown = "cpp" if language == "cpp" else "python"
    artifact = Artifact(
        artifact_id, "kernels", title, shown, text, graph, lines, tuple(entities), {"language": language}
    )
    return Written(artifact, tuple(facts))


def _kernels(code: Code | TritonCode, made: Made) -> Iterator[str]:
    """The kernel that each function is of, by name."""
    functions: tuple[Function | TritonFunction, ...] = code.functions
    for function, kernel in zip(functions, _of_language(code, made), strict=True):
        yield function.kernel if isinstance(function, TritonFunction) else kernel


def _of_language(code: Code | TritonCode, made: Made) -> list[str]:
    on_gpu = isinstance(code, TritonCode)
    buffers = made.program.by_name
    return [kernel.name for kernel in made.program.kernels
            if on_gpu == buffers[kernel.targets[-1]].device.startswith("cuda")
            or len(code.functions) == len(made.program.kernels)]  # fmt: skip


def _spans(code: Code | TritonCode, rows: Sequence[str]) -> Iterator[tuple[str, Span]]:
    """The first and last line of each function."""
    if isinstance(code, TritonCode):
        yield from ((function.name, function.lines) for function in code.functions)
        return
    first, name = 0, ""
    for number, row in enumerate(rows, 1):
        if (found := _OPENING.match(row)) and not row.endswith(";"):
            first, name = number, found[1]
        elif row == "}" and name:
            yield name, (first, number)
            name = ""


def _body(rows: Sequence[str], span: Span) -> int:
    """The first line of a function under its signature."""
    return next(number + 1 for number in range(span[0], span[1] + 1) if rows[number - 1].endswith(("):", "{")))


def _targets(code: Code | TritonCode, rows: Sequence[str], span: Span) -> dict[int, str]:
    """The target that each line of a function computes; a comment belongs to the line under it."""
    found: dict[int, str] = {}
    below = ""
    for number in range(span[1], span[0] - 1, -1):
        below = code.lines.get(number) or (below if _COMMENT.match(rows[number - 1]) else "")
        if below:
            found[number] = below
    return found


def _line_entities(
    kernel: str, language: str, rows: Sequence[str], span: Span, before: int, targets: Mapping[int, str],
    loops: Mapping[str, str],
) -> dict[int, Entity]:  # fmt: skip
    """The lines of a function that say something, each by its number in the artifact. Their ids number them as they are
    in the source that is compiled: the function under the `before` lines that all functions share.
    """
    found = {}
    for number in range(span[0], span[1] + 1):
        if len(row := rows[number - 1].strip()) < 2:
            continue
        origins = (loops[targets[number]],) if targets.get(number, "") in loops else ()
        identity = f"{kernel}.L{before + number - span[0] + 1}"
        found[number] = Entity(identity, language, row, {}, (), origins)
    return found


def _bytes(made: Made, node: str) -> int:
    return int(next((entity.attrs["bytes"] for entity in made.artifact.entities if entity.id == node), 0))


def call_artifact(
    text: str,
    functions: Sequence[Function | TritonFunction],
    made: Made,
    kernels: Mapping[str, str],
    *,
    artifact_id: str,
    title: str,
    graph: str,
) -> Written:
    """The function that allocates and launches, with an entity for each launch and each call of PyTorch. `kernels` are
    ids by function.
    """
    rows = (text.rstrip("\n") + "\n").split("\n")
    of_kernel = _function_names(functions, made)
    entities: list[Entity] = []
    lines: dict[int, tuple[str, ...]] = {}
    facts: list[KernelFacts] = []
    by_node: dict[str, str] = {}
    after = 0
    for step in made.program.steps:
        node = made.steps[step.targets[0]] if step.targets else made.names.get(_label(step), "")
        place = _row_of(step, of_kernel, rows, after)
        identity = f"{artifact_id}.call_L{place}"
        label = of_kernel[step.name] if isinstance(step, Kernel) else step.name
        moved = _bytes(made, node)
        attrs = {"code": rows[place - 1].strip(), "line": place, "bytes": moved}
        inputs = _inputs(made, node, by_node)
        kind = "call" if isinstance(step, Kernel) else "extern"
        origins = (node, *((kernels[label],) if label in kernels else ()))
        entities.append(Entity(identity, kind, label, attrs, inputs, origins))
        mine = [place, *_allocations(step, rows, after, place)]
        lines |= dict.fromkeys(mine, (identity,))
        by_node[node], after = identity, place
        if isinstance(step, Extern):
            facts.append(KernelFacts(
                identity, label, graph, artifact_id, "aten", "extern", (place, place), (node,), 1, moved
            ))  # fmt: skip
    artifact = Artifact(
        artifact_id, "kernels", title, "python", "\n".join(rows), graph, dict(sorted(lines.items())), tuple(entities)
    )
    return Written(artifact, tuple(facts))


def _function_names(functions: Sequence[Function | TritonFunction], made: Made) -> dict[str, str]:
    """The function of each kernel."""
    named = {function.kernel: function.name for function in functions if isinstance(function, TritonFunction)}
    others = [kernel.name for kernel in made.program.kernels if kernel.name not in named]
    plain = (function.name for function in functions if isinstance(function, Function))
    return {**named, **dict(zip(others, plain, strict=True))}


def _label(step: Kernel | Extern) -> str:
    return step.origins[0] if isinstance(step, Extern) and step.origins else ""


def _row_of(step: Kernel | Extern, of_kernel: Mapping[str, str], rows: Sequence[str], after: int) -> int:
    """The line that runs a step: the next one, as the function runs them in order."""
    name = of_kernel[step.name] if isinstance(step, Kernel) else f"call_{re.sub('[^A-Za-z0-9]', '_', step.name)}_*"
    pattern = re.compile(rf"\b{name}[(,]")
    return next(number for number in range(after + 1, len(rows) + 1) if pattern.search(rows[number - 1]))


def _allocations(step: Kernel | Extern, rows: Sequence[str], after: int, place: int) -> Iterator[int]:
    for number in range(after + 1, place):
        found = _ASSIGNED.match(rows[number - 1])
        if found and found[1].removeprefix("at_").rstrip("_") in {name.rstrip("_") for name in step.targets}:
            yield number


def _inputs(made: Made, node: str, calls: Mapping[str, str]) -> tuple[str, ...]:
    entity = next((entity for entity in made.artifact.entities if entity.id == node), None)
    return tuple(calls[name] for name in entity.inputs if name in calls) if entity else ()
