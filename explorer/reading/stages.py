"""Names, descriptions and groups of the stages, for text and for the ribbon."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from compiler.record import MACHINE_STAGES, Artifact, Record, ordered_stages, stage_rank


@dataclass(frozen=True, slots=True)
class StageWords:
    """Title and description of a stage. Its chip on the ribbon counts entities of `kinds`, or lines if there are none.

    `ask` is the label of the button that makes the stage, if it is made on request.
    """

    title: str
    about: str
    group: str
    kinds: frozenset[str] = frozenset()
    unit: str = "lines"
    ask: str = ""


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
    "xray": StageWords(
        "X-ray",
        "All sites that break a graph, all causes of recompilation, and fixes that were tried.",
        _FINDINGS,
        frozenset({"site", "cause"}),
        "sites",
        "Find all graph breaks, and try fixes",
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
    "ddp_buckets": StageWords(
        "DDP buckets",
        "Where DistributedDataParallel splits the forward, what its backward reduces, and what another cap would do.",
        _FINDINGS,
        frozenset({"unit"}),
        "buckets",
    ),
    "fsdp_units": StageWords(
        "FSDP units",
        "What FSDP gathers, frees, gathers again and reduces, unit by unit.",
        _FINDINGS,
        frozenset({"unit"}),
        "units",
    ),
    "placements": StageWords(
        "Placements",
        "How each DTensor is spread over the ranks, and why it is redistributed.",
        _FINDINGS,
        frozenset({"placement"}),
        "values",
    ),
    "block_mask": StageWords(
        "Block masks",
        "Which blocks of scores FlexAttention computes, which it skips, and the share of work.",
        _FINDINGS,
        frozenset({"block_mask"}),
        "masks",
    ),
    "pipeline": StageWords(
        "Pipeline", "What each rank of a pipeline does, step by step.", _FINDINGS, frozenset({"pipeline"}), "schedules"
    ),
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
        "Click to generate",
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
    "fold_padding": StageWords(
        "Padding folded", "What a call reads padded is computed where the padded copy is.", _OWN, _STEPS, "steps"
    ),
    "inlined": StageWords("Inlined", "Cheap values computed again where they are read.", _OWN, _STEPS, "steps"),
    "split": StageWords(
        "Split", "Long reductions to few results in two steps, so that a GPU is busy.", _OWN, _STEPS, "steps"
    ),
    "fused": StageWords("Fused", "Loops that share what they read and write are one kernel.", _OWN, _STEPS, "steps"),
    "fission": StageWords(
        "Fission", "On GPUs, kernels split again that would access memory in short runs.", _OWN, _STEPS, "steps"
    ),
    "one_hot": StageWords("One-hot", "Sums with one term that is not 0, as that term.", _OWN, _STEPS, "steps"),
    "recompute": StageWords(
        "Recomputed", "Values computed again in several kernels, where that moves fewer bytes.", _OWN, _STEPS, "steps"
    ),
    "matmuls": StageWords("Matmuls", "On GPUs, matmuls in one kernel with what reads them.", _OWN, _STEPS, "steps"),
    "ordered": StageWords(
        "Ordered",
        "Loops walk memory in its order, and are as few as it takes.",
        _OWN,
        _STEPS,
        "steps",
    ),
    "combined": StageWords("Combined", "On GPUs, small kernels share a launch.", _OWN, _STEPS, "steps"),
    "reordered": StageWords(
        "Reordered", "On GPUs, steps in an order that holds little memory at once.", _OWN, _STEPS, "steps"
    ),
    "scheduled": StageWords(
        "Scheduled",
        "When buffers are freed, and which buffer takes over whose memory.",
        _OWN,
        _STEPS,
        "steps",
    ),
    "fusion": StageWords(
        "Fusion",
        "Which loops became one kernel, in which round, what that saves, and why others were not fused.",
        _CODE,
        frozenset({"fused kernel"}),
        "fused nodes",
    ),
    "kernels": StageWords(
        "Kernels", "Generated kernels, and the code that calls them.", _CODE, frozenset({"kernel"}), "kernels"
    ),
    "collectives": StageWords(
        "Collectives",
        "What this rank sends and gets, from which line, and what of it compute hides.",
        _CODE,
        frozenset({"collective"}),
        "collectives",
    ),
    "overlap": StageWords("Overlap", "The same step under Inductor's passes on communication.", _CODE, unit="lines"),
    "ttir": StageWords("TTIR", "Triton's intermediate representation.", _MACHINE),
    "passes": StageWords(
        "Passes",
        "What each pass of Triton's changed; which loops are pipelined, and why others are not.",
        _MACHINE,
        frozenset({"pass"}),
        "passes",
        "Compile the kernels once more, pass by pass",
    ),
    "layouts": StageWords(
        "Layouts",
        "Which thread and register, or which address, holds which element of a tile.",
        _MACHINE,
        frozenset({"layout"}),
        "layouts",
        "Compile the kernels once more, and draw their layouts",
    ),
    "ttgir": StageWords("TTGIR", "Triton's representation with GPU layouts.", _MACHINE),
    "llir": StageWords("LLVM IR", "LLVM's intermediate representation.", _MACHINE),
    "ptx": StageWords("PTX", "NVIDIA's virtual instruction set.", _MACHINE),
    "sass": StageWords("SASS", "The GPU's own instructions.", _MACHINE),
    "amdgcn": StageWords("AMD GCN", "The GPU's own instructions.", _MACHINE),
    "asm": StageWords("Assembly", "The CPU's own instructions, with the C++ lines that they come from.", _MACHINE),
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
    "checks": StageWords(
        "Checks", "Results and stages compared with eager, or with float64.", _MEASURED, unit="checks"
    ),
    "other": StageWords(
        "Other", "What other libraries, such as vLLM, wrote into the log of this compilation.", _FINDINGS, unit="lines"
    ),
    "advice": StageWords(
        "Advice", "What would make it faster, with the evidence.", _MEASURED, frozenset({"advice"}), "findings"
    ),
}


def stage_words(stage: str) -> StageWords:
    """Title and description of a stage; an unknown stage is titled by its own name."""
    return STAGE_WORDS.get(stage) or StageWords(stage.replace("_", " ").capitalize(), "", _OWN, _STEPS, "steps")


def stage_title(stage: str) -> str:
    """Title of a stage: `post_grad` is `Post-grad`."""
    return stage_words(stage).title


def stage_key(name: str) -> str:
    """Stage with this title: `LLVM IR` is `llir`. Any other name is returned unchanged."""
    return _KEYS.get(name.lower(), name)


def stage_place(stage: str, present: Sequence[str]) -> int:
    """Index at which to insert a stage into `present`: after all stages that precede it. An unknown stage counts as a
    new pass of our own backend and comes before the kernels.
    """
    before = [index + 1 for index, name in enumerate(present) if stage_number(name) <= stage_number(stage)]
    return max(before, default=0)


def stage_number(stage: str) -> float:
    """Position of a stage on the ribbon."""
    return _NUMBERS.get(stage, _NUMBERS["kernels"] - 0.5)


_NUMBERS = {name: place for place, name in enumerate(STAGE_WORDS)}


_KEYS = {words.title.lower(): stage for stage, words in STAGE_WORDS.items()}


_KINDS = {
    "line": ("line", "lines"),
    "instruction": ("instruction", "instructions"),
    "kernel": ("kernel", "kernels"),
    "call": ("op", "ops"),
    "fused": ("fused", "fused"),
    "pointwise": ("pointwise", "pointwise"),
    "reduction": ("reduction", "reductions"),
    "template": ("template", "templates"),
    "extern": ("extern call", "extern calls"),
    "other": ("other", "other"),
    "loop": ("loop", "loops"),
    "subgraph": ("subgraph", "subgraphs"),
    "placeholder": ("input", "inputs"),
    "get_attr": ("constant", "constants"),
    "custom": ("custom function", "custom functions"),
    "compiled": ("compiled function", "compiled functions"),
    "accumulate": ("leaf", "leaves"),
    "site": ("site", "sites"),
    "cause": ("cause", "causes"),
    "pass": ("pass", "passes"),
    "outer": ("gradient passed on", "gradients passed on"),
}
"""Kind of entity -> singular and plural; the main kinds come first."""


def counts(artifacts: Sequence[Artifact]) -> str:
    """Count the entities of a stage: `8 ops, 4 inputs`; its lines if it has no entities.

    Exports in several modes are of one call, so each is counted by itself: `non-strict and strict: 8 ops, 4 inputs`.
    """
    if len(artifacts) > 1 and artifacts[0].stage == "exported":
        modes: dict[str, list[str]] = {}
        for each in artifacts:
            modes.setdefault(counts([each]), []).append(str(each.attrs.get("mode", each.title)))
        return "; ".join(f"{' and '.join(names)}: {words}" for words, names in modes.items())
    return ", ".join(_count_words(kind, count) for kind, count in _kinds(artifacts))


def _kinds(artifacts: Sequence[Artifact]) -> list[tuple[str, int]]:
    kinds = Counter(entity.kind for artifact in artifacts for entity in artifact.entities)
    for kind in ("output", "subgraph_input", "subgraph_output"):
        kinds.pop(kind, None)
    kinds.pop("statement", None)  # the same instructions decompiled to Python
    if any(artifact.stage == "autograd" for artifact in artifacts):
        kinds.pop("placeholder", None)  # the incoming gradient
    if any(artifact.stage == "kernels" for artifact in artifacts):
        kinds.pop("call", None)  # a line of the wrapper; the kernel it calls is counted already
        kinds.pop("triton", None)
        kinds.pop("cpp", None)
    if any(artifact.stage in MACHINE_STAGES for artifact in artifacts):
        own = Counter({kind: kinds[kind] for kind in ("pass", "layout") if kinds[kind]})
        kinds = own or Counter(kernel=kinds["kernel"], line=sum(each.text.count("\n") for each in artifacts))
    if not kinds:
        kinds = Counter(line=sum(artifact.text.count("\n") + 1 for artifact in artifacts if artifact.text))
    order = [*_KINDS, *(kind for kind in kinds if kind not in _KINDS)]
    return [(kind, kinds[kind]) for kind in order if kinds[kind]]


def _count_words(kind: str, count: int) -> str:
    one, many = _KINDS.get(kind, (kind, f"{kind}s"))
    return f"{count:,} {one if count == 1 else many}"


def stage_order(record: Record) -> list[str]:
    """Stages of a record in pipeline order; an unknown stage follows the stage before it in the record."""
    return ordered_stages(artifact.stage for artifact in record.artifacts)


def stages_not_in_log(record: Record) -> list[str]:
    """Titles of the stages that no log has; [] if this record is not from a log."""
    return list(dict.fromkeys(stage_title(problem.stage) for problem in record.problems if problem.is_of_all_logs))


def stage_seconds(record: Record, stage: str) -> float:
    """Compile time of a stage in seconds; 0 if it was not measured."""
    subjects = {artifact.id for artifact in record.of_stage(stage)}
    return sum(timing.seconds for timing in record.timings if timing.what == "compile" and timing.subject in subjects)


def ranked_stage(stage: str) -> tuple[float, str]:
    """Sort key of a stage: pipeline order, then name."""
    return stage_rank(stage), stage
