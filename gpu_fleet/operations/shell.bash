#!/bin/bash
# shellcheck shell=bash
# Startup file of `make shell` for bash: the user's own, then the project's tools first on the PATH again, and the stack in the prompt.
if [ -f ~/.bashrc ]; then
  # shellcheck source=/dev/null
  . ~/.bashrc
fi
PATH=${GPU_FLEET_TOOLS_PATH:-$PATH}
PS1="(${PULUMI_STACK:-gpu-fleet}) ${PS1-\$ }"
