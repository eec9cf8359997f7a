#!/bin/bash
# A simulation on the CPUs of a cluster with Slurm: sbatch examples/slurm/cpu.sh
# "SITE" marks what differs from cluster to cluster. `make slurm` runs it on two nodes that are made
# of one machine; on a cluster it has not been tried: see docs/clusters.md.
#SBATCH --partition=cpu          # SITE: its name here
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=128    # SITE: as many as a node has cores, without hyperthreads
#SBATCH --cpus-per-task=1
#SBATCH --threads-per-core=1     # no hyperthreads
#SBATCH --exclusive
#SBATCH --mem=0                  # all memory of a node
#SBATCH --time=00:30:00
#SBATCH --signal=USR1@300        # five minutes before the end: write a checkpoint
#SBATCH --requeue                # the same job goes on from it: scontrol requeue JOB
#SBATCH --open-mode=append
set -euo pipefail

module load gcc openmpi                 # SITE: those that pfftjax and mpi4py were built with
source "$HOME/pfftjax/env/bin/activate" # SITE: where you have built

export JAX_PLATFORMS=cpu
# SITE: a folder that all nodes share. Compiled programs are kept from run to run.
export JAX_COMPILATION_CACHE_DIR="$HOME/.cache/jax"
# More than the longest time in which one rank works and the others wait, compiling or writing, and
# less than the job has.
export PFFTJAX_TIMEOUT=600

# SITE: how Slurm and this MPI find each other; `srun --mpi=list` says what there is.
options=(--mpi=pmix --cpu-bind=cores --cpus-per-task="$SLURM_CPUS_PER_TASK")
srun "${options[@]}" python -m pfftjax doctor
srun "${options[@]}" python examples/nbody_pm.py --mesh 1024 --finer 1 --box 1000 \
  --checkpoint "$SLURM_SUBMIT_DIR/run.h5" # SITE: where all nodes write fast
