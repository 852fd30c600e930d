"""Rules for breaks at calls that leave the graph: requested breaks, output, clocks, files, C libraries."""

from __future__ import annotations

import ast

from compiler.capture.suggestions import rewrites, uses
from compiler.capture.suggestions.rule import Change, Rule

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


PASS_IN = "Or draw it before the compiled function and pass it in."
MOVES = "Python needs the value here: a tensor in its place would only move the break."
"""Explanation if no rewrite is offered because the surrounding code needs the value as a Python number."""
_LEVELS = ("debug", "info", "warning", "error", "critical", "exception", "log")
_ONCE = ("warning_once", "info_once")
"""Logger methods that transformers adds."""
_LOGGER = ("logging.Logger method not supported for non-export cases",)


def _log(calls: str, ignored: str, kinds: tuple[str, ...] = ()) -> Rule:
    return Rule(
        "{code} writes to a log, which a graph can't.",
        Change(
            "Leave such calls out of graphs.",
            settings=("import logging", IGNORE.format(ignored)),
            caveat="Such calls log nothing any more, anywhere in compiled code.",
        ),
        "Or log after the compiled function has returned.",
        kinds=kinds,
        calls=calls,
    )


GRAPH_BREAK = ("Call to `torch._dynamo.graph_break()`",)
DISABLED = (
    "Skip calling `torch.compiler.disable()`d function",
    "Skip inlining `torch.compiler.disable()`d function",
)

ASKED_FOR: tuple[Rule, ...] = (
    Rule(
        "{code} asks for a graph break.",
        Change("Take the line out.", rewrites.without_statement),
        kinds=(*GRAPH_BREAK, "Call to `torch._dynamo.skip_frame()`"),
        calls=r"(torch\._dynamo\.)?(graph_break|skip_frame)",
        when=lambda case: not case.span.installed,
    ),
    Rule(
        "{code} changes parameters, which optimizers keep out of the graphs around them.",
        "Call it outside of the compiled function; torch.compile(optimizer.step) compiles it by itself.",
        kinds=(*GRAPH_BREAK, *DISABLED),
        calls=r".*\.step",
    ),
    Rule(
        "{code} belongs to the training loop, which torch keeps out of graphs.",
        "Compile what goes from the inputs to the loss. Leave scaling the loss, backward(), the optimizer and "
        "its schedule outside of the compiled function.",
        kinds=("Attempted to inline function marked as skipped",),
        calls=r".*\.(step|zero_grad|unscale_)|.*scaler\.(scale|update)|(.*\.)?GradScaler",
    ),
    Rule(
        "{code} asks for a graph break, in code that is not yours.",
        "Call it outside of the compiled function.",
        kinds=(*GRAPH_BREAK, "Call to `torch._dynamo.skip_frame()`"),
    ),
    Rule(
        "{code} runs another compiler.",
        "torch.compile takes its place: call the function itself.",
        kinds=DISABLED[:1],
        calls=r"torch\.jit\..*",
    ),
    Rule(
        "{code} calls a function that torch.compiler.disable keeps out of graphs.",
        "Take the decorator off. If the function can't be traced, register it with torch.library.custom_op: "
        "the graph then calls it as one operator.",
        kinds=DISABLED,
    ),
)
"""Rules for breaks that the user, or torch, requests."""

