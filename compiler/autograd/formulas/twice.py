"""Rules for double backward: derivatives of backward formulas that were recorded with `create_graph=True`.

`grad_output` is the incoming gradient of the first backward pass, `grad` that of the second.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import nll_loss

from compiler.autograd.formulas.rule import Local, Rule, Slot, each, rule, table

_REDUCTIONS = ("none", "mean", "sum")


def _square(s: Local, grad: Tensor) -> Tensor:
    return 2 * grad / (s.self.numel() if s.reduction == 1 else 1)


def _softmax(s: Local, grad: Tensor) -> Tensor:
    return s.output * (grad - (grad * s.output).sum(s.dim, keepdim=True))


def _softmax_output(s: Local, grad: Tensor) -> Tensor:
    along = (s.grad_output * s.output).sum(s.dim, keepdim=True)
    return grad * (s.grad_output - along) - s.grad_output * (grad * s.output).sum(s.dim, keepdim=True)


def _log_softmax(s: Local, grad: Tensor) -> Tensor:
    return grad - (grad * s.output.exp()).sum(s.dim, keepdim=True)


def _log_softmax_output(s: Local, grad: Tensor) -> Tensor:
    return -grad * s.output.exp() * s.grad_output.sum(s.dim, keepdim=True)


def _nll_of_grad(s: Local, grad: Tensor) -> Tensor:
    return nll_loss(grad, s.target, s.weight, ignore_index=s.ignore_index, reduction=_REDUCTIONS[s.reduction])


RULES: dict[str, Rule] = table(
    rule("TanhBackwardBackward0", "the tangent's derivative, differentiated", "grad_output · (1 - output²)",
         each("grad_output", "(1 - output²)", lambda s: 1 - s.output**2),
         each("output", "(-2 · grad_output · output)", lambda s: -2 * s.grad_output * s.output)),
    rule("SigmoidBackwardBackward0", "the sigmoid's derivative, differentiated", "grad_output · output · (1 - output)",
         each("grad_output", "output · (1 - output)", lambda s: s.output * (1 - s.output)),
         each("output", "grad_output · (1 - 2 · output)", lambda s: s.grad_output * (1 - 2 * s.output))),
    rule("ThresholdBackwardBackward0", "the derivative is a constant but at the kink",
         "grad_output where self > threshold, else 0",
         each("grad_output", "[self > threshold]", lambda s: (s.self > s.threshold).to(s.self.dtype)),
         each("self", "0", lambda s: 0)),
    rule("LeakyReluBackwardBackward0", "the derivative is a constant but at the kink",
         "grad_output where self > 0, else slope · grad_output",
         each("grad_output", "(1 where self > 0, else slope)",
              lambda s: (s.self > 0).to(s.self.dtype) + s.negative_slope * (s.self <= 0).to(s.self.dtype)),
         each("self", "0", lambda s: 0)),
    rule("MseLossBackwardBackward0", "the derivative of a square, differentiated",
         "grad_output · 2 · (self - target) / n",
         Slot("grad_output", "Σ grad · 2 · (self - target) / n",
              lambda s, grad: _square(s, grad) * (s.self - s.target)),
         Slot("self", "grad · 2 · grad_output / n", lambda s, grad: _square(s, grad) * s.grad_output),
         Slot("target", "-grad · 2 · grad_output / n", lambda s, grad: -_square(s, grad) * s.grad_output)),
    rule("SoftmaxBackwardDataBackward0", "softmax's derivative, differentiated",
         "output · (grad_output - Σ grad_output · output)",
         Slot("grad_output", "output · (grad - Σ grad · output)", _softmax),
         Slot("output", "grad · (grad_output - Σ grad_output · output) - grad_output · Σ grad · output",
              _softmax_output)),
    rule("LogSoftmaxBackwardDataBackward0", "log-softmax's derivative, differentiated",
         "grad_output - exp(output) · Σ grad_output",
         Slot("grad_output", "grad - Σ grad · exp(output)", _log_softmax),
         Slot("output", "-grad · exp(output) · Σ grad_output", _log_softmax_output)),
    rule("NllLossBackwardBackward0", "linear in grad_output", "-grad_output · weight / Σ weight at the target",
         Slot("grad_output", "-Σ weight · grad[target] / Σ weight", _nll_of_grad)),
)  # fmt: skip
