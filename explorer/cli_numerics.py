"""`tcompile numerics`: save the values of each operation of a call, and compare those of two runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from explorer.cli_json import add_json, print_answer, prints_json
from explorer.entry.file_call import add_code, add_options, output_path, parse_asked

_NUMERICS = """\
Save the values of each operation of a call, and compare those of two processes, versions of torch, machines or
configurations. The first divergence that is more than rounding is told with its module and line.

Operations are computed in eager mode. With --backend, --mode or --options, they are those of a compiled graph that
returns all of them, and the results of the call are those of the graph as it is. Tensors of at most 2,048 elements are
kept whole; of larger ones, the bounds and the mean of 256 blocks, and 512 samples.

examples:
  tcompile numerics save model.py:model --input "randn(8, 64)" -o eager.npz
  tcompile numerics save model.py:model --input "randn(8, 64)" --backend inductor -o compiled.npz
  tcompile numerics compare eager.npz compiled.npz -o numerics.html
"""


def add_numerics(commands: Any) -> None:
    """Add the commands to the parser."""
    command = commands.add_parser(
        "numerics", help="save the values of each operation of a call, and compare two runs",
        description=_NUMERICS, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    ways = command.add_subparsers(required=True, metavar="save|compare")
    save = ways.add_parser("save", help="save the values of each operation of a call")
    save.set_defaults(command=_save)
    add_code(save)
    save.add_argument("-o", "--output", type=output_path(".npz"), required=True, metavar="PATH", help="where to (.npz)")
    add_options(save)
    compare = ways.add_parser("compare", help="compare the values of two runs")
    compare.set_defaults(command=_compare)
    compare.add_argument("first", type=Path, metavar="FIRST", help="the file of one run")
    compare.add_argument("second", type=Path, metavar="SECOND", help="the file of another run")
    compare.add_argument(
        "-o", "--output", "--html", dest="html", type=output_path(".html"), metavar="PATH", help="save a page"
    )
    add_json(compare)


def _save(args: argparse.Namespace) -> None:
    from compiler.record.plain_text import pluralize
    from explorer.entry.numerics import save_values
    from explorer.run import files

    snapshot = save_values(args, parse_asked(args))
    if snapshot is None:
        return
    data = snapshot.to_bytes()
    files.replace_file(args.output, data)
    count = pluralize(len(snapshot.header.operations), "value")
    print("\n".join([f"wrote {args.output}: {count}, {len(data) / 1e3:,.0f} kB", *snapshot.header.notes]))


def _compare(args: argparse.Namespace) -> None:
    from compiler.numerics.across.comparison import compare
    from compiler.numerics.across.snapshot import Snapshot
    from explorer.findings.numerics_across import comparison_document, comparison_items
    from explorer.render.html import static_page
    from explorer.render.static import document_html
    from explorer.render.text import document_text
    from explorer.run import files
    from explorer.run.answers import Answer

    found = compare(Snapshot.load(args.first), Snapshot.load(args.second))
    names = (args.first.name, args.second.name)
    document = comparison_document(found, names)
    title = f"{found.titles[0]}: {names[0]} against {names[1]}"
    if prints_json(args):
        first = found.first
        facts = {
            "verdict": found.verdict, "first": first.id if first else None,
            "cause": found.cause_of(first) if first else "", "settings": found.settings, "notes": found.notes,
        }  # fmt: skip
        print_answer(Answer("numerics", title, facts, comparison_items(found)), args)
    else:
        print(document_text(document))
    if args.html:
        files.replace_file(args.html, static_page(title, document_html(document)).encode())
        print(f"wrote {args.html}")
    args.failed = found.first is not None
