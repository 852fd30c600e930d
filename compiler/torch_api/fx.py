"""FX graphs read: their code with a line map, and what each node's `meta` says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.nn import functional

_FRAME = re.compile(r'File "(?P<file>.+?)", line (?P<line>\d+), in (?P<function>.+)\n(?:    (?P<code>.*))?')
_INDEX = re.compile(r"\[['\"]?([^'\"\]]+)['\"]?\]")
SIGNATURE_WIDTH = 120
_ASSIGNED = re.compile(r'(?:^\s+|;  )(\w+)(?:(?:: "[^"]*")? = |: "[^"]*",$)')
_PARAMETER = re.compile(r"\w+")
_PARTS = re.compile(r'(?:[^,"]|"[^"]*")+')
"""What commas divide: not those in a parameter's type, "f32[4, 16][16, 1]cpu"."""
_UNKNOWN_PLACE = "# No stacktrace found for following nodes"
_RELEASES = re.compile(r";  (?:\w+ = )+None\b")


@dataclass(frozen=True, slots=True)
class SourceFrame:
    """One line of a stack trace."""

    file: str
    line: int
    function: str
    code: str


def graph_code(module: GraphModule) -> tuple[str, dict[int, str]]:
    """The graph as Python-like code, and for each line that a node stands on, that node's name.

    Same printer as `GraphModule.print_readable` (torch.fx.graph.CodeGen), made easier to read: parameters under the
    names that the body uses, one on a line where they are many, and no `x = None` releases.
    """
    code = module.graph.python_code("self", verbose=True, include_stride=True, include_device=True)
    renamed = {str(n.target): n.name for n in module.graph.nodes if n.op == "placeholder" and n.target != n.name}
    lines = list(_readable(code.src.strip("\n").split("\n"), renamed))
    nodes = {node.name for node in module.graph.nodes}
    names = {}
    for number, line in enumerate(lines, 1):
        found = [name for name in _ASSIGNED.findall(line) if name in nodes]
        if line.lstrip().startswith("return "):
            found = ["output"]
        if found:
            names[number] = found[-1]
    return "\n".join(lines).rstrip("\n") + "\n", names


def _readable(lines: list[str], renamed: Mapping[str, str]) -> Iterator[str]:
    aliases = {f"{name} = {target}" for target, name in renamed.items()}
    in_body = False
    for line in lines:
        bare = _RELEASES.sub("", line).rstrip()
        if line.startswith("def "):
            yield from _signature(bare, renamed)
        elif bare.strip() not in aliases and _UNKNOWN_PLACE not in bare and (bare or in_body):
            in_body = True
            yield bare


def _signature(line: str, renamed: Mapping[str, str]) -> list[str]:
    opening, *parameters = (part.lstrip() for part in _PARTS.findall(line))
    named = [
        _PARAMETER.sub(lambda match: renamed.get(match[0], match[0]), parameter, count=1) for parameter in parameters
    ]
    if len(line) <= SIGNATURE_WIDTH or not named:
        return [", ".join([opening, *named])]
    last = named.pop().removesuffix("):")
    return [f"{opening},", *(f"    {parameter}," for parameter in named), f"    {last},", "):"]


def source_frames(node: Node) -> tuple[SourceFrame, ...]:
    """The user's stack at the operation that made this node, outermost first; empty where torch kept none."""
    return tuple(frame for frame in parse_stack(node.meta.get("stack_trace") or "") if not is_dynamo(frame.file))


@lru_cache(maxsize=1024)
def parse_stack(text: str) -> tuple[SourceFrame, ...]:
    return tuple(
        SourceFrame(match["file"], int(match["line"]), match["function"], (match["code"] or "").strip())
        for match in _FRAME.finditer(text)
    )


def is_dynamo(file: str) -> bool:
    """Whether a file is TorchDynamo's own wrapper rather than code that somebody wrote for this model."""
    return "/torch/_dynamo/" in file.replace("\\", "/")


def module_path(node: Node) -> tuple[str, str]:
    """Path (`transformer.h.0.attn`) and class name of the innermost `nn.Module` around a node, or ("", "")."""
    stack: Mapping[str, Any] = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    if not stack:
        return "", ""
    path, kind = list(stack.values())[-1]
    name = kind.rsplit(".", 1)[-1] if isinstance(kind, str) else kind.__name__
    return dotted(path), name


def dotted(path: str) -> str:
    """`L['self'].transformer.h[0]` as `transformer.h.0`."""
    path = re.sub(r"^(L\['\w+'\]|G\['\w+'\]|L__\w+?___)\.?", "", path)
    path = _INDEX.sub(r".\1", path).replace("._modules.", ".").replace("_modules.", "")
    return path.strip(".")


def has_fakes(values: Iterable[Any]) -> bool:
    """Whether there are tensors without memory among them, as under a FakeTensorMode."""
    return any(isinstance(value, FakeTensor) for value in values)


def are_in_memory(values: Iterable[Any]) -> bool:
    """Whether all tensors among them are: fakes are not, nor what `torch._efficientzerotensor` gives."""
    return not any(isinstance(v, torch.Tensor) and (isinstance(v, FakeTensor) or v._is_zerotensor()) for v in values)


def value_of(node: Node) -> Any:
    """The node's example value: a fake tensor, a number, a tuple of those, or None."""
    return node.meta["val"] if "val" in node.meta else node.meta.get("example_value")


