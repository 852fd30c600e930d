"""The one place that touches private torch and triton names.

Every other module of `compiler` sees PyTorch through the functions here, so a new torch release is met in one folder.
`names` finds what is used; `tests/compiler/torch_api/test_torch_api.py` fails loudly when a version changes
it.
"""

from compiler.process import made_to_stay

# Hundreds of thousands of objects: walking them in search of garbage is a third of the time that importing them takes.
with made_to_stay():
    import torch._dynamo  # noqa: F401
