"""Read FX graphs: their code with a line map, and the `meta` of their nodes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.nn import functional

from compiler.record.break_facts import is_dynamo
from compiler.record.printed_code import ASSIGNED, dotted_path, readable_lines
from compiler.torch_api.dtensor import dtensor_attrs, parallel_style

_FRAME = re.compile(r'File "(?P<file>.+?)", line (?P<line>\d+), in (?P<function>.+)\n(?:    (?P<code>.*))?')


@dataclass(frozen=True, slots=True)
class SourceFrame:
    """One frame of a stack trace."""

    file: str
    line: int
    function: str
    code: str


@dataclass(frozen=True, slots=True)
class Body:
    """The graph that a higher-order operator runs: a branch of `cond`, a checkpointed block.

    `holder` is the first node that refers to the body: a get_attr or a call_module.
    `path` is its qualified name in the whole graph (`body_fn_0.cond_true_0`), which ends with the holder's name.
    `callers` are the nodes that run the body.
    """

    path: str
    module: GraphModule
    holder: Node
    callers: tuple[Node, ...]


def bodies(module: GraphModule) -> list[Body]:
    """All bodies in a graph, nested ones included, each once, outer ones first."""
    return list(_bodies(module, "", set()))


def _bodies(module: GraphModule, path: str, seen: set[Graph]) -> Iterator[Body]:
    holders: dict[Graph, list[Node]] = {}
    for node in module.graph.nodes:
        if (body := body_at(module, node)) is not None:
            holders.setdefault(body.graph, []).append(node)
    for graph, nodes in holders.items():
        body = body_at(module, nodes[0])
        if body is not None and graph not in seen:
            seen.add(graph)
            users = (user for node in nodes for user in (node.users if node.op == "get_attr" else (node,)))
            callers = tuple(dict.fromkeys(user for user in users if user.op != "output"))
            inner = qualified_name(path, nodes[0].name)
            yield Body(inner, body, nodes[0], callers)
            yield from _bodies(body, inner, seen)


def qualified_name(path: str, name: str) -> str:
    """The name of a node within the whole graph: its body's path and its own name."""
    return f"{path}.{name}" if path else name


def body_at(module: GraphModule, node: Node) -> GraphModule | None:
    """The graph that a node of `module` refers to; None if it refers to no graph."""
    if node.op not in ("get_attr", "call_module"):
        return None
    value = attribute_at(module, str(node.target))
    return value if isinstance(value, GraphModule) else None


def attribute_at(owner: object, path: str) -> Any:
    """The attribute at a dotted path; None if there is none."""
    return reduce(lambda found, name: getattr(found, name, None), path.split("."), owner)


def graph_paths(module: GraphModule) -> dict[Graph, str]:
    """The path of each graph: "" for the whole graph, `Body.path` for a body."""
    return {module.graph: "", **{body.module.graph: body.path for body in bodies(module)}}


def qualified_names(module: GraphModule) -> dict[Node, str]:
    """The qualified name of each node in a graph and in its bodies."""
    return {
        node: qualified_name(path, node.name) for graph, path in graph_paths(module).items() for node in graph.nodes
    }


def homes(module: GraphModule) -> dict[int, str]:
    """The path of each graph by the `id()` of the graph object, as `meta["from_node"]` refers to graphs.

    Valid while the graphs are alive.
    """
    return {id(graph): path for graph, path in graph_paths(module).items()}


Row = tuple[str, str]
"""(line of code, qualified name of its node or "")"""


def graph_code(module: GraphModule) -> tuple[str, dict[int, str]]:
    """The graph as Python-like code, and line number -> name of the node on that line.

    Printed as by `GraphModule.print_readable` (torch.fx.graph.CodeGen), but easier to read: parameters have the
    names that the code uses, long signatures have one parameter per line, and `x = None` is left out. The bodies of a
    higher-order operator are printed beneath its call; the names of their nodes are qualified (`cond_true_0.mul`).
    """
    rows = list(_rows(module, {body.module.graph: body for body in bodies(module)}, "", "forward(self"))
    text = "\n".join(line for line, _ in rows).rstrip("\n") + "\n"
    return text, {number: name for number, (_, name) in enumerate(rows, 1) if name}


