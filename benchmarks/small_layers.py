"""Activations, norms, convolutions, attention and recurrent cells, each with the shapes of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


def rms(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def rotary(x: Tensor, base: float = 10000.0) -> Tensor:
    length, size = x.shape[-2:]
    rates = base ** (-torch.arange(0, size, 2, dtype=x.dtype) / size)
    angles = torch.arange(length, dtype=x.dtype)[:, None] * rates
    even, odd = x[..., ::2], x[..., 1::2]
    turned = even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()
    return torch.stack(turned, -1).flatten(-2)


def rotate_half(x: Tensor) -> Tensor:
    length, size = x.shape[-2:]
    rates = 10000.0 ** (-torch.arange(0, size, 2, dtype=x.dtype) / size)
    angles = (torch.arange(length, dtype=x.dtype)[:, None] * rates).repeat(1, 2)
    left, right = x.chunk(2, -1)
    return x * angles.cos() + torch.cat((-right, left), -1) * angles.sin()


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1) @ v


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril())


def alibi(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    places = torch.arange(q.shape[-2])
    slopes = 2.0 ** -torch.arange(1, q.shape[1] + 1, dtype=q.dtype)
    bias = (places[None, :] - places[:, None]) * slopes[:, None, None]
    return (q @ k.mT / q.shape[-1] ** 0.5 + bias).softmax(-1) @ v


def talking_heads(q: Tensor, k: Tensor, v: Tensor, before: Tensor, after: Tensor) -> Tensor:
    scores = torch.einsum("bhqk,hg->bgqk", q @ k.mT, before).softmax(-1)
    return torch.einsum("bhqk,hg->bgqk", scores, after) @ v


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return torch.einsum("bhqd,bhde->bhqe", q, k.mT @ v) / torch.einsum("bhqd,bhd->bhq", q, k.sum(2))[..., None]


def retention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n = q.shape[-2]
    apart = torch.arange(n)[:, None] - torch.arange(n)
    decay = torch.where(apart >= 0, 0.9 ** apart.clamp(min=0).to(q.dtype), 0.0)
    return ((q @ k.mT) * decay) @ v


def sum_with_decay(x: Tensor, decay: Tensor) -> Tensor:
    state, out = torch.zeros_like(x[:, 0]), []
    for step in x.unbind(1):
        state = decay.sigmoid() * state + step
        out.append(state)
    return torch.stack(out, 1)


def selective_scan(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    state, out = x.new_zeros(x.shape[0], x.shape[2], a.shape[1]), []
    for t in range(x.shape[1]):
        step = F.softplus(delta[:, t])[..., None]
        state = torch.exp(-step * a.exp()) * state + step * b[:, t, None] * x[:, t, :, None]
        out.append((state * c[:, t, None]).sum(-1))
    return torch.stack(out, 1)


def lstm_cell(x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = (x @ w + h @ u).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_cell(x: Tensor, h: Tensor, w: Tensor, u: Tensor) -> Tensor:
    r, z, n = (x @ w).chunk(3, -1)
    hr, hz, hn = (h @ u).chunk(3, -1)
    z = (z + hz).sigmoid()
    return (1 - z) * (n + (r + hr).sigmoid() * hn).tanh() + z * h


def over_time(cell: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(x: Tensor, h: Tensor, *weights: Tensor) -> Tensor:
        for step in x.unbind(1):
            h = cell(step, h, *weights)
        return h

    return run


def nms_free(x: Tensor) -> Tensor:
    return x * (x == F.max_pool2d(x, 3, 1, 1))


def group_norm_silu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 4, w, b))


def squeeze_excite(x: Tensor, down: Tensor, up: Tensor) -> Tensor:
    return x * torch.sigmoid(F.relu(x.mean((2, 3)) @ down) @ up)[..., None, None]


def cbam(x: Tensor, w: Tensor) -> Tensor:
    both = torch.stack((x.mean(1), x.amax(1)), 1)
    return x * F.conv2d(both, w, padding=3).sigmoid()


def pixel_norm(x: Tensor) -> Tensor:
    return x / (x.square().mean(1, keepdim=True) + 1e-8).sqrt()


def modulated_conv(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    scaled = w[None] * s[:, None, :, None, None]
    scaled = scaled * (scaled.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
    n, c, height, width = x.shape
    return F.conv2d(x.reshape(1, n * c, height, width), scaled.flatten(0, 1), padding=1, groups=n).view(
        n, -1, height, width
    )


def weight_norm(x: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return F.linear(x, v * (g / v.norm(dim=1, keepdim=True)))


def conv_of_standardized(x: Tensor, w: Tensor) -> Tensor:
    mean, var = w.mean((1, 2, 3), keepdim=True), w.var((1, 2, 3), keepdim=True, unbiased=False)
    return F.conv2d(x, (w - mean) / (var + 1e-5).sqrt(), padding=1)


def spectral_norm(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    v = F.normalize(w.T @ u, dim=0)
    u = F.normalize(w @ v, dim=0)
    return F.linear(x, w / (u @ (w @ v)))


def window_partition(x: Tensor) -> Tensor:
    b, h, w, c = x.shape
    x = torch.roll(x, (-2, -2), (1, 2)).view(b, h // 4, 4, w // 4, 4, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c).softmax(1)


def relative_bias(q: Tensor, k: Tensor, table: Tensor) -> Tensor:
    n = q.shape[-2]
    apart = torch.arange(n)[:, None] - torch.arange(n) + n - 1
    return (q @ k.mT + table[:, apart]).softmax(-1)


def adain(x: Tensor, y: Tensor) -> Tensor:
    std, mean = torch.std_mean(x, (2, 3), keepdim=True)
    new, shift = torch.std_mean(y, (2, 3), keepdim=True)
    return (x - mean) / (std + 1e-5) * new + shift


def gram(x: Tensor) -> Tensor:
    flat = x.flatten(2)
    return flat @ flat.mT / flat.shape[-1]


def fourier_features(x: Tensor, b: Tensor) -> Tensor:
    turned = 2 * torch.pi * x @ b
    return torch.cat((turned.sin(), turned.cos()), -1)


def timestep_embedding(t: Tensor) -> Tensor:
    rates = torch.exp(-9.21 * torch.arange(16, dtype=t.dtype) / 16)
    return torch.cat(((t[:, None] * rates).cos(), (t[:, None] * rates).sin()), -1)


def sample_at(x: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(x, grid.tanh(), align_corners=False)


def affine(x: Tensor, theta: Tensor) -> Tensor:
    return F.grid_sample(x, F.affine_grid(theta, [x.shape[0], 1, 7, 9], align_corners=True), align_corners=True)


def patches(x: Tensor, w: Tensor) -> Tensor:
    return F.unfold(x, 4, stride=4).mT @ w


def fold_back(x: Tensor) -> Tensor:
    return F.fold(F.unfold(x, 3, padding=1), x.shape[2:], 3, padding=1)


def haar(x: Tensor) -> Tensor:
    a, b, c, d = x[..., ::2, ::2], x[..., ::2, 1::2], x[..., 1::2, ::2], x[..., 1::2, 1::2]
    return torch.cat((a + b + c + d, a + b - c - d, a - b + c - d, a - b - c + d), 1) / 2


def ssim(x: Tensor, y: Tensor) -> Tensor:
    mx, my = F.avg_pool2d(x, 3, 1), F.avg_pool2d(y, 3, 1)
    vx, vy = F.avg_pool2d(x * x, 3, 1) - mx**2, F.avg_pool2d(y * y, 3, 1) - my**2
    vxy = F.avg_pool2d(x * y, 3, 1) - mx * my
    return ((2 * mx * my + 0.01) * (2 * vxy + 0.03) / ((mx**2 + my**2 + 0.01) * (vx + vy + 0.03))).mean()


def total_variation(x: Tensor) -> Tensor:
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()


def mla(x: Tensor, down: Tensor, up_k: Tensor, up_v: Tensor, wq: Tensor) -> Tensor:
    small = rms(x @ down, torch.ones(down.shape[1], dtype=x.dtype))
    split = lambda y: y.unflatten(-1, (2, -1)).transpose(1, 2)  # noqa: E731
    return causal_attention(split(x @ wq), split(small @ up_k), split(small @ up_v)).transpose(1, 2).flatten(2)


def gated_delta(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    state, out = q.new_zeros(q.shape[0], q.shape[2], v.shape[2]), []
    k = F.normalize(k, dim=-1)
    for t in range(q.shape[1]):
        old = torch.einsum("bd,bde->be", k[:, t], state)
        state = state + torch.einsum("bd,be->bde", k[:, t], (v[:, t] - old) * beta[:, t, None].sigmoid())
        out.append(torch.einsum("bd,bde->be", q[:, t], state))
    return torch.stack(out, 1)


def ngpt(x: Tensor, y: Tensor, a: Tensor) -> Tensor:
    return F.normalize(x + a.abs() * (F.normalize(y, dim=-1) - x), dim=-1)


def geglu(x: Tensor, w: Tensor) -> Tensor:
    left, right = (x @ w).chunk(2, -1)
    return left * F.gelu(right)


def minimal_cell(x: Tensor, h: Tensor, w: Tensor, u: Tensor) -> Tensor:
    forget = (h @ u).sigmoid()
    return (1 - forget) * h + forget * (x @ w).tanh()


def highway(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    carried = (x @ u).sigmoid()
    return carried * F.relu(x @ w) + (1 - carried) * x


QKV = "2,2,7,8 2,2,7,8 2,2,7,8"
PROGRAMS: dict[str, tuple[str, Callable[..., Any]]] = {
    "gelu": ("3,17", F.gelu),
    "gelu_tanh": ("3,17", lambda x: F.gelu(x, approximate="tanh")),
    "quick_gelu": ("3,17", lambda x: x * (1.702 * x).sigmoid()),
    "mish": ("3,17", F.mish),
    "selu": ("3,17", F.selu),
    "celu": ("3,17", lambda x: F.celu(x, 0.7)),
    "hardswish": ("3,17", F.hardswish),
    "hardsigmoid": ("3,17", F.hardsigmoid),
    "softplus": ("3,17", lambda x: F.softplus(x, beta=2, threshold=1)),
    "softshrink": ("3,17", F.softshrink),
    "tanhshrink": ("3,17", F.tanhshrink),
    "prelu": ("2,5,4 5", F.prelu),
    "rrelu": ("3,17", lambda x: F.rrelu(x, 0.1, 0.3, training=False)),
    "threshold": ("3,17", lambda x: F.threshold(x, 0.1, -2.0)),
    "glu": ("3,16", F.glu),
    "swiglu": ("5,12 12,16 12,16", lambda x, w, v: F.silu(x @ w) * (x @ v)),
    "geglu": ("5,12 12,32", geglu),
    "squared_relu": ("5,12", lambda x: F.relu(x).square()),
    "snake": ("5,12 12", lambda x, a: x + (a * x).sin().square() / (a.abs() + 0.1)),
    "maxout": ("5,12", lambda x: x.view(5, 4, 3).amax(-1)),
    "softmax_temperature": ("5,12", lambda x: (x / 0.3).softmax(0)),
    "log_softmax": ("5,12", lambda x: F.log_softmax(x, 0)),
    "softmin": ("5,12", lambda x: F.softmin(x, -1)),
    "sparsemax_like": ("5,12", lambda x: F.relu(x - (x.sort(-1, descending=True)[0].cumsum(-1)[..., 3:4] - 1) / 4)),
    "logsumexp": ("3,5,7", lambda x: x.logsumexp((0, 2))),
    "logcumsumexp": ("3,9", lambda x: x.logcumsumexp(1)),
    "layer_norm": ("3,7,16 16 16", lambda x, w, b: F.layer_norm(x, (16,), w, b)),
    "layer_norm_2d": ("3,7,16", lambda x: F.layer_norm(x, (7, 16))),
    "rms_norm": ("3,16 16", rms),
    "rms_norm_torch": ("3,16 16", lambda x, w: F.rms_norm(x, (16,), w)),
    "group_norm": ("2,8,5,5 8 8", group_norm_silu),
    "instance_norm": ("2,3,6,6", F.instance_norm),
    "batch_norm": ("6,4,5 4 4", lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True)),
    "local_response_norm": ("2,6,5,5", lambda x: F.local_response_norm(x, 3)),
    "pixel_norm": ("2,6,5,5", pixel_norm),
    "scale_norm": ("3,16 1", lambda x, g: g * x / x.norm(dim=-1, keepdim=True).clamp(min=1e-5)),
    "dynamic_tanh": ("3,16 1 16 16", lambda x, a, w, b: (a * x).tanh() * w + b),
    "ngpt": ("3,16 3,16 16", ngpt),
    "weight_norm": ("3,8 5,8 5,1", weight_norm),
    "weight_standardization": ("2,3,6,6 4,3,3,3", conv_of_standardized),
    "spectral_norm": ("3,8 5,8 5", spectral_norm),
    "adain": ("2,3,5,5 2,3,4,4", adain),
    "film": ("2,3,5,5 2,3 2,3", lambda x, g, b: x * (1 + g[..., None, None]) + b[..., None, None]),
    "ada_layer_norm": ("2,5,8 2,16", lambda x, m: F.layer_norm(x, (8,)) * (1 + m[:, None, :8]) + m[:, None, 8:]),
    "conv1d_causal": ("2,3,9 4,3,3", lambda x, w: F.conv1d(F.pad(x, (2, 0)), w)),
    "conv1d_dilated": ("2,3,17 4,3,3", lambda x, w: F.conv1d(x, w, dilation=3)),
    "conv2d_strided": ("2,3,9,9 5,3,3,3 5", lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1)),
    "conv2d_grouped": ("2,6,7,7 8,3,3,3", lambda x, w: F.conv2d(x, w, groups=2)),
    "conv2d_depthwise": ("2,6,7,7 6,1,3,3", lambda x, w: F.conv2d(x, w, groups=6, padding="same")),
    "conv2d_pointwise": ("2,6,7,7 4,6,1,1", F.conv2d),
    "conv2d_reflect": ("2,3,7,7 4,3,3,3", lambda x, w: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), w)),
    "conv2d_circular": ("2,3,7,7 4,3,3,3", lambda x, w: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), w)),
    "conv3d": ("1,2,5,6,7 3,2,2,3,3", F.conv3d),
    "conv_transpose1d": ("2,3,7 3,4,3", lambda x, w: F.conv_transpose1d(x, w, stride=2)),
    "conv_transpose2d": ("2,3,5,5 3,4,4,4", lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1)),
    "separable_conv": ("2,4,7,7 4,1,3,3 6,4,1,1", lambda x, d, p: F.conv2d(F.conv2d(x, d, padding=1, groups=4), p)),
    "demodulated_conv": ("2,3,6,6 4,3,3,3 2,3", modulated_conv),
    "pixel_shuffle": ("2,8,3,3", lambda x: F.pixel_shuffle(x, 2)),
    "pixel_unshuffle": ("2,2,6,6", lambda x: F.pixel_unshuffle(x, 3)),
    "channel_shuffle": ("2,6,3,3", lambda x: x.unflatten(1, (2, 3)).transpose(1, 2).flatten(1, 2)),
    "upsample_nearest": ("2,3,4,5", lambda x: F.interpolate(x, scale_factor=2)),
    "upsample_bilinear": ("2,3,4,5", lambda x: F.interpolate(x, (7, 9), mode="bilinear")),
    "upsample_bicubic": ("1,2,5,5", lambda x: F.interpolate(x, (8, 8), mode="bicubic", align_corners=True)),
    "max_pool": ("2,3,9,9", lambda x: F.max_pool2d(x, 3, 2, 1)),
    "max_pool_indices": ("2,3,8,8", lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)),
    "avg_pool": ("2,3,9,9", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
    "adaptive_avg_pool": ("2,3,7,9", lambda x: F.adaptive_avg_pool2d(x, (3, 2))),
    "adaptive_max_pool": ("2,3,8,8", lambda x: F.adaptive_max_pool2d(x, 2)),
    "lp_pool": ("2,3,8,8", lambda x: F.lp_pool2d(x.abs() + 0.1, 2, 2)),
    "gem_pool": ("p:2,3,6,6 p:1", lambda x, p: x.pow(p + 1).mean((2, 3)).pow(1 / (p + 1))),
    "squeeze_excite": ("2,8,5,5 8,2 2,8", squeeze_excite),
    "cbam": ("2,4,9,9 1,2,7,7", cbam),
    "local_maxima": ("2,3,8,8", nms_free),
    "patch_embedding": ("2,3,8,8 48,10", patches),
    "fold_unfold": ("2,2,6,6", fold_back),
    "haar": ("2,3,8,8", haar),
    "grid_sample": ("1,2,6,6 1,4,5,2", sample_at),
    "affine_grid": ("2,1,6,6 2,2,3", affine),
    "window_partition": ("1,8,8,3", window_partition),
    "gram_matrix": ("2,3,5,5", gram),
    "ssim": ("1,2,8,8 1,2,8,8", ssim),
    "total_variation": ("1,2,8,8", total_variation),
    "attention": (QKV, attention),
    "causal_attention": (QKV, causal_attention),
    "sdpa": (QKV, F.scaled_dot_product_attention),
    "sdpa_causal": (QKV, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
    "grouped_query": (
        "2,4,7,8 2,2,7,8 2,2,7,8",
        lambda q, k, v: causal_attention(*(q, *(z.repeat_interleave(2, 1) for z in (k, v)))),
    ),
    "alibi": (QKV, alibi),
    "talking_heads": (QKV + " 2,2 2,2", talking_heads),
    "linear_attention": (QKV, linear_attention),
    "retention": (QKV, retention),
    "latent_attention": ("2,7,12 12,6 6,16 6,16 12,16", mla),
    "relative_bias": ("2,2,7,8 2,2,7,8 2,13", relative_bias),
    "qk_norm": (QKV + " 8", lambda q, k, v, w: attention(rms(q, w), rms(k, w), v)),
    "soft_capping": ("2,2,7,8 2,2,7,8", lambda q, k: (5 * ((q @ k.mT) / 5).tanh()).softmax(-1)),
    "attention_sinks": (
        QKV + " 2",
        lambda q, k, v, s: torch.cat((q @ k.mT, s[:, None, None].expand(2, 2, 7, 1)), -1).softmax(-1)[..., :-1] @ v,
    ),
    "rotary": ("2,2,7,8", rotary),
    "rotate_half": ("2,2,7,8", rotate_half),
    "timestep_embedding": ("p:5", timestep_embedding),
    "fourier_features": ("5,3 3,8", fourier_features),
    "embedding": ("i9:4,5 9,6", lambda i, w: F.embedding(i, w, padding_idx=0)),
    "embedding_bag": ("i9:4,5 9,6", lambda i, w: F.embedding_bag(i, w, mode="mean")),
    "tied_embedding": ("i9:4,5 9,6", lambda i, w: F.embedding(i, w) @ w.T),
    "hash_embedding": ("i90:4,5 7,6 11,6", lambda i, a, b: a[i % 7] + b[(i * 31) % 11]),
    "lstm_cell": ("3,4 3,5 3,5 4,20 5,20", lstm_cell),
    "gru": ("3,4,4 3,5 4,15 5,15", over_time(gru_cell)),
    "elman": ("3,6,4 3,5 4,5 5,5", over_time(lambda x, h, w, u: (x @ w + h @ u).tanh())),
    "minimal_gated": (
        "3,6,4 3,5 4,5 5,5",
        over_time(minimal_cell),
    ),
    "highway": ("3,6 6,6 6,6", highway),
    "decay_scan": ("2,9,4 4", sum_with_decay),
    "cumulative_max": ("2,9", lambda x: x.cummax(1)[0]),
    "selective_scan": ("2,5,3 2,5,3 3,4 2,5,4 2,5,4", selective_scan),
    "gated_delta": ("2,5,4 2,5,4 2,5,3 2,5", gated_delta),
}
