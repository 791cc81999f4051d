"""What one version changes in the memory of this worker: prepared by libwsync, written to host memory by it, and to GPUs by index."""
from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import torch

from ..lib._library import Strings, check, ffi, lib
from ._proofs import flat
from ._recording import Place, Recording, Unpatchable
from ._regions import Region

DENSITY = 0.05  # above it a whole load costs less


class Changes:
    """The elements in which two versions differ. OSError."""

    def __init__(self, target: str, base: str):
        keep, out = Strings(), ffi.new("wsync_changes **")
        check(lib.wsync_changes_open(out, keep(target), keep(base)))
        self.handle = ffi.gc(out[0], lib.wsync_changes_free)

    def count(self, name: str) -> int:
        return int(lib.wsync_changes_count(self.handle, Strings()(name)))


class Plan:
    """Of one switch. elements: of this rank; changed: those that put writes, for which lists of these bytes are held; modules: loaded whole, by
    these tensors; identities: the engine's, by stage; versions: what the manifests at both paths said."""

    def __init__(self, identity: str, recording: Recording, target: str, base: str, layout: Mapping[str, Any], threads: int):
        """OSError: the library's; Unpatchable: a whole load is better, or the only way."""
        self.identity, self.target, self.base = identity, target, base
        self.identities: dict[str, Any] = {}
        self.versions: dict[str, Any] = {}
        changes = Changes(target, base)
        counts = {name: n for name in layout if (n := changes.count(name))}
        self.elements = sum(recording.elements(name) for name in layout)
        _refuse_dense(sum(counts.values()), self.elements)
        self.modules = recording.whole_modules(name for name in counts if name in recording.whole)
        self.tensors = recording.tensors_of(self.modules)
        _refuse_mostly_whole(self.tensors, recording, self.elements)
        regions = [(place, one) for place, one in recording.regions() if one.name in counts]
        _refuse_short(sum(min(counts[one.name], one.to.elements) * (8 + 3 * one.to.item) for _, one in regions))
        self._patches = _host_patches(regions) + _device_patches(regions)
        for patch in self._patches:
            patch.prepare(changes, threads)
        self.changed, self.bytes = sum(p.changed for p in self._patches), sum(p.bytes for p in self._patches)

    def check(self) -> None:
        """OSError ESTALE: memory has another value than the base's; the message names it. Nothing was written."""
        for patch in self._patches:
            patch.check()

    def put(self) -> None:
        for patch in self._patches:
            patch.put()

    def undo(self) -> None:
        """Also after a put that was cut off, and twice."""
        for patch in self._patches:
            patch.undo()


