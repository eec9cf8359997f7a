#include "gpu/device.h"

#include <dlfcn.h>

#include "base/options.h"
#include "runtime/profile.h"

namespace pfftjax::gpu {
namespace {

const DeviceApi* loaded = nullptr;  // set while Python imports, before any handler runs

}  // namespace

const DeviceApi* Device() { return loaded; }

void LoadDevice(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  void* symbol = dlsym(library, "pfftjax_device_api");
  if (!symbol) throw std::runtime_error(path + " is not a runtime of pfftjax's");
  const DeviceApi* api = reinterpret_cast<decltype(&pfftjax_device_api)>(symbol)();
  if (api->version != kDeviceApiVersion) {
    throw std::runtime_error(path + " is of another version of pfftjax; install pfftjax again");
  }
  loaded = api;
  if (api->push_range && api->pop_range) {
    trace_ranges = {api->push_range, api->pop_range};
    GetOptions().is_observed = true;
  }
}

}  // namespace pfftjax::gpu
