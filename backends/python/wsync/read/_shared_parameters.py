"""Parameters that a draft model uses as its own though they are the target's (embeddings, head): what is written to them changes the
target."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def shared_parameters(draft: Any, target: Any) -> frozenset[str]:
    """Their names in the draft model."""
    of_target = {id(p) for p in target.parameters()}
    return frozenset(name for name, p in draft.named_parameters(remove_duplicate=False) if id(p) in of_target)


def matcher(shared: Iterable[str]) -> Callable[[str], bool]:
    """Whether a checkpoint's name is one of these parameters: by its end ("lm_head.weight"), since a checkpoint may name the modules above it
    otherwise."""
    ends = tuple("." + ".".join(name.split(".")[-2:]) for name in shared)
    return lambda name: f".{name}".endswith(ends)
