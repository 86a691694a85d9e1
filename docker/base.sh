#!/usr/bin/env bash
# Builds a small Debian image if none can be pulled: debootstrap from this machine's mirror, the certificate authorities
# that this machine trusts, and docker import.  Needs root, debootstrap and a Docker engine.
#
#   docker/base.sh [IMAGE]        default: eps-base
set -euo pipefail
image="${1:-eps-base}"
suite="${SUITE:-bookworm}"
# The first mirror of apt, in either of its two formats, unless MIRROR is set.
configured() {
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null || true
}
mirror="${MIRROR:-$(configured | awk '
    /^URIs:/ { print $2; exit }
    /^deb / { for (i = 2; i <= NF; i++) if ($i ~ /^https?:/) { print $i; exit } }')}"
root="$(mktemp -d)"
trap 'rm -rf "$root"' EXIT
# It becomes the root folder of the image, which every user of the image must be able to enter.
chmod 755 "$root"
debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" "${mirror:?no mirror: set MIRROR}" >&2
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale}/* "$root"/var/log/*
# This machine's own certificate authorities, which a company's mirror or package index may need.
find /usr/local/share/ca-certificates -name '*.crt' -exec cp {} "$root/usr/local/share/ca-certificates/" \; 2>/dev/null || true
chroot "$root" update-ca-certificates >/dev/null 2>&1
tar --directory "$root" --create --one-file-system . | docker import --change 'CMD ["/bin/sh"]' - "$image"
