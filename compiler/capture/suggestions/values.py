"""Breaks where Python asks for the value or the size of a tensor, which a graph does not have until it runs."""

from __future__ import annotations

from compiler.capture.suggestions.rewrites import (
    assert_in_graph,
    branch_to_where,
    expression,
    is_index,
    is_looped,
    logical,
    negation,
    without_call,
)
from compiler.capture.suggestions.rule import Change, Rule

SCALARS = "torch._dynamo.config.capture_scalar_outputs = True"
SHAPES = "torch._dynamo.config.capture_dynamic_output_shape_ops = True"
ITEM = ("Unsupported Tensor.item() call with capture_scalar_outputs=False",)
BRANCH = ("Data-dependent branching", "Data-dependent branching with non-constant __bool__")
DYNAMIC_SHAPE = ("Dynamic shape operator", "Dynamic shape operator (no meta kernel)")

RULES: tuple[Rule, ...] = (
    Rule(
        kinds=ITEM,
        when=is_index,
        what="{code} picks by the number in a tensor, which is not known until the graph runs.",
        changes=(
            Change("Make a tensor of the list, before, and pick with table.index_select(0, index.unsqueeze(0))."),
        ),
    ),
    Rule(
        kinds=ITEM,
        calls=r".*\.item|float",
        what="{code} asks for the number in a tensor, which is not known until the graph runs.",
        changes=(
            Change("Stay in tensors: a tensor with one element works wherever its number would.", without_call),
            Change("Or let the graph hold the number as a symbol.", settings=(SCALARS,)),
        ),
    ),
    Rule(
        kinds=ITEM,
        what="{code} turns a tensor into a Python number, which is not known until the graph runs.",
        changes=(Change("Let the graph hold the number as a symbol.", settings=(SCALARS,)),),
    ),
    Rule(
        kinds=("Tensor.tolist() with non-integer tensor",),
        what="{code} asks for the numbers in a tensor, which are not known until the graph runs.",
        changes=(Change("Take the tensor apart into tensors of one element.", expression("list({self}.unbind())")),),
    ),
    Rule(
        kinds=BRANCH,
        what="Which way Python goes on at {code} depends on the numbers in a tensor.",
        changes=(
            Change("Compute both and choose inside the graph with torch.where.", branch_to_where),
            Change("Combine conditions as tensors: Python's `and` and `or` ask for their truth.", logical),
            Change("An assert whose message is a constant, or left out, becomes part of the graph.", assert_in_graph),
            Change(
                "Or put both branches into functions and call torch.cond(condition, if_true, if_false, operands); "
                "for a loop, torch.while_loop(condition, body, operands)."
            ),
        ),
    ),
    Rule(
        kinds=("Data dependent operator",),
        text=r"(np|numpy)\.random\..*",
        what="{code} draws a random number with NumPy, and Python needs it while the graph is captured.",
        changes=(
            Change(
                "Draw it as a tensor, with torch (torch.rand, torch.randint, torch.randperm); or before the compiled "
                "function, and pass it in."
            ),
        ),
    ),
    Rule(
        kinds=("Data dependent operator",),
        calls=r"torch\.equal|.*\.equal",
        what="{code} gives a Python bool that depends on the numbers in its tensors.",
        changes=(Change("Compare inside the graph, and choose with torch.where.", expression("({0} == {1}).all()")),),
    ),
    Rule(
        kinds=("Data dependent operator",),
        calls=r"torch\.allclose|.*\.allclose",
        what="{code} gives a Python bool that depends on the numbers in its tensors.",
        changes=(
            Change(
                "Compare inside the graph, and choose with torch.where.",
                expression("torch.isclose({0}, {1}).all()"),
            ),
        ),
    ),
    Rule(
        kinds=("Data dependent operator",),
        text=r"not .*",
        what="{code} asks Python for the truth of a tensor, which is not known until the graph runs.",
        changes=(Change("Negate it as a tensor.", negation),),
    ),
    Rule(
        kinds=("Data dependent operator",),
        calls=r".*\.tolist",
        what="{code} asks for the numbers in a tensor, which are not known until the graph runs.",
        changes=(Change("Let the graph hold the numbers as symbols.", settings=(SCALARS,)),),
    ),
    Rule(
        kinds=("Data dependent operator",),
        what="{code} gives Python a value that depends on the numbers in a tensor.",
        changes=(Change("Stay in tensors; numbers that Python has to know, pass in as arguments."),),
    ),
    Rule(
        kinds=DYNAMIC_SHAPE,
        calls=r"torch\.masked_select|.*\.masked_select",
        what="The size of what {code} gives depends on the numbers in its tensor.",
        changes=(
            Change("Keep the size: put zeros where the mask is off.", expression("torch.where({1}, {0}, 0)")),
            Change("Or let the graph hold the size as a symbol.", settings=(SHAPES,)),
        ),
    ),
    Rule(
        kinds=DYNAMIC_SHAPE,
        what="The size of what {code} gives depends on the numbers in its tensor.",
        changes=(
            Change("Let the graph hold the size as a symbol.", settings=(SHAPES,)),
            Change("Or keep the size: torch.where(mask, x, 0) instead of x[mask], torch.topk with a fixed k."),
        ),
    ),
    Rule(
        kinds=("UserError",),
        when=is_looped,
        what="How often the loop over {code} goes round depends on the numbers in a tensor.",
        changes=(
            Change(
                "Loop over all that there could be, and leave out what is not wanted with torch.where; or use "
                "torch.while_loop."
            ),
        ),
    ),
    Rule(
        kinds=("UserError",),
        what="{code} asks for a size or a number that is open in the graph until it runs.",
        changes=(
            Change("Say what holds of it, with torch._check(condition); or stay in tensors: torch.where, torch.cond."),
        ),
    ),
    Rule(
        kinds=("Dynamic slicing with Tensor arguments",),
        what="{code} slices by a tensor, whose number is not known until the graph runs.",
        changes=(Change("Slice by a Python int, or let the graph hold the number as a symbol.", settings=(SCALARS,)),),
    ),
    Rule(
        kinds=("Data-dependent assertion failed (cannot compile partial graph)",),
        what="{code} is checked while the graph is captured, where the numbers are not known.",
        changes=(Change("State it with torch._check(condition), which becomes part of the graph."),),
    ),
    Rule(
        kinds=("Failed to trace builtin operator",),
        calls=r"range",
        what="{code} repeats as often as a tensor says, which is not known until the graph runs.",
        changes=(Change("Loop up to a fixed number and mask with torch.where, or use torch.while_loop."),),
    ),
    Rule(
        kinds=("sort with non-constant keys",),
        what="{code} compares tensors in Python, which depends on the numbers in them.",
        changes=(Change("Sort inside the graph.", expression("torch.stack({0}).sort().values")),),
    ),
    Rule(
        kinds=("repr() on tensor",),
        what="{code} writes the numbers in a tensor as text, which are not known until the graph runs.",
        changes=(Change("Make the text after the compiled function has returned."),),
    ),
)
