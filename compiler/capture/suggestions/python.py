"""Rules for breaks at parts of Python that TorchDynamo does not support."""

from __future__ import annotations

from compiler.capture.suggestions.calls import BEFORE, CONSTANT, OPERATOR
from compiler.capture.suggestions.rule import Rule

COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")
ITERATION = ("Missing tp_iternext", "Unsupported next() operation")
BUILTIN = ("Failed to trace builtin operator",)

RULES: tuple[Rule, ...] = (
    Rule(
        "{code} makes TorchDynamo fail by an error of its own: torch.compile raises it without tcompile too.",
        "Put it into a function with @torch.compiler.disable, and report the error to PyTorch.",
        kinds=("InternalTorchDynamoError",),
    ),
    Rule(
        "{code} asks for all names at once; torch follows them one by one.",
        "Name the variables that you mean.",
        kinds=BUILTIN,
        calls=r"globals|locals|vars|dir",
    ),
    Rule(
        "{code} makes code while it runs, which torch can't read ahead.",
        "Write the code out, or build the function before it is compiled.",
        kinds=BUILTIN,
        calls=r"exec|eval|compile|__import__",
    ),
    Rule(
        "{code} makes an object that torch does not follow.",
        "Make it once, outside of the compiled function.",
        kinds=BUILTIN,
        calls=r"object",
    ),
    Rule(
        "{code} calls a part of Python that torch does not follow with such arguments.",
        BEFORE,
        CONSTANT,
        kinds=BUILTIN,
    ),
    Rule(
        "{code} makes a class while the function runs.",
        "Define the class outside of the function.",
        kinds=("Invalid call to __build_class__", "LOAD_BUILD_CLASS bytecode not supported"),
    ),
    Rule(
        "{code} holds a lock, and a graph has no part that one thread runs at a time.",
        "Hold it around the call of the compiled function.",
        kinds=("Unsupported context manager", "unsupported contextlib.* API"),
        text=r"(.*[._])?[rR]?[lL]ock",
    ),
    Rule(
        "torch does not know what {code} does on entry and on exit.",
        "Enter it outside of the compiled function, around the call.",
        kinds=("Unsupported context manager", "unsupported contextlib.* API"),
    ),
    Rule(
        "{code} is a generator, which is not compiled by itself.",
        "Compile the function that consumes it.",
        kinds=("Attempt to trace generator",),
    ),
    Rule(
        "{code} raised while it was traced, and nothing in the function catches that.",
        "If it raises without torch.compile too, fix that. If not, it asks for something that tensors have only "
        "when they run (an address, an id, their text): do that outside of the compiled function.",
        kinds=("Observed exception",),
    ),
    Rule(
        "{code} is a function of its own before Python 3.12. The code around it runs as plain Python, and so does "
        "this.",
        "It is compiled with the code around it once the graph break there is gone.",
        kinds=ITERATION,
        when=lambda case: case.span.function in COMPREHENSIONS,
    ),
    Rule(
        "{code} moves an iterator on that was made outside of the function.",
        "Pass a list and index it, or take the item before the compiled function and pass it in.",
        kinds=ITERATION,
    ),
    Rule(
        "{code} can't be looped over: torch does not know how it gives its items.",
        "Make a list of it before the compiled function, and pass that in.",
        kinds=("missing tp_iter",),
    ),
    Rule(
        "{code} indexes something that torch does not know: it follows lists, tuples, dicts and tensors.",
        "Use a list, a tuple, a dict or a tensor.",
        kinds=("missing_mp_subscript", "missing_mp_subscript_impl", "missing_mp_ass_subscript"),
    ),
    Rule(
        "{code} is a kind of statement that torch does not read.",
        "Move it out, and compile the function inside it that does the tensor work.",
        kinds=("Missing bytecode handler",),
    ),
    Rule(
        "{code} calls a part of Python with arguments that torch does not follow.",
        "Write it with torch's operators (torch.minimum, torch.stack and min), or as a loop.",
        kinds=("invalid call to builtin op handler", "min/max with non-constant key"),
    ),
    Rule(
        "{code} works on Python objects with code written in C, which torch can't read.",
        BEFORE,
        CONSTANT,
        kinds=("vectorcall_maybe on C method descriptor",),
    ),
    Rule(
        "{code} is a generator that was left half-way.",
        "Use a list in its place.",
        kinds=("Generator reconstruction with mutations",),
    ),
    Rule(
        "{code} uses an object that torch does not follow.",
        BEFORE,
        kinds=(
            "Unsupported hasattr call",
            "unsupported hasattr operation",
            "setattr() on unsupported type",
            "Unsupported python_type() call",
            "Unexpected type in sourceless builder",
        ),
    ),
    Rule(
        "{code} calls a method that torch can't read.",
        BEFORE,
        OPERATOR,
        CONSTANT,
        kinds=("Unsupported method call", "Unsupported function call"),
    ),
)
