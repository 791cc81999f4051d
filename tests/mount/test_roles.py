# beside others
# timeout: 240, takes: 25
# sanitizers: address
"""Roles: each route of an agent asks for its role, by http, by https with a certificate and by the unix socket, and answers nobody else."""
import os
import re
import ssl

import pytest

from certificates import Authority
from clients import Http, Unix
from ranks import Rank
from world import *

ROLES = ("read", "report", "release", "publish", "node", "admin")
OF_GROUP = {"read", "report", "release", "publish"}  # what an account of --group has on the socket
NOBODY = 65534


def routes():
    """{(method, pattern): (carrier, role)}, as the agent prints them."""
    lines = [line.split() for line in wsync("agent", "--print-routes").stdout.splitlines()[1:]]
    assert all(len(line) == 4 for line in lines) and len(lines) > 30, lines
    return {(method, pattern): (carrier, role) for carrier, role, method, pattern in lines}


def path_of(pattern, model="actor"):
    """A path that is quickly answered and changes little."""
    path = pattern.replace("{model}", model).replace("{version}", "1").replace("{file}", "config.json").replace("{id}", "999")
    return path + {"events": "?timeout_ms=0&since=0", "delta": "?base=9&timeout_ms=0"}.get(path.rsplit("/", 1)[1], "")


def body_of(pattern, model="actor"):
    if pattern == "/v1/release":
        return {"models": {model: 1}}
    return {"mount": "HOST:/m"}


def tokens_file(lines):
    """A tokens file with {name: "roles [models]"}; returns it and {name: token}."""
    file, secrets = unique("tokens"), {}
    for name, what in lines.items():
        role, _, models = what.partition(" ")
        secrets[name] = wsync("token", "add", name, "--role", role, *(["--model", models] if models else []), "--file", file).stdout.strip()
    return file, secrets


def check(client, carrier, roles, who, model="actor", table=None):
    """Asks for each route: 403 exactly where the role lacks, or, with roles None, 401 where one is asked for."""
    for (method, pattern), (carries, role) in (table or routes()).items():
        if carries not in (carrier, "both"):
            continue
        status, text = client.ask(method, path_of(pattern, model), body_of(pattern, model) if method == "POST" else None)
        want = {200} if role == "open" else {401} if roles is None else set() if role in roles else {403}
        refused = status if status in (401, 403) else 200 if role == "open" else None
        assert refused in (want or {None}), f"{who}: {method} {pattern} asks for {role}: {status} {text}"


def world(*more, **lines):
    """An agent with actor/1 and critic/1, and a token for each single role, and for each of `lines`."""
    file, secrets = tokens_file({**{role: role for role in ROLES}, **lines})
    agent = Agent("--tokens", file, *more)
    folder = checkpoint(SMALL)
    for model in ("actor", "critic"):
        agent.publish(model, 1, folder)
    return agent, secrets


def test_tokens():
    "by http a token of each single role is served by its routes, and by no others; without a token, or with a wrong one, none is"
    agent, secrets = world()
    for role in ROLES:
        check(Http(agent.url, secrets[role]), "http", {role}, role)
    check(Http(agent.url), "http", None, "no token")
    check(Http(agent.url, "wsync_" + "A" * 43), "http", None, "a wrong token")
    assert Http(agent.url, secrets["admin"]).ask("GET", "/v1/models")[0] == 403
    text = Http(agent.url, secrets["read"]).ask("POST", "/v1/actor/1/release", {})[1]
    assert "release" in text and "read has read" in text, text


