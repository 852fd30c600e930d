"""Context of the passes: thresholds, hints of symbolic sizes, and reported decisions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from compiler.backend.ir.index import Index, Var, evaluate, product
from compiler.record import Decision

UNKNOWN = 64
"""Assumed value of a symbol without a hint: neither small nor large."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds of passes and code generation: options of `torch.compile(backend="tcompile", options={…})`.

    Lowering
    joined_tensors     maximum number of tensors that a loop concatenates; a `cat` of more is an extern call
    scan_length        on a GPU, longest row of a scan in one program; a longer scan is an extern call

    Inlining and fusion
    inline_cost        largest cost, in additions, of an expression that is inlined into several readers
    inline_cost_once   largest cost if a single load reads each element once or twice, or the expression has no loads
    inline_points      on a GPU, inline_cost_once also applies to expressions with at most this many elements
    inline_total       largest cost of an expression after inlining
    recompute_cost     on a GPU, largest cost, in additions, of a value that is recomputed instead of stored
    fused_loops        maximum number of loops in a kernel
    fused_buffers      maximum number of buffers that a kernel reads and writes
    fusion_distance    largest distance, in steps, between fused kernels that share only inputs
    fusion_readers     only this many users of a buffer, the first ones, are tried for fusion with its writer
    shared_points      on a GPU, maximum number of elements in a part of a combo kernel; twice as many in all its parts
    own_matmul         on a GPU, matmuls of at most this many multiplications become our own kernels
    own_matmul_sum     largest inner dimension of such a matmul, over which one program sums sequentially

    Loops on a CPU
    row_buffer         longest row, in elements, that a kernel keeps for a later sweep instead of recomputing it
    parallel_work      loops over fewer elements run on one thread
    tile               number of adjacent columns that are reduced together

    Reductions on a GPU
    split_length       reductions with fewer elements per result are not split
    split_part         minimum number of elements in a program of a split reduction
    split_columns      number of adjacent results of one program in a reduction by columns
    split_column       longest column of a part if rows are split by columns; it then stays in the cache
    split_mean         elements of a part if a row is split only for its variance; one program holds a part
    split_even         parts are equal if that gives at least 1/split_even of the wanted number
    longest_row        longest row that a program holds if it loads one tensor; half for two, a quarter for more
    longest_row_once   longest row that a program holds if there is only one sweep
    longest_column     longest column that a program holds
    long_row           longest row that a program can hold and still leave enough registers for a second program
    program_row        rows of at most this many elements share a program
    program_bytes      rows of fewer bytes also share a program, as starting a program would take longer

    Launches and memory on a GPU
    programs           minimum number of programs of a kernel per multiprocessor
    launch_bytes       bytes that a GPU moves in the time of one launch
    warp_bytes         bytes of a row or column that one warp takes
    combo_block        elements of one program of a combo kernel
    matmul_group       adjacent row tiles of a matmul that run together, for reuse of operands in the L2 cache
    matmul_configs     maximum number of autotuning candidates of a matmul
    tiled_size         ranges of fewer elements are not tiled
    thread_run         maximum number of adjacent elements that one thread takes at once
    reorder_percent    steps are reordered if peak memory falls below this percentage of its former value
    replayed           with CUDA graphs, least number of launches in a replayed inference graph; an extern call is four
    replayed_in_training   the same for a forward in training, whose backward is then replayed, too
    """

    joined_tensors: int = 8
    scan_length: int = 2**16
    inline_cost: int = 4
    inline_cost_once: int = 40
    inline_points: int = 65536
    inline_total: int = 400
    recompute_cost: int = 80
    fused_loops: int = 64
    fused_buffers: int = 48
    fusion_distance: int = 64
    fusion_readers: int = 32
    shared_points: int = 2**20
    own_matmul: int = 2**19
    own_matmul_sum: int = 256
    row_buffer: int = 8192
    parallel_work: int = 32768
    tile: int = 64
    split_length: int = 512
    split_part: int = 2048
    split_columns: int = 32
    split_column: int = 1024
    split_mean: int = 4096
    split_even: int = 8
    longest_row: int = 32768
    longest_row_once: int = 1024
    longest_column: int = 64
    long_row: int = 8192
    program_row: int = 512
    program_bytes: int = 4096
    programs: int = 4
    launch_bytes: int = 2**23
    warp_bytes: int = 1024
    combo_block: int = 1024
    matmul_group: int = 8
    matmul_configs: int = 6
    tiled_size: int = 8
    thread_run: int = 16
    reorder_percent: int = 98
    replayed: int = 7
    replayed_in_training: int = 10


@dataclass(slots=True)
class Context:
    """The context of one run of the pipeline.

    sizes       hints of symbols, by name
    graph       the graph's name in decisions
    processors  number of the GPU's multiprocessors, 0 for a CPU
    cache       size of the GPU's L2 cache in bytes, by default an H100's
    is_small    whether guards keep symbolic sizes small enough for 32-bit indices
    donated     donated inputs, which generated code overwrites unless the backward may run again (retain_graph=True)
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    sizes: Mapping[str, int] = field(default_factory=dict)
    graph: str = ""
    pass_name: str = ""
    decisions: list[Decision] = field(default_factory=list)
    processors: int = 0
    cache: int = 50 * 2**20
    is_small: bool = False
    donated: frozenset[str] = frozenset()

    def decide(self, subjects: tuple[str, ...], verdict: str, why: str = "", **numbers: float) -> None:
        """Report a decision of the current pass about loops, operators or buffers."""
        self.decisions.append(Decision(self.pass_name, self.graph, subjects, verdict, why, numbers))

    def without_decisions(self) -> Context:
        """Copy of the context for trials, whose decisions are not reported."""
        return replace(self, decisions=[])

    def number(self, size: Index) -> int:
        """Value of a size, with hints for symbols."""
        return int(evaluate(size, self.examples))

    def points(self, variables: Iterable[Var]) -> int:
        """Number of points of a loop nest over these variables, with hints for symbols."""
        return self.number(product(var.size for var in variables))

    @property
    def examples(self) -> Mapping[str, int]:
        """Hint of each symbol; `UNKNOWN` for a symbol without a hint."""
        return defaultdict(lambda: UNKNOWN, self.sizes)
