# timeout: 900, takes: 80
"""A real SGLang on its CPU with a draft model from another checkpoint, and our plug-in: what it holds of both says SGLang's own checksum of every
tensor. Both models are of one architecture, so that a draft of version 1 has the tensors of a target of version 1. It answers no request:
its kernels for guesses want AMX or a GPU."""
import contextlib

import pytest

from peft_adapters import call
from scenarios import Ground
from servers import SGLang, SGLangWithWsync, Refused, installed


class Drafting(SGLangWithWsync):
    def healthy(self):
        with contextlib.suppress(OSError, Refused):
            return bool(self.call("/model_info", seconds=5))
        return False

    def holds(self):
        """Checksums of the target's tensors, and of the draft's."""
        (rank,) = self.call("/weights_checker", {"action": "checksum"})["ranks"]
        target, draft = {}, {}
        for name, checksum in rank["checksums"].items():
            (draft if name.startswith("draft.") else target)[name.removeprefix("draft.")] = checksum
        return target, draft


@pytest.fixture(scope="module")
def w():
    w = Ground(SGLang)
    SGLangWithWsync.target = installed()
    w.server = Drafting(w.path(1), "--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", w.path(2), "--speculative-num-steps", "2",
                        "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "3", "--speculative-draft-attention-backend", "intel_amx").wait()
    return w


def test_draft(w):
    "the draft model is loaded by itself, is frozen while the target is loaded, and stays where a version lacks tensors; so it does in sets"
    assert "draft=unchanged loads_draft=1" in call(w.server, "probe")[0]
    one, two = w.server.holds()
    assert one.keys() == two.keys() and all(one[name] != two[name] for name in one if name.endswith("proj.weight"))
    assert call(w.server, "draft", w.path(1)) == []
    assert w.server.holds() == (one, one)
    w.server.call("/update_weights_from_disk", {"model_path": w.path(2), "flush_cache": False})
    assert w.server.holds() == (two, one)
    name, sentence = call(w.server, "draft", w.folder("missing"))
    assert name == "EREMOTEIO" and "mlp.down_proj" in sentence, sentence
    assert w.server.holds() == (two, one) and w.server.call("/model_info")["model_path"] == w.path(2)
    with pytest.raises(Refused):
        w.server.call("/update_weights_from_disk", {"model_path": w.path(2), "flush_cache": False, "manifest": {"wsync_draft": [1]}})
    assert w.server.holds() == (two, one)
    for version in (1, 2):
        w.agent.publish("draft", version, w.folder(version))
    w.mount.wait_version("draft", 2)
    w.mount.write(f"engine add e1 sglang {w.server.url} draft=draft", "actor/ctl")
    w.mount.write("load actor=1 draft=2", "ctl")
    assert w.server.holds() == (one, two) and w.server.serves() == "1"
    w.mount.write("1", "draft/version")
    assert w.server.holds() == (one, one) and w.server.serves() == "1"
