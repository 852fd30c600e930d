"""Why a record of a log has no captured graph, no generated code, or none of the stages that no log has."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from compiler.record import NOT_IN_LOGS, Problem

_HINT = "run the function here with tcompile.explore to see it"
_OF_AUTOGRAD = frozenset(("joint", "forward", "inference"))
_NO_DYNAMO = "this was compiled without TorchDynamo, as by standalone_compile or AOTInductor, or came from a cache"
_NO_GRAPH = "no compilation in this log has a graph: frames were skipped, failed, or the log ends before"
_NO_CODE = (
    "this log has no code of Inductor: another backend compiled the graphs, the code came from a cache, Inductor "
    "failed, or the log ends before"
)


def why_absent(stages: Collection[str]) -> Iterator[Problem]:
    """Problems that say why a record of a log lacks stages; it has the given ones."""
    made = {*stages}
    yield from (Problem(stage, reason, _HINT) for stage, reason in NOT_IN_LOGS.items() if stage not in made)
    has_graph = bool(made & {"captured", "exported"})
    if not has_graph and made & _OF_AUTOGRAD:
        yield Problem("captured", _NO_DYNAMO)
    elif not has_graph:
        yield Problem("captured", _NO_GRAPH, "the breaks and the index of the job say why")
    if "kernels" not in made and made & {"captured", *_OF_AUTOGRAD}:
        yield Problem("kernels", _NO_CODE)
