"""The two messages that announce a broadcast to its receivers, WeightSyncInitInfo and WeightUpdateRequest, encoded by libwsync."""
from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Optional

from ..lib import _dtypes
from ..lib._library import Strings, check, ffi, lib, text_and_free
from ..read._weight_source import ParamMeta


def broadcast_info(address: str, port: int, rank_offset: int, world_size: int, group: str, backend: str) -> dict[str, Any]:
    """BroadcastInitInfo: "master_addr", "master_port", "rank_offset", "world_size", "group_name", "backend", ..."""
    keep, info, out = Strings(), ffi.new("wsync_sync_info *"), ffi.new("char **")
    info.struct_size, info.strategy = ffi.sizeof("wsync_sync_info"), lib.WSYNC_BROADCAST
    b = info.broadcast
    b.master_addr, b.master_port, b.rank_offset, b.world_size = keep(address), port, rank_offset, world_size
    b.group_name, b.backend = keep(group), keep(backend)
    check(lib.wsync_sync_info_encode(info, out))
    return json.loads(text_and_free(out))


def broadcast_request(metas: Sequence[ParamMeta], version: Optional[int] = None, run: Optional[str] = None) -> dict[str, Any]:
    """BroadcastWeightUpdateRequest: "names", "dtypes", "shapes", ..."""
    keep, request, out = Strings(), ffi.new("wsync_update_request *"), ffi.new("char **")
    tensors = keep.array("wsync_update_tensor[]", len(metas))
    for t, m in zip(tensors, metas):
        t.name, t.dtype, t.n_dims, t.shape = keep(m.name), _dtypes.number(m.dtype, m.name), len(m.shape), tuple(m.shape)
    request.struct_size, request.strategy = ffi.sizeof("wsync_update_request"), lib.WSYNC_BROADCAST
    request.version, request.run, request.n, request.tensors = version or 0, keep(run), len(metas), tensors
    check(lib.wsync_update_request_encode(request, out))
    return json.loads(text_and_free(out))
