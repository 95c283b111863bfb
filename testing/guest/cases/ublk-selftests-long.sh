#!/usr/bin/env bash
# The same tests as ublk-selftests has.
set -euo pipefail
exec bash "$(dirname "$0")/ublk-selftests.sh" "$@"
