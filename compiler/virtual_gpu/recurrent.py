"""Recurrent layers as torch.compile traces them on a GPU.

TorchDynamo leaves nn.LSTM, nn.GRU and nn.RNN to eager mode on every device (torch._dynamo.config.allow_rnn is False),
so a graph never has them. With allow_rnn, AOTAutograd unrolls them over time (torch/_decomp/decompositions.py) on every
device, except that the CPU's LSTM is oneDNN's layer where it can be. Cells (nn.LSTMCell, nn.GRUCell) are one fused
operator after two matmuls on a GPU (aten/src/ATen/native/RNN.cpp), pointwise operators on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from compiler.torch_api.gpu_compilation import one_layer_lstm
from compiler.torch_api.python_kernels import DispatchKey, Kernels

aten = torch.ops.aten


def cell_kernels() -> Kernels:
    """Kernels that trace nn.LSTMCell and nn.GRUCell of CPU tensors as for CUDA tensors.

    torch knows the shapes of the LSTM's fused operator; the GRU's it runs to learn them, which takes a GPU
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
    """An LSTM cell as two matmuls and CUDA's fused operator.

    `inputs` is (batch, features), `hx` twice (batch, width), weights are (4·width, features) and (4·width, width).
    """
    hidden, cell = hx
    gates = torch.matmul(inputs, w_ih.t()), torch.matmul(hidden, w_hh.t())
    next_hidden, next_cell, _workspace = aten._thnn_fused_lstm_cell(*gates, cell, b_ih, b_hh)
    return next_hidden, next_cell


def _gru_cell(
    inputs: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """A GRU cell as two matmuls and CUDA's fused operator.

    `inputs` is (batch, features), `hx` (batch, width), weights are (3·width, features) and (3·width, width).
    """
    gates = torch.matmul(inputs, w_ih.t()), torch.matmul(hx, w_hh.t())
    return aten._thnn_fused_gru_cell(*gates, hx, b_ih, b_hh)[0]


def _gru_cell_shapes(
    input_gates: Tensor, _hidden_gates: Tensor, hx: Tensor, _input_bias: Any = None, _hidden_bias: Any = None
) -> tuple[Tensor, Tensor]:
    """The next state, and a workspace (batch, 5·width) for the backward."""
    batch, width = hx.shape
    return torch.empty_like(hx, memory_format=torch.contiguous_format), input_gates.new_empty(batch, 5 * width)


def _gru_cell_backward_shapes(grad: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor, ...]:
    """Gradients of both gates (batch, 3·width), of the state, and of both biases."""
    batch, width = grad.shape
    gates = [workspace.new_empty(batch, 3 * width) for _ in range(2)]
    biases = [workspace.new_empty(3 * width) if has_bias else workspace.new_empty(0) for _ in range(2)]
    return *gates, torch.empty_like(grad, memory_format=torch.contiguous_format), *biases


def choose_layer(*_tensors: Any) -> Any:
    """Stand in for `select_one_layer_lstm_function`: oneDNN's layer is for CPU tensors only."""
    return one_layer_lstm
