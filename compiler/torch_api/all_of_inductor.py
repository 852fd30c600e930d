"""Import all of Inductor, for explorations. Our own backend skips this, to start sooner."""

from compiler.process import made_to_stay

with made_to_stay():
    import torch._inductor.compile_fx  # noqa: F401
