#!/usr/bin/env bash
# Runs a command with DOCKER_HOST set to an engine that answers: `with-docker.sh COMMAND ...`. An engine
# that this started is stopped afterwards, whatever the command's end; any other is left alone.
set -euo pipefail
here=$(dirname "$0")

if ! "$here/docker-engine.sh" status 2>/dev/null; then
    trap '"$here/docker-engine.sh" stop' EXIT
    "$here/docker-engine.sh" start
fi
eval "$("$here/docker-engine.sh" env)"
"$@"
