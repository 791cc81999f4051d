# beside others
"""wsync support: one archive, without secrets and without weights."""
import stat
import subprocess
import tarfile
import io

from world import *

SECRETS = {"file": "secret-of-the-token-file", "env": "secret-of-the-environment", "user": "secret-user-info", "query": "secret-of-a-query",
           "bearer": "secret-behind-bearer", "named": "secret-behind-a-name", "json": "secret-in-json", "quoted": 'secret behind a \\" quote',
           "cut": "secret-of-a-line-that-is-cut"}
PART_BYTES = 4 << 20


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
        f.write(f'password="{SECRETS["quoted"]}" after\n')
        f.write(f'API_TOKEN={SECRETS["named"]} token-file=/etc/wsync/token {SECRETS["file"]} {SECRETS["env"]}\n{{"secret": "{SECRETS["json"]}"}}\n')
    out = os.path.join(place, "report.tar.zst")
    env = dict(os.environ, WSYNC_TEST_SECRET=SECRETS["env"], WSYNC_LOG="info")
    r = wsync("support", "--agent", f"unix:{agent.sock}", "--token-file", token, "--out", out, "--log", log, "-n", 5, env=env, timeout=200)
    assert r.stdout.strip() == out and os.listdir(place) == ["report.tar.zst"], (r.stdout, os.listdir(place))
    assert stat.S_IMODE(os.stat(out).st_mode) == 0o600
    files = unpack(out)
    everything = "\n".join(files.values())
    assert not [s for s in SECRETS.values() if s in everything], [s for s in SECRETS.values() if s in everything]
    assert not [word for word in ("behind a", "quote") if word in files["logs/0.txt"]] and "after" in files["logs/0.txt"], files["logs/0.txt"]
    assert "token-file=/etc/wsync/token" in files["logs/0.txt"] and "dropped line" not in files["logs/0.txt"], files["logs/0.txt"]
    assert "WSYNC_TEST_SECRET is set" in files["environment.txt"]
    assert json.loads(files["agent/status.json"])["models"][0]["name"] == "actor"
    assert json.loads(files["doctor.json"])["checks"] and files["version.txt"].startswith("wsync 0.")
    mine = [n for n in files if n.endswith("status.json") and mount.path in files[n]]
    assert mine and "ready model=actor version=1" in files[mine[0].replace("status.json", "events.txt")], list(files)
    assert sum(map(len, files.values())) < 40 << 20


def test_long_log():
    "of a log that is longer than what is taken of one, no half line, which may be half a secret"
    log, out = unique("log"), unique("report")
    with open(log, "w") as f:
        f.write(f"token={SECRETS['cut']}\n" + ("x" * (1 << 16) + "\n") * (PART_BYTES >> 16))
        f.truncate(PART_BYTES + len("token=secret-"))
    wsync("support", "--agent", f"unix:{unique('none')}", "--out", out, "--log", log, "-n", 100000, timeout=200)
    text = unpack(out)["logs/0.txt"]
    assert "cut" not in text and len(text) > PART_BYTES - (1 << 17), text[:100]


def test_token_of_an_account():
    "tokens that servers of another account than root made are known, too"
    place = open_to_all()
    program, folder, log, out = shutil.copy(WSYNC, place), os.path.join(place, "wsync.d"), os.path.join(place, "log"), os.path.join(place, "report")
    os.makedirs(tokens := os.path.join(folder, "wsync"))
    for name, text in (os.path.join(tokens, "18861.token"), "a-secret-of-an-account"), (log, "bare a-secret-of-an-account here\n"):
        with open(name, "w") as f:
            f.write(text)
    os.chmod(place, 0o777)
    r = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", program, "support", "--agent", f"unix:{place}/none", "--out", out,
                        "--log", log], env=dict(os.environ, XDG_RUNTIME_DIR=folder), capture_output=True, text=True, timeout=200 * SLOW)
    assert r.returncode == 0, r
    assert unpack(out)["logs/0.txt"] == "bare [removed] here\n"


def test_place_that_cannot_be_written():
    "it fails with the place, and leaves nothing"
    r = wsync("support", "--out", "/proc/nothing/x.tar.zst", check=False, timeout=200)
    assert r.returncode == 1 and "/proc/nothing/x.tar.zst" in r.stderr and "--out" in r.stderr, r.stderr
