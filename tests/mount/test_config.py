# beside others
# sanitizers: address
# timeout: 240
"""What a mount is told by a file: -o config=FILE, read at the start and at SIGHUP."""
import json
import signal
import subprocess

import pytest

from world import *


class Site:
    """An agent with versions 1 and 2, three engines, and a mount that reads its config."""

    def __init__(self):
        need_fuse()
        self.agent = Agent()
        self.folders = {v: checkpoint(SMALL, seed=v) for v in (1, 2)}
        for version, folder in self.folders.items():
            self.agent.publish("actor", version, folder)
        self.engines = [Engine(self.folders[1]) for _ in range(3)]
        self.config = unique("mount") + ".conf"

    def write(self, *lines):
        with open(self.config, "w") as f:
            f.write("# what this node serves\n" + "".join(line + "\n" for line in lines))

    def engine(self, i, more=""):
        return f"engine add e{i} sglang {self.engines[i].url}{more}"

    def mount(self, **kw):
        self.at = Mount(self.agent.url, f"host=n0,config={self.config}", **kw)
        self.at.wait_version("actor", 2)
        return self.at

    def reload(self):
        self.at.process.send_signal(signal.SIGHUP)

    def differs(self):
        return self.at.status("actor").get("config_differs", "")


def test_start_and_hup():
    "engines, policy, commit, strategy and pins come from the file, and follow it at SIGHUP; what does not change is not touched"
    site = Site()
    site.write("", "model actor", "policy follow-published every=5", "  commit quorum=1  ", "strategy tcp", site.engine(0, " group=g"), site.engine(1), "pin 1")
    mount = site.mount()
    wait_for(lambda: sorted(mount.engines()) == ["e0", "e1"] and "unknown" not in "".join(mount.engines().values()), "the engines")
    assert mount.text("actor/policy") == "follow-published every=5\n"
    status = mount.status("actor")
    assert status["commit"] == "quorum=1" and status["strategy"] == "tcp" and " pinned" in status["version.1"] + " ", status
    assert mount.status()["config"] == site.config and not site.differs()
    wait_for(lambda: mount.text("actor/version") == "2\n", "what is published")

    site.write("model actor", "policy manual", "commit all", site.engine(1), site.engine(2, " timeout=77"))
    site.reload()
    wait_for(lambda: sorted(mount.engines()) == ["e1", "e2"] and not site.differs(), "the new file")
    assert mount.text("actor/policy") == "manual\n" and mount.status("actor")["commit"] == "all"
    assert mount.alive() and mount.text("actor/events").count("engine-added model=actor engine=e1") == 1
    wait_for(lambda: mount.engines()["e1"].startswith("serving 2") and mount.engines()["e2"].startswith("stale"), "their states")

    mount.end()  # the next daemon has it from the file, whatever the settings say
    site.write("model actor", site.engine(2, " timeout=77"), "policy pull")
    mount = site.mount(path=mount.path)
    wait_for(lambda: list(mount.engines()) == ["e2"] and mount.text("actor/policy") == "pull\n", "the file's engines")


def test_differences():
    "what is set by hand holds until the next reading, and status shows how it differs"
    site = Site()
    site.write("model actor", "policy manual", site.engine(0))
    mount = site.mount()
    wait_for(lambda: mount.engines().get("e0", "unknown").split()[0] != "unknown", "the engine")
    mount.write(site.engine(1), "actor/ctl")
    mount.write("pull", "actor/policy")
    assert site.differs() == "policy is pull, the file has manual; engine e1 is not in the file"
    mount.write("engine remove e0", "actor/ctl")
    mount.write(site.engine(0, " timeout=9"), "actor/ctl")
    assert "engine e0 is another one in the file" in site.differs()
    assert f"config differs: {site.differs()}" in wsync("status", mount.path).stdout
    assert json.loads(wsync("status", "--json", mount.path).stdout)["models"][0]["config_differs"] == site.differs()
    site.reload()
    wait_for(lambda: not site.differs() and list(mount.engines()) == ["e0"] and mount.text("actor/policy") == "manual\n", "the file's word")


@pytest.mark.parametrize("line,says", (
    ("polices manual", "polices"),
    ("policy sometimes", "the policy is manual, pull, follow-released or follow-published"),
    ("load 2", "is no setting"),
    ("engine add e9 nosuch http://h:1", "nosuch"),
    ("engine add e9 sglang http://h:1 colour=red", "colour"),
    ("strategy pigeon", "pigeon"),
    ("commit most", "commit is all, quorum=N or rolling=N"),
    ("model two words", "write: model NAME"),
))
def test_unknown_words(line, says):
    "a line that is not understood ends the start with file, line and remedy; at SIGHUP the old state goes on"
    site = Site()
    site.write("model actor", "policy pull", line)
    path = unique("mnt")
    os.makedirs(path)
    done = wsync("mount", "-f", "-o", f"config={site.config},state=none", site.agent.url, path, check=False)
    assert done.returncode and f"{site.config}:4: " in done.stderr and says in done.stderr, done.stderr

    site.write("model actor", "policy pull", site.engine(0))
    mount = site.mount()
    site.write("model actor", "policy manual", site.engine(1), line)
    site.reload()
    wait_for(lambda: f"{site.config}:5: " in mount.text("last_error"), "the reason")
    assert says in mount.text("last_error") and f"{site.config}:5: " in mount.status()["config_error"]
    assert list(mount.engines()) == ["e0"] and mount.text("actor/policy") == "pull\n"
    site.write("model actor", "policy manual", site.engine(0))
    site.reload()
    wait_for(lambda: mount.text("actor/policy") == "manual\n", "the repaired file")
    assert "config_error" not in mount.status()


