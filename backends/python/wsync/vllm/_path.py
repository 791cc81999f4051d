"""The folder that an update request names."""
from __future__ import annotations

import os
from typing import Optional, Union


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
