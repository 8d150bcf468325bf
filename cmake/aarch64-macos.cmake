# Cross build for macOS on Apple's processors by zig, which brings the C library's headers and a linker for Mach-O. Used by
# scripts/cross-macos, which puts the tools' names and the dependencies' headers into the environment.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_C_COMPILER $ENV{LATTICE_ZIG_TOOLS}/cc)
set(CMAKE_AR $ENV{LATTICE_ZIG_TOOLS}/ar)
set(CMAKE_RANLIB $ENV{LATTICE_ZIG_TOOLS}/ranlib)
set(CMAKE_INSTALL_NAME_TOOL $ENV{LATTICE_ZIG_TOOLS}/none) # nothing is installed
set(CMAKE_OSX_SYSROOT "" CACHE PATH "" FORCE)
# The dependencies are there as headers alone; a Mac's dynamic linker would find them.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-undefined,dynamic_lookup")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-Wl,-undefined,dynamic_lookup")
