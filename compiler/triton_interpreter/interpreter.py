"""Extend Triton's interpreter (triton.runtime.interpreter) to run Inductor's kernels as a GPU would.

Only for a separate process, started with TRITON_INTERPRET=1: Triton's language is patched permanently. Added to the
interpreter: libdevice and short inline assembly; arithmetic and rounding of bfloat16, which Triton stores as bits;
vectorised reductions and scans with any combine function; bounds checks of every access; the source line of an error.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice, product
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compiler.triton_interpreter import libdevice
from compiler.triton_interpreter.bounds import Bounds

if os.environ.get("TRITON_INTERPRET") != "1":
    raise ImportError("this module is for the interpreter's own process: see compiler.triton_interpreter")

import triton
import triton.language as tl
import triton.language.extra.cuda as tl_cuda
import triton.language.extra.cuda.libdevice as cuda_libdevice
import triton.language.extra.libdevice as any_libdevice
import triton.runtime.interpreter as interpreter
from triton.runtime.interpreter import TensorHandle

_TORCH_TYPES = {
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5b16": torch.float8_e5m2fnuz,
}
"""Dtypes that numpy lacks; the interpreter stores their bits as integers."""


class WaitsForOthersError(NotImplementedError):
    """A kernel's programs wait for each other, which is impossible if they run in sequence."""


def _np_dtype(dtype: Any) -> np.dtype[Any]:
    return interpreter._get_np_dtype(dtype.scalar)


def _values(handle: Any) -> NDArray[Any]:
    """The numbers of a handle; dtypes that numpy lacks are converted to float32."""
    custom = _TORCH_TYPES.get(handle.dtype.scalar.name)
    if custom is None or handle.data.dtype.kind != "u":
        return handle.data
    bits = torch.from_numpy(np.ascontiguousarray(handle.data))
    return bits.view(custom).to(torch.float32).numpy().reshape(handle.data.shape)


