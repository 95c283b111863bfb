# What jobs of guests share; the harness puts it before each of them.

# A program of this machine's root.
host() { chroot /host "$@"; }

# A row of the report: RESULT and one JSON object.
result() { echo "RESULT $1"; }

# Ends the job as failed, with the reason.
fail() {
    echo "GUEST-FAULT $1"
    exit 1
}

# What time it is in the guest, seconds from its start; for the log.
stamp() { echo "at $(cut -d' ' -f1 /proc/uptime) s: $*"; }

# await SECONDS COMMAND...: until the command succeeds, looked at ten times a second.
await() {
    tries=$(($1 * 10))
    shift
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.1
    done
}

# field NAME FILE...: a number of fio's JSON, by its path with dots, such as jobs.0.read.iops; a line for each file.
field() {
    host python3 -S -c '
import json, sys
for path in sys.argv[2:]:
    text = open(path).read()
    at = json.loads(text[text.index("{"):])
    for name in sys.argv[1].split("."):
        at = at[int(name)] if name.isdigit() else at[name]
    print(at)' "$@"
}
