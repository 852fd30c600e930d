"""Validation of the options of an exploration: names, values and combinations. Errors suggest the intended option."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, get_args, get_origin

import msgspec
import torch

from compiler import option_answers as answers
from compiler.record import STAGES
from compiler.record.options import OptionError, Options
from compiler.targets import TARGETS, UnknownTargetError, is_virtual, target
from compiler.targets.cpus import INSTRUCTION_SETS, named_instruction_set
from compiler.targets.destination import WRITERS
from compiler.torch_api import settings


def parse_options(**keywords: Any) -> Options:
    """Parse options as a user writes them. `backend` and values of `options` may be callables.

    Raises OptionError with the valid values and, if possible, the intended one.
    """
    for name in keywords:
        _check_name(name)
    named = {name: value for name, value in keywords.items() if value is not None or name not in _DEFAULT_IF_NONE}
    asked = Options(**{name: _CHECKS[name](value) for name, value in named.items()})
    _check_together(asked)
    settings_recorded = {name: _as_json(value) for name, value in asked.options.items()}
    options = replace(asked, backend=_as_json(asked.backend), options=settings_recorded)
    return options.with_objects(asked)


def _as_json(value: Any) -> Any:
    """Convert a value to plain JSON data; an object that JSON can't represent becomes its name."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except TypeError:
        return f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else repr(value)


def assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Parse `["triton.cudagraphs=True", "max_autotune_gemm_backends=ATEN"]` to a dict. Raises OptionError.

    A value is a Python literal; any other word is a string.
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise OptionError(f"--options {text}: write it as name=value, for example --options max_autotune=True")
        found[name.strip()] = literal(value.strip())
    return found


