"""Breaks at parts of Python itself that TorchDynamo does not read."""

from __future__ import annotations

from compiler.capture.suggestions.calls import BEFORE, CONSTANT, OPERATOR
from compiler.capture.suggestions.rule import Change, Rule

COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")
BUILTIN = ("Failed to trace builtin operator",)

RULES: tuple[Rule, ...] = (
    Rule(
        kinds=BUILTIN,
        calls=r"globals|locals|vars|dir",
        what="{code} asks for all names at once; torch follows them one by one.",
        changes=(Change("Name the variables that you mean."),),
    ),
    Rule(
        kinds=BUILTIN,
        calls=r"exec|eval|compile|__import__",
        what="{code} makes code while it runs, which torch can't read ahead.",
        changes=(Change("Write the code out, or build the function before it is compiled."),),
    ),
    Rule(
        kinds=BUILTIN,
        calls=r"object",
        what="{code} makes an object that torch does not follow.",
        changes=(Change("Make it once, outside of the compiled function."),),
    ),
    Rule(
        kinds=BUILTIN,
        what="{code} calls a part of Python that torch does not follow with such arguments.",
        changes=(Change(BEFORE), Change(CONSTANT)),
    ),
    Rule(
        kinds=("Invalid call to __build_class__", "LOAD_BUILD_CLASS bytecode not supported"),
        what="{code} makes a class while the function runs.",
        changes=(Change("Define the class outside of the function."),),
    ),
    Rule(
        kinds=("Unsupported context manager", "unsupported contextlib.* API"),
        what="torch does not know what {code} does on entry and on exit.",
        changes=(Change("Enter it outside of the compiled function, around the call."),),
    ),
    Rule(
        kinds=("Attempt to trace generator",),
        what="{code} is a generator, which is not compiled by itself.",
        changes=(Change("Compile the function that consumes it."),),
    ),
    Rule(
        kinds=("Observed exception",),
        what="{code} raised while it was traced, and nothing in the function catches that.",
        changes=(
            Change(
                "If it raises without torch.compile too, mend it. If not, it asks for something that tensors have only "
                "when they run (an address, an id, their text): do that outside of the compiled function."
            ),
        ),
    ),
    Rule(
        kinds=("Missing tp_iternext", "Unsupported next() operation"),
        when=lambda case: case.span.function in COMPREHENSIONS,
        what="{code} is a function of its own before Python 3.12. The code around it runs as plain Python, and so does "
        "this.",
        changes=(Change("It is compiled with the code around it once the graph break there is gone."),),
    ),
    Rule(
        kinds=("Missing tp_iternext", "Unsupported next() operation"),
        what="{code} moves an iterator on that was made outside of the function.",
        changes=(Change("Pass a list and index it, or take the item before the compiled function and pass it in."),),
    ),
    Rule(
        kinds=("missing tp_iter",),
        what="{code} can't be looped over: torch does not know how it gives its items.",
        changes=(Change("Make a list of it before the compiled function, and pass that in."),),
    ),
    Rule(
        kinds=("missing_mp_subscript", "missing_mp_subscript_impl", "missing_mp_ass_subscript"),
        what="{code} indexes something that torch does not know: it follows lists, tuples, dicts and tensors.",
        changes=(Change("Use a list, a tuple, a dict or a tensor."),),
    ),
    Rule(
        kinds=("Missing bytecode handler",),
        what="{code} is a kind of statement that torch does not read.",
        changes=(Change("Move it out, and compile the function inside it that does the tensor work."),),
    ),
    Rule(
        kinds=("Unsupported hasattr call",),
        what="{code} asks an object that torch does not follow what it has.",
        changes=(Change(BEFORE),),
    ),
    Rule(
        kinds=("invalid call to builtin op handler",),
        what="{code} calls a part of Python with arguments that torch does not follow.",
        changes=(Change("Write it with torch's operators (torch.minimum, torch.stack and min), or as a loop."),),
    ),
    Rule(
        kinds=("vectorcall_maybe on C method descriptor",),
        what="{code} works on Python objects with code written in C, which torch can't read.",
        changes=(Change(BEFORE), Change(CONSTANT)),
    ),
    Rule(
        kinds=("Generator reconstruction with mutations",),
        what="{code} is a generator that was left half-way.",
        changes=(Change("Use a list in its place."),),
    ),
    Rule(
        kinds=("Unsupported python_type() call", "Unexpected type in sourceless builder"),
        what="{code} meets an object that torch does not follow.",
        changes=(Change(BEFORE),),
    ),
    Rule(
        kinds=("Unsupported method call", "Unsupported function call"),
        what="{code} calls a method that torch can't read.",
        changes=(Change(BEFORE), Change(OPERATOR), Change(CONSTANT)),
    ),
)
