"""The exercises of `tcompile.lessons`, by topic. They have no solutions: the programs' explorations answer them."""

from __future__ import annotations

from typing import Final

from explorer.teach.exercise import Exercise
from explorer.teach.programs import PROGRAMS

_TOPICS: dict[str, list[tuple[str, str, str, str, str]]] = {
    "Python and the graph": [
        ("loop", "python", "ops", "A loop and a dictionary", "Python runs during tracing: what is left?"),
        ("loop_inputs", "python", "inputs", "Inputs of the loop", "Is a number that no tensor holds an input?"),
        ("loop_breaks", "python", "breaks", "Does the loop break", "Does anything depend on a tensor's numbers?"),
        ("plain_print", "prints", "plain", "What stays Python", "Who prints?"),
    ],
    "The captured graph": [
        ("linear_ops", "linear", "ops", "Operations of a layer", "`@` and `+` are operations too."),
        ("linear_inputs", "linear", "inputs", "Inputs of a layer", "Which tensors come from outside?"),
        ("linear_shape", "linear", "shape", "The result's shape", "The sum removes dimension 0."),
        ("linear_hidden", "linear", "shape:h", "The hidden shape", "(4, 8) times (8, 3)."),
    ],
    "Graph breaks": [
        ("print_line", "prints", "breaks", "A print", "What is no operation on tensors?"),
        ("print_graphs", "prints", "graphs", "Graphs around a print", "One before it, and after it?"),
        ("branch_line", "branch", "breaks", "A branch", "Python has to know which way to go."),
        ("branch_graphs", "branch", "graphs", "Graphs of a branch", "Only one branch runs."),
        ("branch_ops", "branch", "ops", "Operations of a branch", "The comparison is an operation."),
        ("nested_line", "nested", "breaks", "A break in a helper", "Look into the function that is called."),
        ("nested_shape", "nested", "shape", "Shape after the break", "Rows and columns change places."),
    ],
    "Guards and recompilations": [
        ("sizes_again", "sizes", "recompiles", "Four sizes", "What does torch.compile do after two sizes?"),
        ("sizes_changed", "sizes", "changed", "What changed", "Which argument had another size?"),
        ("sizes_graphs", "sizes", "graphs", "Graphs for four sizes", "One for each compilation."),
        ("flag_again", "flag", "recompiles", "A flag", "A bool is a constant in the graph."),
        ("flag_changed", "flag", "changed", "Which argument", "Which guard fails at the second call?"),
        ("dtype_again", "dtypes", "recompiles", "Another dtype", "Old code is kept: is the third call new?"),
        ("dtype_changed", "dtypes", "changed", "Whose dtype", "Which argument differs in the second call?"),
    ],
    "Autograd": [
        ("square_gradient", "square", "gradient:x", "A parabola", "d(x² + 3x)/dx = 2x + 3."),
        ("square_nodes", "square", "ops:autograd", "Nodes of a parabola", "One node for an operation."),
        ("paths_a", "paths", "gradient:a", "Two paths", "a reaches the loss by s, and directly."),
        ("paths_b", "paths", "gradient:b", "One path", "b reaches the loss by s only."),
        ("paths_leaves", "paths", "leaves", "Who gets a gradient", "Who asked for one?"),
        ("detached_w", "detached", "gradient:w", "Around a detach", "Which path is cut?"),
        ("detached_v", "detached", "gradient:v", "Beside a detach", "v multiplies h: what is h?"),
    ],
    "The joint graph": [
        ("square_joint", "square", "ops:forward", "Forward of a parabola", "Two products and a sum."),
        ("mlp_leaves", "mlp", "leaves", "Parameters of an MLP", "x does not require a gradient."),
        ("paths_forward", "paths", "ops:forward", "Forward of two paths", "Each ATen call counts."),
    ],
    "Saved values": [
        ("square_saved", "square", "saved", "What a square needs", "d(x·x) needs x: once or twice?"),
        ("mlp_saved", "mlp", "saved", "What an MLP keeps", "A matmul's gradient needs its other factor."),
        ("mlp_saved_bytes", "mlp", "saved:bytes", "Bytes kept", "float32 has 4 bytes."),
        ("square_saved_inputs", "square", "saved:inputs", "Kept anyway", "Does it exist without the forward?"),
        ("mlp_recomputed", "mlp", "recomputed", "Computed again", "tanh' = 1 - tanh²: is its result kept?"),
    ],
    "Decompositions": [
        ("gelu_becomes", "gelu", "becomes:gelu", "gelu in ATen", "x/2 · (1 + erf(x/√2))."),
        ("silu_becomes", "gelu", "becomes:silu", "silu in ATen", "x / (1 + e⁻ˣ)."),
        ("passes_left", "passes", "ops:post_grad", "What passes remove", "What does nothing depend on?"),
        ("passes_captured", "passes", "ops:captured", "Before the passes", "TorchDynamo records each call."),
    ],
    "Fusion": [
        ("chain_fusion", "chain", "fusion", "Around a matmul", "A matmul is a library kernel here."),
        ("normalize_fusion", "normalize", "fusion", "A reduction", "A row fits into one block."),
        ("broadcast_fusion", "broadcast", "fusion", "A broadcast", "Both lines run over the same elements."),
    ],
    "Kernels": [
        ("softmax_kernels", "softmax", "kernels", "Softmax", "A row is read, reduced and written."),
        ("softmax_reductions", "softmax", "kernels:reduction", "Reductions", "max and sum, in how many kernels?"),
        ("chain_kernels", "chain", "kernels", "Before and after", "One before the matmul, one after it."),
        ("chain_library", "chain", "kernels:extern", "Library calls", "Who computes the matmul?"),
        ("mlp_library", "mlp", "kernels:extern", "Matmuls of training", "Two forward; how many backward?"),
    ],
    "Memory traffic": [
        ("softmax_bytes", "softmax", "bytes", "Bytes of a softmax", "Read once, written once."),
        ("broadcast_bytes", "broadcast", "bytes", "Bytes of a broadcast", "y is never written."),
    ],
    "Numerics": [
        ("whole", "numbers", "dtype:whole", "Floor division", "int64 // int."),
        ("half", "numbers", "dtype:half", "True division", "The default dtype."),
        ("small", "numbers", "dtype:small", "A comparison", "True or false."),
        ("mixed", "numbers", "dtype:mixed", "Mixed dtypes", "float64 with int64."),
        ("autocast_matmul", "autocast", "dtype:h", "A matmul under autocast", "Autocast lowers matmuls."),
        ("autocast_sum", "autocast", "dtype:y", "A sum under autocast", "bfloat16 with float32."),
    ],
}
"""Of each topic: the names of the exercises, their programs, questions, titles and hints."""

EXERCISES: Final[dict[str, Exercise]] = {
    name: Exercise(name, topic, title, PROGRAMS[program], ask, (hint,))
    for topic, rows in _TOPICS.items()
    for name, program, ask, title, hint in rows
}
"""Every exercise by name, topic by topic in the order of the pipeline."""
