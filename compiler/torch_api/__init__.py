"""The only package that uses private names of torch and triton.

Every other module of `compiler` reaches PyTorch through these functions, so a new torch release changes one folder.
`names` lists the private names in use; `tests/compiler/torch_api/test_torch_api.py` fails when a release changes one.
"""

from compiler.process import made_to_stay

# The import creates hundreds of thousands of objects: garbage collection would take a third of the import time.
with made_to_stay():
    import torch._dynamo  # noqa: F401
