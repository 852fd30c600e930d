"""Trace recurrent layers as torch.compile does on a GPU.

TorchDynamo leaves nn.LSTM, nn.GRU and nn.RNN to eager mode on every device (torch._dynamo.config.allow_rnn is False),
so a graph never contains them. With allow_rnn, AOTAutograd unrolls them over time (torch/_decomp/decompositions.py) on
every device, except that the CPU uses oneDNN's LSTM layer if possible. On a GPU, cells (nn.LSTMCell, nn.GRUCell) are
two matmuls and one fused operator (aten/src/ATen/native/RNN.cpp); on the CPU they are pointwise operators.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from compiler.torch_api.gpu_compilation import one_layer_lstm
from compiler.torch_api.python_kernels import DispatchKey, Kernels

aten = torch.ops.aten


def cell_kernels() -> Kernels:
    """Kernels that trace nn.LSTMCell and nn.GRUCell on CPU tensors as on CUDA tensors.

    The LSTM's fused operator has a meta function. The GRU's has none: torch would run it on a GPU to learn the shapes
    (torch._subclasses.fake_tensor.run_fallback_kernel).
    """
    return {
        (aten.lstm_cell.default, DispatchKey.CompositeImplicitAutograd): _lstm_cell,
        (aten.gru_cell.default, DispatchKey.CompositeImplicitAutograd): _gru_cell,
        (aten._thnn_fused_gru_cell.default, DispatchKey.Meta): _gru_cell_shapes,
        (aten._thnn_fused_gru_cell_backward.default, DispatchKey.Meta): _gru_cell_backward_shapes,
    }


def _lstm_cell(
    inputs: Tensor, hx: list[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute an LSTM cell with two matmuls and CUDA's fused operator.

    `inputs` is (batch, features), `hx` two (batch, width), weights are (4·width, features) and (4·width, width).
    """
    hidden, cell = hx
    gates = torch.matmul(inputs, w_ih.t()), torch.matmul(hidden, w_hh.t())
    next_hidden, next_cell, _workspace = aten._thnn_fused_lstm_cell(*gates, cell, b_ih, b_hh)
    return next_hidden, next_cell


def _gru_cell(
    inputs: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """Compute a GRU cell with two matmuls and CUDA's fused operator.

    `inputs` is (batch, features), `hx` (batch, width), weights are (3·width, features) and (3·width, width).
    """
    gates = torch.matmul(inputs, w_ih.t()), torch.matmul(hx, w_hh.t())
    return aten._thnn_fused_gru_cell(*gates, hx, b_ih, b_hh)[0]


def _gru_cell_shapes(
    input_gates: Tensor, _hidden_gates: Tensor, hx: Tensor, _input_bias: Any = None, _hidden_bias: Any = None
) -> tuple[Tensor, Tensor]:
    """Meta function: the next state (batch, width), and a workspace (batch, 5·width) for the backward."""
    batch, width = hx.shape
    return torch.empty_like(hx, memory_format=torch.contiguous_format), input_gates.new_empty(batch, 5 * width)


def _gru_cell_backward_shapes(grad: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor, ...]:
    """Meta function: gradients of both gates (batch, 3·width), of the state, and of both biases."""
    batch, width = grad.shape
    gates = [workspace.new_empty(batch, 3 * width) for _ in range(2)]
    biases = [workspace.new_empty(3 * width) if has_bias else workspace.new_empty(0) for _ in range(2)]
    return *gates, torch.empty_like(grad, memory_format=torch.contiguous_format), *biases


def choose_layer(*_tensors: Any) -> Any:
    """Replace `select_one_layer_lstm_function`: never choose oneDNN's layer, which is for CPU tensors only."""
    return one_layer_lstm