def test_models_of_a_token():
    "a token for some models is refused others, what is of all models, and sees only its own in the listing"
    agent, secrets = world(some=",".join(ROLES) + " actor*")
    some = Http(agent.url, secrets["some"])
    for path in ("/v1/models", "/v1/events?timeout_ms=0&since=0"):
        assert [m["name"] for m in json.loads(some.ask("GET", path)[1])["models"]] == ["actor"]
    for (method, pattern), (carrier, role) in routes().items():
        if carrier == "unix" or role == "open":
            continue
        of_model = "{model}" in pattern
        filters = pattern in ("/v1/models", "/v1/events", "/healthz")  # which name no other models
        for model in ("actor", "critic"):
            status, text = some.ask(method, path_of(pattern, model), body_of(pattern, model) if method == "POST" else None)
            allowed = filters or (model == "actor" and (of_model or pattern == "/v1/release"))
            assert (status != 403) == allowed, f"{method} {pattern} of {model}: {status} {text}"


def test_certificates():
    "by https a certificate's name is looked up in the tokens file, and one that is not there has no role"
    authority = Authority()
    cert, key = authority.certificate()
    file, sock = unique("tokens"), unique("agent") + ".sock"
    for role in ROLES:
        wsync("token", "add", f"{role}.lab", "--role", role, "--certificate", "--file", file)
    agent = Process("agent", "--listen", "127.0.0.1:0", "--socket", sock, "--tokens", file, "--tls-cert", cert, "--tls-key", key,
                    "--tls-client-ca", authority.file)
    wait_for(lambda: "serving" in agent.text() or not agent.alive(), "the agent")
    assert agent.alive(), agent.text()
    url = f"https://127.0.0.1:{re.search(r'port=([0-9]+)', agent.text())[1]}"
    wsync("publish", "--agent", f"unix:{sock}", "-m", "actor", "-v", "1", checkpoint(SMALL))

    def client(*names):
        context = ssl.create_default_context(cafile=authority.file)
        if names:
            context.load_cert_chain(*authority.certificate(*names))
        return Http(url, context=context)

    for role in ROLES:
        check(client(f"{role}.lab"), "http", {role}, role)
    check(client("stranger.lab"), "http", set(), "a name without a line")
    check(client("stranger.lab", "read.lab"), "http", {"read"}, "two names")
    check(client(), "http", None, "no certificate")


