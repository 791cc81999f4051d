# beside others
# timeout: 1440, takes: 150
# sanitizers: address
"""Archives in object stores, by servers that nobody here wrote. What is tested with which:

| behaviour                                                   | moto | SeaweedFS |
|---|---|---|
| anchors, deltas, retention, mount, a relay, verify, names that are encoded | yes | yes |
| signed versions; a signature that is lost                   | yes | yes |
| uploads in parts, and what stays of one that was stopped    | yes | yes |
| restart, takeover, a crash's rest, a listing that is lost   | yes | yes |
| a takeover between the last look and the listing (If-Match) | yes | yes |
| 503 SlowDown, 429 with Retry-After, cuts, pages and errors behind a 200, on writes and on reads | yes | yes |
| an object that is lost, cut short or another's              | yes | yes |
| wrong secret, unknown key, a clock that is off, by the server's own check | no: it checks none | yes |
| profile, container, instance role, keys that expire         | no | yes |
| listings that come late                                     | yes, by the proxy | no |

Nothing here was run against Amazon's S3, Google's, Ceph's or MinIO's."""
import concurrent.futures
import http.server
import re
import subprocess
import threading

from stores import *
from world import *

TENSORS = {f"layer.{i}.weight": ("BF16", [512, 512]) for i in range(8)} | {"tail": ("U8", [12345])}
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
time_t time(time_t *out)
{
    time_t now = ((time_t(*)(time_t *))dlsym(RTLD_NEXT, "time"))(NULL) + atol(getenv("CLOCK_OFF"));
    if (out)
        *out = now;
    return now;
}
"""


@pytest.fixture(scope="module")
def stores(module_scope):
    need_fuse()
    return {}


@pytest.fixture(params=[Moto, SeaweedFS], ids=lambda c: c.name)
def store(request, stores, module_scope, monkeypatch):
    if request.param not in stores:
        with module_scope.continued():
            stores[request.param] = request.param()
    use(monkeypatch, stores[request.param].url)
    return stores[request.param]


@pytest.fixture
def weed(stores, module_scope, monkeypatch):
    if SeaweedFS not in stores:
        with module_scope.continued():
            stores[SeaweedFS] = SeaweedFS()
    use(monkeypatch, stores[SeaweedFS].url)
    return stores[SeaweedFS]


def use(monkeypatch, url, key=KEY, secret=SECRET):
    """What is started from now on finds the store at that URL, and nothing else of this machine's."""
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    os.makedirs(TESTDIR + "/home", exist_ok=True)
    monkeypatch.setenv("HOME", TESTDIR + "/home")
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    if key:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)


def prefix():
    prefix.n += 1
    return f"run {prefix.n}=é+(1)"  # each of these is encoded in a path


prefix.n = 0


def url_of(place):
    return f"s3://{BUCKET}/{place}"


def listing(store, place, model="actor"):
    keys = store.keys(place)
    if "v1/models" not in keys:
        return {}
    models = {m["name"]: m for m in json.loads(store.get(place, "v1/models"))["models"]}
    return {v["version"]: v for v in models.get(model, {"versions": []})["versions"]}


class Run:
    """An agent with an archive in a store, and what it published."""

    def __init__(self, store, *args, place=None, tensors=TENSORS, model="actor"):
        self.store, self.place, self.tensors, self.model = store, place or prefix(), tensors, model
        self.args, self.folders = args, {}
        self.start()

    def start(self):
        self.agent = Agent("--archive", url_of(self.place), *self.args)

    def publish(self, version, whole=False, wait=True):
        before = self.folders.get(max(self.folders, default=None))
        self.folders[version] = step(before, version, share=0.004) if before and not whole else checkpoint(self.tensors, seed=version)
        self.agent.publish(self.model, version, self.folders[version])
        if wait:
            wait_for(lambda: version in listing(self.store, self.place, self.model) or self.agent.kill_if_dead(), f"version {version}", 40)

    def metric(self, result):
        with urllib.request.urlopen(self.agent.url + "/metrics", timeout=20) as r:
            line = next(x for x in r.read().decode().splitlines() if x.startswith("wsync_agent_archived_total") and f'"{result}"' in x)
        return int(line.split()[-1])

    def same(self, mount, *versions):
        for v in versions:
            mount.wait_version(self.model, v)
            want = tensors_of(self.folders[v] + "/model.safetensors")
            assert tensors_of(mount.file(self.model, v, "model.safetensors")) == want, v


