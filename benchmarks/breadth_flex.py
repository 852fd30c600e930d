"""FlexAttention: mask and score functions, with each stage, and values and gradients held against the dense formula.

PyTorch has no backward of FlexAttention on a CPU, so a CPU's programs are forward only. For a CPU, the values are those
of the code that torch.compile builds; for a GPU that is not here, of PyTorch's own dense formula.
"""

# ruff: noqa: ARG001 - FlexAttention calls each function with all of these

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._inductor.exc import InductorError
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    and_masks,
    create_block_mask,
    flex_attention,
    or_masks,
)

from benchmarks.breadth_row import Row
from compiler.capture.error_words import first_lines
from compiler.engine import Exploration, explore
from compiler.numerics.policy.by_dtype import numbers
from compiler.record import Record
from compiler.record.options import Options

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

SLOPES = torch.tensor([0.5, 0.25])
TABLE = torch.randn(2, 511, generator=torch.Generator().manual_seed(1)).requires_grad_()
GAIN = torch.tensor([0.3, -0.7], requires_grad=True)
DOCUMENTS = torch.tensor([0] * 70 + [1] * 100 + [2] * 86)
LENGTHS = torch.tensor([100, 256])
OFFSET = torch.tensor(200)
PAIRS = torch.randn(2, 2, 256, 256, generator=torch.Generator().manual_seed(2))
THRESHOLDS = torch.tensor([32, 100])

GRAPHS = ("captured", "pre_grad", "joint", "forward", "backward", "post_grad", "ir", "fused_ir", "kernels")
ON_GPU = (*GRAPHS, "ttir", "ttgir", "llir", "ptx", "sass")
ON_CPU = ("captured", "pre_grad", "inference", "post_grad", "ir", "fused_ir", "kernels")
OURS = ("captured", "joint", "forward", "backward", "lowered", "fused", "scheduled", "kernels")


