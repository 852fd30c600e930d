"""Direct bindings to torch's C++ functions, for the least overhead per call."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._autograd import _get_current_graph_task_keep_graph, _saved_tensors_hooks_get_disabled_error_message
from torch._C._dynamo.guards import _empty_strided_cpu, _reinterpret_tensor  # type: ignore[attr-defined]
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack

set_grad_enabled = torch._C._set_grad_enabled
is_autocast_on = torch._C._is_any_autocast_enabled
"""Whether autocast is on for any device."""
autocast_off = torch._C._DisableAutocast
is_deterministic = torch._C._get_deterministic_algorithms
why_no_saved_hooks = _saved_tensors_hooks_get_disabled_error_message
"""The message that says why saved-tensor hooks are disabled; None if they are enabled."""
keeps_graph = _get_current_graph_task_keep_graph
"""Whether the running backward keeps its graph (`retain_graph=True`); true outside of a backward."""
is_batched = is_legacy_batchedtensor
"""Whether a tensor is a batch of gradients (`is_grads_batched`)."""
transforms = peek_interpreter_stack
"""The innermost functorch transform (`vmap`, `grad`) around the call; None outside of transforms."""
is_transformed = torch._C._are_functorch_transforms_active
has_thread_value = torch._C._is_key_in_tls
thread_value = torch._C._get_obj_in_tls
"""(name) -> a thread-local value that autograd passes on to the threads of a backward."""


empty_on_cpu = _empty_strided_cpu
"""(sizes, strides, dtype) -> a new uninitialized tensor, like torch.empty_strided."""

view_of_memory = _reinterpret_tensor
"""(tensor, sizes, strides, offset) -> a view of the tensor's storage; offset in elements from the tensor's start."""

direct_functions: Any = torch._C._VariableFunctions
"""ATen operators by name, without the Python frame of OpOverload."""
