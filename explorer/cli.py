"""The `tcompile` command: explore or x-ray code, decompose an operator, show a record or a job, or write its page."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from compiler.record import Artifact, Record, UntrustedError
from compiler.record.plain_text import did_you_mean
from explorer.cli_check import add_check
from explorer.cli_diagnose import add_diagnose
from explorer.cli_diff import add_diff
from explorer.cli_json import add_json, answers_alone, join_json, print_answer, prints_json
from explorer.cli_kernel import add_kernel
from explorer.cli_mcp import add_mcp
from explorer.cli_numerics import add_numerics
from explorer.cli_repro import add_repro
from explorer.cli_watch import add_watch
from explorer.entry.file_call import (
    UsageError,
    add_call,
    add_command,
    add_inputs,
    add_save,
    explore_file,
    explore_strictly,
    output_path,
    parse_asked,
)
from explorer.entry.options import join_values
from explorer.entry.write_files import write_files
from explorer.findings import capture_text
from explorer.reading.stages import STAGE_WORDS, stage_key
from explorer.run import files, text
from explorer.run.answers import Answer
from explorer.run.compiling import KernelCompiler, machine_stages
from explorer.run.patch import Patch
from explorer.run.record_answers import (
    FACTS,
    diagnosis_answer,
    facts_answer,
    job_answer,
    record_answer,
    stage_answer,
    text_answer,
)

if TYPE_CHECKING:
    from explorer.run.run import Run
    from explorer.run.xray import XRayed

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130

_EXPLORE = """\
Call a function or a model of a Python file under torch.compile, and show every stage it went through.

examples:
  tcompile explore model.py:model --input "randn(8, 64)" --html run.html
  tcompile explore attention.py:attend --input "randn(2, 8, 64)" --input "causal=True" --mode max-autotune
"""


_XRAY = """\
Find all graph breaks of a function or a model, also those behind others, and try fixes.

The fixes that work together are printed as a diff. Nothing is changed unless --write asks for it.

examples:
  tcompile xray model.py:model --input "randn(8, 64)" -o xray.html
  tcompile xray model.py:model --input "randn(8, 64)" --patch fix.patch && git apply fix.patch
  tcompile xray model.py:model --input "randn(8, 64)" --fix 1,3 --write
"""


_CACHES = """\
Run a program five times in fresh processes, and measure what makes its start faster: warm local caches, the artifacts
of torch.compiler.save_cache_artifacts, or precompiled code (TORCH_CACHING_PRECOMPILE).

All that the program does happens five times. Its caches are in a temporary folder; yours are neither read nor written.
A program that sets TORCHINDUCTOR_CACHE_DIR itself does use that folder: it runs once, and you are told.

example:
  tcompile caches -- python train.py --steps 1
"""


_SHOW = """\
Show a saved record or one stage of it, or what torch.compile did in a job that wrote logs (TORCH_TRACE).

