"""Answers to wrong options in circulation: from tutorials, older releases, other libraries."""

from __future__ import annotations

_FORWARD_OR_TRAINING = (
    "Training or inference is the model's own state: call model.train() or model.eval() before the call. The backward "
    "graph is explored when the cell runs backward(); grad=False (--no-grad) explores under torch.no_grad()."
)
_PRECISION = (
    "torch.compile has no such setting: use torch.autocast(device_type, dtype=torch.bfloat16) around the call, or move "
    "the model with model.to(torch.bfloat16)."
)
_DEVICE = (
    "Code is generated for the device the tensors are on: move the model and its inputs with .to(...). "
    "target= (--target) names the device to generate code for, or a GPU that is not here ('h100')."
)
_NOT_KERAS = "That is Keras's compile(). torch.compile takes only the function or module; the rest stays in your loop."
_LEVELS = (
    "torch.compile has modes, not levels: mode='default', mode='reduce-overhead' (CUDA graphs) or mode='max-autotune' "
    "(slow to compile). For Apex's O1 and O2 use torch.autocast."
)
_BACKGROUND = "torch.compile compiles when the function is first called; nothing is compiled in the background."
_LOGS = "To see more, explore more stages: stages= (--stages); torch's own logs are set with torch._logging.set_logs."
_CUDA_GRAPHS = (
    "For CUDA graphs use mode='reduce-overhead' (--mode reduce-overhead) or options={'triton.cudagraphs': True}."
)
_INDUCTOR = "That is backend='inductor', the default."
_GONE = "It was removed from PyTorch."

KEYWORDS: dict[str, str] = {
    "amp": _PRECISION,
    "background": _BACKGROUND,
    "async_compile": _BACKGROUND,
    "cache_size_limit": "Set torch._dynamo.config.recompile_limit instead; an exploration starts with empty caches.",
    "cuda_graphs": _CUDA_GRAPHS,
    "cudagraphs": _CUDA_GRAPHS,
    "debug": _LOGS,
    "device": _DEVICE,
    "device_type": _DEVICE,
    "disable": "There is nothing to explore with torch.compile disabled; run the cell without %%tcompile.",
    "dtype": _PRECISION,
    "dynamic_shapes": "That is torch.export's. Use dynamic=True (--dynamic), or torch._dynamo.mark_dynamic(x, 0).",
    "evaluation": _FORWARD_OR_TRAINING,
    "example_inputs": "The inputs are those of the call itself: explore(fn, x, w), or the cell's call f(x, w).",
    "fp16": _PRECISION,
    "full_graph": "It is spelled fullgraph=True (--fullgraph).",
    "inference": _FORWARD_OR_TRAINING,
    "inputs": "The inputs are those of the call itself: explore(fn, x, w), or the cell's call f(x, w).",
    "isolate_recompiles": "An exploration is always isolated: it starts with empty caches.",
    "jit_compile": "That is TensorFlow's. Backend 'inductor', the default, is torch.compile's JIT compiler.",
    "loss": _NOT_KERAS,
    "metrics": _NOT_KERAS,
    "model": "The function or module comes first, without a name: explore(model, x).",
    "name": "An exploration is named after what it compiles; -o NAME keeps its result under a name.",
    "nopython": "It is spelled fullgraph=True (--fullgraph).",
    "opt_level": _LEVELS,
    "optimization_level": _LEVELS,
    "optimize": _LEVELS,
    "optimizer": _NOT_KERAS,
    "passes": "It was renamed before PyTorch 2.0: options={'shape_padding': True} (--options shape_padding=True).",
    "precision": _PRECISION,
    "recompile_limit": "Set torch._dynamo.config.recompile_limit instead; an exploration starts with empty caches.",
    "shapes_spec": "Use dynamic=True (--dynamic), or torch._dynamo.mark_dynamic(x, 0) on the inputs.",
    "training": _FORWARD_OR_TRAINING,
    "use_amp": _PRECISION,
    "use_cuda_graph": _CUDA_GRAPHS,
    "verbose": _LOGS,
}

MODES: dict[str, str] = {
    "aggressive": _LEVELS,
    "eval": _FORWARD_OR_TRAINING,
    "evaluation": _FORWARD_OR_TRAINING,
    "fast": _LEVELS,
    "inference": _FORWARD_OR_TRAINING,
    "max-performance": _LEVELS,
    "o0": _LEVELS,
    "o1": _LEVELS,
    "o2": _LEVELS,
    "o3": _LEVELS,
    "speed": _LEVELS,
    "train": _FORWARD_OR_TRAINING,
    "training": _FORWARD_OR_TRAINING,
}

BACKENDS: dict[str, str] = {
    "aot": "For AOTAutograd alone, without code generation, use backend='aot_eager'.",
    "aot_autograd": "For AOTAutograd alone, without code generation, use backend='aot_eager'.",
    "aot_cudagraphs": "It was renamed: backend='cudagraphs'.",
    "aot_nvfuser": _GONE,
    "aot_ts_nvfuser": _GONE,
    "cpu": _DEVICE,
    "cuda": _DEVICE,
    "dynamo": "TorchDynamo captures for every backend. To see capture alone use backend='eager'.",
    "fx": "To see the captured FX graph alone use backend='eager'.",
    "fx2trt": "It lives in a package of its own now: import torch_tensorrt, then backend='torch_tensorrt'.",
    "gpu": _DEVICE,
    "graph": "There is no backend of that name. To see the captured graph alone use backend='eager'.",
    "ipex": "It is registered by import intel_extension_for_pytorch.",
    "nvfuser": _GONE,
    "nvprims_nvfuser": _GONE,
    "ofi": _GONE,
    "onnxrt": "It was removed from PyTorch; use torch.onnx.export, and onnxruntime.",
    "tensorrt": "It is registered by import torch_tensorrt, and named 'torch_tensorrt'.",
    "torch_tensorrt": "It is registered by import torch_tensorrt.",
    "torchinductor": _INDUCTOR,
    "triton": "backend='inductor', the default, writes Triton for GPUs.",
    "ts_nvfuser": _GONE,
    "xla": "It is named 'openxla', and registered by import torch_xla.",
}

DYNAMIC = "dynamic=None finds out by itself which sizes change, True makes all sizes symbolic, False makes none."
