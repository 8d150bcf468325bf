"""Does a stream pause when texts are embedded beside it? Times between the events of a stream, alone and under load.

usage: stutter.py GENERATOR EMBEDDER TEXTS [--build build] [--connections 64] [--tokens 300]"""

import argparse
import http.client
import json
import statistics
import subprocess
import time

from serving import free_port, wait_for


def gaps(port, tokens):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = {"model": "generator", "prompt": "In the beginning", "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    times = []
    while line := response.readline():
        if line.startswith(b"data: {"):
            times.append(time.perf_counter())
    return sorted(1e3 * (b - a) for a, b in zip(times, times[1:]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("generator")
    parser.add_argument("embedder")
    parser.add_argument("texts")
    parser.add_argument("--build", default="build")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=300)
    a = parser.parse_args()
    port = free_port()
    server = subprocess.Popen([f"{a.build}/lattice", "serve", "-m", f"generator={a.generator}", "-m", f"embedder={a.embedder}", "--port", str(port),
                               "--cache-entries", "0"], stdout=subprocess.DEVNULL)
    try:
        wait_for(port)
        gaps(port, 50)
        rows = {"quiet": gaps(port, a.tokens)}
        load = subprocess.Popen([f"{a.build}/bench_load", str(port), a.texts, str(a.connections), "8", "/embed"], stdout=subprocess.PIPE)
        time.sleep(1)
        rows["loaded"] = gaps(port, a.tokens)
        beside = json.loads(load.communicate()[0])
    finally:
        server.terminate()
        server.wait()
    for name, row in rows.items():
        print(f"{name:7} {len(row)} gaps  median {statistics.median(row):.2f} ms  p90 {row[int(len(row) * 0.9)]:.2f}  p99 {row[int(len(row) * 0.99)]:.2f}  "
              f"max {row[-1]:.2f}")
    print(f"loaded/quiet median {statistics.median(rows['loaded']) / statistics.median(rows['quiet']):.2f}; texts beside it {beside['requests_per_s']}/s")


if __name__ == "__main__":
    main()
