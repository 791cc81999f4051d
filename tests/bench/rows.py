"""Rows in the format that tests/bench/run collects, for the Python benchmarks."""
import json
import os


def row(name, value, unit, baseline, target, at_most=False):
    """target: None of what is only shown, as a ratio that is the machine's own."""
    ratio = value / baseline if baseline else value
    short = target is not None and (ratio > target if at_most else ratio < target)
    wanted = "no target" if target is None else f"target {'<=' if at_most else '>='} {target:<6}"
    print(f"  {name:22} {value:10.3f} {unit:5}  baseline {baseline or 0:9.3f}  ratio {ratio:7.3f}  {wanted} {'short' if short else ''}", flush=True)
    with open(os.environ["WSYNC_BENCH_ROWS"], "a") as f:
        f.write(json.dumps({"name": name, "value": value, "unit": unit, "baseline": baseline, "ratio": ratio, "target": target,
                            "better": "lower" if at_most else "higher"}) + "\n")
