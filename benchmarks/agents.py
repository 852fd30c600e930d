"""What programs get from tcompile: repairs by what `diagnose` says, regressions that `check` finds, and false alarms.

    python -m benchmarks.agents                         a sample of each section: ten minutes on two cores
    python -m benchmarks.agents repairs                 sixty broken programs, repaired by applying what diagnose says
    python -m benchmarks.agents repairs clock warn      some of them
    python -m benchmarks.agents regressions             twenty injected regressions
    python -m benchmarks.agents alarms                  fifty checks of equal code
    python -m benchmarks.agents repros                  twenty-five planted faults, each in one small file
    python -m benchmarks.agents workflow                the steps of the workflow in docs/jobs/ci.md, in a shell
    python -m benchmarks.agents mcp                     a client of `tcompile mcp` in every tool, hostile ones included

A section prints one line for each case and its figures, and fails if a bar is not reached.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from benchmarks import agent_checks, agent_repairs, repros


def _tools(names: Sequence[str]) -> bool:
    from benchmarks import agent_tools  # it needs the extra mcp

    return agent_tools.tools(names)


SECTIONS: dict[str, Callable[[Sequence[str]], bool]] = {
    "repairs": agent_repairs.repairs,
    "regressions": agent_checks.regressions,
    "alarms": agent_checks.alarms,
    "repros": repros.repros,
    "workflow": agent_checks.workflow,
    "mcp": _tools,
}
"""Each section takes the names of cases, () for all, and returns whether its bars are reached."""
SAMPLES: dict[str, tuple[str, ...]] = {
    "repairs": ("item_as_scale", "two_branches", "mask_index", "float_argument", "is_compiling", "all_pairs"),
    "regressions": ("item", "size_checked", "wider", "saves_exp"),
    "alarms": ("6",),
    "repros": ("break_item", "log1p_wrong_late", "relu_raises", "kernel_first"),
    "workflow": (),
    "mcp": (),
}
"""Cases of each section in a run of all sections."""


def main() -> int:
    if sys.argv[1:2] and sys.argv[1] not in SECTIONS:
        print(__doc__)
        return 2
    if sys.argv[1:]:
        return 0 if SECTIONS[sys.argv[1]](sys.argv[2:]) else 1
    holds = {}
    for name, cases in SAMPLES.items():
        print(f"\n{name}: {f'a sample, {len(cases)} cases' if cases else 'all'}", flush=True)
        holds[name] = SECTIONS[name](cases)
    print("\n" + ", ".join(f"{name} {'holds' if held else 'FAILS'}" for name, held in holds.items()))
    return 0 if all(holds.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