Agent.kill_if_dead = lambda self: None if self.alive() else pytest.fail(self.text())


def why_refused(mount, version, model="actor"):
    """The errno's name and the version's line after a read that must fail."""
    try:
        mount.read(model, version, "model.safetensors")
    except OSError as e:
        return errno.errorcode[e.errno], mount.status(model).get(f"version.{version}", "")
    raise AssertionError(f"version {version} was read")


def test_agent_and_mounts(store):
    "an agent archives whole versions and deltas, keeps what it should, is killed; mounts read all of it, through a relay, too"
    run = Run(store, "--archive-every", "3", "--archive-keep", "2", model="act=or é+1")
    for v in range(1, 9):
        run.publish(v)
    wait_for(lambda: sorted(listing(store, run.place, run.model)) == [4, 5, 6, 7, 8], "what is not kept to go")
    entries = listing(store, run.place, run.model)
    assert [v for v in sorted(entries) if entries[v]["anchor"]] == [4, 7]
    wait_for(lambda: not any(f"/{v}/" in k for k in store.keys(run.place) for v in (1, 2, 3)), "their objects to go")
    assert (run.metric("failed"), run.metric("given-up")) == (0, 0)
    run.agent.kill()
    keys = store.keys(run.place)
    assert {k.split("/")[-1] for k in keys if "/5/" in k} == {"manifest", "deltas", "delta"}
    assert f"v1/{run.model}/7/files/model.safetensors" in keys
    serving = Mount(url_of(run.place), f"serve=127.0.0.1:{(port := free_port())},serve-insecure")
    run.same(serving, 8, 4)
    assert "transport=archive" in serving.text("status")
    leaf = Mount(f"http://127.0.0.1:{port}")
    run.same(leaf, 8, 6)
    wsync("verify", leaf.file(run.model, 8))


def test_parts(store):
    "a large file goes up in parts; one that is stopped leaves nothing, and the next is whole"
    between = Meddler(store)
    os.environ["AWS_ENDPOINT_URL"] = between.url
    run = Run(store, "--archive-every", "1", tensors={"a": ("BF16", [9 << 20]), "b": ("U8", [5])})
    run.publish(1)
    assert between.count("PUT", "partNumber=") == 2 and between.count("POST", "uploads=") == 1
    between.rule("PUT", "partNumber=2", error(403, "AccessDenied"))
    run.publish(2, whole=True, wait=False)
    wait_for(lambda: run.metric("failed") == 1, "version 2 to fail")
    assert "s3:PutObject" in run.agent.text()
    wait_for(lambda: not store.uploads(), "the parts to go")
    between.rules.clear()
    run.publish(3, whole=True)
    assert sorted(listing(store, run.place)) == [1, 3] and not [k for k in store.keys(run.place) if "/2/" in k]
    name = "v1/actor/4/files/model.safetensors"
    store.put(run.place, name, store.get(run.place, name.replace("4", "3")))
    between.rule("POST", "uploadId=", error(404, "NoSuchUpload"), 1)
    run.publish(4, whole=True, wait=False)
    wait_for(lambda: run.metric("failed") + run.metric("given-up") == 2, "version 4 to fail, as its upload was lost")
    run.same(Mount(url_of(run.place)), 1, 3)


def test_signed(store):
    "a version without its signature is not taken by a mount with verify-key="
    key = unique("run") + ".key"
    wsync("key", "new", "--out", key, "--name", "run")
    run = Run(store, "--sign-key", key)
    run.publish(1)
    run.publish(2)
    run.publish(3)
    run.agent.kill()
    run.same(Mount(url_of(run.place), f"verify-key={key}.pub"), 3, 1)
    store.delete(run.place, "v1/actor/1/signature")
    mount = Mount(url_of(run.place), f"verify-key={key}.pub")
    mount.wait_version("actor", 1)
    name, line = why_refused(mount, 1)
    assert name == "EBADMSG" and "signature" in line, (name, line)


def test_restart(store):
    "a restarted agent takes its archive over; what was never finished goes; what is whole and no longer listed comes back"
    run = Run(store, "--archive-every", "2")
    for v in (1, 2, 3):
        run.publish(v)
    run.agent.kill()
    store.put(run.place, "v1/actor/9/files/model.safetensors", b"never finished")
    store.delete(run.place, "v1/models")
    run.start()
    assert "taken over" in run.agent.text() and "removing what was never finished model=actor version=9" in run.agent.text()
    assert sorted(listing(store, run.place)) == [1, 2, 3] and not [k for k in store.keys(run.place) if "/9/" in k]
    mount = Mount(url_of(run.place))
    run.same(mount, 3, 2)
    run.publish(4)
    run.same(mount, 4)
    run.agent.end()
    assert "v1/.writer" not in store.keys(run.place)


