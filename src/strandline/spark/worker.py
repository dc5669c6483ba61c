"""What a Python process of Spark is told once, so that one task after the other runs fast in it.

Spark keeps these processes for later queries. After each task it has Python look at every object for garbage, and the C
library and Arrow's own pool give memory back to the system that the next batch asks for again.
"""

import ctypes
import functools
import gc

import pyarrow as pa

# Names and values for glibc's `mallopt`. Without the first, each thread has a heap, each with free memory of its own.
ONE_HEAP = (-8, 1)
KEPT_FREE_BYTES = (-1, 128 << 20)
LARGEST_IN_THE_HEAP_BYTES = (-3, 32 << 20)


@functools.cache
def settle() -> None:
    """Leave what is loaded by now out of garbage collections, and keep free memory for the next batch."""
    gc.freeze()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # only glibc has it
        for name, value in (ONE_HEAP, KEPT_FREE_BYTES, LARGEST_IN_THE_HEAP_BYTES):
            libc.mallopt(name, value)
        pa.set_memory_pool(pa.system_memory_pool())  # the C library's, which keeps what it has
