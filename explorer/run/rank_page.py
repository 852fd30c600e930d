"""The grid of ranks as a page and as a widget, both with the record of each rank that was simulated."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from compiler.distributed.ranks import Ranks
from compiler.record.plain_text import rank_words
from explorer.findings.rank_grid import pair_document, ranks_document
from explorer.render.document import payload
from explorer.run import job_page
from explorer.run.job_facts import JobFacts
from explorer.run.page import block
from explorer.run.payload import Payload
from explorer.run.payload_part import Part, words_of_languages

TITLE = "Ranks of the job"


def rank_difference(ranks: Ranks, one: int, other: int) -> JobFacts:
    """Where two ranks differ, each as itself or as the rank that was simulated in its stead. Raises KeyError."""
    return JobFacts(pair_document(ranks, known_rank(ranks, one), known_rank(ranks, other)))


def known_rank(ranks: Ranks, rank: int) -> int:
    """The rank itself, or the rank that was simulated in its stead. Raises KeyError if there is neither."""
    known = ranks.stand_ins.get(rank, rank)
    if known not in ranks.records:
        raise KeyError(f"rank {rank} is {ranks.lack}; there is {rank_words(tuple(ranks.records))}")
    return known


def page_of_ranks(ranks: Ranks) -> str:
    """The grid as one page, with the record of one rank of each group of equal ranks."""
    own: list[str] = []
    words: dict[str, dict[str, Any]] = {}
    for rank, *_ in ranks.groups:
        made = Payload(ranks.records[rank].with_fields(title=f"rank {rank}"))
        own += [block(part, f"rank {rank}") for part in (Part.pack("", "manifest", made.manifest()), *made.parts())]
        for part in words_of_languages(made.record):
            words.setdefault(part.artifact, {}).update(part.content())
    index: dict[str, Any] = {
        "title": TITLE, "document": payload(ranks_document(ranks)), "count": ranks.world, "things": "rank",
        "how": "run.ranks[N].save('rank.html'), of ID",
    }  # fmt: skip
    shared = [Part.pack("", "index", index), *(Part.pack(name, "words", each) for name, each in words.items())]
    return job_page.html_of(TITLE, chain(map(block, shared), own))


def live_ranks(ranks: Ranks, widget_of: Callable[[int], Any]) -> Any:
    """The live grid; it opens the record of a rank below."""
    from explorer.run.job_widget import live_document

    return live_document(ranks_document(ranks), lambda name: widget_of(known_rank(ranks, int(name.split()[-1]))))
