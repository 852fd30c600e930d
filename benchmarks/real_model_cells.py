"""The studies of `benchmarks.real_models`: models, cells that call them as users do, and later changes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCALARS = {"capture_scalar_outputs": True}
SHAPES = {"capture_dynamic_output_shape_ops": True}
BOTH = SCALARS | SHAPES


@dataclass(frozen=True)
class Variant:
    """The cell of a study after a change.

    `setup` is run before it, `line` has options of %%tcompile, and `fn` is compiled instead of the study's function.
    """

    name: str
    setup: str = ""
    cell: str = ""
    fn: str = ""
    line: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A model and its cell: `setup` makes the model, `cell` is the cell below `%%tcompile`, which compiles `fn`."""

    name: str
    setup: str
    cell: str
    fn: str = "model"
    line: str = ""
    changes: tuple[Variant, ...] = ()

    @property
    def variants(self) -> tuple[Variant, ...]:
        return (Variant("as it is", line=self.line), *self.changes)

    def bare(self, variant: Variant) -> str:
        """The cell without an exploration, under plain torch.compile, with the same line numbers."""
        lines = ["# in place of %%tcompile", *(variant.cell or self.cell).splitlines()]
        fn = variant.fn or self.fn
        dynamic = ", dynamic=True" if "--dynamic" in variant.line else ""
        compiled = f"torch.compile({fn}, backend='eager'{dynamic})"
        if fn.endswith(".forward"):
            return "\n".join([*lines[:-1], f"{fn} = {compiled}; {lines[-1]}; del {fn}"])
        call = re.compile(rf"(?<![\w.]){re.escape(fn)}\(")
        return "\n".join(line if line.startswith("def ") else call.sub(f"{compiled}(", line) for line in lines)


def _of_transformers(config: str, model: str, options: str) -> str:
    return f"""
import torch
from transformers import {config}, {model}
torch.manual_seed(0)
model = {model}({config}({options})).eval()
"""


_SMALL = "vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4"
_IDS = "ids = torch.randint(3, 512, (1, 8))\n"

