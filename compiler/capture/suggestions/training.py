"""Breaks around gradients, parameters, modules and random numbers."""

from __future__ import annotations

from compiler.capture.suggestions.rewrites import clone, data_to_copy, expression
from compiler.capture.suggestions.rule import Change, Rule

AUTOGRAD = "torch._dynamo.config.trace_autograd_ops = True"
TRACED = "torch calls this an experiment: hooks, and leaves that the function does not see, may still break the graph."
RNN = "torch._dynamo.config.allow_rnn = True"

RULES: tuple[Rule, ...] = (
    Rule(
        kinds=("Unsupported Tensor.backward() call",),
        what="{code} runs autograd, which comes after the graph, not in it.",
        changes=(
            Change(
                "Return the loss and call backward() outside of the compiled function: its backward is compiled too."
            ),
            Change("Or trace it into the graph.", settings=(AUTOGRAD,), caveat=TRACED),
        ),
    ),
    Rule(
        kinds=("using `torch.autograd.grad` with `torch._dynamo.config.trace_autograd_ops=False`",),
        what="{code} runs autograd inside of the compiled function.",
        changes=(
            Change("Trace it into the graph.", settings=(AUTOGRAD,), caveat=TRACED),
            Change("Or use torch.func.grad, or call it outside of the compiled function."),
        ),
    ),
    Rule(
        kinds=("requires_grad_() intermediate leaked as output", "Unsupported Tensor.requires_grad_() call"),
        what="{code} makes a leaf of autograd inside of the compiled function, and it is returned from there.",
        changes=(Change("Call requires_grad_() on what the compiled function returns."),),
    ),
    Rule(
        kinds=("setattr() on Tensor.requires_grad",),
        what="{code} is set inside of the compiled function, which would make it a leaf of autograd there.",
        changes=(
            Change(
                "Set it before the call, on the tensor that is passed in. Where only parameters need gradients, leave "
                "it out."
            ),
        ),
    ),
    Rule(
        kinds=("Failed to mutate tensor data attribute", "Failed to set tensor attribute"),
        what="{code} is given other memory, which a graph can't do to a tensor it made.",
        changes=(
            Change(
                "Copy the values instead.",
                data_to_copy,
                caveat="The memory stays the old one, and the new values have to fit its shape: what else looks at it "
                "sees them too.",
            ),
        ),
    ),
    Rule(
        kinds=("Unsupported Tensor.resize_() call", "Unsupported Tensor.set_() call"),
        what="{code} changes the memory of a tensor in place.",
        changes=(Change("Make a new tensor of that size: slice, reshape, torch.nn.functional.pad."),),
    ),
    Rule(
        kinds=("Attempted to use `torch.nn.Parameter()` constructor with Dynamo",),
        calls=r"(.*\.)?Parameter",
        what="{code} makes a parameter, which belongs to a module and outlives the call.",
        changes=(
            Change(
                "Make it once, in the module's __init__; what lives for this call alone needs no Parameter.",
                expression("{0}"),
                caveat="It then has no gradient.",
            ),
        ),
    ),
    Rule(
        kinds=("Attempted to use `torch.nn.Parameter()` constructor with Dynamo",),
        calls=r".+",
        what="{code} makes a module, and so its parameters, on every call.",
        changes=(Change("Make the module once, in __init__ or outside of the compiled function."),),
    ),
    Rule(
        kinds=("Attempted to wrap RNN, GRU, or LSTM",),
        what="{code} calls a recurrent module, which torch.compile leaves to eager code unless it is told to try.",
        changes=(
            Change(
                "Tell it to.",
                settings=(RNN,),
                caveat="It is compiled as a loop that is written out: long sequences take long to compile, and cuDNN's "
                "own kernel is not used.",
            ),
        ),
    ),
    Rule(
        kinds=(
            "Attempted to wrap sparse Tensor with VariableTracker",
            "Attempted to wrap sparse Tensor",
            "Sparse tensor creation not supported",
        ),
        what="{code} makes a sparse tensor, which graphs do not hold.",
        changes=(Change("Keep it dense, or do the sparse part outside of the compiled function."),),
    ),
    Rule(
        kinds=("Attempted to copy.deepcopy a tensor", "copy.deepcopy()"),
        calls=r"(copy\.)?deepcopy",
        what="{code} copies tensors by way of Python's copy protocol.",
        changes=(
            Change("A tensor has clone().", clone),
            Change("Copy outside of the compiled function."),
        ),
    ),
    Rule(
        calls=r"(torch\.)?(random\.)?(manual_seed|seed|initial_seed)|torch\.cuda\.manual_seed(_all)?",
        what="{code} seeds random numbers, which belong to the process, not to the graph.",
        changes=(Change("Seed before the compiled function is called."),),
    ),
    Rule(
        calls=r"(torch\.)?(random\.)?[gs]et_rng_state|torch\.cuda\.[gs]et_rng_state(_all)?",
        what="{code} reads or sets the state of the random number generator, which belongs to the process.",
        changes=(Change("Save and restore it outside of the compiled function."),),
    ),
    Rule(
        kinds=("Failed to convert args/kwargs to proxy",),
        context=r"Generator",
        what="{code} draws from a torch.Generator of its own, which graphs can't hold.",
        changes=(
            Change("Draw from the default generator, seeded before the call; or draw outside and pass the numbers in."),
        ),
    ),
    Rule(
        kinds=("TypeError when making fake tensor call", "RuntimeError when making fake tensor call"),
        what="{code} fails on tensors of these dtypes and shapes, or is an operator that does not say what it gives.",
        changes=(
            Change(
                "If it raises without torch.compile too, mend it. For an operator of your own, say with "
                "@operator.register_fake what comes out of it."
            ),
        ),
    ),
    Rule(
        kinds=("Operator does not support running with fake tensors", "Attempted to wrap strided NestedTensor"),
        what="{code} works on a kind of tensor that graphs do not hold.",
        changes=(Change("Use layout=torch.jagged for nested tensors, or pad and mask; or do it outside."),),
    ),
    Rule(
        kinds=("Unhandled args for method",),
        what="{code} does something to a tensor's memory, which tensors have only when they run.",
        changes=(Change("Do it to the tensor before the compiled function is called."),),
    ),
    Rule(
        kinds=("torch.* op returned non-Tensor", "Unsupported context manager"),
        text=r"torch\.backends\..*",
        what="{code} sets something for a whole library, which a graph can't.",
        changes=(Change("Enter it outside of the compiled function, around the call."),),
    ),
    Rule(
        kinds=("torch.* op returned non-Tensor",),
        what="{code} gives something that is no tensor, which a graph can't return.",
        changes=(Change("Do it outside of the compiled function."),),
    ),
    Rule(
        kinds=("Compilation of intermediate hooks requires compiled autograd",),
        what="{code} hooks into the backward of a tensor made inside of the graph.",
        changes=(
            Change(
                "Compile the backward with hooks too.",
                settings=("torch._dynamo.config.compiled_autograd = True",),
                caveat="Every backward is then compiled anew when it is run for the first time.",
            ),
        ),
    ),
)
