"""Finding logs: archives, rotated and interleaved files, and input that is no log."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from compiler.logs import files
from compiler.logs.files import LogError, read_logs
from compiler.logs.job import Job


def event(number: int, rank: int | None = None, second: int = 0) -> bytes:
    own = f', "rank": {rank}' if rank is not None else ""
    head = f"V0102 03:04:{second:02}.500000 7 torch/_dynamo/utils.py:12] "
    return (head + f'{{"dynamo_start": {{"stack": []}}, "frame_id": {number}, "frame_compile_id": 0{own}}}\n').encode()


NAME = "dedicated_log_torch_trace_abc.log"


def ids(path: Path) -> dict[int | None, list[str]]:
    return {log.rank: [each.compile_id for each in log] for log in read_logs(path)}


def test_directory_has_a_log_for_each_rank(tmp_path: Path) -> None:
    for rank in (1, 0):
        (tmp_path / f"dedicated_log_torch_trace_rank_{rank}_x.log").write_bytes(event(rank, rank))
    (tmp_path / "notes.txt").write_text("not a log")
    job = Job.load(tmp_path)
    assert list(job.ranks) == [0, 1]
    assert job.problems == ()
    assert job.record.origin == "log"
    assert repr(job.ranks[1]) == "<Rank 1: dedicated_log_torch_trace_rank_1_x.log, 1 event>"


def test_parts_of_a_rotated_log_are_joined_by_time(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(event(3, second=30))
    (tmp_path / f"{NAME}.1").write_bytes(event(2, second=20))
    (tmp_path / f"{NAME}.2.gz").write_bytes(gzip.compress(event(1, second=10)))
    assert ids(tmp_path) == {None: ["1/0", "2/0", "3/0"]}


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz", ".tar"])
def test_archives_are_read_in_memory(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"logs{suffix}"
    members = {f"job/dedicated_log_torch_trace_rank_{rank}_x.log": event(rank, rank) for rank in (0, 3)}
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w") as zipped:
            for name, text in members.items():
                zipped.writestr(name, text)
    else:
        with tarfile.open(path, "w:gz" if suffix == ".tar.gz" else "w") as archive:
            for name, text in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(text)
                archive.addfile(info, io.BytesIO(text))
            link = tarfile.TarInfo("job/link.log")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(link)
    assert ids(path) == {0: ["0/0"], 3: ["3/0"]}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (bytes(range(256)) * 20, "it is binary"),
        (event(0).decode().encode("utf-16"), "UTF-16 text"),
        (b"I0102 03:04:05.500000 7 torch/_dynamo/utils.py:12] hello\n", "a log of TORCH_LOGS or of another tool"),
        (b"step 1 loss 0.3\n" * 100, "no event of a structured trace"),
        (b"x" * 2**20, "no event of a structured trace"),
        (b"\x1f\x8b" + b"\x00" * 40, "a damaged gzip file"),
        (b"PK\x03\x04" + b"\x00" * 40, "damaged or encrypted"),
    ],
)
def test_what_is_no_log_is_refused_in_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / NAME
    path.write_bytes(content)
    with pytest.raises(LogError, match=reason) as raised:
        read_logs(path)
    assert "\n" not in str(raised.value)


def test_other_files_of_a_directory_are_problems(tmp_path: Path) -> None:
    outside = tmp_path / "secret.log"
    outside.write_bytes(event(9))
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.log").write_bytes(event(0))
    (folder / "b.log").symlink_to(outside)
    (folder / "c.log").write_bytes(b"")
    os.mkfifo(folder / "d.log")
    assert ids(folder) == {None: ["0/0"]}
    assert [(problem.file, problem.reason.split(";")[0]) for problem in Job.load(folder).problems] == [
        ("b.log", "it is a link that leads out of the directory"),
        ("d.log", "this is no regular file"),
        ("c.log", "it is empty"),
    ]


def test_large_members_of_archives_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_UNPACKED", 10_000)
    bomb = b"\n" * 10**6
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(bomb))
    with zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("b.log", bomb)
    for name in ("a.log.gz", "b.zip"):
        with pytest.raises(LogError, match="more than 0 MB"):
            read_logs(tmp_path / name)
    monkeypatch.setattr(files, "MOST_UNPACKED", 2**30)
    monkeypatch.setattr(files, "SMALL_FILE", 2**18)
    with pytest.raises(LogError, match="no event of a structured trace"):
        read_logs(tmp_path / "b.zip")
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(event(0) + bomb))
    assert len(read_logs(tmp_path / "a.log.gz")[0]) == 1  # it is small: a program may repeat itself
    monkeypatch.setattr(files, "LARGE", 2**18)
    with pytest.raises(LogError, match="packed more than 200 times"):
        read_logs(tmp_path / "a.log.gz")


def test_rank_of_the_events_wins_over_the_name(tmp_path: Path) -> None:
    path = tmp_path / "dedicated_log_torch_trace_rank_5_x.log"
    path.write_bytes(event(0) + event(1, rank=2))
    (log,) = read_logs(path)
    assert log.rank == 2
    assert [problem.reason for problem in log.problems] == [
        "its name says rank 5, its events say rank 2, which is shown"
    ]


def test_interleaved_ranks_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(event(0, 0) + event(1, 1) + event(2, 0) + b"Traceback of another thread\n")
    assert ids(path) == {0: ["0/0", "2/0"], 1: ["1/0"]}
    path.write_bytes(b"".join(b"[rank%d]:%b" % (n % 2, event(n)) for n in range(4)) + b"[rank0]:\tcut o")
    assert ids(path) == {0: ["0/0", "2/0"], 1: ["1/0", "3/0"]}


@pytest.mark.parametrize(
    "prefix", [b"[default%d]:", b"(EngineCore_DP%d pid=12) ", b"\x1b[1;36m(Worker_TP%d pid=7, ip=10.0.0.1)\x1b[0;0m "]
)
def test_lines_with_the_prefix_of_a_launcher_are_read_by_process(tmp_path: Path, prefix: bytes) -> None:
    path = tmp_path / NAME
    lines = (prefix % (n % 2) + event(n).replace(b"\n\t", b"\n" + prefix % (n % 2) + b"\t") for n in range(4))
    path.write_bytes(b"Starting\n" + b"".join(lines))
    assert sorted([event.compile_id for event in log] for log in read_logs(path)) == [["0/0", "2/0"], ["1/0", "3/0"]]


def test_copy_of_a_log_is_left_out(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / NAME).write_bytes(event(0, 1) + event(1, 1))
    job = Job.load(tmp_path)
    assert list(job.ranks) == [1]
    assert [problem.reason for problem in job.problems] == [f"it is a copy of a/{NAME}; it is left out"]
