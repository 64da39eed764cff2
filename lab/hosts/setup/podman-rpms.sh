#!/bin/sh
# shellcheck disable=SC2164  # it runs in sh -e
apt-get install --yes --no-install-recommends --download-only podman runc
for deb in /var/cache/apt/archives/*.deb; do
  name=$(dpkg-deb --field "$deb" Package)
  files=/tmp/files/$name
  dpkg-deb --extract "$deb" "$files"
  for moved in bin sbin lib; do
    [ -d "$files/$moved" ] || continue
    mkdir -p "$files/usr/$moved"
    cp -a "$files/$moved/." "$files/usr/$moved/"
    rm -r "${files:?}/$moved"
  done
  rm -rf "$files/usr/share/doc" "$files/usr/share/man"
  {
    printf 'Name: %s\nVersion: 5.0\nRelease: 1\nBuildArch: x86_64\nAutoReqProv: no\n' "$name"
    printf 'Summary: of Debian, for the gpu-fleet lab\nLicense: as in Debian\n'
    if [ "$name" = podman ]; then
      for other in /var/cache/apt/archives/*.deb; do
        other=$(dpkg-deb --field "$other" Package)
        [ "$other" = podman ] || echo "Requires: $other"
      done
    fi
    printf '%%description\nDebian'"'"'s package.\n%%install\ncp -a %s/. %%{buildroot}/\n' "$files"
    # As the file trigger of systemd's own rpm has it.
    [ ! -d "$files/usr/lib/systemd/system" ] || printf '%%post\nsystemctl daemon-reload || :\n'
    echo %files
    cd "$files"
    find . ! -type d | sed 's/^.//'
    find . -type d | sed 's/^.//' | while read -r directory; do [ -d "/$directory" ] || echo "%dir $directory"; done
  } >"/tmp/specs/$name.spec"
  build appstream "/tmp/specs/$name.spec"
done
rm /var/cache/apt/archives/*.deb
