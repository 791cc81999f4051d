"""The folder that an update request names."""
from __future__ import annotations

import errno
import glob
import os
import time
from typing import Optional, Union

POLL_SECONDS, FETCH_SECONDS = 0.01, 300.0


def version_path(root: Optional[str], path: Optional[str], version: Union[int, str, None]) -> str:
    """The absolute path of the version. Exactly one of path and version is given; version is a folder in root. ValueError."""
    if (path is None) == (version is None):
        raise ValueError("an update has either a path (\"/wsync/actor/42\") or a target_version (42)")
    if path is not None:
        if not isinstance(path, str) or not os.path.isabs(path):
            raise ValueError(f"path={path!r} is no absolute path: it is where the workers see the version")
        return path
    name = str(version)
    if isinstance(version, bool) or not isinstance(version, (int, str)) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"target_version={version!r} is neither a number nor the name of a version's folder")
    if root is None:
        raise ValueError(f"target_version={version!r}: of which model? Give init_weight_transfer_engine a root (\"/wsync/actor\"), or the update a path")
    return os.path.join(root, name)


def appears(path: str, seconds: float) -> bool:
    """Waits until the folder is there. False: it is not."""
    end = time.monotonic() + seconds
    while not os.path.isdir(path):
        if time.monotonic() > end:
            return False
        time.sleep(POLL_SECONDS)
    return True


def fetch(path: str, seconds: float = FETCH_SECONDS) -> None:
    """Waits until a version is there with all of its weights: the mount answers the read of a file's end when it has the file. OSError."""
    if not appears(path, seconds):
        raise OSError(errno.ENOENT, f"it has not appeared within {seconds:g} s: is that a mount of the trainer's model?", path)
    files = glob.glob(os.path.join(glob.escape(path), "*.safetensors"))
    if not files:
        raise OSError(errno.ENOENT, "it has no safetensors files", path)
    for name in files:
        with open(name, "rb", buffering=0) as f:
            f.seek(-1, os.SEEK_END)
            f.read(1)
