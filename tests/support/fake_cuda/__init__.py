"""A fake libcuda.so.1 in C, whose devices pass, corrupt data, hang, crash or report errors; see `library.FakeCuda`."""

from tests.support.fake_cuda.library import FakeCuda

__all__ = ["FakeCuda"]
