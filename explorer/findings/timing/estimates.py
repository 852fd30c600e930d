"""What a call takes at least on a GPU that is not here, in words and as a table: estimates, and said to be."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from compiler.record import Record
from compiler.record.plain_text import size_text
from compiler.timing.estimates import Estimate, KernelEstimate, estimate
from explorer.findings.timing.words import three_digits, time_text

if TYPE_CHECKING:
    import pandas as pd

BASIS = "estimate"


def estimate_text(record: Record) -> str:
    """A sentence on the GPU that the code is for; "" where it is here, or nothing is known of it."""
    found = estimate(record)
    if found is None:
        return ""
    launches = f"{found.launches:,} launches take" if found.launches != 1 else "1 launch takes"
    return (
        f"An estimate, not a measurement: on the {found.title} the kernels of a call need at least "
        f"{time_text(found.kernel_seconds)} at its peak rates ({_amounts(found)}), and {launches} the host about "
        f"{time_text(found.launch_seconds)} ({found.launch_source})."
    )


def _amounts(found: Estimate) -> str:
    scale, unit = (1e9, "GFLOP") if found.flops >= 1e9 else (1e6, "MFLOP")
    counted = f"{size_text(found.bytes)}, {three_digits(found.flops / scale)} {unit}"
    return counted + (f", {len(found.unknown)} of unknown size left out" if found.unknown else "")


def estimates(record: Record) -> pd.DataFrame:
    """One row a kernel: launches, bytes, operations, the least seconds at the GPU's peak rates, and what bounds it.

    `attrs` say what the whole is: the GPU, the sums, the cost of launches and where that is from.
    """
    import pandas as pd

    found = estimate(record)
    names = list(KernelEstimate.__dataclass_fields__)
    table = pd.DataFrame([asdict(each) for each in found.kernels] if found else [], columns=names)
    table.insert(0, "basis", pd.Series([BASIS] * len(table), dtype="string"))
    if found is not None:
        whole = asdict(found) | {"seconds": found.seconds, "bound": found.bound, "basis": BASIS}
        table.attrs = {name: value for name, value in whole.items() if name != "kernels"}
    return table