def by_another_account(call):
    """Calls it as the account nobody; raises what it raised."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            call()
            code = 0
        except BaseException as e:  # the child must not return into pytest
            os.write(2, f"{type(e).__name__}: {e}\n".encode())
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "see above"


def test_accounts_of_the_socket():
    "by the socket root has all roles; an account of --group has those of clients and publish, and is no node and no operator"
    if os.geteuid() != 0:
        pytest.skip("needs root to be another account")
    import grp
    agent = Agent("--tokens", tokens_file({"x": "read"})[0], "--group", grp.getgrgid(NOBODY).gr_name)
    agent.publish("actor", 1, checkpoint(SMALL))
    os.chmod(os.path.dirname(agent.sock), 0o711)
    os.chdir(os.path.dirname(agent.sock))  # the folders above need not let the account in
    at_end(os.chdir, ROOT)
    check(Unix(agent.sock), "unix", set(ROLES), "root")
    table = routes()
    by_another_account(lambda: check(Unix(os.path.basename(agent.sock)), "unix", OF_GROUP, "nobody", table=table))


def test_no_other_routes():
    "what the sources register is what is printed, and what is not printed is not served"
    registered = set()
    for folder in ("transports/protocol", "backends/trainer/agent"):
        for place, _, names in os.walk(os.path.join(ROOT, folder)):
            for text in (open(os.path.join(place, n)).read() for n in names if n.endswith(".c")):
                found = re.findall(r'(?:WS_API_ROUTE\w*\(|\{)\s*"(GET|POST)",\s*"([^"]+)"\s*(WS_PROOF_VERB)?\s*,', text)
                registered |= {(m, p + ("signature" if verb else "")) for m, p, verb in found}
                registered |= {("POST", "/v1/local/" + verb) for verb in re.findall(r'WS_RANK_ROUTE\("([^"]+)", [A-Z]+,', text)}
    table = routes()
    assert registered | {("GET", "/"), ("GET", "/healthz"), ("POST", "/healthz")} == set(table)
    agent, secrets = world(all=",".join(ROLES))
    clients = {"http": Http(agent.url, secrets["all"]), "unix": Unix(agent.sock)}
    more = {("GET", "/v1/{model}"), ("POST", "/v1/{model}/{version}"), ("GET", "/v1/local/begin"), ("GET", "/v1/{model}/node"), ("GET", "/v1/none"),
            ("POST", "/v1/models/"), ("GET", "//v1/status"), ("GET", "/v1/status/"), ("GET", "/v1//status"), ("GET", "/metrics/x")}
    for carrier, client in clients.items():
        other = {"GET": "POST", "POST": "GET"}
        for method, pattern in {(other[m], p) for m, p in table if "/local/" not in p} | more:
            if table.get((method, pattern), ("none",))[0] in (carrier, "both"):
                continue
            status, text = client.ask(method, path_of(pattern), {} if method == "POST" else None)
            assert status >= 400, f"{carrier}: {method} {pattern} is served: {text}"
        for (method, pattern), (carries, _) in table.items():
            if carries not in (carrier, "both"):
                status, text = client.ask(method, path_of(pattern), {} if method == "POST" else None)
                assert status >= 400, f"{carrier}: {method} {pattern} is served, and is of {carries}: {text}"


def mounts_of(agent, token):
    return {(m["mount"], m.get("identity")): m for m in json.loads(Http(agent.url, token).ask("GET", "/v1/actor/mounts")[1])}


def test_reports_under_another_name():
    "what one identity reports of a mount no other identity can change, remove or pass off as its own"
    agent, secrets = world(a="read,report", b="read,report")
    a, b = Http(agent.url, secrets["a"]), Http(agent.url, secrets["b"])
    assert a.ask("POST", "/v1/actor/mounts", {"mount": "HOST:M", "follows": True, "engines": 1})[0] == 200
    assert a.ask("POST", "/v1/actor/1/prepared", {"mount": "HOST:M"})[0] == 200
    before = mounts_of(agent, secrets["read"])["HOST:M", "a"]
    assert before["prepared"] and before["follows"]
    for path, body in (("/v1/actor/mounts", {"mount": "HOST:M", "gone": True}), ("/v1/actor/1/failed", {"mount": "HOST:M", "error": "no"}),
                       ("/v1/actor/1/failed?as=a", {"mount": "HOST:M", "error": "no"}), ("/v1/actor/mounts?as=a", {"mount": "HOST:M", "gone": True})):
        assert b.ask("POST", path, body)[0] == (403 if "as=" in path else 200), path
        assert mounts_of(agent, secrets["read"])["HOST:M", "a"] == before, path
    assert set(mounts_of(agent, secrets["read"])) <= {("HOST:M", "a"), ("HOST:M", "b")}


def test_forwarded_reports():
    "a report that a secondary agent forwards is its reporter's, and only an identity with the role node names another"
    primary, secrets = world(second="read,report,release,node")
    token, file = unique("token"), unique("tokens")
    with open(token, "w") as f:
        f.write(secrets["second"] + "\n")
    mine = wsync("token", "add", "a", "--role", "read,report", "--file", file).stdout.strip()
    secondary = Agent("--tokens", file, "--primary", primary.url, "--primary-token-file", token)
    a = Http(secondary.url, mine)
    assert a.ask("POST", "/v1/actor/1/fetched", {"mount": "HOST:M"})[0] == 200
    assert mounts_of(primary, secrets["read"])["HOST:M", "a"]["fetched"]
    assert a.ask("POST", "/v1/actor/1/release", {})[0] == 403
    assert Http(primary.url, secrets["report"]).ask("POST", "/v1/actor/1/failed?as=a", {"mount": "HOST:M", "error": "no"})[0] == 403
    b = Http(secondary.url, wsync("token", "add", "b", "--role", "read,report", "--file", file).stdout.strip())
    wait_for(lambda: b.ask("GET", "/v1/models")[0] == 200, "the secondary to know b")
    gone = {"mount": "HOST:M", "gone": True}
    assert b.ask("POST", "/v1/actor/mounts?as=a", gone)[0] == 403
    assert b.ask("POST", "/v1/actor/mounts?x=1&as=", gone)[0] == 400  # a name is not empty
    assert b.ask("POST", "/v1/actor/mounts?x=%23&who=a", gone)[0] == 200  # b's own, which is not there
    found = mounts_of(primary, secrets["read"])
    assert found["HOST:M", "a"]["fetched"] and not found["HOST:M", "a"]["error"] and set(found) == {("HOST:M", "a")}, found


def test_models_of_a_release():
    "who may use some models ends no release of others, does not see their names, and is counted when refused"
    agent, secrets = world(some="read,release critic*", all="read,release")
    for model in ("actor", "critic"):  # a mount that never prepares
        assert Http(agent.url, secrets["report"]).ask("POST", f"/v1/{model}/mounts", {"mount": "HOST:M", "follows": True})[0] == 200
    some, everything = Http(agent.url, secrets["some"]), Http(agent.url, secrets["all"])
    refused = 'wsync_agent_refused_total{status="403"} '
    assert refused + "0" in everything.ask("GET", "/metrics")[1]
    assert some.ask("POST", "/v1/release", {"models": {"actor": 1}})[0] == 403
    assert refused + "1" in everything.ask("GET", "/metrics")[1]
    status, text = everything.ask("POST", "/v1/release", {"models": {"actor": 1, "critic": 1}})
    assert status == 200, text
    told = json.loads(everything.ask("GET", "/v1/releases")[1])[0]["mounts"]
    assert {(m["mount"], m["identity"]) for m in told} == {("HOST:M", "report")}, told
    assert some.ask("POST", "/v1/critic/1/release", {})[0] == 403
    assert json.loads(everything.ask("GET", "/v1/releases")[1])[0]["phase"] == "preparing"
    assert [m["release"]["models"] for m in json.loads(some.ask("GET", "/v1/models")[1])["models"]] == [["critic"]]
    assert Http(agent.url, secrets["report"]).ask("POST", "/v1/critic/1/failed", {"mount": "HOST:M", "error": "no"})[0] == 200
    assert "HOST:M (identity report) cannot take critic/1" in json.loads(everything.ask("GET", "/v1/releases")[1])[0]["why"]


def test_claims_of_a_node():
    "with the role node: a version far beyond the newest is no version, and made-up names of models do not fill the table; without it nothing"
    agent, secrets = world()
    report, node = Http(agent.url, secrets["report"]), Http(agent.url, secrets["node"])
    run = json.loads(Http(agent.url, secrets["read"]).ask("GET", "/v1/models")[1])["models"][0]["run"]
    for body in ({}, {"gave_up": 1, "given_up": {"version": 2, "run": run}}):
        assert report.ask("POST", "/v1/actor/node", {"node": "x", "id": 7, "ranks": [], **body})[0] == 403
    for claim in ({"version": 1 << 62, "version_run": run, "round": 1, "committed": True, "sealed": True},
                  {"gave_up": 1, "given_up": {"version": 1 << 62, "run": run}}):
        status, text = node.ask("POST", "/v1/actor/node", {"node": "x", "id": 7, "ranks": [], **claim})
        assert status == 400 and ("so far ahead" in text), (claim, status, text)
    assert node.ask("POST", "/v1/actor/node", {"node": "x", "id": 7, "ranks": [], "version": 2, "version_run": run, "round": 1})[0] == 200
    agent.publish("actor", 2, checkpoint(SMALL))

    assert node.ask("POST", "/v1/made-up/node", {"node": "x", "id": 7, "ranks": []})[0] == 404
    statuses = [node.ask("POST", f"/v1/made-up-{i}/node", {"node": "x", "id": 7, "ranks": [[0, 1]], "world_size": 1})[0] for i in range(40)]
    assert statuses.count(200) == 32 and set(statuses[32:]) == {413}, statuses
    agent.publish("new", 1, checkpoint(SMALL))


def names_of(agent):
    return [m["name"] for m in json.loads(Unix(agent.sock).ask("GET", "/v1/models")[1])["body"]["models"]]


def slot_bytes(agent):
    return json.loads(Unix(agent.sock).ask("GET", "/v1/status")[1])["body"]["slot_bytes"]


def test_removing_a_model():
    "a model that no rank writes is listed no longer and its memory is free; one with ranks, or whose memory a process has, is left"
    agent = Agent()
    folder = checkpoint(SMALL)
    for model in ("actor", "critic"):
        agent.publish(model, 1, folder)
    before, address = slot_bytes(agent), f"unix:{agent.sock}"
    rank = Rank(agent, "actor", 0, 1, 1 << 12)
    rank.ask("offload 2")
    rank.ask("wait 2")
    r = wsync("model", "remove", "--agent", address, "actor", check=False)
    assert r.returncode == 1 and "ranks of actor are registered" in r.stderr, r.stderr
    rank.end()
    reader = Unix(agent.sock)
    assert reader.ask("GET", "/v1/actor/2/map")[0] in (200, 422, 501)
    if "pid" in json.dumps(json.loads(Unix(agent.sock).ask("GET", "/v1/status")[1])["body"]["models"][0]["slots"]):
        r = wsync("model", "remove", "--agent", address, "actor", check=False)
        assert r.returncode == 1 and "in use by" in r.stderr, r.stderr
    reader.socket.close()

    def removed():
        r = wsync("model", "remove", "--agent", address, "actor", check=False)
        return r.returncode == 0 or "in use by" not in r.stderr and r
    assert wait_for(removed, "the reader's lease to end") is True
    assert names_of(agent) == ["critic"] and slot_bytes(agent) < before
    r = wsync("model", "remove", "--agent", address, "actor", check=False)
    assert r.returncode == 1 and "no model 'actor'" in r.stderr, r.stderr
    agent.publish("actor", 1, folder)  # the name begins anew
    assert names_of(agent) == ["actor", "critic"]


def test_removing_a_mount():
    "a mount that is silent is forgotten; one that is not, or is reported by several, is left"
    agent, secrets = world(a="read,report", b="read,report")
    admin = Http(agent.url, secrets["admin"])
    for name in "ab":
        assert Http(agent.url, secrets[name]).ask("POST", "/v1/actor/mounts", {"mount": "HOST:M", "follows": True})[0] == 200
    assert admin.ask("POST", "/v1/actor/mounts/remove", {"mount": "HOST:M"})[0] == 400  # whose?
    assert admin.ask("POST", "/v1/actor/mounts/remove", {"mount": "HOST:N"})[0] == 404
    assert admin.ask("POST", "/v1/actor/mounts/remove", {})[0] == 400
    status, text = admin.ask("POST", "/v1/actor/mounts/remove", {"mount": "HOST:M", "identity": "a"})
    assert status == 409 or "not silent" in text, (status, text)
    wait_for(lambda: mounts_of(agent, secrets["read"])["HOST:M", "a"]["silent"], "the mount to be silent", 60)
    wsync("model", "forget", "--agent", f"unix:{agent.sock}", "--identity", "a", "actor", "HOST:M")
    assert ("HOST:M", "a") not in mounts_of(agent, secrets["read"])
    wait_for(lambda: admin.ask("POST", "/v1/actor/mounts/remove", {"mount": "HOST:M"})[0] == 200, "the other one to be silent, too", 60)
    assert not mounts_of(agent, secrets["read"])
