"""Run a program on a GPU: compile its Triton code, tune it if asked, load it, and launch it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from compiler.backend.cpp.emit import Code
from compiler.backend.ir import BackendError, MatmulKernel, Program
from compiler.backend.ir.symbols import sources
from compiler.backend.passes.context import Context
from compiler.backend.passes.matmuls import split_fused_matmul
from compiler.backend.runtime import build_triton, tune
from compiler.backend.runtime.build_triton import Builds, Wanted, specify_kernel
from compiler.backend.runtime.launch import Assumed, Launcher, by_kernel
from compiler.backend.runtime.tune import Candidate
from compiler.backend.triton.emit import TritonCode
from compiler.torch_api import cuda_launch
from compiler.torch_api.aot import Call
from compiler.torch_api.cuda_launch import Loaded


class OnGpu:
    """Compiles a program for each set of assumptions that calls need, first for the example inputs."""

    def __init__(
        self, program: Program, code: TritonCode, library: Code, ctx: Context, device: int, tuned: bool
    ) -> None:
        self.program, self.code, self.ctx, self.device, self.tuned = program, code, ctx, device, tuned
        self.functions = by_kernel(code, library)
        self.matmul_kernels = {step.name: step for step in program.steps if isinstance(step, MatmulKernel)}
        self.library: Mapping[str, Any] = {}
        self.calls: dict[Assumed, Call] = {}
        multiples = frozenset(name for name in sources(program) if ctx.sizes.get(name, 1) % 16 == 0)
        self.expected = Assumed(True, multiples)
        self.begun = {self.expected: self.begin(self.expected)}

    def begin(self, assumed: Assumed) -> tuple[Sequence[Wanted], Builds]:
        """Start to compile all kernels, each in the heuristics' choice of configuration, or in all if tuned."""
        kernels = [
            specify_kernel(self.program, function, config, assumed, self.device)
            for function in self.code.functions
            for config in (function.configs if self.tuned else function.configs[:1])
        ]
        return kernels, Builds.start(kernels)

    def expected_call(self, library: Mapping[str, Any]) -> Call:
        """Wait for the kernels; return the call for inputs like the example inputs. `library` has the CPU's kernels."""
        self.library = library
        return self.call(self.expected)

    def call(self, assumed: Assumed) -> Call:
        """The call for a set of assumptions. Raises BackendError if Triton rejects a kernel."""
        if assumed not in self.calls:
            kernels, builds = self.begun.pop(assumed) if assumed in self.begun else self.begin(assumed)
            with torch.cuda.device(self.device):
                self.calls[assumed] = self.build(assumed, kernels, builds)
        return self.calls[assumed]

    def build(self, assumed: Assumed, kernels: Sequence[Wanted], builds: Builds) -> Call:
        self.ctx.pass_name = "tune"
        found: dict[str, list[Candidate]] = {}
        for kernel in kernels:
            if (loaded := self.load(kernel, builds)) is not None:
                found.setdefault(kernel.function.kernel, []).append((kernel, loaded))
        matmul_kernels = self.matmul_kernels if self.tuned else {}
        chosen = {
            name: tune.fastest(self.program, candidates, self.ctx, self.device)
            for name, candidates in found.items()
            if name not in matmul_kernels
        }
        for name, matmul in matmul_kernels.items():
            rest = chosen[matmul.parts[1].name]
            best = tune.fastest_matmul(self.program, matmul, found.get(name, ()), rest, self.ctx, self.device)
            chosen |= {name: best} if best else {}
        program = split_fused_matmul(self.program, {name for name in matmul_kernels if name not in chosen}, self.ctx)
        functions = {step.name: self.functions[step.name] for step in program.kernels}
        configs = {
            name: (kernel.config, replace(loaded, starts=kernel.starts))
            for name, (kernel, loaded) in chosen.items()
            if name in functions
        }
        launcher = Launcher(program, functions, loaded=configs, assumed=assumed)
        handles = {functions[name].name: loaded.function for name, (_, loaded) in configs.items()}
        return launcher.compile({**handles, **self.library, **_driver(), "again": partial(self.call_again, program)})

    def load(self, kernel: Wanted, builds: Builds) -> Loaded | None:
        """Load a kernel on the GPU.

        While tuning, returns None for a matmul kernel if its tile does not fit or Triton rejects it, as other
        configurations and PyTorch's matmul remain.
        """
        try:
            return builds.load(kernel, self.device)
        except (torch.OutOfMemoryError, BackendError) as error:
            if not self.tuned or kernel.function.kernel not in self.matmul_kernels:
                raise
            said = str(error).partition("\n")[0]
            self.ctx.decide((kernel.function.kernel,), "refused", f"{tune.words(kernel.config)}: {said}")
            return None

    def call_again(self, program: Program, args: list[Any], found: tuple[bool, ...]) -> Sequence[Any]:
        """Run a call that violates the code's assumptions, with code compiled for the assumptions that hold."""
        assumed = Assumed.from_checks(program, found, len(found) > len(sources(program)))
        return self.call(assumed)(args)


def _driver() -> Mapping[str, Any]:
    return {
        "launch": cuda_launch.launch(),
        "stream_of": cuda_launch.raw_stream(),
        "current_device": cuda_launch.current_device(),
        "empty_on_gpu": cuda_launch.empty_on_cuda(),
    }


def reason_unsupported() -> str:
    """Why code for a GPU can't run here, "" if it can."""
    try:
        cuda_launch.launcher()
    except cuda_launch.NoLauncherError as error:
        return str(error)
    return build_triton.reason_unsupported()
