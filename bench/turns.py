"""Engines that take turns: each lives in a process of its own, and only the one whose turn it is runs at all.

Machines drift (frequency, neighbours, memory bandwidth), so engines measured one after the other are not comparable; in turns
A B C A B C … each round is a fair comparison and the rounds give an interval. The others are stopped by SIGSTOP meanwhile, so that
no thread pool spins on somebody else's time."""

import contextlib
import json
import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import sys
import traceback


class Engine:
    """`make(*arguments)` is called in the process and returns an object; turn(name, …) calls that method of it. `python`: the
    interpreter of another environment, for rivals whose packages cannot live beside ours."""

    def __init__(self, name, make, *arguments, python=None):
        self.name = name
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, make, arguments), daemon=True)
        with interpreter(context, python or sys.executable):
            self.process.start()
        other.close()
        self.failure = self.receive()[1]
        self.stop()

    def receive(self):
        try:
            return self.pipe.recv()
        except EOFError:
            return None, "the process has ended"

    def stop(self):
        if self.process.is_alive():
            os.kill(self.process.pid, signal.SIGSTOP)

    def turn(self, method, *arguments):
        os.kill(self.process.pid, signal.SIGCONT)
        self.pipe.send((method, arguments))
        result, failure = self.receive()
        self.stop()
        if failure:
            raise RuntimeError(f"{self.name}: {failure}")
        return result

    def close(self):
        self.pipe.close()
        if self.process.is_alive():
            os.kill(self.process.pid, signal.SIGCONT)
            self.process.join(5)
            self.process.kill()
        self.process.join()


@contextlib.contextmanager
def interpreter(context, python):
    """Processes that are started inside run `python` with its own packages; a spawned one inherits sys.path."""
    path = sys.path
    if python != sys.executable:
        own = subprocess.run([python, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"], check=True, capture_output=True, text=True).stdout
        sys.path = [os.path.dirname(os.path.abspath(__file__)), *json.loads(own)]
    context.set_executable(python)
    try:
        yield
    finally:
        context.set_executable(sys.executable)
        sys.path = path


def serve(pipe, make, arguments):
    try:
        engine = make(*arguments)
        pipe.send((None, None))
    except BaseException as problem:
        pipe.send((None, f"{type(problem).__name__}: {problem}"))
        return
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((getattr(engine, method)(*arguments), None))
        except BaseException:
            pipe.send((None, traceback.format_exc()))


def interval(values, samples=2000, level=0.95):
    """Median of the values, and a bootstrap interval of it (seeded: the same rounds give the same interval)."""
    generator = random.Random(0)
    n = len(values)
    medians = sorted(statistics.median(generator.choices(values, k=n)) for _ in range(samples))
    tail = int(samples * (1 - level) / 2)
    return statistics.median(values), medians[tail], medians[-1 - tail]


def cpu_name():
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    import platform

    return platform.processor() or platform.machine()


def processors():
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def save(folder, name, report, table):
    """The report as NAME.json and its table as NAME.md; a folder of None is no wish."""
    if not folder:
        return
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, f"{name}.json"), "w") as file:
        json.dump(report, file, indent=1)
    with open(os.path.join(folder, f"{name}.md"), "w") as file:
        file.write(table)


def bars(path, title, groups, unit):
    """An SVG of horizontal bars: groups is [(label, [(name, value)])]; each group is scaled to its largest value."""
    colours = ["#0b6e4f", "#c44536", "#3d5a80", "#e09f3e", "#6d597a", "#8d99ae", "#222222"]
    names = []
    for _, rows in groups:
        names += [name for name, _ in rows if name not in names]
    height, left, width = 16, 90, 420
    y, parts = 54, []
    for i, name in enumerate(names):
        x = left + i % 4 * 130
        parts.append(f'<rect x="{x}" y="{28 + i // 4 * 14}" width="10" height="10" fill="{colours[i % 7]}"/>')
        parts.append(f'<text x="{x + 14}" y="{37 + i // 4 * 14}">{name}</text>')
    y += (len(names) - 1) // 4 * 14
    for label, rows in groups:
        largest = max(value for _, value in rows)
        parts.append(f'<text x="{left - 8}" y="{y + 12 + height * (len(rows) - 1) // 2}" text-anchor="end">{label}</text>')
        for name, value in rows:
            length = width * value / largest
            parts.append(f'<rect x="{left}" y="{y + 2}" width="{length:.1f}" height="{height - 4}" fill="{colours[names.index(name) % 7]}"/>')
            parts.append(f'<text x="{left + length + 5:.1f}" y="{y + 12}">{value:,.0f}</text>')
            y += height
        y += 10
    with open(path, "w") as file:
        file.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 110}" height="{y + 10}" '
            f'font-family="sans-serif" font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n'
            f'<text x="{left}" y="18" font-size="13">{title} ({unit})</text>\n' + "\n".join(parts) + "\n</svg>\n"
        )


def in_float32(backend):
    """What a back end of sentence-transformers is asked for besides: OpenVINO takes bfloat16 by itself where the CPU has it."""
    return {"model_kwargs": {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}} if backend == "openvino" else {}
