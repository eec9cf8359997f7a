#!/bin/bash
# A simulation on GPUs of a cluster with Slurm: sbatch examples/slurm/generic.sh
# Not tried yet: see docs/gpu.md. "SITE" marks what differs from cluster to cluster.
#SBATCH --partition=gpu          # SITE: its name here
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4      # SITE: as many as a node has GPUs
#SBATCH --gpus-per-node=4        # SITE: the same (older Slurm: --gres=gpu:4)
#SBATCH --gpu-bind=none          # all tasks see all GPUs of their node; pfftjax gives each its own
#SBATCH --cpus-per-task=16       # SITE: cores of a node over tasks of a node
#SBATCH --time=00:30:00
set -euo pipefail

# SITE: those that pfftjax and mpi4py were built with. CUDA's libraries come before those of JAX's
# wheels then: "cuda" of the same major version as jax[cudaNN], or not at all once you have built.
module load gcc openmpi cuda
source "$HOME/pfftjax/env/bin/activate" # SITE: where you have built

# More than the longest time in which one rank works and the others wait, and less than the job has.
export PFFTJAX_TIMEOUT=600

# SITE: a folder that all nodes share. Compiled programs are kept from run to run.
export JAX_COMPILATION_CACHE_DIR="$HOME/.cache/jax"

# SITE: how Slurm and this MPI find each other; `srun --mpi=list` says what there is.
options=(--mpi=pmix --cpu-bind=cores --cpus-per-task="$SLURM_CPUS_PER_TASK")
srun "${options[@]}" python -m pfftjax doctor
srun "${options[@]}" python examples/nbody_pm.py --mesh 1024 --finer 1 --box 1000
