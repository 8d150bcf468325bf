#!/usr/bin/env python3
"""What `make install` leaves: a program of three lines builds against it through pkg-config and through CMake, from any prefix."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = os.path.dirname(os.path.abspath(os.environ["LATTICE"]))
PROGRAM = '#include <lattice.h>\n#include <stdio.h>\nint main(void) { puts(lattice_version()); return 0; }\n'
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES C)
find_package(lattice 0.1 REQUIRED)
add_executable(shared main.c)
target_link_libraries(shared PRIVATE lattice::lattice)
add_executable(static main.c)
target_link_libraries(static PRIVATE lattice::lattice_static)
"""


def run(*command, **options):
    result = subprocess.run(command, capture_output=True, text=True, **options)
    if result.returncode != 0:
        raise AssertionError(f"{command}\n{result.stdout}{result.stderr}")
    return result.stdout


def cache(name):
    with open(os.path.join(BUILD, "CMakeCache.txt")) as file:
        return re.search(rf"^{name}:\w+=(.*)$", file.read(), re.M).group(1)


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="lattice-install-")
        # Another prefix than was configured: nothing installed may remember the old one.
        cls.prefix = os.path.join(cls.folder, "a prefix")
        run("cmake", "--install", BUILD, "--prefix", cls.prefix)
        cls.libraries = os.path.join(cls.prefix, cache("CMAKE_INSTALL_LIBDIR"))
        with open(os.path.join(cls.folder, "main.c"), "w") as file:
            file.write(PROGRAM)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def test_every_part_is_there(self):
        for path in (
            "bin/lattice", "include/lattice.h", "share/man/man1/lattice.1", "share/bash-completion/completions/lattice",
            "share/zsh/site-functions/_lattice", "share/fish/vendor_completions.d/lattice.fish",
        ):
            self.assertGreater(os.path.getsize(os.path.join(self.prefix, path)), 0, path)
        self.assertTrue(os.path.islink(os.path.join(self.libraries, "liblattice.so")))

    def test_pkg_config_builds_a_program(self):
        environment = os.environ | {"PKG_CONFIG_PATH": os.path.join(self.libraries, "pkgconfig")}
        flags = run("pkg-config", "--cflags", "--libs", "lattice", env=environment)
        command = f'"{cache("CMAKE_C_COMPILER")}" main.c -o with-pkg-config {flags}'
        run("sh", "-c", command, cwd=self.folder)
        version = run(os.path.join(self.folder, "with-pkg-config"), env={"LD_LIBRARY_PATH": self.libraries})
        self.assertEqual(version.strip(), run("pkg-config", "--modversion", "lattice", env=environment).strip())

    def test_cmake_package_builds_against_both_libraries(self):
        project = os.path.join(self.folder, "project")
        os.makedirs(project)
        shutil.copy(os.path.join(self.folder, "main.c"), project)
        with open(os.path.join(project, "CMakeLists.txt"), "w") as file:
            file.write(PROJECT)
        run("cmake", "-S", project, "-B", project + "/build", f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCMAKE_C_COMPILER={cache('CMAKE_C_COMPILER')}")
        run("cmake", "--build", project + "/build")
        for name in ("shared", "static"):
            self.assertEqual(run(f"{project}/build/{name}").strip(), "0.1.0")

    def test_only_the_public_names_are_exported(self):
        symbols = run("nm", "-D", "--defined-only", "--format=posix", os.path.join(self.libraries, "liblattice.so"))
        names = {line.split()[0].split("@")[0] for line in symbols.splitlines()}
        self.assertEqual({name for name in names if not name.startswith("lattice_")}, set())
        # Every function of the header is there.
        with open(os.path.join(self.prefix, "include", "lattice.h")) as file:
            declared = set(re.findall(r"^LATTICE_API [^;(]*?\b(lattice_\w+)\(", file.read(), re.M))
        self.assertGreater(len(declared), 20)
        self.assertEqual(declared - names, set())

    def test_header_compiles_alone_as_c_and_cpp(self):
        header = os.path.join(self.prefix, "include", "lattice.h")
        for language in ("c", "c++"):
            compiler = cache("CMAKE_C_COMPILER")
            if language == "c++" and subprocess.run([compiler, "-x", "c++", "-fsyntax-only", "-"], input="#include <cstddef>", capture_output=True, text=True).returncode != 0:
                continue  # no C++ here
            run(compiler, "-x", language, "-Wall", "-Wextra", "-Werror", "-Wno-pragma-once-outside-header", "-fsyntax-only", header)


if __name__ == "__main__":
    if cache("LATTICE_SANITIZE"):
        print("not for sanitizer builds: their libraries need a program built alike")
        sys.exit(0)
    unittest.main()
