"""Rules for breaks where Python needs a tensor's value or size, which is unknown until the graph runs."""

from __future__ import annotations

from compiler.capture.suggestions import branches, loops, rewrites, uses, while_loops
from compiler.capture.suggestions.calls import MOVES
from compiler.capture.suggestions.case import Case
from compiler.capture.suggestions.rule import Change, Rule

SCALARS = "torch._dynamo.config.capture_scalar_outputs = True"
SHAPES = "torch._dynamo.config.capture_dynamic_output_shape_ops = True"
ITEM = ("Unsupported Tensor.item() call with capture_scalar_outputs=False",)
BRANCH = ("Data-dependent branching", "Data-dependent branching with non-constant __bool__")
AS_TENSOR = (
    "A tensor takes the place of the number: code after it that needs a Python number (`if`, range(), an index) breaks "
    "the graph there."
)
AS_SYMBOL = (
    "What Python does with the number decides: an `if`, a loop or range() on it breaks the graph there, or raises a "
    "data-dependent error."
)
NAN_CHECK = (
    "It raises RuntimeError when the graph runs; on a GPU that is a device-side assertion, which ends the use of the "
    "GPU in this process."
)
BOTH_SIDES = (
    "Both sides are computed on every call. They need the same shape and dtype, and neither may fail where the other "
    "is meant; a gradient through an infinite value of the other side is NaN."
)
EVERY_ITERATION = (
    "Every iteration runs on every call. What the iterations that were left out would compute must have the same shape "
    "and dtype, and may not fail."
)
LOOP_OVER_ALL = "Loop over all that there could be, and leave out what is not wanted with torch.where"
UNKNOWN = tuple(
    f"Could not {what} data-dependent expression" for what in ("guard on", "extract specialized integer from")
)
"""Errors of torch.export where Python asks for a number that the graph holds as a symbol."""
DYNAMIC_SHAPE = ("Dynamic shape operator", "Dynamic shape operator (no meta kernel)")


def _is_python_only(case: Case) -> bool:
    return uses.needs_python(case) or uses.is_int_of_truth(case)


_SYMBOL = Change(
    "Or let the graph hold the number as a symbol.",
    settings=(SCALARS,),
    caveat=AS_SYMBOL,
    safe=uses.is_combined_with_its_tensor,
    unless=_is_python_only,
    otherwise="Or pass the number in as an argument, or stay in tensors: torch.where, torch.cond, "
    f"torch.while_loop. {MOVES}",
)


def _is_looped_over(case: Case) -> bool:
    return uses.is_looped(case) or uses.needs_python(case)


_ALL_ITERATIONS = Change(
    "Run every iteration, and keep the values of those that count with torch.where.",
    loops.loop_to_where,
    caveat=EVERY_ITERATION,
)

_SIZE = Change(
    "Or let the graph hold the size as a symbol.",
    settings=(SHAPES,),
    caveat="A loop over the result, or an `if` on its size, breaks the graph there.",
    unless=_is_looped_over,
    otherwise=f"{LOOP_OVER_ALL}. As a symbol, the size would only move the break to the loop.",
)


_CHOOSE = Change(
    "Compute both and choose inside the graph with torch.where.",
    branches.branch_to_where,
    caveat=BOTH_SIDES,
    when=branches.branches,
)
_CHOOSE_NUMBERS = Change(
    "Choose the numbers inside the graph, which then holds them as symbols.",
    branches.numbers_to_where,
    settings=(SCALARS,),
    caveat=BOTH_SIDES,
    when=branches.assigns_numbers,
)
_WHILE_LOOP = Change(
    "Loop inside the graph with torch.while_loop.",
    while_loops.loop_in_graph,
    caveat="What the loop assigns has to keep its shape and dtype.",
    when=while_loops.repeats,
)
_NO_SKIP = Change(
    "Leave the check out: code for no rows may do nothing.",
    loops.without_skip,
    caveat="What follows then runs for an empty tensor too: it must not fail, and it must change nothing.",
    when=loops.skips,
)
_CHECK = Change("Check it inside the graph.", branches.assert_in_graph, caveat=NAN_CHECK, when=branches.checks)


