"""Inductor, imported as a whole: explorations need it. Our own backend does without, and with that starts sooner."""

from compiler.process import made_to_stay

with made_to_stay():
    import torch._inductor.compile_fx  # noqa: F401
