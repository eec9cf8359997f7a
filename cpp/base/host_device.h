// Marks functions that kernels of a GPU call as well as the host.
#pragma once

#ifdef __CUDACC__
#define PFFTJAX_HOST_DEVICE __host__ __device__
#else
#define PFFTJAX_HOST_DEVICE
#endif
