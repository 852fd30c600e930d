"""Bindings of torch's C++ that cost as little as a call can."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._autograd import _get_current_graph_task_keep_graph, _saved_tensors_hooks_get_disabled_error_message
from torch._C._dynamo.guards import _empty_strided_cpu, _reinterpret_tensor  # type: ignore[attr-defined]
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack

set_grad_enabled = torch._C._set_grad_enabled
is_autocast_on = torch._C._is_any_autocast_enabled
"""Whether autocast is on, for any device."""
autocast_off = torch._C._DisableAutocast
is_deterministic = torch._C._get_deterministic_algorithms
why_no_saved_hooks = _saved_tensors_hooks_get_disabled_error_message
"""Why hooks of saved tensors are turned off, None where they are not."""
keeps_graph = _get_current_graph_task_keep_graph
"""Whether the backward that runs may run again (`retain_graph=True`); true outside of one."""
is_batched = is_legacy_batchedtensor
"""Whether a tensor is a batch of gradients (`is_grads_batched`)."""
transforms = peek_interpreter_stack
"""functorch's transforms (`vmap`, `grad`) around the call, None where there are none."""
is_transformed = torch._C._are_functorch_transforms_active
has_thread_value = torch._C._is_key_in_tls
thread_value = torch._C._get_obj_in_tls
"""A value that autograd hands to the threads of a backward, by its name."""


empty_on_cpu = _empty_strided_cpu
"""(sizes, strides, dtype) -> a tensor in memory of its own, as torch.empty_strided."""

view_of_memory = _reinterpret_tensor
"""(tensor, sizes, strides, offset) -> a view of its memory; the offset is in elements from where the tensor starts."""

direct_functions: Any = torch._C._VariableFunctions
"""ATen operators by name, without OpOverload's frame in Python."""
