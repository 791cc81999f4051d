"""The weight-transfer back end: vLLM's start_weight_update, update_weights and finish_weight_update, for a path or for tensors sent
over a process group."""
from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, Optional, Union

from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo

from ..engines._torch_group import Group
from ..read._strategy import parse
from ._broadcast import ReceivedVersion, join
from ._cpu_reload import mend_reloads
from ._loader import Draft, Loader, Refused, get_loader
from ._path import appears, fetch, version_path

BROADCAST = "broadcast"
MOST_WAIT_SECONDS = 3600  # nothing else can be asked of a worker that waits


@dataclass
class InitInfo(WeightTransferInitInfo):
    """root: the model's folder on the mount ("/wsync/actor"), in which target_version is a folder. With master_addr (or
    master_address) the workers join the process group of a wsync.BroadcastSender, as ranks from rank_offset on, of world_size;
    without it they leave the group. buckets: ignored; a sender passes it to find out whether this back end supports buckets."""

    root: Optional[str] = None
    master_addr: Optional[str] = None
    master_port: int = 0
    rank_offset: int = 1
    world_size: int = 0
    group_name: str = "wsync"
    backend: str = "nccl"
    timeout: float = 60.0
    master_address: Optional[str] = None
    buckets: bool = False


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """path: of a version, absolute, as the workers see it; or target_version: 42, "42@RUN", "current", below root.
    force_layout: allows names, shapes and dtypes that differ from what is served. weights_path: the same as path, the name that
    vLLM's reload_weights uses. strategy: "auto", "cuda_ipc", "disk", "cuda_ipc,disk", as for wsync_load; or "broadcast": the tensors
    described by names, dtype_names and shapes are received over the group in this order, in buckets if that is given (see
    ReceivedVersion); path, if given, is where the version's files are, and version its name. wait: seconds that the version may take to
    appear on the mount."""

    path: Optional[str] = None
    target_version: Union[int, str, None] = None
    force_layout: bool = False
    weights_path: Optional[str] = None
    strategy: str = "auto"
    names: Optional[list[str]] = None
    dtype_names: Optional[list[str]] = None
    shapes: Optional[list[list[int]]] = None
    version: Optional[str] = None
    buckets: Optional[list[int]] = None
    wait: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.wait, (int, float)) or not 0 <= self.wait <= MOST_WAIT_SECONDS:
            raise ValueError(f"wait={self.wait!r} is no number of seconds from 0 to {MOST_WAIT_SECONDS}")


class Backend(WeightTransferEngine[InitInfo, UpdateInfo]):
    """update_weights loads the complete version, while no request runs. start and finish change nothing, so an update that is refused,
    or never finished, leaves a model that can serve. In a session that vLLM began for its draft model, the version is that model's."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = True

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any):
        super().__init__(config, vllm_config, device, model)
        self._root: Optional[str] = None
        self._group: Optional[Group] = None
        mend_reloads(vllm_config)
        self._target, self._config = model, vllm_config
        self._target_loader = get_loader(model, vllm_config)

    @property
    def _loader(self) -> Loader:
        """Of the model that this session is about: vLLM sets self.model and self.model_config for it, and resets them at its end."""
        model = getattr(self, "model", self._target)  # releases without draft sessions do not keep it
        if model is self._target:
            return self._target_loader
        return get_loader(model, self._config, draft=Draft(self.model_config, self._target))

    def parse_init_info(self, init_dict: dict[str, Any]) -> Any:
        """Does not parse: only one rank may raise, see Ranks."""
        return init_dict

    def init_transfer_engine(self, init_info: Any) -> None:
        error = None
        try:
            info = super().parse_init_info(init_info)
            if info.root is not None and not (os.path.isabs(info.root) and os.path.isdir(info.root)):
                raise ValueError(f"root={info.root!r} is no folder here by an absolute path: it is the model's on the mount, as the workers see it")
            root = info.root or self._root
            self.shutdown()
            info.master_addr = info.master_addr or info.master_address
            if info.master_addr is not None:
                self._group = join(info, self._loader.parallel_config)
        except (ValueError, RuntimeError, TypeError) as e:  # RuntimeError: from torch, about the group
            error = str(e)
        error = self._loader.ranks.agree(error)
        if error is None:
            self._root = root
        else:
            self.shutdown()
            if self._loader.ranks.may_raise:
                raise ValueError(error)

    def start_weight_update(self) -> None:
        """Nothing: see the class."""

    def finish_weight_update(self) -> None:
        """Nothing: see the class."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        try:
            self._update(update_info)
        except Refused:
            if self._loader.ranks.may_raise:
                raise
            _end_session(self)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        if update_info.strategy == BROADCAST:
            self._receive(update_info)
            return
        path = version_path(self._root, update_info.path or update_info.weights_path, update_info.target_version)
        appears(path, update_info.wait)
        self._loader.load(path, update_info.force_layout, update_info.strategy)

    def fetch_weights(self, target_version: Union[int, str], sync_dir: Optional[str] = None, uri: Optional[str] = None) -> dict[str, Any]:
        """SkyRL calls it before it pauses the engine: waits until the mount has all of the version. uri: its path; without it, it is a folder
        in sync_dir, else in root."""
        path, error = uri or "", None
        try:
            path = version_path(sync_dir or self._root, uri, None if uri else target_version)
            fetch(path)
        except (OSError, ValueError, TypeError) as e:
            error = f"the version {path or target_version} cannot be fetched: {e}"
        error = self._loader.ranks.agree(error)
        if error is not None and self._loader.ranks.may_raise:
            raise RuntimeError(error)
        return {"status": "ok" if error is None else "error", "target_version": target_version}

    def _receive(self, i: UpdateInfo) -> None:
        try:
            self._loader.receive(lambda device: ReceivedVersion(self._group, i.names, i.dtype_names, i.shapes, i.path, i.version, device, i.buckets),
                                 i.force_layout)
        except Refused:
            self.shutdown()  # ends the sender's wait in a broadcast
            raise

    def _update(self, update_info: dict[str, Any]) -> None:
        try:
            info = self.parse_update_info(update_info)
            if info.strategy != BROADCAST:
                version_path(self._root, info.path or info.weights_path, info.target_version)
                parse(info.strategy)
        except ValueError as e:  # the same on all ranks
            raise Refused(str(e)) from None
        self.receive_weights(info)

    def shutdown(self) -> None:
        """Leaves the group."""
        group, self._group = self._group, None
        if group is not None:
            group.close()


def _end_session(backend: Backend) -> None:
    """Ends the worker's update session on a rank that must not raise (see Ranks); else the next start would be refused. vLLM ends it
    only when the back end raises, and passes no worker to the back end: it is found among the callers' frames."""
    frame = sys._getframe(1)
    while frame is not None:
        worker = frame.f_locals.get("self")
        if worker is not None and getattr(worker, "__dict__", {}).get("weight_transfer_engine") is backend:
            worker._weight_update_active = False
            getattr(backend, "reset_weight_update_target", lambda: None)()
            return
        frame = frame.f_back
