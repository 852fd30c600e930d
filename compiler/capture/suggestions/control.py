"""Breaks that the user asked for."""

from __future__ import annotations

from compiler.capture.suggestions.rewrites import without_statement
from compiler.capture.suggestions.rule import Change, Rule

RULES: tuple[Rule, ...] = (
    Rule(
        kinds=("Call to `torch._dynamo.graph_break()`", "Call to `torch._dynamo.skip_frame()`"),
        calls=r"(torch\._dynamo\.)?(graph_break|skip_frame)",
        what="{code} asks for a graph break.",
        changes=(Change("Take the line out.", without_statement),),
    ),
    Rule(
        calls=r".*\.(step|zero_grad)",
        kinds=("Call to `torch._dynamo.graph_break()`", "Attempted to inline function marked as skipped"),
        what="{code} changes parameters, which optimizers keep out of the graphs around them.",
        changes=(
            Change("Call it outside of the compiled function; torch.compile(optimizer.step) compiles it by itself."),
        ),
    ),
    Rule(
        kinds=("Call to `torch._dynamo.graph_break()`", "Call to `torch._dynamo.skip_frame()`"),
        what="{code} leads to code that asks for a graph break.",
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
