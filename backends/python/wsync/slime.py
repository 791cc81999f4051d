"""slime's (and miles') full update by disk, into a folder that `wsync share` has mounted: the hook between its ranks' writes and the
engines' loads. ``--custom-update-weight-post-write-path wsync.slime.committed``; without it a version is announced all the same, mostly
before slime's last rename returns."""
from __future__ import annotations

import os
from typing import Any

__all__ = ["committed"]


def committed(args: Any, version_dir: str, rollout_engines: Any) -> None:
    """Returns once the version in the folder is announced, where it is whole and can be published; called on each rank, after its writes.

    args and rollout_engines: slime's own, not looked at. On a folder that is not shared it does what fsync(2) of a folder does.
    Raises: OSError where the folder cannot be opened, as FileNotFoundError. Any thread; it blocks for as long as publishing takes."""
    folder = os.open(version_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
