"""Advice on recompilations, by their cause."""

from __future__ import annotations

import re
from collections.abc import Sequence

from compiler.record import Applicability, GuardFailure

DUCK = "import torch.fx.experimental._config; torch.fx.experimental._config.use_duck_shape = False"
UNSPECIALIZED = "torch._dynamo.config.allow_unspec_int_on_nn_module = True"

DYNAMIC = "dynamic=True"
"""Part of all advice that can be followed by this argument of torch.compile, and of no other."""

IDENTITY = "identity"
_DIMENSION = re.compile(r" in dimension (\d+)|\.size\((\d+)\)")
_ADVICE: dict[str, str] = {
    "type": "Pass `{argument}` with the same type on every call.",
    "shape": (
        "If `{argument}` comes in many sizes, declare it dynamic before the first call: "
        f"torch._dynamo.mark_dynamic({{argument}}, {{dimension}}), or compile with {DYNAMIC}."
    ),
    "condition on sizes": (
        "The code for symbolic sizes holds only where `{old}`. If 0 or 1 is a size like any other, declare it for "
        "every argument that has it: torch._dynamo.decorators.mark_unbacked({first}, {dimension}); or pad to sizes "
        "that fit."
    ),
    "equal sizes": (
        "torch assumes that symbolic sizes that are equal in the first call stay equal (`{old}`). Tell it not to, or "
        "let the first call have different ones."
    ),
    "number of dimensions": (
        "Give `{argument}` the same number of dimensions on every call: unsqueeze or flatten it before."
    ),
    "dtype": "Convert `{argument}` before the call: {argument}.to(torch.{old}).",
    "stride": "Give `{argument}` the same memory layout on every call: {argument}.contiguous().",
    "device": "Move `{argument}` before the call: {argument}.to('{old}').",
    "requires_grad": (
        "Pass `{argument}` with the same requires_grad on every call: {argument}.detach() where no gradient is wanted, "
        "or all the calls under torch.no_grad()."
    ),
    "grad mode": (
        "Call it in the same grad mode every time. Training and inference each need code of their own: one compilation "
        "each."
    ),
    "autocast": "Call it under the same autocast setting every time.",
    "default dtype": "Set the default dtype once, before the first call.",
    "torch setting": "Set it once, before the first call.",
    "number": (
        "torch keeps a number that it has seen only once as a constant. Pass it as a tensor, torch.tensor({argument}), "
        f"or compile with {DYNAMIC}."
    ),
    "flag": (
        "Each value of `{argument}` takes its own branch, and its own code. If it changes often, make it a tensor and "
        "choose with torch.where."
    ),
    "string": (
        "Each value of `{argument}` gets its own code. Pass what it stands for (a number, a function) if there are "
        "many."
    ),
    "training mode": (
        "model.train() and model.eval() each need code of their own. Switch once a phase, not once a step; compile a "
        "copy for each if both are called in turn."
    ),
    "module attribute": (
        "`{argument}` changes between calls, and torch keeps it as a constant. Hold it in a tensor that is changed in "
        "place (register_buffer), or change it outside of the compiled function."
    ),
    "module structure": "Modules or parameters were added or taken away. Build the module whole, then compile.",
    "length": (
        "`{argument}` has another length or other keys. Pass a tensor (torch.stack, padded), or the same number of "
        "items every time."
    ),
    "global": "`{name}` is a global that changes between calls. Pass it as an argument, as a tensor.",
    "closure": (
        "The function was created again, around another value. Create it once, and pass the value as an argument, as a "
        "tensor."
    ),
    "function": "Another function is passed on each call. Make it once, outside of the loop, and pass that one.",
    "aliasing": (
        "Arguments that are one tensor in one call and several in another make for two versions. Pass copies of what "
        "is passed twice: x.clone()."
    ),
    "marking": "Mark the same dimensions of `{argument}` as dynamic or static on every call.",
    "object": "Pass the same object every time; torch can't tell that another one is equivalent.",
    "value": "Pass the same value every time, or a tensor.",
    "tensor": (
        "Pass the same kind of tensor every time. `{argument}`.clone(), outside of inference mode, makes an ordinary "
        "tensor of one that was made in inference mode."
    ),
    "condition": (
        "The code holds only where `{old}`: something compares `{argument}`, or takes it as a constant. Pass it as a "
        "tensor, or a value for which that holds."
    ),
    "race": (
        "The guards held when torch looked for the reason: another thread compiled the same code meanwhile. Call it "
        "once in one thread before the others start."
    ),
    IDENTITY: (
        "`{argument}` is created again for each call, and torch drops the compiled code with the object it was for. "
        "Create it once, outside of the compiled function, and pass the same object."
    ),
}
_SMALL = (
    "torch compiles separate code for sizes 0 and 1, also if sizes are dynamic. To share one code, if nothing depends "
    "on the size and a size of 1 is not broadcast: torch._dynamo.decorators.mark_unbacked({argument}, {dimension}) "
    "before the first call. Or pad to sizes from 2."
)
_INT = (
    f"torch keeps a number that it has seen only once as a constant. Compile with {DYNAMIC}; or, if the code only "
    "computes with it (it is no size, index or end of a slice), pass it as a tensor, torch.tensor({argument})."
)
_OF_MODULE = (
    "`{argument}` belongs to a module, and the code was compiled for its earlier state. Convert, move, freeze or "
    "replace what a module holds before the first call: each version needs its own compilation."
)
_INT_OF_MODULE = (
    "`{argument}` changes between calls, and torch keeps it as a constant. Hold it in a tensor that is changed in "
    f"place (register_buffer); or compile with {DYNAMIC} and this setting, which makes the ints of modules symbolic."
)
_UNNAMED = "The code holds only where `{old}`. Pass values for which that holds."
_GROWING = (
    "Each length of `{name}` gets code of its own. Return the value from the compiled function and append it outside; "
    "or write it in place into a tensor of a fixed size (in a module, register_buffer)."
)
_STATE = (
    "`{argument}` is part of an object that is now in another state. Each state takes its own branch, and its own "
    "code: two states take two compilations, and no more."
)
_GLOBAL_OBJECT = (
    "`{name}` belongs to a global object and changes between calls. If it changes once, give it its final value "
    "before the first call; if it changes often, pass it as an argument, a number as a tensor."
)
_LEARNING_RATE = (
    "`{argument}` changes between calls, and torch keeps it as a constant. Give the optimizer a tensor: "
    "lr=torch.tensor(0.001)."
)
_SETTINGS = {_ADVICE["equal sizes"]: (DUCK,), _INT_OF_MODULE: (UNSPECIALIZED,)}
"""Settings with the same effect as a piece of advice, by the text of the advice."""
_OF_TENSORS = ("type", "shape", "number of dimensions", "dtype", "stride", "device", "requires_grad")
CAUSES = tuple(_ADVICE)
"""All causes of recompilation, in order of priority."""


