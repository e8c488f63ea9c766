#!/usr/bin/env bash
# Everything that only a GPU can prove, on one GPU, in less than 6 minutes once packages are there:
#
#   bash tests/gpu/run.sh                     what is installed; the rest from the configured index
#   WHEELS=/path bash tests/gpu/run.sh        the rest from a folder, for a machine without an index
#   DEVICE=simulated bash tests/gpu/run.sh    the same steps on any machine; measures nothing
#
# Further: PYTHON (the interpreter), VENV (where the rest is put), ONLY="roundtrip rates" (some
# steps), QUICK=1 (fewer rounds), CHECK=1 (a missed target fails), SEED. Prints a table, writes
# build/gpu.json, exits with 1 when a step failed, with 2 when it cannot begin. Needs the NVIDIA
# driver and 4 GiB of /dev/shm; no CUDA toolkit. docs/cuda.md says what each step shows.
#
# To fill a folder of wheels on a machine that has an index, with the same Python version:
#   for cuda in 12 13; do pip download -d wheels pytest \
#     $(python3 .ci/lower_bounds.py dependencies) \
#     $(python3 .ci/lower_bounds.py cupy-cuda$cuda | grep -v cupy); done
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PYTHON=${PYTHON:-python3}
DEVICE=${DEVICE:-cuda}
VENV=${VENV:-build/gpu-venv}
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
# Images of NVIDIA pin packages for all of pip; ours go beside theirs, where theirs do not matter.
unset PIP_CONSTRAINT PIP_BUILD_CONSTRAINT
mkdir -p build

give_up() { printf '%s\n' "$@" >&2; exit 2; }

if [[ $DEVICE == cuda && ! -e /dev/nvidiactl ]]; then
  give_up "no NVIDIA GPU on this machine: /dev/nvidiactl is missing (DEVICE=simulated runs anywhere)"
fi

# The arena of step "rates" holds 3 GiB; a container of Docker's has 64 MiB unless told.
room=4096
[[ -n ${QUICK:-} ]] && room=1024
[[ $DEVICE == simulated ]] && room=512
free=$(df -Pm /dev/shm | awk 'NR == 2 { print $4 }')
if ((free < room)); then
  give_up "/dev/shm has $free MiB free, and $room MiB are needed: docker run --shm-size=8g"
fi

# What CUDA 13 brings needs a driver of 580 or newer; what CUDA 12 brings runs on that as well.
driver_major() {
  local version
  version=$(sed -n 's/.*Kernel Module[^0-9]*\(for [^ ]* *\)\?\([0-9]*\)\..*/\2/p' \
    /proc/driver/nvidia/version 2>/dev/null | head -n 1)
  if [[ -n $version ]] && ((version >= 580)); then echo 13; else echo 12; fi
}
lacking() { # of an interpreter: all of the packages, or those of CUDA's compiler
  local python=$1 nvrtc=nvidia-cuda-nvrtc-cu12 major
  local -a wanted
  mapfile -t wanted < <("$python" .ci/lower_bounds.py dependencies)
  wanted+=(pytest)
  if [[ $DEVICE == cuda ]]; then
    wanted+=("cuda-bindings>=12.8,<$(($(driver_major) + 1))")
    # The compiler goes with the bindings, whichever those are.
    major=$("$python" -c 'import importlib.metadata as m; print(m.version("cuda-bindings").split(".")[0])' \
      2>/dev/null) || major=
    [[ $major == 13 ]] && nvrtc=nvidia-cuda-nvrtc
    [[ -n $major ]] && wanted+=("$nvrtc>=12.8,<$((major + 1))")
  fi
  "$python" tests/gpu/lacking.py "${wanted[@]}"
}

# What the machine has is used; what it lacks is installed beside it.
if [[ -n $(lacking "$PYTHON") ]]; then
  if ! "$VENV/bin/python" -m pip --version 2>/dev/null | grep -q ^pip; then
    [[ ! -e $VENV || -e $VENV/pyvenv.cfg ]] || give_up "VENV=$VENV is there, and no venv"
    rm -rf "$VENV" # a half-made one, if any
    if ! "$PYTHON" -m venv --system-site-packages "$VENV"; then
      rm -rf "$VENV"
      give_up "$PYTHON lacks these packages, and no venv could be made for them:" "$(lacking "$PYTHON")"
    fi
  fi
  PYTHON=$VENV/bin/python
  from=()
  [[ -n ${WHEELS:-} ]] && from=(--no-index --find-links "$WHEELS")
  for _ in 1 2; do # the compiler is known once the bindings are there
    mapfile -t missing < <(lacking "$PYTHON")
    ((${#missing[@]})) || break
    if ! "$PYTHON" -m pip install -q "${from[@]}" "${missing[@]}" 2>build/gpu-pip.log; then
      tail -n 15 build/gpu-pip.log >&2
      why="without an index, set WHEELS to a folder with them (this script's top says how to fill it)"
      [[ -n ${WHEELS:-} ]] && why="WHEELS=$WHEELS has not all of them for this Python"
      grep -q ResolutionImpossible build/gpu-pip.log && why="pip's settings contradict them (pip config list)"
      give_up "these packages could not be installed: ${missing[*]}" "$why"
    fi
  done
  mapfile -t missing < <(lacking "$PYTHON")
  ((${#missing[@]} == 0)) || give_up "installed, and of no use all the same: ${missing[*]}"
fi

arguments=(--device "$DEVICE")
[[ -n ${QUICK:-} ]] && arguments+=(--quick)
[[ -n ${CHECK:-} ]] && arguments+=(--check)
[[ -n ${SEED:-} ]] && arguments+=(--seed "$SEED")
# shellcheck disable=SC2206  # names of steps, one word each
[[ -n ${ONLY:-} ]] && arguments+=(--only $ONLY)
exec timeout --kill-after=10 360 "$PYTHON" -m tests.gpu "${arguments[@]}"
