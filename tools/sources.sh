#!/bin/bash
# Lists the C sources and headers of the tree, one a line (a clone or an unpacked archive).
cd "$(dirname "$0")/.." || exit 1
find . \( -path ./build -o -path ./.git \) -prune -o -type f -name '*.[ch]' -print |
    LC_ALL=C sort
