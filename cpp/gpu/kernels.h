// The kernels of a GPU, as the functions of DeviceApi that enqueue them. They return the runtime's
// error code.
#pragma once

#include "gpu/device.h"

namespace pfftjax::gpu {

int CopyBoxes(const BoxCopy* copies, int count, std::int64_t element_bytes, StreamHandle stream);
int AddBoxes(const BoxCopy* copies, int count, Element element, StreamHandle stream);
std::int64_t ParticleScratch(const ParticleCall* call);
int RunParticles(const ParticleCall* call, StreamHandle stream);

}  // namespace pfftjax::gpu
