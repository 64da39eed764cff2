# The host's proxy settings: those of the login, which sudo and service managers drop, or of /etc/environment, where the host's own tools
# find them.
# shellcheck shell=sh

PROXY_VARIABLES="http_proxy https_proxy ftp_proxy all_proxy no_proxy HTTP_PROXY HTTPS_PROXY FTP_PROXY ALL_PROXY NO_PROXY"

# find_proxies: exports those of /etc/environment unless the run has some already.
find_proxies() {
  for proxy_name in $PROXY_VARIABLES; do
    eval "[ -z \"\${$proxy_name:-}\" ]" || return 0
  done
  [ -r "$PREFIX/etc/environment" ] || return 0
  while IFS= read -r proxy_line || [ -n "$proxy_line" ]; do
    proxy_line=${proxy_line#export }
    proxy_name=${proxy_line%%=*} proxy_value=${proxy_line#*=}
    is_among "$proxy_name" "$PROXY_VARIABLES" || continue
    case $proxy_value in
      \"*\" | \'*\') proxy_value=${proxy_value#?} proxy_value=${proxy_value%?} ;;
    esac
    export "$proxy_name=$proxy_value"
  done <"$PREFIX/etc/environment"
}

# save_proxies: prints them as sh reads them.
save_proxies() {
  for proxy_name in $PROXY_VARIABLES; do
    eval "proxy_value=\${$proxy_name:-}"
    [ -z "$proxy_value" ] || printf "export %s='%s'\n" "$proxy_name" "$(printf '%s' "$proxy_value" | sed "s/'/'\\\\''/g")"
  done
}
