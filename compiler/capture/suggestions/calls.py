"""Breaks at calls that leave the graph: output, clocks, files, libraries written in C."""

from __future__ import annotations

import ast

from compiler.capture.suggestions.prints import (
    can_be_moved,
    holds_single_values,
    print_in_graph,
    write_in_graph,
)
from compiler.capture.suggestions.rewrites import expression
from compiler.capture.suggestions.rule import Change, Rule
from compiler.capture.suggestions.uses import needs_python

REORDER = "torch._dynamo.config.reorderable_logging_functions.add({})"
IGNORE = "torch._dynamo.config.ignore_logging_functions.add({})"
BEFORE = "Do it before the compiled function and pass the result in, or after it."
CONSTANT = (
    "If it is the same on every call, put it into a function decorated with torch.compiler.assume_constant_result: "
    "it then runs once, while the graph is captured."
)
OPERATOR = (
    "Register it with torch.library.custom_op (and register_fake, which says what shape comes out): the graph then "
    "calls it as one operator."
)


MOVES = "Python needs the value here: a tensor in its place would only move the break."
"""Said where a rewrite is not offered because the code around the value asks for it as a Python number."""
_LEVELS = ("debug", "info", "warning", "error", "critical", "exception", "log")
_ONCE = ("warning_once", "info_once")
"""What transformers adds to loggers."""
_LOGGER = ("logging.Logger method not supported for non-export cases",)


def _log(calls: str, ignored: str, kinds: tuple[str, ...] = ()) -> Rule:
    return Rule(
        kinds=kinds,
        calls=calls,
        what="{code} writes to a log, which a graph can't.",
        changes=(
            Change(
                "Leave such calls out of graphs.",
                settings=("import logging", IGNORE.format(ignored)),
                caveat="Such calls log nothing any more, anywhere in compiled code.",
            ),
            Change("Or log after the compiled function has returned."),
        ),
    )