class _Patch:
    """libwsync's part of a plan."""

    def __init__(self) -> None:
        out = ffi.new("wsync_patch **")
        check(lib.wsync_patch_new(out))
        self.handle = ffi.gc(out[0], lib.wsync_patch_free)
        self.changed = self.bytes = 0

    def add(self, place: Place, one: Region, memory: Any) -> None:
        item, keep = one.to.item, Strings()
        shape = one.to.shape or (1,)
        to = [s // item for s in one.to.strides] or [1]
        source = [s // item for s in one.source_strides] or [1]
        region = ffi.new("wsync_patch_region *")
        region.tensor, region.memory, region.element_bytes = keep(one.name), memory, item
        region.memory_elements = place.tensor.untyped_storage().nbytes() // item
        region.to = one.to.offset // item
        setattr(region, "from", one.source // item)
        region.n_dims, region.shape = len(shape), keep.array("uint64_t[]", list(shape))
        region.to_strides, region.from_strides = keep.array("int64_t[]", to), keep.array("int64_t[]", source)
        check(lib.wsync_patch_add(self.handle, region))

    def prepare(self, changes: Changes, threads: int) -> None:
        check(lib.wsync_patch_prepare(self.handle, changes.handle, threads))

class _HostPatch(_Patch):
    """Of parameters in host memory."""

    def __init__(self, regions: list[tuple[Place, Region]]):
        super().__init__()
        self._alive = [place.tensor for place, _ in regions]
        for place, one in regions:
            self.add(place, one, ffi.cast("void *", place.tensor.untyped_storage().data_ptr()))

    def prepare(self, changes: Changes, threads: int) -> None:
        super().prepare(changes, threads)
        size = ffi.new("uint64_t *")
        self.changed = int(lib.wsync_patch_count(self.handle, size))
        self.bytes = int(size[0])

    def check(self) -> None:
        check(lib.wsync_patch_check(self.handle))

    def put(self) -> None:
        check(lib.wsync_patch_put(self.handle))

    def undo(self) -> None:
        check(lib.wsync_patch_undo(self.handle))


class _DevicePatch(_Patch):
    """Of one storage of a device: places and values are uploaded before the pause."""

    def __init__(self, place: Place, regions: list[Region]):
        super().__init__()
        self._place, self._item, self._regions = place, regions[0].to.item, len(regions)
        for one in regions:
            self.add(place, one, ffi.NULL)

    def prepare(self, changes: Changes, threads: int) -> None:
        super().prepare(changes, threads)
        self._flat = flat(self._place.tensor, self._item)
        lists = [self._listed(i) for i in range(self._regions)]
        self._places, self._before, self._after = (torch.cat(parts).to(self._flat.device) for parts in zip(*lists))
        self.changed = self._places.numel()
        self.bytes = self.changed * (8 + 2 * self._item)

    def _listed(self, i: int) -> tuple[Any, Any, Any]:
        """Places, old and new values of one region; copies."""
        places, before, after, n = ffi.new("uint64_t **"), ffi.new("void **"), ffi.new("void **"), ffi.new("uint64_t *")
        check(lib.wsync_patch_list(self.handle, i, places, before, after, n))
        of = lambda pointer, item, dtype: torch.frombuffer(bytearray(ffi.buffer(pointer, n[0] * item)), dtype=dtype) if n[0] else torch.empty(0, dtype=dtype)
        return of(places[0], 8, torch.int64), of(before[0], self._item, self._flat.dtype), of(after[0], self._item, self._flat.dtype)

    def check(self) -> None:
        if not torch.equal(self._flat.index_select(0, self._places), self._before):
            raise Unpatchable(f"{self._place.name} has another value in memory than the base's files")

    def put(self) -> None:
        self._flat.index_copy_(0, self._places, self._after)

    def undo(self) -> None:
        self._flat.index_copy_(0, self._places, self._before)


def _host_patches(regions: list[tuple[Place, Region]]) -> list[Any]:
    found = [(place, one) for place, one in regions if place.tensor.device.type == "cpu"]
    return [_HostPatch(found)] if found else []


def _device_patches(regions: list[tuple[Place, Region]]) -> list[Any]:
    by_storage: dict[tuple[int, int], tuple[Place, list[Region]]] = {}
    for place, one in regions:
        if place.tensor.device.type != "cpu":
            by_storage.setdefault((id(place), one.to.item), (place, []))[1].append(one)
    return [_DevicePatch(place, of) for place, of in by_storage.values()]


def _refuse_dense(changed: int, elements: int) -> None:
    if elements and changed > DENSITY * elements:
        raise Unpatchable(f"{changed / elements:.1%} of the elements change, and above {DENSITY:.0%} a whole load costs less")


def _refuse_mostly_whole(tensors: Collection[str], recording: Recording, elements: int) -> None:
    whole = sum(recording.elements(name) for name in tensors)
    if whole > elements / 2:
        first = next(iter(sorted(tensors)))
        raise Unpatchable(f"modules with {whole / elements:.0%} of the elements would be loaded whole, such as that of {first}: {recording.whole.get(first)}")


def _refuse_short(wanted: int) -> None:
    try:
        with open("/proc/meminfo", encoding="ascii") as f:
            free = next(int(line.split()[1]) << 10 for line in f if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return
    if wanted > free // 2:
        raise Unpatchable(f"the plan takes {wanted >> 20} MiB, and {free >> 20} MiB of memory are left (pid {os.getpid()})")
