"""A version, a checkpoint folder or a safetensors file as a mapping of names to tensors."""
from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Optional, Union

from ..lib import _dtypes
from ..lib._folder import Folder, VersionFiles
from ..lib._library import Strings, ffi, lib, text
from ._safetensors import File, FormatError, checked

INDEX = "model.safetensors.index.json"
MANIFEST = ".wsync/manifest.json"
MAX_MANIFEST_BYTES = 256 << 20


class ParamMeta(NamedTuple):
    """What vLLM's and SkyRL's ParamMeta have: name; dtype, the framework's; shape, a tuple."""

    name: str
    dtype: Any
    shape: tuple[int, ...]


class Weights(Mapping[str, Any]):
    """What ``wsync.open`` returns: a read-only mapping of tensor names to tensors that copies nothing.

    A tensor is a view of the mapped file: of a mounted version, of the memory that the mount holds. Files are mapped when the
    first of their tensors is asked for, and stay mapped while the mapping or any tensor lives: ``close``, a dropped version
    and ``umount`` leave tensors valid. NumPy's arrays are read-only; PyTorch knows no such tensors: what is written to one
    stays in this process. Thread safe, but for close. Its order is that of the index, or of the files by name and their data."""

    def __init__(self, folder: Union[Folder, VersionFiles], framework: Optional[str] = None, only: Optional[str] = None):
        """``only``: of all files of the folder, this one. The folder is closed with this object."""
        self.framework = _dtypes.framework_of(framework)
        self.path = folder.path if only is None else os.path.join(folder.path, only)
        self._files: dict[str, File] = {}
        self._folder = folder
        self._index: Any = ffi.NULL
        try:
            if only is None and folder.exists(INDEX):
                self._places = self._read_index()
            else:
                self._places = self._read_files(self._choose(ffi.NULL) if only is None else [only])
        except BaseException:
            self.close()
            raise

    # --- what is where ---

    def _read_index(self) -> dict[str, str]:
        out, file = ffi.new("wsync_index **"), ffi.new("char **")
        fd = self._folder.open(INDEX)
        try:
            checked(self.path, lib.wsync_index_open(fd, out))
        finally:
            os.close(fd)
        self._index = ffi.gc(out[0], lib.wsync_index_close)
        self._choose(self._index)
        places: dict[str, str] = {}
        while (name := lib.wsync_index_tensor(self._index, len(places), file)) != ffi.NULL:
            places[text(name)] = text(file[0])
        return places

    def _choose(self, index: Any) -> list[str]:
        """The files of weights in the folder, by the index or by their names; sorted."""
        keep, names = Strings(), sorted(self._folder.names())
        chosen = ffi.new("unsigned char[]", len(names))
        checked(self.path, lib.wsync_select_weights(keep.array("char *[]", [keep(name) for name in names]), len(names), index, chosen))
        return [name for name, it_is in zip(names, chosen) if it_is]

    def _read_files(self, names: list[str]) -> dict[str, str]:
        places: dict[str, str] = {}
        for file in names:
            for name in self._file(file).entries:
                if places.setdefault(name, file) != file:
                    raise FormatError(f"{self.path}: tensor \"{name[:160]}\" is in {places[name]} and in {file}")
        return places

    def _file(self, name: str) -> File:
        """Mapped at most once, but for two threads that ask at the same time: one of theirs is kept."""
        found = self._files.get(name)
        if found:
            return found
        found = File(os.path.join(self._folder.path, name), self._folder.open(name), self._index)
        return self._files.setdefault(name, found)

    # --- the mapping ---
    def __getitem__(self, name: str) -> Any:
        """A view of the tensor: numpy.ndarray or torch.Tensor, in the file's dtype and shape."""
        file = self._file(self._places[name])
        return file.torch(name) if self.framework == "torch" else file.numpy(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    __eq__ = object.__eq__  # two of them are not compared tensor by tensor
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<wsync.Weights {self.path}: {len(self._places)} tensors, {self.framework}>"

    def raw(self, name: str) -> memoryview:
        """The tensor's bytes, read-only, not copied: also those of dtypes that the framework does not have."""
        return self._file(self._places[name]).raw(name)

    # --- what it is ---
    def metadata(self) -> list[ParamMeta]:
        """Name, dtype and shape of every tensor, in the mapping's order. Reads the headers of all files, no tensor."""
        found = []
        for name, file in self._places.items():
            e = self._file(file).entries[name]
            if self.framework == "torch":
                found.append(ParamMeta(name, _dtypes.torch_dtype(e.dtype), _dtypes.torch_shape(e.dtype, e.shape)))
            else:
                found.append(ParamMeta(name, _dtypes.numpy_dtype(e.dtype), e.shape))
        return found

    def header_metadata(self) -> dict[str, str]:
        """The __metadata__ of all files together, as safetensors' safe_open.metadata() has it of one."""
        found: dict[str, str] = {}
        for file in dict.fromkeys(self._places.values()) if self._index != ffi.NULL else list(self._files):
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
        """The number of a published version; None for a checkpoint that is none."""
        return self._manifest().get("version")

    @property
    def run(self) -> Optional[str]:
        """The lineage of a published version; None for a checkpoint that is none."""
        return self._manifest().get("run")

    def layout(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Name to (safetensors' dtype, shape). Reads the headers of all files, no tensor."""
        found = {}
        for name, file in self._places.items():
            entry = self._file(file).entries[name]
            found[name] = (entry.dtype, entry.shape)
        return found

    def to_gpu(self, device: Any = "cuda") -> dict[str, Any]:
        """All tensors in a GPU's memory (torch), as views of one buffer a file: read by several threads through pinned buffers."""
        from ._gpu import to_gpu

        return to_gpu(self, device)

    def source(self) -> Any:
        """The same as vLLM (since 0.30) and SkyRL (since 0.4) want a WeightSource: see ``wsync.WeightSource``."""
        from ._weight_source import WeightSource

        return WeightSource(self)

    def close(self) -> None:
        """No tensor can be asked for any more; those that were stay valid. May be called twice."""
        self._folder.close()
        self._files = {}

    def __enter__(self) -> "Weights":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open(path: Union[str, "os.PathLike[str]"], framework: Optional[str] = None) -> Weights:  # noqa: A001
    """Opens a mounted version ("/wsync/actor/42", ".../current"), a checkpoint folder or a safetensors file for reading.

    framework: "torch" or "numpy"; by default torch where the program has imported it. BF16 and the 8-bit floats are ml_dtypes'
    in NumPy. Opening a version that is not here yet pulls it, as any read does; with the mount's open=stream it returns earlier,
    and the first look at a tensor waits for its bytes, with the GIL. A folder with an index is opened file by file, when a tensor
    of it is asked for: pin a version that might be dropped meanwhile, or call metadata() first. OSError: as files have it; FormatError (a
    ValueError): a header or an index is not what it should be, with the file and the reason."""
    real = os.path.realpath(path)  # a link such as `current` may lead elsewhere in a moment
    if stat.S_ISREG(os.stat(real).st_mode):
        return Weights(Folder(os.path.dirname(real)), framework, os.path.basename(real))
    return Weights(Folder(real), framework)
