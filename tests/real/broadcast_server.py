"""A server with SGLang's weight-update routes only, for BroadcastSender's error handling: it joins the group as SGLang does, keeps the
received tensors, and reports them. broadcast_server.py PORT FOLDER RELEASE [--die-at N] [--hang-at N] [--refuse-at N]: at its N-th
update it ends, or neither answers nor takes part, or answers 400."""
import hashlib
import http.server
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Backend, PrefixStore, _new_process_group_helper, _world, default_pg_timeout, rendezvous

STATE = {"weight_version": "default", "paused": False, "session": False, "updates": 0, "buckets": 0, "flushed_on": [], "tensors": {}, "resumed_on": []}
GROUPS = {}
FOLDER, RELEASE = sys.argv[2:4]
WHEN = {sys.argv[i][2:-3]: int(sys.argv[i + 1]) for i in range(4, len(sys.argv), 2)}


def join(ask):
    rank, size = ask["rank_offset"], ask["world_size"]
    store, rank, size = next(rendezvous(f"tcp://{ask['master_address']}:{ask['master_port']}", rank, size, timeout=default_pg_timeout))
    store.set_timeout(default_pg_timeout)
    group, _ = _new_process_group_helper(size, rank, [], Backend(ask["backend"]), PrefixStore(ask["group_name"], store),
                                         group_name=ask["group_name"], timeout=default_pg_timeout)
    _world.pg_group_ranks[group] = {i: i for i in range(size)}
    GROUPS[ask["group_name"]] = group


def update(ask):
    if not STATE["session"]:
        return "an update outside of a session"
    STATE["updates"] += 1
    if WHEN.get("die") == STATE["updates"]:
        os._exit(9)
    if WHEN.get("hang") == STATE["updates"]:
        time.sleep(3600)
    if WHEN.get("refuse") == STATE["updates"]:
        return "refused as asked"
    tensors = [(n, torch.empty(s, dtype=getattr(torch, d))) for n, d, s in zip(ask["names"], ask["dtypes"], ask["shapes"])]
    if ask.get("load_format") == "flattened_bucket":
        STATE["buckets"] += 1
        bucket = torch.empty(sum(t.numel() * t.itemsize for _, t in tensors), dtype=torch.uint8)
        dist.broadcast(bucket, src=0, group=GROUPS[ask["group_name"]])
        parts = torch.split(bucket, [t.numel() * t.itemsize for _, t in tensors])
        tensors = [(n, part.view(t.dtype).reshape(t.shape)) for (n, t), part in zip(tensors, parts)]
    else:
        works = [dist.broadcast(t, src=0, group=GROUPS[ask["group_name"]], async_op=True) for _, t in tensors]
        for work in works:
            work.wait()
    for name, tensor in tensors:
        STATE["tensors"][name] = hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
    if "weight_version" in ask:
        STATE["weight_version"] = ask["weight_version"]
    return None


def post(path, ask):
    if path == "/pause_generation":
        STATE["paused"] = True
    elif path == "/continue_generation":
        STATE["paused"] = False
        STATE["resumed_on"].append(STATE["weight_version"])
    elif path == "/init_weights_update_group":
        join(ask)
    elif path == "/destroy_weights_update_group":
        dist.destroy_process_group(GROUPS.pop(ask["group_name"]))
    elif path == "/update_weight_version":
        STATE["weight_version"] = ask["new_version"]
    elif path == "/flush_cache":
        STATE["flushed_on"].append(STATE["weight_version"])
    elif path == "/begin_weight_update":
        STATE["session"] = True
    elif path == "/end_weight_update":
        STATE["session"] = False
    elif path == "/update_weights_from_distributed":
        return update(ask)
    else:
        return f"no {path}"
    return None


class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, status, value):
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        known = {"/model_info": {"model_path": FOLDER, "weight_version": STATE["weight_version"]}, "/state": STATE,
                 "/server_info": {"tp_size": 1, "pp_size": 1, "dp_size": 1, "version": RELEASE}}
        self.reply(200 if self.path in known else 404, known.get(self.path, {}))

    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            why = post(self.path, ask)
        except Exception as e:  # any answer
            why = repr(e)
        self.reply(400 if why else 200, {"success": why is None, "message": why or "done", "status": "refused" if why else "ok"})

    def log_message(self, *_):
        pass


dist.init_process_group("gloo", init_method=f"file://{os.environ['TESTDIR']}/own-{os.getpid()}", rank=0, world_size=1)  # as engines have one
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
