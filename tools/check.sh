#!/bin/bash
# make check: set-up, build, every test. The last line is the tally.
set -u
cd "$(dirname "$0")/.."
tools/setup.sh check || exit 1
exec tools/suite.sh dev
