"""Matmul kernels in Triton: a matmul, and an epilogue of loops that read its result.

A program accumulates one tile of the result along the inner dimension in steps. The epilogue is computed on that tile,
like the loops of any kernel.

    b          index of the matrix in a batch
    m, n, k    indices of the tile's rows and columns, and of the inner dimension in one step
    tile_m, …  indices of the program's tile: programs that run together have neighbouring tiles, which share operands
               in the cache
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compiler.backend.ir import Kernel, Loop, MatmulKernel, Program, Strided
from compiler.backend.ir.expr import Load
from compiler.backend.ir.index import Index, Var
from compiler.backend.passes.context import Context
from compiler.backend.passes.cost import fits_32
from compiler.backend.passes.matmuls import Factors, coordinates
from compiler.backend.triton.kernel import KernelWriter
from compiler.backend.triton.text import bare, convert
from compiler.backend.triton.tiles import Axis, Tiles, TritonConfig, kernel_on_axes, next_power_of_two, processors

_NAMES = {"b", "m", "n", "k", "mask_m", "mask_n", "mask_k", "tile_m", "tile_n", "start", "left", "right", "total"}
_LEAST = 16
"""Tensor cores multiply tiles of at least this many rows and columns."""
Sizes = tuple[int, int, int, int, int]

_HALVES: Sequence[Sizes] = (
    (128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 128, 64, 4, 3), (128, 128, 64, 8, 3), (128, 64, 64, 4, 4),
    (64, 128, 64, 4, 4), (64, 64, 64, 4, 4), (64, 64, 128, 4, 3), (64, 32, 128, 4, 4), (32, 64, 128, 4, 4),
    (16, 64, 128, 4, 4), (16, 128, 64, 4, 4),
)  # fmt: skip
_TF32: Sequence[Sizes] = (
    (128, 256, 32, 8, 3), (128, 128, 32, 8, 3), (128, 64, 32, 4, 4), (64, 128, 32, 4, 4), (64, 64, 32, 4, 4),
    (32, 64, 64, 4, 4), (16, 64, 64, 4, 4),
)  # fmt: skip
_IEEE: Sequence[Sizes] = ((64, 64, 16, 4, 2), (128, 64, 16, 8, 2), (32, 64, 32, 4, 2), (16, 32, 32, 2, 2))
"""Autotuning candidates: rows, columns and inner size of a tile, number of warps, and number of pipeline stages."""


class MatmulWriter(KernelWriter):
    """Writes one matmul kernel."""

    def __init__(self, product: MatmulKernel, program: Program, ctx: Context) -> None:
        self.product, self.factors = product, Factors.from_call(product.call)
        self.dtype = program.by_name[product.made].dtype
        super().__init__(product, program, ctx)
        self.names.taken |= _NAMES
        read = [load.buffer for load in product.loads]
        order = [*(view.buffer for view in product.operands), *read, *product.writes]
        self.buffers = tuple(name for name in dict.fromkeys(order) if name in product.buffers)

    def choose_tiles(self, kernel: Kernel) -> Tiles:
        *outer, m, n = self.factors.axes
        axes = (Axis(m, "MBLOCK", coordinates(self.product)), Axis(n, "NBLOCK", {}), *(Axis(b, "", {}) for b in outer))
        is_wide = not fits_32(kernel, self.program, self.ctx)
        return Tiles(kernel_on_axes(kernel, axes, None), "product", axes, None, False, is_wide)

    def choices(self) -> tuple[TritonConfig, ...]:
        """Configurations; the first is the heuristics' choice."""
        m, n, k = (self.ctx.number(size) for size in (*self.factors.shape[-2:], self.factors.inner))
        matrices = self.ctx.number(self.factors.shape[0]) if len(self.factors.shape) == 3 else 1
        sizes = _HALVES if self.dtype != torch.float32 else _TF32 if self.precision == "tf32" else _IEEE
        fitting = dict.fromkeys(_cut(size, (m, n, k)) for size in sizes)
        even = [size for size in fitting if k % size[2] == 0]
        most = processors(self.ctx)

        def cost(size: Sizes) -> float:
            tiles = -(-m // size[0]) * -(-n // size[1]) * matrices
            return -(-tiles // most) * (size[0] * size[1] + 32.0 * (size[0] + size[1]))

        tried = sorted(even or fitting, key=cost)[: self.ctx.thresholds.matmul_configs]
        return tuple(map(self.config, tried))

    def config(self, size: Sizes) -> TritonConfig:
        rows, columns, inner, warps, stages = size
        blocks = {"MBLOCK": rows, "NBLOCK": columns, "KBLOCK": inner, "GROUP": self.ctx.thresholds.matmul_group}
        return TritonConfig(blocks, warps, stages)

    @property
    def precision(self) -> str:
        return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"

    # The tile: its indices and its values.

    def outer_axes(self) -> None:
        tiles = "tl.program_id(1), tl.program_id(0), tl.num_programs(1), tl.num_programs(0)"
        self.line(f"tile_n, tile_m = tl.swizzle2d({tiles}, GROUP)")
        for axis in self.tiles.outer[:2]:
            self.tile_axis(axis, f"tile_{axis.var}{self.wide} * {axis.block}")
        for axis in self.tiles.outer[2:]:
            self.line(f"{axis.var} = tl.program_id(2){self.wide}")

    def body(self) -> None:
        self.multiply()
        super().body()

    def multiply(self) -> None:
        """Write the computation of the matmul's tile, rounded as in PyTorch, and its store if other steps read it."""
        call, factors = self.product.call, self.factors
        whole = Loop(self.product.made, self.kernel.ranges, tuple(map(Index.of, factors.axes)),
                     Load(self.product.made, (), self.dtype), origins=call.origins, source=call.source)  # fmt: skip
        self.target = whole.target
        self.comment(whole)
        self.line("total = tl.zeros([MBLOCK, NBLOCK], tl.float32)")
        self.line(f"for start in range(0, {self.index(factors.inner)}, KBLOCK):")
        self.depth += 1
        self.step()
        self.depth -= 1
        total, bias = "total", factors.bias
        if bias is not None:
            along = factors.axes[len(factors.axes) - len(bias.shape) :]
            total = f"(total + {self.operand(bias, along)}.to(tl.float32))"
        name = self.known[whole.target] = self.names.new(whole.target)
        self.line(f"{name} = {bare(convert(total, torch.float32, self.dtype))}")
        self.store(whole)
        self.target = ""

    def step(self) -> None:
        """Write one step of the sum: a block of the left matrix's columns times the same rows of the right matrix."""
        factors, size = self.factors, self.factors.inner
        self.line(f"k = start + tl.arange(0, KBLOCK){self.wide}")
        is_masked = size.constant is None or any(size.constant % config.blocks["KBLOCK"] for config in self.configs)
        if is_masked:
            self.line(f"mask_k = k < {self.index(size)}")
        across, down = Var("k[None, :]", size), Var("k[:, None]", size)
        *outer, m, n = factors.axes
        masks = ("mask_k[None, :]", "mask_k[:, None]") if is_masked else ("", "")
        self.line(f"left = {self.operand(factors.left, (*outer, m, across), masks[0])}")
        self.line(f"right = {self.operand(factors.right, (*outer, down, n), masks[1])}")
        exact = f', input_precision="{self.precision}"' if self.dtype == torch.float32 else ""
        self.line(f"total = tl.dot(left, right, total{exact})")

    def operand(self, view: Strided, at: Sequence[Var], mask: str = "") -> str:
        """Triton text that loads a tile of an operand, with 0 out of bounds."""
        place = view.offset
        for var, size, stride in zip(at, view.shape, view.strides, strict=True):
            place = place if size.constant == 1 else place + Index.of(var) * stride
        masks = self.mask_for({var.name for var in at}, mask)
        where = self.place(view.buffer, place)
        return f"tl.load({where}, {masks}, 0.0)" if masks else f"tl.load({where})"


def _cut(size: Sizes, points: Sequence[int]) -> Sizes:
    """Shrink a candidate's blocks to the sizes of the matrices, rounded up to powers of two."""
    rows, columns, inner = (
        max(_LEAST, min(block, next_power_of_two(most))) for block, most in zip(size, points, strict=False)
    )
    return rows, columns, inner, size[3], size[4]
