"""OpenRLHF's command line by wsync.openrlhf, in a cluster of Ray's on this host: openrlhf_on_cpu.py FOLDER ARGS. When training has ended it
writes what each engine serves into FOLDER/serving.json; FOLDER/ray is Ray's."""
import json
import os
import sys

import openrlhf.trainer.ray
import ray

import wsync.openrlhf

GET_SECONDS = 60


def main(folder):
    ray.init(num_cpus=8, num_gpus=4, include_dashboard=False, object_store_memory=100 << 20, _temp_dir=os.path.join(folder, "ray"))
    engines, own = [], openrlhf.trainer.ray.create_vllm_engines

    def kept(*args, **kwargs):
        engines.extend(own(*args, **kwargs))
        return engines

    openrlhf.trainer.ray.create_vllm_engines = kept
    wsync.openrlhf.main()
    with open(os.path.join(folder, "serving.json"), "w") as f:
        json.dump(ray.get([engine.serving.remote() for engine in engines], timeout=GET_SECONDS), f)


main(sys.argv.pop(1))
