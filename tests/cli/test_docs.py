#!/usr/bin/env python3
"""The documents speak of this program: their C compiles, their commands and options exist, their links lead somewhere."""

import os
import re
import shlex
import subprocess
import unittest

LATTICE = os.environ["LATTICE"]
SOURCE = os.environ["LATTICE_SOURCE"]
DOCUMENTS = ("README.md", "docs/embedding.md", "docs/serving.md", "docs/quantised.md", "docs/DESIGN.md")


def read(name):
    with open(os.path.join(SOURCE, name), encoding="utf-8") as file:
        return file.read()


class Documents(unittest.TestCase):
    def test_c_blocks_compile(self):
        blocks = [block for name in DOCUMENTS for block in re.findall(r"^```c\n(.*?)^```", read(name), re.M | re.S)]
        self.assertTrue(blocks)
        for block in blocks:
            program = f"#include <lattice.h>\nstatic int fail(const lattice_error *err) {{ return err->code; }}\nint main(void)\n{{\n{block}\nreturn 0;\n}}\n"
            command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", os.path.join(SOURCE, "include"), "-x", "c", "-fsyntax-only", "-"]
            result = subprocess.run(command, input=program, capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_commands_and_options_exist(self):
        seen = set()
        for name in DOCUMENTS:
            for line in re.findall(r"^(?:build/)?lattice .*$", "\n".join(re.findall(r"^```sh\n(.*?)^```", read(name), re.M | re.S)), re.M):
                for part in line.split("#")[0].split("&&"):
                    words = shlex.split(part)
                    command = words[1]
                    text = subprocess.run([LATTICE, command, "--help"], capture_output=True, text=True, check=True).stdout
                    for word in words[2:]:
                        if word in ("<", ">"):
                            break
                        if word.startswith("-"):
                            self.assertRegex(text, rf"(?m)^  .*{re.escape(word)}\b", line)
                    seen.add(command)
        self.assertIn("embed", seen)

    def test_make_targets_exist(self):
        makefile = read("Makefile")
        for name in DOCUMENTS:
            for target in re.findall(r"`?\bmake ([a-z][a-z-]+)\b", read(name)):
                if f"`make {target}" in read(name) or re.search(rf"^make {target}\b", read(name), re.M):
                    self.assertRegex(makefile, rf"(?m)^{target}:", f"{name}: make {target}")

    def test_links_lead_somewhere(self):
        for name in DOCUMENTS:
            for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", read(name)):
                if "://" not in link:
                    self.assertTrue(os.path.exists(os.path.join(SOURCE, os.path.dirname(name), link)), f"{name}: {link}")


if __name__ == "__main__":
    unittest.main()
