"""What the ranks of torch.distributed tell each other, for modules that stand in for a framework's own. Without it there is one rank."""
from __future__ import annotations

import os
import secrets
import sys
import tempfile
from typing import Any


def _dist() -> Any:
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def rank() -> int:
    dist = _dist()
    return 0 if dist is None else dist.get_rank()


def broadcast(values: list[Any]) -> list[Any]:
    """Rank 0's values. Collective."""
    dist = _dist()
    if dist is not None:
        dist.broadcast_object_list(values, src=0)
    return values


def all_gather(mine: Any) -> list[Any]:
    """Each rank's value. Collective."""
    dist = _dist()
    if dist is None:
        return [mine]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def on_node_of_rank_0() -> bool:
    """Does this rank see the files that rank 0 writes to this node's temporary folder? Collective."""
    path, mark = "", secrets.token_hex(16)
    if rank() == 0:
        fd, path = tempfile.mkstemp(prefix="wsync-rank0-")
        with open(fd, "w") as f:
            f.write(mark)
    path, mark = broadcast([path, mark])
    try:
        here = _read(path) == mark
        all_gather(None)  # all have read it
    finally:
        if rank() == 0:
            os.unlink(path)
    return here


def _read(path: str) -> str | None:
    try:
        with open(path) as f:
            return f.read()
    except OSError:
        return None