examples:
  tcompile show run.json captured
  tcompile show trace_dir                 # all compilations
  tcompile show trace_dir 0/1             # one of them
  tcompile show trace_dir 0/1 kernels
  tcompile show trace_dir breaks          # all of the job; or recompiles, graphs, ranks, cold_start
  tcompile show trace_dir changed_caches EARLIER_TRACE_DIR
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_USE, f"tcompile: {message} ({self.prog} --help tells more)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    It is 0 for success, 1 if the user's code raised, 2 for wrong usage or a file error, 130 if interrupted.
    """
    words = sys.argv[1:] if argv is None else argv
    parser = _parser()
    args, rest = parser.parse_known_args(join_values(join_json(words)))
    if rest and not ("take_rest" in args and args.take_rest(args, rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        with answers_alone(args):
            args.command(args)
    except (ValueError, UntrustedError) as error:  # an invalid request; errors of the user's code are UserError
        return _complain(" ".join(str(error).split()), WRONG_USE)
    except BrokenPipeError:
        # The reader (`| head`) has closed the pipe; without this, Python would raise again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        return _complain(f"{error.strerror}: {error.filename}" if error.filename else str(error), WRONG_USE)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0 if not getattr(args, "failed", False) else FAILED


def _complain(message: str, code: int) -> int:
    print(f"tcompile: {message}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="tcompile", description="See every stage of torch.compile on your own code.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_explore(commands)
    _add_xray(commands)
    add_diagnose(commands)
    add_check(commands)
    add_diff(commands)
    add_repro(commands)
    add_watch(commands)
    add_kernel(commands)
    add_mcp(commands)
    add_numerics(commands)
    _add_decompose(commands)
    _add_show(commands)
    _add_report(commands)
    _add_caches(commands)
    # `tcompile.__main__` runs this one, before anything else is imported.
    commands.add_parser("run", help="run a command, and write a page of all that torch.compile did in it")
    return parser


def _add_explore(commands: Any) -> None:
    command = add_command(commands, "explore", _EXPLORE, _explore, help="explore a function or model in a file")
    add_call(command, "--html")
    add_save(command)
    command.add_argument("--strictly", action="store_true", help=argparse.SUPPRESS)  # for `tcompile diff`
    add_json(command, has_path=True)


def _add_xray(commands: Any) -> None:
    command = add_command(
        commands, "xray", _XRAY, _xray, help="find all graph breaks of a function or model in a file, and try fixes"
    )
    add_call(command, "-o", "--output", "--html")
    add_save(command)
    add_json(command, has_path=True)
    command.add_argument(
        "--fix", type=_numbers, metavar="1,3", help="the fixes of these sites only, by the numbers on their cards"
    )
    command.add_argument("--sites-only", action="store_true", help="find the breaks, and try no fixes")
    command.add_argument("--patch", type=output_path(".patch", ".diff"), metavar="PATH", help="save the diff")
    command.add_argument(
        "--write", action="store_true", help="change the files: shows the diff, asks, and keeps each as FILE.py.orig"
    )
    command.add_argument("--yes", action="store_true", help="with --write: do not ask")


def _add_decompose(commands: Any) -> None:
    command = commands.add_parser(
        "decompose", help="show what an operator becomes, level by level",
        description="Take one call of an operator apart: ATen, core ATen, Inductor's set, prims.",
    )  # fmt: skip
    command.set_defaults(command=_decompose)
    command.add_argument("operator", metavar="NAME", help="aten.gelu, aten.add.Tensor, torch.nn.functional.layer_norm")
    add_inputs(command)


def _add_show(commands: Any) -> None:
    facts = ", ".join(capture_text.FACTS)
    command = add_command(
        commands, "show", _SHOW, _show, help="show a saved record, or the logs of a job, in the terminal"
    )
    command.add_argument(
        "path", metavar="PATH", help="a record (.json, .html), or logs of TORCH_TRACE: a file, a directory, an archive"
    )
    command.add_argument(
        "names", nargs="*", metavar="NAME", help="a stage: forward, kernels, ptx, …, or its id: forward[0/0]; or "
        f"{facts}; of logs, first a compilation: 0/1, or 3:0/1 on rank 3",
    )  # fmt: skip
    command.add_argument(
        "--trust", action="store_true", help="execute the kernels' source from the file, to compile them: sass, ptx, …"
    )
    command.add_argument("--raw", action="store_true", help="the stage's text alone, without numbers and links")
    add_json(command)


def _add_report(commands: Any) -> None:
    command = commands.add_parser(
        "report", help="make the page of a saved record, or of the logs of a job",
        description="Write the page to explore a saved record, or the logs of a job (TORCH_TRACE).",
    )  # fmt: skip
    command.set_defaults(command=_report)
    command.add_argument(
        "path", metavar="PATH", help="a record, or logs of TORCH_TRACE: a file, a directory, an archive"
    )
    command.add_argument("-o", "--output", type=output_path(".html"), help="where to (PATH.html)")
    command.add_argument(
        "--only", default="", metavar="0/1", help="of logs: the page of this compilation, or 3:0/1 for one of rank 3"
    )
    command.add_argument(
        "--trace",
        type=output_path(".json"),
        metavar="PATH",
        help="of logs: save when each rank compiled what, for Perfetto",
    )
    command.add_argument(
        "--stage", default="", metavar="STAGE", help="a small page of one stage, for an <iframe>: captured, kernels, …"
    )
    command.add_argument("--graph", action="store_true", help="with --stage: as a drawing")


def _add_caches(commands: Any) -> None:
    command = add_command(commands, "caches", _CACHES, _try_caches, help="try which caches make a program start faster")
    command.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the program and its arguments"
    )


def _numbers(value: str) -> list[int]:
    """An argparse type for numbers with commas between them."""
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{value!r} is no list of numbers, such as 1,3")
    return [int(part) for part in parts]


def _explore(args: argparse.Namespace) -> None:
    explore = explore_strictly if args.strictly else explore_file
    if (run := explore(args, parse_asked(args))) is not None:
        _report_run(run, args)


def _xray(args: argparse.Namespace) -> None:
    if args.sites_only and (args.patch or args.write or args.fix):
        raise UsageError("--sites-only tries no fixes, so there is nothing for --patch, --write or --fix")
    if args.write and not (args.yes or sys.stdin.isatty()):
        raise UsageError("--write asks before it changes files, and there is nobody to ask here: add --yes")
    run = explore_file(args, {"stages": "captured"} | parse_asked(args))
    if run is None:
        return
    found = run.xray(_show_progress if sys.stderr.isatty() else None)
    patch = Patch("") if args.sites_only else found.patch(_chosen_sites(found, args.fix))
    _show_progress("")
    if prints_json(args):
        told = str(patch) if patch.files else found.found.patch
        print_answer(diagnosis_answer(replace(run.diagnose(try_fixes=False), patch=told)), args)
    else:
        print(found)
    if not prints_json(args) and not args.sites_only and (found.sites or patch):
        print(f"\n{patch.rstrip()}")
    _save(run, args)
    if patch.files and args.patch:
        files.replace_file(args.patch, patch.encoded())
        print(f"wrote {args.patch}")
    if patch.files and args.write:
        _write(patch, args)


def _chosen_sites(found: XRayed, numbers: Sequence[int] | None) -> list[str] | None:
    """Ids of the sites with these numbers, from 1; None for all fixes that work together. Raises UsageError."""
    if numbers is None:
        return None
    fixes = {fix.site: fix for fix in found.try_fixes().fixes}
    for number in numbers:
        if not 1 <= number <= len(found.sites):
            there = f"they are 1 to {len(found.sites)}" if found.sites else "this program has none"
            raise UsageError(f"--fix: there is no site {number}: {there}")
        fix = fixes.get(found.sites[number - 1].id)
        if fix is None or fix.suggestion is None or not fix.suggestion.can_be_applied:
            raise UsageError(f"--fix: site {number} has no fix to choose: {fix.words if fix else 'none was tried'}")
    return [found.sites[number - 1].id for number in dict.fromkeys(numbers)]


def _show_progress(words: str) -> None:
    """Replace the progress line in a terminal; "" removes the line."""
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{words}", end="…" if words else "", file=sys.stderr, flush=True)


def _write(patch: Patch, args: argparse.Namespace) -> None:
    """Apply a patch to the user's files, after asking unless `--yes` is given."""
    names = ", ".join(file.name for file in patch.files)
    if not args.yes and input(f"Change {names}? [y/N] ").strip().lower() not in ("y", "yes"):
        print("Nothing was written.")
        return
    for file, backup in zip(patch.files, write_files(patch.files), strict=True):
        print(f"wrote {file.name}; as it was: {backup}")


