"""Memory of a rank: the peak that is computed from a simulated rank against what real gloo processes allocate.

    python -m benchmarks.rank_memory [--ranks 2] [MODEL:WRAP ...]

A real process runs three compiled training steps with AdamW. In the third, torch's CPU allocations in forward and
backward are measured by the profiler; weights, shards, optimizer states, buckets and inputs are counted.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import warnings
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from benchmarks.rank_models import WRAPS, Experts, Loss, Stack
from benchmarks.rank_models import Model as Kind

WIDTH, LAYERS, BATCH = 256, 3, 64
CASES = (
    "mlp:ddp", "mlp:ddp_views", "mlp:fsdp2", "mlp:fsdp2_kept", "mlp:fsdp2_bf16", "mlp:fsdp1", "mlp:simple_fsdp",
    "mlp:parametrized", "mlp:tp", "mlp:tp_sp", "mlp:2d", "gpt2:ddp", "gpt2:fsdp2", "llama:fsdp2", "llama:fsdp2_bf16",
    "llama:tp", "moe:ddp", "moe:fsdp2",
)  # fmt: skip
LIMIT = 0.05


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=3, n_embd=WIDTH, n_head=4, vocab_size=512, n_positions=64, use_cache=False,
                        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)  # fmt: skip
    return Loss(GPT2LMHeadModel(config))


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return Loss(LlamaForCausalLM(LlamaConfig(
        vocab_size=512, hidden_size=WIDTH, intermediate_size=3 * WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )))  # fmt: skip


def ddp_views(model: Any, _kind: Kind, _world: int) -> Any:
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1, gradient_as_bucket_view=True)


def fsdp2_with(**options: Any) -> Any:
    def wrap(model: Any, kind: Kind, world: int) -> Any:
        mesh = init_device_mesh("cpu", (world,))
        for block in kind.blocks(model):
            fully_shard(block, mesh=mesh, **options)
        return fully_shard(model, mesh=mesh, **options)

    return wrap


def tokens() -> torch.Tensor:
    return torch.randint(0, 512, (4, 64))


KINDS = {
    "mlp": Kind(Model, lambda: torch.randn(BATCH, WIDTH), lambda m: list(m.blocks), ("up",), ("down",)),
    "gpt2": Kind(gpt2, tokens, lambda m: list(m.model.transformer.h)),
    "llama": Kind(
        llama, tokens, lambda m: list(m.model.model.layers), ("mlp.gate_proj", "mlp.up_proj"), ("mlp.down_proj",)
    ),
    "moe": Kind(lambda: Stack([Block(), Experts(WIDTH)]), lambda: torch.randn(BATCH, WIDTH), lambda m: list(m.blocks)),
}
HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
OWN_WRAPS = {
    "ddp_views": ddp_views,
    "fsdp2_kept": fsdp2_with(reshard_after_forward=False),
    "fsdp2_bf16": fsdp2_with(mp_policy=HALF),
}


def make(case: str, world: int) -> tuple[nn.Module, torch.Tensor]:
    """The model of a case, spread over the ranks, and its input."""
    torch.manual_seed(0)
    name, wrap = case.split(":")
    kind = KINDS[name]
    return (WRAPS | OWN_WRAPS)[wrap](kind.make(), kind, world), kind.input()


def measure(case: str, rank: int, world: int) -> None:
    """Print the peak of a real process: what is there before the third step, and what the step allocates."""
    from compiler.torch_api.allocator import cpu_peak_bytes

    distributed.init_process_group("gloo", rank=rank, world_size=world)
    model, x = make(case, world)
    optimizer = torch.optim.AdamW(model.parameters())
    compiled = torch.compile(model)

    def step() -> None:
        compiled(x).float().sum().backward()

    for _ in range(2):
        step()
        optimizer.step()
        optimizer.zero_grad()
    weights = {
        each.untyped_storage()._cdata: held_bytes(each) for each in map(local, model.parameters())
    }  # views share one
    there = sum(weights.values()) + held_bytes(x)
    there += sum(held_bytes(value) for state in optimizer.state.values() for value in state.values())
    there += sum(held_bytes(each) for each in model.parameters()) if "ddp" in case else 0
    print(json.dumps({"rank": rank, "there": there, "peak": there + cpu_peak_bytes(step)}), flush=True)
    distributed.barrier()
    os._exit(0)  # gloo's threads may outlive the group


def held_bytes(value: Any) -> int:
    """Bytes of a tensor on this rank."""
    part = local(value)
    return int(part.untyped_storage().nbytes()) if isinstance(part, torch.Tensor) else 0


def local(value: Any) -> Any:
    """The part of a DTensor on this rank; any other value unchanged."""
    return getattr(value, "_local_tensor", value)


def simulate(case: str, rank: int, world: int) -> None:
    """Print the peak of a simulated rank, in all and by kind."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import explorer

    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    model, x = make(case, world)
    record = explorer.explore(model, x, target="cpu").record
    events = [event for event in record.memory if event.side == "rank"]
    top = max(range(len(events)), key=lambda place: events[place].live, default=0)
    kinds: dict[str, int] = {}
    sizes: dict[str, tuple[str, int]] = {}
    for event in events[: top + 1]:
        sizes.pop(event.of or event.buffer, None)
        if event.what != "free":
            sizes[event.buffer] = event.kind, event.bytes
    for kind, size in sizes.values():
        kinds[kind] = kinds.get(kind, 0) + size
    print(json.dumps({"rank": rank, "peak": events[top].live if events else 0, "kinds": kinds}), flush=True)


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def run_worker(how: str, case: str, rank: int, world: int, port: str) -> subprocess.Popen[str]:
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "benchmarks.rank_memory",
        "--worker",
        how,
        "--rank",
        str(rank),
        "--ranks",
        str(world),
        case,
    ]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, error = process.communicate(timeout=1200)
    found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    if not found:
        raise RuntimeError(error[-3000:])
    return dict(found[-1])


def compare(case: str, world: int) -> bool:
    port = free_port()
    real = [run_worker("real", case, rank, world, port) for rank in range(world)]
    found = [result_of(each) for each in real]
    simulated = result_of(run_worker("simulated", case, world - 1, world, "0"))
    measured = found[-1]["peak"]
    error = simulated["peak"] / measured - 1
    kinds = ", ".join(f"{kind} {size:,}" for kind, size in simulated["kinds"].items() if size)
    print(f"{case:16} {world} ranks: real {measured:,}, simulated {simulated['peak']:,}, {error:+.1%}   ({kinds})")
    return abs(error) <= LIMIT


def main() -> int:
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--worker", choices=("real", "simulated"))
    asked = parser.parse_args()
    if asked.worker:
        torch.set_num_threads(1)
        (measure if asked.worker == "real" else simulate)(asked.cases[0], asked.rank, asked.ranks)
        return 0
    failed = [case for case in asked.cases if not compare(case, asked.ranks)]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
