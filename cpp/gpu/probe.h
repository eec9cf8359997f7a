// Shows that a transport moves bytes as it should, before a communicator relies on it.
#pragma once

#include <string>

#include "gpu/transport.h"

namespace pfftjax::gpu {

// Exchanges messages of known bytes by `transport`, of few ranks between all pairs, and compares
// what arrives. Returns why it is not to be used, if so, on all ranks alike. With
// PFFTJAX_GPU_PROBE_BYTES=0 it does nothing. Collective.
std::string Probe(Communicator& comm, Transport& transport);

// Seconds to wait for what may never come: `longest`, or less, so that two such waits end before
// the watch's, which knows no reason.
double Patience(double longest);

// Waits until all ranks have come out of something in which they wait for each other. Where one
// has failed there, as `failure` says on it, and others do not come, the job ends with that and
// with `remedy`.
void ComeOut(Communicator& comm, const std::string& failure, const std::string& remedy);

}  // namespace pfftjax::gpu
