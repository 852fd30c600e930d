"""Records PyTorch's compilation pipeline as artifacts and facts.

There is one `Recorder` for each exploration. It is called from inside Dynamo and Inductor (the observer protocols of
`compiler.torch_api`), so it must read its arguments at once: passes mutate graphs, and IR is freed with its graph.
"""

from __future__ import annotations

import linecache
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from types import CodeType
from typing import Any

import torch
from torch.fx import GraphModule

from compiler.autograd.stage import AutogradStage
from compiler.calls.kept_graphs import KeptFrame
from compiler.capture.break_log import BreakLog
from compiler.capture.by_design import is_by_design
from compiler.capture.bytecode import GeneratedNames, bytecode_artifacts
from compiler.capture.callers import CallLog
from compiler.capture.error_words import first_lines, hint_of
from compiler.capture.function_names import code_title, function_name, title_of
from compiler.capture.guards import Failed, guards_of, stack_names
from compiler.capture.recompiles import mark_limit_reached, recompile, with_graph_changes
from compiler.capture.skips import EMPTY, Skip, SkipLog
from compiler.capture.sources import SourceBook
from compiler.capture.steps import MIB, MOST_MIB, recorded_steps
from compiler.capture.symbolic_shapes import names_of, symbol_of
from compiler.distributed.collectives import CollectiveLog, add_estimates
from compiler.distributed.hooks import HookLog
from compiler.distributed.shared_graphs import SharedGraphs
from compiler.graph_recorder import GraphRecorder
from compiler.process import fewer_full_collections
from compiler.process.environment import with_settings_of_now
from compiler.record import STAGES, Decision, Frame, Phase, Problem, Recompile, Span, Step, captured_by_frame
from compiler.record.break_facts import BreakFacts, Place, is_dynamo
from compiler.record.builder import Builder, Clock
from compiler.stopwatch import Stopwatch, untimed_observer
from compiler.targets.destination import Destination, destination, measures
from compiler.torch_api import dynamo, fx, inductor
from compiler.torch_api.autograd_nodes import Spans, next_number
from compiler.torch_api.compilations import CompileKey
from compiler.torch_api.cpu_isa import write_for_target
from compiler.torch_api.ddp_buckets import Bucket, run_or_propagate
from compiler.torch_api.dynamo import EntryFailures
from compiler.torch_api.eager import as_eager
from compiler.torch_api.guards import FailedGuard, GuardTree, global_state
from compiler.torch_api.open_sizes import SymbolFacts
from compiler.torch_api.patching import Function
from compiler.torch_api.phases import PhaseFacts, PhaseLog
from compiler.virtual_gpu.templates import InductorRetargeting

# Compiling a large graph makes many long-lived objects, and each garbage collection would visit them all.
NODES_A_COLLECTION = 20

MANY_ELEMENTS = 2**27
"""A CPU takes about a second for a call that computes this many elements."""
LONG_SECONDS = 10.0
"""If a call runs longer, a Problem says what took the time."""


