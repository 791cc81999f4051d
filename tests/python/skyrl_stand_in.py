"""What wsync.skyrl takes of SkyRL, as far as its contracts say: the two selectors, the base classes, an extractor that gathers, and a client that
posts as RemoteInferenceClient does. The package `skyrl` itself wants CUDA's packages."""
import asyncio
import dataclasses
import json
import os
import sys
import time
import types
import urllib.error
import urllib.request


@dataclasses.dataclass
class WeightSyncInitInfo:
    override_existing_receiver: bool


class WeightTransferSender:
    handles_prefix_cache_reset = False


class WeightTransferStrategy:
    pass


class WeightExtractor:
    pass


@dataclasses.dataclass
class WeightChunk:
    names: list
    dtypes: list
    shapes: list
    tensors: list


class FSDPWeightExtractor(WeightExtractor):
    """One chunk a parameter; `gathered` counts them."""

    def __init__(self, model, weight_prefix=""):
        self.model, self.weight_prefix, self.gathered = model, weight_prefix, 0

    def extract_weights(self, dtype):
        for name, p in self.model.state_dict().items():
            self.gathered += 1
            yield WeightChunk([self.weight_prefix + name], [str(dtype)], [list(p.shape)], [p.astype(dtype)])

    def get_weight_metadata(self, dtype):
        state = self.model.state_dict()
        return {"names": [self.weight_prefix + n for n in state], "dtype_names": [str(dtype)] * len(state), "shapes": [list(p.shape) for p in state.values()]}


class Client:
    """asked: the routes and bodies of all calls, in their order. fetch: what the engines' workers do, whose mount is this machine's."""

    waits = True

    def __init__(self, urls, fetch=None):
        self.server_urls, self.asked, self.fetch = list(urls), [], fetch

    def _post(self, url, route, body):
        request = urllib.request.Request(url + route, json.dumps(body or {}).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as r:
                return url, {"status": r.status, "body": json.load(r)}
        except urllib.error.HTTPError as e:
            with e:
                raise RuntimeError(f"{e.code} {e.read().decode()}") from None

    async def _call_all_servers(self, endpoint, json=None, method="POST", params=None):
        query = "".join(f"{'&' if i else '?'}{k}={v}" for i, (k, v) in enumerate((params or {}).items()))
        self.asked.append((endpoint, json))
        return dict(await asyncio.gather(*[asyncio.to_thread(self._post, url, endpoint + query, json) for url in self.server_urls]))

    async def pause_generation(self):
        return await self._call_all_servers("/pause", params={"mode": "keep", "clear_cache": "false"})

    async def resume_generation(self):
        return await self._call_all_servers("/resume")

    async def reset_prefix_cache(self, reset_running_requests=False):
        return await self._call_all_servers("/reset_prefix_cache", {"reset_running_requests": reset_running_requests})

    async def update_named_weights(self, update_info):
        end = time.monotonic() + update_info["wait"]  # as wsync's back end in a worker does
        while self.waits and not os.path.isdir(update_info["weights_path"]) and time.monotonic() < end:
            await asyncio.sleep(0.01)
        return await self._call_all_servers("/update_weights", {"update_info": update_info})


class FetchingClient(Client):
    """Of later releases."""

    waits = False

    async def fetch_weights(self, target_version, sync_dir=None, uri=None):
        self.asked.append(("/fetch_weights", {"target_version": target_version, "sync_dir": sync_dir, "uri": uri}))
        await asyncio.to_thread(self.fetch, uri)


def get_transfer_strategy(weight_sync_backend, colocate_all):
    return "ipc" if weight_sync_backend == "nccl" and colocate_all else "nccl"


def get_transfer_strategy_cls(weight_sync_backend, colocate_all):
    return WeightTransferStrategy


def install():
    def module(name, **content):
        made = types.ModuleType(name)
        made.__path__ = []
        made.__dict__.update(content)
        sys.modules[name] = made
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, made)
        return made

    base = "skyrl.backends.skyrl_train"
    for name in ("skyrl", "skyrl.backends", base, base + ".inference_servers"):
        module(name)
    module(base + ".weight_sync", get_transfer_strategy=get_transfer_strategy, get_transfer_strategy_cls=get_transfer_strategy_cls)
    module(base + ".weight_sync.transfer_strategy", WeightSyncInitInfo=WeightSyncInitInfo, WeightTransferSender=WeightTransferSender,
           WeightTransferStrategy=WeightTransferStrategy)
    module(base + ".weight_sync.weight_extractor", WeightExtractor=WeightExtractor)
    module(base + ".inference_servers.utils", get_transfer_strategy=get_transfer_strategy)
    module(base + ".inference_servers.remote_inference_client", RemoteInferenceClient=FetchingClient)
