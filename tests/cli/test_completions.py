#!/usr/bin/env python3
"""Completions and man page: every option of every command's --help is in them, and the shells accept them."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

LATTICE = os.environ["LATTICE"]


def run(*arguments, **options):
    return subprocess.run(arguments, capture_output=True, text=True, check=True, **options).stdout


def commands():
    listed = run(LATTICE, "help").split("Commands:\n")[1].split("\n\n")[0]
    return [name for name in re.findall(r"^  (\S+) ", listed, re.M) if name != "help"]


def options(command):
    text = run(LATTICE, command, "--help").split("Options:\n")[1].split("\nExamples:")[0]
    return re.findall(r"^  (?:-\w, |    )--([\w-]+)", text, re.M)


class Generated(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="lattice-completions-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.path, self.text = {}, {}
        for form in ("bash", "zsh", "fish", "man"):
            self.text[form] = run(LATTICE, "completions", form)
            self.path[form] = os.path.join(self.folder, "lattice." + form)
            with open(self.path[form], "w") as file:
                file.write(self.text[form])

    def complete(self, *words):
        """What bash offers for the last word."""
        script = f'. "{self.path["bash"]}"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _lattice; printf "%s\\n" "${{COMPREPLY[@]}}"'
        return run("bash", "-c", script, "bash", "lattice", *words, cwd=self.folder, env=os.environ | {"XDG_DATA_HOME": self.folder}).split()

    def test_every_command_and_option_is_in_each_of_them(self):
        self.assertIn("embed", commands())
        for command in commands():
            self.assertIn(f".SS lattice {command}", self.text["man"])
            zsh = re.search(rf"^  {command}\)$(.*?);;", self.text["zsh"], re.M | re.S).group(1)
            man = self.text["man"].split(f".SS lattice {command}")[1].split("\n.S")[0]
            offered = self.complete(command, "--")
            self.assertIn("help", options(command))
            for option in options(command):
                self.assertIn("--" + option, offered)
                self.assertIn("--" + option, zsh)
                self.assertIn(f"__fish_seen_subcommand_from {command}' -l {option} ", self.text["fish"])
                if option != "help":  # said once for all
                    self.assertIn("\\-\\-" + option.replace("-", "\\-") + "\\fR", man)

    def test_bash_completes_commands_choices_and_models(self):
        self.assertEqual(self.complete("tok"), ["tokenize"])
        self.assertEqual(self.complete("help", "tok"), ["tokenize"])
        self.assertEqual(sorted(self.complete("embed", "--format", "")), ["jsonl", "npy", "text"])
        self.assertEqual(self.complete("embed", "--format", "=", "np"), ["npy"])
        model = os.path.join(self.folder, "lattice", "models", "org", "tiny")
        os.makedirs(model)
        open(os.path.join(model, "config.json"), "w").close()
        self.assertIn("org/tiny", self.complete("embed", "-m", "org/"))

    def test_shells_accept_them(self):
        run("bash", "-n", self.path["bash"])
        for shell in ("zsh", "fish"):
            if shutil.which(shell):
                run(shell, "-n", self.path[shell])

    def test_man_page_formats_without_a_warning(self):
        if not shutil.which("groff"):
            self.skipTest("groff is not installed")
        result = subprocess.run(["groff", "-man", "-Kutf8", "-Tutf8", "-ww", "-z", self.path["man"]], capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_unknown_form_is_wrong_usage(self):
        self.assertEqual(subprocess.run([LATTICE, "completions", "csh"], capture_output=True).returncode, 2)


if __name__ == "__main__":
    unittest.main()
