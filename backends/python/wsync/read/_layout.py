"""Layouts (names, dtypes and shapes of a version's tensors) and their comparison by libwsync. For loaders in an engine's process, and
for senders."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..lib import _dtypes
from ..lib._library import Strings, check, ffi, lib, text

#: name: (safetensors dtype, shape)
Layout = Mapping[str, tuple[str, tuple[int, ...]]]
MAX_NAMED = 20


def _tensors(layout: Layout, keep: Strings) -> Any:
    tensors = keep.array("wsync_tensor[]", len(layout))
    for t, (name, (dtype, shape)) in zip(tensors, layout.items()):
        t.name, t.dtype, t.n_dims, t.shape = keep(name), _dtypes.NUMBERS[dtype], len(shape), tuple(shape)
    return tensors


@dataclass(frozen=True)
class Difference:
    """The difference between two layouts: sorted names; ``differing``: name to its dtype and shape now and before."""

    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    differing: dict[str, str] = field(default_factory=dict)

    @classmethod
    def between(cls, have: Layout, want: Layout) -> "Difference":
        """have: the layout to be loaded; want: the layout that is served."""
        keep, out, found = Strings(), ffi.new("wsync_differences **"), cls()
        check(lib.wsync_layout_compare(_tensors(have, keep), len(have), _tensors(want, keep), len(want), out))
        differences, i = ffi.gc(out[0], lib.wsync_differences_free), 0
        while (d := lib.wsync_difference_at(differences, i)) != ffi.NULL:
            if d.kind == lib.WSYNC_DIFFERS:
                found.differing[text(d.name)] = text(d.text)
            else:
                (found.missing if d.kind == lib.WSYNC_MISSING else found.extra).append(text(d.name))
            i += 1
        return found

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.differing)

    def __str__(self) -> str:
        """"missing NAME; extra NAME; differs NAME: F32 [2,3], was BF16 [2,3]; and N more"."""
        lines = [f"missing {n}" for n in self.missing] + [f"extra {n}" for n in self.extra]
        lines += [f"differs {n}: {how}" for n, how in self.differing.items()]
        return summary(lines)

    def as_json(self) -> dict[str, Any]:
        return {"missing": list(self.missing), "extra": list(self.extra), "differing": dict(self.differing)}


def summary(lines: list[str]) -> str:
    """The first MAX_NAMED lines, joined, and the number of the rest."""
    more = len(lines) - MAX_NAMED
    return "; ".join(line[:400] for line in lines[:MAX_NAMED]) + (f"; and {more} more" if more > 0 else "")


class LayoutError(ValueError):
    """A version's layout differs from the served one's; ``difference`` is the complete list."""

    def __init__(self, path: str, served: str, difference: Difference):
        self.difference = difference
        super().__init__(f"{path} has not the tensors of {served}: {difference}")
