"""Observe TorchDynamo: frames, bytecode, captured graphs, graph breaks, guards, recompilations.

torch has a hook for bytecode (`register_bytecode_hook`), but none for the rest: methods are wrapped during one
exploration and restored afterwards. Compile ids are `(frame, compilation)` as torch numbers them in this process; the
caller renumbers them.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import os
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from types import CodeType
from typing import Any, Protocol

import torch
import torch._dynamo.config as dynamo_config
import torch._dynamo.convert_frame as convert_frame
import torch._dynamo.eval_frame as eval_frame
import torch._dynamo.guards as guards
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.exc import (
    FailOnRecompileLimitHit,
    InternalTorchDynamoError,
    RestartAnalysis,
    TorchDynamoException,
    TorchRuntimeError,
    Unsupported,
    UserError,
)
from torch._dynamo.external_utils import wrap_inline
from torch._dynamo.guards import DeletedGuardManagerWrapper
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.types import ConvertFrameReturn
from torch._dynamo.utils import CleanupManager
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from compiler.process import preserve_state
from compiler.record.break_facts import AND_THEN, DEAD_ENDS, BreakFacts
from compiler.record.printed_code import RESUME_PREFIX
from compiler.torch_api import module_calls
from compiler.torch_api.compilations import CompileKey, current_key, key_of, restore_dispatch_modes
from compiler.torch_api.ddp_buckets import BUCKET_CAP_HINT, Bucket, bucket_cap_refusal, compile_observed
from compiler.torch_api.dynamo_caches import forget_entries, separate_caches
from compiler.torch_api.guards import (
    FailedGuard,
    GuardTree,
    Names,
    cache_entries,
    count_failures,
    dropped_entry,
    failed_guards,
    forward_names,
    plain_tree,
    timed_tree,
)
from compiler.torch_api.open_sizes import SymbolFacts, symbols_of
from compiler.torch_api.patching import Function, call_after, call_before, call_inside, call_instead, replace_attributes
from compiler.torch_api.released import empty_method_caches, release_guards
from compiler.torch_api.traced_lines import places_of, watch_restarts

GENERATED = ("__compiled_fn_", "__resume_at_", "__builtins_dict__", "__import_")
CONVERSION_LOGGERS = (
    "torch._dynamo",
    "torch._dynamo.convert_frame",
    "torch._dynamo.variables.tensor",
    "torch._subclasses.fake_tensor",
)
INTERNAL = "InternalTorchDynamoError"
"""The kind of a break at a line that TorchDynamo fails to trace by an error of its own."""
_WRAPPER = wrap_inline(lambda: None).__code__
RECOMPILE_LIMIT = "Dynamo recompile limit exceeded"


@dataclass(frozen=True, slots=True)
class EntryFailures:
    """The guards of one cache entry that fail for a call; `key` is the entry's compilation."""

    key: CompileKey
    guards: tuple[FailedGuard, ...]


class DynamoObserver(Protocol):
    """Callbacks for events while user code is compiled. They run inside Dynamo, so they must be quick."""

    def on_frame_start(self, key: CompileKey, code: CodeType, wrapped: Any) -> None: ...
    def on_frame_end(self, key: CompileKey, error: BaseException | None) -> None: ...
    def on_skip(self, code: CodeType, why: str) -> None: ...
    def on_refusal(self, why: str, hint: str) -> None: ...
    def on_restart(self, key: CompileKey, why: str) -> None: ...
    def on_bytecode(self, key: CompileKey, original: CodeType, modified: CodeType) -> None: ...
    def on_resume_functions(self, key: CompileKey, codes: Sequence[CodeType]) -> None: ...
    def on_graph(self, key: CompileKey, module: GraphModule, run: Function, bucket: Bucket | None) -> Function: ...
    def on_break(self, key: CompileKey, facts: BreakFacts) -> None: ...
    def on_recompile(self, key: CompileKey, reasons: Sequence[str], entries: Sequence[EntryFailures]) -> None: ...
    def on_symbols(self, key: CompileKey, facts: Sequence[SymbolFacts]) -> None: ...
    def on_guards(self, key: CompileKey, tree: GuardTree) -> None: ...


