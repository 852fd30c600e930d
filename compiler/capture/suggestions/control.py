"""Breaks that the user asked for."""

from __future__ import annotations

from compiler.capture.suggestions.rewrites import without_statement
from compiler.capture.suggestions.rule import Change, Rule

GRAPH_BREAK = ("Call to `torch._dynamo.graph_break()`",)
DISABLED = (
    "Skip calling `torch.compiler.disable()`d function",
    "Skip inlining `torch.compiler.disable()`d function",
)
TOLD_NOT_TO = ("Attempted to inline function marked as skipped",)

RULES: tuple[Rule, ...] = (
    Rule(
        kinds=(*GRAPH_BREAK, "Call to `torch._dynamo.skip_frame()`"),
        calls=r"(torch\._dynamo\.)?(graph_break|skip_frame)",
        when=lambda case: not case.span.installed,
        what="{code} asks for a graph break.",
        changes=(Change("Take the line out.", without_statement),),
    ),
    Rule(
        kinds=(*GRAPH_BREAK, *DISABLED),
        calls=r".*\.step",
        what="{code} changes parameters, which optimizers keep out of the graphs around them.",
        changes=(
            Change("Call it outside of the compiled function; torch.compile(optimizer.step) compiles it by itself."),
        ),
    ),
    Rule(
        kinds=TOLD_NOT_TO,
        calls=r".*\.(step|zero_grad|unscale_)|.*scaler\.(scale|update)|(.*\.)?GradScaler",
        what="{code} belongs to the training loop, which torch keeps out of graphs.",
        changes=(
            Change(
                "Compile what goes from the inputs to the loss. Leave scaling the loss, backward(), the optimizer and "
                "its schedule outside of the compiled function."
            ),
        ),
    ),
    Rule(
        kinds=(*GRAPH_BREAK, "Call to `torch._dynamo.skip_frame()`"),
        what="{code} asks for a graph break, in code that is not yours.",
        changes=(Change("Call it outside of the compiled function."),),
    ),
    Rule(
        kinds=("Skip calling `torch.compiler.disable()`d function",),
        calls=r"torch\.jit\..*",
        what="{code} runs another compiler.",
        changes=(Change("torch.compile takes its place: call the function itself."),),
    ),
    Rule(
        kinds=("Skip calling `torch.compiler.disable()`d function",),
        what="{code} calls a function that torch.compiler.disable keeps out of graphs.",
        changes=(
            Change(
                "Take the decorator off. If the function can't be traced, register it with torch.library.custom_op: "
                "the graph then calls it as one operator."
            ),
        ),
    ),
    Rule(
        kinds=("Skip inlining `torch.compiler.disable()`d function",),
        what="{code} calls a function that torch.compiler.disable keeps out of graphs.",
        changes=(Change("Take the decorator off, or register the function with torch.library.custom_op."),),
    ),
)