class Recorder:
    """Implements `DynamoObserver`; makes a `GraphRecorder` for each captured graph."""

    def __init__(self, builder: Builder, *, build: bool, shared: SharedGraphs | None = None) -> None:
        self.builder = builder
        self._shared = shared
        self._taken: list[str] = []
        self.build = build
        self.copies_inputs = bool(builder.options.check)
        self.book = SourceBook()
        self.names = GeneratedNames()
        self.clock = Clock()
        self.torch_time = Stopwatch()
        self.call_site: tuple[fx.SourceFrame, ...] = ()
        self.call_number = 0
        self._frame_ids: dict[int, dict[int, str]] = {}
        self._codes: dict[str, CodeType] = {}
        self._open: dict[str, tuple[SymbolFacts, ...]] = {}
        self._failed: dict[str, Failed] = {}
        self._ran: dict[int, set[int]] = {}
        self.uncompiled: Spans[str] = Spans()
        """The autograd nodes of graphs that run uncompiled, by frame."""
        self._call_seconds = 0.0
        self.breaks = BreakLog(builder, self.book)
        self.skips = SkipLog()
        self.calls = CallLog(builder, self.book)
        self.collectives = CollectiveLog()
        self.hooks = HookLog(builder, lambda: self.call_number)
        self.kept: dict[str, KeptFrame] = {}
        self.later: list[Callable[[], list[Decision]]] = []

    @property
    def kept_here(self) -> dict[str, KeptFrame]:
        """Kept graphs without those that another rank has compiled."""
        return {graph: kept for graph, kept in self.kept.items() if graph not in self._taken}

    def frame_id(self, key: CompileKey) -> str:
        """Frame id `frame/compilation`, both numbered by first appearance in this exploration."""
        compilations = self._frame_ids.setdefault(key[0], {})
        number = list(self._frame_ids).index(key[0])
        return compilations.setdefault(key[1], f"{number}/{len(compilations)}")

    def on_frame_start(self, key: CompileKey, code: CodeType, wrapped: Any) -> None:
        self.hooks.begin()
        frame = self.frame_id(key)
        self._codes[frame] = code
        function = self.names(code.co_name) if wrapped is None else title_of(wrapped)
        self.builder.title = self.builder.title or (code_title(code) if wrapped is None else function)
        if not is_dynamo(code.co_filename):
            self.book.line(code.co_filename, code.co_firstlineno)
        elif wrapped is None:  # the rest of torch's wrapper around a module, after a break
            function = self.builder.title
        started = Frame(
            frame,
            function,
            self.book.name(code.co_filename),
            code.co_firstlineno,
            "skipped",
            resumes=self.breaks.break_before(code),
            call_number=self.call_number,
            code=list(self._frame_ids).index(key[0]),
            compilation=list(self._frame_ids[key[0]]).index(key[1]),
        )
        self.builder.frames[frame] = self.calls.with_caller(started, sys._getframe(1))
        self.calls.runs(code, frame)
        self.builder.start("captured", frame)
        self.clock.resume()

    def on_skip(self, code: CodeType, why: str) -> None:
        """Record why Dynamo skipped a frame, before or while tracing it."""
        frame = next((name for name in reversed(self._codes) if self._codes[name] is code), None)
        if frame is None:
            self.skips.add(code, why)
        elif not self.builder.frames[frame].reason and self.builder.frames[frame].outcome == "skipped":
            reason = Skip(code, why).words if why else EMPTY
            self.builder.frames[frame] = replace(self.builder.frames[frame], reason=reason)

    def on_refusal(self, why: str, hint: str) -> None:
        """Add a Problem for a frame for which torch.compile raises an error."""
        self.builder.problem(Problem("captured", why, hint))
        self.hooks.watch_ddp()  # the model runs as plain Python, and a simulated group answers its reducer in Python

    def on_restart(self, key: CompileKey, why: str) -> None:
        frame = self.builder.frames.get(self.frame_id(key))
        if frame is not None and why not in frame.restarts:
            self.builder.frames[frame.id] = replace(frame, restarts=(*frame.restarts, why))

    def on_resume_functions(self, key: CompileKey, codes: Sequence[CodeType]) -> None:
        self.breaks.resumes(self.frame_id(key), codes)

    def on_frame_end(self, key: CompileKey, error: BaseException | None) -> None:
        frame = self.builder.frames[self.frame_id(key)]
        if isinstance(error, Exception) and dynamo.is_recompile_limit(error):
            mark_limit_reached(self.builder, frame, dynamo.recompile_limit_words(error))
        elif isinstance(error, Exception):
            self.builder.frames[frame.id] = replace(frame, outcome="failed", reason=first_lines(error))
            last = next((found for found in reversed(self.builder.breaks) if found.frame == frame.id), None)
            if last is None or not is_by_design(last) or self.builder.options.fullgraph:
                self.builder.problem(self._capture_problem(frame, error))

    def _capture_problem(self, frame: Frame, error: Exception) -> Problem:
        """The Problem for a frame that failed to compile; describes the graph break if that is the cause."""
        name = function_name(frame.function)
        where = f"{name if name == frame.function else f'the rest of {name}'} ({frame.file}:{frame.line})"
        if not dynamo.is_unsupported(error):
            reason = f"TorchDynamo could not capture {where}: {first_lines(error)}"
            return Problem("captured", reason, hint_of(error), frame.id)
        told = (found.what for found in reversed(self.builder.breaks) if found.frame == frame.id)
        words = next(told, "") or first_lines(error, 1)
        if self.builder.options.fullgraph:
            return Problem("captured", f"TorchDynamo could not capture {where} in one graph: {words}",
                           "drop --fullgraph to see the graphs on both sides of the break", frame.id)  # fmt: skip
        reason = f"{where} runs as plain Python, because of a graph break: {words}"
        return Problem("captured", reason, graph=frame.id)

    def on_bytecode(self, key: CompileKey, original: CodeType, modified: CodeType) -> None:
        frame = self.frame_id(key)
        self.builder.frames[frame] = replace(self.builder.frames[frame], outcome="compiled")
        self.calls.runs(modified, frame)
        function = self.builder.frames[frame].function
        try:
            found = bytecode_artifacts(
                original, modified, graph=frame, function=function, book=self.book, names=self.names
            )
        except Exception as error:  # noqa: BLE001 - if it propagated, Dynamo would run the frame as plain Python
            self.builder.problem(Problem("bytecode", f"{type(error).__name__}: {error}", "please report it", frame))
            return
        for artifact in found:
            self.builder.add(artifact)
        self.add_sources()

    def on_graph(self, key: CompileKey, module: GraphModule, run: Function, bucket: Bucket | None = None) -> Function:
        """Record a captured graph and its compilation by the backend; return the callable that Dynamo runs for it.

        Unless the backend's result can run (`_compiled_runs`), that callable is the captured graph itself, so autograd
        and random numbers are eager's own. `bucket` is set if the graph is one of the parts that DDPOptimizer made.
        """
        frame = self.frame_id(key)
        graph = f"{frame} {bucket.name}" if bucket else frame
        seconds = self.clock.lap()
        self.builder.environment = with_settings_of_now(self.builder.environment)
        captured = fx.detached_copy(module)
        identity = f"captured[{graph}]"
        self.breaks.graph(frame, identity, bucket.whole if bucket else captured)
        check = self.builder.options.check
        kept = self.kept.setdefault(graph, KeptFrame(self.copies_inputs, keeps_stages=check is True))
        self.hooks.add_graph(graph, module, bucket)
        recorder = GraphRecorder(self, graph, kept)
        known = self.builder.frames[frame]
        self.builder.frames[frame] = replace(known, graphs=tuple(dict.fromkeys((*known.graphs, identity))))
        recorder.record_captured(captured, seconds, bucket)
        gpu = self._destination(module).gpu
        if gpu is None and measures(self.builder.options) and not fx.is_on_meta(module):
            self.build = True
        eager = as_eager(captured)
        kept.captured, kept.eager, kept.book = captured, eager, self.book
        stage = AutogradStage(self.builder, recorder.latest["captured"], eager)
        is_taken = self._shared is not None and self._shared.has(graph, captured)
        if self._shared is not None and is_taken:
            self._taken.append(graph)
            self.collectives.copy_graph(graph, self._shared.collectives_of(graph))
        looks = self.builder.keeps("autograd") and not is_taken

        def keep(call: Function) -> Function:
            watched = stage.record_first_call(call) if looks else call
            return self.hooks.note_runs(graph, captured, kept.keep_first_call(watched))

        uncompiled = self._note_calls(frame, keep(stage.run if looks else eager.forward), captured)
        if bucket is not None:
            uncompiled = run_or_propagate(uncompiled, captured.forward)
        if not self._needs_backend() or is_taken:
            return uncompiled
        observer = untimed_observer(recorder, self.torch_time)
        virtual = InductorRetargeting(gpu, observer.on_choice) if gpu else None
        observing = inductor.observe(observer, build=self.build, gpu=virtual, runs=self._compiled_runs())
        collections = fewer_full_collections(1 + len(captured.graph.nodes) // NODES_A_COLLECTION)
        with observing, write_for_target(self.builder.options.target), collections, self._watch_passes(recorder):
            compiled = recorder.run_backend(run)
        if compiled is None or recorder.problems or not self._compiled_runs():
            return uncompiled
        return keep(compiled) if bucket is None else run_or_propagate(keep(compiled), compiled)

    def _watch_passes(self, recorder: GraphRecorder) -> AbstractContextManager[None]:
        """Record the passes of our own backend, if it compiles."""
        if self.builder.options.backend != "tcompile":
            return nullcontext()
        from compiler.backend.pipeline import watch
        from compiler.backend_record.recording import PassRecorder

        return watch(untimed_observer(PassRecorder(recorder, builds=self.build), self.torch_time))

    def _note_calls(self, frame: str, call: Function, captured: GraphModule) -> Function:
        """Wrap `call` to record in which calls of the explored function it runs, and the time that it takes."""
        announced = fx.count_elements(captured) < MANY_ELEMENTS

        def call_and_note(*args: Any, **kwargs: Any) -> Any:
            nonlocal announced
            self._ran.setdefault(self.call_number, set()).add(self.builder.frames[frame].code)
            if not announced:
                announced = True
                self.builder.progress("call", "it runs on the CPU, uncompiled")
            start, first = time.perf_counter(), next_number()
            try:
                return call(*args, **kwargs)
            finally:
                self._call_seconds += time.perf_counter() - start
                self.uncompiled.add(first, next_number(), frame)

        return call_and_note

    def _say_what_took_long(self) -> None:
        """Add a Problem if the uncompiled call took long, with a hint on how to explore without running it."""
        if self._call_seconds < LONG_SECONDS:
            return
        reason = (
            f"the call itself ran for {self._call_seconds:.0f} s, uncompiled and where its tensors are: the generated "
            "code is shown, and not run"
        )
        hint = (
            'to explore without running, make inputs and parameters on the meta device: torch.empty(device="meta") and '
            '`with torch.device("meta"):` around the model; or take smaller inputs'
        )
        self.builder.problem(Problem("timing", reason, hint))

    def _plain_calls(self, found: Recompile) -> tuple[int, ...]:
        """Numbers of the calls, from the recompile limit on, in which none of the function's code ran compiled."""
        if not found.limit or self.build or not found.call_number:
            return ()
        code = self.builder.frames[found.frame].code
        calls = range(found.call_number, self.call_number + 1)
        return tuple(number for number in calls if code not in self._ran.get(number, ()))

    def _destination(self, module: GraphModule) -> Destination:
        found = destination(self.builder.options, fx.devices(module))
        self.builder.target = found.name
        if found.problem is not None:
            self.builder.problem(found.problem)
        return found

    def _needs_backend(self) -> bool:
        later = STAGES[STAGES.index("captured") + 1 :]
        return self.build or any(self.builder.keeps(stage) for stage in later if stage != "autograd")

    def _compiled_runs(self) -> bool:
        """Whether the user's call runs what the backend returned; generated code runs only once it is built.

        Backend "eager" returns the captured graph.
        """
        return self.build or self.builder.options.backend not in ("inductor", "tcompile", "eager")

    def on_break(self, key: CompileKey, facts: BreakFacts) -> None:
        if all(is_dynamo(place.file) for place in facts.places):  # in torch's own wrapper around a module
            here = tuple(Place(site.file, site.function, site.line) for site in self.call_site[-1:])
            facts = replace(facts, places=here)
        self.breaks.add(self.frame_id(key), facts)

    def on_recompile(self, key: CompileKey, reasons: Sequence[str], entries: Sequence[EntryFailures]) -> None:
        if not reasons:
            return
        frame = self.frame_id(key)
        known = self.builder.frames.get(frame)
        function, file, line = (known.function, known.file, known.line) if known else ("", "", 0)
        texts = tuple(self.book.shorten(self._canonical(reason)) for reason in reasons)
        new = Recompile(
            f"recompile[{frame}]", frame, function, file, line, texts, call=self._call(), call_number=self.call_number
        )
        for entry in entries:
            self._failed.setdefault(self.frame_id(entry.key), Counter()).update(map(_failure_key, entry.guards))
        stack = self._stack_names(new.frame)
        is_outermost = key[0] == next(iter(self._frame_ids))
        self.builder.recompiles.append(recompile(
            new, entries, self.frame_id, global_state(), is_outermost=is_outermost, stack=stack,
            resumes=bool(known and known.resumes),
            same_call={found.id for found in self.builder.frames.values() if found.call_number == self.call_number},
        ))  # fmt: skip

    def _stack_names(self, frame: str) -> dict[str, str]:
        """Map torch's names for values on the stack at the start of a frame to local variables."""
        return stack_names(self._codes[frame]) if frame in self._codes else {}

    def _call(self) -> Span | None:
        """The source line of the current call of the explored function; None if it is unknown."""
        if not self.call_site:
            return None
        site = self.call_site[-1]
        code = linecache.getline(site.file, site.line).strip()
        return Span(self.book.name(site.file), site.line, site.line, function=site.function, code=code)

    def _canonical(self, reason: str) -> str:
        """Replace torch's compilation id in a recompile reason by ours."""

        def ours(match: re.Match[str]) -> str:
            key = (int(match[1]), int(match[2]))
            known = self._frame_ids.get(key[0], {}).get(key[1])
            return f"{known}:" if known else match[0]

        return re.sub(r"^(\d+)/(\d+):", ours, reason)

    def on_symbols(self, key: CompileKey, facts: Sequence[SymbolFacts]) -> None:
        frame = self.frame_id(key)
        self._open[frame] = tuple(facts)
        self.builder.symbols[:] = [found for found in self.builder.symbols if found.frame != frame]
        self.builder.symbols.extend(symbol_of(frame, fact, self.book) for fact in facts)

    def on_guards(self, key: CompileKey, tree: GuardTree) -> None:
        frame = self.frame_id(key)
        names = {file: self.book.name(file) for file in self.book.lines}
        sizes = names_of(self._open.get(frame, ()))
        self.builder.guards.extend(
            guards_of(frame, tree.guards, names, sizes, self._failed.get(frame), self._stack_names(frame))
        )
        if frame in self.builder.frames:
            self.builder.frames[frame] = replace(self.builder.frames[frame], guard_seconds=tree.seconds)

    def stop_hearing(self) -> None:
        """Remove our hooks from the user's autograd graphs."""
        for kept in self.kept.values():
            kept.stop_hearing()

    def finish(self) -> None:
        """Add facts known only at the end: uncompiled calls, skipped functions, sources, late decisions."""
        self.stop_hearing()
        self._say_what_took_long()
        if self._shared is not None:
            self._shared.copy_into(self.builder, self._taken)
        for decisions in self.later:
            self.builder.decisions.extend(decisions())
        self.breaks.finish(self._codes)
        graphs = captured_by_frame(self.builder.frames.values(), self.builder.artifacts.values())
        self.builder.recompiles[:] = [
            replace(found, plain_calls=self._plain_calls(found))
            for found in with_graph_changes(self.builder.recompiles, graphs)
        ]
        codes = dict(self._codes)
        for number, skip in enumerate(self.skips.worth_showing()):
            code, identity = skip.code, f"skipped/{number}"
            codes[identity] = code
            self.book.line(code.co_filename, code.co_firstlineno)
            name, file = self.names(code.co_name), self.book.name(code.co_filename)
            self.builder.frames[identity] = Frame(identity, name, file, code.co_firstlineno, "skipped", skip.words)
        self.calls.finish(codes.items())
        self.collectives.finish(self.builder)
        self.hooks.finish(self.book)
        add_estimates(self.builder)
        self.add_sources()

    def record_steps(self, step: bool | int) -> AbstractContextManager[None]:
        """Record each instruction that Dynamo traces in the block; `step` is the option."""
        most = MIB * (MOST_MIB if step is True else step)
        return recorded_steps(self._keep_steps, frame_id=self.frame_id, book=self.book, names=self.names, most=most)

    @contextmanager
    def record_phases(self, observation: dynamo.Observation) -> Iterator[None]:
        """Record the phases of observed compilations in the block, and their times."""
        log = PhaseLog(self.torch_time.seconds, observation.is_observing)
        try:
            with log.listen():
                yield
        finally:
            self.builder.phases.extend(map(self._phase, log.found.values()))

    def _phase(self, facts: PhaseFacts) -> Phase:
        graph = self._frame_ids.get(facts.key[0], {}).get(facts.key[1], "")
        return Phase(facts.name, facts.seconds, graph, facts.parent, facts.count)

    def _keep_steps(self, steps: tuple[Step, ...], cut: Problem | None) -> None:
        self.builder.steps = steps
        if cut is not None:
            self.builder.problem(cut)

    def add_sources(self) -> None:
        for artifact in self.book.artifacts():
            self.builder.add(artifact)


def _failure_key(guard: FailedGuard) -> tuple[str, str, str]:
    if guard.kind == "NO_TENSOR_ALIASING":
        return guard.kind, "", ""
    return guard.kind, guard.source, guard.code[0] if guard.code else ""


def tensors_device(values: Sequence[Any]) -> torch.device | None:
    """Device of the first tensor that is not on the CPU, or else of the first tensor; None without tensors."""
    devices = [value.device for value in values if isinstance(value, torch.Tensor)]
    return next((device for device in devices if device.type != "cpu"), devices[0] if devices else None)
