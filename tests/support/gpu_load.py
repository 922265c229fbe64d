"""A load for one NVIDIA GPU that needs only the driver: arithmetic by a kernel in PTX, and held memory.

    python gpu_load.py --mib 512 --busy 0.5 --until FILE

Uses the first GPU of CUDA_VISIBLE_DEVICES, through libcuda. Prints `up PID` when it holds its memory, then
works for a part of the time until the file exists, and prints `done KERNELS SECONDS`. Out of memory is one
line with CUDA's name of the error, and exit code 1. Imports nothing of rlsched and changes no setting of the
GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

PTX = b"""
.version 6.0
.target sm_60
.address_size 64
.visible .entry work(.param .u64 out, .param .u32 rounds)
{
    .reg .pred %again;
    .reg .f32 %a, %b;
    .reg .u32 %i, %n, %thread, %block, %size;
    .reg .u64 %to, %offset;
    ld.param.u64 %to, [out];
    ld.param.u32 %n, [rounds];
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %thread, %block, %size, %thread;
    mul.wide.u32 %offset, %thread, 4;
    add.u64 %to, %to, %offset;
    mov.f32 %a, 0f3F800000;
    mov.f32 %b, 0f3F7FBE77;
    mov.u32 %i, 0;
LOOP:
    fma.rn.f32 %a, %a, %b, %b;
    fma.rn.f32 %a, %a, %b, %b;
    fma.rn.f32 %a, %a, %b, %b;
    fma.rn.f32 %a, %a, %b, %b;
    add.u32 %i, %i, 1;
    setp.lt.u32 %again, %i, %n;
    @%again bra LOOP;
    st.global.f32 [%to], %a;
    ret;
}
"""
THREADS, BLOCKS_PER_SM = 256, 8
MULTIPROCESSORS = 16
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT."""
KERNEL_S = 0.005
"""Least duration of a kernel, seconds."""


class CudaError(Exception):
    """A call of the driver failed; the message is the call and CUDA's name of the error."""


class Gpu:
    """The first visible GPU, with memory that is held until the process ends.

    Args:
        mib: Memory to hold, MiB.

    Raises:
        CudaError: no GPU, or not enough memory.
    """

    def __init__(self, mib: int) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", ctypes.c_uint(0))
        device, context, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        self._call("cuDeviceGetAttribute", ctypes.byref(count), ctypes.c_int(MULTIPROCESSORS), device)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._blocks = count.value * BLOCKS_PER_SM
        self._held = self._memory(mib << 20)
        self._out = self._memory(self._blocks * THREADS * 4)
        module, self._work = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(PTX))
        self._call("cuModuleGetFunction", ctypes.byref(self._work), module, ctypes.c_char_p(b"work"))

    def run(self, rounds: int) -> float:
        """Run one kernel of this many rounds on all multiprocessors. Returns its duration, seconds."""
        out, count = ctypes.c_uint64(self._out), ctypes.c_uint(rounds)
        arguments = (ctypes.c_void_p * 2)(
            ctypes.cast(ctypes.byref(out), ctypes.c_void_p), ctypes.cast(ctypes.byref(count), ctypes.c_void_p)
        )
        grid = [ctypes.c_uint(size) for size in (self._blocks, 1, 1, THREADS, 1, 1, 0)]
        began_s = time.monotonic()
        self._call("cuLaunchKernel", self._work, *grid, ctypes.c_void_p(), arguments, ctypes.c_void_p())
        self._call("cuCtxSynchronize")
        return time.monotonic() - began_s

    def _memory(self, num_bytes: int) -> int:
        """Allocate and write memory. Returns its address, 0 for no bytes."""
        if not num_bytes:
            return 0
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(num_bytes))
        self._call("cuMemsetD8_v2", address, ctypes.c_ubyte(1), ctypes.c_size_t(num_bytes))
        return address.value

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
            raise CudaError(f"{name}: {(text.value or b'error %d' % code).decode()}")


def rounds_of(run: Callable[[int], float], least_s: float = KERNEL_S) -> int:
    """Number of rounds for which a kernel takes at least this long, a power of two."""
    rounds = 1024
    while run(rounds) < least_s and rounds < 1 << 28:
        rounds *= 2
    return rounds


def main() -> int:
    """Hold memory, and work until the file exists."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256, help="memory to hold, MiB")
    parser.add_argument("--busy", type=float, default=1.0, help="share of the time to work, 0 to 1")
    parser.add_argument("--until", type=Path, required=True, help="end when this file exists")
    parser.add_argument("--exit-code", type=int, default=0)
    asked = parser.parse_args()
    try:
        gpu = Gpu(asked.mib)
        rounds = rounds_of(gpu.run) if asked.busy else 0
        print("up", os.getpid(), flush=True)
        began_s, kernels = time.monotonic(), 0
        while not asked.until.exists():
            if not asked.busy:
                time.sleep(0.02)
                continue
            took_s = gpu.run(rounds)
            kernels += 1
            time.sleep(took_s * (1.0 / asked.busy - 1.0))
    except (CudaError, OSError) as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    print("done", kernels, time.monotonic() - began_s, flush=True)
    return int(asked.exit_code)


if __name__ == "__main__":
    sys.exit(main())
