"""Parse and check the arguments of `torch.compile(backend="tcompile", mode=…, options=…)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from compiler.backend.passes.context import Thresholds
from compiler.record.options import OptionError
from compiler.record.plain_text import did_you_mean

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""Supported modes of torch.compile. For C++ they make no difference: CUDA graphs and autotuning are for GPUs."""
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "interpret": (False, True), "code": ("", "cpp", "triton"), "random": ("philox", "eager"),
}  # fmt: skip
"""Allowed values of the options that are not thresholds, the default first."""


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """Options of the backend.

    thresholds  limits that lowering and the passes use
    interpret   run the reference interpreter instead of generated code
    code        language of kernels, "" for the device's default; "triton" on a CPU runs them in Triton's interpreter
    graphs      replay CUDA graphs if possible
    tuned       autotune kernels
    random      random numbers: "philox" for counter-based ones, "eager" for those of eager mode with the same seed
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    interpret: bool = False
    code: str = ""
    graphs: bool = False
    tuned: bool = False
    random: str = "philox"


def parse_options(mode: str | None, options: Mapping[str, Any] | None) -> BackendOptions:
    """Parse and check options. Raises OptionError for an unknown name or an invalid value."""
    if mode is not None and mode not in MODES:
        meant = did_you_mean(str(mode), MODES, before="", after=" ")
        raise OptionError(f"mode={mode!r}: {meant}backend tcompile has the modes {', '.join(MODES)}")
    if not isinstance(options, Mapping | None) or not all(isinstance(name, str) for name in options or ()):
        raise OptionError(f"options={options!r} must be a dict of names and values")
    given = dict(options or {})
    chosen = {name: given.pop(name, values[0]) for name, values in CHOICES.items()}
    for name, value in chosen.items():
        if type(value) is not type(CHOICES[name][0]) or value not in CHOICES[name]:
            choices = " or ".join(repr(choice) for choice in CHOICES[name] if choice != "")
            raise OptionError(f"options: {name}={value!r} must be {choices}")
    check_thresholds(given)
    graphs, tuned = mode in ("reduce-overhead", "max-autotune"), (mode or "").startswith("max-autotune")
    return BackendOptions(Thresholds(**given), graphs=graphs, tuned=tuned, **chosen)


ON_THE_STACK = {"row_buffer": 65_536, "tile": 4_096}
"""Thresholds for arrays of C++ kernels on a thread's stack, with their largest values in elements."""


def check_thresholds(given: Mapping[str, Any]) -> None:
    """Check thresholds. Raises OptionError for an unknown name, or a value that is not a positive int or too large."""
    known = [found.name for found in fields(Thresholds)]
    for name, value in given.items():
        if name not in known:
            known = [*CHOICES, *known]
            meant = did_you_mean(name, known) or f". It has {', '.join(known)}"
            raise OptionError(f"options: backend tcompile has no option {name!r}{meant}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"options: {name}={value!r} must be a whole number above 0")
        if value > ON_THE_STACK.get(name, value):
            raise OptionError(f"options: {name}={value!r} is above {ON_THE_STACK[name]}, the most that a stack holds")