class BreakCounter:
    """An observer for compilations that are not the user's: it only counts breaks, compilations and recompilations."""

    def __init__(self) -> None:
        self.breaks = self.compilations = self.recompilations = 0

    def on_break(self, _key: CompileKey, _facts: BreakFacts) -> None:
        self.breaks += 1

    def on_bytecode(self, *_: object) -> None:
        self.compilations += 1

    def on_recompile(self, _key: CompileKey, reasons: Sequence[str], _entries: Sequence[EntryFailures]) -> None:
        self.recompilations += bool(reasons)

    def on_graph(self, _key: CompileKey, _module: GraphModule, run: Function, _bucket: Bucket | None) -> Function:
        compiled: Function = run()
        return compiled

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in vars(DynamoObserver):
            raise AttributeError(name)
        return lambda *_: None


@contextmanager
def observe(observer: DynamoObserver) -> Iterator[Observation]:
    """Observe every compilation in the block.

    After an error inside Dynamo the frame runs as plain Python. Caches, counters, dynamic-shape history and the
    user's globals are restored at the end.
    """
    session = Observation(observer)
    with ExitStack() as stack:
        stack.enter_context(separate_caches())
        stack.enter_context(_capture_called_frames())
        stack.callback(session.forget)
        stack.enter_context(dynamo_config.patch(suppress_errors=True))
        stack.enter_context(_quiet_conversion_warnings())
        stack.callback(convert_frame.register_bytecode_hook(session.observe_bytecode).remove)
        stack.enter_context(watch_restarts(session.observe_restart, session.observe_unsupported))
        stack.enter_context(replace_attributes([
            (convert_frame.CatchErrorsWrapper, "__call__", session.wrap_convert),
            (convert_frame, "_compile", call_instead(session.observe_compile)),
            (convert_frame, "_fullgraph_capture_frame", call_inside(session.leave_to_user)),
            (OutputGraph, "__init__", call_after(session.observe_output)),
            (OutputGraph, "_call_user_compiler", call_instead(session.observe_call_user_compiler)),
            (InstructionTranslatorBase, "log_graph_break", call_before(session.observe_log_graph_break)),
            (convert_frame, "get_and_maybe_log_recompilation_reasons", call_instead(session.observe_recompile)),
            (guards, "profile_guard_manager", call_after(session.observe_profile)),
        ]))  # fmt: skip
        yield session


