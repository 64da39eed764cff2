#!/bin/sh
# What runs on a host around the converge program: takes the envelope, works, tidies up. host.py sends it by standard input.
# Arguments: VERB PREFIX STACK INSTANCE SIZE ARTIFACTS; SIZE is that of the envelope on standard input, a tar archive, 0 where there is none.
# The environment comes before it: host.py sends libexec/environment, which every program on a host reads.
# shellcheck disable=SC2317 # a trap calls `tidy`
verb=$1 prefix=$2 stack=$3 instance=$4 size=$5 artifacts=$6
state=$prefix/var/lib/gpu-fleet
# On a whole host the same tools are found whatever the login has in its PATH, which names others where these are not the places
# (NixOS). Below a prefix everything is that of its user.
[ -n "$prefix" ] || PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/snap/bin:$PATH
incoming=
tidy() {
  [ -z "$incoming" ] || rm -rf "$incoming"
  rmdir "$state" "$prefix/var/lib" "$prefix/var" 2>/dev/null
}
trap tidy EXIT
# sweep_incoming: removes what killed runs left, secrets among it. Whoever works in such a directory holds its lock.
sweep_incoming() {
  for left in "$state"/incoming.*; do
    [ -d "$left" ] && flock -n "$left" true 2>/dev/null && rm -rf "$left"
  done
}
# is_placed: the records of what was placed here exist.
is_placed() {
  [ -e "$state/current" ] || grep -qv '^format' "$state/placed" 2>/dev/null
}
# is_left: the files of all parts are here, though the records are gone, as where the file system of /var/lib/gpu-fleet is not mounted.
is_left() {
  [ -e "$prefix/etc/gpu-fleet/gpu-fleet.env" ] && [ -e "$prefix/opt/gpu-fleet/libexec/environment" ]
}
# sweep_removal: removes what is left of a removal that was killed at its very end, after it had deleted its records. Under the lock: a
# removal that is still at work deletes the rest itself, and a first apply has no records yet.
sweep_removal() {
  [ -d "$state/bundles" ] || return 0
  # shellcheck disable=SC2094 # the lock itself is left over, too
  (
    tries=60
    until flock -n 9; do
      tries=$((tries - 1))
      [ "$tries" -gt 0 ] || exit 0
      sleep 1
    done
    is_placed || rm -rf "$state/bundles" "$state/placed" "$state"/scratch.* "$state/lock"
  ) 9>>"$state/lock"
}
# roomy DIRECTORY...: sets base to the first one where a bundle has room. On many hosts /tmp is small, and full.
roomy() {
  for base; do
    [ -w "$base" ] && [ "$(df -Pk "$base" | awk 'END { print $4 }')" -ge 8192 ] && return
  done
}
cannot_unpack() {
  echo "the bundle cannot be unpacked in $base" >&2
  exit 10
}
echo "{\"event\":\"clock\",\"now\":$(date +%s)}"
exec 3<&0
if [ "$size" = 0 ]; then
  if [ ! -s "$state/current/converge" ]; then
    if is_placed; then
      echo "$state/current/converge, the program that checks and removes what was placed here, is missing or empty; nothing was done; the next \`up\` places it again" >&2
      exit 11
    fi
    if is_left; then
      trap - EXIT # the mount point stays
      echo "$state is empty, and what it lists is still on this host: mount its file system, or let the next \`up\` place everything again; nothing was done" >&2
      exit 11
    fi
    sweep_incoming
    [ "$verb" != remove ] || sweep_removal
    echo '{"event":"absent"}'
    exit 3
  fi
  [ "$verb" != remove ] || sweep_incoming
  # A copy that an earlier release placed knows no --instance.
  grep -q -e --instance "$state/current/converge" || instance=
  sh "$state/current/converge" "$verb" --prefix "$prefix" ${stack:+--stack "$stack"} ${instance:+--instance "$instance"} </dev/null 3<&- &
else
  base=$state
  if [ "$verb" = apply ]; then
    (umask 022 && mkdir -p "$state") || exit 10
    sweep_incoming
  elif [ ! -w "$state" ]; then
    roomy /tmp /var/tmp
  fi
  incoming=$(mktemp -d "$base/incoming.XXXXXX") || cannot_unpack
  exec 8<"$incoming" && flock -s 8 2>/dev/null
  {
    mkdir "$incoming/bundle" &&
      head -c "$size" | tar -xf - -C "$incoming" &&
      gzip -dc "$incoming/bundle.tar.gz" >"$incoming/bundle.tar" &&
      tar -xf "$incoming/bundle.tar" -C "$incoming/bundle"
  } || cannot_unpack
  [ "$verb" = apply ] || instance= # a plan shows the other name
  sh "$incoming/bundle/converge" "$verb" --prefix "$prefix" --envelope "$incoming" \
    ${stack:+--stack "$stack"} ${instance:+--instance "$instance"} ${artifacts:+--artifacts "$artifacts"} </dev/null 3<&- &
fi
work=$!
trap 'wait "$work"; exit 143' HUP INT TERM
(while read -r _; do :; done; kill -TERM 0) <&3 >/dev/null 2>&1 &
watch=$!
exec 3<&-
wait "$work"
code=$?
kill "$watch" 2>/dev/null
# After an interrupted rename a machine has two names in the state, and is removed by both at once: the program may go while it is read.
case $size:$verb:$code in
  0:remove:2 | 0:remove:11 | 0:remove:127)
    sweep_removal
    if ! is_placed; then
      echo '{"event":"absent"}'
      exit 3
    fi
    ;;
esac
exit $code