def _round(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Convert numbers to a Triton type, rounded to nearest even like on a GPU."""
    custom = _TORCH_TYPES.get(dtype.scalar.name)
    if custom is None:
        return values.astype(_np_dtype(dtype), copy=False)
    numbers = torch.from_numpy(np.ascontiguousarray(values).astype(np.float32, copy=False))
    if custom.itemsize == 1:  # cvt.rn.satfinite
        numbers = numbers.clamp(torch.finfo(custom).min, torch.finfo(custom).max)
    return numbers.to(custom).view(torch.uint8 if custom.itemsize == 1 else torch.uint16).numpy().reshape(values.shape)


class GpuBuilder(interpreter.InterpreterBuilder):  # type: ignore[misc]
    """Triton's interpreter builder, with bounds checks, GPU conversions and GPU functions."""

    bounds = Bounds([])

    def __init__(self) -> None:
        super().__init__()
        self.options = interpreter.InterpreterOptions(debug=True, sanitize_overflow=False)

    def get_bf16(self, value: float) -> Any:
        """A bfloat16 constant, which Triton's interpreter does not support."""
        return interpreter.TensorHandle(_round(np.array([value]), tl.bfloat16), tl.bfloat16)

    def get_all_ones_value(self, kind: Any) -> Any:
        """A constant with all bits set; numpy does not convert -1 to unsigned types."""
        ones = np.full(1, -1, dtype=np.int64).astype(_np_dtype(kind))
        return interpreter.TensorHandle(ones, kind.scalar)

    def create_masked_load(self, ptrs: Any, mask: Any, other: Any, *cache: Any) -> Any:
        self.bounds.check("tl.load reads", ptrs.data, mask.data, _width(ptrs))
        return super().create_masked_load(ptrs, mask, _undefined_values(ptrs) if other is None else other, *cache)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *cache: Any) -> Any:
        self.bounds.check("tl.store writes", ptrs.data, mask.data, _width(ptrs))
        return super().create_masked_store(ptrs, value, mask, *cache)

    def create_atomic_rmw(self, operation: Any, ptr: Any, value: Any, mask: Any, *how: Any) -> Any:
        self.bounds.check("an atomic writes", ptr.data, mask.data, _width(ptr))
        if value.dtype.scalar.name in _TORCH_TYPES:
            return self._added_one_by_one(ptr, value, mask)
        return super().create_atomic_rmw(operation, ptr, value, mask, *how)

    def create_atomic_cas(self, ptr: Any, *arguments: Any) -> Any:
        self.bounds.check("an atomic writes", ptr.data, np.ones(1, dtype=bool), _width(ptr))
        return super().create_atomic_cas(ptr, *arguments)

    def _added_one_by_one(self, ptr: Any, value: Any, mask: Any) -> Any:
        """Run tl.atomic_add on dtypes that numpy lacks, one element at a time.

        Inductor generates no other atomic operation on them.
        """
        pointers, values, active = (np.broadcast_to(x, ptr.data.shape) for x in (ptr.data, _values(value), mask.data))
        before = np.zeros(ptr.data.shape, dtype=_np_dtype(value.dtype))
        for index in np.ndindex(ptr.data.shape):
            if active[index]:
                one = TensorHandle(pointers[index].reshape(1), ptr.dtype)
                old = interpreter.InterpreterBuilder.create_load(self, one, None, None, False)
                new = TensorHandle(_round(_values(old) + values[index], value.dtype), value.dtype.scalar)
                interpreter.InterpreterBuilder.create_store(self, one, new, None, None)
                before[index] = old.data[0]
        return TensorHandle(before, value.dtype.scalar)

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        values, dtype = _values(src), _np_dtype(dst_type)
        if dst_type.scalar.is_floating():
            return TensorHandle(_round(values, dst_type), dst_type.scalar)
        if values.dtype.kind == "f" and dtype.kind in "iu":
            return TensorHandle(libdevice.saturate(np.trunc(values), dtype), dst_type.scalar)
        return TensorHandle(values.astype(dtype), dst_type.scalar)

    def create_fp_to_fp(self, src: Any, dst_type: Any, _rounding: Any) -> Any:
        return self.cast_impl(src, dst_type)

    def binary_op(self, lhs: Any, rhs: Any, op: Callable[..., Any]) -> Any:
        result = op(_values(lhs), _values(rhs))
        if result.dtype == bool:
            return TensorHandle(result, tl.int1)
        return TensorHandle(_round(result, lhs.dtype), lhs.dtype.scalar)

    def unary_op(self, arg: Any, op: Callable[..., Any]) -> Any:
        return TensorHandle(_round(op(_values(arg)), arg.dtype), arg.dtype.scalar)

    def ternary_op(self, lhs: Any, rhs: Any, other: Any, op: Callable[..., Any]) -> Any:
        return TensorHandle(_round(op(_values(lhs), _values(rhs), _values(other)), other.dtype), other.dtype.scalar)

    def create_minnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmin)

    def create_maxnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmax)

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        exact = _values(x).astype(np.float64) * _values(y) + _values(z)
        return TensorHandle(_round(exact, z.dtype), z.dtype.scalar)

    def create_umulhi(self, lhs: Any, rhs: Any) -> Any:
        if lhs.data.dtype.itemsize == 4:
            wide = lhs.data.astype(np.uint32).astype(np.uint64) * rhs.data.astype(np.uint32).astype(np.uint64)
            return TensorHandle((wide >> np.uint64(32)).astype(lhs.data.dtype), lhs.dtype.scalar)
        return super().create_umulhi(lhs, rhs)

    def create_lshr(self, lhs: Any, rhs: Any) -> Any:
        unsigned = np.dtype(f"u{lhs.data.dtype.itemsize}") if lhs.data.dtype.kind == "i" else lhs.data.dtype
        shifted = np.right_shift(lhs.data.view(unsigned), rhs.data.astype(unsigned))
        return TensorHandle(shifted.astype(lhs.data.dtype), lhs.dtype.scalar)

    def create_dot(self, a: Any, b: Any, d: Any, _precision: Any, _imprecise: Any) -> Any:
        """A matmul, computed in float32, float64 or int64; TF32 rounding of operands is not modelled."""
        wide = np.int64 if d.data.dtype.kind in "iu" else np.float32 if d.data.dtype != np.float64 else np.float64
        product = np.matmul(_values(a).astype(wide), _values(b).astype(wide))
        return TensorHandle(_round(product + _values(d), d.dtype), d.dtype.scalar)

    def create_extern_elementwise(
        self, _library: str, _path: str, symbol: str, arguments: Sequence[Any], result: Any, _is_pure: bool
    ) -> Any:
        data = libdevice.call(symbol, [_values(argument) for argument in arguments], _np_dtype(result))
        return TensorHandle(data, result.scalar)

    def create_inline_asm(
        self, assembly: str, constraints: str, values: Sequence[Any], types: Sequence[Any], _pure: bool, pack: int
    ) -> Any:
        arguments = [_values(value) for value in values]
        computed = libdevice.call_inline(assembly, constraints, arguments, [_np_dtype(kind) for kind in types], pack)
        handles = [TensorHandle(data, kind.scalar) for data, kind in zip(computed, types, strict=True)]
        return _Results(handles)


