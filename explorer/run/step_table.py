"""The steps of TorchDynamo's reading as a DataFrame, one row an instruction."""

from __future__ import annotations

import pandas as pd

from compiler.record import Record

COLUMNS = {
    "frame": "string",
    "attempt": "Int64",
    "depth": "Int64",
    "function": "string",
    "file": "string",
    "line": "Int64",
    "offset": "Int64",
    "opcode": "category",
    "argument": "string",
    "pushed": "string",
    "changed": "string",
    "nodes": "string",
    "guards": "string",
    "ended": "string",
}


def steps(record: Record) -> pd.DataFrame:
    """One row a step; without rows it has the same columns. Several values in one cell are joined by `"; "`."""
    rows = [
        {
            "frame": step.frame,
            "attempt": step.attempt,
            "depth": step.depth,
            "function": step.function,
            "file": step.file,
            "line": step.line,
            "offset": step.offset,
            "opcode": step.opcode,
            "argument": step.argument,
            "pushed": "; ".join(step.pushed),
            "changed": "; ".join(f"{name} = {value}" for name, value in step.changed.items()),
            "nodes": "; ".join(step.nodes),
            "guards": "; ".join(step.guards),
            "ended": step.ended,
        }
        for step in record.steps
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
