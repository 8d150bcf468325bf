"""`lattice serve` and sentence-transformers behind FastAPI under the same load, in turns, beside `lattice bench` of the same texts.

usage: serving.py MODEL [--texts FILE] [--connections 256] [--seconds 5] [--rounds 3] [--threads 2] [--alone] [--build build] [--out DIR]

    serving.py MODEL --rounds 1 --seconds 60               the long load
    serving.py MODEL --rounds 1 --seconds 600 --alone      a soak: memory of the server in the second and the last third

FILE (bench/data/mixed-10k.jsonl.gz) holds a JSON string a line; the first 90 letters of 300 of them are sent. The rival needs fastapi, uvicorn and sentence-transformers (bench/requirements.txt); without them, or with --alone, it is
left out. p99 is given in batches of mean time, too."""

import argparse
import gzip
import importlib.util
import json
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).parent


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port, seconds=300):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).read()
            return
        except OSError:
            time.sleep(0.2)
    sys.exit(f"nothing answers on port {port}")


def memory_kib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])


def run_load(command, pid):
    """The load's own result, with the most memory that process `pid` had in the second and in the last third of it."""
    load = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    seen = []
    while load.poll() is None:
        seen.append(memory_kib(pid))
        time.sleep(0.2)
    if load.returncode != 0:
        sys.exit(f"{command[0]} ended with {load.returncode}")
    third = len(seen) // 3
    return {**json.loads(load.stdout.read()), "memory_mb": [max(part) / 1024 for part in (seen[third:2 * third + 1], seen[2 * third:])]}


def batches(port):
    """Seconds in batches and their number, so far."""
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    value = {line.split()[0]: float(line.split()[1]) for line in metrics.splitlines() if line.startswith("lattice_") and "{" not in line}
    return value["lattice_engine_busy_seconds_total"], value["lattice_batch_tokens_count"]


def short_texts(file):
    texts = [" ".join(json.loads(line).split())[:90] for line in file]
    return [text for text in texts if len(text) > 20][:300]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--texts", default=str(HERE / "data" / "mixed-10k.jsonl.gz"))
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--build", default="build")
    parser.add_argument("--out")
    a = parser.parse_args()
    folder = tempfile.TemporaryDirectory()
    texts = pathlib.Path(folder.name) / "texts.txt"
    with gzip.open(a.texts, "rt", encoding="utf-8") as file:
        texts.write_text("\n".join(short_texts(file)) + "\n", encoding="utf-8")
    lattice, load = f"{a.build}/lattice", f"{a.build}/bench_load"
    ports = {"lattice": free_port()}
    # Texts come again in every round: without a cache both compute all of them.
    processes = [subprocess.Popen([lattice, "serve", "-m", a.model, "--port", str(ports["lattice"]), "--cache-entries", "0",
                                   "--threads", str(a.threads)], stdout=subprocess.DEVNULL)]
    if not a.alone and all(importlib.util.find_spec(name) for name in ("fastapi", "uvicorn", "sentence_transformers")):
        ports["fastapi"] = free_port()
        processes.append(subprocess.Popen([sys.executable, str(HERE / "st_server.py"), a.model, str(ports["fastapi"]), str(a.threads)]))
    pids = dict(zip(ports, (process.pid for process in processes)))
    try:
        for port in ports.values():
            wait_for(port)
        rows = {"bench": [], **{name: [] for name in ports}}
        p99, batch_ms, memory = [], [], []
        for _ in range(a.rounds):
            out = subprocess.run([lattice, "bench", "-m", a.model, "--texts", str(texts), "--threads", str(a.threads), "--json"],
                                 capture_output=True, text=True, check=True).stdout
            rows["bench"].append(json.loads(out)["text_per_s"])
            for name, port in ports.items():
                before = batches(port) if name == "lattice" else None
                result = run_load([load, str(port), str(texts), str(a.connections), str(a.seconds), "/embed"], pids[name])
                if set(result["status"]) - {"200"}:
                    sys.exit(f"{name}: {result}")
                rows[name].append(result["requests_per_s"])
                if name == "lattice":
                    after = batches(port)
                    batch_ms.append((after[0] - before[0]) / (after[1] - before[1]) * 1e3)
                    p99.append(result["p99_ms"])
                    memory.append(result["memory_mb"])
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
    median = {name: statistics.median(values) for name, values in rows.items()}
    result = {"connections": a.connections, "per_s": rows, "median_per_s": median, "p99_ms": p99, "mean_batch_ms": batch_ms,
              "p99_in_batches": [t / batch for t, batch in zip(p99, batch_ms)], "memory_mb": memory, "of_bench": median["lattice"] / median["bench"]}
    if "fastapi" in median:
        result["times_fastapi"] = median["lattice"] / median["fastapi"]
    print(json.dumps(result, indent=1))
    if a.out:
        pathlib.Path(a.out).mkdir(parents=True, exist_ok=True)
        (pathlib.Path(a.out) / "serving.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
