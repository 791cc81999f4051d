"""Where weight files are read from: a folder on a disk or a mount, or a version in the memory of this host's agent."""
from __future__ import annotations

import os
from typing import Optional, Union

from ._library import Strings, check, ffi, lib, text


class Folder:
    """A folder by descriptor: later opens use the same folder even if its name has been given to another one."""

    def __init__(self, path: Union[str, "os.PathLike[str]"]):
        self.path = os.fspath(path)
        self._fd: Optional[int] = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def _folder(self) -> int:
        if self._fd is None:
            raise ValueError(f"{self.path} is closed")
        return self._fd

    def names(self) -> list[str]:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._folder())
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)

    def exists(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._folder())
        except FileNotFoundError:
            return False
        return True

    def open(self, name: str) -> int:
        """A descriptor for reading, the caller's. OSError."""
        return os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._folder())  # a FIFO would block

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", None) is not None:
            self.close()


class VersionFiles:
    """The same interface for a published version, read from the agent's slot without a copy and without a mount."""

    def __init__(self, agent: Optional[str], model: str, version: int):
        """agent: "unix:PATH"; None: $WSYNC_AGENT, or the default path."""
        keep, out = Strings(), ffi.new("wsync_version_files **")
        self.path = f"{agent or 'agent'}:{model}/{version}"
        check(lib.wsync_open_version(keep(agent), keep(model), version, out))
        self._version = ffi.gc(out[0], lib.wsync_close_version)
        self.manifest = {"model": model, "version": version, "run": text(lib.wsync_version_run(self._version))}
        self._fds: dict[str, int] = {}
        fd, size = ffi.new("int *"), ffi.new("uint64_t *")
        while (name := lib.wsync_version_file(self._version, len(self._fds), fd, size)) != ffi.NULL:
            self._fds[text(name)] = fd[0]

    def names(self) -> list[str]:
        return list(self._fds)

    def exists(self, name: str) -> bool:
        return name in self._fds

    def open(self, name: str) -> int:
        if self._version is None:
            raise ValueError(f"{self.path} is closed")
        if self._fds.get(name, -1) < 0:
            raise FileNotFoundError(2, "no such file in the version", f"{self.path}/{name}")
        return os.open(f"/proc/self/fd/{self._fds[name]}", os.O_RDONLY | os.O_CLOEXEC)  # a new open file, so with its own offset

    def close(self) -> None:
        version, self._version = self._version, None
        if version is not None:
            ffi.release(version)
