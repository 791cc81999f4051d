# shellcheck shell=bash
# What shell tests share: results as TAP, bounded waits, and an end that ends whatever the test started.
#
#   #!/usr/bin/env bash
#   # What this test shows, and why it could be otherwise.
#   # timeout: 60
#   # sanitizers: address thread
#   . "$(dirname "$0")/../lib.sh"
#   need_mount
#   start_agent
#   check "a version can be published" "$WSYNC" publish --model m --version 1 "$TESTDIR/checkpoint"
#   start_mount "unix:$AGENT_SOCKET"
#   is "its bytes are the same" "$(cat "$MOUNT/m/1/config.json")" "$(cat "$TESTDIR/checkpoint/config.json")"
#
# tests/run sets WSYNC, BUILD, PYTHON, TESTDIR and SANITIZER; called by hand, a test makes itself a folder.
set -uo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
: "${BUILD:=$ROOT/build}" "${WSYNC:=$BUILD/wsync}" "${PYTHON:=$("$ROOT/.ci/python")}" "${SANITIZER:=}"
own_folder=
[ -n "${TESTDIR:-}" ] || own_folder=$(mktemp -d /tmp/wsync-test.XXXXXX)
: "${TESTDIR:=$own_folder}"
export ROOT BUILD WSYNC PYTHON TESTDIR SANITIZER
failed=0
pids=()
mounts=()

ok() { echo "ok - $1"; }
not_ok() # NAME [DETAIL]
{
    failed=$((failed + 1))
    echo "not ok - $1"
    [ $# -lt 2 ] || sed 's/^/# /' <<<"$2"
}
skip() { echo "ok - $1 # SKIP $2"; }               # NAME REASON
skip_all() { skip "$(basename "$0")" "$1"; exit 0; } # REASON

# NAME COMMAND...: the command succeeds / fails. Its output is shown where it does not do so.
check() { local name=$1 out; shift
    if out=$("$@" 2>&1 </dev/null); then ok "$name"; else not_ok "$name" "status $? of: $*
$out"; fi; }
check_fails() { local name=$1 out; shift
    if out=$("$@" 2>&1 </dev/null); then not_ok "$name" "this should have failed: $*
$out"; else ok "$name"; fi; }
is() { if [ "$2" = "$3" ]; then ok "$1"; else not_ok "$1" "got      '$2'
expected '$3'"; fi; }                              # NAME GOT EXPECTED
has() { case $2 in *"$3"*) ok "$1" ;; *) not_ok "$1" "'$3' is not in
$2" ;; esac; }                                     # NAME TEXT PART

wait_for() # SECONDS COMMAND...: until it succeeds, at most that long
{
    local end=$((SECONDS + $1 * (${#SANITIZER} ? 3 : 1))); shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.05
    done
}

answered() { local pid=$1; shift; gone "$pid" || "$@"; }
started() # PID SECONDS COMMAND...: as wait_for, but a process that has ended is not waited for
{
    local pid=$1 seconds=$2; shift 2
    wait_for "$seconds" answered "$pid" "$@" && ! gone "$pid"
}

free_port() { "$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

start() # LOG COMMAND...: in the background, ended with the test; its pid is $!
{
    local log=$TESTDIR/$1.log; shift
    "$@" >>"$log" 2>&1 </dev/null &
    pids+=($!)
}
stop() # PID: asks it to end, insists after 10 s
{
    kill "$1" 2>/dev/null || return 0
    wait_for 10 gone "$1" || kill -9 "$1" 2>/dev/null
    wait "$1" 2>/dev/null
}
gone() { ! kill -0 "$1" 2>/dev/null || grep -q '^State:.*Z' "/proc/$1/status" 2>/dev/null; }
give_up() { not_ok "$1" "$(tail -n 20 "$TESTDIR/$2.log")"; exit 1; } # NAME LOG

need_mount()
{
    [ -c /dev/fuse ] || skip_all "there is no /dev/fuse"
    [ "$(id -u)" = 0 ] || command -v fusermount3 >/dev/null || skip_all "mounting needs root or fusermount3"
}
need_python() { "$PYTHON" -c "import $1" 2>/dev/null || skip_all "the Python package $1 is not installed"; }
need() { local c; for c; do command -v "$c" >/dev/null || skip_all "$c is not installed"; done; }

start_agent() # [OPTIONS]: sets AGENT_URL, AGENT_SOCKET, AGENT_PID and exports WSYNC_AGENT
{
    local port; port=$(free_port)
    AGENT_URL=http://127.0.0.1:$port AGENT_SOCKET=$TESTDIR/agent-$port.sock
    start agent "$WSYNC" agent --listen "127.0.0.1:$port" --socket "$AGENT_SOCKET" "$@"
    AGENT_PID=$!
    started "$AGENT_PID" 20 curl -fsS -m 2 "$AGENT_URL/healthz" || give_up "the agent answers" agent
    export WSYNC_AGENT=unix:$AGENT_SOCKET
}
start_mount() # SOURCE [OPTIONS]: sets MOUNT and MOUNT_PID and exports WSYNC_MOUNT; more than one may be started
{
    local source=$1; shift
    MOUNT=$TESTDIR/mount-${#mounts[@]}
    mkdir -p "$MOUNT"
    mounts+=("$MOUNT")
    start mount "$WSYNC" mount -f "$@" "$source" "$MOUNT"
    MOUNT_PID=$!
    started "$MOUNT_PID" 20 test -e "$MOUNT/ctl" || give_up "the mount answers" mount
    export WSYNC_MOUNT=$MOUNT
}
start_engine() # PATH [OPTIONS]: sets ENGINE_URL and ENGINE_PID
{
    local path=$1 port; shift; port=$(free_port)
    ENGINE_URL=http://127.0.0.1:$port
    start engine "$WSYNC" engine --listen "127.0.0.1:$port" --model-path "$path" "$@"
    ENGINE_PID=$!
    started "$ENGINE_PID" 60 curl -fsS -m 2 "$ENGINE_URL/health" || give_up "the engine answers" engine
}

at_end()
{
    local code=$? m i
    trap - EXIT INT TERM
    for m in "${mounts[@]}"; do
        if grep -q " $m " /proc/self/mounts; then
            timeout 20 "$WSYNC" umount "$m" >/dev/null 2>&1 || umount -l "$m" 2>/dev/null || fusermount3 -uz "$m"
        fi
    done
    for ((i = ${#pids[@]} - 1; i >= 0; i--)); do stop "${pids[i]}"; done
    if ((code || failed)); then
        for m in "$TESTDIR"/*.log; do
            [ -s "$m" ] && { echo "# the end of $(basename "$m"):"; tail -n 20 "$m" | sed 's/^/#   /'; }
        done
    fi
    [ -z "$own_folder" ] || rm -rf --one-file-system "$own_folder"
    ((code)) || code=$((failed ? 1 : 0))
    exit "$code"
}
trap at_end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
