# The end of the installer. The rest of it, by publish.py: unpack, which writes its sources, in Python, below $work.
# shellcheck shell=sh

# Called by the last line: standard input may be this text (curl ... | sh -s -- ...), and one that was cut off does nothing.
main() {
  python='' install=--install option='' prefix=''
  for argument; do
    case $argument in --*=*) option=${argument%%=*} argument=${argument#*=} ;; esac
    case $option:$argument in
      --prefix:*) prefix=$argument install='' ;;
      --python:*) python=$argument ;;
      *:--help | *:-h) install='' ;;
    esac
    option=$argument
  done
  settings=$prefix/var/lib/gpu-fleet/settings # of an earlier installation
  case $python in
    /*) ;;
    present) python='' install='' ;;
    '')
      python=$(sed -n 's/^GPU_FLEET_PYTHON=//p' "$settings" 2>/dev/null)
      ! grep -qx GPU_FLEET_PYTHON_INSTALL=no "$settings" 2>/dev/null || install=''
      ;;
    *) python='' ;;
  esac

  work=$(mktemp -d) || exit 1 # nobody else may enter it
  trap 'rm -rf "$work"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  unpack || exit 1
  # shellcheck source=/dev/null
  . "$work/libexec/environment"
  if ! found=$(find_python); then
    why=$found found=''
    if [ -n "$install" ] && find_python --can-install; then
      echo "installing the distribution's Python" >&2
      found=$(find_python --install) || { why=$found && found=''; }
    fi
  fi
  [ -n "$found" ] || {
    echo "install-gpu-fleet: $why" >&2
    exit 1
  }
  "$found" -I -S -B -X utf8 "$work" install "$0" "$@" </dev/null
}

find_python() {
  GPU_FLEET_PYTHON=$python sh "$work/libexec/find-python" "$@" 2>&1
}

main "$@"
