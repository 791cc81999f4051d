"""Which version is at a path."""
from __future__ import annotations

import json
import os
from typing import Any, Optional

from ..read._safetensors import FormatError
from ..read._weights import MANIFEST, MAX_MANIFEST_BYTES, Weights
from ..read._weights import open as open_weights

KEYS = ("model", "version", "run", "digest")


def identity(weights: Weights) -> dict[str, Any]:
    """What the manifest says; None for each key where there is none."""
    manifest = weights._manifest()
    return {key: manifest.get(key) for key in KEYS}


def is_version(path: str, served_path: Optional[str], served: dict[str, Any]) -> bool:
    """Whether the version at the path is this one: by its manifest, which a mount shows also where the version's files are gone; else by the
    folder. OSError, ValueError."""
    try:
        with open_weights(path, "torch") as weights:
            found = identity(weights)
    except (FileNotFoundError, FormatError):
        found = _manifest_alone(path)
    if found["version"] is None or served["version"] is None:
        return served_path is not None and os.path.realpath(served_path) == os.path.realpath(path)
    return found == served and found["digest"] is not None


def _manifest_alone(path: str) -> dict[str, Any]:
    with open(os.path.join(path, MANIFEST), "rb") as f:
        manifest = json.loads(f.read(MAX_MANIFEST_BYTES))
    if not isinstance(manifest, dict):
        raise ValueError(f"{path}/{MANIFEST} is no manifest of a version")
    return {key: manifest.get(key) for key in KEYS}
