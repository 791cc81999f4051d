"""A version, a checkpoint folder or a safetensors file as a mapping of names to tensors."""
from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any, Optional, Union

from ..lib import _dtypes
from ..lib._folder import Folder, VersionFiles
from ..lib._library import Strings, ffi, lib, text
from ._safetensors import File, FormatError, checked
from ._to_gpu import to_gpu
from ._weight_source import ParamMeta, WeightSource

INDEX = "model.safetensors.index.json"
MANIFEST = ".wsync/manifest.json"
MAX_MANIFEST_BYTES = 256 << 20


class Weights(Mapping[str, Any]):
    """The result of ``wsync.open``: a read-only mapping of tensor names to tensors that copies nothing.

    A tensor is a view of the mapped file; for a mounted version, of the mount's own memory. A file is mapped when the first of its
    tensors is accessed, and stays mapped while this object or any of its tensors lives: tensors stay valid after ``close``, after the
    version is dropped and after ``umount``. NumPy arrays are read-only; PyTorch has no read-only tensors, but writes stay in this
    process. Thread safe, except close. Order: the index's, or files by name and tensors by offset."""

    def __init__(self, folder: Union[Folder, VersionFiles], framework: Optional[str] = None, only: Optional[str] = None):
        """only: the one file of the folder to read. The folder is closed with this object."""
        self.framework = _dtypes.framework_of(framework)
        self.path = folder.path if only is None else os.path.join(folder.path, only)
        self._files: dict[str, File] = {}
        self._folder = folder
        self._index: Any = ffi.NULL
        try:
            if only is None and folder.exists(INDEX):
                self._file_names = self._read_index()
            else:
                self._file_names = self._read_files(self._select_files(ffi.NULL) if only is None else [only])
        except BaseException:
            self.close()
            raise

    # --- which tensor is in which file ---

    def _read_index(self) -> dict[str, str]:
        out, file = ffi.new("wsync_index **"), ffi.new("char **")
        fd = self._folder.open(INDEX)
        try:
            checked(self.path, lib.wsync_index_open(fd, out))
        finally:
            os.close(fd)
        self._index = ffi.gc(out[0], lib.wsync_index_close)
        self._select_files(self._index)
        file_names: dict[str, str] = {}
        while (name := lib.wsync_index_tensor(self._index, len(file_names), file)) != ffi.NULL:
            file_names[text(name)] = text(file[0])
        return file_names

    def _select_files(self, index: Any) -> list[str]:
        """The weight files of the folder, by the index or by their names; sorted."""
        keep, names = Strings(), sorted(self._folder.names())
        chosen = ffi.new("unsigned char[]", len(names))
        checked(self.path, lib.wsync_select_weights(keep.array("char *[]", [keep(name) for name in names]), len(names), index, chosen))
        return [name for name, selected in zip(names, chosen) if selected]

    def _read_files(self, names: list[str]) -> dict[str, str]:
        file_names: dict[str, str] = {}
        for file in names:
            for name in self._file(file).entries:
                if file_names.setdefault(name, file) != file:
                    raise FormatError(f"{self.path}: tensor \"{name[:160]}\" is in {file_names[name]} and in {file}")
        return file_names

    def _file(self, name: str) -> File:
        """The mapped file. If two threads map it at the same time, one of the two mappings is kept."""
        found = self._files.get(name)
        if found:
            return found
        found = File(os.path.join(self._folder.path, name), self._folder.open(name), self._index)
        return self._files.setdefault(name, found)

    # --- the mapping ---
    def __getitem__(self, name: str) -> Any:
        """A view of the tensor: numpy.ndarray or torch.Tensor, in the file's dtype and shape."""
        file = self._file(self._file_names[name])
        return file.torch(name) if self.framework == "torch" else file.numpy(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_names)

    def __len__(self) -> int:
        return len(self._file_names)

    def __contains__(self, name: object) -> bool:
        return name in self._file_names

    __eq__ = object.__eq__  # identity: do not compare tensor by tensor
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<wsync.Weights {self.path}: {len(self._file_names)} tensors, {self.framework}>"

    def raw(self, name: str) -> memoryview:
        """The tensor's bytes, read-only and not copied; for any dtype, also those that the framework lacks."""
        return self._file(self._file_names[name]).raw(name)

    # --- metadata ---
    def metadata(self) -> list[ParamMeta]:
        """Name, dtype and shape of every tensor, in the mapping's order. Reads the headers of all files, no tensor."""
        found = []
        for name, file in self._file_names.items():
            e = self._file(file).entries[name]
            if self.framework == "torch":
                found.append(ParamMeta(name, _dtypes.torch_dtype(e.dtype), _dtypes.torch_shape(e.dtype, e.shape)))
            else:
                found.append(ParamMeta(name, _dtypes.numpy_dtype(e.dtype), e.shape))
        return found

    def header_metadata(self) -> dict[str, str]:
        """The merged __metadata__ of all files, as safetensors' safe_open.metadata() returns it for one."""
        found: dict[str, str] = {}
        for file in dict.fromkeys(self._file_names.values()) if self._index != ffi.NULL else list(self._files):
            found.update(self._file(file).metadata)
        return found

    def _manifest(self) -> dict[str, Any]:
        if isinstance(self._folder, VersionFiles):
            return self._folder.manifest
        if not hasattr(self, "_manifest_read"):
            try:
                with os.fdopen(self._folder.open(MANIFEST), "rb") as f:
                    found = f.read(MAX_MANIFEST_BYTES + 1)
                if len(found) > MAX_MANIFEST_BYTES:
                    raise FormatError(f"{self.path}/{MANIFEST} is larger than the limit of {MAX_MANIFEST_BYTES} bytes")
                self._manifest_read = json.loads(found)
            except (FileNotFoundError, NotADirectoryError):
                self._manifest_read = {}
        return self._manifest_read

    @property
    def version(self) -> Optional[int]:
        """The number of a published version; None for any other checkpoint."""
        return self._manifest().get("version")

    @property
    def run(self) -> Optional[str]:
        """The lineage of a published version; None for any other checkpoint."""
        return self._manifest().get("run")

    def layout(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Name to (safetensors' dtype, shape). Reads the headers of all files, no tensor."""
        found = {}
        for name, file in self._file_names.items():
            entry = self._file(file).entries[name]
            found[name] = (entry.dtype, entry.shape)
        return found

    def to_gpu(self, device: Any = "cuda") -> dict[str, Any]:
        """Loads all tensors into GPU memory (torch), as views of one buffer per file; see ``wsync.load_gpu``."""
        return to_gpu(self, device)

    def source(self) -> WeightSource:
        """These weights as a ``wsync.WeightSource``, the interface of vLLM (since 0.30) and SkyRL (since 0.4)."""
        return WeightSource(self)

    def close(self) -> None:
        """Ends access to tensors; tensors obtained before stay valid. May be called twice."""
        self._folder.close()
        self._files = {}

    def __enter__(self) -> "Weights":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open(path: Union[str, "os.PathLike[str]"], framework: Optional[str] = None) -> Weights:  # noqa: A001
    """Opens a mounted version ("/wsync/actor/42", ".../current"), a checkpoint folder or a safetensors file for reading.

    framework: "torch" or "numpy"; default: torch if the program has imported it. In NumPy, BF16 and the 8-bit floats are ml_dtypes'.
    Opening a version that the mount has not pulled yet pulls it, as any read does; with the mount's open=stream this returns earlier,
    and the first access to a tensor's bytes waits for them, holding the GIL. The files of a folder with an index are opened when one
    of their tensors is first accessed: pin a version that might be dropped meanwhile, or call metadata() first. OSError: of the file
    system; FormatError (a ValueError): a malformed header or index, with the file and the reason."""
    real = os.path.realpath(path)  # a link such as `current` may change
    if stat.S_ISREG(os.stat(real).st_mode):
        return Weights(Folder(os.path.dirname(real)), framework, os.path.basename(real))
    return Weights(Folder(real), framework)
