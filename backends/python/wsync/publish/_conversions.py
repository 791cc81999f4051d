"""transformers 5 keeps some tensors stacked or renamed in its modules and reverts that when it saves. This module passes
transformers' own conversion tables to libwsync as fusions and renames; the publisher then compares libwsync's result with the names
and shapes that transformers would save."""
from __future__ import annotations

import contextlib
import re
from typing import Mapping, NamedTuple

_WRAPPERS = re.compile(r"_fsdp_wrapped_module\.|_orig_mod\.|_checkpoint_wrapped_module\.")


class Saved(NamedTuple):
    """What a framework itself would save: shapes by the file's names, and the file's names of held tensors that have only another name there."""

    shapes: Mapping[str, tuple]
    names: Mapping[str, str]


class Conversions:
    """The conversions of a torch module; none unless it is a model of transformers 5 or later."""

    def __init__(self, model) -> None:
        self._model = next((m for m in (model, getattr(model, "module", None)) if hasattr(getattr(m, "config", None), "model_type")), None)

    def _table(self) -> list:
        if self._model is None:
            return []
        try:
            from transformers.conversion_mapping import get_model_conversion_mapping
        except ImportError:
            return []
        table = getattr(self._model, "_weight_conversions", None)
        if table is not None:
            return table
        with _own_classes(self._model):
            return get_model_conversion_mapping(self._model, add_legacy=False)

    def options(self) -> dict:
        fusions, renames = [], []
        for entry in self._table():
            sources, target = entry._original_source_patterns, entry._original_target_patterns[0]
            operations = {type(o).__name__: o for o in getattr(entry, "operations", [])}
            if not operations and len(sources) == 1 and not re.search(r"[\\^$(\[*+?|]", sources[0] + target):
                renames.append((target, sources[0]))
            elif operations and set(operations) <= {"MergeModulelist", "Concatenate"}:
                stacked = "MergeModulelist" in operations
                if stacked and operations["MergeModulelist"].dim != 0:
                    continue  # not supported: the comparison with transformers' names then refuses the model
                dim = operations["Concatenate"].dim if "Concatenate" in operations else 1 if stacked else 0
                fusions.append((target.lstrip("."), [s.lstrip(".") for s in sources], stacked, dim))
        return {"fusions": fusions, "renames": renames}

    def saved(self, meta: list[tuple]) -> Saved | None:
        """What save_pretrained would write for these tensors; None if transformers cannot tell."""
        if self._model is None:
            return None
        try:
            from transformers.core_model_loading import revert_weight_conversion as revert
        except ImportError:
            revert = _revert_names
        import torch

        clean = {h[0]: _WRAPPERS.sub("", h[0]) for h in meta}
        whole = {clean[h[0]]: torch.empty(tuple(h[2]), device="meta") for h in meta}
        with _own_classes(self._model):
            saved = revert(self._model, whole)
        if saved is None:
            return None
        names = {id(t): name for name, t in saved.items()}  # a tensor that is only renamed comes back itself
        renamed = {held: names[id(whole[name])] for held, name in clean.items() if id(whole[name]) in names}
        return Saved({name: tuple(t.shape) for name, t in saved.items()}, {held: name for held, name in renamed.items() if name != clean[held]})


@contextlib.contextmanager
def _own_classes(model):
    """transformers looks its tables up by the names and modules of the model's classes, which fully_shard has replaced by classes of its own."""
    sharded = {c: (c.__name__, c.__module__) for c in {type(m) for m in model.modules()} if len(c.__bases__) == 2 and c.__bases__[0].__name__ == "FSDPModule"}
    try:
        for c in sharded:
            c.__name__, c.__module__ = c.__bases__[1].__name__, c.__bases__[1].__module__
        yield
    finally:
        for c, own in sharded.items():
            c.__name__, c.__module__ = own


def _revert_names(model, tensors: dict) -> dict | None:
    """The tensors in the names that transformers 4.52 to 4.57 saves them under; None if it has no other names for this model."""
    table = getattr(model, "_checkpoint_conversion_mapping", None)
    try:
        from transformers.modeling_utils import VLMS
    except ImportError:
        return None
    if not table or not any(known in c.__name__.lower() for c in type(model).__mro__ for known in VLMS):
        return None
    files = {held: re.sub(r"\(.*\)", "", file.lstrip("^")) for file, held in table.items()}  # as its save_pretrained makes them
    first = lambda name: next((re.sub(held, file, name) for held, file in files.items() if re.search(held, name)), name)
    return {first(name): t for name, t in tensors.items()}