class _Results(list[Any]):
    """The results of inline assembly, with the interface of Triton's `Operation`."""

    get_result = list[Any].__getitem__


def _undefined_values(ptrs: Any) -> Any:
    """The values of a masked-off load without `other`, which are undefined on a GPU.

    Here they are NaN or a large integer, which no kernel could mistake for a valid number or index.
    """
    kind = ptrs.get_element_ty()
    dtype = _np_dtype(kind)
    is_number = np.issubdtype(dtype, np.floating)
    value = np.nan if is_number else True if dtype == np.bool_ else np.iinfo(dtype).max // 3
    return TensorHandle(np.full_like(ptrs.data, value, dtype=dtype), kind)


def _width(ptrs: Any) -> int:
    return max(1, ptrs.get_element_ty().primitive_bitwidth // 8)


# Vectorised reductions and scans: Triton's interpreter calls the combine function once per element.


def _reduce_by(inputs: Any, axis: int | None, combine: Any, keep_dims: bool = False, **_: Any) -> Any:
    """Run tl.reduce as a tree: combine neighbours pairwise until one element is left, like GPU threads."""
    parts, types = _parts_of(inputs)
    rank, at = parts[0].ndim, int(axis or 0)
    if not 0 <= at < max(rank, 1):
        raise ValueError(f"axis {at} is out of bounds: the tensor has {rank} dimensions")
    if axis is None:
        parts = [part.reshape(-1) for part in parts]
    while (size := parts[0].shape[at]) > 1:
        pairs = [np.take(part, range(start, size, 2), at) for start in (0, 1) for part in parts]
        parts = _combine(combine, pairs, types)
    if not keep_dims:
        parts = [np.squeeze(part, at) for part in parts]
    elif axis is None:
        parts = [part.reshape((1,) * rank) for part in parts]
    return _tensors(inputs, parts, types)


def _scan_by(inputs: Any, axis: int, combine: Any, reverse: bool = False, **_: Any) -> Any:
    """Run tl.associative_scan in log(n) steps (Hillis and Steele, 1986): each step doubles the distance."""
    parts, types = _parts_of(inputs)
    turn = partial(np.flip, axis=axis) if reverse else np.asarray
    parts, distance = [turn(part) for part in parts], 1
    size = parts[0].shape[axis]
    places = np.arange(size).reshape([-1 if i == axis % parts[0].ndim else 1 for i in range(parts[0].ndim)])
    while distance < size:
        combined = _combine(combine, [*(np.roll(part, distance, axis) for part in parts), *parts], types)
        parts = [np.where(places >= distance, new, old) for new, old in zip(combined, parts, strict=True)]
        distance *= 2
    return _tensors(inputs, [turn(part) for part in parts], types)


def _parts_of(inputs: Any) -> tuple[list[NDArray[Any]], list[Any]]:
    """The data and types of a tensor, or of each tensor in a tuple."""
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    return [tensor.handle.data for tensor in tensors], [tensor.dtype for tensor in tensors]


def _tensors(inputs: Any, parts: Sequence[NDArray[Any]], dtypes: Sequence[Any]) -> Any:
    """A tensor, or a tuple of tensors if `inputs` is a tuple."""
    results = tuple(map(_tensor, parts, dtypes))
    return results if isinstance(inputs, tuple) else results[0]


def _combine(combine: Any, parts: Sequence[NDArray[Any]], dtypes: Sequence[Any]) -> list[NDArray[Any]]:
    """Call a combine function, and cast its results to the types of its arguments."""
    given, semantic = list(map(_tensor, parts, [*dtypes, *dtypes])), interpreter.interpreter_semantic
    result = combine(*given)
    results = result if isinstance(result, tuple) else (result,)
    converted = (semantic.cast(semantic.to_tensor(one), dtype) for one, dtype in zip(results, dtypes, strict=True))
    return [np.broadcast_to(one.handle.data, given[0].handle.data.shape) for one in converted]


def _tensor(data: NDArray[Any], dtype: Any) -> Any:
    if data.ndim == 0:
        return tl.core.tensor(TensorHandle(data.reshape(1), dtype), dtype)
    return tl.core.tensor(TensorHandle(np.ascontiguousarray(data), dtype), tl.block_type(dtype, list(data.shape)))


def _reduce(inputs: Any, axis: Any, combine_fn: Any, keep_dims: bool = False, **_: Any) -> Any:
    if combine_fn is not tl.standard._sum_combine:
        return _reduce_by(inputs, axis, combine_fn, keep_dims)
    tensor = inputs[0] if isinstance(inputs, tuple) else inputs
    data = np.sum(_values(tensor.handle), axis=axis, keepdims=keep_dims)
    return _tensor(_round(np.asarray(data), tensor.dtype), tensor.dtype)


class _Transformer(interpreter.ASTTransformer):  # type: ignore[misc]
    """Also rewrites `and`, `or` and `not`, which Triton's compiler applies elementwise to blocks."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST:  # noqa: N802 - ast's name
        self.generic_visit(node)
        changed: ast.AST = super().visit_Assign(node)
        return changed

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:  # noqa: N802
        self.generic_visit(node)
        function = "_tcompile_and" if isinstance(node.op, ast.And) else "_tcompile_or"
        nothing = ast.arguments([], [], None, [], [], None, [])
        return ast.Call(ast.Name(function, ast.Load()), [ast.Lambda(nothing, value) for value in node.values], [])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return ast.Call(ast.Name("_tcompile_not", ast.Load()), [node.operand], [])


def _combine_lanes(operation: str, decides: bool, *operands: Callable[[], Any]) -> Any:
    """Apply Python's `and` or `or`: elementwise for blocks, short-circuiting for scalars."""
    result = operands[0]()
    for operand in operands[1:]:
        if _is_block(result):
            result = getattr(result, operation)(operand())
        elif bool(result) is decides:
            return result
        else:
            result = operand()
    return result


def _logical_not(value: Any) -> Any:
    return value == 0 if _is_block(value) else not value


def _is_block(value: Any) -> bool:
    return isinstance(value, tl.core.tensor) and value.handle.data.size > 1


def _call_function(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a @triton.jit function from another one; errors keep their traceback."""
    return function.rewrite()(*args, **kwargs)


def install() -> None:
    """Patch Triton's language permanently. Call it once, before any kernel is defined."""
    scope = interpreter._LangPatchScope()
    interpreter.interpreter_builder = builder = GpuBuilder()
    interpreter.interpreter_semantic.builder = builder
    for module in (tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base):
        interpreter._patch_builtin(module, builder, scope)
    interpreter._patch_lang_tensor(tl.tensor, scope)
    scope.set_attr(tl.tensor, "__index__", lambda tensor: int(tensor.handle.data.squeeze()))  # 3.6: not NumPy 2.4
    for module in (tl, tl.core):
        interpreter._patch_lang_core(module, scope)
    for module in (tl, tl.core):  # last: each of Triton's own patches replaces the reductions of both modules
        scope.set_attr(module, "reduce", _reduce)
        scope.set_attr(module, "associative_scan", _scan_by)
    for name, function in inspect.getmembers(cuda_libdevice, inspect.isfunction):
        scope.set_attr(any_libdevice, name, _given_semantic(name, function))
        scope.set_attr(cuda_libdevice, name, _given_semantic(name, function))
    for name in ("gdc_wait", "gdc_launch_dependents"):
        scope.set_attr(tl_cuda, name, lambda **_: None)
    scope.set_attr(interpreter.InterpretedFunction, "__call__", _call_function)
    scope.set_attr(interpreter.FunctionRewriter, "ast_transformer", _Transformer())
    # Rewritten functions use these names as globals.
    scope.set_attr(interpreter, "_tcompile_and", partial(_combine_lanes, "logical_and", False))
    scope.set_attr(interpreter, "_tcompile_or", partial(_combine_lanes, "logical_or", True))
    scope.set_attr(interpreter, "_tcompile_not", _logical_not)
    _install_in_inductor(scope)


def _given_semantic(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **_: Any) -> Any:
        try:
            return function(*args, _semantic=interpreter.interpreter_semantic)
        except KeyError as error:
            given = ", ".join(getattr(kind, "name", str(kind)) for kind in error.args[0])
            raise TypeError(f"libdevice.{name} takes no ({given})") from None

    return wrapper


def _install_in_inductor(scope: Any) -> None:
    from compiler.torch_api.triton_kernels import triton_helpers

    def next_power_of_two(n: Any, **_: Any) -> int:
        return triton.next_power_of_2(int(getattr(n, "value", n)))

    def if_mask(mask: Any, value: Any, **_: Any) -> Any:
        return None if getattr(mask, "value", mask) is None else value

    def x_grid_barrier(*_: Any) -> None:
        raise WaitsForOthersError("the programs of a cooperative reduction wait for each other: it needs a GPU")

    scope.set_attr(triton_helpers, "set_driver_to_gpu", lambda: None)
    scope.set_attr(triton_helpers, "constexpr_next_power_of_2", next_power_of_two)
    scope.set_attr(triton_helpers, "if_mask", if_mask)
    scope.set_attr(triton_helpers, "x_grid_barrier", x_grid_barrier)


def run_programs(
    function: Any,
    arguments: Mapping[str, Any],
    types_: Mapping[str, str],
    grid: tuple[int, int, int],
    bounds: Bounds,
    most: int | None,
) -> int:
    """Run at most `most` programs (None: all) of a @triton.jit function in sequence, and return how many ran.

    `arguments` are tensors, numbers, and block sizes; `types_` has Triton's types, except of block sizes.
    """
    builder: Any = interpreter.interpreter_builder
    builder.bounds = bounds
    builder.set_grid_dim(*grid)
    given = {name: _argument(value, types_.get(name, "constexpr")) for name, value in arguments.items()}
    body, count = function.rewrite(), prod(grid) if most is None else min(most, prod(grid))
    with np.errstate(all="ignore"):
        for place in islice(product(*map(range, grid)), count):
            builder.set_grid_idx(*place)
            body(**given)
    return count


def _argument(value: Any, kind: str) -> Any:
    if kind == "constexpr" or value is None:
        return value
    dtype = tl.str_to_ty(kind, None)
    if isinstance(value, torch.Tensor):
        return _tensor(np.array(value.data_ptr(), dtype=np.uint64), dtype)
    return _tensor(np.array(value, dtype=_np_dtype(dtype)), dtype)
