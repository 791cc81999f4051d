# beside others
# timeout: 120, takes: 10
"""Slurm's prolog and epilog, as slurmd calls them: with the job in the environment."""

from driver import NOBODY
from world import *

FOLDER = ROOT + "/mount-helpers/slurm/"


class Node:
    """Jobs of nobody's, with the settings `run` of a trainer."""

    def __init__(self, source):
        self.settings, self.root = unique("settings"), open_to_all()
        os.makedirs(self.settings)
        with open(self.settings + "/run.env", "w") as f:
            f.write(f"SOURCE={source}\nOPTIONS=keep=2\n")

    def at(self, job):
        return f"{self.root}/{job}"

    def call(self, script, job, comment):
        env = {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": str(NOBODY), "SLURM_JOB_COMMENT": comment, "WSYNC_SLURM_SETTINGS": self.settings,
               "WSYNC_SLURM_ROOT": self.root, "PATH": os.path.dirname(WSYNC) + ":" + os.environ["PATH"]}
        r = subprocess.run(["sh", FOLDER + script], env=env, capture_output=True, text=True, timeout=90 * SLOW, stdin=subprocess.DEVNULL)
        assert r.returncode == 0, r  # another status drains the node

    def prolog(self, job, comment):
        at_end(lambda: os.path.ismount(self.at(job)) and wsync("umount", "--lazy", self.at(job)))
        self.call("wsync-prolog", job, comment)
        return os.path.ismount(self.at(job))

    def epilog(self, job, comment=""):
        self.call("wsync-epilog", job, comment)


def test_job():
    "a job finds its mount, which its user alone reads and commands, and the epilog takes it away, also while it is busy"
    need_fuse()
    agent, folder = Agent(), checkpoint(SMALL, seed=1)
    agent.publish("actor", 1, folder)
    node = Node(agent.url)
    assert node.prolog(7, "wsync:run")
    weights = node.at(7) + "/actor/1/model.safetensors"
    wait_for(lambda: os.path.exists(weights), "the version")

    def command():
        with open(node.at(7) + "/actor/ctl", "w") as f:
            f.write("pull 1\n")

    assert as_user(NOBODY, lambda: open(weights, "rb").read()) == as_user(NOBODY, command) == 0
    assert as_user(1, lambda: open(weights, "rb").read()) == as_user(1, command) == errno.EACCES
    assert tensors_of(weights) == tensors_of(folder + "/model.safetensors")
    with open(weights, "rb") as f:
        node.epilog(7)
        assert not os.path.exists(node.at(7)) and len(f.read()) > 0
    node.epilog(7)


@pytest.mark.parametrize("comment", ["", "of mine", "wsync:", "wsync:other", "wsync:../run", "wsync:run;id"])
def test_other_jobs(comment):
    "a job that asks for none, or for settings that are not there, has no mount, and the node stays in service"
    need_fuse()
    node = Node("http://127.0.0.1:9")
    assert not node.prolog(8, comment)
    node.epilog(8)


def test_trainer_is_away():
    "a job whose trainer does not answer yet has its mount"
    need_fuse()
    node = Node(f"http://127.0.0.1:{free_port()}")
    assert node.prolog(9, "wsync:run")
    node.epilog(9)
    assert not os.path.exists(node.at(9))
