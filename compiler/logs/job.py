"""A job that ran elsewhere: the logs of its ranks, with a record of each, read when asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

from compiler.logs.capture import resumed_line
from compiler.logs.compilations import Compilation, compilations_of
from compiler.logs.events import Log, LogProblem
from compiler.logs.files import read_logs
from compiler.logs.other_texts import count_other_names
from compiler.logs.ranks import Difference, RankComparison, compare_ranks
from compiler.logs.records import KNOWN_KINDS, record_of
from compiler.record import GraphBreak, Record, Span
from compiler.record.plain_text import pluralize

_MOST_LISTED = 8


@dataclass(eq=False)
class Rank:
    """One process of a job: its log, and records of its compilations. `number` is its rank, from 0."""

    number: int
    log: Log

    @property
    def is_of_group(self) -> bool:
        """Whether the log says which rank of a process group it is; other processes are only counted."""
        return self.log.rank is not None

    @cached_property
    def compilations(self) -> tuple[Compilation, ...]:
        """The compilations, in the order in which they started; their graphs are not read."""
        return compilations_of(self.log)

    @cached_property
    def record(self) -> Record:
        """The record of all compilations."""
        return record_of(self.log, functions=self._functions)

    @cached_property
    def _functions(self) -> dict[str, Span]:
        """The compiled functions by the id of the compilation."""
        return {each.id: Span(each.file, each.line, function=each.function) for each in self.compilations}

    def record_of(self, ids: str | Collection[str], target: str = "") -> Record:
        """The record of one compilation ("0/1"), or of several by torch's ids; it is not kept.

        After `torch._dynamo.reset()` torch reuses ids: "0/1#2" is the second compilation 0/1. `target` is the GPU that
        Triton kernels are compiled for, by default that of the log.
        """
        one = next((each for each in self.compilations if each.id == ids), None)
        if one is None:
            return record_of(self.log, (ids,) if isinstance(ids, str) else ids, target, self._functions)
        record = record_of(self.log.select(one.compile_id, one.autograd), (one.id,), target, self._functions)
        breaks = [self._with_graphs_after(found, one) for found in record.breaks]
        return record.with_fields(breaks=tuple(breaks))

    def _with_graphs_after(self, found: GraphBreak, one: Compilation) -> GraphBreak:
        """A break with the compilations that resume after it, which the record of its own compilation lacks."""
        if found.outcome != "resumed" or found.resumed_by:
            return found
        after = list(self._compilations_after(one, [found.chain[0].line if found.chain else found.line]))
        nodes = (found.nodes[0], sum(each.nodes or 0 for each in after))
        return replace(found, resumed_by=tuple(each.id for each in after[:1]), nodes=nodes)

    def _compilations_after(self, one: Compilation, lines: list[int]) -> Iterator[Compilation]:
        """The next compilation that resumes after each break at these lines, and after the breaks in it."""
        seen: set[int] = set()
        while lines:
            seen.add(line := lines.pop(0))
            same = [each for each in self.compilations
                    if each.file == one.file and (resumed_line(each.function) or ("", 0))[1] == line]  # fmt: skip
            for each in [each for each in same if each.first > one.first][:1] or same[:1]:
                yield each
                lines += {found.line for found in each.breaks if found.file == one.file} - seen

    def __repr__(self) -> str:
        return f"<Rank {self.number}: {', '.join(self.log.names)}, {pluralize(len(self.log), 'event')}>"


_COMPARED = 65_536
"""Bytes at the start of logs, with times and process ids: of one rank and size, they are equal in copies alone."""


@dataclass(eq=False)
class Job:
    """The ranks of a job by number; a program without ranks has rank 0.

    `title` says what ran, if it is known. `problems` are the parts of the logs that could not be read, and files that
    were left out.
    """

    path: Path
    ranks: Mapping[int, Rank]
    left_out: tuple[LogProblem, ...] = ()
    title: str = ""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read the logs at a path; nothing in them is executed. Raises LogError and OSError."""
        return cls.of_logs(path, read_logs(path))

    @classmethod
    def of_logs(cls, path: str | Path, logs: Iterable[Log], title: str = "") -> Self:
        """The job with these logs, that are or would be at a path."""
        ranks: dict[int, Rank] = {}
        own, left_out = _without_copies(logs)
        for log in sorted(_without_ranks_of_forks(own), key=lambda log: (log.rank is None, log.rank or 0)):
            number = log.rank if log.rank is not None else _free_number(ranks)
            if number in ranks:
                words = f"rank {number} has another log, of a later start; that one is shown"
                left_out.append(LogProblem(ranks[number].log.names[0], 0, words))
            ranks[number] = Rank(number, log)
        return cls(Path(path), ranks, tuple(left_out), title)

    @property
    def record(self) -> Record:
        """The record of the first rank."""
        return next(iter(self.ranks.values())).record

    @cached_property
    def comparison(self) -> RankComparison:
        """The groups of equal ranks, and where the others differ.

        Processes without a rank, such as the workers of a DataLoader, run different code: they are not compared.
        """
        return compare_ranks({number: rank.log for number, rank in self.ranks.items() if rank.is_of_group})

    @property
    def differences(self) -> tuple[Difference, ...]:
        """The first difference of each kind between ranks: its line, its cause, and who waits for whom."""
        return self.comparison.differences

    @property
    def problems(self) -> tuple[LogProblem, ...]:
        of_logs = (problem for rank in self.ranks.values() for problem in rank.log.problems)
        return tuple(dict.fromkeys((*self.left_out, *of_logs)))

    @property
    def damage_words(self) -> tuple[str, ...]:
        """What of the logs can't be read, as the compilations show, equal problems of a file as one sentence."""
        for rank in self.ranks.values():
            _ = rank.compilations
        counts = Counter(f"{problem.file}: {problem.reason}" for problem in self.problems)
        words = [f"{words} ({count:,} times)" if count > 1 else words for words, count in counts.items()]
        return (*words, *self._checksum_words)

    @property
    def problem_words(self) -> tuple[str, ...]:
        """What of the logs can't be read, and the events that tcompile doesn't know."""
        return (*self.damage_words, *self._unknown_words())

    @cached_property
    def _checksum_words(self) -> tuple[str, ...]:
        counts = [(rank.log.names[0], rank.log.count_wrong_checksums()) for rank in self.ranks.values()]
        reason = "the content of {} is not what was written (checksum): the file was cut or edited"
        return tuple(f"{name}: {reason.format(pluralize(count, 'event'))}" for name, count in counts if count)

    def _unknown_words(self) -> Iterator[str]:
        if self.unknown:
            listed = ", ".join(f"{name} ({count:,})" for name, count in self.unknown.most_common(_MOST_LISTED))
            more = f" and {len(self.unknown) - _MOST_LISTED} more kinds" if len(self.unknown) > _MOST_LISTED else ""
            yield f"events that tcompile doesn't know: {listed}{more}; texts of artifacts are the stage `other`"

    @cached_property
    def unknown(self) -> Counter[str]:
        """The number of events of each kind that tcompile doesn't know, and of artifacts of each unknown name.

        The texts of such artifacts are the stage `other` of the record of their compilation.
        """
        counts: Counter[str] = Counter()
        for rank in self.ranks.values():
            counts.update({kind: count for kind, count in rank.log.counts.items() if kind not in KNOWN_KINDS})
            counts.update(count_other_names(rank.log))
        return counts

    def __repr__(self) -> str:
        events = sum(len(rank.log) for rank in self.ranks.values())
        kind = ("rank",) if all(rank.is_of_group for rank in self.ranks.values()) else ("process", "processes")
        return f"<Job {self.path.name}: {pluralize(len(self.ranks), *kind)}, {pluralize(events, 'event')}>"


