"""Boxes of bytes that a loader copied: where they are in memory, and where in which tensor of the checkpoint."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Optional


@dataclass(frozen=True)
class Box:
    """A strided box of elements; offset and strides are in bytes. Axes of one element are left out, the widest stride comes first."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item: int

    @cached_property
    def end(self) -> int:
        return self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides)) + self.item

    @cached_property
    def elements(self) -> int:
        return prod(self.shape)

    @cached_property
    def is_dense(self) -> bool:
        """Whether it has every byte between its first and its last."""
        return self.end - self.offset == self.elements * self.item

    def meets(self, other: "Box") -> bool:
        """Whether they may have a byte in common; true where it cannot be told."""
        if self.end <= other.offset or other.end <= self.offset:
            return False
        shared = _Lattice.of(self, other)
        return shared is None or not shared.is_disjoint

    def contains(self, other: "Box") -> bool:
        """Whether it has all bytes of the other; false where it cannot be told."""
        if self == other or (self.is_dense and self.offset <= other.offset and other.end <= self.end):
            return True
        shared = _Lattice.of(self, other)
        return shared is not None and shared.first_contains_second


def box(offset: int, shape: Sequence[int], strides: Sequence[int], item: int) -> Optional[Box]:
    """offset and strides in bytes. None: it has no element, or one element twice (expanded)."""
    if any(n == 0 for n in shape):
        return None
    axes = sorted(((s, n) for n, s in zip(shape, strides) if n > 1), reverse=True)
    if any(s <= 0 for s, _ in axes):
        return None
    return Box(offset, tuple(n for _, n in axes), tuple(s for s, _ in axes), item)


@dataclass(frozen=True)
class _Lattice:
    """Two boxes as intervals along common axes: (start, end) of the first and of the second, for each stride."""

    axes: tuple[tuple[int, int, int, int, int], ...]

    @staticmethod
    def of(a: Box, b: Box) -> Optional["_Lattice"]:
        if a.item != b.item:
            return None
        sizes_a, sizes_b = dict(zip(a.strides, a.shape)), dict(zip(b.strides, b.shape))
        if len(sizes_a) != len(a.strides) or len(sizes_b) != len(b.strides):
            return None
        strides = sorted({*sizes_a, *sizes_b}, reverse=True)
        low = min(a.offset, b.offset)
        starts_a, starts_b = _coordinates(a.offset - low, strides), _coordinates(b.offset - low, strides)
        if starts_a is None or starts_b is None:
            return None
        axes = []
        for stride, at_a, at_b in zip(strides, starts_a, starts_b):
            axes.append((stride, at_a, at_a + sizes_a.get(stride, 1), at_b, at_b + sizes_b.get(stride, 1)))
        for (wide, *_), (stride, start_a, end_a, start_b, end_b) in zip(axes, axes[1:]):
            if max(end_a, end_b) * stride > wide:  # coordinates would not be unique
                return None
        return _Lattice(tuple(axes))

    @property
    def is_disjoint(self) -> bool:
        return any(end_a <= start_b or end_b <= start_a for _, start_a, end_a, start_b, end_b in self.axes)

    @property
    def first_contains_second(self) -> bool:
        return all(start_a <= start_b and end_b <= end_a for _, start_a, end_a, start_b, end_b in self.axes)


def _coordinates(offset: int, strides: Sequence[int]) -> Optional[list[int]]:
    found = []
    for stride in strides:
        at, offset = divmod(offset, stride)
        found.append(at)
    return None if offset else found


@dataclass(frozen=True)
class Region:
    """The elements of `to`, in memory, are those of tensor `name` that begin `source` bytes into it, in the strides `source_strides`: one for each
    axis of `to`."""

    to: Box
    name: str
    source: int
    source_strides: tuple[int, ...]


def region(to_offset: int, to_strides: Sequence[int], shape: Sequence[int], item: int, name: str, source: int,
           source_strides: Sequence[int]) -> Optional[Region]:
    """The same from a copy's axes as they are; None if the destination is no box."""
    to = box(to_offset, shape, to_strides, item)
    if to is None:
        return None
    axes = sorted(((t, s) for n, t, s in zip(shape, to_strides, source_strides) if n > 1), key=lambda axis: axis[0], reverse=True)
    return Region(to, name, source, tuple(s for _, s in axes))


class Moved:
    """How a copy from one view of memory to another carries regions along."""

    def __init__(self, shape: Sequence[int], from_offset: int, from_strides: Sequence[int], to_offset: int, to_strides: Sequence[int], item: int):
        self._axes = [(f, t, n) for n, f, t in zip(shape, from_strides, to_strides) if n > 1]
        self._from, self._to, self._item = from_offset, to_offset, item
        self._view = box(from_offset, shape, from_strides, item)

    @property
    def view(self) -> Optional[Box]:
        return self._view

    def carry(self, regions: Sequence[Region]) -> Optional[list[Region]]:
        """The regions at the destination, of those that the view meets; None where that cannot be told."""
        if self._view is None:
            return None
        found: list[Region] = []
        for one in regions:
            if not one.to.meets(self._view):
                continue
            carried = self._shift(one) or self._cut(one)
            if carried is None:
                return None
            found.append(carried)
        return found

    def _shift(self, one: Region) -> Optional[Region]:
        """For a move of memory as it is: both views are dense in the same order, and the region lies in them."""
        assert self._view is not None
        if not self._view.is_dense or [f for f, _, _ in self._axes] != [t for _, t, _ in self._axes]:
            return None
        if not (self._view.offset <= one.to.offset and one.to.end <= self._view.end):
            return None
        to = Box(one.to.offset - self._from + self._to, one.to.shape, one.to.strides, one.to.item)
        return Region(to, one.name, one.source, one.source_strides)

    def _cut(self, one: Region) -> Optional[Region]:
        """For views whose axes are the region's."""
        assert self._view is not None
        shared = _Lattice.of(self._view, one.to)
        if shared is None:
            return None
        to_of = {f: t for f, t, _ in self._axes}
        source_of = dict(zip(one.to.strides, one.source_strides))
        to, source = self._to, one.source
        shape, strides, source_strides = [], [], []
        for stride, start_view, end_view, start, end in shared.axes:
            first, last = max(start_view, start), min(end_view, end)
            if stride in to_of:
                to += (first - start_view) * to_of[stride]
            if stride in source_of:
                source += (first - start) * source_of[stride]
            if last - first > 1:
                shape.append(last - first)
                strides.append(to_of[stride])
                source_strides.append(source_of[stride])
        return region(to, strides, shape, one.to.item, one.name, source, source_strides)


def merged(regions: Iterator[Region]) -> list[Region]:
    """Each region once, with axes that are dense on both sides made one."""
    found: dict[Region, None] = {}
    for one in regions:
        shape, strides, sources = list(one.to.shape), list(one.to.strides), list(one.source_strides)
        for i in range(len(shape) - 1, 0, -1):
            if strides[i - 1] == strides[i] * shape[i] and sources[i - 1] == sources[i] * shape[i]:
                shape[i - 1 : i + 1] = [shape[i - 1] * shape[i]]
                del strides[i - 1], sources[i - 1]
        found[Region(Box(one.to.offset, tuple(shape), tuple(strides), one.to.item), one.name, one.source, tuple(sources))] = None
    return list(found)
