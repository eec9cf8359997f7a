#!/bin/bash
# A simulation on nodes of four GH200 with Slingshot (Alps, Isambard-AI, Olivia):
#     sbatch -A <project> examples/slurm/gh200.sh
# Not tried yet: see docs/gpu.md, which also says how to build, and the pages of your site.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=72
#SBATCH --gpus-per-node=4
# All tasks see all GPUs of their node; pfftjax gives each its own.
#SBATCH --gpu-bind=none
#SBATCH --time=00:30:00
set -euo pipefail

source "$HOME/pfftjax/env/bin/activate" # where you have built

# NCCL over Slingshot, by the plugin aws-ofi-nccl, which a module, a uenv or the container engine of
# your site provides. With NCCL_NET it is an error if NCCL does not find it; without, NCCL would
# take TCP.
export NCCL_NET="AWS Libfabric"
# NCCL 2.27 and newer may deliver wrong numbers between nodes of this kind (NVIDIA/nccl#2001).
export NCCL_LL128_C2C=0
export NCCL_CROSS_NIC=1
export NCCL_NET_GDR_LEVEL=PHB
export NCCL_SOCKET_IFNAME=hsn
export FI_CXI_DISABLE_HOST_REGISTER=1 # CUDA's allocations could wait for libfabric, and it for them
export FI_CXI_DEFAULT_CQ_SIZE=131072
export FI_CXI_DEFAULT_TX_SIZE=2048
export FI_CXI_RDZV_PROTO=alt_read
export FI_CXI_RDZV_THRESHOLD=0
export FI_CXI_RDZV_GET_MIN=0
export FI_CXI_RDZV_EAGER_SIZE=0
export FI_CXI_RX_MATCH_MODE=hybrid
export FI_MR_CACHE_MONITOR=userfaultfd
# NCCL and an MPI on pointers to GPU memory are not to be at work at the same time.
export MPICH_GPU_SUPPORT_ENABLED=0

# Some releases of Cray MPICH give one thread only to those who do not ask so.
export MPICH_MAX_THREAD_SAFETY=multiple

# More than the longest time in which one rank works and the others wait, and less than the job has.
export PFFTJAX_TIMEOUT=600

# Compiled programs are kept from run to run.
export JAX_COMPILATION_CACHE_DIR="${SCRATCH:-$HOME}/jax-cache"

cores=(--cpus-per-task="$SLURM_CPUS_PER_TASK" --cpu-bind=cores) # srun takes no number from sbatch
srun "${cores[@]}" python -m pfftjax doctor
srun "${cores[@]}" python examples/nbody_pm.py --mesh 1024 --finer 1 --box 1000 \
  --out "${SCRATCH:-$HOME}/nbody"
