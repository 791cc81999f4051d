"""What changed between two versions, and patches of memory, by libwsync as an engine's worker uses it."""
import ctypes
import os

from world import BUILD

ELEMENT = {"F64": 8, "I64": 8, "F32": 4, "BF16": 2, "F16": 2, "U8": 1, "F8_E4M3": 1}


class Region(ctypes.Structure):
    _fields_ = [("tensor", ctypes.c_char_p), ("memory", ctypes.c_void_p), ("memory_elements", ctypes.c_uint64), ("element_bytes", ctypes.c_uint),
                ("to", ctypes.c_uint64), ("from_", ctypes.c_uint64), ("n_dims", ctypes.c_uint), ("shape", ctypes.POINTER(ctypes.c_uint64)),
                ("to_strides", ctypes.POINTER(ctypes.c_int64)), ("from_strides", ctypes.POINTER(ctypes.c_int64))]


def library():
    lib = ctypes.CDLL(os.path.join(BUILD, "libwsync.so"))
    lib.wsync_error.restype = ctypes.c_char_p
    lib.wsync_changes_count.restype = lib.wsync_changes_elements.restype = ctypes.c_uint64
    return lib


class Refused(Exception):
    pass


class Changes:
    """Lists what differs from base to target."""

    def __init__(self, target, base):
        self.lib, self.it = library(), ctypes.c_void_p()
        rc = self.lib.wsync_changes_open(ctypes.byref(self.it), os.fsencode(target), os.fsencode(base))
        if rc:
            raise Refused(rc, self.lib.wsync_error().decode())
        self.recorded = self.lib.wsync_changes_recorded(self.it) == 1

    def count(self, tensor=None):
        return self.lib.wsync_changes_count(self.it, tensor and tensor.encode())

    def patched(self, held):
        """What {name: (dtype, shape, bytes)} is after a patch. It is checked, put, undone and put again."""
        patch, memory = ctypes.c_void_p(), {}
        self._do("new", ctypes.byref(patch))
        for name, (dtype, _, data) in held.items():
            n, one = len(data) // ELEMENT[dtype], (ctypes.c_int64 * 1)(1)
            room = memory[name] = (ctypes.c_uint64 * (len(data) // 8 + 1))()
            ctypes.memmove(room, data, len(data))
            self._do("add", patch, ctypes.byref(Region(name.encode(), ctypes.addressof(room), n, ELEMENT[dtype], 0, 0, 1, (ctypes.c_uint64 * 1)(n), one, one)))
        self._do("prepare", patch, self.it, 2)
        for step in ("check", "put", "undo", "check", "put"):
            self._do(step, patch)
        self.lib.wsync_patch_free(patch)
        return {name: (*held[name][:2], bytes(memory[name])[:len(held[name][2])]) for name in held}

    def _do(self, step, *args):
        if getattr(self.lib, f"wsync_patch_{step}")(*args):
            raise Refused(step, self.lib.wsync_error().decode())

    def __del__(self):
        self.lib.wsync_changes_free(self.it)