def literal(text: str) -> Any:
    """Parse `text` as a Python literal; return any other text unchanged."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def available_targets() -> tuple[str, ...]:
    """Devices of this machine that code can be generated for: "cpu", and with a GPU, "cuda", "cuda:0", ..."""
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    return ("cpu", *(("cuda",) if gpus else ()), *(f"cuda:{index}" for index in gpus))


def option_names() -> tuple[str, ...]:
    return tuple(option.name for option in fields(Options))


def _check_name(name: str) -> None:
    if name in _CHECKS:
        return
    valid = f"The options are: {', '.join(option_names())}."
    if name in answers.KEYWORDS:
        raise OptionError(f"there is no option {name}=. {answers.KEYWORDS[name]} {valid}")
    if near := _nearest(name, option_names()):
        raise OptionError(f"there is no option {name}=: did you mean {near}=? {valid}")
    if setting := _nearest(name, settings.inductor_settings(), cutoff=0.9):
        raise OptionError(f"{name} is one of Inductor's settings: options={{{setting!r}: …}} (--options {setting}=…)")
    raise OptionError(f"there is no option {name}=. {valid}")


def _check_together(options: Options) -> None:
    _check_ranks(options)
    if options.vs and options.vs == options.backend:
        other = next(name for name in WRITERS if name != options.backend)
        raise OptionError(f"vs={options.vs!r} is the backend itself: to compare, name {other!r}.")
    if options.check == "kernels":
        _check_kernels_check(options)
    _check_instruction_set(options)
    if is_virtual(options.target) and options.backend not in WRITERS:
        raise OptionError(
            f"target={options.target!r} is the GPU that backends 'inductor' and 'tcompile' write code for: leave out "
            "one of the two."
        )
    if options.mode != "default" and options.options:
        leave_out = f"leave out mode={options.mode!r} to set thresholds, or the options for the mode"
        stands_for = f"mode={options.mode!r} stands for options={settings.modes().get(options.mode, {})!r}"
        raise OptionError("torch.compile takes a mode or options, not both" + (
            f": {leave_out}" if options.backend == "tcompile"
            else f". {stands_for}: add yours to these and leave the mode out."
        ))  # fmt: skip
    if options.backend == "tcompile":
        from compiler.backend.options import parse_options as check_own_options

        check_own_options(options.mode, options.options)
    elif options.backend == "inductor":
        for name, value in options.options.items():
            _check_setting(name, value)
    elif options.mode != "default" and not callable(options.backend):
        raise OptionError(
            f"mode={options.mode!r} is a choice of settings of backends 'inductor' and 'tcompile'; backend "
            f"{options.backend!r} has none"
        )


def _check_instruction_set(options: Options) -> None:
    """Check that code for an instruction set that this CPU lacks is only written, and not run."""
    isa = named_instruction_set(options.target)
    if not isa or not (options.time or options.check is True):
        return
    from compiler.torch_api.cpu_isa import has_instruction_set  # imports Inductor

    if not has_instruction_set(isa):
        asked = "time=True" if options.time else "check=True"
        raise OptionError(
            f"{asked} runs the generated code, and this CPU has no {isa.title}: leave out one of the two, or write "
            "target='cpu' for this machine's instruction set."
        )


def _check_kernels_check(options: Options) -> None:
    """Check that with check='kernels', the other options lead to Triton kernels, which the interpreter can run."""
    writes = options.backend in WRITERS
    if options.target.partition(":")[0] == "cpu" or not writes:
        why = "code for the CPU is C++" if writes else f"backend {options.backend!r} writes none"
        raise OptionError(
            f"check='kernels' runs Triton kernels, and {why}: name a GPU as target, such as h100, which need not be "
            "here; check=True compares what built code returns."
        )
    if options.stages and not {"kernels", "all"} & set(options.stages):
        raise OptionError("check='kernels' runs what the stage 'kernels' has: add that to stages.")
    if options.time and not is_virtual(options.target):
        raise OptionError(
            "check='kernels' is about code for a GPU; with time=True and no target, code is for the device that the "
            "tensors are on. Name the GPU as target, such as h100: times are then the CPU's, and say so."
        )


def _target(value: Any) -> str:
    name = _text("target", value)
    if isa := named_instruction_set(name):
        return isa.target
    available = available_targets()
    if name in ("", *available):
        return name
    here = ", ".join(repr(device) for device in available)
    if name.partition(":")[0].lower() in ("cuda", "gpu"):
        raise OptionError(
            f"target={name!r}: this machine has no such GPU. Available here: {here}. To see the code for a GPU that is "
            f"not here, name it: {', '.join(repr(known.name) for known in TARGETS)}."
        )
    if name.lower().startswith("cpu:"):
        known = ", ".join(repr(isa.target) for isa in INSTRUCTION_SETS)
        raise OptionError(
            f"target={name!r} names no instruction set that is known here: {known}; 'cpu' is this machine's."
        )
    try:
        return target(name).name
    except UnknownTargetError as error:
        raise OptionError(f"target={name!r}: {error} Devices of this machine: {here}.") from None


def _mode(value: Any) -> str:
    mode = _text("mode", value)
    if mode in settings.modes():
        return mode
    raise OptionError(_wrong("mode", mode, list(settings.modes()), answers.MODES))


def _backend(value: Any) -> Any:
    if callable(value):
        return value
    backend = _text("backend", value)
    known = settings.backends()
    if backend in known:
        return backend
    shown = dict.fromkeys([*settings.advertised_backends(), "aot_eager", "eager"])
    near = _nearest(backend, known)
    raise OptionError(_wrong("backend", backend, shown, answers.BACKENDS, near) + " A backend may also be a function.")


def _options(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise OptionError(f"options={value!r}: it is a dict of Inductor's settings, such as {{'max_autotune': True}}")
    return {str(name).replace("-", "_"): setting for name, setting in value.items()}


def _check_setting(name: str, value: Any) -> None:
    known = settings.inductor_settings()
    if name in known:
        _check_type(name, value, known[name])
    if name in known or name in settings.TAKEN_BY_TORCH_COMPILE:
        return
    near = _nearest(name, known)
    meant = f": did you mean {near!r}?" if near else "."
    raise OptionError(
        f"options has {name!r}, which is none of Inductor's settings{meant} They are those of torch._inductor.config; "
        "torch._inductor.list_options() lists them."
    )


def _check_type(name: str, value: Any, annotation: Any) -> None:
    """Check a value's type as torch.compile does, and also the values of a Literal."""
    if get_origin(annotation) is Literal and value not in get_args(annotation):
        valid = ", ".join(map(repr, get_args(annotation)))
        raise OptionError(f"options[{name!r}]={value!r}: it is one of {valid}.")
    if isinstance(annotation, type) and get_origin(annotation) is None and not isinstance(value, annotation):
        got = type(value).__name__
        raise OptionError(
            f"options[{name!r}]={value!r} is of type {got}; it must be {_describe_type(annotation)}."
            + _suggest_spelling(value, annotation)
        )


def _describe_type(annotation: type) -> str:
    return {"bool": "True or False", "NoneType": "None"}.get(annotation.__name__, f"of type {annotation.__name__}")


def _suggest_spelling(value: Any, annotation: type) -> str:
    if annotation is bool and str(value).lower() in _TRUTH:
        return f" Write {_TRUTH[str(value).lower()]}."
    return f" Write {float(value)}." if annotation is float and type(value) is int else ""


_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _vs(value: Any) -> str:
    """Check the name of the backend to compare with: it must generate code that can be shown."""
    backend = _text("vs", value)
    if backend in ("", *WRITERS):
        return backend
    if backend in settings.backends():
        raise OptionError(
            f"vs={backend!r}: that backend writes no code to set beside the other's. Valid: "
            f"{', '.join(map(repr, WRITERS))}. To compare times: time='{backend}'."
        )
    raise OptionError(_wrong("vs", backend, WRITERS, answers.BACKENDS))


def _stages(value: Any) -> tuple[str, ...]:
    from compiler.backend.pipeline import PASSES, stage_name

    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else list(value)
    known = (*dict.fromkeys((*STAGES, *map(stage_name, PASSES))), "all")
    for name in filter(None, names):
        if name not in known:
            raise OptionError(_wrong("stages", name, known))
    return tuple(filter(None, names))


def _check_one_of(name: str, valid: Sequence[Any], hint: str, value: Any) -> Any:
    """Check that a value is one of the valid ones, and return it; 1 does not count as True."""
    if any(value is one or (isinstance(one, str) and value == one) for one in valid):
        return value
    raise OptionError(f"{name}={value!r}: {hint}")


