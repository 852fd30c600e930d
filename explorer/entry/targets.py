"""`tcompile.targets()`: a table of the GPUs that code can be generated for without having them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compiler.targets import DTYPES, TARGETS, Target

if TYPE_CHECKING:
    import pandas as pd


def targets() -> pd.DataFrame:
    """List the GPUs that `target=` (`--target`) can name, as a table.

    >>> tcompile.targets().loc["h100", "memory_gb_per_s"]

    Units are in the column names. Peak rates (`tflops_…`, `tops_int8`) are dense, in 10¹² operations per second; NA if
    the GPU has no instructions for the format. `sources` has the sources of the numbers.
    """
    import pandas as pd

    return pd.DataFrame([_row(target) for target in TARGETS]).set_index("name").convert_dtypes()


def _row(target: Target) -> dict[str, Any]:
    return {
        "name": target.name,
        "title": target.title,
        "family": target.family,
        "architecture": target.architecture,
        "capability": ".".join(map(str, target.capability)),
        "multiprocessors": target.multiprocessors,
        "warp_size": target.warp_size,
        "clock_mhz": round(target.clock / 1e6),
        "memory_clock_mhz": round(target.memory_clock / 1e6),
        "memory_gib": target.memory >> 30,
        "memory_gb_per_s": target.memory_bandwidth / 1e9,
        "l2_mib": target.l2_cache >> 20,
        "shared_kib_per_multiprocessor": target.shared_memory_per_multiprocessor >> 10,
        "shared_kib_per_block": target.shared_memory_per_block_optin >> 10,
        "registers_per_multiprocessor": target.registers_per_multiprocessor,
        "max_threads_per_multiprocessor": target.max_threads_per_multiprocessor,
        **{f"{'tops' if dtype == 'int8' else 'tflops'}_{dtype}": _in_tera(target.peak.get(dtype)) for dtype in DTYPES},
        "sources": "; ".join(target.sources),
    }


def _in_tera(rate: float | None) -> float | None:
    return None if rate is None else round(rate / 1e12, 3)
