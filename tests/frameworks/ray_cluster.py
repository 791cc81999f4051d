"""The environment in which tests start Ray on this host: apart from its user's, told to nobody, and patient, since a busy machine starts its
workers slowly."""
import os

from package import package

HERE = os.path.dirname(os.path.abspath(__file__))


def environment(home, *folders):
    """home: a folder, which is made; folders: more of them for PYTHONPATH, beside wsync's and this one."""
    os.makedirs(home)
    return {"HOME": home, "PYTHONPATH": os.pathsep.join(filter(None, (package(), HERE, *folders, os.environ.get("PYTHONPATH")))),
            "RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0", "RAY_worker_register_timeout_seconds": "600",
            "RAY_health_check_timeout_ms": "120000", "RAY_health_check_failure_threshold": "20", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