def _rows(module: GraphModule, known: Mapping[Graph, Body], path: str, opening: str) -> Iterator[Row]:
    code = module.graph.python_code("self", verbose=True, include_stride=True, include_device=True)
    renamed = {str(n.target): n.name for n in module.graph.nodes if n.op == "placeholder" and n.target != n.name}
    nodes = {node.name: node for node in module.graph.nodes}
    beneath: dict[Node, list[Body]] = {}
    for body in known.values():
        beneath.setdefault(next(iter(body.callers), body.holder), []).append(body)
    for line in readable_lines(code.src.strip("\n").split("\n"), renamed, opening):
        node = next((nodes[name] for name in reversed(ASSIGNED.findall(line)) if name in nodes), None)
        if node is None:
            yield line, qualified_name(path, "output") if line.lstrip().startswith("return ") else ""
            continue
        graph = body_at(module, node) if node.op == "get_attr" else None
        held = known[graph.graph] if graph is not None else None
        if held is not None and held.holder is not node:
            line += f"  # printed above, in {next(iter(held.callers), held.holder)}"  # noqa: PLW2901
        if held is None or held.holder is not node:
            yield line, qualified_name(path, node.name)
        indent = line[: len(line) - len(line.lstrip())] + "    "
        for body in beneath.get(node, ()):
            inner = _rows(body.module, known, body.path, f"{body.holder.name}(")
            yield f"{indent}{next(inner)[0]}", body.path
            yield from ((f"{indent}{row}" if row else row, name) for row, name in inner)


def source_frames(node: Node) -> tuple[SourceFrame, ...]:
    """The user's stack at a node's operation, outermost first; may be empty.

    It ends where the user's code calls torch.distributed: what DTensor does for a line is shown at that line.
    """
    frames = _python_frames(node)
    return tuple(frame for frame in frames if not _is_distributed(frame.file)) or frames


def _python_frames(node: Node) -> tuple[SourceFrame, ...]:
    return tuple(frame for frame in parse_stack(node.meta.get("stack_trace") or "") if not is_dynamo(frame.file))


def _is_distributed(file: str) -> bool:
    return "/torch/distributed/" in file.replace("\\", "/")


def parallel_style_of(node: Node) -> str:
    """The ParallelStyle that made a node of a captured graph, as `RowwiseParallel`; "" for none."""
    return parallel_style([(frame.file, frame.line) for frame in _python_frames(node)])


@lru_cache(maxsize=1024)
def parse_stack(text: str) -> tuple[SourceFrame, ...]:
    return tuple(
        SourceFrame(match["file"], int(match["line"]), match["function"], (match["code"] or "").strip())
        for match in _FRAME.finditer(text)
    )


def module_path(node: Node) -> tuple[str, str]:
    """Path (`transformer.h.0.attn`) and class name of a node's innermost `nn.Module`; ("", "") without one."""
    stack = _module_stack(node)
    if not stack:
        return "", ""
    path, kind = stack[-1]
    name = kind.rsplit(".", 1)[-1] if isinstance(kind, str) else kind.__name__
    return dotted_path(path), name


def called_block(node: Node) -> str:
    """Path of the outermost module that was called and is in a list: `h.0`, or `h.0.1` in a list of lists; or ""."""
    paths = (dotted_path(path) for path, _ in _module_stack(node))
    return next((path for path in paths if path.rpartition(".")[2].isdigit()), "")


def _module_stack(node: Node) -> list[tuple[str, Any]]:
    """Path and class of the modules whose calls contain a node, outermost first."""
    return list((node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}).values())


def has_fakes(values: Iterable[Any]) -> bool:
    """Whether any of the values is a fake tensor."""
    return any(isinstance(value, FakeTensor) for value in values)


def are_in_memory(values: Iterable[Any]) -> bool:
    """Whether all tensors have memory: none is fake or made by `torch._efficientzerotensor`."""
    return not any(isinstance(v, torch.Tensor) and (isinstance(v, FakeTensor) or v._is_zerotensor()) for v in values)


def value_of(node: Node) -> Any:
    """The node's example value: a fake tensor, a number, a tuple of these, or None."""
    return node.meta["val"] if "val" in node.meta else node.meta.get("example_value")


def devices(module: GraphModule) -> Iterator[torch.device]:
    """The devices of a graph's tensors, each once, in the order of the nodes."""
    values = (value_of(node) for node in module.graph.nodes)
    yield from dict.fromkeys(value.device for value in values if isinstance(value, torch.Tensor))


def count_elements(module: GraphModule) -> int:
    """The number of elements in all tensors that a graph computes; symbolic sizes take their traced values."""
    values = (value_of(node) for node in module.graph.nodes if node.op != "placeholder")
    return sum(math.prod(map(_traced_size, value.shape)) for value in values if isinstance(value, torch.Tensor))


def is_on_meta(module: GraphModule) -> bool:
    """Whether a graph's tensor inputs are meta tensors; without tensor inputs, whether all tensors are.

    0-d tensors may be on the CPU, as in graphs on a GPU.
    """
    tensors = [node for node in module.graph.nodes if isinstance(value_of(node), torch.Tensor)]
    values = map(value_of, [node for node in tensors if node.op == "placeholder"] or tensors)
    return {value.device.type for value in values if value.device.type != "cpu" or value.dim()} == {"meta"}


