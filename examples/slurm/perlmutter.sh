#!/bin/bash
# A simulation on GPUs of Perlmutter (NERSC): sbatch -A <project>_g examples/slurm/perlmutter.sh
# Not tried yet: see docs/gpu.md, which also says how to build. Everything below but the last lines
# is particular to this machine.
#SBATCH --constraint=gpu
#SBATCH --qos=regular
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=4
# All tasks see all GPUs of their node; pfftjax gives each its own. Not --gpus-per-task=1: it hides
# the others, and Cray MPICH can then not open their memory.
#SBATCH --gpu-bind=none
#SBATCH --time=00:30:00
set -euo pipefail

# The libraries of cudatoolkit come before those of JAX's wheels: of the same major version as
# jax[cudaNN], or, for NCCL, none: it is needed to build, but not to run.
module load PrgEnv-gnu craype-x86-milan craype-accel-nvidia80 cudatoolkit python
source "$HOME/pfftjax/env/bin/activate" # where you have built

# NCCL over Slingshot, by the plugin aws-ofi-nccl: look for a module or a path that NERSC offers. With
# NCCL_NET it is an error if NCCL does not find it; without, NCCL would take TCP.
export NCCL_NET="AWS Libfabric"
export NCCL_CROSS_NIC=1
export NCCL_NET_GDR_LEVEL=PHB
export NCCL_SOCKET_IFNAME=hsn
export FI_CXI_DISABLE_HOST_REGISTER=1 # CUDA's allocations could wait for libfabric, and it for them
export FI_CXI_DEFAULT_CQ_SIZE=131072
export FI_MR_CACHE_MONITOR=userfaultfd
export MPICH_GPU_SUPPORT_ENABLED=0 # modules may have set it to 1

# In place of NCCL, Cray MPICH on pointers to GPU memory. It needs an mpi4py that was built with
# "cc -target-accel=nvidia80", and these in place of the 0 above.
# export MPICH_GPU_SUPPORT_ENABLED=1
# export PFFTJAX_GPU_TRANSPORT=mpi

# Some releases of Cray MPICH give one thread only to those who do not ask so.
export MPICH_MAX_THREAD_SAFETY=multiple

# More than the longest time in which one rank works and the others wait, and less than the job has.
export PFFTJAX_TIMEOUT=600

# Compiled programs are kept from run to run.
export JAX_COMPILATION_CACHE_DIR="$SCRATCH/jax-cache"

cores=(--cpus-per-task="$SLURM_CPUS_PER_TASK" --cpu-bind=cores) # srun takes no number from sbatch
srun "${cores[@]}" python -m pfftjax doctor
srun "${cores[@]}" python examples/nbody_pm.py --mesh 1024 --finer 1 --box 1000 --out "$SCRATCH/nbody"
