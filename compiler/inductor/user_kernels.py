"""Decisions about users' Triton kernels: which tensors a launch writes, whether they are copied, what isn't fused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile

from torch.fx import GraphModule, Node

from compiler.record import Decision
from compiler.torch_api import fx
from compiler.torch_api.user_triton import GraphLaunch, Written, launches

NOT_FUSED = "what reads it ({}) is not fused with it: a user's kernel is generated as it is"
EPILOGUES = {
    None: NOT_FUSED,
    False: f"{NOT_FUSED}; torch._inductor.config.epilogue_fusion_user_defined_triton_kernel = True tries to",
    True: "what reads it ({}) may be fused with it: the stage fusion says whether it is",
}
"""What becomes of the readers of a launch's results, by `fuses_epilogues`."""


def user_kernel_decisions(
    module: GraphModule, written: Written, artifact: str, graph: str, fuses: bool | None
) -> Iterator[Decision]:
    """Yield a decision for each launch in a post-grad graph.

    `written` is that of AOTAutograd's graph. `fuses` is the setting of Inductor to fuse what follows; None without one.
    """
    for launch in launches(module):
        before = written.get(launch.number, {})
        named = {name: launch.arguments[name] for name in before if name in launch.arguments}
        copies = [name for name, value in named.items() if value.name != before[name] and _is_copy(value)]
        words = [_words_of(name, value, is_copy=name in copies) for name, value in named.items()]
        readers = [user.name for value in named.values() for user in _readers(value, launch)]
        if readers:
            words.append(EPILOGUES[fuses].format(", ".join(dict.fromkeys(readers))))
        why = f"{launch.name} writes {'; '.join(words)}" if words else f"{launch.name} writes no tensor"
        verdict = "copied first" if copies else "in place"
        yield Decision("user's Triton kernel", graph, (f"{artifact}.{launch.node.name}",), verdict, why)


def _words_of(name: str, value: Node, *, is_copy: bool) -> str:
    if is_copy:
        return f"{name}, on a copy ({value.name}): its old value is still read"
    what = "the graph's input " if value.op == "placeholder" else ""
    return f"{name}, in place in {what}{value.name}"


def _readers(value: Node, launch: GraphLaunch) -> Iterable[Node]:
    """The calls that read a value after a launch, up to the next launch that takes it."""
    after = sorted(user for user in value.users if launch.node < user and user.op == "call_function")
    return takewhile(lambda user: user.target is not launch.node.target, after)


def _is_copy(value: Node) -> bool:
    """Whether a value is a copy, or a view of one."""
    for _ in range(4):
        if fx.target_name(value).startswith("torch.ops.aten.clone"):
            return True
        if len(value.all_input_nodes) != 1:
            return False
        [value] = value.all_input_nodes
    return False