def advise_on(failure: GuardFailure, *, of_module: bool) -> tuple[str, tuple[str, ...]]:
    """Advice in words, and the settings with the same effect, () if there are none.

    `of_module` is whether what changed is reached through a module.
    """
    text = _particular(failure, of_module) or _ADVICE[failure.cause]
    dimension = _DIMENSION.search(failure.words)
    names = {
        "argument": failure.argument,
        "first": failure.argument.partition(" ")[0],
        "name": failure.argument.removeprefix("global "),
        "old": failure.old,
        "dimension": dimension[1] or dimension[2] if dimension else "0",
    }
    return text.format(**names), _SETTINGS.get(text, ())


def _particular(failure: GuardFailure, of_module: bool) -> str:
    """Advice more specific than the cause's general advice; "" if there is none."""
    is_part = "." in failure.argument or "[" in failure.argument
    if re.search(r"\._(?:parameters|buffers)\[", failure.source) and failure.cause in _OF_TENSORS:
        return _OF_MODULE
    if failure.cause in ("condition", "condition on sizes") and not failure.argument:
        return _UNNAMED
    if failure.cause == "shape" and {failure.old, failure.new} & {"0", "1"}:
        return _GROWING if of_module else _SMALL
    if failure.cause == "module attribute" and {failure.old, failure.new} & {"True", "False", "None"}:
        return _STATE
    if failure.cause in ("flag", "global") and is_part:
        return _STATE if failure.cause == "flag" else _GLOBAL_OBJECT
    if failure.cause == "module attribute" and failure.argument.endswith("['lr']"):
        return _LEARNING_RATE
    if failure.cause in ("number", "module attribute") and failure.new.startswith("the int "):
        return _INT_OF_MODULE if of_module else _INT
    is_attribute = of_module or failure.source.startswith("L['self']") or "._modules[" in failure.source
    is_global_length = failure.cause == "global" and " item" in failure.words
    return _GROWING if is_global_length or (failure.cause == "length" and is_attribute) else ""


