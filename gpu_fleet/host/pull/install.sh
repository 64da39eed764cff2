# The installer's own half: flags, passwords, the first envelope. publish.py prepends constants (PUBLIC_KEYS, PUBLISHED_STACK,
# PUBLISHED_VERSION, PUBLISHED_FROM) and pull.sh. A second run changes the settings given to it and keeps the others.
# shellcheck shell=sh

usage() {
  cat >&2 <<'END'
usage: sh install-gpu-fleet [OPTION...]
  --datacenter NAME, --cluster NAME    labels of this host's metrics and logs; default: the stack's
  --instance NAME                      label of this host; default: its host name
  --from URL|DIR                       location of the publication; default: as published, else this installer's directory
  --metrics-url URL, --logs-url URL    push URLs of metrics and logs; default: the stack's
  --username NAME                      user name for both; default: the stack's
  --password-file FILE                 file with its password; default: a prompt on the terminal
  --logs-username NAME, --logs-password-file FILE     if logs have another login
  --secrets-directory DIR              where metrics-bearer-token, metrics-client-key and the like are, as the bundle needs them
  --setting NAME=VALUE                 any other setting of this host, such as GPU_FLEET_GPUS=8; may be repeated
  --prefix DIR                         install everything below DIR, without root
END
}

die() {
  printf 'install-gpu-fleet: %s\n' "$*" >&2
  exit 1
}

wrong_use() {
  printf 'install-gpu-fleet: %s\n' "$*" >&2
  usage
  exit 2
}

main() {
  PREFIX='' ORIGIN='' METRICS_FILE='' LOGS_FILE='' SECRETS_GIVEN='' GIVEN=''
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help) usage; exit 0 ;;
      --password | --password=* | --logs-password | --logs-password=*)
        wrong_use "a password on the command line is visible in the process list; use ${1%%=*}-file FILE, or omit it for a prompt" ;;
      --datacenter | --cluster | --instance | --from | --metrics-url | --logs-url | --username | --password-file | --logs-username | \
        --logs-password-file | --secrets-directory | --setting | --prefix) ;;
      *) wrong_use "unknown option $1" ;;
    esac
    [ $# -ge 2 ] || wrong_use "$1 needs a value"
    option "$1" "$2"
    shift 2
  done
  state_paths
  [ -n "$PREFIX" ] || [ "$(id -u)" -eq 0 ] || die "this installs services and users; run it as root (sudo sh $0 ...)"
  install || die "$PROBLEM"
}

