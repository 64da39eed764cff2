# The values of this host: defaults of the bundle, settings of the stack, facts of the probes; later ones override earlier ones.
# shellcheck shell=sh

ENV_FILE=/etc/gpu-fleet/gpu-fleet.env
SECRETS_DIRECTORY=/etc/gpu-fleet/secrets

# load_settings: the settings of the envelope, or without one those of the last apply.
load_settings() {
  : >"$SCRATCH/settings.given"
  if [ -n "$ENVELOPE" ]; then
    [ -f "$ENVELOPE/settings" ] && sort "$ENVELOPE/settings" >"$SCRATCH/settings.given"
  elif [ -f "$STATE/settings" ]; then
    cp "$STATE/settings" "$SCRATCH/settings.given"
  fi
  # A line break or another control character would be read differently by sh and by systemd.
  load_bad=$(awk -F = '!/^[A-Za-z_][A-Za-z0-9_]*=/ || /[[:cntrl:]]/ { print $1; exit }' "$SCRATCH/settings.given")
  if [ -n "$load_bad" ]; then
    fail internal "setting $load_bad: expected NAME=value on one line, without control characters"
    return 1
  fi
  SETTINGS_DIGEST=$(sha256 "$SCRATCH/settings.given")
  if [ -n "$ENVELOPE" ] && [ -f "$ENVELOPE/bundle.tar" ]; then
    DIGEST=$(sha256 "$ENVELOPE/bundle.tar")
  else
    DIGEST=$(cat "$STATE/digest" 2>/dev/null || sha256 "$HERE/manifest")
  fi
  : >"$SCRATCH/facts"
  merge_settings
  setting GPU_FLEET_STACK
  STACK=${STACK:-$VALUE}
}

# merge_settings: $SCRATCH/settings from everything known so far, and $SCRATCH/env, the same in the format of the environment file.
merge_settings() {
  printf 'GPU_FLEET_PREFIX=%s\n' "$PREFIX" >"$SCRATCH/settings.own"
  awk '{ at = index($0, "="); line[substr($0, 1, at - 1)] = $0 } END { for (name in line) print line[name] }' \
    "$HERE/settings" "$SCRATCH/settings.given" "$SCRATCH/settings.own" "$SCRATCH/facts" | sort >"$SCRATCH/settings"
  {
    echo '# Written by gpu-fleet from the stack file and the facts of this host; the next apply overwrites changes made here.'
    # In double quotes, with these four characters escaped, sh and systemd read the same value.
    awk '{ at = index($0, "="); value = substr($0, at + 1); gsub(/["\\$`]/, "\\\\&", value); print substr($0, 1, at) "\"" value "\"" }' \
      "$SCRATCH/settings"
  } >"$SCRATCH/env"
}

# setting NAME: sets VALUE; returns 1 when nothing gave it a value.
setting() {
  VALUE=
  setting_line=$(NAME=$1 awk 'index($0, ENVIRON["NAME"] "=") == 1 { print; exit }' "$SCRATCH/settings")
  [ -n "$setting_line" ] || return 1
  VALUE=${setting_line#*=}
}

# expand TEXT: sets EXPANDED to it with each ${NAME} replaced by that setting.
expand() {
  EXPANDED=$(TEXT=$1 awk '
    { at = index($0, "="); value[substr($0, 1, at - 1)] = substr($0, at + 1) }
    END {
      text = ENVIRON["TEXT"]
      while (match(text, /\$\{[A-Za-z0-9_]+\}/)) {
        out = out substr(text, 1, RSTART - 1) value[substr(text, RSTART + 2, RLENGTH - 3)]
        text = substr(text, RSTART + RLENGTH)
      }
      print out text
    }' "$SCRATCH/settings")
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
  gather_secrets
  list_wanted_things
}

is_wanted() {
  case $WANTED in
    *" $1 "*) ;;
    *) return 1 ;;
  esac
}

# gather_secrets: $SCRATCH/secrets/NAME for each secret that a wanted part names. One that the stack does not set is an empty file, so
# that a service can always refer to it; without an envelope the secrets in place are used.
gather_secrets() {
  rm -rf "$SCRATCH/secrets"
  mkdir "$SCRATCH/secrets"
  while IFS= read -r gather_part; do
    records "$gather_part" secret
    while IFS= read -r gather_name; do
      gather_from=$PREFIX$SECRETS_DIRECTORY/$gather_name
      [ -z "$ENVELOPE" ] || gather_from=$ENVELOPE/secrets/$gather_name
      (umask 077 && cat "$gather_from" >"$SCRATCH/secrets/$gather_name" 2>/dev/null)
    done <"$RECORDS"
  done <"$SCRATCH/wanted"
}
