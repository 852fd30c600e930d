"""Answers to common wrong options from tutorials, older releases and other libraries."""

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
_LIMIT = "Set torch._dynamo.config.recompile_limit instead; an exploration starts with empty caches."
_LOGS = "To see more, explore more stages: stages= (--stages); torch's own logs are set with torch._logging.set_logs."
_CUDA_GRAPHS = (
    "For CUDA graphs use mode='reduce-overhead' (--mode reduce-overhead) or options={'triton.cudagraphs': True}."
)


def _answers(words_of: dict[str, str]) -> dict[str, str]:
    """Map each wrong word to its answer."""
    return {word: answer for answer, words in words_of.items() for word in words.split()}


KEYWORDS = _answers({
    _PRECISION: "amp dtype fp16 precision use_amp",
    _BACKGROUND: "background async_compile",
    _LIMIT: "cache_size_limit recompile_limit",
    _CUDA_GRAPHS: "cuda_graphs cudagraphs use_cuda_graph",
    _LOGS: "debug verbose",
    _DEVICE: "device device_type",
    "There is nothing to explore with torch.compile disabled; run the cell without %%tcompile.": "disable",
    "That is torch.export's. Use dynamic=True (--dynamic), or torch._dynamo.mark_dynamic(x, 0).": "dynamic_shapes",
    _FORWARD_OR_TRAINING: "evaluation inference training",
    "The inputs are those of the call itself: explore(fn, x, w), or the cell's call f(x, w).": "example_inputs inputs",
    "It is spelled fullgraph=True (--fullgraph).": "full_graph nopython",
    "An exploration is always isolated: it starts with empty caches.": "isolate_recompiles",
    "That is TensorFlow's. Backend 'inductor', the default, is torch.compile's JIT compiler.": "jit_compile",
    _NOT_KERAS: "loss metrics optimizer",
    "The function or module comes first, without a name: explore(model, x).": "model",
    "An exploration is named after what it compiles; -o NAME keeps its result under a name.": "name",
    _LEVELS: "opt_level optimization_level optimize",
    "It was renamed before PyTorch 2.0: options={'shape_padding': True} (--options shape_padding=True).": "passes",
    "Use dynamic=True (--dynamic), or torch._dynamo.mark_dynamic(x, 0) on the inputs.": "shapes_spec",
})  # fmt: skip

MODES = _answers({
    _LEVELS: "aggressive fast max-performance o0 o1 o2 o3 speed",
    _FORWARD_OR_TRAINING: "eval evaluation inference train training",
})  # fmt: skip

BACKENDS = _answers({
    "For AOTAutograd alone, without code generation, use backend='aot_eager'.": "aot aot_autograd",
    "It was renamed: backend='cudagraphs'.": "aot_cudagraphs",
    "It was removed from PyTorch.": "aot_nvfuser aot_ts_nvfuser nvfuser nvprims_nvfuser ofi ts_nvfuser",
    _DEVICE: "cpu cuda gpu",
    "TorchDynamo captures for every backend. To see capture alone use backend='eager'.": "dynamo",
    "To see the captured FX graph alone use backend='eager'.": "fx",
    "It lives in a package of its own now: import torch_tensorrt, then backend='torch_tensorrt'.": "fx2trt",
    "There is no backend of that name. To see the captured graph alone use backend='eager'.": "graph",
    "It is registered by import intel_extension_for_pytorch.": "ipex",
    "It was removed from PyTorch; use torch.onnx.export, and onnxruntime.": "onnxrt",
    "It is registered by import torch_tensorrt, and named 'torch_tensorrt'.": "tensorrt",
    "It is registered by import torch_tensorrt.": "torch_tensorrt",
    "That is backend='inductor', the default.": "torchinductor",
    "backend='inductor', the default, writes Triton for GPUs.": "triton",
    "It is named 'openxla', and registered by import torch_xla.": "xla",
})  # fmt: skip

DYNAMIC = "dynamic=None finds out by itself which sizes change, True makes all sizes symbolic, False makes none."
