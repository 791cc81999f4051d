"""Rows in the format that tests/bench/run collects, for the Python benchmarks."""
import json
import os


def row(name, value, unit, baseline, target, at_most=False):
    ratio = value / baseline if baseline else value
    good = ratio <= target if at_most else ratio >= target
    print(f"  {name:22} {value:10.3f} {unit:5}  baseline {baseline or 0:9.3f}  ratio {ratio:7.3f}  target {'<=' if at_most else '>='} {target:<6} "
          f"{'' if good else 'short'}", flush=True)
    with open(os.environ["WSYNC_BENCH_ROWS"], "a") as f:
        f.write(json.dumps({"name": name, "value": value, "unit": unit, "baseline": baseline, "ratio": ratio, "target": target,
                            "better": "lower" if at_most else "higher"}) + "\n")
