"""Rules for elementwise operations: each element of the result depends on one element of each input."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from compiler.autograd.formulas.rule import Local, Rule, each, rule, table, unary

_TWO_OVER_SQRT_PI = 2 / math.sqrt(math.pi)


def _power_of_number(s: Local) -> Tensor:
    """Derivative of xⁿ; 0 for n = 0, where xⁿ⁻¹ may be infinite."""
    exponent = s.exponent
    return torch.zeros_like(s.self) if exponent == 0 else exponent * s.self ** (exponent - 1)


def _power_base(s: Local) -> Tensor:
    return torch.where(s.exponent == 0, 0.0, s.exponent * s.self ** (s.exponent - 1))


def _power_exponent(s: Local) -> Tensor:
    return torch.where((s.self == 0) & (s.exponent >= 0), 0.0, s.result * s.self.log())


def _gelu(s: Local) -> Tensor:
    x = s.self
    if s.approximate == "none":
        density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        return (1 + torch.erf(x / math.sqrt(2))) / 2 + x * density
    k, cube = math.sqrt(2 / math.pi), 0.044715
    t = torch.tanh(k * (x + cube * x**3))
    return (1 + t) / 2 + x / 2 * (1 - t * t) * k * (1 + 3 * cube * x * x)


def _silu(s: Local) -> Tensor:
    sigmoid = torch.sigmoid(s.self)
    return sigmoid * (1 + s.self * (1 - sigmoid))


def _mish(s: Local) -> Tensor:
    t = torch.tanh(torch.log1p(torch.exp(s.self)))
    return t + s.self * (1 - t * t) * torch.sigmoid(s.self)


def _elu(s: Local) -> Tensor:
    x = s.self
    below = s.alpha * s.scale * s.input_scale * torch.exp(x * s.input_scale)
    return torch.where(x > 0, torch.full_like(x, s.scale), below)


def _softplus(s: Local) -> Tensor:
    return torch.where(s.self * s.beta > s.threshold, 1.0, torch.sigmoid(s.self * s.beta))


def _hardswish(s: Local) -> Tensor:
    x = s.self
    return torch.where(x <= -3, 0.0, torch.where(x < 3, (2 * x + 3) / 6, 1.0))


def _in_bounds(s: Local, low: float | None, high: float | None) -> Tensor:
    """1 where self is within the bounds (inclusive), else 0."""
    inside = torch.ones_like(s.self, dtype=torch.bool)
    inside = inside if low is None else inside & (s.self >= low)
    return (inside if high is None else inside & (s.self <= high)).to(s.self.dtype)


def _wins(mine: Tensor, other: Tensor) -> Tensor:
    """1 where `mine` is greater than `other`, ½ where they are equal, else 0."""
    return (mine > other).to(mine.dtype) + (mine == other) / 2


_EXPONENTIALS = (
    unary("ExpBackward0", "the exponential is its own derivative", "exp(self)", "out", lambda s: s.result),
    unary("Exp2Backward0", "derivative of 2ˣ", "2^self", "out · ln 2", lambda s: s.result * math.log(2)),
    unary("Expm1Backward0", "derivative of exp(x) - 1", "exp(self) - 1", "(out + 1)", lambda s: s.result + 1),
    unary("LogBackward0", "derivative of the logarithm", "ln(self)", "1 / self", lambda s: 1 / s.self),
    unary("Log2Backward0", "derivative of the logarithm to base 2", "log₂(self)", "1 / (self · ln 2)",
          lambda s: 1 / (s.self * math.log(2))),
    unary("Log10Backward0", "derivative of the logarithm to base 10", "log₁₀(self)", "1 / (self · ln 10)",
          lambda s: 1 / (s.self * math.log(10))),
    rule("XlogyBackward0", "product rule", "self · ln(other)",
         each("self", "ln(other), 0 where both are 0",
              lambda s: s.other.log().masked_fill((s.self == 0) & (s.other <= 0), 0)),
         each("other", "self / other", lambda s: s.self / s.other)),
    rule("LogaddexpBackward0", "softmax of two", "ln(exp(self) + exp(other))",
         each("self", "σ(self - other)", lambda s: torch.sigmoid(s.self - s.other)),
         each("other", "σ(other - self)", lambda s: torch.sigmoid(s.other - s.self))),
    unary("LogitBackward0", "derivative of ln(p / (1 - p))", "ln(self / (1 - self))", "1 / (self · (1 - self))",
          lambda s: 1 / (s.self * (1 - s.self))),
    unary("Log1PBackward0", "derivative of ln(1 + x)", "ln(1 + self)", "1 / (1 + self)", lambda s: 1 / (1 + s.self)),
    unary("SqrtBackward0", "power rule with ½", "√self", "1 / (2 · out)", lambda s: 1 / (2 * s.result)),
    unary("RsqrtBackward0", "power rule with -½", "1 / √self", "(-½ · out³)", lambda s: -(s.result**3) / 2),
    unary("ReciprocalBackward0", "power rule with -1", "1 / self", "(-out²)", lambda s: -(s.result**2)),
    unary("PowBackward0", "power rule", "self^n", "n · self^(n-1)", _power_of_number),
    rule("PowBackward1", "power rule, and derivative of aˣ", "self^exponent",
         each("self", "exponent · self^(exponent-1)", _power_base),
         each("exponent", "out · ln(self)", _power_exponent)),
)  # fmt: skip

_TRIGONOMETRIC = (
    unary("SinBackward0", "derivative of the sine", "sin(self)", "cos(self)", lambda s: s.self.cos()),
    unary("CosBackward0", "derivative of the cosine", "cos(self)", "(-sin(self))", lambda s: -s.self.sin()),
    unary("TanBackward0", "derivative of the tangent", "tan(self)", "(1 + out²)", lambda s: 1 + s.result**2),
    unary("AsinBackward0", "derivative of the arcsine", "arcsin(self)", "1 / √(1 - self²)",
          lambda s: 1 / (1 - s.self**2).sqrt()),
    unary("AcosBackward0", "derivative of the arccosine", "arccos(self)", "(-1 / √(1 - self²))",
          lambda s: -1 / (1 - s.self**2).sqrt()),
    unary("AtanBackward0", "derivative of the arctangent", "arctan(self)", "1 / (1 + self²)",
          lambda s: 1 / (1 + s.self**2)),
    unary("SinhBackward0", "derivative of the hyperbolic sine", "sinh(self)", "cosh(self)", lambda s: s.self.cosh()),
    unary("CoshBackward0", "derivative of the hyperbolic cosine", "cosh(self)", "sinh(self)", lambda s: s.self.sinh()),
    unary("TanhBackward0", "derivative of the hyperbolic tangent", "tanh(self)", "(1 - out²)",
          lambda s: 1 - s.result**2),
    rule("Atan2Backward0", "derivative of the angle of a point", "atan2(self, other)",
         each("self", "other / (self² + other²)", lambda s: s.other / (s.self**2 + s.other**2)),
         each("other", "(-self / (self² + other²))", lambda s: -s.self / (s.self**2 + s.other**2))),
    unary("ErfBackward0", "derivative of the error function", "erf(self)", "2/√π · exp(-self²)",
          lambda s: _TWO_OVER_SQRT_PI * torch.exp(-(s.self**2))),
)  # fmt: skip

_ARITHMETIC = (
    rule("AddBackward0", "sum rule", "self + α · other", each("self", "1", lambda s: 1),
         each("other", "α", lambda s: s.alpha)),
    rule("SubBackward0", "sum rule", "self - α · other", each("self", "1", lambda s: 1),
         each("other", "(-α)", lambda s: -s.alpha)),
    unary("RsubBackward1", "sum rule", "number - α · self", "(-α)", lambda s: -s.alpha),
    rule("MulBackward0", "product rule", "self · other", each("self", "other", lambda s: s.other),
         each("other", "self", lambda s: s.self)),
    rule("DivBackward0", "quotient rule", "self / other", each("self", "1 / other", lambda s: 1 / s.other),
         each("other", "(-self / other²)", lambda s: -s.self / s.other**2)),
    rule("RsubBackward0", "sum rule", "other - α · self", each("self", "(-α)", lambda s: -s.alpha),
         each("other", "1", lambda s: 1)),
    unary("AddBackward1", "sum rule", "self + number", "1", lambda s: 1),
    unary("SubBackward1", "sum rule", "self - number", "1", lambda s: 1),
    unary("MulBackward1", "constant factor", "self · number", "number", lambda s: s.other),
    unary("DivBackward1", "constant factor", "self / number", "1 / number", lambda s: 1 / s.other),
    unary("FmodBackward0", "slope 1 between the jumps", "self - number · trunc(self / number)", "1", lambda s: 1),
    unary("RemainderBackward0", "slope 1 between the jumps", "self - number · floor(self / number)", "1",
          lambda s: 1),
    unary("FracBackward0", "slope 1 between the jumps", "self - trunc(self)", "1", lambda s: 1),
    rule("HypotBackward0", "the gradient of a length is a direction", "√(self² + other²)",
         each("self", "self / out", lambda s: s.self / s.result),
         each("other", "other / out", lambda s: s.other / s.result)),
    unary("NegBackward0", "constant factor -1", "-self", "-1", lambda s: -1),
    rule("AddcmulBackward0", "sum and product rule", "self + value · tensor1 · tensor2",
         each("self", "1", lambda s: 1),
         each("tensor1", "value · tensor2", lambda s: s.value * s.tensor2),
         each("tensor2", "value · tensor1", lambda s: s.value * s.tensor1)),
    rule("AddcdivBackward0", "sum and quotient rule", "self + value · tensor1 / tensor2",
         each("self", "1", lambda s: 1),
         each("tensor1", "value / tensor2", lambda s: s.value / s.tensor2),
         each("tensor2", "(-value · tensor1 / tensor2²)", lambda s: -s.value * s.tensor1 / s.tensor2**2)),
    rule("LerpBackward0", "linear interpolation", "self + weight · (end - self)",
         each("self", "(1 - weight)", lambda s: 1 - s.weight), each("end", "weight", lambda s: s.weight)),
)  # fmt: skip

_PIECEWISE = (
    unary("AbsBackward0", "derivative of the absolute value", "|self|", "sign(self)", lambda s: s.self.sign()),
    *(unary(f"{op}Backward0", "a step function is flat", f"{op.lower()}(self)", "0", lambda s: 0)
      for op in ("Floor", "Ceil", "Round", "Trunc", "Sign")),
    unary("ClampBackward1", "passes between the bounds", "min(max(self, low), high)", "[low ≤ self ≤ high]",
          lambda s: _in_bounds(s, s.min, s.max)),
    unary("ClampMinBackward0", "passes above the bound", "max(self, low)", "[self ≥ low]",
          lambda s: _in_bounds(s, s.min, None)),
    unary("ClampMaxBackward0", "passes below the bound", "min(self, high)", "[self ≤ high]",
          lambda s: _in_bounds(s, None, s.max)),
    rule("MaximumBackward0", "passes to the greater one", "max(self, other)",
         each("self", "[self > other], ½ where equal", lambda s: _wins(s.self, s.other)),
         each("other", "[other > self], ½ where equal", lambda s: _wins(s.other, s.self))),
    rule("MinimumBackward0", "passes to the smaller one", "min(self, other)",
         each("self", "[self < other], ½ where equal", lambda s: _wins(s.other, s.self)),
         each("other", "[other < self], ½ where equal", lambda s: _wins(s.self, s.other))),
    rule("WhereBackward0", "passes to the chosen one", "self where condition, else other",
         each("self", "[condition]", lambda s: s.condition), each("other", "[not condition]", lambda s: ~s.condition)),
    unary("MaskedFillBackward0", "passes where nothing was filled in", "value where mask, else self", "[not mask]",
          lambda s: ~s.mask),
    rule("MaskedFillBackward1", "passes to the chosen one", "value where mask, else self",
         each("self", "[not mask]", lambda s: ~s.mask), each("value", "[mask]", lambda s: s.mask)),
    unary("NativeDropoutBackward0", "a random mask, scaled", "self · mask / (1 - p)", "mask / (1 - p)",
          lambda s: s.result1.double() / (1 - s.p)),
)  # fmt: skip

_ACTIVATIONS = (
    unary("ReluBackward0", "passes where the input is positive", "max(self, 0)", "[out > 0]",
          lambda s: (s.result > 0).to(s.result.dtype)),
    unary("ThresholdBackward0", "passes above the threshold", "self where self > threshold, else value",
          "[self > threshold]", lambda s: (s.self > s.threshold).to(s.self.dtype)),
    unary("LeakyReluBackward0", "a small slope below zero", "self where self > 0, else slope · self",
          "(1 where self > 0, else slope)",
          lambda s: torch.where(s.self > 0, torch.ones_like(s.self), s.negative_slope)),
    rule("PreluKernelBackward0", "a slope that is learned below zero", "self where self > 0, else weight · self",
         each("self", "(1 where self > 0, else weight)",
              lambda s: torch.where(s.self > 0, torch.ones_like(s.self), s.weight)),
         each("weight", "(0 where self > 0, else self)", lambda s: s.self.clamp(max=0))),
    unary("SigmoidBackward0", "derivative of the logistic function", "1 / (1 + exp(-self))", "out · (1 - out)",
          lambda s: s.result * (1 - s.result)),
    unary("LogSigmoidBackward0", "derivative of ln σ(x)", "ln σ(self)", "(1 - σ(self))",
          lambda s: 1 - torch.sigmoid(s.self)),
    unary("GeluBackward0", "product rule on x · Φ(x)", "self · Φ(self), Φ the normal distribution",
          "(Φ(self) + self · φ(self))", _gelu),
    unary("SiluBackward0", "product rule on x · σ(x)", "self · σ(self)", "σ(self) · (1 + self · (1 - σ(self)))", _silu),
    unary("MishBackward0", "product rule on x · tanh(ln(1 + eˣ))", "self · tanh(softplus(self))",
          "(t + self · (1 - t²) · σ(self)), t = tanh(softplus(self))", _mish),
    unary("EluBackward0", "exponential below zero", "self where self > 0, else α · (exp(self) - 1)",
          "(1 where self > 0, else α · exp(self))", _elu),
    unary("SoftplusBackward0", "derivative of a smooth ramp", "ln(1 + exp(β · self)) / β", "σ(β · self)", _softplus),
    unary("HardtanhBackward0", "passes between the bounds", "min(max(self, low), high)", "[low < self < high]",
          lambda s: ((s.self > s.min_val) & (s.self < s.max_val)).to(s.self.dtype)),
    unary("HardsigmoidBackward0", "a ramp between -3 and 3", "min(max(self / 6 + ½, 0), 1)", "1/6 · [-3 < self < 3]",
          lambda s: ((s.self > -3) & (s.self < 3)).to(s.self.dtype) / 6),
    unary("HardswishBackward0", "product rule on x · ramp(x)", "self · min(max(self / 6 + ½, 0), 1)",
          "(0 below -3, (2 · self + 3) / 6, 1 above 3)", _hardswish),
)  # fmt: skip

RULES: dict[str, Rule] = table(*_EXPONENTIALS, *_TRIGONOMETRIC, *_ARITHMETIC, *_PIECEWISE, *_ACTIVATIONS)
