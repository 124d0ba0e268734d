# A thin front over the CMake presets. `make help` lists the targets.
PREFIX  ?= /usr/local
DESTDIR ?=
JOBS    ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

export JOBS

.PHONY: all release demo check soak asan tsan clang format tidy metal install clean help
.DEFAULT_GOAL := all

all: release

release:
	@tools/setup.sh build
	@tools/build.sh release

demo: release
	@tools/demo.sh build/release/regolith

check:
	@tools/check.sh

soak:
	@tools/soak.sh

asan tsan clang:
	@tools/setup.sh ci
	@tools/suite.sh $@

format:
	@tools/setup.sh ci
	@tools/sources.sh | xargs clang-format -i

tidy:
	@tools/setup.sh ci
	@tools/lint.sh

# The GPU programs as Metal sources, in build/release/shaders.
metal:
	@tools/setup.sh check
	@tools/build.sh release metal

# Builds nothing when `make` has been run, so `sudo make install` leaves no root-owned files.
install:
	@test -x build/release/regolith || $(MAKE) --no-print-directory release
	@DESTDIR="$(DESTDIR)" cmake --install build/release --prefix "$(PREFIX)"

clean:
	rm -rf build

help:
	@echo "make           build build/release/regolith (installs missing packages on Debian)"
	@echo "make demo      build, then let the demo model write three texts"
	@echo "make check     build and run every test"
	@echo "make soak      the long runs: sanitised stress tests, fuzzing; logged in bench/soak.tsv"
	@echo "make asan      build and test with AddressSanitizer and UBSan"
	@echo "make tsan      build and test the threaded rooms with ThreadSanitizer"
	@echo "make clang     build and test with clang"
	@echo "make tidy      check the rules of the house, the format and the linters"
	@echo "make format    let clang-format lay out the C files"
	@echo "make metal     translate the GPU programs for Apple devices"
	@echo "make install   install under PREFIX (now $(PREFIX)), staged below DESTDIR"
	@echo "make clean     remove build/"
	@echo "JOBS=N limits the build and test jobs (now $(JOBS))"
