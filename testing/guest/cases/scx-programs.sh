#!/usr/bin/env bash
# What does the case need that Debian's packages do not have? A program with a barrier, which is compiled here, and a
# database of 100,000 accounts, which is made here: `initdb` runs for minutes in a guest.
#
#   scx-programs.sh CACHE SHARE
set -euo pipefail
here=$(dirname "$0")
gcc -O2 -fopenmp -Wall -o "$2/openmp" "$here/../load/openmp.c"

database=$1/pgbench.tar
if [ ! -e "$database" ]; then
    binaries=$(echo /usr/lib/postgresql/*/bin)
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    chown postgres "$folder"
    as_postgres() { (cd / && setpriv --reuid=postgres --regid=postgres --clear-groups "$@"); }
    as_postgres "$binaries/initdb" --no-sync --auth=trust --pgdata="$folder/data"
    as_postgres "$binaries/pg_ctl" --pgdata="$folder/data" --options="-c listen_addresses= -k $folder" -w start
    as_postgres "$binaries/pgbench" --initialize --quiet --host="$folder" postgres
    as_postgres "$binaries/pg_ctl" --pgdata="$folder/data" -w stop
    tar -C "$folder" -cf "$database.part" data
    mv "$database.part" "$database"
fi
cp "$database" "$2/pgbench.tar"
