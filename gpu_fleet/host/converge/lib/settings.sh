# The values of this host: defaults of the bundle, settings of the stack, facts of the probes; later ones override earlier ones.
# shellcheck shell=sh

ENV_FILE=/etc/gpu-fleet/gpu-fleet.env
SECRETS_DIRECTORY=/etc/gpu-fleet/secrets

# load_settings: the settings of the envelope, or without one those of the last apply; and, for the verbs that run no probes, its facts.
load_settings() {
  : >"$SCRATCH/settings"
  if [ -n "$ENVELOPE" ]; then
    [ -f "$ENVELOPE/settings" ] && sort "$ENVELOPE/settings" >"$SCRATCH/settings"
  elif [ -f "$STATE/settings" ]; then
    cp "$STATE/settings" "$SCRATCH/settings"
  fi
  # A line break or another control character would be read differently by sh and by systemd.
  load_bad=$(awk -F = '!/^[A-Za-z_][A-Za-z0-9_]*=/ || /[[:cntrl:]]/ { print $1; exit }' "$SCRATCH/settings")
  if [ -n "$load_bad" ]; then
    fail internal "setting $load_bad: expected NAME=value on one line, without control characters"
    return 1
  fi
  sha256 "$SCRATCH/settings"
  SETTINGS_DIGEST=$SHA256
  if [ -n "$ENVELOPE" ] && [ -f "$ENVELOPE/bundle.tar" ]; then
    sha256 "$ENVELOPE/bundle.tar"
    DIGEST=$SHA256
  elif [ -f "$STATE/digest" ]; then
    IFS= read -r DIGEST <"$STATE/digest"
  else
    sha256 "$HERE/manifest"
    DIGEST=$SHA256
  fi
  : >"$SCRATCH/facts"
  case $VERB in
    check | remove) [ ! -f "$STATE/facts" ] || cp "$STATE/facts" "$SCRATCH/facts" ;;
  esac
  merge_settings
  setting GPU_FLEET_STACK
  STACK=${STACK:-$VALUE}
}

# merge_settings: from everything known so far, the files that settings.awk describes, in $SCRATCH.
merge_settings() {
  printf 'GPU_FLEET_PREFIX=%s\n' "$PREFIX" >"$SCRATCH/settings.own"
  OUT=$SCRATCH awk -f "$HERE/lib/settings.awk" "$HERE/settings" "$SCRATCH/settings" "$SCRATCH/settings.own" "$SCRATCH/facts"
  # shellcheck disable=SC1091 # made at run time
  . "$SCRATCH/settings.sh"
}

# setting NAME: sets VALUE; returns 1 when nothing gave it a value.
setting() {
  VALUE=
  eval "VALUE=\${SETTING_$1-} && [ -n \"\${SETTING_$1+set}\" ]"
}

# expand TEXT: sets EXPANDED to it with each ${NAME} replaced by that setting. A bundle has no other text in ${}: gpu_fleet/host/bundle.py.
expand() {
  EXPANDED='' expand_rest=$1
  while :; do
    case $expand_rest in
      *"\${"*"}"*) ;;
      *) break ;;
    esac
    EXPANDED=$EXPANDED${expand_rest%%"\${"*}
    expand_rest=${expand_rest#*"\${"}
    setting "${expand_rest%%"}"*}"
    EXPANDED=$EXPANDED$VALUE
    expand_rest=${expand_rest#*"}"}
  done
  EXPANDED=$EXPANDED$expand_rest
}

# allows PART known|all: do the part's `when` conditions hold? With `known`, a name without a value yet does not count.
allows() {
  records "$1" when
  while IFS=$TAB read -r allows_name allows_values; do
    setting "$allows_name" || [ "$2" = all ] || continue
    case ",$allows_values," in
      *",$VALUE,"*) [ -n "$VALUE" ] || return 1 ;;
      *) return 1 ;;
    esac
  done <"$RECORDS"
}

# choose_parts: $SCRATCH/wanted, the parts of this host; WANTED, the same separated by blanks.
choose_parts() {
  : >"$SCRATCH/wanted"
  WANTED=' '
  while IFS= read -r choose_part; do
    allows "$choose_part" all || continue
    printf '%s\n' "$choose_part" >>"$SCRATCH/wanted"
    WANTED="$WANTED$choose_part "
  done <"$SCRATCH/manifest/parts"
}

is_wanted() {
  case $WANTED in
    *" $1 "*) ;;
    *) return 1 ;;
  esac
}

# gather_secrets: $SCRATCH/secrets/NAME for each secret that a wanted part names. One that the stack does not set is an empty file, so
# that a service can always refer to it; without an envelope the secrets in place are used. And OUR_GROUPS, which this host needs.
gather_secrets() {
  while IFS= read -r gather_part; do
    records "$gather_part" secret
    while IFS= read -r gather_name; do
      gather_from=$PREFIX$SECRETS_DIRECTORY/$gather_name
      [ -z "$ENVELOPE" ] || gather_from=$ENVELOPE/secrets/$gather_name
      (umask 077 && cat "$gather_from" >"$SCRATCH/secrets/$gather_name" 2>/dev/null)
    done <"$RECORDS"
  done <"$SCRATCH/wanted"
  OUR_GROUPS=
  [ "$OWNERS" = yes ] || return 0
  OUR_GROUPS=$GROUP
  for gather_secret in "$SCRATCH/secrets"/*; do
    [ -f "$gather_secret" ] || continue
    secret_group "${gather_secret##*/}"
    OUR_GROUPS="$OUR_GROUPS $SECRET_GROUP"
  done
}
