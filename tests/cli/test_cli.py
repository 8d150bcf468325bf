#!/usr/bin/env python3
"""The program as a user runs it: good and bad usage of every command, formats, resuming, exit statuses."""

import json
import math
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

LATTICE = os.environ["LATTICE"]
FIXTURES = os.path.join(os.environ.get("LATTICE_SOURCE", os.path.join(os.path.dirname(__file__), "..", "..")), "tests", "fixtures")
BERT = os.path.join(FIXTURES, "bert-cls")
PROMPTS = os.path.join(FIXTURES, "bert-mean-f16")


def golden(folder):
    with open(os.path.join(folder, "golden.json"), encoding="utf-8") as f:
        return json.load(f)


def run(*args, stdin="", env=None, text=True):
    """Runs the program; the environment names no model folder of the user's."""
    environment = {k: v for k, v in os.environ.items() if k not in ("XDG_DATA_HOME",)}
    environment["HOME"] = "/nonexistent"
    environment.update(env or {})
    data = stdin if isinstance(stdin, bytes) else stdin.encode()
    r = subprocess.run([LATTICE, *args], input=data, capture_output=True, env=environment, timeout=500)
    if text:
        r.stdout, r.stderr = r.stdout.decode(), r.stderr.decode()
    return r


def read_npy(data):
    """Reads version 1.0 of numpy.lib.format by hand: (descr, shape, values)."""
    assert data[:8] == b"\x93NUMPY\x01\x00", data[:8]
    (length,) = struct.unpack("<H", data[8:10])
    assert (10 + length) % 64 == 0
    header = data[10 : 10 + length].decode("latin-1")
    assert header.endswith("\n")
    fields = eval(header, {}, {})  # a literal that this program wrote
    code = {"<f4": "f", "|i1": "b", "|u1": "B"}[fields["descr"]]
    rows, columns = fields["shape"]
    assert fields["fortran_order"] is False
    body = data[10 + length :]
    values = struct.unpack(f"<{rows * columns}{code}", body)
    return fields["descr"], fields["shape"], [values[i * columns : (i + 1) * columns] for i in range(rows)]


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="lattice-cli-")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, data):
        with open(self.path(name), "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())
        return self.path(name)

    def read(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def done(self, *args, **kw):
        r = run(*args, **kw)
        self.assertEqual(r.returncode, 0, r.stderr)
        return r

    def fails(self, status, wanted, *args, **kw):
        """Exit status, one line of error that contains `wanted`, nothing on standard output unless out=True."""
        r = run(*args, **kw)
        self.assertEqual(r.returncode, status, r.stderr)
        lines = r.stderr.splitlines()
        self.assertEqual(len(lines), 1, r.stderr)
        self.assertTrue(lines[0].startswith("lattice: error: "), lines[0])
        self.assertIn(wanted, lines[0])
        return r

    def vectors(self, *args, **kw):
        return [json.loads(line)["embedding"] for line in self.done(*args, **kw).stdout.splitlines()]

    def near(self, x, y, tolerance=5e-6):
        self.assertEqual(len(x), len(y))
        self.assertLessEqual(max(abs(a - b) for a, b in zip(x, y)), tolerance)


class Usage(Case):
    def test_help_lists_the_commands(self):
        for args in (["help"], ["--help"], ["-h"]):
            out = self.done(*args).stdout
            for command in ("embed", "rerank", "logits", "tokenize", "inspect", "quantize", "bench", "version"):
                self.assertRegex(out, rf"(?m)^  {command} +\S")

    def test_every_command_prints_its_options_with_defaults(self):
        for command in ("embed", "rerank", "logits", "tokenize", "inspect", "bench", "version"):
            out = self.done(command, "--help").stdout
            self.assertTrue(out.startswith(f"Usage: lattice {command}"), out)
            self.assertIn("--json", out)
            self.assertEqual(self.done("help", command).stdout, out)
            self.assertLessEqual(max(len(line) for line in out.splitlines()), 90)
        out = self.done("embed", "--help").stdout
        for default in ("(default: jsonl)", "(default: float)", "(default: 16384)", "(default: auto)", "(default: warning)"):
            self.assertIn(default, re.sub(r"\s+", " ", out))

    def test_help_wins_over_other_mistakes(self):
        self.done("embed", "--nonsense", "--help")

    def test_no_command_and_unknown_commands_are_wrong_usage(self):
        self.fails(2, "no command", *[])
        self.fails(2, "did you mean 'embed'?", "embde")
        self.fails(2, "unknown command 'xyzzy'", "xyzzy")
        self.fails(2, "unknown command 'xyzzy'", "help", "xyzzy")

    def test_unknown_options_suggest_the_nearest(self):
        self.fails(2, "did you mean '--format'?", "embed", "--fromat", "npy")
        self.fails(2, "unknown option '--zzzzzzzz'", "embed", "--zzzzzzzz")
        self.fails(2, "put -- before", "embed", "-z")

    def test_values_are_checked(self):
        self.fails(2, "--format must be jsonl, npy or text, not 'csv'", "embed", "-m", BERT, "--format=csv", "x")
        self.fails(2, "--dim must be a whole number", "embed", "-m", BERT, "--dim", "0", "x")
        self.fails(2, "--dim must be a whole number", "embed", "-m", BERT, "--dim", "-1", "x")
        self.fails(2, "--dim must be a whole number", "embed", "-m", BERT, "--dim", "99999999999999999999999", "x")
        self.fails(2, "--threads must be", "embed", "-m", BERT, "--threads", "two", "x")
        self.fails(2, "--no-mmap takes no value", "embed", "-m", BERT, "--no-mmap=1", "x")
        self.fails(2, "--format needs a value", "embed", "-m", BERT, "x", "--format")
        self.fails(2, "-m needs a value", "embed", "x", "-m")
        self.fails(2, "unexpected argument 'x'", "version", "x")
        self.fails(2, "--shapes must be like", "bench", "-m", BERT, "--shapes", "8by8")

    def test_a_model_is_required(self):
        for command in ("embed", "tokenize", "bench", "inspect"):
            self.fails(2, "no model given", command)

    def test_errors_have_no_control_characters(self):
        r = run("embed", "-m", "/no\nsuch\x1bfolder", "x")
        self.assertEqual(r.returncode, 1)
        self.assertEqual(len(r.stderr.splitlines()), 1)
        self.assertNotIn("\x1b", r.stderr)

    def test_options_may_be_written_in_all_four_ways(self):
        wanted = self.done("embed", "-m", BERT, "--dim", "3", "hello").stdout
        self.assertEqual(self.done("embed", f"-m{BERT}", "--dim=3", "hello").stdout, wanted)
        self.assertEqual(self.done("embed", "hello", f"--model={BERT}", "-d3").stdout, wanted)
        self.assertEqual(self.done("embed", "-m", BERT, "-d", "3", "--", "hello").stdout, wanted)

    def test_operands_that_look_like_options_come_after_dashes(self):
        a = self.vectors("embed", "-m", BERT, "--", "--dim", "-5")
        b = self.vectors("embed", "-m", BERT, stdin="--dim\n-5\n")
        self.assertEqual(a, b)


class Models(Case):
    def test_a_name_is_found_under_xdg_data_home(self):
        models = self.path("lattice/models/org")
        os.makedirs(models)
        os.symlink(BERT, os.path.join(models, "tiny"))
        os.symlink(BERT, self.path("lattice/models/short"))
        env = {"XDG_DATA_HOME": self.folder}
        self.done("inspect", "org/tiny", env=env)
        self.done("inspect", "short", env=env)

    def test_a_name_is_found_under_home(self):
        os.makedirs(self.path(".local/share/lattice/models"))
        os.symlink(BERT, self.path(".local/share/lattice/models/short"))
        self.done("inspect", "short", env={"HOME": self.folder})

    def test_an_unknown_name_says_where_it_was_looked_for(self):
        self.fails(1, "/nonexistent/.local/share/lattice/models", "inspect", "nope")
        self.fails(1, "no such folder", "inspect", "../nonexistent/../etc")
        self.fails(1, "no such folder", "inspect", "/nonexistent/a")


class Embed(Case):
    def test_arguments_standard_input_and_files_give_the_reference_vectors(self):
        g = golden(BERT)
        cases = [c for c in g["cases"] if not re.search(r"[\n\r\0]", c["text"])]
        texts = [c["text"] for c in cases]
        lines = "".join(t + "\n" for t in texts)
        outputs = [
            self.done("embed", "-m", BERT, "--", *texts).stdout,
            self.done("embed", "-m", BERT, stdin=lines).stdout,
            self.done("embed", "-m", BERT, "-i", self.write("in.txt", lines)).stdout,
            self.done("embed", "-m", BERT, "--input", "-", stdin=lines).stdout,
        ]
        self.assertEqual(len(set(outputs)), 1)
        rows = [json.loads(line) for line in outputs[0].splitlines()]
        self.assertEqual([r["index"] for r in rows], list(range(len(cases))))
        for row, case in zip(rows, cases):
            self.assertEqual(list(row), ["index", "tokens", "embedding"])
            self.assertEqual(row["tokens"], len(case["ids"]))
            self.near(row["embedding"], case["embedding"])

    def test_json_lines_are_strings_texts_and_ids(self):
        g = golden(BERT)
        for c in g["cases"]:
            stdin = "".join(json.dumps(v) + "\n" for v in (c["text"], {"text": c["text"], "id": [1, {"x": 2}]}, {"ids": c["ids"]}))
            for v in self.vectors("embed", "-m", BERT, "--jsonl", stdin=stdin + "\n \n"):
                self.near(v, c["embedding"])

    def test_wrong_json_lines_are_named_and_lines_before_them_stand(self):
        good = '"fine"\n'
        for bad, wanted in (
            ("{}", 'needs a "text" or "ids"'),
            ("7", "expected a string or an object"),
            ('{"text":7}', "standard input:2:"),
            ('{"ids":[1.5]}', "standard input:2:"),
            ('{"ids":[-1]}', "standard input:2:"),
            ('{"text":"a","ids":[1]}', "not both"),
            ('{"text":"a"', "standard input:2:"),
            ('"a" "b"', "standard input:2:"),
            ('{"text":"a","text":"b"}', "standard input:2:"),
            ('"bad \xff utf-8"'.encode("latin-1"), "standard input:2:"),
        ):
            bad = bad if isinstance(bad, bytes) else bad.encode()
            r = self.fails(1, wanted, "embed", "-m", BERT, "--jsonl", stdin=good.encode() + bad + b"\n" + good.encode())
            self.assertEqual(len(r.stdout.splitlines()), 1)
        self.fails(1, "token id 2000 is outside", "embed", "-m", BERT, "--jsonl", stdin='{"ids":[2,2000]}\n')
        self.fails(1, "text 2 has no tokens", "embed", "-m", BERT, "--jsonl", stdin='"a"\n"b"\n{"ids":[]}\n')

    def test_lone_surrogates_and_nul_in_json(self):
        a, b = self.vectors("embed", "-m", BERT, "--jsonl", stdin='"x \\ud83d y"\n"x \ufffd y"\n')
        self.assertEqual(a, b)
        a, b = self.vectors("embed", "-m", BERT, "--jsonl", stdin='"hello\\u0000 world"\n"hello"\n')
        self.assertNotEqual(a, b)

    def test_floats_read_back_exactly(self):
        out = self.done("embed", "-m", BERT, "hello world", "x").stdout
        npy = self.done("embed", "-m", BERT, "-f", "npy", "hello world", "x", text=False).stdout
        descr, shape, rows = read_npy(npy)
        self.assertEqual((descr, shape), ("<f4", (2, 48)))
        for line, row in zip(out.splitlines(), rows):
            values = json.loads(line)["embedding"]
            self.assertEqual(struct.pack("<48f", *values), struct.pack("<48f", *row))
            self.assertNotRegex(line, r"\d{12}")

    def test_dim_pooling_and_normalising(self):
        (full,) = self.vectors("embed", "-m", BERT, "hello world")
        (cut,) = self.vectors("embed", "-m", BERT, "--dim", "10", "hello world")
        norm = math.sqrt(sum(x * x for x in full[:10]))
        self.near(cut, [x / norm for x in full[:10]], 1e-6)
        p = golden(BERT)["pooling_cases"]
        for kind in ("cls", "mean", "max", "weightedmean", "lasttoken"):
            (v,) = self.vectors("embed", "-m", BERT, "--pooling", kind, "--no-normalize", p["text"])
            self.near(v, p["not_normalized"][kind], 2e-5)
        self.fails(1, "dimension 49 is not in 1 to 48", "embed", "-m", BERT, "--dim", "49", "x")

    def test_prompts(self):
        for c in golden(PROMPTS)["prompt_cases"]:
            (v,) = self.vectors("embed", "-m", PROMPTS, "--prompt-name", c["prompt_name"], c["text"])
            self.near(v, c["embedding"])
        (w,) = self.vectors("embed", "-m", PROMPTS, "--prompt", "passage: ", c["text"])
        self.assertEqual(v, w)
        self.fails(1, "has no prompt 'x'", "embed", "-m", PROMPTS, "--prompt-name", "x", "y")
        self.fails(2, "exclude each other", "embed", "-m", PROMPTS, "--prompt-name", "x", "--prompt", "y", "z")

    def test_int8_and_ubinary(self):
        (f,) = self.vectors("embed", "-m", BERT, "hello world")
        (q,) = self.vectors("embed", "-m", BERT, "--output-type", "int8", "hello world")
        scale = 127 / max(abs(x) for x in f)
        for x, i in zip(f, q):
            self.assertLessEqual(abs(x * scale - i), 0.5 + 1e-3)
        (bits,) = self.vectors("embed", "-m", BERT, "--output-type", "ubinary", "--dim", "13", "hello world")
        wanted = "".join("1" if x > 0 else "0" for x in f[:13]).ljust(16, "0")
        self.assertEqual("".join(f"{b:08b}" for b in bits), wanted)
        for kind, descr, values, columns in (("int8", "|i1", q, 48), ("ubinary", "|u1", None, 6)):
            npy = self.done("embed", "-m", BERT, "-f", "npy", "--output-type", kind, "hello world", text=False).stdout
            found, shape, rows = read_npy(npy)
            self.assertEqual((found, shape), (descr, (1, columns)))
            if values:
                self.assertEqual(list(rows[0]), values)

    def test_text_is_rounded(self):
        line = self.done("embed", "-m", BERT, "-f", "text", "hello world").stdout
        self.assertRegex(line, r"^ +0 +7 tokens( +-?\d\.\d{4}){48}\n$")

    def test_long_texts_are_cut_with_a_warning_or_refused(self):
        long = "hello " * 300
        r = self.done("embed", "-m", BERT, long, "x")
        self.assertEqual(json.loads(r.stdout.splitlines()[0])["tokens"], 128)
        self.assertIn("lattice: warning: 1 text", r.stderr)
        self.fails(1, "text 1 has", "embed", "-m", BERT, "--no-truncate", "x", long)
        rows = [json.loads(x) for x in self.done("embed", "-m", BERT, "--max-length", "10", long).stdout.splitlines()]
        self.assertEqual(rows[0]["tokens"], 10)
        self.fails(1, "maximum length 129 is more than", "embed", "-m", BERT, "--max-length", "129", "x")

    def test_special_tokens_are_recognised_unless_literal(self):
        a = json.loads(self.done("embed", "-m", BERT, "[SEP] x").stdout)
        b = json.loads(self.done("embed", "-m", BERT, "--literal", "[SEP] x").stdout)
        self.assertLess(a["tokens"], b["tokens"])

    def test_empty_lines_are_texts_and_the_last_line_needs_no_end(self):
        rows = [json.loads(x) for x in self.done("embed", "-m", BERT, stdin="\na\r\n\nb").stdout.splitlines()]
        self.assertEqual([r["tokens"] for r in rows], [2, 3, 2, 3])
        self.assertEqual(self.done("embed", "-m", BERT, stdin="").stdout, "")

    def test_instruction_sets_threads_and_mapping_agree(self):
        (wanted,) = self.vectors("embed", "-m", BERT, "hello world")
        for args in (["--isa", "scalar"], ["--threads", "3"], ["--no-mmap"], ["--compute", "f32"], ["--device", "cpu"]):
            (v,) = self.vectors("embed", "-m", BERT, *args, "hello world")
            self.near(v, wanted)
        (rounded,) = self.vectors("embed", "-m", BERT, "--isa", "scalar", "--compute", "bf16", "hello world")
        self.assertNotEqual(rounded, wanted)
        self.near(rounded, wanted, 0.01)
        for isa in json.loads(self.done("version", "--json").stdout)["isa"]:
            if isa in ("avx2", "avx512", "neon"):
                self.fails(1, "compute bf16 needs the instruction set", "embed", "-m", BERT, "--isa", isa, "--compute", "bf16", "x")
        self.fails(1, "'mmx' is not available", "embed", "-m", BERT, "--isa", "mmx", "x")
        self.fails(1, "unknown device 'gpu'", "embed", "-m", BERT, "--device", "gpu", "x")
        r = run("embed", "-m", BERT, "--device", "metal", "hello world")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("running on the CPU", r.stderr)
        self.near(json.loads(r.stdout)["embedding"], wanted)

    def test_inputs_exclude_each_other(self):
        self.fails(2, "not both", "embed", "-m", BERT, "-i", "f", "x")
        self.fails(2, "--jsonl reads", "embed", "-m", BERT, "--jsonl", "x")
        self.fails(1, "/nonexistent/f: No such file", "embed", "-m", BERT, "-i", "/nonexistent/f")
        self.fails(1, "is a folder", "embed", "-m", BERT, "-i", self.folder)
        self.fails(2, "--resume needs --output", "embed", "-m", BERT, "--resume", "x")

    def test_a_broken_weight_is_an_error_and_never_null(self):
        model = self.path("model")
        shutil.copytree(BERT, model)
        file = os.path.join(model, "model.safetensors")
        with open(file, "r+b") as f:
            (n,) = struct.unpack("<Q", f.read(8))
            begin = json.loads(f.read(n))["embeddings.word_embeddings.weight"]["data_offsets"][0]
            f.seek(8 + n + begin + 704 * 48 * 4)
            f.write(struct.pack("<f", math.nan))
        r = self.fails(1, "text 1 ", "embed", "-m", model, "a", "hello world")
        self.assertNotIn("null", r.stdout.lower() + r.stderr.lower())
        r = run("inspect", model, "--check")
        self.assertEqual(r.returncode, 1)
        self.assertIn("'embeddings.word_embeddings.weight' is NaN at [704, 0]", r.stderr)


class Output(Case):
    def setUp(self):
        super().setUp()
        self.texts = self.write("in.txt", "".join(f"text number {i}\n" for i in range(50)))

    def embed(self, *args, **kw):
        return self.done("embed", "-m", BERT, "-i", self.texts, "-o", self.path("out"), *args, **kw)

    def test_a_file_appears_whole(self):
        self.embed()
        self.assertEqual(self.read("out").decode(), self.done("embed", "-m", BERT, "-i", self.texts).stdout)
        self.assertFalse(os.path.exists(self.path("out.part")))

    def test_a_failure_leaves_the_old_file_alone(self):
        self.write("out", "old")
        self.write("bad.jsonl", "nonsense\n")
        self.fails(1, "bad.jsonl:1:", "embed", "-m", BERT, "--jsonl", "-i", self.path("bad.jsonl"), "-o", self.path("out"))
        self.assertEqual(self.read("out"), b"old")
        self.assertFalse(os.path.exists(self.path("out.part")))

    def test_npy_files_carry_their_number_of_rows(self):
        self.embed("-f", "npy")
        descr, shape, rows = read_npy(self.read("out"))
        self.assertEqual(shape, (50, 48))
        (seven,) = self.vectors("embed", "-m", BERT, "text number 7")
        self.assertEqual(struct.pack("<48f", *rows[7]), struct.pack("<48f", *seven))

    def test_resume_goes_on_after_torn_rows(self):
        for format in ("jsonl", "npy", "text"):
            self.embed("-f", format)
            whole = self.read("out")
            os.remove(self.path("out"))
            for size in (0, 1, 100, 127, 128, 129, len(whole) // 3, len(whole) // 2, len(whole) - 1, len(whole)):
                self.write("out.part", whole[:size])
                self.embed("-f", format, "--resume")
                self.assertEqual(self.read("out"), whole, (format, size))
                self.assertFalse(os.path.exists(self.path("out.part")))
                os.remove(self.path("out"))
            # A file cut by hand, and one that is whole already.
            for size in (len(whole) // 2, len(whole)):
                self.write("out", whole[:size])
                self.embed("-f", format, "--resume")
                self.assertEqual(self.read("out"), whole)
            os.remove(self.path("out"))

    def test_resume_refuses_what_does_not_fit(self):
        self.embed()
        lines = self.read("out").splitlines(keepends=True)
        self.write("out.part", b"".join(lines[:20]))
        args = ("embed", "-m", BERT, "-o", self.path("out"), "--resume")
        self.fails(1, "row 19 comes out differently", *args, "-i", self.texts, "--no-normalize")
        self.assertEqual(self.read("out.part"), b"".join(lines[:20]))
        short = self.write("short.txt", "text number 0\n")
        self.fails(1, "out.part", *args, "-i", short)
        self.assertEqual(self.read("out.part"), b"".join(lines[:20]))
        self.fails(1, "not the npy file", *args, "-i", self.texts, "-f", "npy")
        self.assertEqual(self.read("out.part"), b"".join(lines[:20]))
        self.embed("--resume")
        self.assertEqual(self.read("out"), b"".join(lines))

    def test_an_interrupt_leaves_a_file_to_resume(self):
        for format in ("jsonl", "npy"):
            args = ["embed", "-m", BERT, "--jsonl", "-f", format, "-o", self.path("out")]
            process = subprocess.Popen([LATTICE, *args], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
            lines = [json.dumps(f"number {i}") + "\n" for i in range(9000)]
            process.stdin.write("".join(lines).encode())
            process.stdin.flush()
            begun = time.time()
            while time.time() - begun < 300:
                if os.path.exists(self.path("out.part")) and os.path.getsize(self.path("out.part")) > 1000:
                    break
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate()
            self.assertEqual(process.returncode, 1)
            self.assertRegex(stderr.decode(), r"^lattice: error: interrupted; \d+ rows are kept in .*out\.part and --resume goes on")
            self.assertFalse(os.path.exists(self.path("out")))
            stdin = "".join(lines)
            self.done(*args, "--resume", stdin=stdin)
            resumed = self.read("out")
            self.done(*args, stdin=stdin)
            self.assertEqual(resumed, self.read("out"))
            os.remove(self.path("out"))

    def test_an_output_that_cannot_be_written_is_an_error(self):
        self.fails(1, "/nonexistent/out.part", "embed", "-m", BERT, "-o", "/nonexistent/out", "x")
        self.fails(1, "is a folder", "embed", "-m", BERT, "-o", self.folder, "x")
        with open("/dev/full", "w") as full:
            r = subprocess.run([LATTICE, "version"], stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(r.returncode, 1)
        self.done("embed", "-m", BERT, "-o", "/dev/null", "x")

    def test_vectors_come_while_the_input_pauses(self):
        process = subprocess.Popen([LATTICE, "embed", "-m", BERT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process.stdin.write(b"one\n")
        process.stdin.close()
        self.assertIn(b'"index":0', process.stdout.readline())
        process.wait()
        process.stdout.close()


class Terminal(Case):
    """On a terminal only: a progress bar on standard error, and no npy."""

    def on_terminal(self, *args, stdin, pause=0):
        master, slave = pty.openpty()
        process = subprocess.Popen([LATTICE, *args], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=slave)
        os.close(slave)
        seen = b""
        time.sleep(pause)
        process.stdin.write(stdin)
        process.stdin.close()
        while True:
            ready, _, _ = select.select([master], [], [], 60)
            if not ready:
                break
            try:
                block = os.read(master, 65536)
            except OSError:
                break
            if not block:
                break
            seen += block
        process.wait()
        os.close(master)
        return process.returncode, seen

    def test_short_work_draws_nothing(self):
        code, seen = self.on_terminal("embed", "-m", BERT, stdin=b"a\n")
        self.assertEqual((code, seen), (0, b""))

    def test_longer_work_draws_a_bar_and_wipes_it(self):
        # The bar's second begins when texts are first waited for.
        code, seen = self.on_terminal("embed", "-m", BERT, "--batch-tokens", "16", stdin=b"a text of some words\n" * 3000, pause=1.5)
        self.assertEqual(code, 0)
        self.assertIn(b"embedding ", seen)
        self.assertTrue(seen.endswith(b"\r\x1b[K"), seen[-80:])


class Tokenize(Case):
    def test_ids_of_every_fixture(self):
        for name in sorted(os.listdir(FIXTURES)):
            folder = os.path.join(FIXTURES, name)
            if not os.path.exists(os.path.join(folder, "golden.json")):
                continue
            g = golden(folder)
            if g["kind"] == "embedding":
                cases = [c for c in g["cases"] if len(c["ids"]) < g["max_length"]]
                values = [{"text": c["text"]} for c in cases]
            elif g["kind"] == "cross-encoder":
                cases = g["cases"]
                values = [{"text": c["query"], "pair": c["document"]} for c in cases]
                cases = [c for c in cases if len(c["ids"]) < 128]
                values = [{"text": c["query"], "pair": c["document"]} for c in cases]
            else:
                cases = g.get("tokenizer_cases", [])
                values = [{"text": c["text"]} for c in cases]
            stdin = "".join(json.dumps(v) + "\n" for v in values)
            rows = [json.loads(x) for x in self.done("tokenize", "-m", folder, "--jsonl", stdin=stdin).stdout.splitlines()]
            self.assertEqual(len(rows), len(cases))
            for row, case in zip(rows, cases):
                self.assertEqual(list(row), ["ids", "tokens", "offsets", "type_ids"])
                self.assertEqual(row["ids"], case["ids"], (name, case))
                self.assertEqual(len(row["tokens"]), len(row["ids"]))
                if "type_ids" in case:
                    self.assertEqual(row["type_ids"], case["type_ids"])

    def test_offsets_are_bytes_of_the_text(self):
        text = "Le café est fermé"
        row = json.loads(self.done("tokenize", "-m", BERT, text).stdout)
        data = text.encode()
        spans = [data[a:b].decode() for a, b in row["offsets"]]
        self.assertEqual(row["offsets"][0], [0, 0])
        self.assertEqual("".join(spans), text.replace(" ", ""))

    def test_options(self):
        plain = json.loads(self.done("tokenize", "-m", BERT, "hello world").stdout)
        self.assertEqual(plain["ids"], golden(BERT)["cases"][0]["ids"])
        self.assertEqual(plain["tokens"][0], "[CLS]")
        bare = json.loads(self.done("tokenize", "-m", BERT, "--no-special", "hello world").stdout)
        self.assertEqual(bare["ids"], plain["ids"][1:-1])
        cut = json.loads(self.done("tokenize", "-m", BERT, "--max-length", "4", "hello world").stdout)
        self.assertEqual(cut["ids"], plain["ids"][:3] + plain["ids"][-1:])
        long = json.loads(self.done("tokenize", "-m", BERT, "hello " * 300).stdout)
        self.assertGreater(len(long["ids"]), 128)
        marked = json.loads(self.done("tokenize", "-m", BERT, "[SEP]").stdout)
        literal = json.loads(self.done("tokenize", "-m", BERT, "--literal", "[SEP]").stdout)
        self.assertEqual(marked["ids"], [2, 3, 3])
        self.assertGreater(len(literal["ids"]), 3)

    def test_a_folder_with_tokenizer_files_is_enough(self):
        shutil.copy(os.path.join(BERT, "tokenizer.json"), self.folder)
        self.done("tokenize", "-m", self.folder, "hello")
        os.remove(self.path("tokenizer.json"))
        self.fails(1, self.folder, "tokenize", "-m", self.folder, "hello")

    def test_decode(self):
        ids = golden(BERT)["cases"][0]["ids"]
        words = [str(i) for i in ids]
        outputs = [
            self.done("tokenize", "-m", BERT, "--decode", *words).stdout,
            self.done("tokenize", "-m", BERT, "--decode", ",".join(words)).stdout,
            self.done("tokenize", "-m", BERT, "--decode", stdin=" ".join(words) + "\n").stdout,
            self.done("tokenize", "-m", BERT, "--decode", stdin=json.dumps(ids) + "\n").stdout,
            self.done("tokenize", "-m", BERT, "--decode", "--jsonl", stdin=json.dumps({"ids": ids}) + "\n").stdout,
        ]
        self.assertEqual(set(outputs), {outputs[0]})
        self.assertEqual(json.loads(outputs[0]), {"text": "[CLS] hello world [SEP]"})
        out = self.done("tokenize", "-m", BERT, "--decode", "--no-special", *words).stdout
        self.assertEqual(json.loads(out), {"text": "hello world"})
        self.fails(1, "'x' is not a token id", "tokenize", "-m", BERT, "--decode", "1", "x")
        self.fails(1, "is not a token id", "tokenize", "-m", BERT, "--decode", "4294967296")
        self.fails(1, "--decode needs", "tokenize", "-m", BERT, "--decode", "--jsonl", stdin='"x"\n')

    def test_output_is_replaced_whole(self):
        self.write("out", "old")
        self.fails(1, "standard input:2:", "tokenize", "-m", BERT, "--jsonl", "-o", self.path("out"), stdin='"a"\nx\n')
        self.assertEqual(self.read("out"), b"old")
        self.done("tokenize", "-m", BERT, "-o", self.path("out"), "a", "b")
        self.assertEqual(len(self.read("out").splitlines()), 2)


class Inspect(Case):
    def test_json_and_table(self):
        d = json.loads(self.done("inspect", PROMPTS, "--json").stdout)
        self.assertEqual(d["family"], "bert")
        self.assertEqual((d["hidden_size"], d["embedding_dim"], d["max_length"]), (48, 48, 64))
        self.assertEqual(d["tensor_types"]["F16"]["tensors"], sum(1 for _ in self.tensors(PROMPTS)))
        self.assertEqual(d["prompts"], {"query": "query: ", "passage": "passage: "})
        self.assertEqual((d["pooling"], d["normalize"]), ("mean", True))
        self.assertEqual(d["tokenizer"]["kind"], "WordPiece")
        self.assertTrue(d["gpu"]["admissible"])
        self.assertNotIn("tensors", d)
        table = self.done("inspect", PROMPTS).stdout
        self.assertRegex(table, r"(?m)^hidden size +48$")
        self.assertRegex(table, r'(?m)^  query +"query: "$')

    def tensors(self, folder):
        with open(os.path.join(folder, "model.safetensors"), "rb") as f:
            (n,) = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(n))
        header.pop("__metadata__", None)
        return header.items()

    def test_tensors_and_plan(self):
        d = json.loads(self.done("inspect", BERT, "--json", "--tensors", "--plan").stdout)
        found = {t["name"]: (t["type"], t["shape"]) for t in d["tensors"]}
        self.assertEqual(found, {k: (v["dtype"], v["shape"]) for k, v in self.tensors(BERT)})
        self.assertTrue(any("attention" in line for line in d["plan"]))
        table = self.done("inspect", BERT, "--tensors", "--plan").stdout
        self.assertIn("embeddings.word_embeddings.weight", table)

    def test_check(self):
        self.assertIn("every value is finite", self.done("inspect", BERT, "--check").stdout)
        self.done("inspect", "-m", BERT)
        self.fails(2, "twice", "inspect", "-m", BERT, BERT)

    def test_unsupported_models_are_named(self):
        self.write("config.json", json.dumps({"model_type": "t5", "architectures": ["T5Model"]}))
        self.fails(1, "t5", "inspect", self.folder)


class BenchAndVersion(Case):
    def test_bench_json(self):
        d = json.loads(self.done("bench", "-m", BERT, "--shapes", "1x8,4x20", "--seconds", "0.02", "--json", "--profile").stdout)
        self.assertEqual([r["shape"] for r in d["results"]], ["1x8", "4x20"])
        for r in d["results"]:
            self.assertGreater(r["ms"], 0)
            self.assertAlmostEqual(r["tok_per_s"], eval(r["shape"].replace("x", "*")) / r["ms"] * 1e3, delta=r["tok_per_s"] * 1e-6)
            self.assertTrue(any(row["operation"] == "linear" for row in r["profile"]))
        self.assertGreater(d["peak"]["gflops_f32"], 0)
        self.assertGreater(d["peak"]["read_gb_s"], 0)
        self.assertGreater(d["memory"]["peak_resident_bytes"], 0)
        self.assertGreater(d["memory"]["workspace_touched_bytes"], 0)

    def test_bench_of_a_generator(self):
        generator = os.path.join(os.path.dirname(BERT), "qwen3.5-text")
        d = json.loads(self.done("bench", "-m", generator, "--decode", "60", "--prefill", "40", "--seconds", "0.02", "--json").stdout)
        self.assertEqual((d["decode"]["tokens"], d["prefill"]["tokens"]), (60, 40))
        for key in ("ms", "tok_per_s", "token_bytes", "read_gb_s", "read_share"):
            self.assertGreater(d["decode"][key], 0, key)

    def test_bench_table(self):
        out = self.done("bench", "-m", BERT, "--shapes", "2x9", "--seconds", "0.02", "--profile").stdout
        self.assertRegex(out, r"(?m)^2x9 +\d")
        self.assertRegex(out, r"(?m)^memory: weights ")
        self.assertRegex(out, r"(?m)^  attention ")
        self.fails(1, "sequences have 1 to 128 tokens", "bench", "-m", BERT, "--shapes", "1x129")

    def test_bench_texts(self):
        self.write("t.jsonl", '{"text":"hello world"}\n"again"\n')
        d = json.loads(self.done("bench", "-m", BERT, "--texts", self.path("t.jsonl"), "--json").stdout)
        self.assertEqual(d["texts"], 2)
        self.assertEqual(d["tokens"], sum(json.loads(x)["tokens"] for x in self.done("embed", "-m", BERT, "hello world", "again").stdout.splitlines()))
        self.assertIn("texts/s", self.done("bench", "-m", BERT, "--texts", self.path("t.jsonl")).stdout)

    def test_version(self):
        d = json.loads(self.done("version", "--json").stdout)
        self.assertRegex(d["version"], r"^\d+\.\d+\.\d+$")
        self.assertIn("scalar", d["isa"])
        self.assertIn(d["isa_chosen"], d["isa"])
        self.assertEqual([x["name"] for x in d["devices"]][0], "cpu")
        for device in d["devices"]:
            self.assertTrue(device["used"] or device["reason"])
        table = self.done("version").stdout
        self.assertTrue(table.startswith(f"lattice {d['version']}\n"))
        self.assertEqual(self.done("--version").stdout, table)


if __name__ == "__main__":
    unittest.main()
