#!/usr/bin/env bash
# Everything that only a GPU can prove, on one GPU, in less than 6 minutes once packages are there:
#
#   bash tests/gpu/run.sh                     packages from the configured index
#   WHEELS=/path bash tests/gpu/run.sh        packages from a folder, for a machine without an index
#   DEVICE=simulated bash tests/gpu/run.sh    the same steps on any machine; measures nothing
#
# Further: PYTHON (the interpreter), ONLY="roundtrip rates" (some steps), QUICK=1 (fewer rounds),
# CHECK=1 (a missed target fails), SEED. Prints a table, writes build/gpu.json, exits with 1 when a
# step failed. Needs the NVIDIA driver; no CUDA toolkit. docs/cuda.md says what each step shows.
#
# To fill a folder of wheels on a machine that has an index, with the same Python version:
#   pip download -d wheels pytest $(python3 .ci/lower_bounds.py dependencies) \
#     $(python3 .ci/lower_bounds.py cupy-cuda12)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PYTHON=${PYTHON:-python3}
DEVICE=${DEVICE:-cuda}
VENV=build/gpu-venv
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
mkdir -p build

# cupy for CUDA 13 needs a driver of 580 or newer; the one for CUDA 12 runs on all since 525.
major() {
  local version
  version=$(sed -n 's/.*Kernel Module[^0-9]*\(for [^ ]* *\)\?\([0-9]*\)\..*/\2/p' \
    /proc/driver/nvidia/version 2>/dev/null | head -n 1)
  if [[ -n $version ]] && ((version >= 580)); then echo 13; else echo 12; fi
}

if [[ $DEVICE == cuda && ! -e /dev/nvidiactl ]]; then
  echo "no NVIDIA GPU on this machine: /dev/nvidiactl is missing (DEVICE=simulated runs anywhere)" >&2
  exit 2
fi

# What the machine has is used; what it lacks is installed beside it.
[[ -x $VENV/bin/python ]] || "$PYTHON" -m venv --system-site-packages "$VENV"
extra=none
[[ $DEVICE == cuda ]] && extra=cupy-cuda$(major)
requirements() { "$VENV/bin/python" .ci/lower_bounds.py "$1"; }
mapfile -t wanted < <(requirements dependencies; requirements "$extra")
from=()
[[ -n ${WHEELS:-} ]] && from=(--no-index --find-links "$WHEELS")
if ! "$VENV/bin/python" -m pip install -q "${from[@]}" pytest "${wanted[@]}"; then
  echo "the packages above could not be installed; without an index, set WHEELS (see this script's top)" >&2
  exit 2
fi

arguments=(--device "$DEVICE")
[[ -n ${QUICK:-} ]] && arguments+=(--quick)
[[ -n ${CHECK:-} ]] && arguments+=(--check)
[[ -n ${SEED:-} ]] && arguments+=(--seed "$SEED")
# shellcheck disable=SC2206  # names of steps, one word each
[[ -n ${ONLY:-} ]] && arguments+=(--only $ONLY)
exec timeout --kill-after=10 360 "$VENV/bin/python" -m tests.gpu "${arguments[@]}"
