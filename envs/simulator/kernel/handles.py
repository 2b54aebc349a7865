"""Handles: where the arrays of many worlds lie, so that one call steps them all.

A named tuple of arrays is handed to the kernel as a row of integers: for each array its address and its shape. Python
writes the row when an array is replaced; taking a world apart at every call costs a hundred times as much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numba import from_dtype, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array
from numpy.typing import NDArray

Arrays = TypeVar("Arrays", bound=NamedTuple)

# numba's signature and code generators have no useful static types.
_Any = Any


def handle_width(like: Sequence[NDArray[Any]]) -> int:
    """Integers that a handle takes: an address and the lengths of each dimension for every array."""
    return sum(1 + array.ndim for array in like)


def write_handle(handle: NDArray[np.int64], arrays: Sequence[NDArray[Any]]) -> None:
    """Writes down where arrays lie. They must be kept alive, and be C-contiguous, as long as the handle is used.

    Args:
        handle: (handle_width,) integers.
        arrays: What it stands for.
    """
    row: list[int] = []
    for array in arrays:
        row.append(array.ctypes.data)
        row.extend(array.shape)
    handle[:] = row


def reader_of(kind: type[Arrays], like: Sequence[NDArray[Any]]) -> Callable[[NDArray[np.int64], int], Arrays]:
    """A kernel function (handles, i) -> the arrays that row i stands for.

    Args:
        kind: The named tuple.
        like: One with arrays of the right types.
    """
    members = [types.Array(from_dtype(array.dtype), array.ndim, "C") for array in like]
    named_tuple: _Any = types.NamedTuple
    assembled = named_tuple(members, kind)

    @intrinsic
    def read(typing_context: _Any, handles: _Any, row: _Any) -> _Any:
        def generate(context: _Any, builder: _Any, signature: _Any, arguments: _Any) -> _Any:
            table = context.make_array(signature.args[0])(context, builder, arguments[0])

            def entry_at(column: int) -> _Any:
                indices = [arguments[1], context.get_constant(types.intp, column)]
                place: _Any = cgutils.get_item_pointer
                return builder.load(place(context, builder, signature.args[0], table, indices))

            values, column = [], 0
            for member in members:
                shape = [entry_at(column + 1 + dimension) for dimension in range(member.ndim)]
                values.append(_array_at(context, builder, member, entry_at(column), shape))
                column += 1 + member.ndim
            return context.make_tuple(builder, assembled, values)

        return assembled(handles, row), generate

    return cast(Callable[[NDArray[np.int64], int], Arrays], read)


def _copy_bytes(typing_context: _Any, source: _Any, target: _Any, number: _Any) -> _Any:

    def generate(context: _Any, builder: _Any, signature: _Any, arguments: _Any) -> _Any:
        byte = cgutils.voidptr_t
        begin, end = (builder.inttoptr(address, byte) for address in arguments[:2])
        copy: _Any = cgutils.raw_memcpy
        copy(builder, end, begin, arguments[2], 1)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), generate


# A kernel function (source, target, number): copies so many bytes from one address to another.
copy_bytes = cast(Callable[[int, int, int], None], intrinsic(_copy_bytes))


def _array_at(context: _Any, builder: _Any, kind: _Any, address: _Any, shape: list[_Any]) -> _Any:
    """A C-contiguous array over memory that somebody else keeps alive."""
    array = context.make_array(kind)(context, builder)
    item = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    strides: list[_Any] = []
    span = item
    for length in reversed(shape):
        strides.insert(0, span)
        span = builder.mul(span, length)
    data = builder.inttoptr(address, array.data.type)
    fill: _Any = populate_array
    fill(array, data=data, shape=shape, strides=strides, itemsize=item, meminfo=None)
    return array._getvalue()
