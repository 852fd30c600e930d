"""torch's references and Inductor's prims, which our backend's decompositions call."""

from torch._decomp.decompositions import max_unpool2d
from torch._inductor import inductor_prims
from torch._prims_common import suggest_memory_format
from torch._refs import bucketize, nan_to_num, roll
from torch._refs.linalg import vector_norm
from torch._refs.nn.functional import channel_shuffle

__all__ = [
    "bucketize",
    "channel_shuffle",
    "inductor_prims",
    "max_unpool2d",
    "nan_to_num",
    "roll",
    "suggest_memory_format",
    "vector_norm",
]