def test_restart_with_what_is_lost(store):
    "a restarted agent lists no version of which an object is missing, and removes none whose manifest only does not show"
    run = Run(store, "--archive-every", "2", "--archive-keep", "9")
    for v in range(1, 6):
        run.publish(v)
    run.agent.kill()
    keys = store.keys(run.place)
    lost = "v1/actor/2/delta", "v1/actor/3/files/model.safetensors"
    for key in lost + ("v1/models",):
        store.delete(run.place, key)
    between = Meddler(store)
    os.environ["AWS_ENDPOINT_URL"] = between.url
    between.rule("GET", "/1/manifest", error(404, "NoSuchKey"), 1)
    run.start()
    assert sorted(listing(store, run.place)) == [5] and set(keys) - set(store.keys(run.place)) <= set(lost)
    run.agent.kill()
    store.delete(run.place, "v1/models")
    run.start()
    assert sorted(listing(store, run.place)) == [1, 5]
    run.same(Mount(url_of(run.place)), 1, 5)


def test_two_writers(store):
    "who is taken over makes nothing visible any more and says by whom; it goes on when that one has ended"
    first = Run(store)
    first.publish(1)
    second = Run(store, place=first.place, model="other")
    first.publish(2, wait=False)
    wait_for(lambda: first.metric("failed") == 1, "the first to see it")
    assert f"process {second.agent.pid} of" in first.agent.text()
    second.publish(1)
    second.agent.end()
    first.publish(3)
    assert sorted(listing(store, first.place)) == [1, 3] and sorted(listing(store, first.place, "other")) == [1]
    mount = Mount(url_of(first.place))
    first.same(mount, 1, 3)
    second.same(mount, 1)


def held(between, method, part):
    """The next such request's answer is kept back. Two events: it was asked; it may have its answer."""
    asked, may = threading.Event(), threading.Event()
    at_end(may.set)

    def wait(head, body):
        asked.set()
        may.wait(100)
        return head + b"\r\n\r\n" + body
    between.rule(method, part, wait, 1)
    return asked, may