def _decompose(args: argparse.Namespace) -> None:
    import torch

    from explorer.entry import call_inputs
    from explorer.findings.decompose.op_levels import decompose

    torch.manual_seed(args.seed)
    inputs = call_inputs.parse(args.inputs)
    print(decompose(args.operator, *inputs.args, **inputs.kwargs))


def _report_run(run: Run, args: argparse.Namespace) -> None:
    rank = run.record.place.rank if run.record.origin == "observed" and run.record.place else 0
    if rank:  # of a real job: rank 0 shows the records of all
        return
    if prints_json(args):
        print_answer(record_answer(run.record), args)
    else:
        print(run)
    if run.record.place is not None:
        print(f"\n{run.ranks}")
    _save(run, args)


def _save(run: Run, args: argparse.Namespace) -> None:
    for path in filter(None, (args.save, None if prints_json(args) else args.json, args.html)):
        run.save(path)
        print(f"\nwrote {path}", end="")
    print()


def _show(args: argparse.Namespace) -> None:
    if not files.is_record(args.path):
        _show_job(args)
        return
    if len(args.names) > 1:
        raise UsageError("a record has one compilation or all: name one stage")
    _show_record(files.read(args.path), args, *args.names)


def _show_job(args: argparse.Namespace) -> None:
    from compiler.logs.job import Job
    from explorer.run import job_facts, job_page

    job = Job.load(args.path)
    if len(args.names) > 2:
        raise UsageError("name a compilation, and one of its stages")
    if len(args.names) == 2 and args.names[0] in job_facts.FACTS:
        first, second = args.names
        raise UsageError(f"{first} is of the whole job; of a compilation: tcompile show {args.path} {second} {first}")
    if args.names and args.names[0] in job_facts.NAMES:
        _print(text_answer(args.names[0], job_page.title_of(job), job_facts.fact_text(job, *args.names)), args)
    elif args.names and stage_key(args.names[0]) in (*STAGE_WORDS, *capture_text.FACTS) and job_page.names_of(job):
        name, first, known = args.names[0], job_page.names_of(job)[0], ", ".join(job_facts.NAMES)
        raise UsageError(f"{name} of which compilation? tcompile show {args.path} {first} {name}; of the job: {known}")
    elif args.names and "/" not in args.names[0] and (meant := did_you_mean(args.names[0], job_facts.NAMES)):
        raise UsageError(f"no compilation or table {args.names[0]!r}{meant}")
    elif args.names:
        _show_record(job_page.record_named(job, args.names[0]), args, *args.names[1:])
    elif args.json:
        print_answer(job_answer(job, job_page.title_of(job)), args)
    else:
        print(job_page.index_text(job))


