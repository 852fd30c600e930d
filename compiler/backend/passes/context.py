"""What passes are given besides the program: thresholds, hints for symbolic sizes, and where to report decisions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from compiler.backend.ir.index import Index, Var, product
from compiler.backend.ir.index_maps import evaluate
from compiler.record import Decision

UNKNOWN = 64
"""What a symbol without an example counts as: a size that is neither small nor large."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """All numbers that passes decide by. They are options of `torch.compile(backend="tcompile", options={…})`.

    inline_cost        an expression that costs at most this (in additions) is computed again wherever it is read
    inline_cost_once   the same for one of which each element is read once at most, or that reads no memory itself
    inline_points      on a GPU, inline_cost_once also holds for expressions with at most so many elements
    recompute_cost     on a GPU, a value is computed again, not stored, only if that costs at most this (in additions)
    fused_loops        the most loops that one kernel may have
    fused_buffers      the most buffers that one kernel may read and write
    shared_points      on a GPU, kernels of at most so many elements share a launch, of at most twice as many together
    fusion_distance    kernels that only read the same are merged if at most this many steps lie between them
    row_buffer         on the CPU, the longest row, in elements, that a kernel keeps instead of computing it twice
    parallel_work      on the CPU, loops over fewer elements than this run on one thread
    tile               on the CPU, how many neighbouring columns are reduced together
    split_length       on a GPU, a reduction of fewer elements than this to one result is not split in two
    split_part         on a GPU, the fewest elements that one program of a split reduction is to have
    programs           on a GPU, how many programs of a kernel each multiprocessor should have at least
    own_product        on a GPU, a product of matrices of at most so many multiplications is a kernel of ours
    replayed           with CUDA graphs, inference of fewer launches is not replayed; a call of PyTorch counts as four
    replayed_in_training   the same for forwards in training: their backwards do as they do
    """

    inline_cost: int = 4
    inline_cost_once: int = 40
    inline_points: int = 65536
    recompute_cost: int = 80
    fused_loops: int = 64
    fused_buffers: int = 48
    shared_points: int = 2**20
    fusion_distance: int = 64
    row_buffer: int = 8192
    parallel_work: int = 32768
    tile: int = 64
    split_length: int = 512
    split_part: int = 2048
    programs: int = 4
    own_product: int = 2**19
    replayed: int = 7
    replayed_in_training: int = 10


@dataclass(slots=True)
class Context:
    """For one run of the pipeline. `sizes` are example values of symbols, `graph` names the graph in decisions.

    `processors` is how many multiprocessors the GPU has that code is for, 0 for a CPU, `cache` how many bytes its L2
    cache has: an H100's where that is not known. `is_small` says that symbolic sizes are guarded so that 32 bits are
    enough for indices. `given` are inputs that nobody else holds, unless the call is a backward that may run again: it
    looks, and writes over them only if it is not.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    sizes: Mapping[str, int] = field(default_factory=dict)
    graph: str = ""
    pass_name: str = ""
    decisions: list[Decision] = field(default_factory=list)
    processors: int = 0
    cache: int = 50 * 2**20
    is_small: bool = False
    given: frozenset[str] = frozenset()

    def decide(self, subjects: tuple[str, ...], verdict: str, why: str = "", **numbers: float) -> None:
        """Report what the running pass decided about some loops, operators or buffers."""
        self.decisions.append(Decision(self.pass_name, self.graph, subjects, verdict, why, numbers))

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
