#!/bin/sh
# A converge program for tests of the provider: keeps the real one's command line and JSON lines, and does what the setting DO says.
verb=$1
shift
prefix='' envelope='' artifacts='' stack='' instance=''
while [ $# -gt 1 ]; do
  case $1 in
    --prefix) prefix=$2 ;;
    --envelope) envelope=$2 ;;
    --artifacts) artifacts=$2 ;;
    --stack) stack=$2 ;;
    --instance) instance=$2 ;;
  esac
  shift 2
done
state=$prefix/var/lib/gpu-fleet
settings=$state/settings
[ -z "$envelope" ] || settings=$envelope/settings
do=$(sed -n 's/^DO=//p' "$settings")
named() { sed -n 's/^GPU_FLEET_INSTANCE=//p' "$1" 2>/dev/null; }

result() {
  printf '{"event":"result","verb":"%s","ok":%s,"changed":1,"failed":0,"drift":0}\n' "$verb" "$1"
  exit "$2"
}
part() { printf '{"event":"part","part":"%s","status":"%s"%s}\n' "$1" "$2" "${3:-}"; }

place() {
  mkdir -p "$state/current" "$prefix/etc/gpu-fleet/secrets"
  cp "$0" "$state/current/converge"
  cp "$settings" "$state/settings"
  cp "$settings" "$prefix/etc/gpu-fleet/gpu-fleet.env"
  [ ! -d "$envelope/secrets" ] || cp "$envelope/secrets/"* "$prefix/etc/gpu-fleet/secrets/"
}

# As the real one does: who the machine is, its own record says.
here=$(named "$state/settings")
owner=$(sed -n 's/^GPU_FLEET_STACK=//p' "$state/settings" 2>/dev/null)
case " $stack " in
  *" ${owner:-$stack} "*) ;;
  *)
    part host failed ",\"error\":{\"code\":\"other-stack\",\"message\":\"this host belongs to stack $owner, not to ${stack%% *}; remove it there first\"}"
    result false 1
    ;;
esac
case $verb in
  plan | apply)
    [ -n "$here" ] || [ -f "$state/settings" ] || echo '{"event":"first"}'
    refused=
    case $verb:" $instance " in plan:* | apply:"  " | *" ${here:-$instance} "*) ;; *) refused=yes ;; esac
    [ -z "$here" ] || [ "$here" = "$(named "$settings")" ] || echo "{\"event\":\"renamed\",\"from\":\"$here\",\"to\":\"$(named "$settings")\"}"
    if [ -n "$refused" ]; then
      part host failed ",\"error\":{\"code\":\"other-instance\",\"message\":\"this machine's own record says that it is $here\"}"
      result false 1
    fi
    ;;
  check | remove)
    if [ -n "$instance" ] && [ -n "$here" ] && [ "$here" != "$instance" ]; then
      part host failed ",\"error\":{\"code\":\"other-instance\",\"message\":\"this machine's own record says that it is $here, not $instance; take $instance out of the stack file\"}"
      result false 1
    fi
    ;;
esac

needs=$(sed -n "s/^NEEDS=//p" "$settings")
if [ "$verb:$do" = apply:insists ] || { [ "$verb" = apply ] && [ -n "$needs" ] && [ -z "$artifacts" ] && [ ! -d "$envelope/artifacts" ]; }; then
  echo "{\"event\":\"needs\",\"files\":[\"$needs\"]}"
  exit 0
fi
case $verb:$do in
  plan:only-failure)
    part driver failed ',"error":{"code":"no-driver","message":"no nvidia-smi here"}'
    result false 5
    ;;
  plan:*)
    [ "$do" != planned-failure ] || part driver failed ',"error":{"code":"no-driver","message":"no nvidia-smi here"}'
    part alloy would-change ',"changes":["would write /etc/gpu-fleet/alloy/export.alloy"]'
    part node-exporter unchanged
    result true 0
    ;;
  apply:leak)
    echo "curl: (22) https://writer:$(cat "$envelope/secrets/metrics-password")@mimir" >&2
    part alloy failed ",\"error\":{\"code\":\"download\",\"message\":\"refused $(cat "$envelope/secrets/metrics-password")\",\"log\":[\"$(cat "$envelope/secrets/metrics-password")\"]}"
    result false 1
    ;;
  apply:no-driver)
    part driver failed ',"error":{"code":"no-driver","message":"nvidia-smi is not on this host"}'
    result false 5
    ;;
  apply:fail)
    place
    part node-exporter changed
    part alloy failed ',"error":{"code":"service-failed","message":"no answer within 15 s","log":["bind: address in use"]}'
    part gpu-exporter failed ',"error":{"code":"port-taken","message":"9400 is used by foo"}'
    result false 1
    ;;
  apply:crash)
    echo "converge: line 7: syntax error" >&2
    exit 2
    ;;
  apply:dies*)
    echo "${do#dies }" >&2
    exit 1
    ;;
  apply:silent)
    place
    exit 0
    ;;
  apply:flood)
    place
    yes "$(printf '%0100d' 0)" | head -c 200000000 # lines of 101 bytes
    head -c 52428800 /dev/zero                       # one line
    yes "$(printf '%0100d' 0)" | head -c 30000000 >&2
    head -c 52428800 /dev/zero >&2
    echo
    echo "still here" >&2
    part alloy changed
    result true 0
    ;;
  apply:quotes)
    place
    password=$(sed 's/[\\"]/\\&/g' "$envelope/secrets/metrics-password")
    printf '{"event":"facts","facts":{"GPU_MODEL":"%s"}}\n' "$password"
    part alloy failed ",\"drift\":[\"url is https://writer:$password@mimir\"],\"error\":{\"code\":\"download\",\"message\":\"refused $password\"}"
    result false 1
    ;;
  apply:shutdown) kill -TERM "$PPID" ;;
  apply:hang)
    place
    (sleep 300) &
    echo "$!" >"$state/child"
    echo "waiting for ever" >&2
    wait
    ;;
  apply:*)
    place
    echo "alloy: writing files" >&2
    [ -z "$artifacts" ] || cp "$artifacts/"* "$prefix/etc/gpu-fleet/"
    for file in "$envelope/artifacts/"*.gz; do
      [ ! -f "$file" ] || gzip -dc "$file" >"$prefix/etc/gpu-fleet/$(basename "$file" .gz)"
    done
    printf '%s' "$stack" >"$state/stack"
    tr '\0' '\n' </proc/$$/environ >"$state/environment"
    echo '{"event":"facts","facts":{"GPU_COUNT":"8","GPU_FLEET_INSTALL_TOOLKIT":"no"}}'
    part alloy changed ',"changes":["wrote /etc/gpu-fleet/alloy/export.alloy"]'
    part node-exporter unchanged
    part textfile not-wanted
    result true 0
    ;;
  check:silent | remove:silent) exit 0 ;;
  check:*)
    if [ -f "$prefix/etc/gpu-fleet/gpu-fleet.env" ]; then
      part alloy unchanged
      part node-exporter unchanged
      part textfile not-wanted
      result true 0
    fi
    part alloy drift ',"drift":["/etc/gpu-fleet/gpu-fleet.env is missing"]'
    part node-exporter unchanged
    part textfile not-wanted
    result false 4
    ;;
  remove:stays)
    part alloy failed ',"error":{"code":"no-write","message":"cannot remove /etc/gpu-fleet/alloy: read-only file system"}'
    result false 1
    ;;
  remove:*)
    rm -rf "$prefix/etc/gpu-fleet" "${state:?}"
    [ -z "$prefix" ] || rmdir "$prefix/etc"
    part alloy removed
    result true 0
    ;;
esac
