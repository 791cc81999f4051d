"""transformers 5 keeps some tensors stacked or renamed in its modules and undoes that when it saves. Its own tables
say how; libwsync gets them as fusions and renames, and what it makes of them is held against what transformers
itself would write."""
from __future__ import annotations

import re


class Conversions:
    """Of a torch module; nothing where it is no transformers model or a release before 5."""

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
                    continue  # not known: the comparison with what transformers writes refuses it
                dim = operations["Concatenate"].dim if "Concatenate" in operations else 1 if stacked else 0
                fusions.append((target.lstrip("."), [s.lstrip(".") for s in sources], stacked, dim))
        return {"fusions": fusions, "renames": renames}

    def expected(self, meta: list[tuple]) -> dict | None:
        """Names and shapes that save_pretrained would write of these tensors; None: transformers cannot say."""
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
