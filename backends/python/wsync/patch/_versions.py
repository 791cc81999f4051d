"""Which version is at a path."""
from __future__ import annotations

import os
from typing import Any, Optional

from ..read._weights import Weights
from ..read._weights import open as open_weights

KEYS = ("model", "version", "run", "digest")


def identity(weights: Weights) -> dict[str, Any]:
    """What the manifest says; None for each key where there is none."""
    manifest = weights._manifest()
    return {key: manifest.get(key) for key in KEYS}


def is_version(path: str, served_path: Optional[str], served: dict[str, Any]) -> bool:
    """Whether the version at the path is this one: by its manifest; where its files are gone by a name such as 42@RUN; else by the folder. OSError,
    ValueError."""
    try:
        with open_weights(path, "torch") as weights:
            found = identity(weights)
    except FileNotFoundError:
        if served["version"] is not None and os.path.basename(path.rstrip("/")) == f"{served['version']}@{served['run']}":
            return True
        raise
    if found["version"] is None or served["version"] is None:
        return served_path is not None and os.path.realpath(served_path) == os.path.realpath(path)
    return found == served
