"""Facts of a job besides its compilations: how its ranks differ, its cold start, its caches, and a trace of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from compiler.logs.cache_keys import cache_outcomes, compare_caches, remote_caches
from compiler.logs.cold_start import ColdStart, cold_start_of, write_trace
from compiler.logs.job import Job
from explorer.findings.cold_start import cache_change_document, cold_start_document
from explorer.findings.job_names import RankCompilations
from explorer.findings.job_ranks import rank_document
from explorer.findings.job_tables import breaks_of_job, graphs_of_job, recompiles_of_job
from explorer.reading.shapes import seconds_text
from explorer.render.document import Document, Parts, Text
from explorer.render.static import document_html
from explorer.render.text import document_text
from explorer.run.files import replace_file


@dataclass(frozen=True)
class JobFacts:
    """A document about a job; it prints as text, and is shown as HTML in a notebook."""

    document: Document

    def __repr__(self) -> str:
        return document_text(self.document)

    def _repr_html_(self) -> str:
        return f'<div class="tcompile-twin">{document_html(self.document)}</div>'


def ranks_of(job: Job) -> list[RankCompilations]:
    """The compilations of each rank; a job of one process has no ranks."""
    is_one = len(job.ranks) == 1
    return [
        RankCompilations(None if is_one else number, rank.compilations, rank.is_of_group)
        for number, rank in job.ranks.items()
    ]


def rank_facts(job: Job) -> Document:
    """What of the logs can't be read, groups of equal ranks, and the first difference of each kind."""
    if len(job.ranks) > 1 and not any(rank.is_of_group for rank in job.ranks.values()):
        words = "processes compiled, and none has a rank of a process group: they are not compared."
        return (Text(f"{len(job.ranks)} {words}"),)
    compared = rank_document(job.comparison) or (Text("This job has one rank, so there is nothing to compare."),)
    return (*(Text(words, "warning") for words in job.damage_words), *compared)


def cold_start_facts(job: Job) -> Document:
    """The cold start of the rank that was ready last, by phase and by function."""
    starts = cold_starts(job)
    if not any(each.spans for each in starts.values()):
        return (Text("The log has no times (no events of `dynamo_timed`)."),)
    slowest = max(starts, key=lambda number: starts[number].seconds)
    rank = job.ranks[slowest]
    outcomes = cache_outcomes(rank.log, rank.compilations)
    found = cold_start_document(starts[slowest], outcomes, tuple(remote_caches(rank.log)))
    return (*_ranks_by_time(starts, slowest, "rank" if rank.is_of_group else "process"), *found)


def _ranks_by_time(starts: Mapping[int, ColdStart], slowest: int, kind: str) -> Iterator[Parts]:
    if len(starts) > 1:
        first = min(starts, key=lambda number: starts[number].seconds)
        words = f"{kind.capitalize()} {slowest} is ready last, after {seconds_text(starts[slowest].seconds)}"
        yield Text(f"{words}; {kind} {first} is ready first, after {seconds_text(starts[first].seconds)}.")


def cold_starts(job: Job) -> dict[int, ColdStart]:
    """The cold start of each rank."""
    return {number: cold_start_of(rank.log, rank.compilations) for number, rank in job.ranks.items()}


def changed_caches(first: Job, second: Job) -> Document:
    """Why the second job missed caches that the first looked up in the same way; the first rank of each is read."""
    logs = (next(iter(job.ranks.values())).log for job in (first, second))
    return cache_change_document(compare_caches(*logs))


def save_trace(job: Job, path: str | Path) -> Path:
    """Save the ranks' compile times as a trace that Perfetto and chrome://tracing open; returns the path."""
    path = Path(path)
    if path.suffix.lower() != ".json":
        raise ValueError(f"{str(path)!r}: a trace is saved as '.json'")
    return replace_file(path, write_trace(cold_starts(job)).encode())


def fact_text(job: Job, name: str, before: str = "") -> str:
    """A fact of a job as text, by its name; `before` is the path of the logs that caches are compared with."""
    if name != CHANGED_CACHES:
        return document_text(FACTS[name](job))
    if not before:
        raise ValueError(f"{name}: since when? tcompile show LOGS {name} EARLIER_LOGS")
    return document_text(changed_caches(Job.load(before), job))


CHANGED_CACHES = "changed_caches"
FACTS: Mapping[str, Callable[[Job], Document]] = {
    "breaks": lambda job: breaks_of_job(ranks_of(job)),
    "recompiles": lambda job: recompiles_of_job(ranks_of(job)),
    "graphs": lambda job: graphs_of_job(ranks_of(job)),
    "ranks": rank_facts,
    "cold_start": cold_start_facts,
}
"""What `tcompile show LOGS NAME` shows besides compilations."""
NAMES = (*FACTS, CHANGED_CACHES)