def devices(module: GraphModule) -> Iterator[torch.device]:
    """The devices of a graph's tensors, each once, in the order of the nodes."""
    values = (value_of(node) for node in module.graph.nodes)
    yield from dict.fromkeys(value.device for value in values if isinstance(value, torch.Tensor))


def fake_mode(values: Sequence[Any]) -> AbstractContextManager[Any]:
    """The mode of the fake tensors among these values. Raises ValueError where there are none."""
    mode = detect_fake_mode(values)
    if mode is None:
        raise ValueError("this graph has no tensors as inputs")
    return mode


def memory_of(tensor: torch.Tensor) -> int:
    """Names the memory of a tensor, with or without data: views of one tensor have one. Valid while one is alive."""
    return tensor.untyped_storage()._cdata


def storage_bytes(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's memory; where its size is symbolic, with the values that it was traced with."""
    size: Any = tensor.untyped_storage().nbytes()
    return size if isinstance(size, int) else int(size.node.hint or 0)


def tensor_attrs(value: Any) -> dict[str, Any]:
    """dtype, shape, stride, device and bytes of a tensor, as JSON values; {} for anything else."""
    if not isinstance(value, torch.Tensor):
        return {}
    shape = [_size(size) for size in value.shape]
    attrs: dict[str, Any] = {
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": shape,
        "stride": [_size(size) for size in value.stride()] if value.layout == torch.strided else [],
        "device": str(value.device),
    }
    if all(isinstance(size, int) for size in shape):
        attrs["bytes"] = value.dtype.itemsize * _product(shape)
    return attrs


def _product(sizes: list[Any]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _size(value: Any) -> int | str:
    return value if isinstance(value, int) else str(value)


def target_name(node: Node) -> str:
    """`aten.mm.default`, `torch.relu`, `x.sum`: the operation in the words a user would search for."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"torch.ops.higher_order.{target.name()}"
    if isinstance(target, str):
        return target
    module = getattr(target, "__module__", "") or ""
    name = getattr(target, "__name__", str(target))
    if module in ("_operator", "operator"):
        return f"operator.{name}"
    return f"{module}.{name}" if module and not module.startswith("torch._C") else f"torch.{name}"


def parents(node: Node) -> tuple[str, ...]:
    """Names of the nodes, in earlier graphs, that `meta["from_node"]` says this one came from, nearest first."""
    found: dict[str, None] = {}
    todo = list(node.meta.get("from_node") or ())
    while todo:
        source = todo.pop(0)
        found[source.name] = None
        todo.extend(source.from_node or ())
    return tuple(found)


def made_from(node: Node) -> tuple[str, ...]:
    """What a node was before it was decomposed: the nodes of earlier graphs, the function called there ("softmax"), and
    the ATen operation ("_softmax").
    """
    functions = [getattr(function, "__name__", function) for _, function in node.meta.get("source_fn_stack") or ()]
    operation = node.meta.get("original_aten")
    aten = str(operation).split(".")[1:2] if operation is not None else []
    return tuple(dict.fromkeys((*parents(node), *map(str, functions), *aten)))


@cache
def _functionals() -> dict[str, str]:
    """The functions of torch.nn.functional by their names as modules write these: `layernorm`."""
    named = (name for name in dir(functional) if name.islower() and name == name.strip("_"))
    return {**{name.replace("_", ""): name for name in named}, "scaleddotproductattention": "attention"}


_COPIES = {"clone": "copy", "device_put": "copy", "to_copy": "cast", "convert_element_type": "cast"}
_MODULE = re.compile(r"loss$|\dd$")


def operator_of(node: Node) -> str:
    """What a node is part of, as users call it, before decompositions: `layer_norm`, `cross_entropy`, `gelu_backward`;
    where torch.nn.functional has no name for it, ATen's. `cast` and `copy` for what only moves values.
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
    """What a captured graph's placeholder stands for (`L['x']`), or ""."""
    argument = node.meta.get("grapharg")
    source = getattr(argument, "source", None) or getattr(node, "_dynamo_source", None)
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)


def input_description(node: Node) -> str:
    """What AOTAutograd says an input or output of its graph is (`desc` in torch 2.9 and newer), or ""."""
    described = node.meta.get("desc")
    return described.expr() if described is not None and hasattr(described, "expr") else ""


def calls(module: GraphModule) -> Iterator[Node]:
    """The nodes of a graph that call a function, in order."""
    return (node for node in module.graph.nodes if node.op == "call_function")


def output_names(module: GraphModule) -> tuple[str, ...]:
    """The names of the nodes that a graph returns, by position; "" for what is no node."""
    [output] = module.graph.find_nodes(op="output")
    values = output.args[0] if isinstance(output.args[0], list | tuple) else [output.args[0]]
    return tuple(value.name if isinstance(value, Node) else "" for value in values)


def detached(module: GraphModule) -> GraphModule:
    """A copy with its own graph that shares parameters: what compile_fx may change, this one keeps."""
    graph = torch.fx.Graph()
    output = graph.graph_copy(module.graph, {}, return_output_node=True)
    if output is not None:
        value, original = output if isinstance(output, tuple) else (output, None)
        graph.output(value).meta = dict(original.meta) if isinstance(original, Node) else {}
    return GraphModule(module, graph)
