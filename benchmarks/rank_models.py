"""Small models, and the ways to spread them over ranks, for `rank_fidelity`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrize import register_parametrization

VOCABULARY, SEQUENCE = 64, 8
WIDE_SEQUENCE = 128


class Block(nn.Module):
    """A residual MLP."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.up = nn.Linear(size, 4 * size)
        self.down = nn.Linear(4 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Experts(nn.Module):
    """A mixture of experts, of which each takes the same number of tokens; further tokens are dropped."""

    def __init__(self, size: int, count: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(size, count, bias=False)
        self.up = nn.Parameter(torch.randn(count, size, 2 * size) * 0.1)
        self.down = nn.Parameter(torch.randn(count, 2 * size, size) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x).softmax(-1)
        capacity = max(x.shape[0] // scores.shape[1], 1)
        weights, tokens = scores.t().topk(capacity, dim=1)
        hidden = torch.relu(torch.bmm(x[tokens], self.up))
        out = torch.bmm(hidden, self.down) * weights.unsqueeze(-1)
        return x.index_add(0, tokens.flatten(), out.flatten(0, 1))


class Stack(nn.Module):
    """Blocks, one after the other."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Loss(nn.Module):
    """A language model, called with tokens only, that returns its logits, or a loss."""

    def __init__(self, model: nn.Module, *, returns_loss: bool = False) -> None:
        super().__init__()
        self.model = model
        self.returns_loss = returns_loss

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()) if self.returns_loss else logits


@dataclass(frozen=True)
class Model:
    """A model for tests: how to make it and its input, its blocks, and its pairs of linear layers in a block.

    `device` is the kind of device that it is on.
    """

    make: Callable[[], nn.Module]
    input: Callable[[], Tensor]
    blocks: Callable[[Any], list[nn.Module]]
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    device: str = "cpu"


def _tokens(vocabulary: int = VOCABULARY, shape: tuple[int, int] = (2, SEQUENCE)) -> Tensor:
    return torch.randint(0, vocabulary, shape)


def _gpt2(layers: int = 2, width: int = 32, heads: int = 4, vocabulary: int = VOCABULARY) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocabulary, n_positions=WIDE_SEQUENCE,
                        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0)  # fmt: skip
    model = GPT2LMHeadModel(config)
    for block in model.transformer.h:  # DTensor has plans for nn.Linear, and GPT-2 has Conv1D
        block.mlp.c_fc, block.mlp.c_proj = _linear(block.mlp.c_fc), _linear(block.mlp.c_proj)
    return Loss(model, returns_loss=layers > 2)


def _linear(conv: Any) -> nn.Linear:
    linear = nn.Linear(*conv.weight.shape)
    linear.weight, linear.bias = nn.Parameter(conv.weight.data.t().contiguous()), nn.Parameter(conv.bias.data)
    return linear


def _llama(layers: int = 2, width: int = 32, heads: int = 4, vocabulary: int = VOCABULARY) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return Loss(LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=4, max_position_embeddings=WIDE_SEQUENCE,
    )), returns_loss=layers > 2)  # fmt: skip


MODELS = {
    "mlp": Model(lambda: Stack([Block(16), Block(16)]), lambda: torch.randn(8, 16), lambda m: list(m.blocks),
                 ("up",), ("down",)),
    "gpt2": Model(_gpt2, _tokens, lambda m: list(m.model.transformer.h), ("mlp.c_fc",), ("mlp.c_proj",)),
    "llama": Model(_llama, _tokens, lambda m: list(m.model.model.layers), ("mlp.gate_proj", "mlp.up_proj"),
                   ("mlp.down_proj",)),
    "moe": Model(lambda: Stack([Block(16), Experts(16)]), lambda: torch.randn(16, 16), lambda m: list(m.blocks)),
}  # fmt: skip

WIDE = {
    "gpt2_wide": replace(
        MODELS["gpt2"],
        make=lambda: _gpt2(4, 768, 12, 50_304),
        input=lambda: torch.randint(0, 50_304, (4, WIDE_SEQUENCE)),
    ),
    "llama_wide": replace(
        MODELS["llama"],
        make=lambda: _llama(4, 2048, 32, 32_000),
        input=lambda: torch.randint(0, 32_000, (4, WIDE_SEQUENCE)),
    ),
}
"""Four layers as wide as in models that people train, and their losses, for GPUs."""


def ddp(model: Any, _kind: Model, _world: int) -> Any:
    """DistributedDataParallel with its first bucket's size as the cap."""
    return DistributedDataParallel(model, bucket_cap_mb=1)


def fsdp2(model: Any, kind: Model, world: int, mesh: DeviceMesh | None = None) -> Any:
    """`fully_shard` on each block and on the root."""
    mesh = init_device_mesh(kind.device, (world,)) if mesh is None else mesh
    for block in kind.blocks(model):
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp1(model: Any, kind: Model, _world: int) -> Any:
    """FullyShardedDataParallel around each block and around the root."""
    policy = ModuleWrapPolicy({type(block) for block in kind.blocks(model)})
    return FullyShardedDataParallel(
        model, use_orig_params=True, auto_wrap_policy=policy, device_id=torch.device(kind.device)
    )


def simple_fsdp(model: Any, kind: Model, world: int) -> Any:
    """Sharded DTensor parameters, gathered by a property as they are read, as in torchtitan's SimpleFSDP."""
    for module, names in _shard_parameters(model, kind, world):
        owner = type(module)
        module.__class__ = type(
            f"SimpleFSDP{owner.__name__}", (owner,), {name: _gathering_property(name) for name in names}
        )
    return model


def parametrized_simple_fsdp(model: Any, kind: Model, world: int) -> Any:
    """SimpleFSDP as it was first: gathers by torch.nn.utils.parametrize."""
    for module, names in _shard_parameters(model, kind, world):
        for name in names:
            register_parametrization(module, name, _Gather(), unsafe=True)
    return model


def _shard_parameters(model: Any, kind: Model, world: int) -> Iterator[tuple[Any, list[str]]]:
    """Shard all parameters; the modules that have any, with their names."""
    mesh = init_device_mesh(kind.device, (world,))
    for module in list(model.modules()):
        names = [name for name, _ in module.named_parameters(recurse=False)]
        for name in names:
            sharded = distribute_tensor(module._parameters[name].data, mesh, [Shard(0)], src_data_rank=None)
            module._parameters[name] = nn.Parameter(sharded)
        if names:
            yield module, names


def _gather(parameter: Any) -> Tensor:
    gathered: Tensor = parameter.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial("avg")])
    return gathered


def _gathering_property(name: str) -> property:
    return property(lambda module: _gather(module._parameters[name]))


class _Gather(nn.Module):
    def forward(self, parameter: Tensor) -> Tensor:
        return _gather(parameter)


def tensor_parallel(
    model: Any, kind: Model, world: int, mesh: DeviceMesh | None = None, *, in_sequence: bool = False
) -> Any:
    """Columns of the first linear layers of each block, rows of the second; `in_sequence` shards activations too."""
    mesh = init_device_mesh(kind.device, (world,)) if mesh is None else mesh
    columns = ColwiseParallel(input_layouts=Shard(0)) if in_sequence else ColwiseParallel()
    rows = RowwiseParallel(output_layouts=Shard(0)) if in_sequence else RowwiseParallel()
    for block in kind.blocks(model):
        plan = dict.fromkeys(kind.columns, columns) | dict.fromkeys(kind.rows, rows)
        parallelize_module(block, mesh, plan)  # type: ignore[arg-type]
    return model


def sequence_parallel(model: Any, kind: Model, world: int) -> Any:
    """Tensor parallel with activations that are sharded between the blocks."""
    return tensor_parallel(model, kind, world, in_sequence=True)


def two_dimensions(model: Any, kind: Model, world: int) -> Any:
    """Tensor parallel over two ranks, `fully_shard` over the others."""
    mesh = init_device_mesh(kind.device, (world // 2, 2), mesh_dim_names=("dp", "tp"))
    tensor_parallel(model, kind, world, mesh["tp"])
    return fsdp2(model, kind, world, mesh["dp"])


WRAPS: dict[str, Callable[[Any, Model, int], Any]] = {
    "ddp": ddp,
    "fsdp2": fsdp2,
    "fsdp1": fsdp1,
    "simple_fsdp": simple_fsdp,
    "parametrized": parametrized_simple_fsdp,
    "tp": tensor_parallel,
    "tp_sp": sequence_parallel,
    "2d": two_dimensions,
}


def cases() -> list[tuple[str, str]]:
    """All pairs of a model and a wrap; the mixture of experts has no pairs of linear layers."""
    return [(model, wrap) for model, kind in MODELS.items() for wrap in WRAPS
            if kind.columns or wrap not in ("tp", "tp_sp", "2d")]  # fmt: skip
