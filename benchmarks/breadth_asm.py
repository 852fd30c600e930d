"""How many instructions of C++ kernels are on a C++ line and the right Python line: python -m benchmarks.breadth_asm.

Each program has written-down answers: what a line of C++ says, and a part of the Python line that it has to lead to.
Instructions of C++ lines without an answer (loops, declarations) are right if they lead to lines of the program.
Prints ratios and JSON; the bar for both is 95 %.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import torch

from compiler.binary import compile_record
from compiler.binary.listing import operations
from compiler.engine import explore
from compiler.option_checks import parse_options
from compiler.record import Record

Answers = dict[str, str]


def scaled_softmax(x: torch.Tensor) -> torch.Tensor:
    y = torch.sigmoid(x)
    z = y * 3
    return torch.softmax(z, -1)


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    y = torch.tanh(x)
    return torch.nn.functional.layer_norm(y, (256,))


def swish_gate(x: torch.Tensor) -> torch.Tensor:
    gate = torch.exp(-x)
    root = torch.sqrt(x.abs() + 1)
    return gate / root


def row_sums(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x)
    total = y.sum(-1)
    return torch.cos(total)


def clamped(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x)
    z = torch.log(y + 2)
    return z.amax(-1)


PROGRAMS: dict[Callable[[torch.Tensor], torch.Tensor], Answers] = {
    scaled_softmax: {r"negative|neg\(\)|1 \+|reciprocal": "sigmoid", r"maximum|amax|sub|\bdiv\b|/ tmp": "softmax"},
    layer_norm: {r"tanhf?\(": "tanh", r"rsqrt|welford": "layer_norm"},
    swish_gate: {r"exp\(": "torch.exp", r"sqrt|abs\(": "torch.sqrt", r" / ": "gate / root"},
    row_sums: {r"sin\(|sinf\(": "torch.sin", r"cos\(|cosf\(": "torch.cos"},
    clamped: {r"clamp_min|float relu": "relu", r"log\(|logf\(": "torch.log", r"amax|acc0.*max": "amax"},
}


def ratios(record: Record, answers: Answers) -> tuple[int, int, int]:
    """Numbers of instructions, of those on a C++ line, and of those on the right Python line."""
    python = {entity.id: entity.label for artifact in record.of_stage("source") for entity in artifact.entities}
    every = placed = right = 0
    for listing in record.of_stage("asm"):
        labels = {entity.id: entity.label for entity in listing.entities if entity.kind == "instructions"}
        lines = {name: {python[found] for found in record.linked_ids(name) & python.keys()} for name in labels}
        for line, _mnemonic, _operands in operations(listing.language, listing.text):
            every += 1
            names = [name for name in listing.lines.get(line, ()) if name in labels]
            placed += bool(names)
            right += any(_is_right(labels[name], lines[name], answers) for name in names)
    return every, placed, right


def _is_right(code: str, lines: set[str], answers: Answers) -> bool:
    wanted = [part for pattern, part in answers.items() if re.search(pattern, code)]
    if not wanted or code.startswith(("for", "#pragma")):
        return bool(lines)
    return any(part in line for part in wanted for line in lines)


def main() -> None:
    """Measure all programs with both backends, and print a line for each and the sums as JSON."""
    found = {}
    for backend in ("inductor", "tcompile"):
        for program, answers in PROGRAMS.items():
            options = parse_options(target="cpu", backend=backend)
            record = explore(program, (torch.rand(64, 256),), options=options).record
            counts = ratios(compile_record(record, stages=("asm",)), answers)
            found[f"{backend} {program.__name__}"] = counts
            every, placed, right = counts
            print(
                f"{backend:9} {program.__name__:15} {every:5} instructions, {placed / max(every, 1):6.1%} on a C++ "
                f"line, {right / max(placed, 1):6.1%} of these on the right Python line"
            )
    every, placed, right = (sum(column) for column in zip(*found.values(), strict=True))
    print(json.dumps({"instructions": every, "cpp_line": placed / every, "python_line": right / placed}))


if __name__ == "__main__":
    main()
