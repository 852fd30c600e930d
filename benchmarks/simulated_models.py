"""GPT-2 and Llama, written out, and their distributed forms, for the benchmark of simulated ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class GptBlock(nn.Module):
    """A block of GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.ln_1(x)).chunk(3, dim=-1)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.ln_2(x))))


class Gpt(nn.Module):
    """GPT-2, by default with 12 layers; `loss` needs no labels."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, vocabulary: int = 50257) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class LlamaBlock(nn.Module):
    """A layer of Llama with grouped-query attention; `width` and `heads` are of the whole layer."""

    def __init__(self, width: int, head: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.head = head
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, heads * head, bias=False)
        self.k, self.v = (nn.Linear(width, kv_heads * head, bias=False) for _ in range(2))
        self.o = nn.Linear(heads * head, width, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        normed = self.norm_1(x)
        q, k, v = (layer(normed).unflatten(-1, (-1, self.head)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        normed = self.norm_2(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Llama(nn.Module):
    """Llama 3 70B with fewer layers: the others are equal to these, so they are folded."""

    def __init__(self, layers: int = 2, width: int = 8192, vocabulary: int = 128256) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, 128, width // 128, 8, 28672) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        angles = torch.arange(ids.shape[1], device=ids.device)[:, None] * torch.ones(128, device=ids.device)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def shard_blocks(model: Any, mesh: Any) -> Any:
    """The model with `fully_shard` on each block and on the whole."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def tensor_parallel(model: Llama, mesh: Any) -> Llama:
    """Llama with tensor parallel layers."""
    columns, rows = ("q", "k", "v", "gate", "up"), ("o", "down")
    plan = {name: ColwiseParallel() for name in columns} | {name: RowwiseParallel() for name in rows}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return model


def add_breaks(model: Any) -> Any:
    """The model with graph breaks where `fully_shard` has hooks: before and after each block and the whole."""

    @torch.compiler.disable
    def before(_module: nn.Module, _args: Any) -> None:
        return None

    @torch.compiler.disable
    def after(_module: nn.Module, _args: Any, _result: Any) -> None:
        return None

    for module in (*model.blocks, model):
        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)
    return model


def gpt_step(layers: int, *, cuts: bool = False, shards: bool = False) -> None:
    """A training step of GPT-2: in one process, cut as FSDP2 cuts it, or sharded by FSDP2."""
    torch.manual_seed(0)
    model = Gpt(layers)
    if shards:
        model = shard_blocks(model, init_device_mesh("cpu", (dist.get_world_size(),)))
    elif cuts:
        model = add_breaks(model)
    model(torch.randint(0, 50257, (1, 32))).sum().backward()


def llama_step(*, tensor: bool = True) -> None:
    """Forward and backward of Llama 70B with two of its 80 layers: FSDP2, and tensor parallel on 8 GPUs."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // 8, 8) if tensor else (world,), mesh_dim_names=("dp", "tp")[: 1 + tensor])
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = Llama()
        model = tensor_parallel(model, mesh["tp"]) if tensor else model
        shard_blocks(model, mesh["dp"] if tensor else mesh)
        model(torch.randint(0, 128256, (1, 4096))).sum().backward()
    finally:
        torch.set_default_dtype(torch.float32)
