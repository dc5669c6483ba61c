"""Copying bytes within kernels: numba copies one at a time, ten times as slowly as the machine's own `memcpy`."""

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _copy_bytes(_context: Any, out: Any, to: Any, source: Any, start: Any, count: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def place(array: int) -> Any:
            data = context.make_array(signature.args[array])(context, builder, arguments[array]).data
            return builder.gep(data, [arguments[array + 1]])

        cgutils.raw_memcpy(builder, place(0), place(2), arguments[4], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(out, to, source, start, count), generate


copy_bytes: Any = intrinsic(_copy_bytes)
"""`copy_bytes(out, to, source, start, count)`, for arrays of bytes. Nothing is checked: the caller has."""