@contextmanager
def fake_mode(values: Sequence[Any]) -> Iterator[Any]:
    """Enter the FakeTensorMode of these values; a graph's real tensors may be among its inputs. Raises ValueError."""
    mode = detect_fake_mode(values)
    if mode is None:
        raise ValueError("this graph has no tensors as inputs")
    before, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        with mode:
            yield mode
    finally:
        mode.allow_non_fake_inputs = before


def memory_of(tensor: torch.Tensor) -> int:
    """Id of a tensor's storage, real or fake; equal for its views. Valid while the tensor or a view of it is alive."""
    return tensor.untyped_storage()._cdata


def storage_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's storage; symbolic sizes take their traced values."""
    return _traced_size(tensor.untyped_storage().nbytes())


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements; symbolic sizes take their traced values."""
    return tensor.dtype.itemsize * math.prod(map(_traced_size, tensor.shape))


def _traced_size(size: Any) -> int:
    """A size as a number: its hint (traced value) if it is symbolic, 0 without a hint."""
    hint = size if isinstance(size, int) else size.node.hint
    return hint if isinstance(hint, int) else 0


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def tensor_attrs(value: Any) -> dict[str, Any]:
    """dtype, shape, stride, device and bytes of a tensor, as JSON values, and a DTensor's placements; {} for others."""
    if not isinstance(value, torch.Tensor):
        return {}
    shape = [_size(size) for size in value.shape]
    attrs: dict[str, Any] = {
        "dtype": dtype_name(value.dtype),
        "shape": shape,
        "stride": [_size(size) for size in value.stride()] if value.layout == torch.strided else [],
        "device": str(value.device),
    }
    if all(isinstance(size, int) for size in shape):
        attrs["bytes"] = value.dtype.itemsize * math.prod(value.shape)
    return attrs | dtensor_attrs(value)


def _size(value: Any) -> int | str:
    return value if isinstance(value, int) else str(value)


def target_name(node: Node) -> str:
    """The searchable name of a node's operation: `aten.mm.default`, `torch.relu`, `operator.add`."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"torch.ops.higher_order.{target.name()}"
    if isinstance(target, str):
        return target
    module = getattr(target, "__module__", "") or ""
    name = getattr(target, "__name__", str(target))
    if module.startswith("torch._dynamo.variables") and name.startswith("prim"):
        return name.removeprefix("prim")[1:]  # how torch 2.11 calls DTensor's functions: "prim_redistribute"
    if module in ("_operator", "operator"):
        return f"operator.{name}"
    return f"{module}.{name}" if module and not module.startswith("torch._C") else f"torch.{name}"


def functionalized_operator(node: Node) -> str:
    """The mutating operator that AOTAutograd wrapped in a functional node, which copies what it writes; else ""."""
    name = target_name(node)
    if name.endswith("higher_order.triton_kernel_wrapper_functional"):
        return name.replace("_functional", "_mutation")
    return str(node.args[0]) if name.startswith("torch.ops.higher_order.auto_functionalized") else ""


def is_backward(node: Node) -> bool:
    """Whether a node of a joint graph belongs to the backward; torch 2.11 says so in the partitioner's tag alone."""
    return bool(node.meta.get("autograd_backward")) or node.meta.get("partitioner_tag") == "is_backward"


def is_checkpoint(node: Node) -> bool:
    """Whether a captured node calls torch.utils.checkpoint."""
    return target_name(node).endswith("higher_order.tag_activation_checkpoint")


def is_selective(body: GraphModule) -> bool:
    """Whether a checkpointed body has a context_fn (selective checkpointing)."""
    return "_checkpoint_context_fn" in body.meta


def checkpoint_policy(node: Node) -> str:
    """A node's checkpoint policy: "PREFER_RECOMPUTE", "MUST_SAVE" and so on; "" outside of checkpoints."""
    policy = node.meta.get("recompute") if node.meta.get("ac_graph_id") is not None else None
    return str(getattr(policy, "name", ""))


def sources(node: Node) -> tuple[tuple[str, int], ...]:
    """Names of the nodes in `meta["from_node"]`, nearest first, each with the id of its graph object."""
    found: dict[tuple[str, int], None] = {}
    todo = list(node.meta.get("from_node") or ())
    while todo:
        source = todo.pop(0)
        found[source.name, source.graph_id] = None
        todo.extend(source.from_node or ())
    return tuple(found)


def source_names(node: Node) -> tuple[str, ...]:
    """A node's names before decomposition.

    The names of its nodes in earlier graphs, of the function called ("softmax") and of the ATen operation ("_softmax").
    """
    functions = [getattr(function, "__name__", function) for _, function in node.meta.get("source_fn_stack") or ()]
    operation = node.meta.get("original_aten")
    aten = str(operation).split(".")[1:2] if operation is not None else []
    return tuple(dict.fromkeys((*(name for name, _ in sources(node)), *map(str, functions), *aten)))


