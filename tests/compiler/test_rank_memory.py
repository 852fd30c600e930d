"""Memory of a rank: a step played from a hand-written forward and the events of its graph's code."""

from __future__ import annotations

from compiler.distributed.rank_memory import rank_memory
from compiler.distributed.step_tape import RunEntry, StepTape, UnitEntry
from compiler.record import Record
from compiler.record.measure_facts import Half, MemoryEvent, MemoryWhat, Role
from compiler.record.options import Options
from compiler.torch_api.fsdp_units import FsdpUnit, UnitWeight
from compiler.torch_api.sharded_weights import Argument
from explorer.findings.memory.curve import fit
from explorer.findings.memory.memory import rank_timeline

WEIGHT, SHARES, VALUE = 800, 4, 100


def unit(name: str, memory: int) -> FsdpUnit:
    weight = UnitWeight("weight", WEIGHT // SHARES, WEIGHT, WEIGHT, memory)
    return FsdpUnit(
        "fully_shard",
        name,
        ("weight",),
        (weight,),
        WEIGHT,
        WEIGHT,
        "float32",
        "float32",
        "float32",
        "freed",
        SHARES,
        1,
        (),
    )


def run_of(memory: int, taken: int, returned: int) -> RunEntry:
    weight = Argument(memory, WEIGHT, WEIGHT, WEIGHT, is_weight=True, trains=True)
    values = [Argument(value, VALUE, VALUE, VALUE, is_weight=False, trains=True) for value in (taken, returned)]
    return RunEntry("0/0", {"weight": weight, "x": values[0]}, (values[1],))


def event(half: Half, what: MemoryWhat, buffer: str, size: int, role: Role = "", of: str = "") -> MemoryEvent:
    return MemoryEvent("0/0", half, what, buffer, size, 0, role=role, of=of)


CODE = (
    event("forward", "input", "primals_1", WEIGHT, "input"),
    event("forward", "input", "primals_2", VALUE, "input"),
    event("forward", "allocate", "buf0", VALUE),
    event("forward", "output", "buf0", VALUE, "result", "relu"),
    event("forward", "output", "primals_2", VALUE, "saved", "primals_2"),
    event("backward", "input", "primals_2", VALUE, "saved"),
    event("backward", "input", "tangents_1", VALUE, "tangent"),
    event("backward", "allocate", "buf0", WEIGHT),
    event("backward", "allocate", "buf1", VALUE),
    event("backward", "output", "buf0", WEIGHT, "gradient"),
    event("backward", "output", "buf1", VALUE, "gradient"),
    event("backward", "free", "tangents_1", VALUE),
)


def sharded_step() -> Record:
    """Two units, whose weights are gathered before the run of one graph and freed after it."""
    entries: list[UnitEntry | RunEntry] = []
    for number, each in enumerate((unit("first", 1), unit("second", 2))):
        entries += [UnitEntry("gather", each), UnitEntry("copy out", each)]
        entries += [run_of(number + 1, 10 + number, 11 + number), UnitEntry("free", each)]
    return Record("step", Options()).with_fields(memory=rank_memory(StepTape(entries), CODE))


def test_weights_are_gathered_between_graphs() -> None:
    timeline = rank_timeline(sharded_step())
    assert timeline is not None
    line = timeline.lines["rank"]
    shards, states = 2 * WEIGHT // SHARES, 2 * 2 * WEIGHT // SHARES
    before = shards + states + VALUE
    assert line.steps[3].above == before
    # The forward ends with the first unit's input kept for the backward, and the two graphs' results.
    assert line.kept == before + 2 * VALUE
    # In the backward of the second unit, its weight is there, the first one's buffer is filled, and a gradient is made.
    gathered = max(line.layers["gathered weights"])
    assert gathered == 2 * WEIGHT
    peak = line.layers["gathered weights"][line.peak], line.layers["gradients"][line.peak]
    assert line.steps[line.peak].event.half == "backward"
    assert sum(peak) > 2 * WEIGHT
    # What is left: shards, states, and a reduced gradient for each shard.
    assert line.layers["gradients"][-1] == shards
    assert line.layers["gathered weights"][-1] == 0


def test_no_process_group_has_no_memory_of_a_rank() -> None:
    assert rank_memory(StepTape(), CODE) == ()


def test_formula_is_what_is_kept_and_what_is_split() -> None:
    kept, split = fit((2, 8), (600, 225))
    assert (round(kept), round(split)) == (100, 1000)
    assert fit((2, 8), (50, 50)) == (50.0, 0.0)
