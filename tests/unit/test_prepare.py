"""What the command's process is set up with."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

MEMORY = """
import ctypes, resource, sys, threading
from ace.engine import prepare

prepare.keep_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
faults = []

def touch():
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(200_000_000)))
        ctypes.memset(block, 1, 200_000_000)
        libc.free(block)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=touch)  # XLA allocates in threads
thread.start()
thread.join()
assert not {"jax", "numpy"} & {*sys.modules}  # it comes before them
print(faults[0], sum(faults[1:]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc is set")
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="left alone where there is a GPU")
def test_freed_memory_is_used_again() -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True)
    first, later = map(int, done.stdout.split() or pytest.fail(done.stderr))
    assert later < 100 and first > 1000 * later
