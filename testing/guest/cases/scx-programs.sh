#!/usr/bin/env bash
# Which programs of the case are not Debian's? One, which is compiled here.
#
#   scx-programs.sh CACHE SHARE
set -euo pipefail
here=$(dirname "$0")
gcc -O2 -fopenmp -Wall -o "$2/openmp" "$here/../load/openmp.c"
