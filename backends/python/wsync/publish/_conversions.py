"""transformers 5 keeps some tensors stacked or renamed in its modules and reverts that when it saves. This module passes
transformers' own conversion tables to libwsync as fusions and renames; the publisher then compares libwsync's result with the names
and shapes that transformers would save."""
from __future__ import annotations

import re


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
        return table if table is not None else get_model_conversion_mapping(self._model, add_legacy=False)

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

    def expected(self, meta: list[tuple]) -> dict | None:
        """Names and shapes that save_pretrained would write for these tensors; None if transformers cannot tell."""
        if self._model is None:
            return None
        try:
            from transformers.core_model_loading import revert_weight_conversion
        except ImportError:
            return None
        import torch

        clean = re.compile(r"_fsdp_wrapped_module\.|_orig_mod\.|_checkpoint_wrapped_module\.")
        whole = {clean.sub("", h[0]): torch.empty(tuple(h[2]), device="meta") for h in meta}
        return {name: tuple(t.shape) for name, t in revert_weight_conversion(self._model, whole).items()}
