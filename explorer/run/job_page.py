"""A job as one self-contained page: the index of its compilations, and the records of the costly ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from compiler.logs.compilations import Compilation
from compiler.logs.events import Log
from compiler.logs.files import LogError, read_logs
from compiler.logs.follow import traces_in
from compiler.logs.job import Job, Rank
from compiler.process import fewer_full_collections
from compiler.record import Record
from compiler.record.plain_text import did_you_mean, pluralize
from explorer.findings import KnownFindings
from explorer.findings.job import COUNTED, job_document
from explorer.findings.job_names import opened_name, shown_name
from explorer.findings.job_ranks import rank_document
from explorer.reading.shapes import seconds_text
from explorer.render.document import Document, Fold, payload
from explorer.render.text import document_text
from explorer.run import frontend
from explorer.run.files import replace_file
from explorer.run.job_facts import cold_start_facts, ranks_of
from explorer.run.page import block, html_page
from explorer.run.payload import Payload
from explorer.run.payload_part import Part, words_of_languages

ENTRY = "job_page.js"
MOST_BYTES, MOST_READ, MOST_RECORDS = 12 * 2**20, 5_000_000, 40
"""Maximum size of a page's records, of the events that they are made of, and their maximum number."""


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page. `left_out` are the names of the compilations whose records it doesn't have."""

    html: str
    count: int
    left_out: tuple[str, ...]

    @property
    def words(self) -> str:
        """How many records the page has."""
        if not self.left_out:
            return (
                f"with the records of {pluralize(self.count, 'compilation')}" if self.count else "without compilations"
            )
        return f"with the records of the {self.count - len(self.left_out)} costliest of {self.count:,} compilations"


def index_of(job: Job, *, with_start: bool = True) -> Document:
    """The index of a job as a document, with what differs between its ranks, and with its cold start, folded."""
    differences = rank_document(job.comparison)
    index = job_document(title_of(job), ranks_of(job), job.problem_words, differences)
    start = (Fold("The time until every function was compiled", tuple(cold_start_facts(job))),) if with_start else ()
    return [*index, *start]


def index_text(job: Job) -> str:
    """The index of a job as text."""
    return document_text(index_of(job, with_start=False))


def title_of(job: Job) -> str:
    return job.title or job.path.name or "job"


def page_of(job: Job, most_read: int | None = None) -> JobPage:
    """The page of a job, with records made of at most some `most_read` bytes of events.

    What needs torch is left out of its records: advice, and words from torch's documentation.
    """
    named = list(_by_cost(job))
    kept: dict[str, list[Part]] = {}
    words: dict[str, dict[str, Any]] = {}
    left, unread = MOST_BYTES, MOST_READ if most_read is None else min(most_read, MOST_READ)
    read: set[tuple[int, str]] = set()
    for name, rank, one in named[:MOST_RECORDS]:
        events = rank.number, one.compile_id  # those of compilations with the same id are read together
        unread -= 0 if events in read else rank.log.bytes_of(one.compile_id)
        read.add(events)
        if unread < 0 and kept:
            break
        parts, glossary = _record_parts(_record(name, rank, one))
        size = sum(len(part.data) for part in parts) * 4 // 3
        if size > left:
            continue
        left -= size
        kept[name] = parts
        for part in glossary:
            words.setdefault(part.artifact, {}).update(part.content())
    data = {
        "title": title_of(job), "document": payload(index_of(job)), "count": len(named),
        "how": f"tcompile report {job.path} --only ID -o one.html",
    }  # fmt: skip
    shared = [Part.pack("", "index", data), *(Part.pack(language, "words", each) for language, each in words.items())]
    blocks = chain(map(block, shared), (block(part, name) for name, parts in kept.items() for part in parts))
    return JobPage(html_of(title_of(job), blocks), len(named), tuple(name for name, *_ in named if name not in kept))


def record_named(job: Job, name: str) -> Record:
    """The record of a compilation, by the name that the index gives it ("0/1", or "3:0/1" of rank 3).

    Raises LogError with the names that there are.
    """
    known = {found: (rank, one) for found, rank, one in _by_cost(job)}
    if name not in known:  # "0/1" is that of the first rank that has it
        name = next((each for number in job.ranks if (each := opened_name(number, name)) in known), name)
    if name not in known:
        listed = ", ".join(list(known)[:12]) + (", …" if len(known) > 12 else "")
        raise LogError(f"no compilation {name!r}{did_you_mean(name, known)}; there are: {listed or 'none'}")
    return _record(name, *known[name])


def _record(name: str, rank: Rank, one: Compilation) -> Record:
    where = f" ({one.place})" if one.place else ""
    return rank.record_of(one.id).with_fields(title=f"{shown_name(one)}{where}, compilation {name}")


def names_of(job: Job) -> list[str]:
    """The names of the compilations, the costliest first."""
    return [name for name, *_ in _by_cost(job)]


def _by_cost(job: Job) -> Iterator[tuple[str, Rank, Compilation]]:
    """Compilations of all ranks with their names, the costliest first."""
    is_one = len(job.ranks) == 1
    found = [(number, rank, one) for number, rank in job.ranks.items() for one in rank.compilations]
    for number, rank, one in sorted(found, key=lambda each: -each[2].total):
        yield opened_name(None if is_one else number, one.id), rank, one


def _record_parts(record: Record) -> tuple[list[Part], Iterable[Part]]:
    """The data of a compilation's record, and the glossary of its languages."""
    made = Payload(record, KnownFindings(needing_torch=False))
    parts = [Part.pack("", "manifest", made.manifest()), *made.parts()]
    return parts, words_of_languages(made.record, from_docs=False)


def html_of(title: str, blocks: Iterable[str]) -> str:
    """The page of an index and its records."""
    style = frontend.job_css()
    script = frontend.page_loader((), ENTRY)
    return html_page(title, style, (script, frontend.page_script((), ENTRY)), "\n".join(blocks))


def write_job_page(job: Job, output: Path, most_read: int | None = None) -> JobPage:
    """Write the page of a job (`page_of`). Raises OSError."""
    with fewer_full_collections(100):
        page = page_of(job, most_read)
    replace_file(output, page.html.encode())
    return page


def write_page_of_traces(
    folder: Path, before: Collection[Path], output: Path, title: str = "", most_read: int | None = None
) -> str:
    """Write the page of the traces in a directory, except those that were there before; return a summary.

    Raises OSError.
    """
    logs: list[Log] = []
    problems: list[str] = []
    for path in traces_in(folder, before):
        try:
            logs += read_logs(path)
        except LogError as error:
            problems.append(str(error))
    if not logs:
        return "; ".join(problems) or f"the traces in {folder} are gone"
    job = Job.of_logs(folder, logs, title)
    page = write_job_page(job, output, most_read)
    return f"{summary(job)}; {output}, {page.words}; the trace: {folder}"


def summary(job: Job) -> str:
    """One line: how many compilations, for how long, and how many fell back."""
    found = [one for rank in job.ranks.values() for one in rank.compilations]
    counts = Counter(one.status for one in found if one.status not in ("compiled", "cached", "exported", "empty"))
    told = "".join(f", {count} {COUNTED[status]}" for status, count in counts.most_common())
    return f"{pluralize(len(found), 'compilation')}, {seconds_text(sum(one.total for one in found))}{told}"
