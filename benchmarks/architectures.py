"""Architectures of transformers, timm, torchvision and diffusers with random weights, in small configurations.

A name is `library:model` (`transformers:BertForMaskedLM`). `benchmarks.backend_correctness` runs them like its own
models: `python -m benchmarks.backend_correctness --architectures transformers --steps 1`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

_LIBRARIES: list[torch.library.Library] = []
LIBRARIES = ("transformers", "timm", "torchvision")
MOST_PARAMETERS = 30_000_000
"""Architectures that are larger in their smallest configuration are left out."""

SMALL: Mapping[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "emb_dim", "encoder_hidden_size"), 64),
    **dict.fromkeys(("embedding_size", "n_positions", "max_position_embeddings", "max_seq_len", "block_size"), 128),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner"), 128),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "moe_intermediate_size", "rotary_dim"), 16),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
    "vocab_size": 99, "image_size": 32, "patch_size": 8, "num_mel_bins": 32, "max_length": 64,
}  # fmt: skip
"""Sizes by the names that configurations of transformers give them."""

_UNET = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
_DIT = {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 16}
_IMAGE, _LATENT, _TOKENS, _POOLED = (2, 3, 16, 16), (2, 4, 16, 16), (2, 8, 32), (2, 32)

DIFFUSERS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, tuple[int, ...]]]] = {
    "UNet2DModel": (
        _UNET | {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
                 "up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
        {"sample": _IMAGE, "timestep": (2,)},
    ),
    "UNet2DConditionModel": (
        _UNET | {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "cross_attention_dim": 32,
                 "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")},
        {"sample": _LATENT, "timestep": (2,), "encoder_hidden_states": _TOKENS},
    ),
    "UNet1DModel": ({"sample_size": 64, "extra_in_channels": 64}, {"sample": (2, 2, 64), "timestep": (2,)}),
    "AutoencoderKL": ({"block_out_channels": (32,), "norm_num_groups": 8}, {"sample": _IMAGE}),
    "VQModel": ({"block_out_channels": (32,), "norm_num_groups": 8}, {"sample": _IMAGE}),
    "DiTTransformer2DModel": (
        _DIT | {"sample_size": 16, "num_embeds_ada_norm": 10},
        {"hidden_states": _LATENT, "timestep": (2,), "class_labels": (2,)},
    ),
    "SD3Transformer2DModel": (
        _DIT | {"sample_size": 16, "in_channels": 4, "out_channels": 4, "joint_attention_dim": 32,
                "caption_projection_dim": 32, "pooled_projection_dim": 32, "pos_embed_max_size": 16},
        {"hidden_states": _LATENT, "encoder_hidden_states": _TOKENS, "pooled_projections": _POOLED, "timestep": (2,)},
    ),
    "FluxTransformer2DModel": (
        _DIT | {"num_single_layers": 2, "in_channels": 16, "joint_attention_dim": 32, "pooled_projection_dim": 32,
                "axes_dims_rope": (4, 6, 6)},
        {"hidden_states": (2, 16, 16), "encoder_hidden_states": _TOKENS, "pooled_projections": _POOLED,
         "timestep": (2,), "img_ids": (16, 3), "txt_ids": (8, 3)},
    ),
}  # fmt: skip
"""Configurations of diffusers' models, and the shapes of their arguments."""


def define_torchvision_operators() -> None:
    """Let a torchvision that is built for CUDA be imported without CUDA; its classifiers need none of its operators."""
    try:
        import torchvision
    except RuntimeError:  # its operators could not be loaded, and the import describes two of them to torch
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)
        import torchvision
    assert torchvision.__version__


def names_of(library: str) -> tuple[str, ...]:
    """Names of the library's models that this file can build, in a fixed order. Raises ValueError, ImportError."""
    define_torchvision_operators()
    if library == "transformers":
        from transformers.models.auto import modeling_auto as auto

        tasks = (
            auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
            auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
            auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
            auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
        )
        found = (model for task in tasks for model in task.values() if isinstance(model, str))
    elif library == "timm":
        import timm

        families = (timm.list_models(module=family) for family in timm.list_modules())
        found = (min(models, key=_size_by_name) for models in families if models)
    elif library == "torchvision":
        import torchvision

        found = iter(torchvision.models.list_models(torchvision.models))
    else:
        raise ValueError(f"library {library!r}: one of {', '.join(LIBRARIES)}")
    return tuple(f"{library}:{name}" for name in dict.fromkeys(found))


def _size_by_name(model: str) -> int:
    """A rank by the words for sizes in a model's name: no configuration has to be built to pick a family's smallest."""
    words = ("atto", "femto", "pico", "nano", "tiny", "micro", "mini", "xxs", "xs", "s0", "b0", "small", "18", "lite")
    return next((rank for rank, word in enumerate(words) if word in model), len(words))


def built(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A model with random weights, and arguments of its forward. Raises ValueError for a large one."""
    try:
        with torch.device("meta"):  # some take more memory than a machine has
            model = _built(name)[0]
    except NotImplementedError:  # RegNet reads numbers from tensors
        model = _built(name)[0]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters > MOST_PARAMETERS:
        raise ValueError(f"{parameters / 1e6:.0f} million parameters")
    return _built(name)


def _built(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    library, _, model = name.partition(":")
    define_torchvision_operators()
    if library == "transformers":
        return _of_transformers(model)
    if library == "timm":
        import timm

        made = timm.create_model(model, num_classes=10)
        return made, {"x": torch.randn(2, *made.pretrained_cfg["input_size"])}
    if library == "diffusers":
        import diffusers

        config, inputs = DIFFUSERS[model]
        made = getattr(diffusers, model)(**config)
        return made, {kind: _argument(kind, shape) for kind, shape in inputs.items()}
    image = {"x": torch.randn(2, 3, 224, 224)}
    import torchvision

    return torchvision.models.get_model(model, weights=None, num_classes=10), image


def _argument(kind: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randint(0, 9, shape) if kind in ("timestep", "class_labels") else torch.randn(shape)


def _is_by_stage(setting: Any) -> bool:
    return isinstance(setting, list | tuple)


def _of_transformers(model: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    import transformers

    kind = getattr(transformers, model)
    known = inspect.signature(kind.config_class.__init__).parameters
    usual = kind.config_class()
    sizes = {name: size for name, size in SMALL.items() if name in known}
    config = kind.config_class(**{name: sizes[name] for name in sizes if not _is_by_stage(getattr(usual, name, None))})
    config.use_cache = False
    config._experts_implementation = "batched_mm"
    for name, value in vars(config).items():  # our random numbers differ from eager mode's
        if ("dropout" in name or "drop_prob" in name or name.endswith("pdrop")) and isinstance(value, float):
            setattr(config, name, 0.0)
    made = kind(config)
    inputs = inspect.signature(made.forward).parameters
    if "pixel_values" in inputs and "input_ids" not in inputs:
        size = getattr(config, "image_size", 64)
        side = size if isinstance(size, int) else size[0]
        return made, {"pixel_values": torch.randn(2, getattr(config, "num_channels", 3), side, side)}
    ids = torch.randint(3, min(90, config.get_text_config().vocab_size), (2, 16))
    return made, {"input_ids": ids} | ({"decoder_input_ids": ids} if "decoder_input_ids" in inputs else {})
