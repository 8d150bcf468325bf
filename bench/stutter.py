"""Does a stream pause when texts are embedded beside it? Times between the events of a stream, alone and under load.

usage: stutter.py GENERATOR EMBEDDER TEXTS [--build build] [--connections 64] [--tokens 300]

The ratio of two percentiles says what the load does to the stream, and where the longest gaps were, whether it is its beginning."""

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
    return [1e3 * (b - a) for a, b in zip(times, times[1:])]


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
    ordered = {name: sorted(row) for name, row in rows.items()}
    for name, row in ordered.items():
        longest = sorted(range(len(row)), key=lambda i: -rows[name][i])[:3]
        print(f"{name:7} {len(row)} gaps  median {statistics.median(row):.2f} ms  p90 {row[int(len(row) * 0.9)]:.2f}  p99 {row[int(len(row) * 0.99)]:.2f}  "
              f"max {row[-1]:.2f}  longest at {longest}")
    ratios = [ordered["loaded"][int(len(ordered["loaded"]) * p)] / ordered["quiet"][int(len(ordered["quiet"]) * p)] for p in (0.5, 0.9, 0.99)]
    ratios.append(statistics.mean(rows["loaded"]) / statistics.mean(rows["quiet"]))
    print(f"loaded/quiet: mean {ratios[3]:.2f}, median {ratios[0]:.2f}, p90 {ratios[1]:.2f}, p99 {ratios[2]:.2f}; texts beside it {beside['requests_per_s']}/s")


if __name__ == "__main__":
    main()
