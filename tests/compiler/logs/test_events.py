"""Reading the events of a structured trace."""

from __future__ import annotations

from compiler.logs.events import Log

HEAD = b"V0102 03:04:05.500000 7 torch/_dynamo/utils.py:12] "
TEXT = (
    HEAD
    + b'{"str": ["/home/me/train.py", 0]}\n'
    + HEAD
    + b'{"dynamo_output_graph": {}, "frame_id": 1, "frame_compile_id": 2, "attempt": 1, "has_payload": "x"}\n'
    + b"\tclass GraphModule:\n\t    pass\n"
    + b"a line of another library\n"
    + HEAD
    + b'{"artifact": {"name": "fx_graph_cache_hit"}, "compiled_autograd_id": 3, "frame_id": 0, "frame_compile_id": 0}\n'
    + HEAD
    + b'{"damaged": \n'
)


def test_events_of_a_log() -> None:
    log = Log(("a.log",), (TEXT,))
    graph, artifact = log.events_of("dynamo_output_graph", "artifact")
    assert (graph.compile_id, graph.attempt, graph.seconds) == ("1/2", 1, 3 * 3600 + 4 * 60 + 5.5)
    assert (graph.where, graph.payload) == ("torch/_dynamo/utils.py:12", "class GraphModule:\n    pass")
    assert (artifact.name, artifact.compile_id, artifact.payload) == ("fx_graph_cache_hit", "!3/0/0", "")
    assert log.strings == {0: "/home/me/train.py"}
    assert log.counts == {"str": 1, "dynamo_output_graph": 1, "artifact": 1, "damaged": 1}
    assert len(list(log)) == 3
    assert [(problem.file, TEXT[problem.at :].startswith(HEAD)) for problem in log.problems] == [("a.log", True)]


def test_head_with_a_process_number_of_a_hundred_digits_is_no_event() -> None:
    line = 'V0102 03:04:05.500000 {} torch/_dynamo/utils.py:12] {{"dynamo_start": {{}}, "frame_id": 0}}\n'
    log = Log(("a.log",), ((line.format("9" * 100) + line.format(7)).encode(),))
    assert [event.process for event in log] == [7]


def test_log_may_have_more_kinds_of_events_than_fit_into_two_bytes() -> None:
    lines = (f'V0102 03:04:05.500000 7 a.py:12] {{"kind_{n}": {{}}}}\n' for n in range(70_000))
    assert len(Log(("a.log",), ("".join(lines).encode(),)).counts) == 70_000
