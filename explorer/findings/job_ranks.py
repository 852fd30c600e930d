"""Where the ranks of a job differ, as a document: the groups of equal ranks, and a card for each kind of difference."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.logs.ranks import Difference, RankComparison
from compiler.record.plain_text import file_name, pluralize, rank_words
from explorer.render.document import Card, Code, Document, Parts, Row, Table, Tag, Text

TITLES = {
    "torch version": "Other version",
    "environment": "Other environment",
    "configuration": "Other settings",
    "source": "Other source",
    "end of the log": "A rank stops",
    "compilations": "Compiled on some ranks only",
    "recompilation": "Recompiled on some ranks only",
    "compiled autograd": "Compiled autograd on some ranks only",
    "order": "Other order of compilations",
    "failure": "Failed on some ranks only",
    "graph break": "Graph break on some ranks only",
    "input": "Other input",
    "graph": "Other graph",
    "collectives": "Other collectives",
    "autograd": "Other forward or backward",
    "post-grad graph": "Other post-grad graph",
    "kernels": "Other kernels",
    "shards": "Other shapes of shards",
    "guards": "Other guards",
    "cache": "Other cache outcome",
}


def rank_document(comparison: RankComparison) -> Document:
    """The groups of equal ranks and their differences; empty for a job of one rank."""
    groups = comparison.groups
    count = sum(map(len, groups))
    if count < 2:
        return ()
    differences = comparison.differences
    missing = [Text(words, "warning") for words in _missing_words(comparison.missing)]
    if not differences:
        equal = f"All {count} ranks are equal: graphs, guards, kernels and collectives."
        return (Text(equal if not missing else f"The {equal[4:]}", "lead"), *missing)
    parts: list[Parts] = [Text(_summary(comparison, count), "lead"), *missing]
    hang = next((each.hang for each in differences if each.hang), "")
    parts += [Text(hang, "warning")] if hang else []
    if len(groups) > 1:
        rows = tuple(Row((rank_words(group), str(len(group)))) for group in groups)
        parts.append(Table(("equal ranks", "number"), rows, right=(1,)))
    parts += [_card(each, number, hang) for number, each in enumerate(differences)]
    return parts


def _missing_words(missing: tuple[int, ...]) -> Iterator[str]:
    if missing:
        yield (
            f"No log of {rank_words(missing)} is here: either it was not copied, or the process ended before it "
            "compiled anything, and then the others wait for it in their first collective."
        )


def _summary(comparison: RankComparison, count: int) -> str:
    kinds = pluralize(len(comparison.differences), "difference")
    if len(comparison.groups) == 1:
        return f"{count} ranks compile the same, with {kinds}."
    odd = [rank for group in comparison.groups[1:] for rank in group]
    verb = "differ" if len(odd) > 1 else "differs"
    return f"{rank_words(odd).capitalize()} {verb} from {rank_words(comparison.groups[0])}: {kinds}."


def _card(each: Difference, number: int, said: str) -> Card:
    """The card of a difference. `said` is the hang that is shown above the cards, and not shown again."""
    title = TITLES.get(each.kind, each.kind)
    where = f"{file_name(each.file)}:{each.line}" if each.line else ""
    about = f"{each.function} ({where})".strip() if where else each.function
    return Card(
        title=title,
        ids=(f"rank_difference_{number}",),
        lead=_sentence(each.words),
        parts=tuple(_parts(each, said)),
        kind="rank",
        about=Tag(about, "muted"),
        line=f"{title}: {about}" if about else title,
        is_open=number == 0 or bool(each.hang),
    )


def _parts(each: Difference, said: str) -> Iterator[Parts]:
    if each.code:
        yield Code((each.code.strip(),), label="line: ")
    rows = [(rank_words(each.others), line) for line in each.was] + [
        (rank_words(each.ranks), line) for line in each.now
    ]
    if rows:
        yield Table(("on", "is"), tuple(Row((Tag(who, "muted"), Tag(line, "code"))) for who, line in rows))
    if each.hang and each.hang != said:
        yield Text(each.hang, "warning")
    if each.follows:
        yield Text(f"Because of this, these differ too: {', '.join(each.follows)}.")
    if each.more:
        yield Text(
            f"{pluralize(each.more, 'later compilation')} differ{'s' if each.more == 1 else ''} in the same way."
        )


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:].removesuffix('.')}."
