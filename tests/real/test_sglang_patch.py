# timeout: 1800, takes: 120
"""A real SGLang's parameters are patched by wsync's plug-in, between two steps: afterwards it answers as a fresh start on the version does."""
import json
import os
import subprocess
import sys

import pytest

from servers import HERE, Refused, SGLangWithWsync, Stream, installed, need_real
from world import unique


class Patched(SGLangWithWsync):
    def stage(self, stage, **more):
        """The answers of all schedulers."""
        said = self.call("/weights_checker", {"action": "wsync_patch:" + json.dumps({"stage": stage, **more})})
        said = [json.loads(rank["checksums"]["wsync_patch"]) for rank in said["ranks"]]
        assert [one["rank"] for one in said] == list(range(len(said))) and {one["stage"] for one in said} == {stage}, said
        return said

    def done(self, stage, **more):
        said = self.stage(stage, **more)
        assert all(one["ok"] for one in said), said
        return said

    def paused(self, stage, plan, path, label):
        "the stage, and the note of what is served then"
        self.call("/pause_generation", {"mode": "in_place"})
        try:
            self.done(stage, plan=plan)
            return self.call("/update_weights_from_disk", {"model_path": path, "weight_version": label, "flush_cache": False,
                                                           "manifest": {"wsync_patch": {"stage": "note", "plan": plan}}})
        finally:
            self.call("/continue_generation", {})


def test_patched():
    "prepare while requests run; put, undo and put again; a load drops the plan; a draft of the state in /server_info"
    if os.environ.get("CI"):
        pytest.skip("it starts two SGLangs: minutes that the hour of CI does not have")
    need_real("sglang")
    Patched.target = installed()
    folder = os.path.join(unique("families"))
    subprocess.run([sys.executable, os.path.join(HERE, "families.py"), folder, "llama"], check=True, timeout=300, stdin=subprocess.DEVNULL)
    path = lambda version: os.path.join(folder, "llama", str(version))
    server, fresh = Patched(path(1), *Patched.uncached), Patched(path(2), *Patched.uncached)
    first, second = server.wait().answers(), fresh.wait().answers()
    assert first != second
    fresh.stop()
    assert server.call("/server_info")["internal_states"][0]["wsync"]["patches"]
    said = server.stage("state")
    print(f"# llama in SGLang: {said[0]['patchable']:.1%} patchable", flush=True)
    assert said[0]["ready"] and said[0]["patchable"] == 1, said
    stream = Stream(server)
    stream.settle()
    server.done("prepare", plan="a", target=path(2), base=path(1))
    assert server.stage("state")[0]["plan"] == "a"
    stream.settle()
    stream.end()
    assert not stream.lost, stream.lost[:3]
    assert server.answers() == first
    with pytest.raises(Refused, match="no plan"):
        server.call("/update_weights_from_disk", {"model_path": path(2), "manifest": {"wsync_patch": {"stage": "note", "plan": "b"}}, "flush_cache": False})
    for stage, now, label, answers in (("put", 2, "2", second), ("undo", 1, "1", first), ("put", 2, "2", second)):
        server.paused(stage, "a", path(now), label)
        assert server.answers() == answers, stage
        assert server.serves() == label and server.call("/model_info")["model_path"] == path(now)
    server.done("drop", plan="a")
    server.done("verify")
    server.done("prepare", plan="b", target=path(1), base=path(2))
    server.call("/update_weights_from_disk", {"model_path": path(2)})
    assert not server.stage("put", plan="b")[0]["ok"] and server.answers() == second
    server.done("prepare", plan="c", target=path(1), base=path(2))
    server.paused("put", "c", path(1), "1")
    assert server.answers() == first
    with pytest.raises(Refused):
        server.call("/weights_checker", {"action": "wsync_other:{}"})
