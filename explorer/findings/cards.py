"""Cards of a run as text: graph breaks, then recompilations."""

from __future__ import annotations

from compiler.record import Record
from explorer.findings.breaks import break_cards
from explorer.findings.recompile_cards import recompile_cards
from explorer.render.text import card_texts


class Cards(tuple[str, ...]):
    """Texts of all cards of a run: graph breaks first, then recompilations. Prints all of them."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n\n".join(self) or "no graph breaks and no recompilations"

    __repr__ = __str__


def all_cards(record: Record) -> Cards:
    """Texts of all cards of a record."""
    return Cards([*break_texts(record), *recompile_texts(record)])


def break_texts(record: Record) -> list[str]:
    """Card text of each break site."""
    return card_texts(break_cards(record))


def recompile_texts(record: Record) -> list[str]:
    """Card text of each recompilation cause."""
    return card_texts(recompile_cards(record))
