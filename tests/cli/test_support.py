# beside others
"""wsync support: one archive, without secrets and without weights."""
import stat
import subprocess
import tarfile
import io

from world import *

SECRETS = {"file": "secret-of-the-token-file", "env": "secret-of-the-environment", "user": "secret-user-info", "query": "secret-of-a-query",
           "bearer": "secret-behind-bearer", "basic": "secret-behind-basic", "option": "secret-behind-an-option", "pem": "secret-in-pem", "named": "secret-behind-a-name", "json": "secret-in-json"}


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
        f.write(f'Authorization: Basic {SECRETS["basic"]}\nserve --api-key  "{SECRETS["option"]}" --port 8000\n')
        f.write(f'-----BEGIN RSA PRIVATE KEY-----\n{SECRETS["pem"]}\n-----END RSA PRIVATE KEY-----\n')
        f.write(f'API_TOKEN={SECRETS["named"]} token-file=/etc/wsync/token {SECRETS["file"]} {SECRETS["env"]}\n{{"secret": "{SECRETS["json"]}"}}\n')
    out = os.path.join(place, "report.tar.zst")
    env = dict(os.environ, WSYNC_TEST_SECRET=SECRETS["env"], WSYNC_LOG="info")
    r = wsync("support", "--agent", f"unix:{agent.sock}", "--token-file", token, "--out", out, "--log", log, "-n", 9, env=env, timeout=200)
    assert r.stdout.strip() == out and os.listdir(place) == ["report.tar.zst"], (r.stdout, os.listdir(place))
    assert stat.S_IMODE(os.stat(out).st_mode) == 0o600
    files = unpack(out)
    everything = "\n".join(files.values())
    assert not [s for s in SECRETS.values() if s in everything], [s for s in SECRETS.values() if s in everything]
    assert "--port 8000" in files["logs/0.txt"] and " done" in files["logs/0.txt"], files["logs/0.txt"]
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


def test_what_is_no_file():
    "a device, a folder or a link is neither replaced nor read as a log"
    need_fuse()  # root
    place, log = open_to_all(), unique("log")
    device = os.path.join(place, "null")
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    link = os.path.join(place, "link")
    os.symlink("null", link)
    fifo = os.path.join(place, "fifo")
    os.mkfifo(fifo)
    for out in (device, link, fifo, place):
        r = wsync("support", "--out", out, check=False, timeout=200)
        assert r.returncode == 1 and "no regular file" in r.stderr, (out, r)
    for log in (device, fifo, place):
        r = wsync("support", "--out", os.path.join(place, "o"), "--log", log, check=False, timeout=200)
        assert r.returncode == 1 and "no regular file" in r.stderr, (log, r)
    assert sorted(os.listdir(place)) == ["fifo", "link", "null"] and stat.S_ISCHR(os.stat(device).st_mode)


def test_odd_logs():
    "logs of one long line, of blanks, question marks or names, take no longer than others"
    logs = []
    for text in ("?" * (4 << 20), " " * (4 << 20), "a? " * (1 << 20), "key = " * (700 << 10), "://?" * (1 << 20)):
        logs += ["--log", unique("log")]
        with open(logs[-1], "w") as f:
            f.write(text)
    out = os.path.join(open_to_all(), "o.tar.zst")
    wsync("support", "--out", out, *logs, timeout=100)
    assert len([n for n in unpack(out) if n.startswith("logs/")]) == 5
