# Merges files of NAME=value lines, later ones overriding earlier ones, sorted by name, into these files of the directory $OUT:
#   settings.sh       SETTING_NAME="value", read by this program
#   env               NAME="value", the environment file; in double quotes, with four characters escaped, sh and systemd read the same
#   values.identity   its lines with the host's name, datacenter and cluster, whose change restarts only the units that read them
#   values.settings   all its other lines that a service reads

{
  name = substr($0, 1, index($0, "=") - 1)
  if (!(name in line)) names[++n] = name
  line[name] = $0
}

# Puts the last name in its place: hosts have some sixty settings, nearly sorted already.
function settle(last,    i) {
  for (i = n - 1; i > 0 && line[names[i]] > line[last]; i--) names[i + 1] = names[i]
  names[i + 1] = last
}

END {
  all = n
  for (n = 1; n <= all; n++) settle(names[n])
  header = "# Written by gpu-fleet from the stack file and the facts of this host; the next apply overwrites changes made here."
  print header >(ENVIRON["OUT"] "/env")
  print header >(ENVIRON["OUT"] "/values.settings")
  printf "" >(ENVIRON["OUT"] "/values.identity")
  printf "" >(ENVIRON["OUT"] "/settings.sh")
  for (i = 1; i <= all; i++) {
    name = names[i]
    value = substr(line[name], length(name) + 2)
    gsub(/["\\$`]/, "\\\\&", value)
    quoted = name "=\"" value "\""
    print "SETTING_" quoted >(ENVIRON["OUT"] "/settings.sh")
    print quoted >(ENVIRON["OUT"] "/env")
    if (name ~ /^GPU_FLEET_(INSTANCE|DATACENTER|CLUSTER)$/) print quoted >(ENVIRON["OUT"] "/values.identity")
    else if (name !~ /^GPU_FLEET_(STACK|PULL_[A-Z]*)$/) print quoted >(ENVIRON["OUT"] "/values.settings")
  }
}
