"""The options of an exploration, and the errors for invalid ones."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest
import torch

from compiler import option_answers
from compiler.option_checks import assignments, available_targets, parse_options
from compiler.record import Record
from compiler.record.options import OptionError, Options
from compiler.torch_api import settings


def refusal(**keywords: Any) -> str:
    with pytest.raises(OptionError) as caught:
        parse_options(**keywords)
    return str(caught.value)


def some_backend(module: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
    return module


def test_no_option_is_required() -> None:
    assert parse_options() == Options()


def test_every_option_is_accepted() -> None:
    asked: dict[str, Any] = {
        "target": "cpu",
        "mode": "max-autotune",
        "dynamic": True,
        "fullgraph": True,
        "backend": "inductor",
        "options": {},
        "stages": ("captured", "forward"),
        "grad": False,
        "time": False,
        "check": False,
        "step": True,
        "vs": "tcompile",
        "ranks": 8,
        "rank": "0,last",
        "node": 4,
        "fake": True,
    }
    assert {field.name for field in dataclasses.fields(Options)} == set(asked)
    assert dataclasses.asdict(parse_options(**asked)) == asked


def test_none_is_the_default() -> None:
    assert parse_options(mode=None, backend=None, options=None, stages=None, dynamic=None, grad=None) == Options()


@pytest.mark.parametrize("mode", settings.modes())
def test_every_torch_mode_is_accepted(mode: str) -> None:
    assert parse_options(mode=mode).mode == mode


@pytest.mark.parametrize("backend", ["inductor", "eager", "aot_eager", "cudagraphs"])
def test_registered_backend_is_accepted(backend: str) -> None:
    assert parse_options(backend=backend).backend == backend


def test_stages_are_a_comma_list_or_names() -> None:
    assert parse_options(stages="captured, forward") == parse_options(stages=["captured", "forward"])
    assert parse_options(stages="") == Options()


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({"mode": "training"}, ["mode='training'", "model.train()", "'max-autotune'", "'reduce-overhead'"]),
        ({"ranks": 0}, ["ranks=0", "above 0"]),
        ({"ranks": 8, "rank": 8}, ["rank=8", "from 0 to 7"]),
        ({"ranks": 8, "rank": "middle"}, ["rank='middle'", "'corners'"]),
        ({"rank": 3}, ["needs ranks="]),
        ({"ranks": 8, "time": True}, ["time=", "collectives", "load_profile"]),
        ({"mode": "evaluation"}, ["mode='evaluation'", "model.eval()", "grad=False (--no-grad)", "'default'"]),
        ({"mode": "Training"}, ["model.train()"]),
        ({"optimization_level": "O1"}, ["no option optimization_level=", "mode='max-autotune'", "torch.autocast"]),
        ({"mode": "O1"}, ["mode='O1'", "modes, not levels", "'max-autotune'"]),
        ({"device": "cuda"}, ["no option device=", "move the model and its inputs with .to(...)", "--target"]),
        ({"backend": "graph"}, ["backend='graph'", "backend='eager'", "'inductor'"]),
        ({"background": True}, ["no option background=", "first called"]),
        ({"mode": "reduce_overhead"}, ["did you mean 'reduce-overhead'?"]),
        ({"mode": "max_autotune"}, ["did you mean 'max-autotune'?"]),
        ({"mode": "max-autotune-no-cudagraph"}, ["did you mean 'max-autotune-no-cudagraphs'?"]),
        ({"backend": "inductr"}, ["did you mean 'inductor'?"]),
        ({"backend": "aoteager"}, ["did you mean 'aot_eager'?"]),
        ({"backend": "nvfuser"}, ["removed from PyTorch"]),
        ({"backend": "cuda"}, ["device the tensors are on"]),
        ({"dynamic_shapes": True}, ["torch.export", "dynamic=True"]),
        ({"full_graph": True}, ["fullgraph=True"]),
        ({"nopython": True}, ["fullgraph=True"]),
        ({"fulgraph": True}, ["did you mean fullgraph=?"]),
        ({"optimizer": None, "loss": None}, ["Keras"]),
        ({"cudagraphs": True}, ["mode='reduce-overhead'"]),
        ({"max_autotune": True}, ["options={'max_autotune': …}", "--options max_autotune=…"]),
        ({"nonsense": 1}, ["no option nonsense=", "target, mode, dynamic, fullgraph, backend, options"]),
    ],
    ids=str,
)
def test_wrong_option_suggests_the_right_spelling(keywords: dict[str, Any], expected: list[str]) -> None:
    message = refusal(**keywords)
    assert [part for part in expected if part not in message] == []


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({"mode": True}, "mode=True: it is a name (a str), not bool"),
        ({"backend": 3}, "backend=3: it is a name (a str), not int"),
        ({"dynamic": "auto"}, "dynamic=None finds out by itself"),
        ({"fullgraph": "yes"}, "fullgraph='yes': it is True or False"),
        ({"grad": "no"}, "grad='no': None explores"),
        ({"options": ["max_autotune"]}, "it is a dict of Inductor's settings"),
        ({"stages": "forward,bakward"}, "did you mean 'backward'?"),
        ({"options": {"max_autotune": "true"}}, "it must be True or False. Write True."),
        ({"options": {"epilog_fusion": True}}, "did you mean 'epilogue_fusion'?"),
        ({"options": {"cudagraphs": True}}, "did you mean 'triton.cudagraphs'?"),
        ({"options": {"cpu_backend": "rust"}}, "it is one of 'cpp', 'triton'"),
        ({"mode": "max-autotune", "options": {"max_autotune": True}}, "a mode or options, not both"),
        (
            {"backend": "tcompile", "mode": "max-autotune", "options": {"fused_loops": 3}},
            "leave out mode='max-autotune' to set thresholds, or the options for the mode",
        ),
        ({"mode": "max-autotune", "backend": "eager"}, "backend 'eager' has none"),
    ],
    ids=str,
)
def test_wrong_value_lists_the_valid_ones(keywords: dict[str, Any], expected: str) -> None:
    assert expected in refusal(**keywords)


def test_mode_with_options_error_expands_the_mode() -> None:
    assert "'triton.cudagraphs': True" in refusal(mode="reduce-overhead", options={"max_autotune": True})


def test_option_hints_cover_only_invalid_options() -> None:
    assert not option_answers.KEYWORDS.keys() & {field.name for field in dataclasses.fields(Options)}
    assert not option_answers.MODES.keys() & settings.modes().keys()
    assert not option_answers.BACKENDS.keys() & set(settings.backends())


def test_settings_are_spelled_with_dashes_or_underscores() -> None:
    assert parse_options(options={"max-autotune": True}) == parse_options(options={"max_autotune": True})


def test_other_backend_options_are_passed_through() -> None:
    assert parse_options(backend="eager", options={"anything": 1}).options == {"anything": 1}


def test_target_is_an_available_device() -> None:
    assert parse_options(target="cpu").target == "cpu"
    assert "cpu" in available_targets()
    assert ("cuda" in available_targets()) == torch.cuda.is_available()


@pytest.mark.parametrize(("written", "name"), [("h100", "h100"), ("RTX 4090", "rtx4090"), ("nvidia-a100", "a100")])
def test_target_may_be_an_absent_gpu(written: str, name: str) -> None:
    assert parse_options(target=written).target == name


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("h101", ["did you mean 'h100'?", "Devices of this machine: 'cpu'"]),
        ("mi300", ["did you mean 'mi300x'?"]),
        ("tpu", ["there is no GPU 'tpu' in the table", "a100, h100, h200, b200, l4, t4, rtx4090, mi300x"]),
        ("gpu", ["this machine has no such GPU", "'h100'"]),
    ],
)
def test_unknown_target_lists_what_exists(target: str, expected: list[str]) -> None:
    message = refusal(target=target)
    assert [part for part in expected if part not in message] == []


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({"backend": "eager"}, "is the GPU that backends 'inductor' and 'tcompile' write code for"),
        ({"backend": some_backend}, "is the GPU that backends 'inductor' and 'tcompile' write code for"),
    ],
    ids=["by name", "a function"],
)
def test_non_codegen_backends_are_refused_for_absent_gpus(keywords: dict[str, Any], expected: str) -> None:
    assert expected in refusal(target="h100", **keywords)


def test_missing_cuda_device_is_reported() -> None:
    assert "this machine has no such GPU. Available here: 'cpu'" in refusal(target="cuda:64")


def test_callable_backend_is_recorded_by_name() -> None:
    options = parse_options(backend=some_backend)
    assert options.backend.endswith(".some_backend")
    assert options.compile_arguments()["backend"] is some_backend


def test_unserializable_options_do_not_break_the_record() -> None:
    options = parse_options(
        backend=some_backend, options={"a_pass": some_backend, "sizes": (1, 2), "dtype": torch.float32}
    )
    record = Record(title="", options=options)
    assert Record.from_json(record.to_json()) == record
    assert options.options == {"a_pass": options.backend, "sizes": [1, 2], "dtype": "torch.float32"}
    given = options.compile_arguments()["options"]
    assert given == {"a_pass": some_backend, "sizes": (1, 2), "dtype": torch.float32}


@pytest.mark.parametrize(
    "options",
    [
        parse_options(),
        parse_options(mode="reduce-overhead", fullgraph=True, dynamic=False),
        parse_options(options={"max_autotune": False, "cpp.threads": 2}),
        parse_options(backend="eager"),
        parse_options(backend=some_backend, options={"guess": 1}),
    ],
    ids=str,
)
def test_compile_arguments_are_accepted_by_torch_compile(options: Options) -> None:
    assert callable(torch.compile(lambda x: x + 1, **options.compile_arguments()))


def test_assignments_have_literal_values() -> None:
    texts = ["a.b=True", "c=3", "d='x=y'", "e=None", "f=[1, 2]", "g=ATEN"]
    assert assignments(texts) == {"a.b": True, "c": 3, "d": "x=y", "e": None, "f": [1, 2], "g": "ATEN"}


@pytest.mark.parametrize("text", ["max_autotune", "=True", ""])
def test_malformed_assignment_explains_the_form(text: str) -> None:
    with pytest.raises(OptionError, match="write it as name=value"):
        assignments([text])


def test_reading_a_record_does_not_import_torch() -> None:
    code = "import sys, compiler.record; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
