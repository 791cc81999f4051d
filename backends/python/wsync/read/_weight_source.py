"""A mapping of weights in the shape of vLLM's and SkyRL's WeightSource, so that their senders can push from it."""
from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Optional

from ._weights import ParamMeta, Weights


class WeightSource:
    """vllm.distributed.weight_transfer.WeightSource (vLLM 0.30, SkyRL 0.4) over ``wsync.open(path, "torch")``.

    It cannot be the mapping itself: a mapping's iterator yields names, a source's pairs. Tensors are views on the host, and a
    source may be iterated any number of times, by one thread each. Where vLLM is there, isinstance(source, its
    WeightSource) holds."""

    def __init__(self, weights: Weights):
        self.weights = weights
        _register()

    def metadata(self) -> list[ParamMeta]:
        """Name, dtype and full shape of all that iteration yields, in its order; reads headers only."""
        return self.weights.metadata()

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """A fresh pass over (name, full tensor)."""
        for name in self.weights:
            yield name, self.weights[name]

    def __len__(self) -> int:
        return len(self.weights)

    def held_names(self) -> Optional[Collection[str]]:
        """None: every name is held here."""
        return None

    def groups(self) -> list[list[str]]:
        """vLLM's own partition of the names by layer; ImportError without vLLM, which alone asks for it."""
        from vllm.distributed.weight_transfer.base import layerwise_groups

        return layerwise_groups(list(self.weights))

    def iter_groups(self) -> Iterator[tuple[list[str], list[Any]]]:
        """(names, tensors) of each group; needs no order of the names in the file, since any tensor can be had at any time."""
        for names in self.groups():
            yield names, [self.weights[name] for name in names]


def _register() -> None:
    """Where vLLM has been imported its isinstance says yes; it is never imported for that."""
    import sys

    base = sys.modules.get("vllm.distributed.weight_transfer.base")
    if base is not None and hasattr(base, "WeightSource"):
        base.WeightSource.register(WeightSource)
