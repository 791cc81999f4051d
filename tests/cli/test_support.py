# beside others
# timeout: 400, takes: 70
"""wsync support: one archive, without secrets and without weights."""
import io
import signal
import stat
import subprocess
import tarfile
import time

from world import *

SECRETS = {"file": "secret-of-the-token-file", "env": "secret-of-the-environment", "user": "secret-user-info", "query": "secret-of-a-query",
           "bearer": "secret-behind-bearer", "basic": "secret-behind-basic", "option": "secret-behind-an-option", "spaced": "secret-behind-two-blanks",
           "pem": "secret-in-pem", "named": "secret-behind-a-name", "json": "secret-in-json", "quoted": 'secret behind a \\" quote',
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
        f.write(f'GET https://u:{SECRETS["user"]}@h/x?sig={SECRETS["query"]} done\nheader Authorization: Bearer {SECRETS["bearer"]}\n')
        f.write(f'curl -H "Authorization: Basic {SECRETS["basic"]}" --api-key {SECRETS["option"]} -v\nserve --api-key  "{SECRETS["spaced"]}" --port 8000\n')
        f.write(f'-----BEGIN RSA PRIVATE KEY-----\n{SECRETS["pem"]}\n-----END RSA PRIVATE KEY-----\n')
        f.write(f'with password="{SECRETS["quoted"]}" after\n')
        f.write(f'env API_TOKEN={SECRETS["named"]} token-file=/etc/wsync/token {SECRETS["file"]} {SECRETS["env"]}\n{{"secret": "{SECRETS["json"]}"}}\n')
    out = os.path.join(place, "report.tar.zst")
    env = dict(os.environ, WSYNC_TEST_SECRET=SECRETS["env"], WSYNC_LOG="info")
    r = wsync("support", "--agent", f"unix:{agent.sock}", "--token-file", token, "--out", out, "--log", log, "-n", 10, "--mount", mount.path, env=env, timeout=200)
    assert r.stdout.strip() == out and os.listdir(place) == ["report.tar.zst"], (r.stdout, os.listdir(place))
    assert stat.S_IMODE(os.stat(out).st_mode) == 0o600
    files = unpack(out)
    everything = "\n".join(files.values())
    assert not [s for s in SECRETS.values() if s in everything], [s for s in SECRETS.values() if s in everything]
    assert not [word for word in ("behind a", "quote") if word in files["logs/0.txt"]] and "after" in files["logs/0.txt"], files["logs/0.txt"]
    assert "--port 8000" in files["logs/0.txt"] and " done" in files["logs/0.txt"], files["logs/0.txt"]
    assert "token-file=/etc/wsync/token" in files["logs/0.txt"] and "dropped line" not in files["logs/0.txt"], files["logs/0.txt"]
    assert "WSYNC_TEST_SECRET is set" in files["environment.txt"]
    assert json.loads(files["agent/status.json"])["models"][0]["name"] == "actor"
    assert json.loads(files["doctor.json"])["checks"] and files["version.txt"].startswith("wsync 0.")
    mine = [n for n in files if n.startswith("mounts/") and n.endswith("status.json") and mount.path in files[n]]
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
PLANTED = {"token": "planted-token-of-a-file", "env": "planted value of two words", "quoted": "planted quoted words", "aws": "planted-aws-secret",
           "url": "planted-user-info", "engine": "planted-key-of-an-engine", "pem": "UGxhbnRlZEtleUJ5dGVz", "mention": "planted-token-of-a-file"}


def test_settings():
    "files of settings are there, of the host and of a mount's config, without any secret that was planted in them; files of keys and tokens are not"
    agent, home, out = Agent(), unique("settings"), unique("settings-report") + ".tar.zst"
    os.makedirs(home + "/slurm")
    write = lambda name, text: open(os.path.join(home, name), "w").write(text)
    write("rack.token", PLANTED["token"] + "\n")
    write("agent.env", f"""OPTIONS=--listen 0.0.0.0:18861 --tokens /etc/wsync/tokens
RUN_PASSWORD={PLANTED['env']}
export WANDB_API_KEY="{PLANTED['quoted']}"   # of the run
AWS_SECRET_ACCESS_KEY={PLANTED['aws']}
EMPTY_TOKEN="" KEPT="this stays"
SOURCE=https://me:{PLANTED['url']}@trainer:18861/x said {PLANTED['mention']}
-----BEGIN PRIVATE KEY-----
{PLANTED['pem']}
-----END PRIVATE KEY-----
LAST=kept
""")
    write("slurm/run7.env", "NODES=8\n")
    write("node7.key", "planted-key-file\n")
    write("tokens", "planted-list-of-tokens\n")
    write("mount.conf", f"# engine_key: {PLANTED['engine']}\nmodel actor\npolicy follow\n")
    os.rename(home + "/mount.conf", home + "/mount.cfg")  # found because the mount names it
    agent.publish("actor", 1, checkpoint(SMALL))
    mount = Mount(agent.url, f"config={home}/mount.cfg")
    mount.wait_version("actor", 1)
    mount.write("pin 1", "actor/ctl")
    wsync("support", "--agent", f"unix:{agent.sock}", "--settings", home, "--mount", mount.path, "--out", out, timeout=200)
    files = unpack(out)
    everything = "\n".join(files.values())
    assert not [s for s in PLANTED.values() if s in everything], [s for s in PLANTED.values() if s in everything]
    for part in ("two words", "quoted words", "planted"):
        assert part not in everything, [line for line in everything.splitlines() if part in line]
    inside = f"settings{home}/"
    env = files[inside + "agent.env"]
    assert "OPTIONS=--listen 0.0.0.0:18861 --tokens /etc/wsync/tokens" in env and "LAST=kept" in env and 'KEPT="this stays"' in env, env
    assert "https://[removed]@trainer:18861/x" in env, env
    assert "NODES=8" in files[inside + "slurm/run7.env"]
    assert "policy follow" in files[inside + "mount.cfg"] and "[removed]" in files[inside + "mount.cfg"], files[inside + "mount.cfg"]
    assert inside + "node7.key" not in files and inside + "tokens" not in files and inside + "rack.token" not in files
    mine = next(n for n in files if n.endswith("status.json") and mount.path in files[n])
    kept = json.loads(files[mine])["settings"]
    assert files[f"settings{kept}"[:9 + 90]].startswith("wsync-settings 1"), list(files)


def test_large_log():
    "a log of several MiB costs a time that grows as its size does, and is cut at its begin"
    log, out = unique("large"), unique("large") + ".tar.zst"
    line = 'level http GET path=/v1/models who="rack" token=abcdefgh took=1.5 : "x" -----BEGIN CERTIFICATE----- \n'
    with open(log, "w") as f:
        f.write(line * (6 << 20 >> 7))
    wsync("support", "--agent", "http://127.0.0.1:9", "--out", out, "--log", log, "-n", 100000, timeout=200 * SLOW)
    text = unpack(out)["logs/0.txt"]
    assert len(text) > 2 << 20 and "abcdefgh" not in text and "token=[removed]" in text


def test_mount_that_stands_still():
    "a mount whose daemon is stopped costs its bound, the archive is there, and says so; the other mount's part is whole"
    agent = Agent()
    agent.publish("actor", 1, checkpoint(SMALL))
    stopped, other = Mount(agent.url), Mount(agent.url)
    for mount in (stopped, other):
        mount.wait_version("actor", 1)
    suspend(stopped.pid)
    at_end(os.kill, stopped.pid, signal.SIGCONT)
    out, began = unique("stopped") + ".tar.zst", time.monotonic()
    r = wsync("support", "--agent", f"unix:{agent.sock}", "--mount", stopped.path, "--mount", other.path, "--out", out, timeout=200 * SLOW)
    took = time.monotonic() - began
    files = unpack(out)
    assert r.returncode == 0 and "'wsync status' was ended after 20 s" in r.stderr, r.stderr
    assert took < 200 * SLOW and [n for n in files if n.endswith("status.json") and other.path in files[n]], (took, list(files))
    assert json.loads(files["agent/status.json"])["models"][0]["name"] == "actor"


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
