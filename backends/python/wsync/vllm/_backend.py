"""The weight-transfer back end: vLLM's start_weight_update, update_weights and finish_weight_update, with a path."""
from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, Optional, Union

from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo

from .._strategy import parse
from ._loader import Refused, loader_of
from ._path import version_path


@dataclass
class InitInfo(WeightTransferInitInfo):
    """root: the model's folder on the mount ("/wsync/actor"), where target_version is looked for."""

    root: Optional[str] = None


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """path: of a version, absolute, as the workers see it; or target_version: 42, "42@RUN", "current", below root.
    force_layout: it may have other names, shapes and dtypes than what is served. weights_path: path, by the name that
    vLLM's reload_weights has for it. strategy: "auto", "cuda_ipc", "disk", "cuda_ipc,disk", as wsync_load has it."""

    path: Optional[str] = None
    target_version: Union[int, str, None] = None
    force_layout: bool = False
    weights_path: Optional[str] = None
    strategy: str = "auto"


class Backend(WeightTransferEngine[InitInfo, UpdateInfo]):
    """A version is loaded whole by update_weights, between whose beginning and end no request runs; start and finish change
    nothing, so that an update that is refused, or never finished, leaves a model that can serve."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any):
        super().__init__(config, vllm_config, device, model)
        self._root: Optional[str] = None
        self._loader = loader_of(model, vllm_config)

    def parse_init_info(self, init_dict: dict[str, Any]) -> Any:
        """Unparsed: what is wrong with it may be raised by one rank only."""
        return init_dict

    def init_transfer_engine(self, init_info: Any) -> None:
        error = None
        try:
            info = super().parse_init_info(init_info)
            if info.root is not None and not (os.path.isabs(info.root) and os.path.isdir(info.root)):
                raise ValueError(f"root={info.root!r} is no folder here by an absolute path: it is the model's on the mount, as the workers see it")
            root = info.root
        except ValueError as e:
            error = str(e)
        error = self._loader.ranks.agree(error)
        if error is None:
            self._root = root
        elif self._loader.ranks.speaks:
            raise ValueError(error)

    def start_weight_update(self) -> None:
        """Nothing: see the class."""

    def finish_weight_update(self) -> None:
        """Nothing: see the class."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        try:
            self._update(update_info)
        except Refused:
            if self._loader.ranks.speaks:
                raise
            _end_session(self)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        self._loader.load(version_path(self._root, update_info.path or update_info.weights_path, update_info.target_version), update_info.force_layout,
                          update_info.strategy)

    def _update(self, update_info: dict[str, Any]) -> None:
        try:
            info = self.parse_update_info(update_info)
            version_path(self._root, info.path or info.weights_path, info.target_version)
            parse(info.strategy)
        except ValueError as e:  # on all ranks alike
            raise Refused(str(e)) from None
        self.receive_weights(info)

    def shutdown(self) -> None:
        """Holds nothing."""


def _end_session(backend: Backend) -> None:
    """A worker ends its session when its back end raises. One that must not (see Ranks) has its session ended here, or the next
    start would be refused; the worker is the one that called us, and vLLM hands it to nobody."""
    frame = sys._getframe(1)
    while frame is not None:
        worker = frame.f_locals.get("self")
        if worker is not None and getattr(worker, "__dict__", {}).get("weight_transfer_engine") is backend:
            worker._weight_update_active = False
            return
        frame = frame.f_back
