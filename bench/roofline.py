#!/usr/bin/env python3
"""Where the time goes: the operations of `lattice bench --profile --json`, all layers of a kind together, as a table and as a roofline.

usage: roofline.py PROFILE.json --out DIR      writes DIR/profile.md and DIR/roofline.svg

An operation's rate is per thread; so are the two roofs, the measured multiply-add peak and read bandwidth divided by the threads.
What lies under the slanted roof waits for memory, what lies under the flat one could compute faster."""

import argparse
import json
import math
import os
import re

COLOURS = ["#0b6e4f", "#c44536", "#3d5a80", "#e09f3e", "#6d597a", "#8d99ae", "#222222"]
WIDTH, HEIGHT, LEFT, TOP = 640, 360, 60, 40


def kinds(profile):
    """[(name, seconds, flop, bytes)], layers summed, in the order of the forward pass."""
    sums = {}
    for row in profile:
        detail = re.sub(r"\.\d+\.", ".*.", row["detail"])
        name = row["operation"] + (" " + re.sub(r"\.weight$", "", detail.split("*.")[-1]) if detail else "")
        entry = sums.setdefault(name, [0, 0, 0])
        for i, key in enumerate(("thread_seconds", "flop", "bytes")):
            entry[i] += row[key]
    return [(name, *entry) for name, entry in sums.items()]


def table(report):
    peak = report["peak"]
    flat, slope = peak["gflops_f32"] / peak["threads"], peak["read_gb_s"] / peak["threads"]
    lines = [f"{peak['isa']}, {peak['threads']} threads; a thread's roofs: {flat:.0f} GFLOP/s and {slope:.1f} GB/s read.", ""]
    for result in report["results"]:
        rows = kinds(result["profile"])
        total = sum(row[1] for row in rows)
        lines += [
            f"### {result['shape']}: {result['ms']:.1f} ms, {result['tok_per_s']:,.0f} tokens/s, {result['peak_share']:.0%} of the peak", "",
            "| operation | share of time | GFLOP/s | of the peak | GB/s |", "|---|---:|---:|---:|---:|",
        ]
        for name, seconds, flop, moved in rows:
            rate = flop / seconds / 1e9 if seconds else 0
            lines.append(f"| {name} | {seconds / total:.1%} | {rate:.1f} | {rate / flat:.0%} | {moved / seconds / 1e9 if seconds else 0:.1f} |")
        lines.append("")
    return "\n".join(lines)


class Axes:
    """Logarithmic in both directions."""

    def __init__(self, x, y):
        self.x, self.y = [math.log10(v) for v in x], [math.log10(v) for v in y]

    def at(self, x, y):
        left = LEFT + WIDTH * (math.log10(x) - self.x[0]) / (self.x[1] - self.x[0])
        return left, TOP + HEIGHT * (1 - (math.log10(y) - self.y[0]) / (self.y[1] - self.y[0]))


def roofline(report):
    peak = report["peak"]
    flat, slope = peak["gflops_f32"] / peak["threads"], peak["read_gb_s"] / peak["threads"]
    points = []  # shape index, name, FLOP a byte, GFLOP/s, share of the shape's time
    for i, result in enumerate(report["results"]):
        rows = kinds(result["profile"])
        total = sum(row[1] for row in rows)
        points += [(i, name, flop / moved, flop / seconds / 1e9, seconds / total) for name, seconds, flop, moved in rows if seconds and flop and moved]
    x = min(0.1, *(p[2] for p in points)), max(1000, *(p[2] for p in points)) * 1.5
    y = min(1, *(p[3] for p in points)) / 1.5, max(flat, *(p[3] for p in points)) * 1.6
    axes = Axes(x, y)
    parts = []
    for axis, (low, high) in enumerate((x, y)):
        for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
            value = 10.0**power
            label = f"{value:g}"
            if axis == 0:
                left, _ = axes.at(value, y[0])
                parts.append(f'<line x1="{left:.1f}" y1="{TOP}" x2="{left:.1f}" y2="{TOP + HEIGHT}" stroke="#ddd"/>')
                parts.append(f'<text x="{left:.1f}" y="{TOP + HEIGHT + 15}" text-anchor="middle">{label}</text>')
            else:
                _, top = axes.at(x[0], value)
                parts.append(f'<line x1="{LEFT}" y1="{top:.1f}" x2="{LEFT + WIDTH}" y2="{top:.1f}" stroke="#ddd"/>')
                parts.append(f'<text x="{LEFT - 6}" y="{top + 4:.1f}" text-anchor="end">{label}</text>')
    start = max(x[0], y[0] / slope)
    roof = [axes.at(start, start * slope), axes.at(flat / slope, flat), axes.at(x[1], flat)]
    parts.append('<polyline fill="none" stroke="black" stroke-width="1.5" points="' + " ".join(f"{a:.1f},{b:.1f}" for a, b in roof) + '"/>')
    for i, name, intensity, rate, share in points:
        left, top = axes.at(intensity, rate)
        title = f"{report['results'][i]['shape']} {name}: {rate:.1f} GFLOP/s, {intensity:.1f} FLOP a byte, {share:.1%} of the time"
        parts.append(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="{3 + 14 * math.sqrt(share):.1f}" fill="{COLOURS[i % 7]}" fill-opacity="0.55"><title>{title}</title></circle>')
    for i, result in enumerate(report["results"]):
        parts.append(f'<rect x="{LEFT + 8}" y="{TOP + 8 + 15 * i}" width="10" height="10" fill="{COLOURS[i % 7]}"/>')
        parts.append(f'<text x="{LEFT + 22}" y="{TOP + 17 + 15 * i}">{result["shape"]}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" height="{TOP + HEIGHT + 45}" font-family="sans-serif" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n<text x="{LEFT}" y="20" font-size="13">One thread of {peak["isa"]}: GFLOP/s over '
        f"FLOP a byte; area is share of time</text>\n" + "\n".join(parts) +
        f'\n<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 34}" text-anchor="middle">FLOP a byte</text>\n</svg>\n'
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile")
    parser.add_argument("--out", required=True)
    a = parser.parse_args()
    with open(a.profile) as file:
        report = json.load(file)
    os.makedirs(a.out, exist_ok=True)
    for name, text in (("profile.md", table(report) + "\n"), ("roofline.svg", roofline(report))):
        with open(os.path.join(a.out, name), "w") as file:
            file.write(text)


if __name__ == "__main__":
    main()