RULES: tuple[Rule, ...] = (
    Rule(
        "{code} repeats as often as a tensor says, which is not known until the graph runs.",
        _WHILE_LOOP,
        "Loop up to a fixed number and mask with torch.where, or use torch.while_loop.",
        kinds=("Failed to trace builtin operator", *ITEM),
        calls=r"range",
    ),
    Rule(
        "{code} repeats as often as a tensor says, which is not known until the graph runs.",
        _WHILE_LOOP,
        kinds=ITEM,
        when=while_loops.repeats,
    ),
    Rule(
        "{code} asks for the number in a tensor, to print it, and a graph does neither.",
        Change("Print the tensor from inside the graph.", rewrites.print_in_graph),
        "Or print after the compiled function has returned.",
        kinds=ITEM,
        when=rewrites.is_printed,
    ),
    Rule(
        "{code} picks by the number in a tensor, which is not known until the graph runs.",
        "Make a tensor of the list, before, and pick with table.index_select(0, index.unsqueeze(0)).",
        kinds=(*ITEM, *UNKNOWN),
        when=uses.is_index,
    ),
    Rule(
        "{code} asks for the number in a tensor to check it, and the number is not known until the graph runs.",
        Change("Check it inside the graph.", branches.assert_in_graph, caveat=NAN_CHECK),
        "Or check what the compiled function returns, outside of it.",
        kinds=ITEM,
        calls=r".*\.item|float",
        when=branches.is_checked_number,
    ),
    Rule(
        "{code} asks for the number in a tensor to end a loop by it, and the number is not known until the graph runs.",
        _ALL_ITERATIONS,
        kinds=ITEM,
        calls=r".*\.item|float",
        when=loops.ends_loop,
    ),
    Rule(
        "{code} asks for the number in a tensor to choose by it, and the number is not known until the graph runs.",
        Change(
            "Compute both and choose inside the graph with torch.where.", branches.branch_to_where, caveat=BOTH_SIDES
        ),
        _CHOOSE_NUMBERS,
        kinds=ITEM,
        calls=r".*\.item|float",
        when=branches.is_choosing_number,
    ),
    Rule(
        "{code} asks for the number in a tensor, which is not known until the graph runs.",
        Change(
            "Stay in tensors: a tensor with one element takes the number's place in arithmetic.",
            rewrites.without_call,
            caveat=AS_TENSOR,
            safe=uses.is_combined_with_its_tensor,
        ),
        Change("Compute it with torch, in tensors.", rewrites.in_torch, caveat=AS_TENSOR),
        _SYMBOL,
        kinds=ITEM,
        calls=r".*\.item|float",
    ),
    Rule(
        "{code} turns a tensor into a Python number, which is not known until the graph runs.",
        _SYMBOL,
        kinds=ITEM,
    ),
    Rule(
        "{code} asks for the numbers in a tensor, which are not known until the graph runs.",
        Change(
            "Take the tensor apart into tensors of one element.",
            rewrites.expression("list({self}.unbind())"),
            caveat=AS_TENSOR,
            unless=uses.needs_python,
        ),
        Change(
            "Or let the graph hold the numbers as symbols.",
            rewrites.numbers_by_item,
            settings=(SCALARS,),
            caveat=f"It is the same for a tensor of one dimension. {AS_SYMBOL}",
        ),
        "Or call tolist() on what the compiled function returns.",
        kinds=("Tensor.tolist() with non-integer tensor",),
    ),
    Rule(
        "The branch on {code} depends on tensor data.",
        Change(
            "Compute both and choose inside the graph with torch.where.",
            branches.branch_to_where,
            caveat=BOTH_SIDES,
            safe=branches.chooses_alike,
            when=branches.branches,
        ),
        _CHOOSE_NUMBERS,
        _ALL_ITERATIONS,
        _WHILE_LOOP,
        _NO_SKIP,
        Change(
            "Combine conditions as tensors: Python's `and` and `or` ask for their truth.",
            branches.logical,
            caveat=AS_TENSOR,
            when=branches.branches,
        ),
        _CHECK,
        Change("Or check what the compiled function returns, outside of it.", when=branches.checks),
        Change(
            "Or put both branches into functions and call torch.cond(condition, if_true, if_false, operands).",
            when=branches.branches,
        ),
        Change(
            "Write the loop as torch.while_loop(condition, body, operands).",
            when=branches.repeats,
            unless=while_loops.repeats,
        ),
        kinds=BRANCH,
    ),
    Rule(
        "{code} draws a random number with NumPy, and Python needs it while the graph is captured.",
        "Draw it as a tensor, with torch (torch.rand, torch.randint, torch.randperm); or before the compiled "
        "function, and pass it in.",
        kinds=("Data dependent operator",),
        text=r"(np|numpy)\.random\..*",
    ),
    Rule(
        "{code} gives a Python bool that depends on the numbers in its tensors.",
        _CHOOSE,
        _CHOOSE_NUMBERS,
        _CHECK,
        Change(
            "Compare inside the graph.",
            branches.comparison,
            caveat="The tensors need shapes that go together, and a tensor takes the place of the bool: an `if` on it "
            "breaks the graph there.",
            unless=uses.needs_python,
            otherwise="Compare inside the graph, by (a == b).all() or torch.isclose(a, b).all(), and choose with "
            f"torch.where in the same edit. {MOVES}",
        ),
        kinds=("Data dependent operator",),
        calls=r"torch\.(equal|allclose)|.*\.(equal|allclose)",
    ),
    Rule(
        "{code} asks Python for the truth of a tensor, which is not known until the graph runs.",
        _CHOOSE,
        _CHOOSE_NUMBERS,
        _CHECK,
        Change(
            "Negate it as a tensor.",
            branches.negation,
            caveat=AS_TENSOR,
            unless=uses.needs_python,
            otherwise=f"Negate it as a tensor, and choose with torch.where. {MOVES}",
        ),
        kinds=("Data dependent operator",),
        text=r"not .*",
    ),
    Rule(
        "{code} asks for the numbers in a tensor, which are not known until the graph runs.",
        Change("Let the graph hold the numbers as symbols.", settings=(SCALARS,), caveat=AS_SYMBOL),
        kinds=("Data dependent operator",),
        calls=r".*\.tolist",
    ),
    Rule(
        "{code} picks by the number in a tensor, which is not known until the graph runs.",
        Change(
            "Pick inside the graph, by a tensor of one index.",
            rewrites.select_by_tensor,
            caveat="It is the same if the index is a tensor of one integer.",
        ),
        kinds=("Data dependent operator", "UserError"),
        when=rewrites.is_pick,
    ),
    Rule(
        "{code} gives Python a value that depends on the numbers in a tensor.",
        "Stay in tensors; numbers that Python has to know, pass in as arguments.",
        kinds=("Data dependent operator",),
    ),
    Rule(
        "The size of what {code} gives depends on the numbers in its tensor.",
        Change(
            "Keep the size: put zeros where the mask is off.",
            rewrites.expression("torch.where({1}, {0}, 0)"),
            caveat="The result has the size of the whole tensor. A sum stays the same; a mean, a maximum, a "
            "count or an index does not.",
        ),
        _SIZE,
        kinds=DYNAMIC_SHAPE,
        calls=r"torch\.masked_select|.*\.masked_select",
    ),
    Rule(
        "The size of what {code} gives depends on the numbers in its tensor, and a loop goes over it.",
        Change(
            "Loop over all entries, in a fixed number of iterations; let the graph hold other sizes as symbols.",
            rewrites.all_indices,
            settings=(SHAPES,),
            caveat="The loop also runs for entries that are zero: it must gather nothing for them.",
        ),
        kinds=DYNAMIC_SHAPE,
        calls=r".*\.nonzero",
        when=lambda case: rewrites.all_indices(case) is not None,
    ),
    Rule(
        "The size of what {code} gives depends on the numbers in its tensor.",
        _SIZE,
        "Or keep the size: torch.where(mask, x, 0) instead of x[mask], torch.topk with a fixed k.",
        kinds=DYNAMIC_SHAPE,
    ),
    Rule(
        "The number of iterations of the loop over {code} depends on tensor data.",
        _WHILE_LOOP,
        f"{LOOP_OVER_ALL}; or use torch.while_loop.",
        kinds=("UserError",),
        when=uses.is_looped,
    ),
    Rule(
        "The choice by {code} depends on a number that is not known until the graph runs.",
        Change(
            "Choose the number inside the graph.",
            branches.choose_number,
            settings=(SCALARS,),
            caveat="The chosen number is a symbol too: an `if` on it breaks the graph there.",
        ),
        kinds=("UserError",),
        when=branches.is_number_choice,
    ),
    Rule(
        "{code} asks for the value of a data-dependent size or number, which is not known until the graph runs.",
        _NO_SKIP,
        "State what is true of it with torch._check(condition); or stay in tensors: torch.where, torch.cond.",
        kinds=("UserError",),
    ),
    Rule(
        "{code} converts a number that is not known until the graph runs.",
        Change(
            "Convert the tensor, and take the number from it, which the graph holds as a symbol: "
            "tensor.long().item() for an int, tensor.double().item() for a float.",
            rewrites.converted_in_graph,
            caveat="Where Python then asks for the number (an `if`, a loop, an index), export stops again.",
        ),
        kinds=UNKNOWN,
        calls=r"int|float",
    ),
    Rule(
        "{code} repeats as often as a number says that is not known until the graph runs.",
        f"{LOOP_OVER_ALL}; or use torch.while_loop, with the number left a tensor (without .item()).",
        kinds=UNKNOWN,
        when=uses.is_looped,
    ),
    Rule(
        "{code} asks for a number that is not known until the graph runs.",
        "If it always holds, state it before, of the same Python number: torch._check(condition).",
        "Or put both branches into functions and call torch.cond(condition, if_true, if_false, operands).",
        kinds=UNKNOWN,
    ),
    Rule(
        "{code} slices by a tensor, whose number is not known until the graph runs.",
        Change(
            "Slice by a Python int, or let the graph hold the number as a symbol.",
            settings=(SCALARS,),
            caveat=AS_SYMBOL,
        ),
        kinds=("Dynamic slicing with Tensor arguments",),
    ),
    Rule(
        "{code} is checked while the graph is captured, where the numbers are not known.",
        "State it with torch._check(condition), which becomes part of the graph.",
        kinds=("Data-dependent assertion failed (cannot compile partial graph)",),
    ),
    Rule(
        "{code} compares tensors in Python, which depends on the numbers in them.",
        Change(
            "Sort inside the graph.",
            rewrites.expression("torch.stack({0}).sort().values"),
            caveat="A tensor takes the place of the list: code after it that needs a list has to change too.",
        ),
        kinds=("sort with non-constant keys",),
    ),
    Rule(
        "{code} writes the numbers in a tensor as text, which are not known until the graph runs.",
        "Make the text after the compiled function has returned.",
        kinds=("repr() on tensor",),
    ),
)
