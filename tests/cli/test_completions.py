# timeout: 60, takes: 5
"""Completions of bash, zsh and fish: what each offers for words that are typed."""
from world import *

FOLDER = ROOT + "/mount-helpers/completions/"

BASH = """source "$FILE"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_wsync
printf '%s\\n' "${COMPREPLY[@]}"
"""
# The widget's own functions want a terminal: these print what they are given, if it begins with the word that is completed.
ZSH = """compadd() { print -l -- "$@" }
_files() { print -l -- $~words[CURRENT]* }
_describe() { print -l -- ${${(P)2}%%:*} }
words=("$@") CURRENT=$#
source "$FILE" | while read -r word; do [[ $word == ${words[CURRENT]}* ]] && print -r -- $word; done
true
"""
FISH = """source "$FILE"
complete -C "$argv" | string replace -r '\\t.*' ''
true
"""


def completed(shell, *words):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    file = {"bash": "wsync.bash", "zsh": "_wsync", "fish": "wsync.fish"}[shell]
    env = {**os.environ, "FILE": FOLDER + file, "PATH": os.path.dirname(WSYNC) + ":" + os.environ["PATH"], "HOME": TESTDIR}
    script = {"bash": BASH, "zsh": ZSH, "fish": FISH}[shell]
    start = {"bash": ["bash", "--norc", "-c", script, "bash"], "zsh": ["zsh", "-f", "-c", script, "zsh"], "fish": ["fish", "--no-config", "-c", script]}[shell]
    r = subprocess.run([*start, *([" ".join(words)] if shell == "fish" else words)], env=env, capture_output=True, text=True, timeout=60 * SLOW, cwd=FOLDER)
    assert r.returncode == 0 and not r.stderr, r
    return set(r.stdout.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions(shell):
    "commands, options of a command, words of it, and files"
    assert completed(shell, "wsync", "pu") == {"publish", "pull"}
    assert {"agent", "mount", "doctor", "share"} <= completed(shell, "wsync", "")
    assert completed(shell, "wsync", "pull", "--a") == {"--async"}
    assert {"--mount", "--async", "--quiet"} <= completed(shell, "wsync", "pull", "--")
    assert "gpu" in completed(shell, "wsync", "doctor", "g")
    assert {"add", "list", "remove"} <= completed(shell, "wsync", "token", "")
    assert {"forget", "remove"} <= completed(shell, "wsync", "model", "")
    assert "wsync.bash" in completed(shell, "wsync", "publish", "wsync.b")


def test_every_command_is_offered():
    "bash offers what wsync help --list lists"
    assert set(wsync("help", "--list").stdout.split()) <= completed("bash", "wsync", "")