def applicability(settings: Sequence[str], others: str) -> Applicability:
    """Applicability of advice: settings alone prevent a recompilation only if no other conditions remain."""
    return "explanation" if not settings else "maybe" if others else "machine-applicable"


def other_conditions(first: GuardFailure, nearest: Sequence[GuardFailure]) -> str:
    """Describe other changes that would cause a recompilation despite the advice; "" if there are none.

    Symbolic sizes and numbers count as one cause, together with the conditions derived from them. So do a tensor's
    `requires_grad` and the attribute of that name, which torch checks, too, for a DTensor.
    """
    together = {*SIZES, *CONDITIONS} if first.cause in SIZES else {first.cause, *CONDITIONS}
    own = f".{first.cause}"
    apart = [item for item in nearest if item.cause not in together and not item.argument.endswith(own)]
    others = {item.cause: item for item in reversed(apart)}
    told = [item.words for item in nearest if others.get(item.cause) is item]
    if not told:
        return ""
    more = f", and {len(told) - 2} more" if len(told) > 2 else ""
    return f" It takes more than that: {'; '.join(told[:2])}{more}."


CONDITIONS = ("stride", "condition", "condition on sizes", "equal sizes")
"""Causes that may follow from another cause."""
SIZES = ("shape", "number", "condition on sizes")
"""Causes that originate in arguments of the compiled function, wherever they are detected."""


def inner_advice(function: str, resumes: bool) -> str:
    """Advice for an inner function that is compiled by itself, or for a resume function."""
    if resumes:
        return (
            f"This is the rest of `{function}` after a graph break, recompiled whenever `{function}` is. Remove the "
            f"break, or compile with {DYNAMIC}."
        )
    return (
        f"`{function}` is compiled by itself: a graph break keeps it out of its caller's graph. Remove the break, mark "
        f"its arguments dynamic, or compile with {DYNAMIC}."
    )


ON_THE_STACK = (
    "The graph breaks in the middle of an expression, where Python holds a value that is created for each call, such "
    "as the method `append` in `values.append(x.item())`; the code after the break is for that value. Move the call "
    "that breaks to a line of its own: `value = x.item()`, then `values.append(value)`. Or remove the break."
)
OF_TORCH = (
    "This function is torch's own, so nothing in your code has to change: torch.distributed compiles it once for each "
    "kind of call that it gets."
)
IN_ONE_CALL = (
    "One call runs it on a tensor with requires_grad=True and on one without, as the first of several blocks does. "
    "Each needs its own code: two compilations, and no more."
)


def limit_advice(limit: str) -> str:
    """Advice for a function that reached the recompile limit."""
    return (
        f"Calls that match no compiled code run as plain Python, because of {limit}. Remove the causes of "
        "recompilation (run.recompiles lists them), or raise torch._dynamo.config.recompile_limit."
    )