@dataclass(frozen=True)
class Case:
    """One attention: its functions, shapes (batch, query heads, key heads, queries, keys, width), and options.

    `learned` are captured tensors that need a gradient. With `inside`, the block mask is made in the compiled function.
    """

    name: str
    score: ScoreMod | None = None
    mask: MaskMod | None = None
    shape: tuple[int, int, int, int, int, int] = (1, 2, 2, 256, 256, 32)
    learned: Sequence[Tensor] = ()
    per_batch: bool = False
    per_head: bool = False
    inside: bool = False
    block: int = 128
    dtype: torch.dtype = torch.float32
    value_width: int = 0
    dynamic: bool | None = None
    lse: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def inputs(self) -> list[Tensor]:
        batch, heads, key_heads, queries, keys, width = self.shape
        torch.manual_seed(0)
        sizes = [
            (batch, heads, queries, width),
            (batch, key_heads, keys, width),
            (batch, key_heads, keys, self.value_width or width),
        ]
        return [torch.randn(size, dtype=self.dtype) for size in sizes]

    def block_mask(self) -> BlockMask | None:
        if self.mask is None:
            return None
        batch, heads, _, queries, keys, _ = self.shape
        by_batch, by_head = batch if self.per_batch else None, heads if self.per_head else None
        return create_block_mask(self.mask, by_batch, by_head, queries, keys, device="cpu", BLOCK_SIZE=self.block)

    def attention(self) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        made = None if self.inside else self.block_mask()
        gqa = self.shape[1] != self.shape[2]

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            mask = self.block_mask() if self.inside else made
            given: dict[str, Any] = {"score_mod": self.score, "block_mask": mask, "enable_gqa": gqa, **self.options}
            if self.lse:
                out, aux = flex_attention(q, k, v, **given, return_aux=AuxRequest(lse=True))
                return torch.cat([out, aux.lse.unsqueeze(-1).to(out.dtype)], -1)
            return flex_attention(q, k, v, **given)

        return attend

    def formula(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The attention as a dense softmax, by broadcasting; it shares no code with PyTorch's."""
        batch, heads, queries, width = q.shape
        k, v = (each.repeat_interleave(heads // each.shape[1], 1) for each in (k, v))
        sizes = (batch, heads, queries, k.shape[2])
        index = [torch.arange(size).view([-1 if i == at else 1 for i in range(4)]) for at, size in enumerate(sizes)]
        wide = torch.promote_types(q.dtype, torch.float32)
        scores = (q.to(wide) @ k.to(wide).transpose(-2, -1)) * (self.options.get("scale") or 1 / math.sqrt(width))
        if self.score is not None:
            scores = self.score(scores, *index)
        if self.mask is not None:
            scores = scores.masked_fill(~self.mask(*index).expand(scores.shape), -math.inf)
        top = scores.amax(-1, keepdim=True).detach().nan_to_num(neginf=0.0)
        powers = (scores - top).exp()
        total = powers.sum(-1, keepdim=True)
        weights = powers / total.clamp(min=torch.finfo(wide).tiny)
        out = weights.to(q.dtype) @ v
        return torch.cat([out, (total.log() + top).to(q.dtype)], -1) if self.lse else out


def rows(only: str) -> Iterator[Row]:
    for case in cases():
        if only in case.name:
            yield _trained(case, "inductor", "h100", ON_GPU)
            yield _inferred(case)
            yield _trained(case, "tcompile", "h100", OURS)


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q - k).abs() <= 40


def sink(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return k < 4


def prefix(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (k < 64) | (q >= k)


def same_document(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return DOCUMENTS[q] == DOCUMENTS[k]


def not_padding(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return k < LENGTHS[b]


def dilated(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return ((q - k) % 4 == 0) & (q >= k)


def neighbours(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return ((q // 16 - k // 16).abs() <= 3) & ((q % 16 - k % 16).abs() <= 3)


def by_head(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q - k).abs() <= THRESHOLDS[h]


def decoding(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q + OFFSET >= k


def none_of_the_last(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q < 200) & (q >= k)


def alibi(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score - SLOPES[h] * (q - k).abs()


def relative(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score + TABLE[h, q - k + 255]


def softcap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return 20 * torch.tanh(score / 20)


def scaled(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score * torch.sigmoid(GAIN[h])


def with_pairs(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score + PAIRS[b, h, q, k]


def bucketed(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    far = (q - k).abs()
    bucket = torch.where(far < 8, far, 8 + (far.clamp(min=1).float() / 8).log2().long().clamp(max=7))
    return score + TABLE[h, bucket]


def masked_by_score(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return torch.where(q >= k, score, -math.inf)


def squared(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score * score.abs() * 0.1


def cases() -> list[Case]:
    return [
        Case("causal", mask=causal),
        Case("sliding window", mask=and_masks(causal, window)),
        Case("window and sink", mask=or_masks(window, sink)),
        Case("prefix", mask=prefix),
        Case("documents", mask=and_masks(same_document, causal)),
        Case("padding by batch", mask=not_padding, shape=(2, 2, 2, 256, 256, 32), per_batch=True),
        Case("dilated", mask=dilated),
        Case("2-d neighbourhood", mask=neighbours),
        Case("window by head", mask=by_head, per_head=True),
        Case("rows without a key", mask=none_of_the_last),
        Case("decode", mask=decoding, shape=(2, 2, 2, 1, 256, 32)),
        Case("decode of grouped heads", mask=decoding, shape=(1, 8, 2, 1, 256, 64)),
        Case("grouped heads", mask=causal, shape=(1, 4, 2, 256, 256, 32)),
        Case("alibi", score=alibi, mask=causal),
        Case("relative bias, learned", score=relative, learned=(TABLE,)),
        Case("softcap", score=softcap),
        Case("softcap and causal", score=softcap, mask=causal),
        Case("scale by head, learned", score=scaled, learned=(GAIN,), value_width=64),
        Case("bias of pairs", score=with_pairs, shape=(2, 2, 2, 256, 256, 32)),
        Case("T5 buckets, learned", score=bucketed, learned=(TABLE,)),
        Case("mask in the score", score=masked_by_score),
        Case("squared scores", score=squared, options={"scale": 0.5}),
        Case("bfloat16", score=softcap, mask=causal, dtype=torch.bfloat16),
        Case("logsumexp", mask=causal, lse=True),
        Case("mask made inside", mask=causal, inside=True, block=64),
        Case("dynamic shapes", score=softcap, mask=causal, dynamic=True),
    ]


def _trained(case: Case, backend: str, target: str, expected: Sequence[str]) -> Row:
    """Explore forward and backward; compare the result and all gradients with the formula's."""
    torch._dynamo.reset()
    started = time.perf_counter()
    inputs = [each.requires_grad_() for each in case.inputs()]
    leaves = [*inputs, *case.learned]
    stages = ("all",) if backend == "inductor" else ()
    options = Options(target=target, backend=backend, dynamic=case.dynamic, stages=stages)
    with Exploration(options) as exploration:
        out = exploration.compile(case.attention())(*inputs)
        torch.manual_seed(2)
        weight = torch.randn(out.shape, dtype=out.dtype)
        found = [out, *_gradients((out * weight).sum(), leaves)]
    eager = case.formula(*inputs)
    wanted = [eager, *_gradients((eager * weight).sum(), leaves)]
    names = ["out", "q", "k", "v", *(f"learned {place}" for place in range(len(case.learned)))]
    verdicts = _verdicts(names, found, wanted)
    return _row(case, f"{backend} {target}", exploration.record, expected, verdicts, started)


def _inferred(case: Case) -> Row:
    """Explore the forward for the CPU; compare what torch.compile's code gives there with the formula.

    If torch.compile refuses the program there, the exploration has to say so in torch's words.
    """
    torch._dynamo.reset()
    started = time.perf_counter()
    attend, inputs = case.attention(), case.inputs()
    with torch.no_grad():
        record = explore(attend, inputs, options=Options(target="cpu", dynamic=case.dynamic)).record
        try:
            found = torch.compile(attend, dynamic=case.dynamic)(*inputs)
        except InductorError as error:
            limit = first_lines(error, 1)
            is_told = any(limit in problem.reason for problem in record.problems)
            return Row(case.name, "inductor cpu", (), {f"torch's limit, {limit}": "equal" if is_told else "not told"})
        verdicts = _verdicts(["out"], [found], [case.formula(*inputs)])
    return _row(case, "inductor cpu", record, ON_CPU, verdicts, started)


def _gradients(loss: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, leaves)


def _verdicts(names: Sequence[str], found: Sequence[Tensor], wanted: Sequence[Tensor]) -> dict[str, str]:
    pairs = zip(names, found, wanted, strict=True)
    verdicts = {}
    for name, mine, theirs in pairs:
        [told] = numbers([(name, mine.detach())], [(name, theirs.detach())])
        verdicts[name] = told.verdict
    return verdicts


def _row(
    case: Case, setting: str, record: Record, expected: Sequence[str], verdicts: dict[str, str], started: float
) -> Row:
    stages = {artifact.stage for artifact in record.artifacts}
    missing = tuple(stage for stage in expected if stage not in stages)
    problems = tuple(problem.reason for problem in record.problems)
    return Row(case.name, setting, missing, verdicts, problems, time.perf_counter() - started)
