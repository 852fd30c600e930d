"""Candidates of a timing comparison: eager, Inductor in its modes, other backends by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from compiler.record.options import OptionError, Options
from compiler.record.plain_text import did_you_mean
from compiler.torch_api import dynamo, inductor, settings

EAGER = "eager"
OURS = "tcompile"
MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
ALL: tuple[str, ...] = (EAGER, "aot_eager", *MODES)
ON_CPU: tuple[str, ...] = (EAGER, "aot_eager", "default")
Asked = str | bool | Callable[..., Any] | Iterable[Any] | None

_LEFT_OUT_ON_CPU = (
    "reduce-overhead, max-autotune and max-autotune-no-cudagraphs were not tried: each takes as long to compile again, "
    "CUDA graphs are for GPUs, and on a CPU autotuning tries C++ templates for products of matrices alone. "
    "--time=all or run.timing.measure('all') tries them."
)


@dataclass(frozen=True, slots=True)
class Spec:
    """A candidate: its name, its backend ("" for eager, a name or a function), and Inductor's mode and settings."""

    name: str
    backend: Any = ""
    mode: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def backend_name(self) -> str:
        return self.backend if isinstance(self.backend, str) else _name_of(self.backend)

    @property
    def replays(self) -> bool:
        """Whether the candidate may run as CUDA graphs, which need to know where each step begins."""
        asks = {**settings.modes().get(self.mode, {}), **self.settings}.get("triton.cudagraphs", False)
        return bool(asks) or self.backend == "cudagraphs"

    def compile(self, fn: Callable[..., Any], options: Options, graph: Callable[[], None]) -> Callable[..., Any]:
        """Compile `fn` with this backend; `graph` is called for each graph that the backend compiles."""
        if self.backend == "inductor":
            backend = inductor.inductor_backend(self.mode, dict(self.settings), options.dynamic)
        else:
            backend = dynamo.named_backend(self.backend)
            chosen = {"mode": self.mode, "options": self.settings}
            backend = partial(backend, **{name: value for name, value in chosen.items() if value})

        def count_graph(module: Any, inputs: Sequence[Any], **kwargs: Any) -> Any:
            graph()
            return backend(module, inputs, **kwargs)

        made: Callable[..., Any] = dynamo.compile_function(
            fn, count_graph, dynamic=options.dynamic, fullgraph=options.fullgraph
        )
        return made


INDUCTOR = Spec("inductor", "inductor", "default")
OWN = Spec(OURS, OURS)


def specs(asked: Asked, options: Options, *, gpu: bool) -> tuple[tuple[Spec, ...], str]:
    """The candidates, eager first, and a note on omitted ones ("" if none). Raises OptionError for an unknown name.

    `asked` is True or None (a default for the device, plus the cell's own backend), "all", comma-separated names
    ("default,reduce-overhead"), or a list of names and backend functions.
    """
    wanted = candidate_names(asked)
    if not wanted:
        cells = own_candidate(options)
        usual = [spec(name) for name in (ALL if gpu else ON_CPU)] + specs_of_both_sides(options)
        left_out = "" if gpu else _LEFT_OUT_ON_CPU
        return _each_once([*usual, *([cells] if cells is not None else [])]), left_out
    return _each_once([spec(EAGER), *map(spec, wanted), *specs_of_both_sides(options)]), ""


def specs_of_both_sides(options: Options) -> list[Spec]:
    """Candidates for both backends of a cell that compares two; none for other cells."""
    cells = own_candidate(options)
    if not options.vs or cells is None:
        return []
    other = own_candidate(replace(options, backend=options.vs, options={}))
    return [cells, *([other] if other else [])]


def candidate_names(asked: Asked) -> list[Any]:
    """The requested candidates as a list, empty for the default."""
    if asked is None or isinstance(asked, bool):
        return []
    listed = asked.split(",") if isinstance(asked, str) else [asked] if callable(asked) else list(asked)
    cleaned = [item.strip() if isinstance(item, str) else item for item in listed]
    return [each for item in cleaned if item != "" for each in (ALL if item == "all" else (item,))]


def spec(asked: Any) -> Spec:
    """The candidate for a mode or backend name ("inductor reduce-overhead"), or for a user's backend function.

    Raises OptionError for an unknown name.
    """
    if isinstance(asked, Spec):
        return asked
    if callable(asked):
        return Spec(_name_of(asked), asked)
    name = str(asked).removeprefix("inductor ").strip()
    if name == EAGER:
        return Spec(EAGER)
    if name in ("inductor", "default"):
        return INDUCTOR
    if name in settings.modes():
        return Spec(f"inductor {name}", "inductor", name)
    if name in settings.backends():
        return Spec(name, name)
    backend, _, mode = name.partition(" ")
    if backend == OURS and mode in settings.modes():
        return Spec(name, OURS, mode)
    valid = [*ALL, *settings.advertised_backends()]
    meant = did_you_mean(name, [*settings.modes(), *settings.backends(), "all"], before="", after=" ")
    raise OptionError(
        f"time={asked!r}: {meant}A candidate is a mode of Inductor or a backend: "
        f"{', '.join(map(repr, dict.fromkeys(valid)))}, or 'all'; a mode may follow 'tcompile', and a backend may also "
        "be a function."
    )


def own_candidate(options: Options) -> Spec | None:
    """The candidate for the cell's own backend; None if that is eager."""
    asked = options.compile_arguments()
    if asked["backend"] == OURS:
        mode = "" if options.mode == "default" else options.mode
        return Spec(f"{OURS} {mode}".strip(), OURS, mode, dict(asked.get("options", {})))
    if asked["backend"] != "inductor":
        return None if asked["backend"] == EAGER else spec(asked["backend"])
    if asked.get("options"):
        return Spec("inductor with the cell's options", "inductor", "default", dict(asked["options"]))
    return spec(options.mode)


def _each_once(found: Iterable[Spec]) -> tuple[Spec, ...]:
    return tuple({each.name: each for each in found}.values())


def _name_of(backend: Any) -> str:
    return str(getattr(backend, "__name__", type(backend).__name__))
