"""How well differing ranks are found: `python -m benchmarks.ranks [--keep DIR] [NAME…]` prints JSON.

With `--speed`, it measures how fast ranks are simulated (`rank_speed`). Otherwise it runs the programs of
`rank_programs` with TORCH_TRACE, each rank in a process of its own, and compares the logs.
`false_divergences` counts differences of ranks that are equal; `found` counts injected ones that are found, of the
right kind and, if the difference has a line, on that line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECONDS = 240
"""The time limit for one program."""

os.environ["TORCH_TRACE"] = os.environ.get("TORCH_TRACE") or tempfile.mkdtemp()
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


def write_logs(case: Any, folder: Path, shared: Path) -> None:
    """Run a program on all its ranks; the logs are in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as private:
        children = {_start(case, rank, folder, shared, Path(private)): rank for rank in range(case.ranks)}
        end = time.monotonic() + SECONDS
        while children and time.monotonic() < end:
            for process in [process for process in children if os.waitpid(process, os.WNOHANG)[0]]:
                del children[process]
            time.sleep(0.02)
        for process in children:
            os.kill(process, 9)
            os.waitpid(process, 0)


def write_all(cases: Sequence[Any], folder: Path, at_once: int) -> None:
    """Run programs that have no logs in `folder` yet, several at once."""
    running = 0
    for case in cases:
        if (folder / case.name).exists():
            continue
        if running == at_once:
            os.wait()
            running -= 1
        if not os.fork():
            write_logs(case, folder / case.name, folder / ".caches" / (case.name if at_once > 1 else ""))
            os._exit(0)
        running += 1
    for _ in range(running):
        os.wait()


def _start(case: Any, rank: int, folder: Path, shared: Path, private: Path) -> int:
    """Fork a rank, and return the number of its process."""
    if process := os.fork():
        return process
    try:
        odd = rank == 1 and bool(case.kinds)
        cache = {"own": private / f"cache_{rank}", "shared": private / "cache"}.get(case.caches, shared)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
        _run_rank(case, rank, odd, folder, private)
    except BaseException:  # noqa: BLE001  the process of a rank ends here in any case
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _run_rank(case: Any, rank: int, odd: bool, folder: Path, private: Path) -> None:
    import torch
    import torch.distributed as dist
    from torch._logging import _internal, structured

    from benchmarks.rank_programs import StartAgainError

    torch.manual_seed(0)
    # With a cache of its own, each rank would compile the headers for minutes, to use them once.
    torch._inductor.config.cpp_cache_precompile_headers = case.caches != "own"
    torch._inductor.config.fx_graph_cache = torch._functorch.config.enable_autograd_cache = case.caches != "off"
    if case.group == "gloo":
        store: Any = dist.FileStore(  # type: ignore[attr-defined]
            str(private / "store"), case.ranks
        )
    else:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        store = FakeStore()
    dist.init_process_group(case.group, store=store, rank=rank, world_size=case.ranks)
    handler: Any = _internal.LOG_TRACE_HANDLER
    handler.root_dir = str(private)
    try:
        if case.caches == "own" and odd:
            case.run(rank, odd)
    except StartAgainError:
        odd = False
    if handler.stream is not None:
        handler.stream.close()
    handler.stream, handler.root_dir = None, str(folder)
    structured.INTERN_TABLE.clear()
    case.run(rank, odd)


def result_of(case: Any, folder: Path) -> dict[str, Any]:
    """The differences found in a program's logs, and whether they are right."""
    from compiler.logs.files import read_logs
    from compiler.logs.ranks import compare_ranks

    logs = {log.rank if log.rank is not None else number: log for number, log in enumerate(read_logs(folder))}
    found = compare_ranks(logs).differences
    listed = [f"{each.kind}: {each.words} ({each.file.rpartition('/')[2]}:{each.line})" for each in found]
    right = [each for each in found if each.kind in case.kinds and (not case.lines or each.line in case.lines)]
    return {"ranks": len(logs), "lines": case.lines, "differences": listed, "right": bool(right)}


def main(words: Sequence[str] | None = None) -> None:
    """Run the programs and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs; all without")
    parser.add_argument("--keep", type=Path, help="a folder for the logs; programs with logs there are not run again")
    parser.add_argument("--at-once", type=int, default=1, help="programs that run at once (1)")
    parser.add_argument("--speed", action="store_true", help="measure how fast ranks are simulated, and nothing else")
    parser.add_argument("--logs-only", action="store_true", help="write the logs, and compare nothing")
    args = parser.parse_args(words)
    if args.speed:
        from benchmarks.rank_speed import speed

        print(json.dumps(speed(args.names), indent=1))
        return
    from benchmarks.rank_differences import DIFFERENT
    from benchmarks.rank_programs import EQUAL

    folder = args.keep or Path(tempfile.mkdtemp())
    cases = [case for name, case in (EQUAL | DIFFERENT).items() if not args.names or name in args.names]
    write_all(cases, folder, args.at_once)
    if args.logs_only:
        return
    results = {case.name: result_of(case, folder / case.name) for case in cases}
    equal = {name: each for name, each in results.items() if name in EQUAL}
    odd = {name: each for name, each in results.items() if name in DIFFERENT}
    print(json.dumps({
        "equal_pairs": sum(each["ranks"] - 1 for each in equal.values()),
        "false_divergences": sum(len(each["differences"]) for each in equal.values()),
        "injected": len(odd),
        "found": sum(each["right"] for each in odd.values()),
        "programs": results,
    }, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