def _time(value: Any) -> bool | str:
    """Check `time`: True, False, or the names of candidates."""
    if isinstance(value, bool):
        return value
    from compiler.timing.candidates import candidate_names, spec

    is_list = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    if not isinstance(value, str) and not is_list:
        raise OptionError(
            f"time={value!r}: it is True, False, 'all', or names of modes and backends, such as "
            "'default,reduce-overhead'. A backend that is a function: run.timing.measure([function])."
        )
    wanted = candidate_names(value)
    for name in wanted:
        spec(name)
    return ",".join(wanted) or True


def _step(value: Any) -> bool | int:
    if isinstance(value, int) and value >= 0:
        return value
    raise OptionError(f"step={value!r}: it is True, False or how many MiB of instructions to keep (step=512).")


def _count(name: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise OptionError(f"{name}={value!r}: it is a whole number above 0.")


def _rank(value: Any) -> str:
    """Check the ranks to explore, and return them with commas between them: "0", "first,last,corners"."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    words = [str(part).strip() for part in parts]
    for word, part in zip(words, parts, strict=True):
        if isinstance(part, bool) or not (word.isdecimal() or word in RANK_NAMES):
            raise OptionError(
                f"rank={value!r}: it is a rank's number, from 0, or {', '.join(map(repr, RANK_NAMES))}, or several of "
                "these with commas between them."
            )
    return ",".join(dict.fromkeys(words))


def _check_ranks(options: Options) -> None:
    """Check the options that belong to a simulated job."""
    if not options.ranks:
        if options.rank:
            raise OptionError(f"rank={options.rank!r} needs ranks=: how many ranks the job has (--ranks 8).")
        return
    for word in filter(str.isdecimal, options.rank.split(",")):
        if int(word) >= options.ranks:
            raise OptionError(f"rank={word}: {options.ranks} ranks are numbered from 0 to {options.ranks - 1}.")
    if options.ranks >= 2**31:
        raise OptionError(f"ranks={options.ranks}: torch numbers ranks with 31 bits, so a job has fewer than 2**31.")
    if options.ranks > options.node and options.ranks % options.node:
        raise OptionError(
            f"{options.ranks} ranks do not fill nodes of {options.node} GPUs: say how large a node is, node="
        )
    if options.time or options.check:
        asked, instead = (
            ("time", "profile the real job, and open the trace with tcompile.load_profile")
            if options.time
            else ("check", "start the job with torchrun")
        )
        raise OptionError(
            f"{asked}= needs real ranks: the collectives of simulated ranks move nothing, so values and times would be "
            f"wrong. Leave it out, or leave out ranks=, and {instead}."
        )


RANK_NAMES = ("first", "last", "corners", "distinct")

_DEFAULT_IF_NONE = ("mode", "backend", "options", "stages", "vs", "ranks", "rank", "node")
_CHECKS: dict[str, Callable[[Any], Any]] = {
    "target": _target,
    "mode": _mode,
    "dynamic": partial(
        _check_one_of, "dynamic", (None, True, False),
        f"{answers.DYNAMIC} To mark one dimension: torch._dynamo.mark_dynamic(x, 0).",
    ),
    "fullgraph": partial(_check_one_of, "fullgraph", (True, False), "it is True or False."),
    "backend": _backend,
    "options": _options,
    "stages": _stages,
    "grad": partial(
        _check_one_of, "grad", (None, True, False),
        "None explores what the inputs ask for, True with gradients, False without.",
    ),
    "time": _time,
    "check": partial(
        _check_one_of, "check", (True, False, "kernels"),
        "it is True (compare what the built code returns with eager), False, or 'kernels' (compare what each Triton "
        "kernel stores).",
    ),
    "step": _step,
    "vs": _vs,
    "ranks": partial(_count, "ranks"),
    "rank": _rank,
    "node": partial(_count, "node"),
    "fake": partial(_check_one_of, "fake", (True, False), "it is True or False."),
}  # fmt: skip


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise OptionError(f"{name}={value!r}: it is a name (a str), not {type(value).__name__}.")


def _wrong(
    name: str, value: str, valid: Iterable[str], known: Mapping[str, str] | None = None, near: str | None = None
) -> str:
    valid = list(valid)
    near = near or _nearest(value, valid)
    answer = (known or {}).get(value.lower()) or (f"did you mean {near!r}?" if near else "")
    return f"{name}={value!r}: {answer}{' ' if answer else ''}Valid: {', '.join(map(repr, valid))}."


def _nearest(word: str, names: Iterable[str], cutoff: float = 0.7) -> str | None:
    """The most similar known name (same letters, same last part, or similar spelling); None if there is none."""
    by_letters = {_letters(name): name for name in names}
    last_parts = {_letters(name.rpartition(".")[2]): name for name in by_letters.values()}
    wanted = _letters(word)
    close = get_close_matches(wanted, by_letters, n=1, cutoff=cutoff)
    return by_letters.get(wanted) or last_parts.get(wanted) or (by_letters[close[0]] if close else None)


def _letters(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")
