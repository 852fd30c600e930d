"""Where the ranks of a job differ, as a document: the groups of equal ranks, and a card for each kind of difference."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.logs.ranks import CUT_LOG, Difference, RankComparison
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
    """What is not known of the ranks, the groups of equal ranks, and their differences; empty for a job of one rank."""
    groups = comparison.groups
    unknown = [Text(words, "warning") for words in _unknown_words(comparison)]
    if sum(map(len, groups)) < 2 and not unknown:
        return ()
    differences = [each for each in comparison.differences if each.kind != CUT_LOG]
    parts: list[Parts] = [*unknown, Text(_summary(comparison, len(differences)), "lead")]
    hang = next((each.hang for each in differences if each.hang), "")
    parts += [Text(hang, "warning")] if hang else []
    if len(groups) > 1 and differences:
        rows = tuple(Row((rank_words(group), str(len(group)))) for group in groups)
        parts.append(Table(("equal ranks", "number"), rows, right=(1,)))
    parts += [_card(each, number, hang) for number, each in enumerate(differences)]
    return parts


def _unknown_words(comparison: RankComparison) -> Iterator[str]:
    if comparison.missing:
        yield (
            f"No log of {rank_words(comparison.missing)} is here: not copied, or empty, or the process ended before "
            "it compiled anything, and then the others wait for it in their first collective."
        )
    yield from (_sentence(each.words) for each in comparison.differences if each.kind == CUT_LOG)


def _summary(comparison: RankComparison, differences: int) -> str:
    groups, kinds = comparison.groups, pluralize(differences, "difference")
    count = sum(map(len, groups))
    if count == 1:
        return "One rank has a log, so there is nothing to compare."
    if not differences:
        ranks = f"{'The' if comparison.missing or comparison.cut else 'All'} {count} ranks"
        reach = " as far as their logs go" if comparison.cut else ""
        return f"{ranks} are equal{reach}: graphs, guards, kernels and collectives."
    told = {rank for each in comparison.differences if each.kind != CUT_LOG for rank in each.ranks}
    odd = [rank for group in groups[1:] for rank in group if rank in told]
    if not odd:
        return f"{count} ranks compile the same, with {kinds}."
    verb = "differ" if len(odd) > 1 else "differs"
    return f"{rank_words(odd).capitalize()} {verb} from {rank_words(groups[0])}: {kinds}."


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
