"""The exercises of `tcompile.lessons`, by topic. They have no solutions: the programs' explorations answer them."""

from __future__ import annotations

from typing import Final

from explorer.teach.exercise import Exercise
from explorer.teach.programs import PROGRAMS

_SOURCE, _CAPTURED = "Python and the graph", "The captured graph"
_BREAKS, _GUARDS = "Graph breaks", "Guards and recompilations"
_AUTOGRAD, _JOINT, _SAVED = "Autograd", "The joint graph", "Saved values"
_DECOMPOSED, _FUSION, _KERNELS = "Decompositions", "Fusion", "Kernels"
_MEMORY, _NUMERICS = "Memory traffic", "Numerics"

_ROWS: tuple[tuple[str, str, str, str, str, str], ...] = (
    (
        _SOURCE,
        "loop",
        "python",
        "ops",
        "A loop and a dictionary",
        "Python runs during tracing: what is left?",
    ),
    (_SOURCE, "loop_inputs", "python", "inputs", "Inputs of the loop", "Is a number that no tensor holds an input?"),
    (_SOURCE, "loop_breaks", "python", "breaks", "Does the loop break", "Does anything depend on a tensor's numbers?"),
    (_SOURCE, "plain_print", "prints", "plain", "What stays Python", "Who prints?"),
    (_CAPTURED, "linear_ops", "linear", "ops", "Operations of a layer", "`@` and `+` are operations too."),
    (_CAPTURED, "linear_inputs", "linear", "inputs", "Inputs of a layer", "Which tensors come from outside?"),
    (_CAPTURED, "linear_shape", "linear", "shape", "The result's shape", "dim=0 goes."),
    (_CAPTURED, "linear_hidden", "linear", "shape:h", "The hidden shape", "(4, 8) times (8, 3)."),
    (_BREAKS, "print_line", "prints", "breaks", "A print", "What is no operation on tensors?"),
    (_BREAKS, "print_graphs", "prints", "graphs", "Graphs around a print", "One before it, and after it?"),
    (_BREAKS, "branch_line", "branch", "breaks", "A branch", "Python has to know which way to go."),
    (_BREAKS, "branch_graphs", "branch", "graphs", "Graphs of a branch", "Only one branch runs."),
    (_BREAKS, "branch_ops", "branch", "ops", "Operations of a branch", "The comparison is an operation."),
    (_BREAKS, "nested_line", "nested", "breaks", "A break in a helper", "Look into the function that is called."),
    (_BREAKS, "nested_shape", "nested", "shape", "Shape after the break", "Rows and columns change places."),
    (_GUARDS, "sizes_again", "sizes", "recompiles", "Four sizes", "What does torch.compile do once it saw two sizes?"),
    (_GUARDS, "sizes_changed", "sizes", "changed", "What changed", "Which argument had another size?"),
    (_GUARDS, "sizes_graphs", "sizes", "graphs", "Graphs for four sizes", "One for each compilation."),
    (_GUARDS, "flag_again", "flag", "recompiles", "A flag", "A bool is a constant in the graph."),
    (_GUARDS, "flag_changed", "flag", "changed", "Which argument", "Which guard fails at the second call?"),
    (_GUARDS, "dtype_again", "dtypes", "recompiles", "Another dtype", "Old code is kept: is the third call new?"),
    (_GUARDS, "dtype_changed", "dtypes", "changed", "Whose dtype", "Which argument differs in the second call?"),
    (_AUTOGRAD, "square_gradient", "square", "gradient:x", "A parabola", "d(x² + 3x)/dx = 2x + 3."),
    (_AUTOGRAD, "square_nodes", "square", "ops:autograd", "Nodes of a parabola", "One node for an operation."),
    (_AUTOGRAD, "paths_a", "paths", "gradient:a", "Two paths", "a reaches the loss by s, and directly."),
    (_AUTOGRAD, "paths_b", "paths", "gradient:b", "One path", "b reaches the loss by s only."),
    (_AUTOGRAD, "paths_leaves", "paths", "leaves", "Who gets a gradient", "Who asked for one?"),
    (_AUTOGRAD, "detached_w", "detached", "gradient:w", "Around a detach", "Which path is cut?"),
    (_AUTOGRAD, "detached_v", "detached", "gradient:v", "Beside a detach", "v multiplies h: what is h?"),
    (_JOINT, "square_joint", "square", "ops:forward", "Forward of a parabola", "Two products and a sum."),
    (_JOINT, "mlp_leaves", "mlp", "leaves", "Parameters of an MLP", "x does not require a gradient."),
    (_JOINT, "paths_forward", "paths", "ops:forward", "Forward of two paths", "Each ATen call counts."),
    (_SAVED, "square_saved", "square", "saved", "What a square needs", "d(x·x) needs x: once or twice?"),
    (_SAVED, "mlp_saved", "mlp", "saved", "What an MLP keeps", "A matmul's gradient needs its other factor."),
    (_SAVED, "mlp_saved_bytes", "mlp", "saved:bytes", "Bytes kept", "float32 has 4 bytes."),
    (_SAVED, "square_saved_inputs", "square", "saved:inputs", "Kept anyway", "Does it exist without the forward?"),
    (_SAVED, "mlp_recomputed", "mlp", "recomputed", "Computed again", "tanh' = 1 - tanh²: is its result kept?"),
    (_DECOMPOSED, "gelu_becomes", "gelu", "becomes:gelu", "gelu in ATen", "x/2 · (1 + erf(x/√2))."),
    (_DECOMPOSED, "silu_becomes", "gelu", "becomes:silu", "silu in ATen", "x / (1 + e⁻ˣ)."),
    (_DECOMPOSED, "passes_left", "passes", "ops:post_grad", "What passes remove", "What does nothing depend on?"),
    (
        _DECOMPOSED,
        "passes_captured",
        "passes",
        "ops:captured",
        "Before the passes",
        "TorchDynamo records each call.",
    ),
    (_FUSION, "chain_fusion", "chain", "fusion", "Around a matmul", "A matmul is a library kernel here."),
    (_FUSION, "normalize_fusion", "normalize", "fusion", "A reduction", "A row fits into one block."),
    (_FUSION, "broadcast_fusion", "broadcast", "fusion", "A broadcast", "Both lines run over the same elements."),
    (_KERNELS, "softmax_kernels", "softmax", "kernels", "Softmax", "A row is read, reduced and written."),
    (_KERNELS, "softmax_reductions", "softmax", "kernels:reduction", "Reductions", "max and sum, in how many kernels?"),
    (_KERNELS, "chain_kernels", "chain", "kernels", "Before and after", "One before the matmul, one after it."),
    (_KERNELS, "chain_library", "chain", "kernels:extern", "Library calls", "Who computes the matmul?"),
    (_KERNELS, "mlp_library", "mlp", "kernels:extern", "Matmuls of training", "Two forward; how many backward?"),
    (_MEMORY, "softmax_bytes", "softmax", "bytes", "Bytes of a softmax", "Read once, written once."),
    (_MEMORY, "broadcast_bytes", "broadcast", "bytes", "Bytes of a broadcast", "y is never written."),
    (_NUMERICS, "whole", "numbers", "dtype:whole", "Floor division", "int64 // int."),
    (_NUMERICS, "half", "numbers", "dtype:half", "True division", "The default dtype."),
    (_NUMERICS, "small", "numbers", "dtype:small", "A comparison", "True or false."),
    (_NUMERICS, "mixed", "numbers", "dtype:mixed", "Mixed dtypes", "float64 with int64."),
    (_NUMERICS, "autocast_matmul", "autocast", "dtype:h", "A matmul under autocast", "Autocast lowers matmuls."),
    (_NUMERICS, "autocast_sum", "autocast", "dtype:y", "A sum under autocast", "bfloat16 with float32."),
)

EXERCISES: Final[dict[str, Exercise]] = {
    name: Exercise(name, topic, title, PROGRAMS[program], ask, (hint,))
    for topic, name, program, ask, title, hint in _ROWS
}
"""Every exercise by name, topic by topic in the order of the pipeline."""