class Observation:
    """The hooks that `observe` installs; they can be paused."""

    def __init__(self, observer: DynamoObserver) -> None:
        self.observer = observer
        self.codes: dict[CompileKey, CodeType] = {}
        self.modified: list[CodeType] = []
        self.globals: dict[int, tuple[dict[str, Any], frozenset[str]]] = {}
        self.user_globals: dict[CompileKey, dict[str, Any]] = {}
        self.trees: dict[CompileKey, GuardTree] = {}
        self.names: dict[CompileKey, Names] = {}
        self.ignored: set[CompileKey] = set()
        self.unsupported: BaseException | None = None
        self.began = weakref.finalize(self, lambda: None)
        self.fakes: list[list[Any]] = []

    @contextmanager
    def pause_observing(self) -> Iterator[BreakCounter]:
        """Only count compilations in the block, with a separate dynamic-shape history."""
        observer, before, counter = self.observer, set(self.codes), BreakCounter()
        self.observer = counter
        try:
            with separate_caches():
                yield counter
        finally:
            self.observer = observer
            self.ignored |= set(self.codes) - before

    @contextmanager
    def leave_to_user(self, *_: Any, **__: Any) -> Iterator[None]:
        """Observe nothing in a capture by torch.export or aot_compile, which begins no compilation of a frame."""
        with self.pause_observing(), module_calls.pause_watching():
            yield

    def is_observing(self) -> bool:
        """Whether compilations are observed now."""
        return not isinstance(self.observer, BreakCounter)

    def observe_bytecode(self, code: CodeType, new_code: CodeType) -> None:
        self.modified.append(new_code)
        key = current_key()
        self.observer.on_bytecode(key, code, new_code)
        self.observer.on_resume_functions(key, tuple(_resume_codes(new_code, self.user_globals.get(key, {}))))

    def observe_restart(self, kind: str, why: str) -> None:
        if kind != "SpeculationRestartAnalysis":  # Dynamo restarts this way at each graph break
            self.observer.on_restart(current_key(), why or kind)

    def observe_unsupported(self, error: BaseException) -> None:
        self.unsupported = error

    def wrap_convert(self, convert: Function) -> Function:
        """Wrap the conversion of a frame, to report frames that Dynamo skips: some never reach `_compile`."""

        def observe_convert(wrapper: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
            self.unsupported = None
            try:
                with module_calls.pause_watching():
                    result = convert(wrapper, frame, *args, **kwargs)
            except AssertionError as error:
                if not (why := bucket_cap_refusal(error)):
                    raise
                self.observer.on_refusal(why, BUCKET_CAP_HINT)
                return ConvertFrameReturn()
            if getattr(result, "guarded_code", None) is None:
                why = str(self.unsupported) if self.unsupported is not None else getattr(result, "skip_reason", "")
                self.observer.on_skip(frame.f_code, why or "")
            return result

        # Torch checks whether the first caller outside of convert_frame.py is `disable(recursive=False)`'s wrapper.
        observe_convert.__code__ = observe_convert.__code__.replace(co_filename=convert_frame.__file__)
        return observe_convert

    def observe_compile(
        self, compile_frame: Function, code: CodeType, user_globals: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        key = key_of(kwargs["compile_id"])
        self.codes[key] = code
        self.user_globals[key] = user_globals
        self.globals.setdefault(id(user_globals), (user_globals, frozenset(user_globals)))
        self.observer.on_frame_start(key, code, _callable_in_wrapper(code, *args[1:]))
        try:
            with preserve_state(), restore_dispatch_modes():
                result = compile_frame(code, user_globals, *args, **kwargs)
        except BaseException as error:
            broken = _unlogged_break(error)
            if broken is not None:
                self.observer.on_break(key, replace(_break_facts(str(broken), broken), skips=True))
            self.observer.on_frame_end(key, error)
            raise
        self.observer.on_frame_end(key, None)
        return result

    def observe_output(self, _: None, output: OutputGraph, *_args: Any, **_kwargs: Any) -> None:
        self.fakes.append(output.tracked_fakes)

    def observe_call_user_compiler(self, call: Function, output: OutputGraph, module: GraphModule, inputs: Any) -> Any:
        compile_graph: Any = output.compiler_fn

        def compile_and_report(module: GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
            run = partial(compile_graph, module, inputs, **kwargs)
            return compile_observed(compile_graph, module, run, partial(self.observer.on_graph, current_key()))

        output.compiler_fn = compile_and_report
        try:
            result = call(output, module, inputs)
        finally:
            output.compiler_fn = compile_graph
        names = self._names(current_key(), output.local_scope)
        self.observer.on_symbols(current_key(), tuple(symbols_of(output.shape_env, names)))
        return result

    def observe_log_graph_break(self, _: Any, _options: Any, reason: str, exc: Any, *_more: Any, **_named: Any) -> None:
        if not exc.logged:
            self.observer.on_break(current_key(), _break_facts(reason, exc))

    def observe_recompile(self, explain: Function, entries: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        ours = [entry for entry in cache_entries(entries) if key_of(entry.compile_id) in self.codes]
        found = tuple(
            EntryFailures(key_of(entry.compile_id), tuple(self._failed_guards(entry, frame.f_locals))) for entry in ours
        )
        reasons = explain(entries, frame, *args, **kwargs)
        numbers = {str(entry.compile_id) for entry in ours}
        own = [each for each in reasons if each.partition(":")[0] in numbers]  # without the user's own compilations
        self.observer.on_recompile(current_key(), own, found)
        return reasons

    def _failed_guards(self, entry: Any, f_locals: Mapping[str, Any]) -> list[FailedGuard]:
        key = key_of(entry.compile_id)
        tree = self.trees.get(key)
        if isinstance(entry.guard_manager, DeletedGuardManagerWrapper):
            return dropped_entry(entry.guard_manager.invalidation_reason)
        failed = failed_guards(entry, f_locals, tree.lengths if tree else {})
        return [guard.rename(self.names.get(key, {})) for guard in failed]

    def _names(self, key: CompileKey, f_locals: Mapping[str, Any]) -> Names:
        """The user's names of a frame's variables, if torch renamed them."""
        if key not in self.names and key in self.codes:
            self.names[key] = forward_names(self.codes[key], f_locals)
        return self.names.get(key, {})

    def observe_profile(self, microseconds: float, root: Any, f_locals: dict[str, Any], *_: Any) -> None:
        """Time each guard at the moment that torch times all guards, while the guarded values are available."""
        key = current_key()
        self._names(key, f_locals)
        self.trees[key] = timed_tree(root, f_locals, self.user_globals.get(key, {}), microseconds)

    def _entries(self, code: CodeType) -> list[Any]:
        """The code's cache entries that were compiled in this block, also those that torch has invalidated since."""
        return [
            entry for entry in eval_frame._debug_get_cache_entry_list(code) if key_of(entry.compile_id) in self.codes
        ]

    def forget(self) -> None:
        """Report guards, then drop our cache entries and the globals that Dynamo installed.

        The user's entries stay. Dynamo's hooks remove the globals of a code object when it dies; here they run at
        once. Import aliases and globals of abandoned frames have no hook and are deleted by name.
        """
        entries = {id(code): self._entries(code) for code in self.codes.values()}
        for key, code in self.codes.items():
            for entry in entries[id(code)]:
                is_valid = not isinstance(entry.guard_manager, DeletedGuardManagerWrapper)
                if is_valid and key_of(entry.compile_id) == key and key not in self.ignored:
                    root = entry.guard_manager.root
                    tree = count_failures(self.trees.get(key) or plain_tree(root), root)
                    self.observer.on_guards(key, tree.rename(self.names.get(key, {})))
        for code in {id(code): code for code in self.codes.values()}.values():
            forget_entries(code, entries[id(code)])
        for code in (code for code in self.modified if code in CleanupManager.instance):
            CleanupManager.instance._remove_id(id(code))
        for user_globals, before in self.globals.values():
            for name in [n for n in user_globals if n not in before and n.startswith(GENERATED)]:
                del user_globals[name]
        for fakes in self.fakes:
            fakes.clear()  # reference cycles through autograd's C++ objects, invisible to gc
        release_guards(self.began)
        empty_method_caches(ShapeEnv)  # they keep every ShapeEnv and its fake tensors alive


def _unlogged_break(error: BaseException) -> Any:
    """The error if it is a graph break that Dynamo has not logged, else None."""
    if not isinstance(error, Unsupported | UserError | TorchRuntimeError) or is_recompile_limit(error):
        return None
    return None if getattr(error, "logged", False) else error


def _break_facts(reason: str, exc: Any) -> BreakFacts:
    stack = getattr(exc, "real_stack", None) or torch._guards.TracingContext.extract_stack()
    parts = [part.strip() for part in getattr(exc, "msg", str(exc)).split(AND_THEN)]
    kinds = [part.partition("\n")[0].strip() for part in parts]
    # An error other than `Unsupported` has its break type only in the first line of its text.
    registered = kinds[-1] if kinds[-1] in break_registry() else ""
    own = getattr(exc, "gb_type", None) or registered or type(exc).__name__
    return BreakFacts(
        kind=kinds[0] if len(parts) > 1 else own,
        reason=reason,
        stack=tuple(stack),
        places=places_of(exc),
        message=parts[0],
        consequence=own if len(parts) > 1 else "",
        goes_on=not reason.startswith(DEAD_ENDS),
        raises=isinstance(exc, TorchRuntimeError),
    )


def _resume_codes(code: CodeType, user_globals: dict[str, Any]) -> Iterator[CodeType]:
    """The code of the resume functions that rewritten bytecode calls after a graph break."""
    for name in code.co_names:
        if name.startswith("__resume_at_") and name in user_globals:
            yield _resume_code(user_globals[name])
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and constant.co_name.startswith(RESUME_PREFIX):
            yield constant


def _resume_code(function: Any) -> CodeType:
    """The code of a resume function. With free variables, torch installs a factory function instead."""
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    codes = [each for each in held if isinstance(each, CodeType) and each.co_name.startswith(RESUME_PREFIX)]
    return codes[0] if codes else function.__code__


@contextmanager
def _capture_called_frames() -> Iterator[None]:
    """Let Dynamo trace the frames that compiled code calls.

    In torch 2.11 a call with fullgraph=True turns this off for all threads while it runs, and concurrent calls from
    several threads can leave it off.
    """
    c_eval_frame: Any = torch._C._dynamo.eval_frame
    if not hasattr(c_eval_frame, "set_eval_frame_override"):
        yield
        return
    before = c_eval_frame.set_eval_frame_override(c_eval_frame._EvalFrameOverride.NONE)
    try:
        yield
    finally:
        c_eval_frame.set_eval_frame_override(before)


@contextmanager
def _quiet_conversion_warnings() -> Iterator[None]:
    """Silence torch's warnings about frames that it does not compile: the record has the reasons."""

    def keep(entry: logging.LogRecord) -> bool:
        return entry.levelno not in (logging.WARNING, logging.ERROR)

    with ExitStack() as stack:
        for logger in map(logging.getLogger, CONVERSION_LOGGERS):
            logger.addFilter(keep)
            stack.callback(logger.removeFilter, keep)
        yield


def compile_function(fn: Any, backend: Function, *, dynamic: bool | None, fullgraph: bool) -> Any:
    """`torch.compile(fn)` with cache entries separate from the user's.

    torch distinguishes entries by their backend, so each call creates a new backend function.
    """
    isolation: dict[str, Any] = {}
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        isolation["isolate_recompiles"] = True

    def own_backend(module: GraphModule, inputs: Sequence[Any], **options: Any) -> Function:
        return backend(module, inputs, **options)

    with module_calls.restore_mark(fn):
        return torch.compile(fn, backend=own_backend, dynamic=dynamic, fullgraph=fullgraph, **isolation)


class _CapturedError(Exception):
    """Ends a call once its graph is captured, before the graph runs."""


def replace_when_traced(call: Function, fn: Any) -> Function:
    """A function that does `call`; TorchDynamo traces `fn` instead, in compiled code that calls it."""

    def run_traced(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    def run_call(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    run_call.__dict__["_torchdynamo_inline"] = run_traced
    return run_call


def first_break(
    fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: bool | None
) -> tuple[tuple[str, int], ...] | None:
    """The stack of a call's first graph break as (file, line), outermost first; None without a break.

    The call is captured but not run. Raises TorchDynamo's other errors.
    """
    captured = False

    def stop(*_: Any) -> Any:
        nonlocal captured
        captured = True
        raise _CapturedError

    # The hook is also called for a frame without operations, for which no backend is called.
    hook = convert_frame.register_bytecode_hook(lambda *_: stop())
    try:
        # Not `fullgraph`: it captures data-dependent numbers and sizes, where a call without it has a graph break.
        with dynamo_config.patch(suppress_errors=False), torch._dynamo.error_on_graph_break(True):
            compile_function(fn, stop, dynamic=dynamic, fullgraph=False)(*args, **kwargs)
    except Unsupported as error:
        stack = getattr(error, "real_stack", None)
        return tuple((frame.filename, frame.lineno or 0) for frame in stack or ())
    except Exception:
        if not captured:
            raise
    finally:
        hook.remove()
    return None


def break_of_call(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BreakFacts | None:
    """The first graph break of a call. Without a break, the call runs to its end, and the result is None.

    A line at which TorchDynamo itself fails counts as a break that raises. Raises any other error of the call. The
    break has exact `places` only in a block of `observe`.
    """
    try:
        with dynamo_config.patch(suppress_errors=False), torch._dynamo.error_on_graph_break(True):
            compile_function(fn, named_backend("eager"), dynamic=None, fullgraph=False)(*args, **kwargs)
    except (Unsupported, UserError, TorchRuntimeError) as error:
        return _break_facts(str(error), error)
    except InternalTorchDynamoError as error:
        cause = error.__context__  # torch raises it `from None`
        if not getattr(cause, "real_stack", None):
            raise
        return replace(_break_facts(str(error), cause), kind=INTERNAL, raises=True)
    return None


def reason_disabled() -> str:
    """What keeps torch.compile from compiling a first call in this process now; "" if nothing does."""
    stance = eval_frame._stance.stance
    if stance in ("force_eager", "eager_on_recompile", "eager_then_compile"):
        return f'torch.compiler.set_stance("{stance}") is in effect'
    if os.environ.get("TORCHDYNAMO_DISABLE") == "1":
        return "the environment has TORCHDYNAMO_DISABLE=1"
    is_off = dynamo_config.disable
    return "torch.compile is disabled (TORCH_COMPILE_DISABLE, or torch._dynamo.config.disable)" if is_off else ""


def inner_function(fn: Any) -> Any:
    """The function or module that was passed to torch.compile; None if `fn` is not compiled."""
    if isinstance(fn, eval_frame.OptimizedModule):
        return fn._orig_mod
    return getattr(fn, "_torchdynamo_orig_callable", None)


def forget_compilations(fn: Any) -> None:
    """Drop the cache entries of `fn`, so that its next call compiles and is observed."""
    eval_frame.remove_from_cache(fn)


def is_restart(error: BaseException) -> bool:
    """Whether the error only makes Dynamo restart the analysis of the frame."""
    return isinstance(error, RestartAnalysis)


def _callable_in_wrapper(code: CodeType, _builtins: Any, closure: Sequence[Any], *_: Any) -> Any:
    """What torch's wrapper around modules and functions of libraries calls; None for code that is not its."""
    return closure[0].cell_contents if code is _WRAPPER else None


def is_dynamo_error(error: BaseException) -> bool:
    return isinstance(error, TorchDynamoException | FailOnRecompileLimitHit)


def is_recompile_limit(error: BaseException) -> bool:
    """Whether Dynamo stopped compiling a function because it reached the recompile limit."""
    return getattr(error, "gb_type", "") == RECOMPILE_LIMIT or isinstance(error, FailOnRecompileLimitHit)


def is_unsupported(error: BaseException) -> bool:
    return isinstance(error, Unsupported)


def recompile_limit_words(error: BaseException) -> str:
    """Name and value of the limit that was reached: "the recompile_limit of 8"."""
    text = str(error.__cause__ if isinstance(error, FailOnRecompileLimitHit) else error)
    found = re.search(r"exceeding the (\w+) cache size limit \(currently set to (\d+)\)", text)
    return f"the {found[1]} of {found[2]}" if found else "a limit on recompilations"


@lru_cache(maxsize=1)
def break_registry() -> dict[str, dict[str, Any]]:
    """The graph-break registry of torch: type -> entry with `Gb_type`, `Explanation`, `Hints` and `id` (GB0001 …)."""
    folder = Path(str(importlib.import_module("torch._dynamo").__file__)).parent
    path = folder / "graph_break_registry.json"
    if not path.exists():
        return {}
    entries = json.loads(path.read_text(encoding="utf-8"))
    return {versions[0]["Gb_type"]: {**versions[0], "id": gb_id} for gb_id, versions in entries.items() if versions}


def named_backend(name: Any) -> Function:
    """Look up a torch.compile backend by name; return a callable unchanged."""
    return name if callable(name) else lookup_backend(name)
