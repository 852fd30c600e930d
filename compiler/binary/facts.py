"""The facts of a compiled kernel, from what its tools reported and from its texts."""

from __future__ import annotations

from compiler.binary import mix, occupancy, roofline
from compiler.binary.jobs import Output
from compiler.binary.sources import KernelSource
from compiler.record import Binary, Record
from compiler.targets import Target
from compiler.torch_api.triton_kernels import CompileRequest

_TENSOR_MEMORY = 512  # columns of a Blackwell multiprocessor's; PTX ISA 8.6, tcgen05.alloc
_WHAT_TO_DO = (
    "it compiles and can't be launched, so Inductor would pass this configuration over; smaller blocks or fewer stages "
    "need less"
)
Shortage = tuple[str, str]


def machine_facts(
    source: KernelSource, request: CompileRequest, output: Output, target: Target, record: Record
) -> tuple[Binary | None, Shortage | None]:
    """Facts of the kernel's machine code, None where there is none; and the reason it could not be launched, with a
    hint, or None.
    """
    stage = "amdgcn" if target.vendor == "amd" else "sass"
    if output.error or stage not in output.texts:
        return None, None
    text = output.texts[stage]
    load_bits, store_bits = mix.access_bits(stage, text)
    fits, shortage = _occupancy(output, target)
    work = roofline.work(source.kernel, record)
    moved = source.kernel.bytes // max(source.kernel.calls, 1)
    seconds, bound = roofline.bound(target, bytes=moved, flops=work.flops, dtype=work.dtype, matmul=work.matmul)
    facts = Binary(
        kernel=source.kernel.id,
        target=target.name,
        config=request.config,
        configs=request.configs,
        registers=output.registers,
        spill_bytes=output.spill_bytes,
        shared_memory=output.shared_memory,
        threads=output.threads,
        programs=request.programs,
        occupancy=fits.fraction if fits else None,
        limiter=fits.limiter if fits else "",
        mix=mix.instruction_mix(stage, text),
        load_bits=load_bits,
        store_bits=store_bits,
        bytes=moved,
        flops=work.flops,
        bound_seconds=seconds,
        bound=bound,
    )
    return facts, shortage


def _occupancy(output: Output, target: Target) -> tuple[occupancy.Occupancy | None, Shortage | None]:
    """How many blocks fit, or why none does: what Triton finds out when it launches a kernel, and not before."""
    if (output.tensor_memory or 0) > _TENSOR_MEMORY:
        reason = f"a block asks for {output.tensor_memory} columns of tensor memory: {_TENSOR_MEMORY} are the most"
        return None, (reason, _WHAT_TO_DO)
    try:
        found = occupancy.occupancy(
            target,
            threads=output.threads,
            registers=output.registers or 0,
            shared_memory=output.shared_memory or 0,
        )
    except occupancy.OccupancyError as error:
        return None, (str(error), _WHAT_TO_DO)
    return (found if output.registers is not None else None), None
