"""What programs get from tcompile: repairs by what `diagnose` says, regressions that `check` finds, and false alarms.

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


def main() -> int:
    if sys.argv[1:2] and sys.argv[1] not in SECTIONS:
        print(__doc__)
        return 2
    chosen = [sys.argv[1]] if sys.argv[1:] else list(SECTIONS)
    holds = {name: SECTIONS[name](sys.argv[2:]) for name in chosen}
    return 0 if all(holds.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
