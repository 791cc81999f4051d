# beside others
"""wsync support: one archive, without secrets and without weights."""
import stat
import subprocess
import tarfile
import io

from world import *

SECRETS = {"file": "secret-of-the-token-file", "env": "secret-of-the-environment", "user": "secret-user-info", "query": "secret-of-a-query",
           "bearer": "secret-behind-bearer", "named": "secret-behind-a-name", "json": "secret-in-json"}


def unpack(path):
    tar = subprocess.run(["zstd", "-dc", path], capture_output=True, check=True, timeout=60).stdout
    with tarfile.open(fileobj=io.BytesIO(tar)) as t:
        return {m.name: t.extractfile(m).read().decode() for m in t.getmembers()}


def test_archive():
    "has what a report needs, mode 0600; no secret from anywhere, no bytes of weights, nothing left beside it"
    agent = Agent()
    folder = checkpoint(SMALL)
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    mount.read("actor/1/model.safetensors")
    token, log, place = unique("token"), unique("log"), unique("place")
    os.mkdir(place)
    with open(token, "w") as f:
        f.write(SECRETS["file"] + "\n")
    with open(log, "w") as f:
        f.write("dropped line\n")
        f.write(f'GET https://u:{SECRETS["user"]}@h/x?sig={SECRETS["query"]} done\nAuthorization: Bearer {SECRETS["bearer"]}\n')
        f.write(f'API_TOKEN={SECRETS["named"]} token-file=/etc/wsync/token {SECRETS["file"]} {SECRETS["env"]}\n{{"secret": "{SECRETS["json"]}"}}\n')
    out = os.path.join(place, "report.tar.zst")
    env = dict(os.environ, WSYNC_TEST_SECRET=SECRETS["env"], WSYNC_LOG="info")
    r = wsync("support", "--agent", f"unix:{agent.sock}", "--token-file", token, "--out", out, "--log", log, "-n", 4, env=env, timeout=200)
    assert r.stdout.strip() == out and os.listdir(place) == ["report.tar.zst"], (r.stdout, os.listdir(place))
    assert stat.S_IMODE(os.stat(out).st_mode) == 0o600
    files = unpack(out)
    everything = "\n".join(files.values())
    assert not [s for s in SECRETS.values() if s in everything], [s for s in SECRETS.values() if s in everything]
    assert "token-file=/etc/wsync/token" in files["logs/0.txt"] and "dropped line" not in files["logs/0.txt"], files["logs/0.txt"]
    assert "WSYNC_TEST_SECRET is set" in files["environment.txt"]
    assert json.loads(files["agent/status.json"])["models"][0]["name"] == "actor"
    assert json.loads(files["doctor.json"])["checks"] and files["version.txt"].startswith("wsync 0.")
    mine = [n for n in files if n.endswith("status.json") and mount.path in files[n]]
    assert mine and "ready model=actor version=1" in files[mine[0].replace("status.json", "events.txt")], list(files)
    assert sum(map(len, files.values())) < 40 << 20


def test_place_that_cannot_be_written():
    "it fails with the place, and leaves nothing"
    r = wsync("support", "--out", "/proc/nothing/x.tar.zst", check=False, timeout=200)
    assert r.returncode == 1 and "/proc/nothing/x.tar.zst" in r.stderr and "--out" in r.stderr, r.stderr
