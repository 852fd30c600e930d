"""What the stages of a record are called, in text as on the ribbon, and which belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageWords:
    """How a stage is told to a person. Its ribbon chip counts entities of `kinds`; without any, `unit` says what."""

    title: str
    about: str
    group: str
    kinds: frozenset[str] = frozenset()
    unit: str = "lines"


_CALLS = frozenset({"call"})
_LOOPS = frozenset({"pointwise", "reduction", "extern", "template", "fused", "other"})
_STEPS = frozenset({"kernel", "extern"})
_PYTHON, _FINDINGS, _GRAPHS = "Python", "TorchDynamo", "Graphs"
_INDUCTOR, _OWN = "Inductor", "tcompile"
_CODE, _MACHINE, _MEASURED = "Generated code", "Machine code", "Measured"

STAGE_WORDS: dict[str, StageWords] = {
    "source": StageWords("Source", "The Python code that was run.", _PYTHON, frozenset({"line"})),
    "bytecode": StageWords(
        "Bytecode", "What TorchDynamo read, and what it put in its place.", _PYTHON, frozenset({"instruction"}), "instr"
    ),
    "frame_map": StageWords(
        "Frame map",
        "What was compiled: functions, graphs, breaks, and how they follow each other.",
        _FINDINGS,
        frozenset({"graph"}),
        "graphs",
    ),
    "breaks": StageWords(
        "Breaks", "Where TorchDynamo ended a graph, why, and what to change.", _FINDINGS, frozenset({"break"}), "breaks"
    ),
    "guards": StageWords(
        "Guards", "What is checked before compiled code is used again.", _FINDINGS, frozenset({"guard"}), "guards"
    ),
    "recompiles": StageWords(
        "Recompiles",
        "Every compilation of every function, and what made it necessary.",
        _FINDINGS,
        frozenset({"recompile"}),
        "recompiles",
    ),
    "steps": StageWords("Steps", "How TorchDynamo read the code, instruction by instruction.", _FINDINGS, unit="steps"),
    "captured": StageWords(
        "Captured", "The graphs that TorchDynamo captured from the bytecode.", _GRAPHS, _CALLS, "ops"
    ),
    "exported": StageWords("Exported", "What torch.export makes of the same call.", _GRAPHS, _CALLS, "ops"),
    "pre_grad": StageWords("Pre-grad", "The captured graphs after Inductor's first passes.", _GRAPHS, _CALLS, "ops"),
    "autograd": StageWords(
        "Autograd",
        "The graph that autograd built in eager mode: what backward runs, and what is kept for it.",
        _GRAPHS,
        frozenset({"call", "custom", "compiled", "accumulate"}),
        "nodes",
    ),
    "chain_rule": StageWords(
        "Chain rule",
        "Forward with the values, then backward node by node: the gradients of this run.",
        _GRAPHS,
        frozenset({"forward", "backward", "leaf"}),
        "steps",
    ),
    "joint": StageWords("Joint", "Forward and backward in one graph of ATen operations.", _GRAPHS, _CALLS, "ops"),
    "forward": StageWords("Forward", "What the forward pass runs, as ATen operations.", _GRAPHS, _CALLS, "ops"),
    "backward": StageWords("Backward", "What the backward pass runs, as ATen operations.", _GRAPHS, _CALLS, "ops"),
    "inference": StageWords("Inference", "Graphs without gradients, as ATen operations.", _GRAPHS, _CALLS, "ops"),
    "decomposed": StageWords(
        "Decomposed",
        "The same graphs at four levels: ATen, core ATen, what Inductor lowers, prims.",
        _GRAPHS,
        frozenset({"output"}),
        "graphs",
    ),
    "post_grad": StageWords(
        "Post-grad", "The graphs after Inductor's passes, as they are lowered.", _GRAPHS, _CALLS, "ops"
    ),
    "ir": StageWords("Inductor IR", "Loops over buffers, before fusion.", _INDUCTOR, _LOOPS, "nodes"),
    "fused_ir": StageWords("Fused IR", "The loops after fusion: each becomes one kernel.", _INDUCTOR, _LOOPS, "nodes"),
    "lowered": StageWords(
        "Lowered", "Each operation as a loop over buffers, or as a call of PyTorch.", _OWN, _STEPS, "steps"
    ),
    "simplified": StageWords(
        "Simplified", "Constants folded; what is computed twice or needed by nothing is gone.", _OWN, _STEPS, "steps"
    ),
    "inlined": StageWords("Inlined", "Cheap values computed again where they are read.", _OWN, _STEPS, "steps"),
    "split": StageWords(
        "Split", "Long reductions to few results in two steps, so that a GPU is busy.", _OWN, _STEPS, "steps"
    ),
    "fused": StageWords("Fused", "Loops that share what they read and write are one kernel.", _OWN, _STEPS, "steps"),
    "recompute": StageWords(
        "Recomputed", "Values computed again in several kernels, where that moves fewer bytes.", _OWN, _STEPS, "steps"
    ),
    "products": StageWords(
        "Products", "On GPUs, products of matrices in one kernel with what reads them.", _OWN, _STEPS, "steps"
    ),
    "ordered": StageWords(
        "Ordered",
        "Loops walk memory in its order, and are as few as it takes; on GPUs small kernels share launches.",
        _OWN,
        _STEPS,
        "steps",
    ),
    "scheduled": StageWords(
        "Scheduled",
        "Steps in an order that holds little memory at once, and what takes over whose memory.",
        _OWN,
        _STEPS,
        "steps",
    ),
    "fusion": StageWords(
        "Fusion",
        "Which loops became one kernel, in which round, what that saves, and why others were not fused.",
        _CODE,
        frozenset({"fused kernel"}),
        "launches",
    ),
    "kernels": StageWords(
        "Kernels", "Generated kernels, and the code that calls them.", _CODE, frozenset({"kernel"}), "kernels"
    ),
    "ttir": StageWords("TTIR", "Triton's intermediate representation.", _MACHINE),
    "ttgir": StageWords("TTGIR", "Triton's representation with GPU layouts.", _MACHINE),
    "llir": StageWords("LLVM IR", "LLVM's intermediate representation.", _MACHINE),
    "ptx": StageWords("PTX", "NVIDIA's virtual instruction set.", _MACHINE),
    "sass": StageWords("SASS", "The GPU's own instructions.", _MACHINE),
    "amdgcn": StageWords("AMD GCN", "The GPU's own instructions.", _MACHINE),
    "versus": StageWords(
        "Side by side", "What two backends make of the same call: kernels, bytes, time.", _MEASURED, unit="rows"
    ),
    "timing": StageWords(
        "Timing", "How long the call takes, eager and compiled.", _MEASURED, frozenset({"candidate"}), "candidates"
    ),
    "memory": StageWords(
        "Memory",
        "The bytes in use over the call, and what is in memory at the peak.",
        _MEASURED,
        frozenset({"tensor"}),
        "tensors",
    ),
    "advice": StageWords(
        "Advice", "What would make it faster, with the evidence.", _MEASURED, frozenset({"advice"}), "findings"
    ),
}


def stage_words(stage: str) -> StageWords:
    """What to call a stage; one that is not known is called by its own name."""
    return STAGE_WORDS.get(stage) or StageWords(stage.replace("_", " ").capitalize(), "", _OWN, _STEPS, "steps")


def stage_title(stage: str) -> str:
    """The stage's name as people read it: `post_grad` is `Post-grad`."""
    return stage_words(stage).title


def stage_key(name: str) -> str:
    """The stage that is meant: `LLVM IR` is `llir`. Any other name comes back as it is."""
    return _KEYS.get(name.lower(), name)


def stage_place(stage: str, present: Sequence[str]) -> int:
    """Where a stage goes among those that are there: after all that come before it. One that is not known is a new
    pass of our own backend: it comes before the kernels.
    """
    before = [index + 1 for index, name in enumerate(present) if stage_number(name) <= stage_number(stage)]
    return max(before, default=0)


def stage_number(stage: str) -> float:
    """Where a stage stands on the ribbon."""
    return _NUMBERS.get(stage, _NUMBERS["kernels"] - 0.5)


_NUMBERS = {name: place for place, name in enumerate(STAGE_WORDS)}


_KEYS = {words.title.lower(): stage for stage, words in STAGE_WORDS.items()}
