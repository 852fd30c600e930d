"""Plain words for each of Inductor's reasons for not fusing two scheduler nodes.

The keys of `REASONS` are the texts in the source of torch 2.11 to 2.15 (torch._inductor: scheduler.py, choices.py,
codegen/simd.py and codegen/cutlass/scheduling.py), with `%s` as placeholder. A test compares them with the source
of the installed torch.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

REASONS: Final[dict[str, str]] = {
    # Nothing to gain
    "no shared data": "they go through no memory in the same order: Inductor counts nothing that one kernel would save",
    "no shared data due to indexing mismatch": "they touch the same memory, but not the same elements at the same time",
    "score_fusion_memory_threshold": "they share too little memory for it to pay",
    # Order
    "will create cycle": "what lies between them needs the first and is needed by the second: "
    "in one kernel each would have to wait for the other",
    "intermediate nodes between node1 & node2": "another kernel has to run between them: "
    "it needs the first and is needed by the second",
    "node1 must go before node2": "the second is needed by the first",
    # Shapes and loops
    "numel/rnumel mismatch (reduce) (%s, %s), (%s, %s)": "both are reductions, over loops of other sizes",
    "numel/rnumel mismatch (non-reduce) (%s, %s), (%s, %s)": "their loops have other sizes",
    "numel/rnumel mismatch prologue mismatch (%s, %s), (%s, %s)": "what goes into the product has another size",
    "nodes numel/rnumel incompatibility": "the loop of the first fits neither the result nor the input "
    "of the reduction",
    "nodes numel incompatibility": "the first is a reduction, and the second's loop is not of the size of its result",
    "tiling mismatch (%s, %s, %s)": "each would be cut into tiles differently",
    "invalid tiling for reduction": "together they would need tiles that a reduction can't have",
    "invalid loop order and tiling for native matmul": "the product needs its loops in another order",
    "memory deps did not match": "the second reads other elements than those that the first has just made, "
    "as after a transpose, a shift or a reduction",
    "node1 and node2 uses different buf layouts": "the kernel and what follows lay the tensor out differently",
    "Split scan cannot fuse with reductions": "a scan that is split over blocks can't be joined with a reduction",
    # Nested reductions (rows and groups within them, in one kernel), and strict numerics: torch 2.15
    "nested reduction append planning failed": "the first reduces rows, and groups within them, in one kernel: "
    "Inductor finds no way to compute the second in it too",
    "nested reduction append producer placement mismatch": "the first reduces rows, and groups within them, in one "
    "kernel, and the second can't be computed at that point of the program",
    "staged fusion dependency proof failed": "Inductor can't prove that each group of elements of the second "
    "needs only what the same block of the first has made",
    "sub-parent epilogue planning failed": "the second combines elements of each row that the first reduces: "
    "Inductor finds no way to compute it in the same kernel",
    "consumer is not wholly in the sub-parent epilogue": "a part of the second can't be computed from the groups of "
    "elements that the reduction's kernel has at hand",
    "invalid sub-parent epilogue fusion": "the second combines elements of each row that the first reduces, "
    "in an order that the same kernel can't have",
    "staged reduction plan would be lost": "one of them reduces in stages, and together they could not",
    "incompatible reduction contracts": "both reduce the result of a matmul, and its kernel can compute only one of "
    "them at its end",
    "reduction fusion does not preserve strict reduction ordering": "both are reductions, and one has to add in eager "
    "mode's order (config.numerics)",
    # torch 2.14 says "sum" for the same two
    "reduction fusion does not preserve strict sum ordering": "both are reductions, and one has to add in eager "
    "mode's order (config.numerics)",
    "template fusion does not preserve strict sum ordering": "the second has to add in eager mode's order, "
    "which a template does not keep (config.numerics)",
    "template fusion does not preserve strict reduction ordering": "the second has to add in eager mode's order, "
    "which a template does not keep (config.numerics)",
    # Limits on fusion that keep kernels fast
    "exceeds max fusion": "together they are more operations than one kernel may have (config.max_fusion_size)",
    "Fusion will increase peak memory": "together they would keep more in memory at once",
    "Nodes are too far away. Fusing them may increase peak memory.": "they are far apart in the program: "
    "what they share would have to stay in memory all that time",
    "fusion_prevent_too_many_reads_and_writes": "together they would read and write too many tensors "
    "(config.max_fusion_unique_io_buffers)",
    "register spilling of the first kernel": "measured: the first alone needs more registers than there are",
    "register spilling of the second kernel": "measured: the second alone needs more registers than there are",
    "register spilling of the fused kernel": "measured: together they need more registers than there are",
    # Kinds of nodes
    "node1 is extern or nop": "the first is an extern call, or no code at all",
    "node2 is extern or nop": "the second is an extern call, or no code at all",
    "node1 is nop": "the first is no code at all",
    "node1 is extern but not a triton kernel": "the first is an extern call",
    "node1's triton kernel doesn't support epilogue fusion": "the first is your own Triton kernel, "
    "which nothing can be added to",
    "node1 is extern but node2 is not SchedulerNode": "the first is your own Triton kernel, "
    "and only a single operation can be added to it",
    "node1 is extern but node2.node is not SchedulerNode": "the first is your own Triton kernel, "
    "and only a computed tensor can be added to it",
    "node1 is extern but node2.node.data is not Pointwise": "the first is your own Triton kernel, "
    "and only pointwise operations can be added to it",
    "epilogue reads from buffers other than the mutated output": "what follows your Triton kernel "
    "reads more than its result",
    "epilogue is not a unary read of the output buffer": "what follows your Triton kernel "
    "reads more than its result, or writes more than one tensor",
    "epilogue's read and write indices differ": "what follows your Triton kernel writes its elements in another order "
    "than it reads them",
    "grouped node must not be fused with other nodes": "one of them is to stay in its group",
    "fusion for buffer explicit disabled": "fusion was switched off for one of their tensors",
    "device mismatch (%s vs %s)": "they run on different devices",
    "foreach do not have same length": "lists of tensors of different lengths",
    "a consumer depends on another producer sub-node": "an operation of the second list of tensors needs the result "
    "for another tensor of the first list",
    "candidate producer is not dep of any foreach consumer": "nothing in the list of tensors needs the first",
    "candidate consumer has no dep in any foreach producer": "the second needs nothing of the list of tensors",
    "candidate producer is a reduction, foreach ops cannot be fused with reductions currently": "operations on "
    "lists of tensors can't be joined with a reduction",
    "candidate consumer is a reduction, foreach ops cannot be fused with reductions currently": "operations on "
    "lists of tensors can't be joined with a reduction",
    # Templates: matmuls and attention with Inductor's own kernels
    "template epilogue not satisfied": "what follows the template (a product, an attention) can't be computed at its "
    "end: it is no pointwise operation on its result, or that is switched off (config.epilogue_fusion)",
    "multi-output template epilogue requires ComputedBuffer": "what follows the template is no computed tensor",
    "prologue fusion turned off": "computing a template's inputs inside it is switched off (config.prologue_fusion)",
    "prologue fusion only supported for pointwise nodes": "only pointwise operations can be computed on the way into "
    "a template",
    "prologue fusion only supported for TritonTemplates": "only Triton's templates can compute their inputs",
    "prologue fusion not implemented for kernel for these inputs": "this template can't compute that input",
    "template has no allowed prologue inputs": "this template can compute none of its inputs",
    "template prologue can only fuse functional pointwise nodes": "what goes into the template is written in place, "
    "or shares memory",
    "template prologue can only fuse nodes with a single use": "what goes into the template is used elsewhere too",
    "template prologue can only fuse nodes with a single use into template": "what goes into the template is used "
    "elsewhere too, or twice in it",
    "prologue fusion will not increase amount of bytes read in kernel": "inside the template more bytes would be read "
    "than its input has",
    "prologue fusion will not increase attempt to fuse in padding bc it increases unaligned reads": "the input is "
    "padded so that it is aligned: inside the template reads would not be",
    "prologue fusion that must be upcast to fp32 not profitable for low precision templates": "it would be computed in "
    "float32 inside a template of a smaller format",
    # CUTLASS
    "%s has aliasing or mutation": "what follows the CUTLASS kernel is written in place, or shares memory",
    "%s is not a ComputedBuffer": "what follows the CUTLASS kernel is no computed tensor",
    "%s is not a Pointwise op": "what follows the CUTLASS kernel is no pointwise operation",
    "%s does not have a computed buffer name": "what follows the CUTLASS kernel has no tensor of its own",
    "%s's size: %s differs from %s's size: %s": "what follows the CUTLASS kernel has another size",
    "%s is a reduction which is not yet supported by EVT": "what follows the CUTLASS kernel is a reduction",
    "cutlass epilogue fusion is not enabled": "computing what follows in a CUTLASS kernel is switched off "
    "(config.cutlass.cutlass_epilogue_fusion_enabled)",
    "epilogue fusion is only supported for TMA-enabled gemm ops": "only CUTLASS kernels that use TMA can compute what "
    "follows",
    "Cannot fuse epilogue node %s into %s, likely due to unsupported operation: %s": "CUTLASS has not this operation",
    "Cannot fuse epilogue node %s into %s. Reason: %s": "CUTLASS can't compute what follows",
}
"""Inductor's text, with `%s` as placeholder -> plain words."""


def reason_words(text: str) -> str:
    """Inductor's reason in plain words; `text` itself if the reason is unknown."""
    known = REASONS.get(text)
    if known is not None:
        return known
    return next((words for pattern, words in _patterns() if pattern.fullmatch(text)), text)


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Regular expressions for the reasons with placeholders, and their plain words."""
    filled = ((text, words) for text, words in REASONS.items() if "%s" in text)
    return tuple((re.compile(re.escape(text).replace("%s", ".*"), re.DOTALL), words) for text, words in filled)
