#!/bin/bash
# Machines that you start yourself. On the first:  ray_cluster.sh head
# On each other:                                  ray_cluster.sh join ADDRESS_OF_THE_FIRST
# Machines of a cluster share a token: where they have no common home folder, copy the first one's
# ~/.ray/auth_token, which `ray get-auth-token --generate` writes, to the others.
# Then, on the first:  RAY_ADDRESS=auto ragen2 train RUN.toml --engine verl --nodes N --gpus-per-node 8
set -euo pipefail
case "${1:-}" in
  head) ray start --head --port=6379 ;;
  join) ray start --address="${2:?address of the first machine}:6379" ;;
  *) echo "usage: $0 head | join ADDRESS" >&2; exit 2 ;;
esac
