"""The context of passes: thresholds, example values of symbolic sizes, and the decisions that they report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from compiler.backend.ir.index import Index, Var, evaluate, product
from compiler.record import Decision

UNKNOWN = 64
"""What a symbol without an example counts as: a size that is neither small nor large."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """All numbers that passes and emitters decide by: options of `torch.compile(backend="tcompile", options={…})`.

    Lowering
    joined_tensors     a `cat` of more tensors is a call of PyTorch: each element would check each tensor for itself
    scan_length        so is, on a GPU, a scan along more elements: several multiprocessors share a row there

    Inlining and fusion
    inline_cost        an expression that costs at most this (in additions) is computed again wherever it is read
    inline_cost_once   the same for one of which each element is read once at most, or that reads no memory itself
    inline_points      on a GPU, inline_cost_once also holds for expressions with at most so many elements
    inline_total       no expression grows above this cost: what can't be inlined is stored
    recompute_cost     on a GPU, a value is computed again, not stored, only if that costs at most this (in additions)
    fused_loops        the most loops that one kernel may have
    fused_buffers      the most buffers that one kernel may read and write
    fusion_distance    kernels that only read the same are merged if at most this many steps lie between them
    fusion_readers     of a buffer's readers, only the first so many are tried with its writer
    shared_points      on a GPU, kernels of at most so many elements share a launch, of at most twice as many together
    own_matmul         on a GPU, a matmul of at most so many multiplications is a kernel of ours
    own_matmul_sum     and only where at most so many products are added for an element: one program adds them in turn

    Loops on a CPU
    row_buffer         the longest row, in elements, that a kernel keeps instead of computing it twice
    parallel_work      loops over fewer elements than this run on one thread
    tile               how many neighbouring columns are reduced together

    Reductions on a GPU
    split_length       a reduction of fewer elements than this to one result is not split in two
    split_part         the fewest elements that one program of a split reduction is to have
    split_columns      so many neighbouring results are one program's where neighbours in memory belong to several
    split_column       the most elements of a column made of rows: of more, a second walk finds less in the cache
    split_mean         so many elements of a long row are one program's where it holds them for mean and variance
    split_even         equal parts are made if they are at least one in so many of those that were wanted
    longest_row        rows that a program holds whole if it reads one tensor; half of it for two, a quarter for more
    longest_row_once   the same where it walks them once
    longest_column     the same of columns
    long_row           a program that holds rows of more elements leaves few registers to another
    program_row        a program takes several rows of at most so many elements
    program_bytes      and of fewer bytes: programs that move less take less time than a GPU takes to start them

    Launches and memory on a GPU
    programs           how many programs of a kernel each multiprocessor should have at least
    launch_bytes       the bytes that a GPU moves in the time that one more launch takes
    warp_bytes         how many bytes of a row, or column, one warp takes
    combo_block        how many elements one program takes of kernels that share a launch
    matmul_group       how many neighbouring tiles of rows of a matmul run together, to find their operands in the cache
    matmul_configs     the most configurations that are timed for a matmul
    tiled_size         ranges of fewer elements are not tiled
    thread_run         the most neighbours in memory that one thread takes at once
    reorder_percent    steps stay in their order where another one holds more than this share of its peak memory
    replayed           with CUDA graphs, inference of fewer launches is not replayed; a call of PyTorch counts as four
    replayed_in_training   the same for forwards in training: their backwards do as they do
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
    """The context of one run of the pipeline. `sizes` has example values of symbols, `graph` is its name in decisions.

    `processors` is how many multiprocessors the GPU has that code is for, 0 for a CPU, `cache` how many bytes its L2
    cache has: an H100's where that is not known. `is_small` says that symbolic sizes are guarded so that 32 bits are
    enough for indices. `donated` are inputs that nobody else holds, unless the call is a backward that may run again:
    the code checks that, and else does not write over them.
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
        """Report what the running pass decided about some loops, operators or buffers."""
        self.decisions.append(Decision(self.pass_name, self.graph, subjects, verdict, why, numbers))

    def without_decisions(self) -> Context:
        """A copy for trials, whose decisions are not reported."""
        return replace(self, decisions=[])

    def number(self, size: Index) -> int:
        """A size as a number: an example where it is symbolic."""
        return int(evaluate(size, self.examples))

    def points(self, variables: Iterable[Var]) -> int:
        """How many points loops over some variables have, as a number."""
        return self.number(product(var.size for var in variables))

    @property
    def examples(self) -> Mapping[str, int]:
        """A number for each symbol."""
        return defaultdict(lambda: UNKNOWN, self.sizes)
