#!/usr/bin/env bash
# Compiles the XDP program of AF_XDP ports to its instructions: redirect.c to redirect.bin, which the command carries.
# With --check it writes nothing and fails where the instructions differ. Needs clang-14 and llvm-14, since another
# version may choose other instructions.
set -euo pipefail
cd "$(dirname "$0")/../crates/io/src/port/af_xdp"

folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
clang-14 -target bpf -mcpu=v2 -O2 -Wall -Wextra -Werror -c redirect.c -o "$folder/redirect.o"
llvm-objcopy-14 -O binary --only-section=xdp.frags "$folder/redirect.o" "$folder/redirect.bin"
if [ "${1:-}" = --check ]; then
  cmp "$folder/redirect.bin" redirect.bin
else
  cp "$folder/redirect.bin" redirect.bin
fi
