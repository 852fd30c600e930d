"""One call for each rule of the table: a function of random float64 tensors whose `grad_fn` is that node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FrameType

import torch
from torch import Tensor
from torch.nn import functional

from compiler.autograd.eager_graph import EagerGraph, eager_graph
from compiler.autograd.explore import names_of_tensors
from compiler.autograd.recording import Recording

Case = tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]
A, B = (3, 4), (4,)
MASK = torch.tensor([[True, False, True, False]] * 3)
INDEX = torch.tensor([2, 0, 0])
ONCE = torch.tensor([[0, 3], [2, 1], [1, 0]])
COLUMNS = torch.tensor([[0, 3, 1], [2, 2, 0], [1, 0, 3]])

CASES: dict[str, Case] = {
    "AbsBackward0": (lambda x: x.abs(), (A,)),
    "AcosBackward0": (lambda x: (x.tanh() * 0.9).acos(), (A,)),
    "AdaptiveAvgPool2DBackward0": (lambda x: functional.adaptive_avg_pool2d(x, (2, 3)), ((2, 3, 5, 6),)),
    "AdaptiveMaxPool2DBackward0": (lambda x: functional.adaptive_max_pool2d(x, (2, 3)), ((2, 3, 5, 6),)),
    "AddBackward0": (lambda x, y: torch.add(x, y, alpha=3), (A, B)),
    "AddBackward1": (lambda x: torch.ops.aten.add.Scalar(x, 2.0), (A,)),
    "AddbmmBackward0": (lambda x, y, z: torch.addbmm(x, y, z, beta=2, alpha=3), ((3, 5), (2, 3, 4), (2, 4, 5))),
    "AddcdivBackward0": (lambda x, y, z: torch.addcdiv(x, y, z.exp(), value=2), (A, A, B)),
    "AddcmulBackward0": (lambda x, y, z: torch.addcmul(x, y, z, value=2), (A, A, B)),
    "AddmmBackward0": (lambda x, y, z: torch.addmm(x, y, z, beta=2, alpha=3), ((5,), A, (4, 5))),
    "AddmvBackward0": (lambda x, y, z: torch.addmv(x, y, z, beta=2, alpha=3), ((3,), A, (4,))),
    "AliasBackward0": (torch.ops.aten.alias, (A,)),
    "AmaxBackward0": (lambda x: x.round().amax(1), (A,)),
    "AminBackward0": (lambda x: x.round().amin((0, 1), keepdim=True), (A,)),
    "AsinBackward0": (lambda x: (x.tanh() * 0.9).asin(), (A,)),
    "Atan2Backward0": (torch.atan2, (A, B)),
    "AtanBackward0": (lambda x: x.atan(), (A,)),
    "AvgPool2DBackward0": (lambda x: functional.avg_pool2d(x, 3, 2, 1), ((2, 3, 6, 6),)),
    "BaddbmmBackward0": (lambda x, y, z: torch.baddbmm(x, y, z, beta=2, alpha=3), ((3, 5), (2, 3, 4), (2, 4, 5))),
    "BinaryCrossEntropyBackward0": (lambda x: functional.binary_cross_entropy(x.sigmoid(), MASK.double()), (A,)),
    "BinaryCrossEntropyWithLogitsBackward0": (
        lambda x: functional.binary_cross_entropy_with_logits(x, MASK.double(), reduction="sum"),
        (A,),
    ),
    "BmmBackward0": (torch.bmm, ((2, 3, 4), (2, 4, 5))),
    "CatBackward0": (lambda x, y: torch.cat([x, y], 1), (A, (3, 2))),
    "CeilBackward0": (lambda x: x.ceil(), (A,)),
    "ClampBackward1": (lambda x: x.clamp(-0.5, 0.5), (A,)),
    "ClampMaxBackward0": (lambda x: x.clamp_max(0.1), (A,)),
    "ClampMinBackward0": (lambda x: x.clamp_min(0.1), (A,)),
    "CloneBackward0": (lambda x: x.clone(), (A,)),
    "ConstantPadNdBackward0": (lambda x: functional.pad(x, (1, 2, 0, 3)), (A,)),
    "ConvolutionBackward0": (
        lambda x, w, b: torch.convolution(x, w, b, (2, 1), (1, 2), (1, 2), False, (0, 0), 2),
        ((2, 4, 7, 8), (6, 2, 3, 2), (6,)),
    ),
    "CosBackward0": (lambda x: x.cos(), (A,)),
    "CoshBackward0": (lambda x: x.cosh(), (A,)),
    "CumprodBackward0": (lambda x: (x * MASK).cumprod(1), (A,)),
    "CumsumBackward0": (lambda x: x.cumsum(1), (A,)),
    "DiagonalBackward0": (lambda x: x.diagonal(1), (A,)),
    "DivBackward0": (lambda x, y: x / y.exp(), (A, B)),
    "DivBackward1": (lambda x: torch.ops.aten.div.Scalar(x, 2.5), (A,)),
    "DotBackward0": (lambda x, y: x.dot(y), (B, B)),
    "EluBackward0": (lambda x: functional.elu(x, 0.7), (A,)),
    "EmbeddingBackward0": (lambda w: functional.embedding(INDEX, w, padding_idx=2), (A,)),
    "ErfBackward0": (lambda x: x.erf(), (A,)),
    "Exp2Backward0": (lambda x: x.exp2(), (A,)),
    "ExpBackward0": (lambda x: x.exp(), (A,)),
    "ExpandBackward0": (lambda x: x.expand(2, 3, 4), ((3, 1),)),
    "Expm1Backward0": (lambda x: x.expm1(), (A,)),
    "FlipBackward0": (lambda x: x.flip(0, 1), (A,)),
    "FloorBackward0": (lambda x: x.floor(), (A,)),
    "FmodBackward0": (lambda x: x.fmod(0.7), (A,)),
    "FracBackward0": (lambda x: x.frac(), (A,)),
    "GatherBackward0": (lambda x: x.gather(1, COLUMNS), (A,)),
    "GeluBackward0": (lambda x: functional.gelu(x, approximate="tanh"), (A,)),
    "GluBackward0": (lambda x: functional.glu(x, 1), (A,)),
    "HardsigmoidBackward0": (lambda x: functional.hardsigmoid(4 * x), (A,)),
    "HardswishBackward0": (lambda x: functional.hardswish(4 * x), (A,)),
    "HardtanhBackward0": (lambda x: functional.hardtanh(2 * x), (A,)),
    "HuberLossBackward0": (lambda x, y: functional.huber_loss(x, y, delta=0.5), (A, A)),
    "HypotBackward0": (torch.hypot, (A, B)),
    "Im2ColBackward0": (
        lambda x: functional.unfold(x, (2, 3), dilation=(2, 1), padding=1, stride=(1, 2)),
        ((2, 3, 5, 6),),
    ),
    "IndexAddBackward0": (lambda x, y: x.index_add(0, INDEX, y, alpha=2), (A, A)),
    "IndexBackward0": (lambda x: x[INDEX], (A,)),
    "IndexPutBackward0": (lambda x, y: x.index_put((INDEX[:2],), y), (A, B)),
    "IndexSelectBackward0": (lambda x: x.index_select(0, INDEX), (A,)),
    "LeakyReluBackward0": (lambda x: functional.leaky_relu(x, 0.2), (A,)),
    "LeakyReluBackwardBackward0": (lambda g, x: torch.ops.aten.leaky_relu_backward(g, x, 0.1, False), (A, A)),
    "LerpBackward0": (lambda x, y: torch.lerp(x, y, 0.3), (A, B)),
    "LinalgDetBackward0": (torch.linalg.det, ((2, 3, 3),)),
    "LinalgInvExBackward0": (torch.linalg.inv, ((2, 3, 3),)),
    "LinalgSolveExBackward0": (torch.linalg.solve, ((3, 3), (3, 2))),
    "LinalgVectorNormBackward0": (lambda x: torch.linalg.vector_norm(x, dim=1), (A,)),
    "Log10Backward0": (lambda x: x.exp().log10(), (A,)),
    "Log1PBackward0": (lambda x: x.exp().log1p(), (A,)),
    "Log2Backward0": (lambda x: x.exp().log2(), (A,)),
    "LogBackward0": (lambda x: x.exp().log(), (A,)),
    "LogSigmoidBackward0": (functional.logsigmoid, (A,)),
    "LogSoftmaxBackward0": (lambda x: x.log_softmax(1), (A,)),
    "LogSoftmaxBackwardDataBackward0": (
        lambda g, y: torch.ops.aten._log_softmax_backward_data(g, y.log_softmax(1), 1, y.dtype),
        (A, A),
    ),
    "LogaddexpBackward0": (torch.logaddexp, (A, B)),
    "LogcumsumexpBackward0": (lambda x: x.logcumsumexp(1), (A,)),
    "LogitBackward0": (lambda x: x.sigmoid().logit(), (A,)),
    "LogsumexpBackward0": (lambda x: x.logsumexp(1), (A,)),
    "MaskedFillBackward0": (lambda x: x.masked_fill(MASK, 2.0), (A,)),
    "MaskedFillBackward1": (lambda x, y: x.masked_fill(MASK, y), (A, ())),
    "MaskedSelectBackward0": (lambda x: x.masked_select(MASK), (A,)),
    "MaxBackward0": (lambda x: x.max(1).values, (A,)),
    "MaxBackward1": (lambda x: x.max(), (A,)),
    "MaxPool2DWithIndicesBackward0": (lambda x: functional.max_pool2d(x, 3, 2, 1), ((2, 3, 6, 6),)),
    "MaximumBackward0": (lambda x, y: torch.maximum(x.round(), y.round()), (A, B)),
    "MeanBackward0": (lambda x: x.mean(), (A,)),
    "MeanBackward1": (lambda x: x.mean(1), (A,)),
    "MinBackward0": (lambda x: x.min(0).values, (A,)),
    "MinBackward1": (lambda x: x.min(), (A,)),
    "MinimumBackward0": (lambda x, y: torch.minimum(x.round(), y.round()), (A, B)),
    "MishBackward0": (functional.mish, (A,)),
    "MmBackward0": (lambda x, y: x @ y, (A, (4, 5))),
    "MseLossBackward0": (functional.mse_loss, (A, A)),
    "MseLossBackwardBackward0": (lambda g, x, y: torch.ops.aten.mse_loss_backward(g, x, y, 1), ((), A, A)),
    "MulBackward0": (lambda x, y: x * y, (A, B)),
    "MulBackward1": (lambda x: torch.ops.aten.mul.Scalar(x, 2.5), (A,)),
    "MvBackward0": (lambda x, y: x.mv(y), (A, B)),
    "NativeBatchNormBackward0": (
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True),
        ((4, 3, 5), (3,), (3,)),
    ),
    "NativeDropoutBackward0": (lambda x: torch.ops.aten.native_dropout(x, 0.4, True)[0], (A,)),
    "NativeGroupNormBackward0": (lambda x, w, b: functional.group_norm(x, 2, w, b), ((2, 4, 3), (4,), (4,))),
    "NativeLayerNormBackward0": (lambda x, w, b: functional.layer_norm(x, (4,), w, b), ((2, 3, 4), B, B)),
    "NegBackward0": (lambda x: -x, (A,)),
    "NllLossBackward0": (
        lambda x: functional.nll_loss(x.log_softmax(1), INDEX, torch.tensor([1.0, 2, 3, 4]).double()),
        (A,),
    ),
    "NllLossBackwardBackward0": (
        lambda g: torch.ops.aten.nll_loss_backward(
            g, torch.zeros(3, 4).double(), INDEX, None, 1, -100, torch.tensor(3.0).double()
        ),
        ((),),
    ),
    "PermuteBackward0": (lambda x: x.permute(2, 0, 1), ((2, 3, 4),)),
    "PixelShuffleBackward0": (lambda x: functional.pixel_shuffle(x, 2), ((2, 4, 3, 3),)),
    "PowBackward0": (lambda x: x**3, (A,)),
    "PowBackward1": (lambda x, y: x.exp() ** y, (A, B)),
    "PreluKernelBackward0": (functional.prelu, (A, B)),
    "ProdBackward0": (lambda x: x.prod(), (A,)),
    "ReciprocalBackward0": (lambda x: x.exp().reciprocal(), (A,)),
    "ReflectionPad1DBackward0": (lambda x: functional.pad(x, (3, 1), mode="reflect"), ((2, 5),)),
    "ReflectionPad2DBackward0": (lambda x: functional.pad(x, (3, 1, 2, 4), mode="reflect"), ((1, 2, 5, 6),)),
    "ReluBackward0": (lambda x: x.relu(), (A,)),
    "RemainderBackward0": (lambda x: x.remainder(0.7), (A,)),
    "RepeatBackward0": (lambda x: x.repeat(2, 1, 3), (A,)),
    "ReplicationPad1DBackward0": (lambda x: functional.pad(x, (3, 1), mode="replicate"), ((2, 5),)),
    "ReplicationPad2DBackward0": (lambda x: functional.pad(x, (3, 1, 2, 4), mode="replicate"), ((1, 2, 5, 6),)),
    "ReshapeAliasBackward0": (lambda x: torch.ops.aten._reshape_alias(x, (4, 3), (3, 1)), (A,)),
    "RollBackward0": (lambda x: x.roll(2, 1), (A,)),
    "RoundBackward0": (lambda x: x.round(), (A,)),
    "RsqrtBackward0": (lambda x: x.exp().rsqrt(), (A,)),
    "RsubBackward0": (lambda x, y: torch.rsub(x, y, alpha=2), (A, B)),
    "RsubBackward1": (lambda x: 2 - x, (A,)),
    "SafeSoftmaxBackward0": (lambda x: torch.ops.aten._safe_softmax(x, 1), (A,)),
    "ScaledDotProductFlashAttentionForCpuBackward0": (
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        ((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 4)),
    ),
    "ScatterAddBackward0": (lambda x, y: x.scatter_add(1, COLUMNS, y), (A, (3, 3))),
    "ScatterBackward0": (lambda x, y: x.scatter(1, ONCE, y), (A, (3, 2))),
    "ScatterBackward1": (lambda x: x.scatter(1, ONCE, 2.0), (A,)),
    "SelectBackward0": (lambda x: x.select(1, 2), (A,)),
    "SigmoidBackward0": (lambda x: x.sigmoid(), (A,)),
    "SigmoidBackwardBackward0": (torch.ops.aten.sigmoid_backward, (A, A)),
    "SignBackward0": (lambda x: x.sign(), (A,)),
    "SiluBackward0": (functional.silu, (A,)),
    "SinBackward0": (lambda x: x.sin(), (A,)),
    "SinhBackward0": (lambda x: x.sinh(), (A,)),
    "SliceBackward0": (lambda x: x[:, 1:4:2], (A,)),
    "SmoothL1LossBackward0": (lambda x, y: functional.smooth_l1_loss(x, y, beta=0.5), (A, A)),
    "SoftmaxBackward0": (lambda x: x.softmax(1), (A,)),
    "SoftmaxBackwardDataBackward0": (lambda g, y: torch.ops.aten._softmax_backward_data(g, y, 1, y.dtype), (A, A)),
    "SoftplusBackward0": (lambda x: functional.softplus(x, 2), (A,)),
    "SortBackward0": (lambda x: x.sort(1).values, (A,)),
    "SplitBackward0": (lambda x: x.split(2, 1)[1], ((3, 5),)),
    "SplitWithSizesBackward0": (lambda x: x.split([1, 4], 1)[1], ((3, 5),)),
    "SqrtBackward0": (lambda x: x.exp().sqrt(), (A,)),
    "SqueezeBackward0": (lambda x: x.squeeze(), ((3, 1, 4),)),
    "SqueezeBackward1": (lambda x: x.squeeze(1), ((3, 1, 4),)),
    "SqueezeBackward2": (lambda x: x.squeeze((0, 2)), ((1, 3, 1, 4),)),
    "SqueezeBackward4": (lambda x: torch.matmul(x, x.t())[0] @ x, ((3, 3),)),
    "StackBackward0": (lambda x, y: torch.stack([x, y], 1), (A, A)),
    "StdBackward0": (lambda x: x.std(1), (A,)),
    "SubBackward0": (lambda x, y: torch.sub(x, y, alpha=2), (A, B)),
    "SubBackward1": (lambda x: torch.ops.aten.sub.Scalar(x, 2.0), (A,)),
    "SumBackward0": (lambda x: x.sum(), (A,)),
    "SumBackward1": (lambda x: x.sum(1), (A,)),
    "TBackward0": (lambda x: x.t(), (A,)),
    "TakeBackward0": (lambda x: x.take(COLUMNS), (A,)),
    "TanBackward0": (lambda x: x.tan(), (A,)),
    "TanhBackward0": (lambda x: x.tanh(), (A,)),
    "TanhBackwardBackward0": (torch.ops.aten.tanh_backward, (A, A)),
    "ThresholdBackward0": (lambda x: functional.threshold(x, 0.1, 5.0), (A,)),
    "ThresholdBackwardBackward0": (lambda g, x: torch.ops.aten.threshold_backward(g, x, 0), (A, A)),
    "ToCopyBackward0": (lambda x: x.to(torch.float32), (A,)),
    "TopkBackward0": (lambda x: x.topk(2, 1).values, (A,)),
    "TraceBackward0": (lambda x: x.trace(), ((3, 3),)),
    "TransposeBackward0": (lambda x: x.transpose(0, 2), ((2, 3, 4),)),
    "TransposeBackward1": (lambda x: x.clone().transpose_(0, 2), ((2, 3, 4),)),
    "TrilBackward0": (lambda x: x.tril(), (A,)),
    "TriuBackward0": (lambda x: x.triu(1), (A,)),
    "TruncBackward0": (lambda x: x.trunc(), (A,)),
    "UnbindBackward0": (lambda x: x.unbind(1)[2], (A,)),
    "UnfoldBackward0": (lambda x: x.unfold(1, 3, 2), ((2, 7, 3),)),
    "UnsafeSplitBackward0": (lambda x: torch.unsafe_split(x, 2, 1)[1], ((3, 5),)),
    "UnsafeViewBackward0": (lambda x: torch.ops.aten._unsafe_view(x, (4, 3)), (A,)),
    "UnsqueezeBackward0": (lambda x: x.unsqueeze(1), (A,)),
    "UpsampleBilinear2DBackward0": (
        lambda x: functional.interpolate(x, scale_factor=(2.5, 0.7), mode="bilinear"),
        ((2, 3, 4, 5),),
    ),
    "UpsampleNearest2DBackward0": (lambda x: functional.interpolate(x, scale_factor=(2.5, 0.7)), ((2, 3, 4, 5),)),
    "VarBackward0": (lambda x: x.var(1, unbiased=False), (A,)),
    "ViewBackward0": (lambda x: x.view(2, 6), (A,)),
    "WhereBackward0": (lambda x, y: torch.where(MASK, x, y), (A, B)),
    "XlogyBackward0": (lambda x, y: torch.xlogy(x, y.exp()), (A, B)),
}


def called(name: str, seed: int = 0) -> tuple[Tensor, list[Tensor]]:
    """The result of the call of a case, and its inputs."""
    function, shapes = CASES[name]
    draw = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes]
    return function(*inputs), inputs


def graph_of(
    outputs: Sequence[torch.Tensor], recording: Recording | None = None, frame: FrameType | None = None
) -> EagerGraph:
    """The graph behind these tensors, its leaves named as the frame's variables and recorded modules name them.

    Raises NoGraphError where none of them needs a gradient.
    """
    return eager_graph(outputs, recording=recording, names=names_of_tensors(frame, recording))
