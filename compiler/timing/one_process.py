"""Times are taken in one process: the ranks of a job would each repeat their collectives another number of times."""

from __future__ import annotations

from compiler.calls.call import Call
from compiler.record import Problem
from compiler.record.options import OptionError
from compiler.torch_api.collectives import count_ranks, is_simulated

NOT_SENT = Problem(
    "timing",
    "nothing was checked or timed: the process group is simulated, so collectives move nothing, and their results and "
    "times would be wrong",
    "the other stages are exact; for --check, start the script with torchrun, which has a group that sends; for times, "
    "profile the job itself and open the trace with tcompile.load_profile",
)

OTHER_RANKS = Problem(
    "timing",
    "the call was not timed: each rank repeats it as often as its own times ask for, so the ranks' collectives would "
    "not match",
    "profile the job with torch.profiler, and open a rank's trace with tcompile.load_profile",
)


def check_one_process(call: Call) -> None:
    """Raise OptionError if the call is one of several ranks, simulated or real."""
    simulated = call.surroundings.group is not None or is_simulated()
    if simulated or count_ranks() > 1:
        problem = NOT_SENT if simulated else OTHER_RANKS
        raise OptionError(f"{problem.reason}; {problem.hint}")