def test_publish_while_it_is_read_back(store):
    "memory for two versions and a half: the trainer's next ones wait for what a restarted agent reads back, and are not refused"
    between = Meddler(store)
    direct = os.environ["AWS_ENDPOINT_URL"]
    run = Run(store)
    run.publish(1)
    run.agent.kill()
    run.args = "--memory", str(5 * os.path.getsize(run.folders[1] + "/model.safetensors") // 2)
    os.environ["AWS_ENDPOINT_URL"] = between.url
    asked, may = held(between, "GET", "/1/files/")
    run.start()
    os.environ["AWS_ENDPOINT_URL"] = direct
    assert asked.wait(40)
    run.publish(2)
    late = threading.Thread(target=run.publish, args=(3,))
    late.start()
    time.sleep(1)
    assert late.is_alive()
    may.set()
    late.join(100)
    assert not late.is_alive() and sorted(listing(store, run.place)) == [1, 2, 3], run.agent.text()
    run.same(Mount(run.agent.url), 3)


def test_number_that_comes_back(store):
    "a publish that waited for what a restarted agent reads back is refused where that is newer, although the agent knew of nothing when it began"
    run = Run(store)
    folders = {n: checkpoint(TENSORS, seed=n) for n in (5, 6, 11)}

    def publish(version, **kw):
        return run.agent.publish("actor", version, folders[version], "--run", "r1", **kw)
    publish(11)
    wait_for(lambda: 11 in listing(store, run.place), "version 11 in the archive", 40)
    run.agent.kill()
    run.args = "--memory", str(5 * os.path.getsize(folders[5] + "/model.safetensors") // 2)
    between = Meddler(store)
    direct = os.environ["AWS_ENDPOINT_URL"]
    os.environ["AWS_ENDPOINT_URL"] = between.url
    asked, may = held(between, "GET", "/11/files/")
    run.start()
    os.environ["AWS_ENDPOINT_URL"] = direct
    assert asked.wait(40)
    publish(5)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        late = pool.submit(publish, 6, check=False)
        time.sleep(1)
        assert not late.done()
        may.set()
        refused = late.result(100)
    assert refused.returncode and "11" in refused.stderr, refused
    mount = Mount(run.agent.url)
    mount.wait_version("actor", 11)
    assert tensors_of(mount.file("actor/11/model.safetensors")) == tensors_of(folders[11] + "/model.safetensors")


def test_taken_over_in_the_middle(store):
    "who loses the archive while it writes a version changes nothing of the one that took it over, and lists what that one wrote"
    between = Meddler(store)
    direct = os.environ["AWS_ENDPOINT_URL"]
    os.environ["AWS_ENDPOINT_URL"] = between.url
    keep = "--archive-every", "1", "--archive-keep", "9"
    first = Run(store, *keep, tensors={"a": ("BF16", [9 << 20])})
    os.environ["AWS_ENDPOINT_URL"] = direct
    first.publish(1)
    for version, method, part, ends in (2, "PUT", "/2/deltas", False), (3, "PUT", "/3/deltas", True), (4, "PUT", "partNumber=2", False):
        asked, may = held(between, method, part)
        first.publish(version, whole=True, wait=False)
        assert asked.wait(40)
        second = Run(store, *keep, place=first.place, tensors={"b": ("BF16", [9 << 20])})
        second.publish(version)
        if ends:
            second.agent.end()
        failed = first.metric("failed")
        may.set()
        wait_for(lambda: first.metric("failed") > failed, "the first to see it")
        second.same(Mount(url_of(first.place)), version)
        if not ends:
            second.agent.end()
    first.publish(5)
    assert sorted(listing(store, first.place)) == [1, 2, 3, 4, 5]
    first.same(Mount(url_of(first.place)), 1, 5)
    assert not store.uploads()


def test_two_writers_at_one_moment(store):
    "who loses the archive between its last look at who writes and its listing does not take the other's versions out of that"
    between = Meddler(store)
    direct = os.environ["AWS_ENDPOINT_URL"]
    os.environ["AWS_ENDPOINT_URL"] = between.url
    first = Run(store)
    os.environ["AWS_ENDPOINT_URL"] = direct
    first.publish(1)
    asked, may = threading.Event(), threading.Event()
    at_end(may.set)

    def wait(head, body):
        if between.count("PUT", "/2/manifest") and not asked.is_set():
            asked.set()
            may.wait(100)
        return head + b"\r\n\r\n" + body
    between.rule("GET", ".writer", wait)
    first.publish(2, wait=False)
    assert asked.wait(40)
    second = Run(store, place=first.place, model="other")
    second.publish(1)
    may.set()
    wait_for(lambda: first.metric("failed") == 1, "the first to see it")
    assert "at the same moment" in first.agent.text() or "another process writes" in first.agent.text()
    assert sorted(listing(store, first.place, "other")) == [1] and sorted(listing(store, first.place)) == [1, 2]
    second.same(Mount(url_of(first.place)), 1)


def test_without_conditions(store):
    "a store that has no conditional writes is written to as before, and is warned of once"
    between = Meddler(store)
    os.environ["AWS_ENDPOINT_URL"] = between.url
    between.rule("PUT", "v1/models", error(501, "NotImplemented"), 1)
    run = Run(store)
    run.publish(1)
    run.publish(2)
    assert sorted(listing(store, run.place)) == [1, 2] and run.agent.text().count("has no conditional writes") == 1


def without_etag(head, body):
    """A rule: what the server answers, without its ETag."""
    return b"\r\n".join(line for line in head.split(b"\r\n") if not line.lower().startswith(b"etag:")) + b"\r\n\r\n" + body


def test_without_etags(store):
    "a store whose objects come without an ETag: an agent writes on after a restart, warned once; what was replaced or cut short is told by hashes"
    between = Meddler(store)
    os.environ["AWS_ENDPOINT_URL"] = between.url
    between.rule("GET", "", without_etag)
    between.rule("HEAD", "", without_etag)
    run = Run(store, "--archive-every", "1", "--archive-keep", "9")
    for v in (1, 2):
        run.publish(v, whole=True)
    run.agent.kill()
    run.start()
    for v in (3, 4, 5):
        run.publish(v, whole=True)
    assert sorted(listing(store, run.place)) == [1, 2, 3, 4, 5] and run.agent.text().count("has no conditional writes") == 1
    run.agent.end()
    name = "v1/actor/{}/files/model.safetensors"
    data = store.get(run.place, name.format(5))
    store.put(run.place, name.format(3), data)
    store.put(run.place, name.format(4), store.get(run.place, name.format(4))[:3 << 20])
    mount = Mount(url_of(run.place))
    run.same(mount, 5)
    for version, words in (3, "not the manifest's"), (4, ""):
        code, line = why_refused(mount, version)
        assert words in line and f"actor/{version}" in line, (version, code, line)


def test_faults_of_writes(store):
    "what passes costs a repetition and nothing else"
    between = Meddler(store)
    os.environ["AWS_ENDPOINT_URL"] = between.url
    run = Run(store, tensors={"a": ("BF16", [10 << 20])})
    between.rule("POST", "uploads=", error(503, "SlowDown"), 2)
    between.rule("PUT", "partNumber=1", error(429, "TooManyRequests", Retry_After=1), 1)
    between.rule("PUT", "partNumber=1", lambda *_: None, 1)
    between.rule("PUT", "partNumber=2", answer(200, PAGE), 1)
    between.rule("POST", "uploadId=", error(200, "InternalError"), 1)
    between.rule("PUT", "/deltas", answer(500), 1)
    between.rule("PUT", "/manifest", answer(502, PAGE), 1)
    between.rule("PUT", "v1/models", lambda *_: None, 2)
    run.publish(1)
    wait_for(lambda: run.metric("whole") == 1, "it to be counted")
    assert all(times == 0 for *_, times in between.rules), between.rules
    assert run.metric("failed") == 0
    run.same(Mount(url_of(run.place)), 1)


def test_faults_of_reads(store):
    "503s, cuts and pages of a proxy are passed over; not a byte is wrong"
    run = Run(store)
    run.publish(1)
    run.publish(2)
    run.agent.end()
    between = Meddler(store)
    os.environ["AWS_ENDPOINT_URL"] = between.url
    between.rule("GET", "v1/models", answer(200, PAGE), 1)
    between.rule("GET", "v1/models", error(503, "SlowDown"), 1)
    between.rule("GET", "/1/manifest", cut(20), 1)
    between.rule("GET", "/1/manifest", answer(200, PAGE), 1)
    between.rule("GET", "files/model.safetensors", error(503, "ServiceUnavailable", Retry_After=1), 1)
    between.rule("GET", "files/model.safetensors", cut(1 << 20), 2)
    between.rule("GET", "files/model.safetensors", answer(200, PAGE), 1)
    between.rule("GET", "files/model.safetensors", lambda *_: None, 1)
    between.rule("GET", "/delta", cut(100), 1)
    mount = Mount(url_of(run.place))
    run.same(mount, 2, 1)
    assert "does not answer" not in mount.text() and all(times == 0 for *_, times in between.rules), between.rules
    mount.write("verify 1", "actor/ctl")


def test_wrong_for_good(store):
    "a store that lost an object, cut it short, or has another's bytes: the version is refused by the object's name, the others are not"
    run = Run(store, "--archive-every", "1", "--archive-keep", "9")
    for v in range(1, 6):
        run.publish(v, whole=True)
    run.agent.end()
    name = "v1/actor/{}/files/model.safetensors"
    data = store.get(run.place, name.format(2))
    store.delete(run.place, name.format(1))
    store.put(run.place, name.format(2), data[:3 << 20])
    store.put(run.place, name.format(3), data)
    store.delete(run.place, "v1/actor/4/manifest")
    mount = Mount(url_of(run.place))
    run.same(mount, 5)
    for version, words in (1, "model.safetensors"), (2, ""), (3, "not the manifest's"), (4, "/manifest"):
        code, line = why_refused(mount, version)
        assert words in line and f"actor/{version}" in line, (version, code, line)


def test_away(store):
    "a store that is away costs versions of the archive, and neither the trainer nor what is there"
    between = Meddler(store)
    os.environ["AWS_ENDPOINT_URL"] = between.url
    run = Run(store)
    run.publish(1)
    mount = Mount(url_of(run.place))
    run.same(mount, 1)
    for method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
        between.rule(method, "", answer(503, PAGE))
    run.publish(2, wait=False)
    assert 2 in [v["version"] for v in run.agent.get("/v1/models")["models"][0]["versions"]]
    wait_for(lambda: run.metric("failed") == 1, "it to be given up", 40)
    assert "tried 5 times" in run.agent.text()
    between.rules.clear()
    between.rule("GET", "v1/models", answer(200, PAGE))
    other = Mount(url_of(run.place))
    wait_for(lambda: "not as S3 does" in other.text(), "a page instead of the listing to be named")
    between.rules.clear()
    run.publish(3)
    run.same(other, 3)
    run.same(mount, 3, 1)


def test_late_listing(stores, module_scope, monkeypatch):
    "a store that shows an older listing again takes no version away"
    if Moto not in stores:
        with module_scope.continued():
            stores[Moto] = Moto()
    store = stores[Moto]
    use(monkeypatch, store.url)
    run = Run(store)
    run.publish(1)
    old = store.get(run.place, "v1/models")
    run.publish(2)
    between = Meddler(store)
    os.environ["AWS_ENDPOINT_URL"] = between.url
    mount = Mount(url_of(run.place))
    mount.wait_version("actor", 2)
    between.rule("GET", "v1/models", answer(200, old, ETag='"old"'))
    seen = between.count("GET", "v1/models")
    wait_for(lambda: between.count("GET", "v1/models") > seen + 1, "more looks")
    run.same(mount, 2)
    between.rules.clear()
    run.publish(3)
    run.same(mount, 3)


def agent_refused(place="x", *args):
    """What an agent says that does not start."""
    with pytest.raises(AssertionError) as e:
        Agent("--archive", place if "://" in place else url_of(place), *args)
    return str(e.value)


def test_refusals(weed, monkeypatch):
    "wrong keys, another bucket, a clock that is off, places that are none: each is named with what to do"
    use(monkeypatch, weed.url, secret="wrong")
    assert "correct AWS_SECRET_ACCESS_KEY" in agent_refused()
    use(monkeypatch, weed.url, key="AKIAOTHER")
    assert "correct AWS_ACCESS_KEY_ID" in agent_refused()
    use(monkeypatch, weed.url, key=None)
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE" in agent_refused()
    use(monkeypatch, weed.url)
    assert "there is no such bucket" in agent_refused("s3://no-such-bucket/x")
    assert "names no bucket" in agent_refused("s3:///x")
    assert "'..'" in agent_refused("s3://weights/a/../b")
    assert "Azure's storage does not speak S3" in agent_refused("az://weights/x")
    use(monkeypatch, "http://192.0.2.1:9")
    assert "in clear text" in agent_refused()
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert "has such a profile" in agent_refused()
    with open(TESTDIR + "/home/config", "w") as f:
        f.write("[profile nobody]\nrole_arn = arn:aws:iam::1:role/x\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", TESTDIR + "/home/config")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_ENDPOINT_URL", weed.url)
    assert "by role_arn, which wsync does not do" in agent_refused()


def test_silent_store(monkeypatch):
    "an agent whose store takes connections and does not answer says after some seconds what it waits for, and ends when it is told to"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        use(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        agent = Process("agent", "--listen", "none", "--socket", unique("agent") + ".sock", "--archive", "s3://weights/x")
        wait_for(lambda: "the archive s3://weights/x has not answered" in agent.text(), "what it waits for")
        assert agent.alive()
        agent.process.terminate()
        assert agent.process.wait(10) == 0, agent.text()


def test_silent_while_listing(store, monkeypatch):
    "an agent that is told to end while its store keeps the listing without an answer does so in seconds; the next one lists the version"
    run = Run(store)
    run.publish(1)
    run.agent.end()
    between = Meddler(store)
    monkeypatch.setenv("AWS_ENDPOINT_URL", between.url)
    asked, over = threading.Event(), threading.Event()
    at_end(over.set)

    def is_silent(*_):
        asked.set()
        over.wait(300)

    run.start()
    between.rule("PUT", "v1/models", is_silent)
    run.publish(2, wait=False)
    assert asked.wait(60), between.seen
    run.agent.end()
    assert "has not answered for 5 s: the agent ends without it" in run.agent.text()
    over.set()
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    run.start()
    assert sorted(listing(store, run.place)) == [1, 2]
    run.same(Mount(url_of(run.place)), 2)


def test_clock(weed, monkeypatch):
    "a host whose clock is off is told so by the store, and by how much by wsync"
    if SANITIZER:
        pytest.skip("a library cannot be loaded before the sanitizer's: not under a sanitizer")
    with open(TESTDIR + "/clock.c", "w") as f:
        f.write(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", TESTDIR + "/clock.so", TESTDIR + "/clock.c"], check=True)
    monkeypatch.setenv("CLOCK_OFF", "-7200")
    monkeypatch.setenv("LD_PRELOAD", TESTDIR + "/clock.so")
    said = agent_refused()
    assert re.search(r"clock is 7\d\d\d s behind the store's \(RequestTimeTooSkewed\): set it, by NTP", said), said


class Roles:
    """A container's and an instance's server of credentials."""

    def __init__(self, seconds):
        self.asked = []
        roles = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def say(self, text, status=200):
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def do_PUT(self):
                self.say("the-token" if "X-aws-ec2-metadata-token-ttl-seconds" in self.headers else "", 200)

            def do_GET(self):
                if self.path == "/creds" and self.headers.get("Authorization") != "for the container":
                    return self.say("{}", 403)
                if self.path != "/creds" and self.headers.get("X-aws-ec2-metadata-token") != "the-token":
                    return self.say("", 401)
                if self.path == "/latest/meta-data/iam/security-credentials/":
                    return self.say("trainer")
                roles.asked.append(self.path)
                until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
                self.say(json.dumps({"AccessKeyId": KEY, "SecretAccessKey": SECRET, "Expiration": until}))

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at_end(server.shutdown)


def test_credentials(weed, monkeypatch):
    "keys come from a profile, a container or an instance's role, and are fetched again before they expire"
    use(monkeypatch, weed.url, key=None)
    with open(TESTDIR + "/home/credentials", "w") as f:
        f.write(f"[default]\naws_access_key_id = x\n\n[train]\naws_access_key_id={KEY}\naws_secret_access_key = {SECRET}\n")
    with open(TESTDIR + "/home/train", "w") as f:
        f.write(f"[profile train]\nregion = eu-west-1\nendpoint_url = {weed.url}\n")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", TESTDIR + "/home/credentials")
    monkeypatch.setenv("AWS_CONFIG_FILE", TESTDIR + "/home/train")
    assert "alone" in agent_refused()
    monkeypatch.setenv("AWS_PROFILE", "train")
    run = Run(weed)
    run.publish(1)
    run.agent.end()

    use(monkeypatch, weed.url, key=None)
    roles = Roles(seconds=6)
    with open(TESTDIR + "/home/token", "w") as f:
        f.write("for the container\n")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", roles.url + "/creds")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", TESTDIR + "/home/token")
    mount = Mount(url_of(run.place))
    run.same(mount, 1)
    wait_for(lambda: len(roles.asked) >= 2, "the keys to be fetched again")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://192.0.2.1/creds")
    assert "credentials in clear text" in agent_refused()

    use(monkeypatch, weed.url, key=None)
    roles = Roles(seconds=3600)
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", roles.url)
    run.same(Mount(url_of(run.place)), 1)
    assert roles.asked == ["/latest/meta-data/iam/security-credentials/trainer"]


def test_save(weed):
    "wsync save writes versions of a mount into a store; gs:// is the same by HMAC keys; only root's mount uses its keys"
    run = Run(weed)
    run.publish(1)
    run.publish(2)
    mount = Mount(run.agent.url)
    run.same(mount, 1, 2)
    place = prefix()
    wsync("save", mount.file("actor", 1), mount.file("actor", 2), url_of(place))
    assert {v: e["anchor"] for v, e in listing(weed, place).items()} == {1: True, 2: False}
    other = Mount(f"gs://{BUCKET}/{place}/")
    run.same(other, 2, 1)


def test_beside_an_agent(weed):
    "named after its agent, the store has what the agent no longer holds, and all of it when the agent has ended"
    run = Run(weed, "--archive-every", "2", "--slots", "2")
    for v in range(1, 6):
        run.publish(v)
    mount = Mount(f"{run.agent.url},{url_of(run.place)}")
    run.same(mount, 5, 1)
    run.agent.end()
    wait_for(lambda: f"source {run.agent.url} down" in mount.text("status"), "the mount to see that")
    run.same(mount, 2, 4)
    background = unique("mnt")
    os.makedirs(background)
    wsync("mount", "-o", f"state={TESTDIR}/state", url_of(run.place), background)
    at_end(wsync, "umount", background)
    wsync("wait", "--mount", background, "actor", 5, "--state", "known", "--timeout", "30")
    assert tensors_of(background + "/actor/5/model.safetensors") == tensors_of(run.folders[5] + "/model.safetensors")