@cache
def _functionals() -> dict[str, str]:
    """Functions of torch.nn.functional by lower-case name without underscores: `layernorm` -> `layer_norm`."""
    named = (name for name in dir(functional) if name.islower() and name == name.strip("_"))
    return {**{name.replace("_", ""): name for name in named}, "scaleddotproductattention": "attention"}


_COPIES = {"clone": "copy", "device_put": "copy", "to_copy": "cast", "convert_element_type": "cast"}
_MODULE = re.compile(r"loss$|\dd$")


def operator_of(node: Node) -> str:
    """The user-facing name of the operation that a node was decomposed from.

    Examples: `layer_norm`, `cross_entropy`, `gelu_backward`. ATen's name if torch.nn.functional has no such function;
    `cast` and `copy` for operations that only move data.
    """
    name = str(node.meta.get("original_aten") or node.target)
    name = "".join(name.split(".")[1:2]) or getattr(node.target, "__name__", "")
    name, backward, _ = name.strip("_").removeprefix("native_").partition("_backward")
    if name in _COPIES:
        return _COPIES[name]
    for key, suffix in (("source_fn_stack", backward), ("fwd_source_fn_stack", "_backward")):
        if stack := node.meta.get(key):
            function = str(getattr(stack[-1][1], "__name__", stack[-1][1])).lower().replace("_", "")
            if known := _functionals().get(function) or _functionals().get(_MODULE.sub("", function)):
                return f"{known}{suffix}"
    return f"{name}{backward}"


def input_source(node: Node) -> str:
    """TorchDynamo's source of a captured graph's placeholder (`L['x']`), or ""."""
    argument = node.meta.get("grapharg")
    return source_name(getattr(argument, "source", None) or getattr(node, "_dynamo_source", None))


def source_name(source: Any) -> str:
    """The name of a TorchDynamo source (`L['x']`), an attribute or a method depending on the torch version."""
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)


def input_description(node: Node) -> str:
    """AOTAutograd's description of a placeholder; "" if there is none."""
    described = node.meta.get("desc")  # a list for an output node
    return described.expr() if described is not None and hasattr(described, "expr") else ""


def calls(module: GraphModule) -> Iterator[Node]:
    """The nodes of a graph that call a function, in order."""
    return (node for node in module.graph.nodes if node.op == "call_function")


_TORCH_NAMESPACES = {
    "aten", "prims", "prim", "higher_order", "rngprims", "debugprims", "inductor", "inductor_prims", "flex_lib",
    "streams", "export", "profiler", "c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd",
    "_dtensor", "fsdp", "symm_mem", "mkl", "mkldnn", "mkldnn_prepacked", "onednn", "sparse", "quantized",
    "_quantized", "quantized_decomposed", "quantization", "onnx", "onnx_symbolic",
}  # fmt: skip


def is_own_operator(node: Node) -> bool:
    """Whether a node calls an operator of a namespace that torch itself does not have."""
    return node.op == "call_function" and getattr(node.target, "namespace", "aten") not in _TORCH_NAMESPACES


def higher_order_operators(module: GraphModule) -> tuple[str, ...]:
    """The names of the higher-order operators that a graph and its bodies call, each once."""
    module = getattr(module, "gm", module)  # of a graph that takes lists: a module around it flattens them
    graphs = [module, *(body.module for body in bodies(module))]
    targets = (node.target for graph in graphs for node in calls(graph))
    found = (target for target in targets if isinstance(target, torch._ops.HigherOrderOperator))
    return tuple(dict.fromkeys(target.name() for target in found))


def output_names(module: GraphModule) -> tuple[str, ...]:
    """The names of the nodes that a graph returns, by position; "" for other values."""
    [output] = module.graph.find_nodes(op="output")
    values = output.args[0] if isinstance(output.args[0], list | tuple) else [output.args[0]]
    return tuple(value.name if isinstance(value, Node) else "" for value in values)


def returned_nodes(module: GraphModule) -> list[Node]:
    """The nodes that a graph returns, flattened from any structure."""
    return [source for output in module.graph.find_nodes(op="output") for source in output.all_input_nodes]


def detached_copy(module: GraphModule) -> GraphModule:
    """Copy a module with a new graph but shared parameters, so that compile_fx does not change the original."""
    graph = torch.fx.Graph()
    output = graph.graph_copy(module.graph, {}, return_output_node=True)
    if output is not None:
        value, original = output if isinstance(output, tuple) else (output, None)
        graph.output(value).meta = dict(original.meta) if isinstance(original, Node) else {}
    return GraphModule(module, graph)