def test_name_corrected():
    "engines under a model's name that was wrong, and is not there, are the right model's when the file is put right; over a restart, too"
    site = Site()
    for restarts in (False, True):
        site.write("model actr", site.engine(0), site.engine(1))
        mount = site.mount()
        assert not mount.engines()
        if restarts:
            mount.end()
        site.write("model actor", site.engine(0, " timeout=9"), site.engine(1))
        if restarts:
            mount = site.mount(path=mount.path)
        else:
            site.reload()
        wait_for(lambda: sorted(mount.engines()) == ["e0", "e1"], "the engines")
        assert "config_error" not in mount.status() and not site.differs()
        mount.end()


def test_folder():
    "a folder is all of its *.conf; one that may be missing ends with a slash; no folder and no file is refused"
    site = Site()
    folder = unique("mount.d")
    site.config = folder + "/"
    mount = site.mount()
    assert not mount.engines()
    os.makedirs(folder)
    for name, lines in (("10-engines.conf", ("model actor", site.engine(0))), ("20-policy.conf", ("model actor", "policy pull")), ("30-off.txt", ("nonsense",))):
        with open(f"{folder}/{name}", "w") as f:
            f.write("\n".join(lines) + "\n")
    site.reload()
    wait_for(lambda: list(mount.engines()) == ["e0"] and mount.text("actor/policy") == "pull\n", "the folder's files")
    done = wsync("mount", "-f", "-o", f"config={folder}/none.conf", site.agent.url, unique("at"), check=False)
    assert done.returncode


def test_sources_and_switch():
    "a source comes from the file; a reading in the middle of a switch waits for its end"
    site = Site()
    folder = checkpoint(SMALL, seed=5)
    site.write(f"add critic dir:{folder}", "model actor", "policy manual", site.engine(0))
    mount = site.mount()
    mount.wait_model("critic")
    site.engines[0].end()
    site.engines[0] = Engine(site.folders[1], "--slow", "3000", port=site.engines[0].port)
    wait_for(lambda: mount.engines()["e0"].split()[0] in ("stale", "serving"), "the engine")
    switch = subprocess.Popen(["sh", "-c", f"echo 2 > {mount.file('actor/version')}"])
    at_end(switch.wait, 60)
    wait_for(lambda: "paused model=actor version=2 engine=e0" in mount.text("actor/events"), "the load")
    site.write("model actor", "policy manual", site.engine(1))
    site.reload()
    assert switch.wait(60) == 0
    wait_for(lambda: list(mount.engines()) == ["e1"], "the file's engine", 60)


def test_taken_back():
    "what the file had set and names no more is taken back, also where it changed while no daemon ran; what was set by hand stays, and is shown"
    site = Site()
    folder = checkpoint(SMALL, seed=5)
    source = f"dir:{folder}"

    def pins(mount):
        return {name for name, line in mount.status("actor").items() if name.startswith("version.") and " pinned" in line + " "}

    site.write(f"add critic {source}", "model actor", "policy pull", "commit quorum=1", "strategy tcp", "pin 1", site.engine(0), "model critic", site.engine(1))
    mount = site.mount()
    wait_for(lambda: os.path.isdir(mount.file("critic")) and pins(mount) == {"version.1"} and "e1" in mount.engines("critic"), "what the file says")
    mount.write("pin 2", "actor/ctl")
    mount.write(f"add actor {site.agent.url}", "ctl")
    mount.write(site.engine(2), "critic/ctl")
    by_hand = f"source {site.agent.url} is not in the file; the pin of 2 is not in the file"
    assert site.differs() == by_hand
    assert mount.status("critic")["config_differs"] == "engine e2 is not in the file"

    site.write("model actor", site.engine(0))
    site.reload()
    wait_for(lambda: pins(mount) == {"version.2"} and f"source {source}" not in mount.text("status"), "what the file names no more to go")
    status = mount.status("actor")
    assert (status["policy"], status["commit"], status["strategy"]) == ("manual", "all", "auto"), status
    assert list(mount.engines()) == ["e0"] and list(mount.engines("critic")) == ["e2"]
    assert site.differs() == by_hand and mount.text("status").count(f"source {site.agent.url} ") == 2

    site.write(f"add critic {source}", "model actor", "policy pull", "pin 1", site.engine(0))
    site.reload()
    wait_for(lambda: f"source {source}" in mount.text("status") and not mount.engines("critic") and "version.1" in pins(mount), "the next file")
    mount.end()
    site.write("# nothing")
    mount = site.mount(path=mount.path)
    wait_for(lambda: pins(mount) == {"version.2"}, "the pin that was set by hand")
    assert not mount.engines() and mount.text("actor/policy") == "manual\n" and f"source {source}" not in mount.text("status")
    assert not mount.text("last_error"), mount.text("last_error")
