#!/bin/sh
# Installs Docker, and builds deploy/container/Dockerfile as it stands, without a registry: what that
# names as its base is made here of Debian's packages, with Debian's Python in place of python.org's.
# Leaves the image as /var/lib/containers/kvkeep.tar, for `docker load`. Runs as root in the
# root of a machine (tests/deploy/machine.sh) before that has processes; needs Debian's packages and
# PyPI.
set -eu
base=$(sed -n 's/^FROM \([^ ]*\).*/\1/p' /repository/deploy/container/Dockerfile | sort -u)

# Nothing that is installed starts anything.
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod +x /usr/sbin/policy-rc.d
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends buildah docker-compose docker.io mmdebstrap

# Layers cannot lie on an overlay.
mkdir -p /var/lib/containers /var/lib/docker
mount -t tmpfs -o size=2g tmpfs /var/lib/containers
mount -t tmpfs -o size=1g tmpfs /var/lib/docker
. /etc/os-release
mmdebstrap --quiet --variant=minbase --include=ca-certificates,python3,python3-venv \
    "$VERSION_CODENAME" /var/lib/containers/base.tar
made=$(buildah from scratch)
buildah add --quiet "$made" /var/lib/containers/base.tar /
rm /var/lib/containers/base.tar
buildah run --isolation chroot "$made" ln -s /usr/bin/python3 /usr/local/bin/python
buildah config --env PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin "$made"
buildah commit --quiet --rm "$made" "docker.io/library/$base"

# The certificates are this machine's, which may reach PyPI by a proxy of its own.
cd /repository
buildah bud --quiet --isolation chroot --network host --pull-never --format docker --layers=false \
    --volume /etc/ssl/certs:/etc/ssl/certs:ro --ignorefile deploy/container/Dockerfile.dockerignore \
    --file deploy/container/Dockerfile --tag kvkeep .
buildah push --quiet kvkeep docker-archive:/var/lib/containers/kvkeep.tar:kvkeep:latest