mixtral = Study(
    "mixtral",
    _of_transformers("MixtralConfig", "MixtralForCausalLM", f"{_SMALL}, num_key_value_heads=2, num_local_experts=4")
    + "model.set_experts_implementation('eager')\nids = torch.randint(0, 512, (2, 16))\n",
    "model(ids)",
    changes=(
        Variant("capture_dynamic_output_shape_ops", settings=SHAPES),
        Variant("experts as one grouped matmul", "model.set_experts_implementation('grouped_mm')"),
    ),
)
qwen_moe = Study(
    "qwen_moe",
    _of_transformers(
        "Qwen2MoeConfig",
        "Qwen2MoeForCausalLM",
        f"{_SMALL}, num_key_value_heads=2, moe_intermediate_size=32, shared_expert_intermediate_size=64, "
        "num_experts=8, num_experts_per_tok=2",
    )
    + "model.set_experts_implementation('eager')\nids = torch.randint(0, 512, (2, 16))\n",
    "model(ids)",
    changes=(Variant("experts as one grouped matmul", "model.set_experts_implementation('grouped_mm')"),),
)
llama = Study(
    "llama_generate",
    _of_transformers("LlamaConfig", "LlamaForCausalLM", f"{_SMALL}, num_key_value_heads=2") + _IDS,
    "model.generate(ids, max_new_tokens=8, do_sample=False)",
    fn="model.forward",
    changes=(
        Variant(
            "static cache",
            cell="model.generate(ids, max_new_tokens=8, do_sample=False, cache_implementation='static', "
            "disable_compile=True)",
        ),
        Variant("dynamic=True", line="--dynamic"),
        Variant("generate itself compiled", fn="model.generate", line="--fn model.generate"),
        Variant(
            "generate itself, numbers and sizes as symbols",
            fn="model.generate",
            line="--fn model.generate",
            settings=BOTH,
        ),
    ),
)
bert = Study(
    "bert_lengths",
    _of_transformers("BertConfig", "BertForSequenceClassification", _SMALL)
    + """
words = "the quick brown fox jumps over the lazy dog and then it sleeps in the warm sun".split()
vocabulary = {word: n + 3 for n, word in enumerate(words)}
def tokenised(*lengths):
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.tensor([vocabulary[word] for word in words[:length]])
    return ids, (ids > 0).long()
batches = [tokenised(9, 5, 7, 8), tokenised(12, 4, 9, 9), tokenised(7, 6, 3, 2), tokenised(9, 2, 2), tokenised(5)]
""",
    "for ids, mask in batches:\n    model(ids, mask)",
    changes=(
        Variant("dynamic=True", line="--dynamic"),
        Variant(
            "mark_unbacked",
            "for tensor in batches[0]:\n"
            "    torch._dynamo.decorators.mark_unbacked(tensor, 0)\n    torch._dynamo.mark_dynamic(tensor, 1)\n",
        ),
        Variant(
            "batches padded to 4 rows, lengths marked as dynamic",
            "batches = [tuple(torch.nn.functional.pad(each, (0, 0, 0, 4 - len(each))) for each in batch)"
            " for batch in batches]\nfor tensor in batches[0]:\n    torch._dynamo.mark_dynamic(tensor, 1)\n",
        ),
    ),
)
t5 = Study(
    "t5_generate",
    _of_transformers(
        "T5Config",
        "T5ForConditionalGeneration",
        "vocab_size=512, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0",
    )
    + _IDS,
    "model.generate(ids, max_new_tokens=6, do_sample=False)",
    fn="model.forward",
    changes=(
        Variant(
            "static cache",
            cell="model.generate(ids, max_new_tokens=6, do_sample=False, cache_implementation='static', "
            "disable_compile=True)",
        ),
        Variant(
            "no cache, dynamic=True",
            cell="model.generate(ids, max_new_tokens=6, do_sample=False, use_cache=False)",
            line="--dynamic",
        ),
    ),
)
whisper = Study(
    "whisper_generate",
    _of_transformers(
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        "vocab_size=512, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, "
        "decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, num_mel_bins=20, "
        "max_source_positions=50, max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, "
        "decoder_start_token_id=3",
    )
    + "model.generation_config.suppress_tokens = model.generation_config.begin_suppress_tokens = None\n"
    "sound = torch.randn(1, 20, 100)\n",
    "model.generate(sound, max_new_tokens=6, do_sample=False)",
    fn="model.forward",
    changes=(
        Variant(
            "static cache",
            cell="model.generate(sound, max_new_tokens=6, do_sample=False, cache_implementation='static', "
            "disable_compile=True)",
        ),
    ),
)
wav2vec2 = Study(
    "wav2vec2_training",
    _of_transformers(
        "Wav2Vec2Config",
        "Wav2Vec2ForCTC",
        "vocab_size=32, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, "
        "conv_dim=(32, 32, 32), conv_stride=(5, 2, 2), conv_kernel=(10, 3, 3), num_feat_extract_layers=3, "
        "num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, mask_time_prob=0.2, mask_time_length=4, "
        "layerdrop=0.1",
    )
    + "model.train()\nsound, labels = torch.randn(2, 4000), torch.randint(1, 32, (2, 10))\n",
    "model(sound, labels=labels).loss.backward()",
    changes=(
        Variant("feature encoder frozen", "model.freeze_feature_encoder()"),
        Variant(
            "frozen, mask drawn before the call, no layerdrop, loss outside",
            "model.freeze_feature_encoder()\nmodel.config.layerdrop = 0.0\n"
            "from transformers.models.wav2vec2.modeling_wav2vec2 import _compute_mask_indices\n"
            "length = int(model._get_feat_extract_output_lengths(4000))\n"
            "mask = torch.tensor(_compute_mask_indices((2, length), 0.2, 4))\n"
            "model.wav2vec2.config.mask_time_prob = 0.0\n",
            cell="model.wav2vec2(sound, mask_time_indices=mask).last_hidden_state.sum().backward()",
            fn="model.wav2vec2",
        ),
    ),
)
faster_rcnn = Study(
    "faster_rcnn",
    """
import torch
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn
torch.manual_seed(0)
model = fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=5).eval()
model.roi_heads.score_thresh = 0.0
picture = torch.rand(3, 120, 160)
""",
    "model([picture])",
    changes=(
        Variant("capture_dynamic_output_shape_ops", settings=SHAPES),
        Variant("numbers and sizes as symbols", settings=BOTH),
        Variant("the backbone alone", cell="model.backbone(picture[None])", fn="model.backbone"),
    ),
)
detr = Study(
    "detr_detect",
    """
import torch
from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig
torch.manual_seed(0)
backbone = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1] * 4, out_features=["stage4"])
model = DetrForObjectDetection(DetrConfig(
    use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, d_model=64,
    encoder_layers=2, decoder_layers=2, encoder_ffn_dim=128, decoder_ffn_dim=128, encoder_attention_heads=4,
    decoder_attention_heads=4, num_queries=20,
)).eval()
picture = torch.randn(1, 3, 128, 128)
""",
    """def detect(picture, threshold=0.01):
    found = model(picture)
    scores, labels = found.logits.softmax(-1)[..., :-1].max(-1)
    keep = scores > threshold
    if keep.sum() == 0:
        return None
    centre, size = found.pred_boxes[keep].split(2, -1)
    return scores[keep], labels[keep], torch.cat([centre - size / 2, centre + size / 2], -1)
detect(picture)
""",
    fn="detect",
    changes=(
        Variant("capture_dynamic_output_shape_ops", settings=SHAPES),
        Variant(
            "no early return, sizes as symbols",
            cell="""def detect(picture, threshold=0.01):
    found = model(picture)
    scores, labels = found.logits.softmax(-1)[..., :-1].max(-1)
    keep = scores > threshold
    centre, size = found.pred_boxes[keep].split(2, -1)
    return scores[keep], labels[keep], torch.cat([centre - size / 2, centre + size / 2], -1)
detect(picture)
""",
            settings=SHAPES,
        ),
    ),
)
mamba = Study(
    "mamba_generate",
    _of_transformers(
        "MambaConfig", "MambaForCausalLM", "vocab_size=512, hidden_size=64, state_size=8, num_hidden_layers=2"
    )
    + _IDS,
    "model.generate(ids, max_new_tokens=6, do_sample=False)",
    fn="model.forward",
)
_DENOISE = """def denoise(sample, t):
    noise = unet(scheduler.scale_model_input(sample, t), t, text).sample
    return scheduler.step(noise, t, sample).prev_sample
scheduler.set_timesteps(4)
sample = torch.randn(1, 4, 16, 16)
with torch.no_grad():
    for t in scheduler.timesteps:
        sample = denoise(sample, t)
"""
diffusion = Study(
    "diffusion_step",
    """
import torch
from diffusers import EulerDiscreteScheduler, UNet2DConditionModel
torch.manual_seed(0)
unet = UNet2DConditionModel(
    sample_size=16, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(32, 64),
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    cross_attention_dim=32, attention_head_dim=8, norm_num_groups=8,
).eval()
scheduler, text = EulerDiscreteScheduler(), torch.randn(1, 7, 32)
""",
    _DENOISE,
    fn="denoise",
    line="--fn denoise",
    changes=(
        Variant("sizes as symbols", line="--fn denoise", settings=SHAPES),
        Variant(
            "the scheduler outside, the U-Net compiled",
            fn="unet",
            line="--fn unet",
            cell="""scheduler.set_timesteps(4)
sample = torch.randn(1, 4, 16, 16)
with torch.no_grad():
    for t in scheduler.timesteps:
        noise = unet(scheduler.scale_model_input(sample, t), t, text).sample
        sample = scheduler.step(noise, t, sample).prev_sample
""",
        ),
    ),
)
_STEP = """def step(ids, labels, number):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(ids, labels=labels).loss
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    optimizer.zero_grad()
    logger.info("step %d loss %.3f", number, loss.item())
for number in range(4):
    step(ids, labels, number)
"""
training = Study(
    "training_step",
    _of_transformers("BertConfig", "BertForSequenceClassification", _SMALL)
    + """
import logging
logger = logging.getLogger("training")
optimizer = torch.optim.AdamW(model.train().parameters(), lr=0.001)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: 1 / (number + 1))
scaler = torch.amp.GradScaler("cpu")
ids, labels = torch.randint(3, 512, (2, 9)), torch.tensor([0, 1])
""",
    _STEP,
    fn="step",
    line="--fn step",
    changes=(
        Variant(
            "the learning rate as a tensor, problem_type set before",
            "model.config.problem_type = 'single_label_classification'\n"
            "optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.001))\n"
            "schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: 1 / (number + 1))\n",
            line="--fn step",
        ),
        Variant(
            "the loss alone compiled, problem_type set before",
            "model.config.problem_type = 'single_label_classification'",
            fn="loss_of",
            line="--fn loss_of",
            cell="""def loss_of(ids, labels):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(ids, labels=labels).loss
for number in range(4):
    loss = loss_of(ids, labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    optimizer.zero_grad()
    logger.info("step %d loss %.3f", number, loss.item())
""",
        ),
    ),
)
_EPOCHS = """for epoch in range(4):
    for rate in rates:
        rate(0.1 * epoch)
    model(pictures).sum().backward()
"""
convnext = Study(
    "convnext_drop_path",
    """
import timm
import torch
torch.manual_seed(0)
model = timm.create_model(
    "convnext_atto", pretrained=False, drop_path_rate=0.3, num_classes=10, depths=(1, 1, 2, 1), dims=(16, 32, 48, 64)
).train()
paths = [module for module in model.modules() if type(module).__name__ == "DropPath"]
rates = [lambda rate, path=path: setattr(path, "drop_prob", rate) for path in paths]
pictures = torch.randn(2, 3, 64, 64)
""",
    _EPOCHS,
    line="--fn model",
    changes=(
        Variant(
            "rates in buffers",
            """
class DropPath(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rate", torch.zeros(()))
    def forward(self, x):
        keep = (torch.rand(len(x), 1, 1, 1) >= self.rate) / (1 - self.rate)
        return x * keep if self.training else x
for stage in model.stages:
    for block in stage.blocks:
        block.drop_path = DropPath()
rates = [module.rate.fill_ for module in model.modules() if type(module).__name__ == "DropPath"]
""",
            line="--fn model",
        ),
    ),
)
STUDIES = {
    study.name: study
    for study in (
        mixtral, qwen_moe, llama, bert, t5, whisper, wav2vec2, faster_rcnn, detr, mamba, diffusion, training, convnext
    )
}  # fmt: skip
