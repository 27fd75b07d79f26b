#!/bin/bash
# The containers' image and passwords: docker.sh secrets|image
#
#   secrets   draws a password for each secret that the compose files name and that has none, in docker/secrets
#   image     builds the image madlib_mop

. "$(dirname "$0")/common.sh"

secrets() {
    local name
    (umask 077 && mkdir -p "$ROOT/docker/secrets")
    sed -n 's|^ *file: \./secrets/\([a-z_]*\)$|\1|p' "$ROOT"/docker/compose*.yaml | sort -u | while read -r name; do
        [ -s "$ROOT/docker/secrets/$name" ] && continue
        # Readable by the container's user, whose uid differs from ours; the directory keeps out other users.
        "$PYTHON" -c 'import secrets; print(secrets.token_urlsafe(24), end="")' >"$ROOT/docker/secrets/$name"
        say "generated docker/secrets/$name"
    done
}

case ${1:-} in
    secrets) secrets ;;
    image)
        secrets
        command -v docker >/dev/null || die "docker is not on the PATH. Install docker, or podman under the name docker."
        docker build --file "$ROOT/docker/Dockerfile" --tag madlib_mop "$ROOT"
        ;;
    *) sed -n '2,5s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
