"""CUDA's driver: none, one that does not start, processes that end, and the fake one's checks."""

import re

import pytest

from tests.children import python
from tests.fake_cuda import library


@pytest.mark.parametrize(
    ("library_", "devices", "number", "message"),
    [
        ("/nowhere/libcuda.so.1", "1", 0, "DeviceError: expected CUDA's driver, got /nowhere/lib"),
        ("libm.so.6", "1", 0, "DeviceError: expected cuInit in CUDA's driver, got none in libm.so"),
        (None, "0", 0, "DeviceError: expected a CUDA driver that starts, got CUDA_ERROR_NO_DEVICE"),
        (None, "2", 7, "ValueError: device: expected one of the 2 that CUDA sees.* got cuda:7"),
    ],
)
def test_no_driver_no_device(library_: str | None, devices: str, number: int, message: str) -> None:
    script = f"""
from stepwell.feed import make_feed
make_feed({number}, {{}}, 4, threads=1, prefetch=1)
"""
    env = {"STEPWELL_CUDA_LIBRARY": library_ or str(library()), "FAKE_CUDA_DEVICES": devices}
    done = python(script, env=env)
    assert done.returncode == 1
    assert re.search(message, done.stderr), done.stderr


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "kept.clear()", "os.kill(os.getpid(), 9)"])
def test_a_process_that_ends_in_the_middle(end: str) -> None:
    script = f"""
import os, sys
from tests.fake_cuda import FakeLoader, numbers
feeding = FakeLoader(numbers(100000), 64, prefetch=8)
loop = iter(feeding)
kept = [next(loop) for _ in range(20)]
{end}
"""
    done = python(script)
    assert done.returncode == (-9 if "kill" in end else 0), done.stderr
    assert done.stderr == ""


BROKEN = {
    "freed twice": "free(block); free(block)",
    "not in memory that is allocated": "free(block); copy(block, a)",
    "missing wait: stream 3 writes memory that stream 2 writes": "copy(block, a); copy(block, b)",
    "missing wait: stream 3 reads memory that stream 2 writes": "copy(block, a); read(b)",
    "missing wait: stream 2 writes memory that stream 3 reads": (
        "copy(block, a); wait(b, record(a)); read(b); copy(block, a)"
    ),
    "freed while stream 2 may still use it": "copy(block, a); free(block)",
    "the host wrote into a block": "copy(block, a); here[0] = 1; call('fake_synchronize', a)",
    "expected the context of device 0, got that of device 1": "enter(1); copy(block, a)",
    "called without a current context": "leave(); copy(block, a)",
    "called in a forked child": "os.fork() or free(block); os.wait()",
    "the event was never recorded": "wait(a, event())",
}


@pytest.mark.parametrize("message", BROKEN)
def test_the_driver_notices(message: str) -> None:
    """The fake one, so that a test that passes means something."""
    script = f"""
import ctypes, os, sys
fake = ctypes.CDLL(sys.argv[1])
P = ctypes.c_size_t
def call(name, *values):
    getattr(fake, name)(*(P(v) if isinstance(v, int) else v for v in values))
def made(name, *values):
    out = P()
    call(name, ctypes.byref(out), *values)
    return out.value
contexts = [made("cuDevicePrimaryCtxRetain", 40 + i) for i in range(2)]
enter = lambda i: call("cuCtxPushCurrent_v2", contexts[i])
leave = lambda: made("cuCtxPopCurrent_v2")
enter(0)
a, b = made("cuStreamCreate", 1), made("cuStreamCreate", 1)
block, pinned = made("cuMemAlloc_v2", 64), made("cuMemHostAlloc", 64, 1)
here = (ctypes.c_char * 64).from_address(pinned)
out = ctypes.create_string_buffer(64)
copy = lambda to, stream: call("cuMemcpyHtoDAsync_v2", to, pinned, 64, stream)
read = lambda stream: call("fake_read", stream, block, 64, out)
free = lambda at: call("cuMemFree_v2", at)
event = lambda: made("cuEventCreate", 2)
wait = lambda stream, what: call("cuStreamWaitEvent", stream, what, 0)
def record(stream):
    found = event()
    call("cuEventRecord", found, stream)
    return found
{BROKEN[message]}
"""
    done = python(script, library())
    assert "fake CUDA: " in done.stderr
    assert message in done.stderr