option() {
  case $1 in
    --datacenter | --cluster | --instance) is_name "$2" || wrong_use "$1 \"$2\": use letters, digits and . _ - between them" ;;
    --metrics-url | --logs-url) is_web_url "$2" || wrong_use "$1 \"$2\": give a URL that begins with https:// or http://" ;;
  esac
  case $1 in
    --datacenter) give GPU_FLEET_DATACENTER "$2" ;;
    --cluster) give GPU_FLEET_CLUSTER "$2" ;;
    --instance) give GPU_FLEET_INSTANCE "$2" ;;
    --metrics-url) give GPU_FLEET_METRICS_URL "$2" ;;
    --logs-url) give GPU_FLEET_LOGS_URL "$2" ;;
    --username) give GPU_FLEET_METRICS_USERNAME "$2" && give GPU_FLEET_LOGS_USERNAME "$2" ;;
    --logs-username) give GPU_FLEET_LOGS_USERNAME "$2" ;;
    --setting)
      case $2 in
        GPU_FLEET_*=*) give "${2%%=*}" "${2#*=}" ;;
        *) wrong_use "--setting \"${2%%=*}\": give GPU_FLEET_NAME=VALUE" ;;
      esac
      ;;
    --password-file) METRICS_FILE=$2 ;;
    --logs-password-file) LOGS_FILE=$2 ;;
    --secrets-directory) SECRETS_GIVEN=$2 ;;
    --prefix) case $2 in /*) PREFIX=${2%/} ;; *) wrong_use "--prefix \"$2\": give an absolute path" ;; esac ;;
    --from) origin "$2" ;;
  esac
}

is_name() {
  printf '%s\n' "$1" | grep -Eqx '[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?'
}

is_web_url() {
  case $1 in http://?* | https://?*) ;; *) return 1 ;; esac
}

# give NAME VALUE: later values override earlier ones, so --logs-username may follow --username.
give() {
  case $2 in *[[:cntrl:]]*) wrong_use "the value of $1 has a line break or another control character" ;; esac
  GIVEN="$GIVEN$1=$2
"
}

# origin URL|DIR: made absolute, because the timer's service has another working directory.
origin() {
  case $1 in
    http://*@* | https://*@*) wrong_use "--from: a login in the URL would be visible in logs and process lists; let the server admit this host without one, or use a directory" ;;
    http://?* | https://?* | file:///*) ORIGIN=${1%/} ;;
    *) ORIGIN=$(cd -- "$1" 2>/dev/null && pwd) || wrong_use "--from \"$1\" is neither a URL nor a directory on this host" ;;
  esac
}

# can_timer_see ORIGIN: systemd hides these directories from the timer's service, as from all of our services.
can_timer_see() {
  [ -z "$PREFIX" ] && [ -d /run/systemd/system ] || return 0
  case $1/ in
    /home/* | /root/* | /run/user/* | /tmp/* | /var/tmp/*)
      problem "$1 is hidden from the service that will read it later; first copy the directory elsewhere, such as to /srv/gpu-fleet" ;;
  esac
}

install() {
  KEYS=$PUBLIC_KEYS STACK=$PUBLISHED_STACK FLOOR=$PUBLISHED_VERSION
  [ -n "$ORIGIN" ] || origin "${PUBLISHED_FROM:-$(dirname -- "$0")}"
  can_timer_see "${ORIGIN#file://}" || return 1
  FORMER_STACK=
  ! grep -qx "GPU_FLEET_PULL_STACK=$STACK" "$STATE/settings" 2>/dev/null || FORMER_STACK=$(cat "$STATE/stack" 2>/dev/null)
  recover_good
  seen=$(seen_version)
  [ "$seen" -le "$FLOOR" ] || FLOOR=$seen
  need_tools && open_work && read_index || return 1
  say "bundle $BUNDLE of stack $STACK, version $VERSION: the signature is valid"
  newest=$WORK/newest
  mkdir -p "$newest/secrets" && get_bundle "$newest" && make_settings && make_secrets || return 1
  [ ! -d "$PULL" ] || take_lock 60 || return 1
  apply_envelope "$newest"
  install_code=$?
  [ ! -d "$PULL" ] || remember_index || return 1
  if [ "$install_code" -ne 0 ]; then
    [ ! -f "$STATE/settings" ] || PROBLEM="$PROBLEM; what came up stays, and the rest is tried again every 15 minutes"
    return 1
  fi
  keep_good "$newest"
  rm -f "$PULL/refused"
  report ok "bundle $(printf '%.12s' "$BUNDLE") is running; from now on this host applies what is published at $ORIGIN"
}

# make_settings: the published settings, overridden by those given to this host before, overridden by those given now.
make_settings() {
  indexed setting >"$WORK/published"
  printf '%s' "$GIVEN" >"$WORK/given"
  unknown=$(sed 's/=.*//' "$WORK/given" | sort -u | while IFS= read -r name; do
    [ "$name" = GPU_FLEET_INSTANCE ] || grep -q "^$name=" "$WORK/published" || printf '%s ' "$name"
  done)
  if [ -n "$unknown" ]; then
    problem "unknown setting ${unknown% }; expected one of: $(sed 's/=.*//' "$WORK/published" | tr '\n' ' ')"
    return 1
  fi
  : >"$WORK/before"
  [ ! -f "$STATE/settings" ] || cp "$STATE/settings" "$WORK/before"
  before=$(sed -n 's/^GPU_FLEET_PULL_GIVEN=//p' "$WORK/before")
  BEFORE=" $before " awk '{ name = $0; sub(/=.*/, "", name) } index(ENVIRON["BEFORE"], " " name " ")' "$WORK/before" >"$WORK/kept"
  grep -q '^GPU_FLEET_INSTANCE=' "$WORK/given" "$WORK/kept" || printf 'GPU_FLEET_INSTANCE=%s\n' "$(uname -n | cut -d . -f 1)" >>"$WORK/given"
  merge_settings "$WORK/published" "$WORK/kept" "$WORK/given" >"$WORK/merged"
  stack=$(value GPU_FLEET_DATACENTER)/$(value GPU_FLEET_CLUSTER)
  cat >"$WORK/own" <<END
