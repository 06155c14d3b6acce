#!/usr/bin/env bash
# Compiles the BPF programs that the command carries to their instructions: redirect.c of AF_XDP ports, and programs.c of
# "bench forward". With --check it writes nothing and fails where the instructions differ. Needs clang-14 and llvm-14, since
# another version may choose other instructions.
set -euo pipefail
cd "$(dirname "$0")/../crates"
check=${1:-}

folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

# Compiles a source, and takes the instructions of a section of it to a file beside the source.
compile() {
  local source=$1 section=$2 name=$3
  clang-14 -target bpf -mcpu=v2 -O2 -Wall -Wextra -Werror -c "$source" -o "$folder/object.o"
  llvm-objcopy-14 -O binary --only-section="$section" "$folder/object.o" "$folder/$name"
  # A file that is as it was keeps its time, so that nothing is built anew.
  if ! cmp "$folder/$name" "$(dirname "$source")/$name"; then
    [ "$check" != --check ] || exit 1
    cp "$folder/$name" "$(dirname "$source")/$name"
  fi
}

compile io/src/port/af_xdp/redirect.c xdp.frags redirect.bin
compile bench/src/forward/programs.c xdp generate.bin
compile bench/src/forward/programs.c tc sink.bin
