"""A fake libcuda.so.1 in C, which passes, lies, hangs, crashes or reports an error; see `library.FakeCuda`."""

from tests.support.fake_cuda.library import FakeCuda

__all__ = ["FakeCuda"]
