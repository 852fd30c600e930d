"""Rules for breaks at gradients, parameters, modules and random numbers."""

from __future__ import annotations

from compiler.capture.suggestions import rewrites
from compiler.capture.suggestions.rule import Change, Rule

AUTOGRAD = "torch._dynamo.config.trace_autograd_ops = True"
TRACED = "torch calls this an experiment: hooks, and leaves that the function does not see, may still break the graph."
_COLLECTIVES = "broadcast|reduce|gather|scatter|i?send|i?recv|batch_isend_irecv|\\w+_object(_list)?"
RNN = "torch._dynamo.config.allow_rnn = True"

RULES: tuple[Rule, ...] = (
    Rule(
        "{code} waits for the other ranks, for which a graph has no operator.",
        "Call it before the compiled function, or after it: nothing in a graph needs it.",
        calls=r"(.*\.)?(monitored_)?barrier",
    ),
    Rule(
        "{code} starts a collective and leaves the wait to a later line, which torch can't capture.",
        "Leave out async_op=True and the later wait(): the graph then has the collective and its wait as operators of "
        "their own, and Inductor can move them apart (options={'reorder_for_compute_comm_overlap': True}).",
        kinds=("async_op=True for distributed collectives",),
    ),
    Rule(
        "{code} waits for a collective that started outside of this graph.",
        "Leave it out, and async_op=True where the collective starts: the graph then has both as operators of its own.",
        kinds=("Unsupported method call",),
        context=r"\(Work\) (wait|is_completed|result|get_future)\b",
    ),
    Rule(
        "{code} is a collective for which a graph has no operator.",
        Change(
            "Call torch.distributed._functional_collectives.broadcast(tensor, src, group) instead: it returns a new "
            "tensor, and is an operator of the graph.",
            when=lambda case: "broadcast" in case.callee and "object" not in case.callee,
        ),
        "Call it before the compiled function, or after it.",
        calls=rf"(.*\.)?(dist|distributed|distributed_c10d)\.({_COLLECTIVES})",
    ),
    Rule(
        "{code} runs autograd, which comes after the graph, not in it.",
        "Return the loss and call backward() outside of the compiled function: its backward is compiled too.",
        Change("Or trace it into the graph.", settings=(AUTOGRAD,), caveat=TRACED),
        kinds=("Unsupported Tensor.backward() call",),
    ),
    Rule(
        "{code} runs autograd inside of the compiled function.",
        Change("Trace it into the graph.", settings=(AUTOGRAD,), caveat=TRACED),
        "Or use torch.func.grad, or call it outside of the compiled function.",
        kinds=("using `torch.autograd.grad` with `torch._dynamo.config.trace_autograd_ops=False`",),
    ),
    Rule(
        "{code} makes a leaf of autograd inside of the compiled function, and it is returned from there.",
        "Call requires_grad_() on what the compiled function returns.",
        kinds=("requires_grad_() intermediate leaked as output", "Unsupported Tensor.requires_grad_() call"),
    ),
    Rule(
        "{code} is set inside of the compiled function, which would make it a leaf of autograd there.",
        "Set it before the call, on the tensor that is passed in. Where only parameters need gradients, leave it out.",
        kinds=("setattr() on Tensor.requires_grad",),
    ),
    Rule(
        "{code} is given other memory, which a graph can't do to a tensor it made.",
        Change(
            "Copy the values instead.",
            rewrites.data_to_copy,
            caveat="The memory stays the old one, and the new values have to fit its shape: what else looks at it "
            "sees them too.",
        ),
        kinds=("Failed to mutate tensor data attribute", "Failed to set tensor attribute"),
    ),
    Rule(
        "{code} changes the memory of a tensor in place.",
        "Make a new tensor of that size: slice, reshape, torch.nn.functional.pad.",
        kinds=("Unsupported Tensor.resize_() call", "Unsupported Tensor.set_() call"),
    ),
    Rule(
        "{code} makes a parameter, which belongs to a module and outlives the call.",
        Change(
            "Make it once, in the module's __init__; what lives for this call alone needs no Parameter.",
            rewrites.expression("{0}"),
            caveat="It then has no gradient.",
        ),
        kinds=("Attempted to use `torch.nn.Parameter()` constructor with Dynamo",),
        calls=r"(.*\.)?Parameter",
    ),
    Rule(
        "{code} makes a module, and so its parameters, on every call.",
        "Make the module once, in __init__ or outside of the compiled function.",
        kinds=("Attempted to use `torch.nn.Parameter()` constructor with Dynamo",),
        calls=r".+",
    ),
    Rule(
        "{code} calls a recurrent module, which torch.compile leaves to eager code by default.",
        Change(
            "Allow it.",
            settings=(RNN,),
            caveat="It is compiled as a loop that is written out: long sequences take long to compile, and cuDNN's "
            "own kernel is not used.",
        ),
        kinds=("Attempted to wrap RNN, GRU, or LSTM",),
    ),
    Rule(
        "{code} takes or makes a sparse tensor, which graphs do not hold.",
        "Keep it dense, or do the sparse part outside of the compiled function.",
        kinds=(
            "Attempted to wrap sparse Tensor with VariableTracker",
            "Attempted to wrap sparse Tensor",
            "Sparse tensor creation not supported",
        ),
    ),
    Rule(
        "A transform of torch.func (vmap, grad, jvp) is called on compiled code: TorchDynamo traces transforms only "
        "inside of what it compiles.",
        "Compile what calls the transform: torch.compile(torch.func.vmap(f)).",
        kinds=("Unsupported functorch tracing attempt",),
    ),
    Rule(
        "{code} copies tensors by way of Python's copy protocol.",
        Change("A tensor has clone().", rewrites.clone),
        "Copy outside of the compiled function.",
        kinds=("Attempted to copy.deepcopy a tensor", "copy.deepcopy()"),
        calls=r"(copy\.)?deepcopy",
    ),
    Rule(
        "{code} reads or sets the state of the random number generator, which belongs to the process.",
        "Seed before the compiled function is called; save and restore the state outside of it.",
        calls=r"(torch\.)?(random\.)?(manual_seed|seed|initial_seed|[gs]et_rng_state)"
        r"|torch\.cuda\.(manual_seed|[gs]et_rng_state)(_all)?",
    ),
    Rule(
        "{code} draws from a torch.Generator of its own, which graphs can't hold.",
        "Draw from the default generator, seeded before the call; or draw outside and pass the numbers in.",
        kinds=("Failed to convert args/kwargs to proxy",),
        context=r"Generator",
    ),
    Rule(
        "{code} fails on tensors of these dtypes and shapes, or is an operator that does not say what it gives.",
        "If it raises without torch.compile too, fix that. For an operator of your own, say with "
        "@operator.register_fake what comes out of it.",
        kinds=("TypeError when making fake tensor call", "RuntimeError when making fake tensor call"),
    ),
    Rule(
        "{code} works on a kind of tensor that graphs do not hold.",
        "Use layout=torch.jagged for nested tensors, or pad and mask; or do it outside.",
        kinds=("Operator does not support running with fake tensors", "Attempted to wrap strided NestedTensor"),
    ),
    Rule(
        "{code} does something to a tensor's memory, which tensors have only when they run.",
        "Do it to the tensor before the compiled function is called.",
        kinds=("Unhandled args for method", "Unsupported Tensor.share_memory_() call"),
    ),
    Rule(
        "{code} sets something for a whole library, which a graph can't.",
        "Enter it outside of the compiled function, around the call.",
        kinds=("torch.* op returned non-Tensor", "Unsupported context manager"),
        text=r"torch\.backends\..*",
    ),
    Rule(
        "{code} gives something that is no tensor, which a graph can't return.",
        "Do it outside of the compiled function.",
        kinds=("torch.* op returned non-Tensor",),
    ),
    Rule(
        "{code} hooks into the backward of a tensor made inside of the graph.",
        Change(
            "Compile the backward with hooks too.",
            settings=("torch._dynamo.config.compiled_autograd = True",),
            caveat="Every backward is then compiled when it first runs.",
        ),
        kinds=("Compilation of intermediate hooks requires compiled autograd",),
    ),
)