RULES: tuple[Rule, ...] = (
    Rule(
        calls=r"print",
        what="{code} writes to the terminal, which a graph can't.",
        changes=(
            Change(
                "Print from inside the graph.",
                print_in_graph,
                caveat="torch raises an error where a value in the f-string is a list, a tuple or a torch.Size.",
                safe=holds_single_values,
            ),
            Change(
                "Or let all prints come at the end of the graph.",
                settings=(REORDER.format("print"),),
                when=can_be_moved,
            ),
            Change("Or print after the compiled function has returned."),
        ),
    ),
    *(_log(rf"(.*\.)?{method}", f"logging.Logger.{method}", _LOGGER) for method in (*_LEVELS, *_ONCE)),
    *(_log(rf"logging\.{method}", f"logging.{method}") for method in _LEVELS),
    Rule(
        calls=r"(warnings\.)?warn",
        what="{code} gives a warning, which a graph can't.",
        changes=(
            Change(
                "Let warnings come at the end of the graph.",
                settings=("import warnings", REORDER.format("warnings.warn")),
                when=lambda case: (
                    not case.inlined
                    and isinstance(case.node, ast.Call)
                    and len(case.node.args) == 1
                    and not case.node.keywords
                ),
            ),
            Change("Or warn before or after the compiled function."),
        ),
    ),
    Rule(
        calls=r".*stdout\.(write|flush)|.*stderr\.(write|flush)",
        what="{code} writes to the terminal, which a graph can't.",
        changes=(
            Change("Print it, from inside the graph.", write_in_graph),
            Change("Or write after the compiled function has returned."),
        ),
    ),
    Rule(
        calls=r"(time\.)?(time|perf_counter|monotonic|process_time|sleep|time_ns|perf_counter_ns)|(.*\.)?datetime\.(now|utcnow|today)",
        what="{code} reads the clock, and a graph has no before and after.",
        changes=(Change("Measure around the call of the compiled function; explore(..., time=True) does."),),
    ),
    Rule(
        calls=r"random\.random",
        what="{code} draws a random number in Python, which the graph would keep as a constant.",
        changes=(
            Change(
                "Draw it as a tensor.",
                expression("torch.rand(())"),
                caveat="The numbers are others than those of Python's random, and a tensor takes the number's place: "
                "code after it that needs a Python number breaks the graph there.",
                when=lambda case: not needs_python(case),
            ),
            Change("Or draw it before the compiled function and pass it in. " + MOVES, when=needs_python),
            Change("Or draw it before the compiled function and pass it in.", when=lambda case: not needs_python(case)),
        ),
    ),
    Rule(
        calls=r"random\.(choice|choices|sample|shuffle|gauss|normalvariate|betavariate|Random)",
        what="{code} draws a random number in Python, which the graph would keep as a constant.",
        changes=(Change("Draw it with torch (torch.randint, torch.randperm), or before the compiled function."),),
    ),
    Rule(
        kinds=("attempted to trace numpy function unsupported by PyTorch", "Unsupported ndarray method call"),
        what="{code} calls a NumPy function that torch has no equivalent of.",
        changes=(Change("Write it with torch's operators."), Change(OPERATOR)),
    ),
    Rule(
        kinds=("attempted to trace numpy function with config.trace_numpy=False",),
        what="{code} calls NumPy, and torch is told not to trace it.",
        changes=(Change("Let torch trace NumPy.", settings=("torch._dynamo.config.trace_numpy = True",)),),
    ),
    Rule(
        calls=r"torch\.(save|load)|(pickle|dill|joblib|_pickle)\.(dump|dumps|load|loads)",
        what="{code} reads or writes files or bytes, which a graph can't.",
        changes=(Change("Save and load outside of the compiled function."),),
    ),
    Rule(
        calls=r"open|input|io\..*|.*\.(read|write|readline|readlines)|_io\..*|subprocess\..*|socket\..*|requests\..*",
        what="{code} reads or writes something outside of the process's tensors, which a graph can't.",
        changes=(Change(BEFORE),),
    ),
    Rule(
        calls=r"os\..*|pathlib\..*|Path|Path\..*|posix\..*|shutil\..*|glob\..*",
        what="{code} asks the operating system, which a graph can't.",
        changes=(Change(BEFORE), Change(CONSTANT)),
    ),
    Rule(
        calls=r"json\..*|yaml\..*|hashlib\..*|_hashlib\..*|.*\.(hexdigest|digest)|uuid\..*|struct\..*|base64\..*|zlib\..*",
        what="{code} works on Python data with code written in C, which torch can't read.",
        changes=(Change(BEFORE), Change(CONSTANT)),
    ),
    Rule(
        calls=r"(PIL\.)?Image\..*|cv2\..*|scipy\..*|sklearn\..*|pandas\..*|pd\..*|numba\..*",
        what="{code} calls a library that torch does not trace.",
        changes=(Change(BEFORE), Change(OPERATOR)),
    ),
    Rule(
        calls=r"torch\.set_num_threads|torch\.set_num_interop_threads|torch\.set_(default_device|printoptions)"
        r"|torch\.use_deterministic_algorithms|torch\.set_float32_matmul_precision",
        what="{code} sets something for the whole process, which a graph can't.",
        changes=(Change("Set it once, before the compiled function is called."),),
    ),
    Rule(
        calls=r"sys\._getframe|inspect\.(stack|currentframe|getframeinfo)|traceback\..*",
        what="{code} looks at the Python stack, which a compiled function does not have.",
        changes=(Change("Take it out of the compiled function."),),
    ),
    Rule(
        kinds=("Attempted to call function marked as skipped",),
        what="{code} calls code that torch can't read or was told not to.",
        changes=(Change(BEFORE), Change(OPERATOR), Change(CONSTANT)),
    ),
    Rule(
        kinds=(
            "Attempted to inline function marked as skipped",
            "Attempted to inline function marked as skipped (SkipFunctionVariable)",
        ),
        what="{code} leads to code that torch was told not to read.",
        changes=(Change(BEFORE), Change(OPERATOR)),
    ),
)