def _print(answer: Answer, args: argparse.Namespace) -> None:
    """Print an answer that has only text, as JSON if asked."""
    if args.json:
        print_answer(answer, args)
    else:
        print("\n".join(item["text"] for item in answer.items))


def _show_record(record: Record, args: argparse.Namespace, stage: str = "") -> None:
    if args.json:
        print_answer(_stage_answer(record, args, stage), args)
    elif not stage:
        print(text.summary(record))
        for words in record.place.hangs if record.place is not None else ():
            print(f"\n! {words}")
    elif stage in capture_text.FACTS:
        print(capture_text.fact_text(record, stage))
    else:
        record, chosen = _stage_artifacts(record, args, stage)
        for artifact in chosen:
            print(_artifact_text(record, artifact, args.raw, len(chosen) > 1))


def _stage_answer(record: Record, args: argparse.Namespace, stage: str) -> Answer:
    if not stage:
        return record_answer(record)
    return facts_answer(record, stage) if stage in FACTS else stage_answer(*_stage_artifacts(record, args, stage))


def _stage_artifacts(record: Record, args: argparse.Namespace, stage: str) -> tuple[Record, Sequence[Artifact]]:
    """The artifacts of a stage, and the record with them, if they had to be made."""
    name = stage_key(stage)
    record = _with_stage(record.with_trust("trusted") if args.trust else record, name)
    return record, _find_artifacts(record, name)