RULES: tuple[Rule, ...] = (
    Rule(
        "{code} writes to the terminal, which a graph can't.",
        Change(
            "Print from inside the graph.",
            rewrites.print_in_graph,
            caveat="torch raises an error where a value in the f-string is a list, a tuple or a torch.Size.",
            safe=rewrites.holds_single_values,
        ),
        Change(
            "Or let all prints come at the end of the graph.",
            settings=(REORDER.format("print"),),
            when=rewrites.can_be_moved,
        ),
        "Or print after the compiled function has returned.",
        calls=r"print",
    ),
    *(_log(rf"(.*\.)?{method}", f"logging.Logger.{method}", _LOGGER) for method in (*_LEVELS, *_ONCE)),
    *(_log(rf"logging\.{method}", f"logging.{method}") for method in _LEVELS),
    Rule(
        "{code} gives a warning, which a graph can't.",
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
        "Or warn before or after the compiled function.",
        calls=r"(warnings\.)?warn",
    ),
    Rule(
        "{code} writes to the terminal, which a graph can't.",
        Change("Print it, from inside the graph.", rewrites.write_in_graph),
        "Or write after the compiled function has returned.",
        calls=r".*stdout\.(write|flush)|.*stderr\.(write|flush)",
    ),
    Rule(
        "{code} reads the clock, and a graph has no before and after.",
        "Measure around the call of the compiled function; explore(..., time=True) does.",
        calls=r"(time\.)?(time|perf_counter|monotonic|process_time|sleep|time_ns|perf_counter_ns)|(.*\.)?datetime\.(now|utcnow|today)",
    ),
    Rule(
        "{code} draws a random number in Python, which the graph would keep as a constant.",
        Change(
            "Draw it as a tensor.",
            rewrites.expression("torch.rand(())"),
            caveat="The numbers are others than those of Python's random, and a tensor takes the number's place: "
            "code after it that needs a Python number breaks the graph there.",
            unless=uses.needs_python,
        ),
        Change(f"{PASS_IN} {MOVES}", when=uses.needs_python, otherwise=PASS_IN),
        calls=r"random\.random",
    ),
    Rule(
        "{code} draws a random number in Python, which the graph would keep as a constant.",
        "Draw it with torch (torch.randint, torch.randperm), or before the compiled function.",
        calls=r"random\.(choice|choices|sample|shuffle|gauss|normalvariate|betavariate|Random)",
    ),
    Rule(
        "{code} calls a NumPy function that torch has no equivalent of.",
        "Write it with torch's operators.",
        OPERATOR,
        kinds=("attempted to trace numpy function unsupported by PyTorch", "Unsupported ndarray method call"),
    ),
    Rule(
        "{code} calls NumPy, and a setting keeps torch from tracing it.",
        Change("Let torch trace NumPy.", settings=("torch._dynamo.config.trace_numpy = True",)),
        kinds=("attempted to trace numpy function with config.trace_numpy=False",),
    ),
    Rule(
        "{code} reads or writes files or bytes, which a graph can't.",
        "Save and load outside of the compiled function.",
        calls=r"torch\.(save|load)|(pickle|dill|joblib|_pickle)\.(dump|dumps|load|loads)",
    ),
    Rule(
        "{code} reads or writes something outside of the process's tensors, which a graph can't.",
        BEFORE,
        calls=r"open|input|io\..*|.*\.(read|write|readline|readlines)|_io\..*|subprocess\..*|socket\..*|requests\..*",
    ),
    Rule(
        "{code} makes another name on every call; a graph would keep the first one.",
        "Make it before the compiled function, and pass it in.",
        calls=r"(uuid\.)?uuid[1-8]|uuid\..*|secrets\..*|os\.urandom",
    ),
    Rule(
        "{code} takes or releases a lock, which a graph does not do while it runs.",
        "Hold the lock around the call of the compiled function.",
        calls=r".*\.(acquire|release)",
    ),
    Rule(
        "{code} asks the operating system, which a graph can't.",
        BEFORE,
        CONSTANT,
        calls=r"os\..*|pathlib\..*|Path|Path\..*|posix\..*|shutil\..*|glob\..*",
    ),
    Rule(
        "{code} works on Python data with code written in C, which torch can't read.",
        BEFORE,
        CONSTANT,
        calls=r"json\..*|yaml\..*|hashlib\..*|_hashlib\..*|.*\.(hexdigest|digest)|struct\..*|base64\..*|zlib\..*",
    ),
    Rule(
        "{code} calls a library that torch does not trace.",
        BEFORE,
        OPERATOR,
        calls=r"(PIL\.)?Image\..*|cv2\..*|scipy\..*|sklearn\..*|pandas\..*|pd\..*|numba\..*",
    ),
    Rule(
        "{code} sets something for the whole process, which a graph can't.",
        "Set it once, before the compiled function is called.",
        calls=r"torch\.set_num_threads|torch\.set_num_interop_threads|torch\.set_(default_device|printoptions)"
        r"|torch\.use_deterministic_algorithms|torch\.set_float32_matmul_precision",
    ),
    Rule(
        "{code} looks at the Python stack, which a compiled function does not have.",
        "Take it out of the compiled function.",
        calls=r"sys\._getframe|inspect\.(stack|currentframe|getframeinfo)|traceback\..*",
    ),
    Rule(
        "{code} calls code that torch can't read or was told not to.",
        BEFORE,
        OPERATOR,
        CONSTANT,
        kinds=("Attempted to call function marked as skipped",),
    ),
    Rule(
        "{code} runs a package of AOTInductor, which is already compiled: torch does not read into it.",
        "Leave it so: the package runs as it is, between two graphs. Or compile the model that it was made from, here.",
        OPERATOR,
        kinds=("Attempted to inline function marked as skipped",),
        context=r"AOTICompiledModel",
    ),
    Rule(
        "{code} leads to code that torch was told not to read.",
        BEFORE,
        OPERATOR,
        kinds=(
            "Attempted to inline function marked as skipped",
            "Attempted to inline function marked as skipped (SkipFunctionVariable)",
        ),
    ),
)
