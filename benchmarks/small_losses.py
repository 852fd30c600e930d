"""Losses, routing, graphs, sampling and updates, each with the shapes of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


def moe(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    weights, chosen = (x @ gate).softmax(-1).topk(2, -1)
    hidden = F.silu(torch.einsum("td,edh->teh", x, up))
    out = torch.einsum("teh,ehd->ted", hidden, down)
    return (out.gather(1, chosen[..., None].expand(-1, -1, x.shape[1])) * weights[..., None]).sum(1)


def soft_moe(x: Tensor, slots: Tensor, w: Tensor) -> Tensor:
    scores = torch.einsum("btd,esd->btes", x, slots)
    given = torch.einsum("btd,btes->besd", x, scores.softmax(1))
    mixed = scores.flatten(2).softmax(-1).view_as(scores)
    return torch.einsum("besd,edf,btes->btf", given, w, mixed)


def focal_loss(x: Tensor, y: Tensor) -> Tensor:
    crossed = F.cross_entropy(x, y, reduction="none")
    return ((1 - (-crossed).exp()) ** 2 * crossed).mean()


def dice(x: Tensor, y: Tensor) -> Tensor:
    share = x.sigmoid().flatten(1)
    return 1 - ((2 * (share * y.flatten(1)).sum(1) + 1) / (share.sum(1) + y.flatten(1).sum(1) + 1)).mean()


def info_nce(a: Tensor, b: Tensor) -> Tensor:
    scores = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T / 0.07
    places = torch.arange(a.shape[0])
    return (F.cross_entropy(scores, places) + F.cross_entropy(scores.T, places)) / 2


def giou(a: Tensor, b: Tensor) -> Tensor:
    a, b = (torch.cat((box[:, :2], box[:, :2] + box[:, 2:].exp()), 1) for box in (a, b))
    both = (torch.min(a[:, 2:], b[:, 2:]) - torch.max(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
    around = (torch.max(a[:, 2:], b[:, 2:]) - torch.min(a[:, :2], b[:, :2])).prod(1)
    area = (a[:, 2:] - a[:, :2]).prod(1) + (b[:, 2:] - b[:, :2]).prod(1) - both
    return (1 - both / area + (around - area) / around).mean()


def lora(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x @ w + (x @ a @ b) * 2.0


def dora(x: Tensor, w: Tensor, a: Tensor, b: Tensor, m: Tensor) -> Tensor:
    whole = w + a @ b
    return x @ (m * whole / whole.norm(dim=0, keepdim=True))


def round_to_int8(x: Tensor) -> Tensor:
    scale = x.detach().abs().amax(-1, keepdim=True) / 127
    return x + ((x / scale).round().clamp(-127, 127) * scale - x).detach()


def message_passing(x: Tensor, source: Tensor, target: Tensor, w: Tensor) -> Tensor:
    sums = torch.zeros_like(x).index_add(0, target, (x @ w)[source])
    counts = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, target, torch.ones(target.shape[0], dtype=x.dtype))
    return F.relu(sums / counts.clamp(min=1)[:, None])


def graph_attention(x: Tensor, source: Tensor, target: Tensor, a: Tensor) -> Tensor:
    scores = F.leaky_relu((torch.cat((x[source], x[target]), 1) * a).sum(1), 0.2).exp()
    whole = torch.zeros(x.shape[0], dtype=x.dtype).scatter_add(0, target, scores)
    return torch.zeros_like(x).index_add(0, target, x[source] * (scores / whole[target])[:, None])


def nerf_render(density: Tensor, colour: Tensor, apart: Tensor) -> Tensor:
    alpha = 1 - torch.exp(-F.softplus(density) * apart)
    clear = torch.cumprod(torch.cat((torch.ones_like(alpha[:, :1]), 1 - alpha[:, :-1] + 1e-10), 1), 1)
    return ((alpha * clear)[..., None] * colour.sigmoid()).sum(1)


def ddpm_loss(x: Tensor, noise: Tensor, predicted: Tensor, t: Tensor) -> Tensor:
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100, dtype=x.dtype), 0)[t][:, None]
    noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
    return F.mse_loss(predicted * noisy, noise)


def ppo(new: Tensor, old: Tensor, advantage: Tensor) -> Tensor:
    ratio = (new - old.detach()).exp()
    gain = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    return -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()


def gae(reward: Tensor, value: Tensor) -> Tensor:
    last, out = torch.zeros_like(reward[:, 0]), []
    for t in reversed(range(reward.shape[1])):
        following = value[:, t + 1] if t + 1 < value.shape[1] else 0.0
        last = reward[:, t] + 0.99 * following - value[:, t] + 0.95 * 0.99 * last
        out.append(last)
    return torch.stack(out[::-1], 1)


def dpo(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
    return -F.logsigmoid(0.1 * ((chosen - ref_chosen) - (rejected - ref_rejected))).mean()


def sinkhorn(scores: Tensor) -> Tensor:
    for _ in range(4):
        scores = scores - scores.logsumexp(1, keepdim=True)
        scores = scores - scores.logsumexp(0, keepdim=True)
    return scores.exp()


def gumbel_hard(x: Tensor, noise: Tensor) -> Tensor:
    soft = ((x - (-(noise + 1e-6).log() + 1e-6).log()) / 0.5).softmax(-1)
    return F.one_hot(soft.argmax(-1), x.shape[-1]).to(x.dtype) - soft.detach() + soft


def vq(x: Tensor, book: Tensor) -> tuple[Tensor, Tensor]:
    chosen = book[torch.cdist(x, book).argmin(-1)]
    return x + (chosen - x).detach(), F.mse_loss(chosen, x.detach()) + 0.25 * F.mse_loss(x, chosen.detach())


def crf_forward(scores: Tensor, moves: Tensor) -> Tensor:
    alpha = scores[:, 0]
    for step in scores[:, 1:].unbind(1):
        alpha = torch.logsumexp(alpha[:, :, None] + moves, 1) + step
    return alpha.logsumexp(-1).mean()


def capsule(u: Tensor) -> Tensor:
    routes = torch.zeros(u.shape[:3], dtype=u.dtype)
    for _ in range(3):
        s = (routes.softmax(2)[..., None] * u).sum(1)
        length = s.square().sum(-1, keepdim=True)
        v = length / (1 + length) * s / (length + 1e-8).sqrt()
        routes = routes + (u * v[:, None]).sum(-1)
    return v


def low_rank_bilinear(x: Tensor, y: Tensor, u: Tensor, v: Tensor) -> Tensor:
    return F.normalize(torch.sign(z := (x @ u) * (y @ v)) * z.abs().clamp(min=1e-6).sqrt(), dim=-1)


def mixup(x: Tensor, share: Tensor) -> Tensor:
    return share.sigmoid()[:, None] * x + (1 - share.sigmoid()[:, None]) * x.flip(0)


def barlow(a: Tensor, b: Tensor) -> Tensor:
    a, b = ((z - z.mean(0)) / (z.std(0) + 1e-5) for z in (a, b))
    c = a.T @ b / a.shape[0]
    off = c - torch.eye(c.shape[0], dtype=c.dtype)
    return (off.diagonal() ** 2).sum() + 0.005 * (off.triu(1) ** 2 + off.tril(-1).T ** 2).sum()


def arcface(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    cosine = F.linear(F.normalize(x), F.normalize(w)).clamp(-0.999, 0.999)
    chosen = F.one_hot(y, w.shape[0]).bool()
    return F.cross_entropy(torch.where(chosen, (cosine.acos() + 0.5).cos(), cosine) * 16, y)


def proto(x: Tensor, support: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(-torch.cdist(x, support.mean(1)).square(), y)


def evidential_loss(x: Tensor, y: Tensor) -> Tensor:
    alpha = F.softplus(x) + 1
    return (torch.digamma(alpha.sum(-1)) - torch.digamma(alpha.gather(1, y[:, None])[:, 0])).mean()


def gaussian_nll(mean: Tensor, var: Tensor, y: Tensor) -> Tensor:
    return F.gaussian_nll_loss(mean, y, F.softplus(var) + 1e-3)


def kl_vae(mean: Tensor, log_var: Tensor) -> Tensor:
    return -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(-1).mean()


def hungarian_cost(x: Tensor, boxes: Tensor, y: Tensor) -> Tensor:
    return torch.cdist(boxes, boxes.flip(0), p=1) - x.softmax(-1)[:, y]


def ema_update(x: Tensor, y: Tensor) -> Tensor:
    kept = x.clone()
    kept.mul_(0.9).add_(y, alpha=0.1)
    return kept * 2


def kv_cache(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    return cache.clone().index_copy_(1, at, new).cumsum(1)


def beam(x: Tensor) -> tuple[Tensor, Tensor]:
    best, places = x.log_softmax(-1).flatten(1).topk(3)
    return best, places // x.shape[-1]


def nucleus(x: Tensor) -> Tensor:
    ordered, places = x.softmax(-1).sort(-1, descending=True)
    dropped = ordered.cumsum(-1) - ordered > 0.9
    return x.masked_fill(torch.zeros_like(dropped).scatter(-1, places, dropped), -1e4).softmax(-1)


def length_mask(x: Tensor, lengths: Tensor) -> Tensor:
    kept = torch.arange(x.shape[1]) < lengths[:, None] + 1
    return (x * kept[..., None]).sum(1) / kept.sum(1, keepdim=True)


def muon(g: Tensor) -> Tensor:
    x = g / (g.norm() + 1e-7)
    for _ in range(3):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def hyper_connections(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    mixed = torch.einsum("nbd,nm->mbd", x, a.softmax(0))
    return mixed + b[:, None, None] * torch.tanh(mixed.sum(0))


def kan(x: Tensor, w: Tensor) -> Tensor:
    knots = torch.linspace(-2, 2, 8, dtype=x.dtype)
    return torch.einsum("bik,iok->bo", torch.exp(-((x[..., None] - knots) ** 2)), w)


def js_divergence(x: Tensor, y: Tensor) -> Tensor:
    p, q = x.softmax(-1), y.softmax(-1)
    middle = ((p + q) / 2).log()
    return (p * (p.log() - middle) + q * (q.log() - middle)).sum(-1).mean() / 2


PROGRAMS: dict[str, tuple[str, Callable[..., Any]]] = {
    "moe_top2": ("9,6 6,4 4,6,8 4,8,6", moe),
    "soft_moe": ("2,7,6 3,2,6 3,6,5", soft_moe),
    "load_balance": (
        "9,4",
        lambda x: 4 * (F.one_hot(x.argmax(-1), 4).to(x.dtype).mean(0) * x.softmax(-1).mean(0)).sum(),
    ),
    "lora": ("5,8 8,6 8,2 2,6", lora),
    "dora": ("5,8 8,6 8,2 2,6 6", dora),
    "fake_quantised": ("5,16", round_to_int8),
    "low_rank_bilinear": ("5,8 5,6 8,4 6,4", low_rank_bilinear),
    "bilinear": ("5,4 5,3 2,4,3", F.bilinear),
    "cross_network": ("5,8 8 8", lambda x, w, b: x * (x @ w)[:, None] + b + x),
    "factorization_machine": ("5,8 8,4", lambda x, v: ((x @ v).square() - x.square() @ v.square()).sum(1) / 2),
    "kan": ("5,4 4,3,8", kan),
    "hyper_connections": ("3,5,4 3,3 3", hyper_connections),
    "capsule_routing": ("2,5,3,4", capsule),
    "message_passing": ("6,4 i6:11 i6:11 4,4", message_passing),
    "graph_attention": ("6,4 i6:11 i6:11 8", graph_attention),
    "segment_max": (
        "11,4 i5:11",
        lambda x, i: torch.full((5, 4), -9.0, dtype=x.dtype).scatter_reduce(0, i[:, None].expand(-1, 4), x, "amax"),
    ),
    "nerf_render": ("4,7 4,7,3 p:4,7", nerf_render),
    "cross_entropy": ("6,5 i5:6", F.cross_entropy),
    "cross_entropy_smooth": ("6,5 i5:6 p:5", lambda x, y, w: F.cross_entropy(x, y, w.detach(), label_smoothing=0.1)),
    "cross_entropy_ignored": ("6,5 i5:6", lambda x, y: F.cross_entropy(x, y, ignore_index=2)),
    "z_loss": ("6,5 i5:6", lambda x, y: F.cross_entropy(x, y) + 1e-2 * x.logsumexp(-1).square().mean()),
    "focal": ("6,5 i5:6", focal_loss),
    "dice": ("2,1,5,5 b:2,1,5,5", dice),
    "bce_pos_weight": (
        "6,5 b:6,5 p:5",
        lambda x, y, w: F.binary_cross_entropy_with_logits(x, y.to(x.dtype), pos_weight=w.detach()),
    ),
    "huber": ("6,5 6,5", lambda x, y: F.huber_loss(x, y, delta=0.5)),
    "smooth_l1": ("6,5 6,5", lambda x, y: F.smooth_l1_loss(x, y, beta=0.3)),
    "charbonnier": ("6,5 6,5", lambda x, y: ((x - y).square() + 1e-6).sqrt().mean()),
    "log_cosh": ("6,5 6,5", lambda x, y: (x - y + F.softplus(-2 * (x - y)) - 0.6931).mean()),
    "kl_div": ("6,5 6,5", lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean")),
    "js_divergence": (
        "6,5 6,5",
        js_divergence,
    ),
    "kl_vae": ("6,5 6,5", kl_vae),
    "gaussian_nll": ("6,5 6,5 6,5", gaussian_nll),
    "poisson_nll": ("6,5 p:6,5", F.poisson_nll_loss),
    "evidential": ("6,5 i5:6", evidential_loss),
    "triplet": ("6,5 6,5 6,5", F.triplet_margin_loss),
    "cosine_embedding": ("6,5 6,5", lambda x, y: F.cosine_embedding_loss(x, y, torch.ones(6))),
    "margin_ranking": ("6 6", lambda x, y: F.margin_ranking_loss(x, y, torch.ones(6), 0.3)),
    "multilabel_margin": ("6,5 b:6,5", lambda x, y: F.multilabel_soft_margin_loss(x, y.to(x.dtype))),
    "info_nce": ("6,5 6,5", info_nce),
    "barlow_twins": ("8,5 8,5", barlow),
    "arcface": ("6,5 4,5 i4:6", arcface),
    "prototypes": ("6,5 4,3,5 i4:6", proto),
    "giou": ("6,4 6,4", giou),
    "matching_cost": ("6,5 6,4 i5:6", hungarian_cost),
    "ddpm": ("5,8 5,8 5,8 i100:5", ddpm_loss),
    "ppo": ("12 12 12", ppo),
    "gae": ("2,6 2,6", gae),
    "dpo": ("7 7 7 7", dpo),
    "sinkhorn": ("5,6", sinkhorn),
    "gumbel_hard": ("5,6 p:5,6", gumbel_hard),
    "vector_quantised": ("5,6 7,6", vq),
    "crf": ("3,5,4 4,4", crf_forward),
    "mixup": ("6,5 6", mixup),
    "ema": ("6,5 6,5", ema_update),
    "kv_cache": ("2,7,4 2,2,4 i7:2", kv_cache),
    "beam": ("2,3,5", beam),
    "nucleus": ("3,9", nucleus),
    "length_mask": ("4,6,3 i6:4", length_mask),
    "muon": ("5,7", muon),
    "pairwise_distance": ("5,4 6,4", torch.cdist),
    "covariance": ("6,9", torch.cov),
    "trilinear": ("3,4 3,5 3,6", lambda x, y, z: torch.einsum("bi,bj,bk->ijk", x, y, z)),
    "masked_mean": ("4,6 b:4,6", lambda x, m: torch.where(m, x, 0.0).sum(1) / m.sum(1).clamp(min=1)),
    "median_filter": ("1,1,6,6", lambda x: F.unfold(x, 3).median(1)[0]),
    "order_statistics": ("4,9", lambda x: x.sort(1)[0][:, 2:-2].mean(1)),
    "histogram": (
        "40",
        lambda x: torch.exp(-((x[:, None] - torch.linspace(-2, 2, 9, dtype=x.dtype)) ** 2) / 0.1).sum(0),
    ),
    "polar": ("5,7 5,7", lambda x, y: torch.stack((torch.hypot(x, y), torch.atan2(y, x)))),
    "toeplitz": ("7 4,4", lambda r, x: x @ r[(torch.arange(4)[:, None] - torch.arange(4)) + 3]),
    "erf_window": ("5,7", lambda x: torch.erf(x) * torch.special.expit(x) + torch.special.entr(x.abs() + 0.1)),
    "autocast_mlp": ("5,8 8,8", lambda x, w: F.gelu((x.to(torch.float32) @ w.to(torch.float32)).to(x.dtype)) + x),
}
