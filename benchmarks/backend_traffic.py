"""Bytes that our own backend's kernels move on a GPU, against Inductor's for the same models; needs no GPU.

    python -m benchmarks.backend_traffic [NAME …] [--inference] [--training] [--amp] [--out FILE] [--ours]

Both compile for an H200 that need not be here. Counted for each: generated kernels, extern calls, and the bytes that
the generated kernels read and write; each element of a buffer counts once per kernel. Ratios are ours over Inductor's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from benchmarks.fidelity_models import Chain, FeedForward
from benchmarks.models import Step
from benchmarks.suite_models import UNetBlock
from compiler import explore
from compiler.backend import pipeline
from compiler.backend.backend import LAYOUTS, example_sizes, interpret_program
from compiler.backend.ir import Program
from compiler.backend.lower.graph import lower
from compiler.backend.passes.context import Context
from compiler.backend.passes.cost import traffic
from compiler.backend.torch_glue.compiling import compile_with_autograd
from compiler.backend.torch_glue.constants import with_known_constants
from compiler.backend.torch_glue.layout import with_layouts
from compiler.option_checks import parse_options
from compiler.targets import target
from compiler.torch_api.aot import with_backward
from compiler.torch_api.dynamo import compile_function
from compiler.torch_api.fx import fake_mode, value_of
from compiler.torch_api.moving import CPU, Mover
from compiler.torch_api.python_kernels import python_kernels
from compiler.virtual_gpu.attention import attention_kernels
from compiler.virtual_gpu.autocast import CudaRegions, autocast_kernels
from compiler.virtual_gpu.gpu import DEVICE, virtual_gpu
from tests.compiler import models

TARGET = "h200"


@dataclass(frozen=True, slots=True)
class Count:
    """Counts over all graphs of a call."""

    kernels: int
    calls: int
    bytes: int


def _mean(output: Any) -> torch.Tensor:
    return output.float().mean()


def _own(output: Any) -> torch.Tensor:
    return output.loss


def _transformer(model: str, config: str, **settings: Any) -> Callable[[], Step]:
    def build() -> Step:
        import transformers

        made = getattr(transformers, config)(**settings)
        ids = torch.randint(0, made.vocab_size, (8, 128))
        return Step(getattr(transformers, model)(made), {"input_ids": ids, "labels": ids.clone()}, _own)

    return build


def _pictures(model: str, config: str, size: int = 112, **settings: Any) -> Callable[[], Step]:
    def build() -> Step:
        import transformers

        made = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return Step(made, {"pixel_values": torch.randn(8, 3, size, size)}, lambda output: output.logits.mean())

    return build


MODELS: dict[str, Callable[[], Step]] = {
    "mlp": lambda: Step(models.MLP(), {"x": torch.randn(64, 64)}, _mean),
    "pointwise": lambda: Step(Chain(1024), {"x": torch.randn(512, 1024)}, _mean),
    "feedforward": lambda: Step(FeedForward(768), {"x": torch.randn(8, 128, 768)}, _mean),
    "encoder": lambda: Step(
        nn.TransformerEncoderLayer(512, 8, 2048, 0.1, batch_first=True), {"src": torch.randn(8, 128, 512)}, _mean
    ),
    "bert": _transformer("BertForMaskedLM", "BertConfig", num_hidden_layers=2),
    "gpt2": _transformer("GPT2LMHeadModel", "GPT2Config", n_layer=2, loss_type="ForCausalLM", use_cache=False),
    "llama": _transformer(
        "LlamaForCausalLM", "LlamaConfig", vocab_size=8000, hidden_size=512, intermediate_size=2048,
        num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2, use_cache=False,
    ),
    "t5": _transformer(
        "T5ForConditionalGeneration", "T5Config", num_layers=2, use_cache=False, decoder_start_token_id=0
    ),
    "resnet18": lambda: Step(models.ResNet(2), {"x": torch.randn(8, 3, 112, 112)}, _mean),
    "mobilenet": _pictures("MobileNetV2ForImageClassification", "MobileNetV2Config"),
    "convnext": _pictures("ConvNextForImageClassification", "ConvNextConfig", depths=[1, 1, 1, 1]),
    "vit": _pictures("ViTForImageClassification", "ViTConfig", 224, num_hidden_layers=2),
    "unet": lambda: Step(UNetBlock(), {"x": torch.randn(8, 256, 16, 16), "time": torch.randn(8, 256)}, _mean),
}  # fmt: skip


def called(step: Step, training: bool) -> Callable[..., Any]:
    """The function to compile: the model in evaluation mode, or in training mode with its loss."""
    model = step.model.train(training)
    if not training:
        return model
    return lambda **arguments: step.loss(model(**arguments))


def in_bfloat16(amp: bool) -> AbstractContextManager[Any]:
    """Run calls under the CPU's autocast, which stands for the GPU's while graphs are traced for a GPU."""
    return torch.autocast("cpu", torch.bfloat16, enabled=amp)


def inductor(step: Step, training: bool, amp: bool = False) -> tuple[Count, Counter[str]]:
    """Inductor's counts for the call, and its kernels by name."""
    options = parse_options(target=TARGET, grad=training)
    with in_bfloat16(amp):
        record = explore(called(step, training), (), step.arguments, options).record
    own = [kernel for kernel in record.kernels if kernel.category not in ("extern", "template")]
    calls = sum(kernel.calls for kernel in record.kernels if kernel.category in ("extern", "template"))
    names = Counter({f"{kernel.graph} {kernel.name}": kernel.bytes * kernel.calls for kernel in own})
    moved = names.total()
    return Count(sum(kernel.calls for kernel in own), calls, moved), names


