"""Arrays on the stand-in driver's devices for tests without a GPU: DLPack CUDA tensors, filled and read by driver calls. The driver is
$WSYNC_LIBCUDA, which libwsync opens too."""
import ctypes
import os

import numpy

CODES = {"b": 6, "i": 0, "u": 1, "f": 2, "V": 4, "c": 5}  # by numpy's kind; ml_dtypes' bfloat16 is "V"
_open = []


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("n_dims", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p)]


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def driver():
    if not _open:
        lib = ctypes.CDLL(os.environ["WSYNC_LIBCUDA"])
        done(lib.cuInit(0))
        _open.append(lib)
    return _open[0]


def done(result):
    assert result == 0, f"the driver answered {result}"


class _Context:
    """Makes the device's primary context current in this thread."""

    def __init__(self, device):
        self.context = ctypes.c_void_p()
        done(driver().cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device))

    def __enter__(self):
        done(driver().cuCtxPushCurrent_v2(self.context))

    def __exit__(self, *_):
        done(driver().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))


class OnGpu:
    """A numpy array's bytes in device memory, with the array's own layout: also slices, transposed and strided arrays."""

    def __init__(self, array, device=0):
        base = array if array.base is None or not isinstance(array.base, numpy.ndarray) else array.base
        base = base if base.flags.c_contiguous else numpy.ascontiguousarray(base)
        self.array, self.device, self.base = array, device, base
        self.at, self.n = ctypes.c_uint64(), max(base.nbytes, 1)
        with _Context(device):
            done(driver().cuMemAlloc_v2(ctypes.byref(self.at), ctypes.c_size_t(self.n)))
        self.fill()

    def fill(self):
        """Copies the array's present bytes to the device."""
        if self.base.nbytes:
            with _Context(self.device):
                done(driver().cuMemcpyHtoD_v2(self.at, ctypes.c_void_p(self.base.ctypes.data), ctypes.c_size_t(self.base.nbytes)))

    def free(self):
        with _Context(self.device):
            done(driver().cuMemFree_v2(self.at))

    def __dlpack_device__(self):
        return (2, self.device)

    def __dlpack__(self, stream=None):
        assert stream == 1, "the stream that is asked for is the default one"
        a = self.array
        self.shape = (ctypes.c_int64 * max(a.ndim, 1))(*a.shape)
        self.strides = (ctypes.c_int64 * max(a.ndim, 1))(*(s // a.itemsize for s in a.strides))
        offset = a.ctypes.data - self.base.ctypes.data
        self.tensor = _Tensor(self.at.value, 2, self.device, a.ndim, CODES[a.dtype.kind], a.itemsize * 8, 1, self.shape, self.strides, offset, None, None)
        return _capsule(ctypes.addressof(self.tensor), b"dltensor", None)