GPU_FLEET_STACK=$stack
GPU_FLEET_MODE=pull
GPU_FLEET_PULL_FROM=$ORIGIN
GPU_FLEET_PULL_KEY=$KEYS
GPU_FLEET_PULL_STACK=$STACK
END
  # The names that a later publication does not change.
  names=$({ cat "$WORK/kept" "$WORK/given" "$WORK/own" && echo GPU_FLEET_PULL_GIVEN; } | sed 's/=.*//' | sort -u | tr '\n' ' ')
  printf 'GPU_FLEET_PULL_GIVEN=%s\n' "${names% }" >>"$WORK/own"
  merge_settings "$WORK/merged" "$WORK/own" >"$newest/settings"
}

value() {
  sed -n "s/^$1=//p" "$WORK/merged"
}

# make_secrets: the secrets that the bundle's parts name; from a file, from an earlier installation, or from the terminal.
make_secrets() {
  tar -xOf "$newest/bundle.tar" manifest >"$WORK/manifest" || { problem "cannot unpack the bundle"; return 1; }
  sed -n "s/^secret	//p" "$WORK/manifest" | sort -ru >"$WORK/secrets" # metrics-password before logs-password
  while IFS= read -r secret; do
    case $secret in
      metrics-password) user=$(value GPU_FLEET_METRICS_USERNAME) url=$(value GPU_FLEET_METRICS_URL) file=$METRICS_FILE ;;
      logs-password)
        user=$(value GPU_FLEET_LOGS_USERNAME) url=$(value GPU_FLEET_LOGS_URL) file=$LOGS_FILE
        # One login for both: prompt for the password only once.
        [ -n "$file" ] || [ "$user" != "$(value GPU_FLEET_METRICS_USERNAME)" ] || [ ! -s "$newest/secrets/metrics-password" ] || file=$newest/secrets/metrics-password
        ;;
      *-bearer-token | *-client-key) url='' file=${SECRETS_GIVEN:+$SECRETS_GIVEN/$secret} ;;
      scrape-web-config) continue ;; # for parts that only hosts in push mode get
      *) problem "the bundle needs the secret $secret, which this installer does not know; use the installer published with it" && return 1 ;;
    esac
    if [ -n "$file" ]; then
      password=$(cat -- "$file" 2>/dev/null) || { problem "the password file $file cannot be read"; return 1; }
      [ -n "$password" ] || { problem "the password file $file is empty"; return 1; }
    elif [ -s "$PREFIX/etc/gpu-fleet/secrets/$secret" ]; then
      password=$(cat "$PREFIX/etc/gpu-fleet/secrets/$secret")
    elif [ -z "$url" ]; then
      problem "the secret $secret is needed: give --secrets-directory DIR, with a file of that name in DIR"
      return 1
    else
      ask "Password of $user at $url: " || return 1
    fi
    printf '%s' "$password" >"$newest/secrets/$secret" # a shell builtin, so the secret is never in a process's arguments
  done <"$WORK/secrets"
}

# ask PROMPT: sets password. Standard input may be this script itself, so the terminal is read.
ask() {
  if ! (: </dev/tty) 2>/dev/null; then
    problem "a password is needed, and there is no terminal to prompt on: give --password-file FILE"
    return 1
  fi
  TERMINAL=$(stty -g </dev/tty)
  trap 'stty "$TERMINAL" </dev/tty; close_work' EXIT
  stty -echo </dev/tty # before the prompt, so that early input is not shown either
  printf '%s' "$1" >/dev/tty
  IFS= read -r password </dev/tty
  stty "$TERMINAL" </dev/tty
  trap close_work EXIT
  printf '\n' >/dev/tty
  [ -n "$password" ] || problem "no password was given"
}

main "$@"
