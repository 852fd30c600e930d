"""Decompose every operator of MLP, ResNet-18, GPT-2 and ViT in training, and compare every level's graphs with eager.

python -m benchmarks.decompositions            all four, small configurations; writes results/decompositions.json
python -m benchmarks.decompositions mlp vit    some of them
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from benchmarks.figures import RESULTS, load
from benchmarks.models import TITLES, Step, mlp
from compiler.decompose.graphs import LevelGraphs
from compiler.decompose.one_op import Decomposition, decompose_call
from compiler.decompose.tree import GETITEM
from compiler.engine import Exploration
from compiler.numerics.policy.by_dtype import Numbers, worst_verdict
from compiler.record.options import Options
from compiler.torch_api import fx
from compiler.torch_api.pytrees import tree_map


def resnet18() -> Step:
    """ResNet-18 on 8 pictures of 64×64: batch norms have enough numbers to be well conditioned."""
    from tests.compiler.models import ResNet

    return Step(ResNet(2).train(), {"x": torch.randn(8, 3, 64, 64)}, lambda output: output.sum())


def gpt2() -> Step:
    """GPT-2 of 2 layers, width 64, with its loss and its dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=97, bos_token_id=0, eos_token_id=0,
                        loss_type="ForCausalLM")  # fmt: skip
    ids = torch.randint(0, 97, (2, 16))
    return Step(GPT2LMHeadModel(config).train(), {"input_ids": ids, "labels": ids}, lambda output: output.loss)


def vit() -> Step:
    """ViT of 2 layers, width 64, on pictures of 32×32, with its loss."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(num_labels=10, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
                       intermediate_size=128, image_size=32, patch_size=8)  # fmt: skip
    arguments = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.randint(0, 10, (2,))}
    return Step(ViTForImageClassification(config).train(), arguments, lambda output: output.loss)


MODELS: dict[str, Callable[[], Step]] = {"mlp": mlp, "resnet18": resnet18, "gpt2": gpt2, "vit": vit}


@dataclass
class Trees:
    """Decomposition trees of a model's calls, one for each operator with different argument types or values."""

    calls: int = 0
    different: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


class Taking(Interpreter):
    """Runs a graph, and decomposes each call with its actual inputs."""

    def __init__(self, module: GraphModule, known: set[str], trees: Trees) -> None:
        super().__init__(module)
        self.known, self.trees = known, trees

    def run_node(self, n: Node) -> Any:
        if n.op in ("call_function", "call_method") and fx.target_name(n) != GETITEM:
            self.trees.calls += 1
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            key = repr((fx.target_name(n), tree_map(_type, (args, kwargs))))
            if key not in self.known:
                self.known.add(key)
                self._take(n, tuple(args), dict(kwargs))
        return super().run_node(n)

    def _take(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.trees.different += 1
        target: Any = getattr(torch.Tensor, str(node.target)) if node.op == "call_method" else node.target
        try:
            found = decompose_call(fx.target_name(node), target, args, kwargs)
        except ValueError as error:
            self.trees.failed.append(f"{fx.target_name(node)}: {error}")
            return
        worst = worst_verdict(item for level in found.levels for item in level.numbers)
        self.trees.verdicts[worst] = self.trees.verdicts.get(worst, 0) + 1
        if worst == "differs":
            self.trees.wrong.append(_wrong(found))


def _wrong(found: Decomposition) -> str:
    levels = [f"{level.name} {item}" for level in found.levels for item in level.numbers if item.verdict == "differs"]
    return f"{found.name}{found.arguments}: {'; '.join(levels)}"


def _type(value: Any) -> Any:
    return (str(value.dtype), tuple(value.shape), value.stride()) if isinstance(value, torch.Tensor) else value


def explored(step: Step) -> Exploration:
    """Record the model's step, without Inductor's stages."""
    with Exploration(Options(stages=("captured",))) as exploration:
        step.run(exploration.compile(step.model))
    return exploration


def measured(name: str) -> dict[str, Any]:
    """A model's levels and trees."""
    torch.manual_seed(0)
    step = MODELS[name]()
    exploration = explored(step)
    trees, known = Trees(), set[str]()
    levels: dict[str, list[Numbers]] = {}
    counts: dict[str, int] = {}
    start = time.perf_counter()
    for frame, kept in exploration.kept.items():
        captured = exploration.record[f"captured[{frame}]"]
        graphs = LevelGraphs(frame, kept, captured)
        for artifact in graphs.artifacts():
            level = artifact.attrs["level"]
            counts[level] = counts.get(level, 0) + _calls(artifact.entities)
        for level, found in graphs.numbers().items():
            levels.setdefault(level, []).extend(found)
        with torch.no_grad():
            assert kept.captured is not None
            Taking(kept.captured, known, trees).run(*[_copy(value) for value in kept.arguments or ()])
            for kind in graphs.aot.graphs:
                half = graphs.half(graphs.id_of("ATen", kind))
                Taking(half.module, known, trees).run(*half.inputs)
    seconds = time.perf_counter() - start
    checks = {level: [asdict(item) for item in found] for level, found in levels.items()}
    return {"model": TITLES[name], "levels": checks, "ops": counts, "trees": asdict(trees), "seconds": seconds}


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _calls(entities: Any) -> int:
    return sum(entity.kind == "call" and entity.attrs["target"] != GETITEM for entity in entities)


def lines(result: dict[str, Any]) -> Iterator[str]:
    """A model's result as a table."""
    for level, found in result["levels"].items():
        for item in found:
            head = f"{result['model']:<10} {level:<10} {result['ops'][level]:>5} ops  {item['dtype']:<8}"
            errors = f"{_number(item['max_absolute'])} {_number(item['max_relative'])}  allowed {item['tolerance']:g}"
            beyond = f"; {item['beyond']} of {item['count']} as near to float64 as eager" if item["beyond"] else ""
            note = f"; {item['note']}" if item["note"] else ""
            yield f"{head} {errors:<34} {item['verdict']}{beyond}{note}"
    trees = result["trees"]
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in trees["verdicts"].items())
    yield (f"{result['model']:<10} trees of {trees['calls']} calls, {trees['different']} different: {verdicts}; "
           f"{len(trees['failed'])} could not be made; {result['seconds']:.1f} s")  # fmt: skip
    yield from (f"    {text}" for text in (*trees["wrong"], *trees["failed"]))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def main(names: list[str]) -> None:
    before = load()
    results = []
    for name in names or list(MODELS):
        results.append(measured(name))
        print("\n".join(lines(results[-1])), flush=True)
    if not names:
        path = RESULTS / "decompositions.json"
        content = {"torch": torch.__version__, "load": [before, load()], "models": results}
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"wrote {path.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