def _with_stage(record: Record, name: str) -> Record:
    """Add the named stage to the record, if it is missing and can be made, and return the record.

    This compiles kernels or computes findings.
    """
    stage = name.partition("[")[0]
    made = KernelCompiler(record)
    if made.has_yet_to_make(stage):
        return made.make_of_kernels(stage)
    if record.of_stage(stage):
        return record
    # Imported here because findings import modules that a stored stage does not need.
    from explorer.findings import with_findings

    found = with_findings(record)
    return found if found.of_stage(stage) else record


def _find_artifacts(record: Record, name: str) -> Sequence[Artifact]:
    """All artifacts of a stage, or the artifact with this id. Raises UsageError."""
    try:
        first = record[name]
    except KeyError as error:
        has_reason = any(problem.stage == name for problem in record.problems)
        lazily = "" if has_reason else ", ".join(machine_stages(record))
        words = f"; its kernels compile, when one is asked for, to: {lazily}" if lazily else ""
        raise UsageError(f"{error.args[0]}{words}") from None
    return [first] if name == first.id else record.of_stage(name)


def _artifact_text(record: Record, artifact: Artifact, raw: bool, titled: bool) -> str:
    if raw or artifact.language == "text":  # a finding's text has no line numbers
        body = artifact.text.removesuffix("\n")
    else:
        body = text.listing(record, artifact, text.wants_colour(sys.stdout))
    return f"# {artifact.id}  {artifact.title}\n{body}\n" if titled and not raw else body


def _try_caches(args: argparse.Namespace) -> None:
    from explorer.entry.cache_trials import run_trials, show_progress, trial_document
    from explorer.render.text import document_text

    program = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not program:
        raise UsageError("caches: which program? tcompile caches -- python train.py")
    print(document_text(trial_document(run_trials(program, show_progress))))


def _report(args: argparse.Namespace) -> None:
    output = args.output or Path(args.path).with_suffix(".html")
    if args.graph and not args.stage:
        raise UsageError("--graph needs --stage: a whole page shows graphs anyway")
    is_record = files.is_record(args.path)
    if args.trace:
        _report_trace(args)
        return
    if args.only and is_record:
        raise UsageError("--only chooses a compilation of logs, and this is a record")
    if not is_record and not args.only and not args.stage:
        _report_job(args.path, output)
        return
    record = files.read(args.path) if is_record else _record_of_job(args)
    if args.stage:
        files.write_stage(record, output, stage_key(args.stage), as_graph=args.graph)
    else:
        files.write(record, output)
    print(f"wrote {output}")


def _report_trace(args: argparse.Namespace) -> None:
    from compiler.logs.job import Job
    from explorer.run.job_facts import save_trace

    if args.output or args.only or args.stage or files.is_record(args.path):
        raise UsageError("--trace saves the trace of logs, and nothing else")
    print(f"wrote {save_trace(Job.load(args.path), args.trace)}")


def _record_of_job(args: argparse.Namespace) -> Record:
    from compiler.logs.job import Job
    from explorer.run import job_page

    if not args.only:
        raise UsageError("--stage of logs needs --only: the compilation that it belongs to")
    return job_page.record_named(Job.load(args.path), args.only)


def _report_job(path: str, output: Path) -> None:
    from compiler.logs.job import Job
    from explorer.run import job_page

    page = job_page.write_job_page(Job.load(path), output)
    print(f"wrote {output}, {page.words}")
    if page.left_out:
        print(f"left out: {', '.join(page.left_out[:8])}{', …' if len(page.left_out) > 8 else ''}")
        print(f"the page of one: tcompile report {path} --only {page.left_out[0]} -o one.html")
