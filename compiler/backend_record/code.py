"""Artifacts of the code that our own backend generates: kernels in C++ or Triton, and the function that calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.backend.cpp.emit import Code
from compiler.backend.ir import Extern, Step
from compiler.backend.runtime.launch import Launcher
from compiler.backend.triton.emit import TritonCode
from compiler.backend_record.program import Made, category_of
from compiler.record import Artifact, Entity
from compiler.record import Kernel as KernelFacts

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Written:
    """An artifact of generated code, and the facts of its kernels or extern calls."""

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
    """Write generated kernels as an artifact, with lines linked to the loops of the program after the last pass.

    `launches` has the facts to compile and launch a kernel, by function name (see `compiler.backend_record.facts`).
    """
    language, shown = ("cpp", "cpp") if isinstance(code, Code) else ("triton", "python")
    text = code.text.rstrip("\n") + "\n"
    rows = text.split("\n")
    shared = min(function.lines[0] for function in code.functions) - 1 if language == "triton" else 0
    kernels = {kernel.name: kernel for kernel in made.program.kernels}
    entities: list[Entity] = []
    lines: dict[int, tuple[str, ...]] = {}
    facts: list[KernelFacts] = []
    for function in code.functions:
        identity, (first, last) = f"{artifact_id}.{function.name}", function.lines
        node = made.steps[kernels[function.kernel].targets[-1]]  # by target: another step's buffer may have its name
        moved, category = _bytes_moved(made, node), category_of(kernels[function.kernel])
        attrs = {"language": language, "category": category, "line": first, "bytes": moved}
        attrs |= {"launch": dict(launches[function.name])} if function.name in launches else {}
        inner = _line_entities(identity, language, rows, function.lines, shared, code.lines, made.loops)
        entities += [Entity(identity, "kernel", function.name, attrs, (), (node,)), *inner.values()]
        # Lines of the signature refer to the kernel alone.
        body = next(number + 1 for number in range(first, last + 1) if rows[number - 1].endswith(("):", "{")))
        lines |= dict.fromkeys(range(first, last + 1), (identity,))
        lines |= {number: (identity, entity.id) for number, entity in inner.items() if number >= body}
        facts.append(KernelFacts(
            identity, function.name, graph, artifact_id, language, category, function.lines, (node,), 1, moved
        ))  # fmt: skip
    attrs = {"language": language}
    return Written(
        Artifact(artifact_id, "kernels", title, shown, text, graph, lines, tuple(entities), attrs), tuple(facts)
    )


def _line_entities(
    kernel: str, language: str, rows: Sequence[str], span: Span, shared: int, targets: Mapping[int, str],
    loops: Mapping[str, str],
) -> dict[int, Entity]:  # fmt: skip
    """Entities for the lines of a function that have more than one character, by line number in the artifact.

    An id contains the line number in the source that is compiled: shared lines, followed by this function alone.
    """
    found = {}
    for number in range(span[0], span[1] + 1):
        if len(row := rows[number - 1].strip()) > 1:
            origins = (loops[targets[number]],) if targets.get(number, "") in loops else ()
            identity = f"{kernel}.L{shared + number - span[0] + 1}"
            found[number] = Entity(identity, language, row, {}, (), origins)
    return found


def _bytes_moved(made: Made, node: str) -> int:
    return int(next((entity.attrs["bytes"] for entity in made.artifact.entities if entity.id == node), 0))


def call_artifact(
    launcher: Launcher, made: Made, kernels: Mapping[str, str], *, artifact_id: str, title: str, graph: str
) -> Written:
    """Write the function that allocates memory and launches kernels as an artifact.

    Each launch and each extern call is an entity. `kernels` maps function names to ids of kernels.
    """
    text = launcher.text.rstrip("\n") + "\n"
    rows = text.split("\n")
    inputs = {entity.id: entity.inputs for entity in made.artifact.entities}
    entities: list[Entity] = []
    lines: dict[int, tuple[str, ...]] = {}
    facts: list[KernelFacts] = []
    by_node: dict[str, str] = {}
    for step, places in zip(made.program.steps, launcher.places, strict=True):
        is_extern, place = isinstance(step, Extern), places[0]
        node = made.steps[step.targets[0]] if step.targets else made.names.get(_first_origin(step), "")
        identity = f"{artifact_id}.call_L{place}"
        label = step.name if is_extern else launcher.functions[step.name].name
        moved = _bytes_moved(made, node)
        attrs = {"code": rows[place - 1].strip(), "line": place, "bytes": moved}
        sources = tuple(by_node[name] for name in inputs.get(node, ()) if name in by_node)
        origins = (node, *((kernels[label],) if label in kernels else ()))
        entities.append(Entity(identity, "extern" if is_extern else "call", label, attrs, sources, origins))
        lines |= dict.fromkeys(places, (identity,))
        by_node[node] = identity
        if is_extern:
            facts.append(KernelFacts(
                identity, label, graph, artifact_id, "aten", "extern", (place, place), (node,), 1, moved
            ))  # fmt: skip
    shown = dict(sorted(lines.items()))
    return Written(Artifact(artifact_id, "kernels", title, "python", text, graph, shown, tuple(entities)), tuple(facts))


def _first_origin(step: Step) -> str:
    return step.origins[0] if isinstance(step, Extern) and step.origins else ""