def _without_copies(logs: Iterable[Log]) -> tuple[list[Log], list[LogProblem]]:
    """The logs without those that are copies of an earlier one, and a problem for each copy."""
    first: dict[tuple[object, ...], Log] = {}
    pairs = [(log, first.setdefault(_identity(log), log)) for log in logs]
    words = "it is a copy of {}; it is left out"
    return [*first.values()], [
        LogProblem(log.names[0], 0, words.format(known.names[0])) for log, known in pairs if known is not log
    ]


def _identity(log: Log) -> tuple[object, ...]:
    return log.rank, *map(len, log.texts), bytes(log.texts[0][:_COMPARED])


def _without_ranks_of_forks(logs: Iterable[Log]) -> Iterator[Log]:
    """The logs by process id. A process that a rank forked, such as a DataLoader's worker, loses the inherited rank."""
    mains: dict[int | None, Log] = {}
    for log in sorted(logs, key=_process):
        main = mains.setdefault(log.rank, log)
        if log.rank is not None and main is not log:
            if _is_forked_from(main, log):
                log.rank = None
            else:
                mains[log.rank] = log
        yield log


def _is_forked_from(main: Log, log: Log) -> bool:
    """Whether a process with a higher id was forked, not started again: its frames go on, or it runs beside `main`."""
    first = next(log.events_of("dynamo_start"), None)
    goes_on = first is not None and first.id_parts.frame not in ("", "0")
    return goes_on or bool(main.ends and log.ends and log.ends[0].written <= main.ends[1].written)


def _process(log: Log) -> int:
    return log.ends[0].process if log.ends else 0


def _free_number(taken: Mapping[int, Rank]) -> int:
    return next(number for number in range(len(taken) + 1) if number not in taken)