@dataclass(frozen=True, slots=True)
class Ours:
    """A graph of the call: its context, and the program after each pass."""

    ctx: Context
    stages: pipeline.Stages

    @property
    def program(self) -> Program:
        return self.stages.last


def tcompile(step: Step, training: bool, amp: bool = False) -> list[Ours]:
    """Our backend's programs for the call's graphs, for the GPU."""
    gpu, found = target(TARGET), []

    def keep(module: GraphModule, inputs: Sequence[Any], name: str) -> Any:
        mode = fake_mode([*map(value_of, module.graph.nodes)])
        with virtual_gpu(gpu), mode:
            mover = Mover(mode, CPU, DEVICE)
            mover.graph(module)
            with_known_constants(module)
            with_layouts(module, mover.values(inputs), name, LAYOUTS)
        ctx = Context(sizes=example_sizes(module), graph=name, pass_name="lower", processors=gpu.multiprocessors)
        stages = pipeline.run(lower(module, name, ctx), ctx)
        found.append(Ours(ctx, stages))
        return interpret_program(stages.last)

    def backend(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        forward, backward, inference = (partial(keep, name=name) for name in ("forward", "backward", "inference"))
        with python_kernels({**attention_kernels(gpu, lambda *_: None), **autocast_kernels()}), CudaRegions():
            compile_with_autograd(module, inputs, forward, backward, inference)
        return module.forward

    with with_backward(), torch.set_grad_enabled(training), in_bfloat16(amp):
        compile_function(called(step, training), backend, dynamic=None, fullgraph=False)(**step.arguments)
    return found


def count(graphs: Sequence[Ours]) -> Count:
    """Count the kernels and bytes of these programs."""
    kernels = sum(len(graph.program.kernels) for graph in graphs)
    calls = sum(len(graph.program.steps) for graph in graphs) - kernels
    return Count(kernels, calls, sum(traffic(k, g.program, g.ctx) for g in graphs for k in g.program.kernels))


def row(name: str, training: bool, asked: argparse.Namespace) -> dict[str, Any]:
    """Both counts of one model, and the ratios."""
    torch.manual_seed(0)
    step = MODELS[name]()
    torch.compiler.reset()
    start = time.process_time()
    ours = count(tcompile(step, training, asked.amp))
    found: dict[str, Any] = {"ours": asdict(ours), "seconds": time.process_time() - start}
    if not asked.ours:
        torch.compiler.reset()
        theirs = inductor(step, training, asked.amp)[0]
        found |= {"inductor": asdict(theirs)}
        found |= {f"ratio of {key}": getattr(ours, key) / (getattr(theirs, key) or 1) for key in ("kernels", "bytes")}
    return found


def _cases(asked: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    for name in asked.names or MODELS:
        if asked.inference or not asked.training:
            yield name, False
        if asked.training or not asked.inference:
            yield name, True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MODELS)}; all of them unless given")
    parser.add_argument("--inference", action="store_true", help="only that")
    parser.add_argument("--training", action="store_true", help="only that")
    parser.add_argument("--amp", action="store_true", help="under autocast in bfloat16")
    parser.add_argument("--ours", action="store_true", help="without Inductor")
    parser.add_argument("--out", type=Path, help="where to write JSON")
    asked = parser.parse_args()
    rows = {}
    for name, training in _cases(asked):
        kind = "training" if training else "inference"
        rows[f"{name}, {kind}"] = found = row(name, training, asked)
        print(f"{name:12} {kind:10} {json.dumps(found)}", flush=True)
        if asked.out:
            asked.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
